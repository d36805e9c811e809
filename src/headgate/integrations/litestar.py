"""Litestar: a plugin for all routes, and guards for some.

::

    app = Litestar([search], plugins=[RateLimitPlugin(limits="100/minute")])

    @get("/search", guards=[limit("5/minute")])
    async def search() -> str: ...

The limits of a route and those for all routes are decided together. Litestar runs no middleware for requests without a
route; to count them as well, wrap the application in `headgate.integrations.asgi.RateLimitMiddleware` instead of using
the plugin; guards work with it, too. Functions such as `key` get Litestar's connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

import msgspec
from litestar import Request, Response
from litestar.config.app import AppConfig
from litestar.connection import ASGIConnection
from litestar.enums import ScopeType
from litestar.exceptions import TooManyRequestsException, WebSocketException
from litestar.handlers import BaseRouteHandler
from litestar.middleware import DefineMiddleware
from litestar.plugins import InitPlugin

from headgate.core.errors import UsageError
from headgate.integrations import asgi
from headgate.integrations.answers import Refusal
from headgate.integrations.asgi import EXCHANGE, TRY_LATER, AsgiExchange, Message, Receive, Scope, Send
from headgate.integrations.budget import Budget, BudgetSettings, Quotas, QuotasOfKey
from headgate.integrations.exchange import Exchange
from headgate.integrations.limiter import AsyncRequestLimiter, LimiterSettings
from headgate.integrations.routes import route_name
from headgate.web.problem import CONTENT_TYPE

__all__ = ["Limit", "RateLimitPlugin", "RateLimited", "limit"]


class RateLimited(TooManyRequestsException):
    """A request is refused. The response is a problem document, unless the application has a handler."""

    def __init__(self, refusal: Refusal) -> None:
        headers = {name.decode(): value.decode() for name, value in refusal.fields}
        super().__init__(detail=refusal.detail, status_code=refusal.status, headers=headers)
        self.refusal = refusal


class Limit:
    """A limit of routes, as a guard of a handler, a controller or a router; each route has its own budget."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget

    async def __call__(self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        exchange: Exchange | None = connection.scope.get(EXCHANGE)  # type: ignore[assignment]
        if exchange is None or not isinstance(exchange.limiter, AsyncRequestLimiter):
            raise UsageError("the limit of a route needs the plugin: Litestar(plugins=[RateLimitPlugin(...)])")
        if self.budget in (exchange.covered or ()):
            return
        exchange.limiter.validate_once(self.budget)
        refusal = await exchange.limiter.check(exchange, (self.budget,), _name_of(handler, connection.scope))
        if refusal is None:
            return
        if connection.scope["type"] is ScopeType.WEBSOCKET:
            raise WebSocketException(detail=refusal.detail, code=TRY_LATER)
        raise RateLimited(refusal)


def limit(limits: Quotas | QuotasOfKey | None = None, **terms: Unpack[BudgetSettings]) -> Limit:
    """Return a guard that limits routes; see `Budget` for its options."""
    return Limit(Budget(limits=limits, **terms))


class RateLimitPlugin(InitPlugin):
    """Limits all routes; the settings are those of `LimiterSettings`, and `messages` as in ASGI applications."""

    def __init__(
        self, *, messages: Quotas | Budget | None = None, on_message: str = "close", **settings: Unpack[LimiterSettings]
    ) -> None:
        self.limiter = asgi.request_limiter(**settings)
        self._options: dict[str, Any] = {"limiter": self.limiter, "messages": messages, "on_message": on_message}
        nothing: Any = None
        self._checked = _Middleware(nothing, **self._options)

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        middleware: Any = _Middleware
        app_config.middleware = [DefineMiddleware(middleware, **self._options), *app_config.middleware]
        app_config.on_startup = [lambda app: self._checked.check({"litestar_app": app}), *app_config.on_startup]
        app_config.on_shutdown = [*app_config.on_shutdown, self.limiter.close]
        app_config.exception_handlers = {RateLimited: _problem, **app_config.exception_handlers}
        return app_config


class _Middleware(asgi.RateLimitMiddleware):
    """The middleware of each route; all of them share the plugin's limiter."""

    has_routes = True
    present: Any = ASGIConnection

    def limited_routes(self, scope: Scope) -> bool:
        app: Any = scope.get("litestar_app") or scope.get("app")
        by_route = [getattr(route, "route_handlers", None) or [route.route_handler] for route in app.routes]
        handlers = [handler for found in by_route for handler in found]
        guards = [guard for handler in handlers for guard in handler.resolve_guards() if isinstance(guard, Limit)]
        self.limiter.validate_once(*[guard.budget for guard in guards])
        return bool(guards)

    def limits_of(self, exchange: Exchange, scope: Scope) -> tuple[Sequence[Budget], str]:
        handler = scope.get("route_handler")
        guards = handler.resolve_guards() if handler is not None else ()
        own = [guard.budget for guard in guards if isinstance(guard, Limit)]
        self.limiter.validate_once(*own)
        exchange.covered = frozenset(own)
        return self.limiter.with_own(own), _name_of(handler, scope) if handler is not None else ""

    async def refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        if refusal.answer is None or isinstance(refusal.answer, Response):
            raise RateLimited(refusal)
        await super().refuse(refusal, scope, receive, send)

    async def _websocket(
        self, exchange: AsgiExchange, refusal: Refusal | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if refusal is not None and isinstance(refusal.answer, Response):
            refusal = msgspec.structs.replace(refusal, answer=partial(_deny_websocket, refusal.answer))
        await super()._websocket(exchange, refusal, scope, receive, send)


def _name_of(handler: Any, scope: Any) -> str:
    kind = "WEBSOCKET" if scope["type"] == "websocket" else "ANY"
    return route_name(getattr(handler, "http_methods", None) or (kind,), scope["path_template"])


async def _deny_websocket(answer: Response[Any], scope: Any, receive: Any, send: Send) -> None:
    """Refuse a WebSocket connection by a response, which Litestar writes for HTTP requests only."""

    async def sent(message: Message) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    encoders = scope["route_handler"].resolve_type_encoders()
    response: Any = answer.to_asgi_response(app=None, request=Request(scope), type_encoders=encoders)
    await response(scope, receive, sent)


def _problem(request: Any, error: RateLimited) -> Response[Any]:
    refusal = error.refusal
    if refusal.answer is not None:
        answer: Response[Any] = refusal.answer
        return answer
    body = refusal.problem.encode()
    headers = {"content-length": str(len(body)), **(error.headers or {})}
    shown = b"" if request.method == "HEAD" else body  # which Litestar would send
    return Response(shown, status_code=refusal.status, headers=headers, media_type=CONTENT_TYPE)

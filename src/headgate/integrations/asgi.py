"""Middleware for any ASGI application::

    app = RateLimitMiddleware(app, limits="100/minute")

Every response has the header fields; refusals are problem documents (429). Responses are streamed as they come. A
WebSocket connection counts as a request; a refused one gets an HTTP response if the server supports that, and is
otherwise closed before it is accepted. With `messages`, received messages count as well.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeAlias, Unpack

from headgate.core.errors import UsageError
from headgate.core.numbers import short
from headgate.integrations.answers import Refusal
from headgate.integrations.budget import Budget, Quotas
from headgate.integrations.exchange import DEFAULT, Exchange, ResponseStart
from headgate.integrations.limiter import AsyncRequestLimiter, LimiterSettings, nothing_limited
from headgate.web.errors import InvalidSettings
from headgate.web.headers import as_bytes
from headgate.web.problem import CONTENT_TYPE

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

EXCHANGE = "headgate.exchange"
"""Where a scope has its `Exchange`, for the limits of routes."""
TRY_LATER = 1013
"""The close code "try again later" (IANA), for too many messages."""
MOST_LAYERS = 100
"""Layers of middleware to search, by the attribute `app` that nearly all of them have."""
_REQUESTS = frozenset({"http", "websocket"})
_OURS = frozenset({b"x-ratelimit-limit", b"ratelimit"})
_PROBLEM = (b"content-type", CONTENT_TYPE.encode())


class Denied(Exception):
    """A limit of its route refuses a WebSocket connection: raised through the application to the middleware."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


class RateLimitMiddleware:
    """Limits an ASGI application; the other settings are those of `LimiterSettings`.

    Args:
        app: the application.
        limiter: from `request_limiter`, instead of settings: to reset keys, or to share it.
        messages: how many messages a client may send over all its WebSocket connections, such as ``"10/s"``.
        on_message: what a message above that does: ``"close"`` closes the connection, ``"wait"`` delays it and all that
            follow.
    """

    has_routes = False
    """Whether routes can have limits of their own."""
    is_made_late = False
    """Whether the framework creates it during lifespan startup, as Starlette does. Servers take an exception then as
    missing lifespan support, and serve the application: so `check` raises errors of the settings."""
    present: Callable[[Scope], Any] | None = None
    """Converts a scope into what functions such as `key` get; None: they get the scope."""
    limits_of: Callable[[Exchange, Scope], tuple[Sequence[Budget], str]] | None = None
    """Returns the budgets of a request and the name of its route; None: the budgets for all routes."""

    def __init__(
        self,
        app: Application,
        *,
        limiter: AsyncRequestLimiter | None = None,
        messages: Quotas | Budget | None = None,
        on_message: str = "close",
        **settings: Unpack[LimiterSettings],
    ) -> None:
        self.app, self._owned, self._waits = app, limiter is None, on_message == "wait"
        self._messages: tuple[Budget, ...] = ()
        self._error: UsageError | None = None
        self._is_checked = False
        try:
            if limiter is not None and settings:
                raise InvalidSettings(f"the given limiter has its own {', '.join(settings)}")
            if limiter is not None and limiter.spelling is not as_bytes:
                raise InvalidSettings("create the limiter by headgate.integrations.asgi.request_limiter(...)")
            if on_message not in {"close", "wait"}:
                raise InvalidSettings(f"on_message must be 'close' or 'wait', got {short(on_message)}")
            self.limiter = limiter or AsyncRequestLimiter(settings, as_bytes)
            if messages is not None:
                budget = messages if isinstance(messages, Budget) else Budget(limits=messages, name="messages")
                self._messages = self.limiter.validate(budget)
            if not self.has_routes:
                self.check({})
        except UsageError as error:
            if not (self.is_made_late or _is_in_starlette(app)):
                raise
            self._error, self.limiter, self._owned = error, AsyncRequestLimiter({}, as_bytes), True

    def check(self, scope: Scope) -> None:
        """Check settings and routes, by the scope of the startup or of the first request. Raises UsageError."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        if not (self.limited_routes(scope) or self.limiter.budgets or self._messages) and self.limiter.enabled:
            raise nothing_limited(type(self).__name__.lstrip("_"))
        self._is_checked = True

    def limited_routes(self, scope: Scope) -> bool:  # noqa: ARG002  subclasses use it
        """Validate the limits of routes; returns whether there are any. Raises UsageError."""
        return False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind, limiter = scope["type"], self.limiter
        if kind not in _REQUESTS:
            await self._pass_on(kind, scope, receive, send)
            return
        if not self._is_checked:  # servers need not send startup events
            self.check(scope)
        client = scope.get("client")
        peer, lines = client[0] if client else None, scope["headers"]
        checks = self._check_message if self._messages else None
        exchange = scope[EXCHANGE] = AsgiExchange(
            limiter, scope, peer, lines, present=self.present, receive=receive, send=send, check_message=checks
        )
        if limiter.has_rules:
            raw_path = scope.get("raw_path")
            exchange.path = raw_path.decode("latin-1") if raw_path else scope["path"]
            exchange.method = scope.get("method", "GET")
        budgets, route = (limiter.budgets, DEFAULT) if self.limits_of is None else self.limits_of(exchange, scope)
        try:
            refusal = await limiter.check(exchange, budgets, route)
            if kind == "websocket":
                await self._websocket(exchange, refusal, scope, receive, send)
            elif refusal is not None:
                await self.refuse(refusal, scope, receive, send)
            else:
                await self.app(scope, exchange.receive_message, exchange.send_message)
        except Exception:
            if exchange.is_open and not exchange.has_left:  # a client that disconnects gets no refund
                await limiter.run(exchange.fail())
            raise
        finally:
            scope.pop(EXCHANGE, None)  # breaks a reference cycle

    async def refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(refusal, scope, receive, send)

    async def _pass_on(self, kind: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve what is not a request."""
        if kind == "lifespan":
            try:
                self.check(scope)
            except UsageError as error:  # servers take a mere exception as missing lifespan support
                await receive()
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                raise
        try:
            await self.app(scope, receive, send)
        finally:
            if kind == "lifespan" and self._owned:
                await self.limiter.close()

    async def _websocket(
        self, exchange: AsgiExchange, refusal: Refusal | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if refusal is not None:
            await receive()  # the connect message
            await deny(refusal, scope, receive, send)
            return
        try:
            await self.app(scope, exchange.receive_over_socket, exchange.send_over_socket)
        except Denied as denied:
            if not exchange.has_received:
                await receive()
            await deny(denied.refusal, scope, receive, send)

    async def _check_message(self, connection: Exchange) -> Refusal | None:
        """Take the cost of a message; with ``on_message="wait"``, wait until that is possible."""
        details = connection.request, connection.peer, connection.lines, connection.path, connection.method
        while True:
            refusal: Refusal | None = await self.limiter.check(Exchange(self.limiter, *details), self._messages)
            if refusal is None or not self._waits or refusal.decision is None:
                return refusal
            await asyncio.sleep(refusal.decision.retry_after)


class AsgiExchange(Exchange, eq=False, kw_only=True):
    """A request or a WebSocket connection, with what its application receives and sends."""

    receive: Receive
    send: Send
    check_message: Callable[[Exchange], Awaitable[Refusal | None]] | None
    has_received: bool = False
    """Whether the application has received a message of a WebSocket connection."""
    is_closed: bool = False
    """Whether a refused message has closed the connection."""

    async def receive_message(self) -> Message:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            self.has_left = True
        return message

    def send_message(self, message: Message) -> Awaitable[None]:
        if self.is_open:
            return self._settle(message)
        return self.send(with_fields(message, self) if message["type"] == "http.response.start" else message)

    async def _settle(self, message: Message) -> None:
        """Pass on a message of a response that decides what the request costs."""
        if message["type"] == "http.response.start":
            limiter: Any = self.limiter
            status = message["status"]
            await limiter.run(self.respond(ResponseStart(status, message.get("headers", ())), status))
            message = with_fields(message, self)
        try:
            await self.send(message)
        except OSError:
            self.has_left = True
            raise

    async def send_over_socket(self, message: Message) -> None:
        if not self.is_closed:
            await self.send(with_fields(message, self) if message["type"] == "websocket.accept" else message)

    async def receive_over_socket(self) -> Message:
        message = await self.receive()
        self.has_received = True
        if message["type"] == "websocket.disconnect":
            self.has_left = True
        if message["type"] != "websocket.receive" or self.check_message is None or self.is_closed:
            return message
        refusal = await self.check_message(self)
        if refusal is None:
            return message
        self.is_closed = True
        reason = f"Too many messages. Retry in {refusal.retry_after or 1} s."
        await self.send({"type": "websocket.close", "code": TRY_LATER, "reason": reason})
        return {"type": "websocket.disconnect", "code": TRY_LATER, "reason": reason}


def _is_in_starlette(app: Any) -> bool:
    """Whether Starlette wraps `app` in middleware: then its own innermost middleware is inside."""
    module = sys.modules.get("starlette.middleware.exceptions")
    for _ in range(MOST_LAYERS):
        if module is None or app is None:
            return False
        if isinstance(app, module.ExceptionMiddleware):
            return True
        app = getattr(app, "app", None)
    return False


def request_limiter(**settings: Unpack[LimiterSettings]) -> AsyncRequestLimiter:
    """Return a limiter to share between ASGI applications, or to reset keys."""
    return AsyncRequestLimiter(settings, as_bytes)


def with_fields(message: Message, exchange: Exchange) -> Message:
    """Return the start of a response with the header fields, unless an inner application has sent them."""
    fields = exchange.fields()
    if not fields:
        return message
    headers = list(message.get("headers", ()))
    if _OURS.isdisjoint([name for name, _ in headers]):
        headers += fields
    return {**message, "headers": headers}


async def respond(refusal: Refusal, scope: Scope, receive: Receive, send: Send, prefix: str = "") -> None:
    """Send a refusal, or the response that replaces it: any ASGI application."""
    if refusal.answer is not None:
        await refusal.answer(scope, receive, send)
        return
    body = refusal.problem.encode()
    headers = [_PROBLEM, (b"content-length", b"%d" % len(body)), *refusal.fields]
    await send({"type": f"{prefix}http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{prefix}http.response.body", "body": b"" if scope.get("method") == "HEAD" else body})


async def deny(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a WebSocket connection before it is accepted."""
    if "websocket.http.response" in scope.get("extensions", {}):
        await respond(refusal, scope, receive, send, "websocket.")
    else:  # the server answers 403
        await send({"type": "websocket.close", "code": TRY_LATER, "reason": refusal.detail})

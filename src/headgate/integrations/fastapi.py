"""FastAPI and Starlette: limits for all routes by a middleware, for some by a dependency or a decorator.

::

    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limits="100/minute")

    @app.get("/search", dependencies=[Depends(limit("5/minute"))])
    def search(): ...

Functions such as `key` get Starlette's `HTTPConnection`: the request, or the WebSocket connection. Those of a route get
the endpoint's `Request`, and may read its body: ``(await request.json()).get("user")``.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any, Unpack

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import Host, Match, Mount

from headgate.core.errors import UsageError
from headgate.integrations import asgi
from headgate.integrations.answers import Refusal
from headgate.integrations.asgi import EXCHANGE, MOST_LAYERS, Denied, Scope, request_limiter
from headgate.integrations.budget import Budget, BudgetSettings, Quotas, QuotasOfKey
from headgate.integrations.exchange import Exchange
from headgate.integrations.routes import budgets_of, check_decorator_order, decorate_view, function_name, route_name
from headgate.web.problem import CONTENT_TYPE

__all__ = ["Limit", "RateLimitMiddleware", "RateLimited", "limit", "limited", "request_limiter"]
_Depends: Any = object
with suppress(ImportError):  # Starlette has no dependencies
    from fastapi.params import Depends as _Depends
_CONNECTION = "headgate_connection"
"""The parameter in which a decorated route gets the connection from FastAPI."""
_HANDLERS = "starlette.exception_handlers"
"""Where a scope has the application's handlers, by exception and by status."""


class RateLimitMiddleware(asgi.RateLimitMiddleware):
    """Limits all routes, and supports limits of routes; see `headgate.integrations.asgi`.

    An application whose limits could never work does not start.
    """

    has_routes = True
    is_made_late = True
    present = HTTPConnection

    def limited_routes(self, scope: Scope) -> bool:
        routes = _Routes(scope.get("app"))
        self.limiter.validate_once(*routes.budgets)
        return bool(routes.budgets)


class RateLimited(HTTPException):
    """A limit of its route refuses a request.

    The response is a problem document, like the middleware's, unless the application registers a handler.
    """

    def __init__(self, refusal: Refusal) -> None:
        headers = {name.decode(): value.decode() for name, value in refusal.fields}
        super().__init__(refusal.status, refusal.detail, headers)
        self.refusal = refusal


class Limit(_Depends):  # type: ignore[misc]
    """A limit of routes, as a dependency: ``Depends(limit("5/minute"))``, or the same without ``Depends``.

    Without a name, each route has its own budget.
    """

    __eq__, __hash__ = object.__eq__, object.__hash__

    def __init__(self, budget: Budget) -> None:
        fields = {"budget": budget, "_budgets": (budget,), "dependency": self, "use_cache": True, "scope": None}
        self.__dict__.update(fields)  # those of FastAPI are frozen

    async def __call__(self, connection: HTTPConnection) -> None:
        route = _route_of(connection.scope, self._budgets)
        if self.budget.replaces or not route.replaces:
            await _check(connection, self._budgets, route.name)


def limit(limits: Quotas | QuotasOfKey | None = None, **terms: Unpack[BudgetSettings]) -> Limit:
    """Return a dependency that limits routes; see `Budget` for its options."""
    return Limit(Budget(limits=limits, **terms))


def limited(
    limits: Quotas | QuotasOfKey | None = None, **terms: Unpack[BudgetSettings]
) -> Callable[[Callable[..., Any]], Callable[..., Awaitable[Any]]]:
    """Return a decorator that limits a route. Put it below the route's decorator.

    The route needs no parameter for it. Several of them on one route are decided together.
    """
    budget = Budget(limits=limits, **terms)

    def decorate(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        decorated: Callable[..., Awaitable[Any]] = decorate_view(function, budget, partial(_limited, function))
        return decorated

    return decorate


def _limited(function: Callable[..., Any], budgets: Sequence[Budget]) -> Callable[..., Awaitable[Any]]:
    own, is_async = function_name(function), inspect.iscoroutinefunction(function)
    has_connection = _CONNECTION in inspect.signature(function).parameters  # a limited function has

    @wraps(function)
    async def limited(*args: Any, **kwargs: Any) -> Any:
        connection = kwargs.get(_CONNECTION) if has_connection else kwargs.pop(_CONNECTION, None)
        if connection is None:  # Starlette passes it to every endpoint
            values = (*args, *kwargs.values())
            connection = next((each for each in values if isinstance(each, HTTPConnection)), None)
        if connection is None:
            raise UsageError(f"the limit of {own} is for routes, but it was called outside a request")
        route = _route_of(connection.scope, budgets).name
        if budgets_of(connection.scope.get("endpoint")) is not budgets:  # several functions serve the route
            route = f"{route}:{own}"
        exchange: Exchange = connection.scope[EXCHANGE]
        with exchange.covering(budgets) as rest:
            if rest:
                await _check(connection, rest, route)
            if is_async:
                return await function(*args, **kwargs)
            return await run_in_threadpool(function, *args, **kwargs)

    limited.__signature__ = _with_connection(function)  # type: ignore[attr-defined]
    return limited


async def _check(connection: HTTPConnection, budgets: Sequence[Budget], route: str) -> None:
    """Take the cost from budgets of a route. Raises RateLimited or Denied."""
    scope = connection.scope
    exchange: Exchange = scope[EXCHANGE]
    exchange.subject, exchange.present = connection, None  # the endpoint's request keeps a body that a function reads
    limiter: Any = exchange.limiter
    limiter.validate_once(*budgets)
    refusal = await limiter.check(exchange, budgets, route)
    if refusal is None:
        return
    if scope["type"] == "websocket":
        raise Denied(refusal)
    handlers = scope.get(_HANDLERS)
    if handlers is not None:
        handlers[0].setdefault(RateLimited, _problem)
    raise RateLimited(refusal)


def _with_connection(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function, with a parameter for the connection."""
    signature = inspect.signature(function, eval_str=True)
    parameters = list(signature.parameters.values())
    if any(each.annotation is HTTPConnection for each in parameters):
        return signature
    place = len(parameters) - (1 if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else 0)
    parameters.insert(place, inspect.Parameter(_CONNECTION, inspect.Parameter.KEYWORD_ONLY, annotation=HTTPConnection))
    return signature.replace(parameters=parameters)


class _Route:
    """A route behind its hosts and mounts.

    Attributes:
        name: of its budgets.
        budgets: those of its decorators and dependencies, including its routers' and its application's.
        replaces: whether one of them replaces the others.
    """

    def __init__(self, chain: Sequence[Any]) -> None:
        self._chain, self.endpoint = chain, chain[-1].endpoint
        path = "".join(each.host if isinstance(each, Host) else each.path for each in chain)
        methods = getattr(chain[-1], "methods", None) or ("ANY" if hasattr(chain[-1], "methods") else "WEBSOCKET",)
        self.name = route_name(methods, path)
        self.budgets = [*budgets_of(self.endpoint), *_dependencies(chain[-1])]
        self.replaces = any(budget.replaces for budget in self.budgets)

    def matches(self, scope: Scope) -> bool:
        outer = {"root_path": scope.get("app_root_path", scope.get("root_path", "")), "path_params": {}}
        scope = {**scope, **outer, "app_root_path": outer["root_path"]}
        for each in self._chain:
            match, inner = each.matches(scope)
            if match is not Match.FULL:
                return False
            scope.update(inner)
        return True


class _Routes:
    """The routes of an application. Raises UsageError if unnamed limits of two routes would share a name."""

    def __init__(self, application: Any) -> None:
        self.application = application
        self._by_name: dict[str, list[_Route]] = {}
        found = [_Route(chain) for chain in _chains(application)]
        check_decorator_order(route.endpoint for route in found)
        unnamed: dict[str, Any] = {}
        for route in found:
            self._by_name.setdefault(getattr(route.endpoint, "__qualname__", ""), []).append(route)
            if any(budget.limits is not None and not budget.name for budget in route.budgets):
                other = unnamed.setdefault(route.name, route.endpoint)
                if other != route.endpoint:
                    raise UsageError(f"two routes have the name {route.name}: name their limits, such as name='mails'")
        self.budgets = [budget for route in found for budget in route.budgets]

    def of(self, scope: Scope) -> _Route | None:
        endpoint = scope.get("endpoint")
        named = self._by_name.get(getattr(endpoint, "__qualname__", ""), ())
        found = [each for each in named if each.endpoint is endpoint]
        return found[0] if len(found) == 1 else next((each for each in found if each.matches(scope)), None)


def _route_of(scope: Scope, budgets: Sequence[Budget]) -> _Route:
    """Return the route of a request. Raises UsageError."""
    exchange: Exchange | None = scope.get(EXCHANGE)
    if exchange is None:
        raise UsageError("the limit of a route needs the middleware: app.add_middleware(RateLimitMiddleware, ...)")
    known, application = exchange.limiter.routes, scope["router"]
    routes = next((each for each in known if each.application is application), None)
    route: _Route | None = routes.of(scope) if routes is not None else None
    is_unnamed = any(budget.limits is not None and not budget.name for budget in budgets)
    if route is None and (is_unnamed or routes is None):  # it may be new
        routes = _Routes(application)
        known[:] = [*(each for each in known if each.application is not application), routes]
        route = routes.of(scope)
        if route is None and is_unnamed:
            raise UsageError(f"{scope['path']} is not a known route: give its limit a name, such as name='mails'")
    return route or _Route((SimpleNamespace(endpoint=None, path=""),))


def _chains(place: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the routes of an application or a router, each as the chain of its hosts, its mounts and itself."""
    if isinstance(place, Host | Mount):
        above = (*above, place)
    contexts = getattr(place, "effective_route_contexts", None)  # of an included router
    for _ in range(MOST_LAYERS):
        if contexts is not None or getattr(place, "routes", None) or not hasattr(place, "app"):
            break
        place = place.app
    inside = [each.starlette_route or each for each in contexts()] if contexts else getattr(place, "routes", None)
    for each in inside or ():
        if getattr(each, "endpoint", None) is not None:
            yield (*above, each)
        else:
            yield from _chains(each, above)


def _dependencies(route: Any) -> Iterator[Budget]:
    dependencies = list(getattr(getattr(route, "dependant", None), "dependencies", ()))
    for dependant in dependencies:
        if isinstance(dependant.call, Limit):
            yield dependant.call.budget
        dependencies += dependant.dependencies


async def _problem(_: Any, error: Exception) -> Response:  # a plain function would run in a thread
    assert isinstance(error, RateLimited)  # noqa: S101  it handles no other
    refusal = error.refusal
    if refusal.answer is not None:
        response: Response = refusal.answer
        return response
    return Response(refusal.problem.encode(), refusal.status, error.headers, CONTENT_TYPE)

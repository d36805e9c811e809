"""FastAPI and Starlette: limits for all routes by a middleware, for some by a dependency or a decorator.

::

    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limits="100/minute")

    @app.get("/search", dependencies=[Depends(limit("5/minute"))])
    def search(): ...

Functions, such as `key`, get the `HTTPConnection` of Starlette: the request, or the WebSocket connection.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cached_property, partial, wraps
from typing import Any, Unpack

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response

from headgate.core.errors import UsageError
from headgate.integrations import asgi
from headgate.integrations.answers import Refusal
from headgate.integrations.asgi import VISIT, Denied, Scope, gate
from headgate.integrations.budgets import (
    Budget,
    BudgetSettings,
    Quotas,
    QuotasOfKey,
    check_order,
    decorated_with,
    name_of_function,
    own_budgets,
)
from headgate.integrations.visit import UNDECIDED, Visit
from headgate.web.problem import CONTENT_TYPE

__all__ = ["Limit", "RateLimitMiddleware", "RateLimited", "gate", "limit", "limited"]
_CONNECTION = "headgate_connection"
"""The parameter by which FastAPI gives the connection to a decorated route."""
_HANDLERS = "starlette.exception_handlers"
"""Where a scope has the handlers of the application, by exception and by status."""


class RateLimitMiddleware(asgi.RateLimitMiddleware):
    """Limits all routes, and lets routes have limits of their own; see `headgate.integrations.asgi`.

    Functions, such as `key`, get the request as Starlette has it. When the application starts, the limits of all routes
    are checked: one that could not work keeps it from starting.
    """

    has_routes = True
    is_made_late = True
    present = HTTPConnection

    def limited_routes(self, scope: Scope) -> bool:
        budgets = list(_budgets_of(scope.get("app")))
        self.gate.know(*budgets)
        check_order(_endpoints_of(scope.get("app")))
        return bool(budgets)


class RateLimited(HTTPException):
    """A route's own limit refuses a request.

    By default it is answered by a problem document, as the middleware does. An application that registers a handler for
    it answers as that says.

    Attributes:
        refusal: why, and what would be answered.
    """

    def __init__(self, refusal: Refusal) -> None:  # what only a handler of the application reads is found when it does
        self.status_code, self.refusal = refusal.status, refusal

    @cached_property
    def detail(self) -> str:  # type: ignore[override]
        """What is wrong, in a sentence."""
        return self.refusal.detail

    @cached_property
    def headers(self) -> dict[str, str]:  # type: ignore[override]
        """The header fields, as text."""
        return {name.decode(): value.decode() for name, value in self.refusal.fields}


class Limit:
    """A limit of routes, as a dependency: ``Depends(limit("5/minute"))``.

    Each route that has it has a budget of its own, unless it is given a name.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget, self._budgets = budget, (budget,)
        self._routes: dict[int, tuple[Any, str, bool]] = {}
        """Routes that have it, by identity: what they are called, and whether another limit replaces this one."""

    async def __call__(self, connection: HTTPConnection) -> None:
        scope = connection.scope
        included = scope.get("fastapi")  # the route as it is where its router was included
        route = (included and included.get("effective_route_context")) or scope.get("route")
        found = self._routes.get(id(route))
        if found is None:
            endpoint = scope.get("endpoint")
            name = name_of_function(endpoint) if endpoint is not None else scope["path"]
            replaced = not self.budget.replaces and any(budget.replaces for budget in _budgets_of(route))
            found = route, name, replaced
            if route is not None:
                self._routes[id(route)] = found
        if not (found[2] or _passes(scope, self._budgets, found[1])):
            await _enter(scope, self._budgets, found[1])


def limit(limits: Quotas | QuotasOfKey | None = None, **terms: Unpack[BudgetSettings]) -> Limit:
    """Return a dependency that limits routes; see `Budget` for what it may be told."""
    return Limit(Budget(limits=limits, **terms))


def limited(
    limits: Quotas | QuotasOfKey | None = None, **terms: Unpack[BudgetSettings]
) -> Callable[[Callable[..., Any]], Callable[..., Awaitable[Any]]]:
    """Return a decorator that limits a route; the route needs no parameter for it. Put it below that of the route.

    Several of them on one route are decided together.
    """
    budget = Budget(limits=limits, **terms)

    def decorate(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        decorated: Callable[..., Awaitable[Any]] = decorated_with(function, budget, partial(_guarded, function))
        return decorated

    return decorate


def _guarded(function: Callable[..., Any], budgets: Sequence[Budget]) -> Callable[..., Awaitable[Any]]:
    route, is_async = name_of_function(function), inspect.iscoroutinefunction(function)

    @wraps(function)
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        connection = kwargs.pop(_CONNECTION, None)
        if connection is None:  # Starlette gives it to every endpoint, as an argument
            given = (*args, *kwargs.values())
            connection = next((each for each in given if isinstance(each, HTTPConnection)), None)
        if connection is None:
            raise UsageError(f"{route} is limited, but it was not called as a route")
        if not _passes(connection.scope, budgets, route):
            await _enter(connection.scope, budgets, route)
        if is_async:
            return await function(*args, **kwargs)
        return await run_in_threadpool(function, *args, **kwargs)

    guarded.__signature__ = _with_connection(function)  # type: ignore[attr-defined]
    return guarded


def _passes(scope: Scope, budgets: Sequence[Budget], route: str) -> bool:
    """Whether a request passes the budgets of a route at once; see `Visit.at_once`. Raises RateLimited."""
    visit: Visit | None = scope.get(VISIT)
    if visit is None or id(budgets[0]) not in visit.gate.known:
        return False
    refusal = visit.at_once(budgets, route)
    if refusal is not None and refusal is not UNDECIDED:
        raise _raised(scope, refusal)
    return refusal is None


async def _enter(scope: Scope, budgets: Sequence[Budget], route: str) -> None:
    """Take what budgets of a route cost. Raises RateLimited."""
    visit: Visit | None = scope.get(VISIT)
    if visit is None:
        raise UsageError("a limit of a route needs the middleware: app.add_middleware(RateLimitMiddleware, ...)")
    gate: Any = visit.gate
    gate.know(*budgets)
    refusal = await gate.enter(visit, budgets, route)
    if refusal is not None:
        raise _raised(scope, refusal)


def _raised(scope: Scope, refusal: Refusal) -> Exception:
    if scope["type"] == "websocket":
        return Denied(refusal)
    handlers = scope.get(_HANDLERS)
    if handlers is not None:  # answer with a problem document, unless the application has said how it answers
        handlers[0].setdefault(RateLimited, _problem)
    return RateLimited(refusal)


def _with_connection(function: Callable[..., Any]) -> inspect.Signature:
    """Return a signature by which FastAPI gives the connection to a function that has no parameter for it."""
    signature = inspect.signature(function, eval_str=True)
    parameters = list(signature.parameters.values())
    if any(each.annotation is HTTPConnection for each in parameters):
        return signature
    place = len(parameters) - (1 if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else 0)
    parameters.insert(place, inspect.Parameter(_CONNECTION, inspect.Parameter.KEYWORD_ONLY, annotation=HTTPConnection))
    return signature.replace(parameters=parameters)


def _budgets_of(place: Any) -> Iterator[Budget]:
    """Yield the budgets of a route, or of all routes of an application or a router."""
    yield from own_budgets(getattr(place, "endpoint", None))
    dependencies = list(getattr(getattr(place, "dependant", None), "dependencies", ()))
    for dependant in dependencies:
        if isinstance(dependant.call, Limit):
            yield dependant.call.budget
        dependencies += dependant.dependencies
    for inner in _inside(place):
        yield from _budgets_of(inner)


def _endpoints_of(place: Any) -> Iterator[Any]:
    """Yield the functions of all routes of an application or a router."""
    if hasattr(place, "endpoint"):
        yield place.endpoint
    for inner in _inside(place):
        yield from _endpoints_of(inner)


def _inside(place: Any) -> Iterator[Any]:
    """Yield what an application, a router or a mount has inside; routers that are included may be kept apart."""
    yield from getattr(place, "routes", None) or ()
    yield from getattr(place, "effective_route_contexts", tuple)()
    yield from getattr(getattr(place, "original_route", None), "routes", None) or ()


async def _problem(_: Any, error: Exception) -> Response:  # else Starlette would run it in a thread
    assert isinstance(error, RateLimited)  # noqa: S101  it is the handler of no other
    refusal = error.refusal
    if refusal.answer is not None:
        response: Response = refusal.answer
        return response
    changed = vars(error).get("headers")  # by a part of the application that caught it on its way here
    response = Response(refusal.problem.encode(), refusal.status, changed, CONTENT_TYPE)
    if changed is None:
        response.raw_headers[:0] = refusal.fields
    return response

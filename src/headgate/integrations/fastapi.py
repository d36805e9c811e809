"""FastAPI and Starlette: limits for all routes by a middleware, for some by a dependency or a decorator.

::

    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limits="100/minute")

    @app.get("/search", dependencies=[Depends(limit("5/minute"))])
    def search(): ...

Functions, such as `key`, get the `HTTPConnection` of Starlette: the request, or the WebSocket connection. Those of a
route get the `Request` of the endpoint, and may read its body: ``(await request.json()).get("user")``.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial, wraps
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
from headgate.integrations.asgi import MOST_LAYERS, VISIT, Denied, Scope, gate
from headgate.integrations.budgets import (
    Budget,
    BudgetSettings,
    Quotas,
    QuotasOfKey,
    check_order,
    decorated_with,
    name_of_function,
    name_of_route,
    own_budgets,
)
from headgate.integrations.visit import UNDECIDED, Visit
from headgate.web.problem import CONTENT_TYPE

__all__ = ["Limit", "RateLimitMiddleware", "RateLimited", "gate", "limit", "limited"]
_Depends: Any = object
with suppress(ImportError):  # Starlette has no dependencies
    from fastapi.params import Depends as _Depends
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
        routes = _Routes(scope.get("app"))
        self.gate.know(*routes.budgets)
        return bool(routes.budgets)


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


class Limit(_Depends):  # type: ignore[misc]
    """A limit of routes, as a dependency: ``Depends(limit("5/minute"))``, or the same without ``Depends``.

    Each route that has it has a budget of its own, unless it is given a name.
    """

    __eq__, __hash__ = object.__eq__, object.__hash__

    def __init__(self, budget: Budget) -> None:
        fields = {"budget": budget, "_budgets": (budget,), "dependency": self, "use_cache": True, "scope": None}
        self.__dict__.update(fields)  # those of FastAPI are frozen

    async def __call__(self, connection: HTTPConnection) -> None:
        scope = connection.scope
        route = _route_of(scope, self._budgets)
        if (self.budget.replaces or not route.replaces) and not _passes(scope, self._budgets, route.name):
            await _enter(connection, self._budgets, route.name)


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
    own, is_async = name_of_function(function), inspect.iscoroutinefunction(function)
    has_connection = _CONNECTION in inspect.signature(function).parameters  # it is limited itself

    @wraps(function)
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        connection = kwargs.get(_CONNECTION) if has_connection else kwargs.pop(_CONNECTION, None)
        if connection is None:  # Starlette gives it to every endpoint, as an argument
            given = (*args, *kwargs.values())
            connection = next((each for each in given if isinstance(each, HTTPConnection)), None)
        if connection is None:
            raise UsageError(f"{own} is limited, but it was not called as a route")
        route = _route_of(connection.scope, budgets).name
        if (
            own_budgets(connection.scope.get("endpoint")) is not budgets
        ):  # one of several functions that serve the route
            route = f"{route}:{own}"
        visit: Visit = connection.scope[VISIT]
        with visit.asking(budgets) as rest:
            if rest and not _passes(connection.scope, rest, route):
                await _enter(connection, rest, route)
            if is_async:
                return await function(*args, **kwargs)
            return await run_in_threadpool(function, *args, **kwargs)

    guarded.__signature__ = _with_connection(function)  # type: ignore[attr-defined]
    return guarded


def _passes(scope: Scope, budgets: Sequence[Budget], route: str) -> bool:
    """Whether a request passes the budgets of a route at once; see `Visit.at_once`. Raises RateLimited."""
    visit: Visit = scope[VISIT]
    if budgets[0] not in visit.gate.known:
        return False
    refusal = visit.at_once(budgets, route)
    if refusal is not None and refusal is not UNDECIDED:
        raise _raised(scope, refusal)
    return refusal is None


async def _enter(connection: HTTPConnection, budgets: Sequence[Budget], route: str) -> None:
    """Take what budgets of a route cost. Raises RateLimited."""
    scope = connection.scope
    visit: Visit = scope[VISIT]
    visit.subject, visit.present = connection, None  # the endpoint's own: it keeps a body that a key function reads
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


class _Route:
    """A route, and through which mounts it is reached.

    Attributes:
        name: of its budgets.
        budgets: its own, and those of its routers and of its application.
        replaces: whether one of them replaces the others.
    """

    def __init__(self, chain: Sequence[Any]) -> None:
        self._chain, self.endpoint = chain, chain[-1].endpoint
        path = "".join(each.host if isinstance(each, Host) else each.path for each in chain)
        methods = getattr(chain[-1], "methods", None) or ("ANY" if hasattr(chain[-1], "methods") else "WEBSOCKET",)
        self.name = name_of_route(methods, path)
        self.budgets = [*own_budgets(self.endpoint), *_dependencies(chain[-1])]
        self.replaces = any(budget.replaces for budget in self.budgets)

    def matches(self, scope: Scope) -> bool:
        """Whether a request comes here."""
        outer = {"root_path": scope.get("app_root_path", scope.get("root_path", "")), "path_params": {}}
        scope = {**scope, **outer, "app_root_path": outer["root_path"]}
        for each in self._chain:
            match, inner = each.matches(scope)
            if match is not Match.FULL:
                return False
            scope.update(inner)
        return True


class _Routes:
    """The routes of an application. Raises UsageError for those whose limits cannot be told apart."""

    def __init__(self, application: Any) -> None:
        self.application = application
        self._by_name: dict[str, list[_Route]] = {}
        found = [_Route(chain) for chain in _chains(application)]
        check_order(route.endpoint for route in found)
        unnamed: dict[str, Any] = {}
        for route in found:
            self._by_name.setdefault(getattr(route.endpoint, "__qualname__", ""), []).append(route)
            if any(budget.limits is not None and not budget.name for budget in route.budgets):
                other = unnamed.setdefault(route.name, route.endpoint)
                if other != route.endpoint:
                    raise UsageError(f"two routes are {route.name}: give their limits names, such as name='mails'")
        self.budgets = [budget for route in found for budget in route.budgets]

    def of(self, scope: Scope) -> _Route | None:
        """Return the route of a request."""
        endpoint = scope.get("endpoint")
        named = self._by_name.get(getattr(endpoint, "__qualname__", ""), ())
        found = [each for each in named if each.endpoint is endpoint]
        return found[0] if len(found) == 1 else next((each for each in found if each.matches(scope)), None)


def _route_of(scope: Scope, budgets: Sequence[Budget]) -> _Route:
    """Return the route of a request. Raises UsageError."""
    visit: Visit | None = scope.get(VISIT)
    if visit is None:
        raise UsageError("a limit of a route needs the middleware: app.add_middleware(RateLimitMiddleware, ...)")
    known, application = visit.gate.routes, scope["router"]
    routes = next((each for each in known if each.application is application), None)
    route: _Route | None = routes.of(scope) if routes is not None else None
    is_unnamed = any(budget.limits is not None and not budget.name for budget in budgets)
    if route is None and (is_unnamed or routes is None):  # it may have been added since
        routes = _Routes(application)
        known[:] = [*(each for each in known if each.application is not application), routes]
        route = routes.of(scope)
        if route is None and is_unnamed:
            raise UsageError(f"{scope['path']} is not among the routes: give its limit a name, such as name='mails'")
    return route or _Route((SimpleNamespace(endpoint=None, path=""),))


def _chains(place: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the routes of an application or a router, each behind the hosts and mounts that lead to it."""
    if isinstance(place, Host | Mount):
        above = (*above, place)
    contexts = getattr(place, "effective_route_contexts", None)  # of a router where it is included
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
    """Yield the budgets of a route by its dependencies."""
    dependencies = list(getattr(getattr(route, "dependant", None), "dependencies", ()))
    for dependant in dependencies:
        if isinstance(dependant.call, Limit):
            yield dependant.call.budget
        dependencies += dependant.dependencies


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

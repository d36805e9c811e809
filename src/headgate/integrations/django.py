"""Django: a middleware for all views, and a decorator for some, whether they are coroutines or not.

::

    MIDDLEWARE = ["headgate.integrations.django.RateLimitMiddleware", ...]
    HEADGATE = {"limits": "100/minute", "store": "redis://localhost:6379/0"}

    @limit("5/minute")
    def search(request): ...

The settings are those of `GateSettings`; functions, and the engine, may be given by their dotted path. What a view and
all views are limited by is decided together, before the view is called. The decorator works without the middleware too;
then only its refusals have header fields.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import Any, TypeVar, Unpack

from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction
from django import conf
from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.http import HttpRequest, HttpResponseBase
from django.http.response import HttpResponse
from django.urls import get_resolver
from django.utils.module_loading import import_string
from django.utils.translation import get_language
from django.views import View

from headgate.core.errors import UsageError
from headgate.integrations.answers import Refusal
from headgate.integrations.budgets import (
    Budget,
    BudgetSettings,
    Quotas,
    QuotasOfKey,
    decorated_with,
    name_of_function,
    own_budgets,
)
from headgate.integrations.gate import AsyncGate, Gate, Gatekeeping
from headgate.integrations.visit import Flow, Visit
from headgate.integrations.wsgi import Lines, path_of
from headgate.stores import open_store
from headgate.web.errors import InvalidSettings
from headgate.web.problem import CONTENT_TYPE

__all__ = ["RateLimitMiddleware", "limit", "reset"]
F = TypeVar("F", bound=Callable[..., Any])
_PATHS = ("key", "cost", "exempt", "count_when", "on_refused", "limits", "engine", "identity", "headers", "clock")
"""Settings that may be given as the dotted path of what they are."""


class _Site:
    """The gates of this process: one for views that may block, one for coroutines. In memory, they count together."""

    def __init__(self) -> None:
        self._gates: dict[bool, Gatekeeping] = {}
        self._given: dict[str, Any] | None = None

    def gate(self, *, is_async: bool) -> Any:
        """Return a gate, as the settings say."""
        found = self._gates.get(is_async)
        if found is None:
            if self._given is None:
                self._given = _given()
            made: Any = AsyncGate if is_async else Gate
            found = self._gates[is_async] = made(self._given)
        return found

    def forget(self, *, setting: str, **_: Any) -> None:
        """Read the settings again: a test has changed them."""
        if setting == "HEADGATE":
            self._gates, self._given = {}, None


_SITE = _Site()
setting_changed.connect(_SITE.forget, dispatch_uid="headgate")


def _given() -> dict[str, Any]:
    given = getattr(conf.settings, "HEADGATE", None)
    if given is None:
        raise InvalidSettings("HEADGATE is not set: {'limits': '100/minute'}, or {} where only views have limits")
    if not isinstance(given, dict):
        raise InvalidSettings("HEADGATE is a dictionary, such as {'limits': '100/minute'}")
    found = {str(name).lower(): value for name, value in given.items()}
    for name in _PATHS:
        value = found.get(name)
        if isinstance(value, str) and "." in value and "/" not in value:
            found[name] = import_string(value)
    store = found.get("store", "memory")
    if "engine" not in found and isinstance(store, str) and store.startswith("memory"):
        found["store"] = open_store(store, clock=found.pop("clock", None))
    return found


class RateLimitMiddleware:
    """Limits all views, and those that have limits of their own by these."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        with suppress(ImproperlyConfigured):  # of a site in one module, which is not loaded yet
            _check_routes(get_resolver(), "", {})
        self._get_response, is_async = get_response, iscoroutinefunction(get_response)
        self._gate = _SITE.gate(is_async=is_async)
        if is_async:
            markcoroutinefunction(self)
        self.process_view: Any = self._enter_async if is_async else self._enter

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        served: HttpResponseBase | Awaitable[HttpResponseBase] = self._gate.run(self._served(request))
        return served

    def _served(self, request: HttpRequest) -> Flow[HttpResponseBase]:
        gate, visit = self._gate, _visit_of(request, self._gate)
        response: HttpResponseBase = yield self._get_response(request)
        if not visit.has_asked(()):  # there is no view, or another middleware was quicker
            refusal = yield gate.enter(visit, gate.budgets)
            if refusal is not None:
                return _response(refusal)
        if visit.is_open:
            yield from visit.respond(response, response.status_code)
        return _with_fields(response, visit.fields())

    def _enter(self, request: HttpRequest, view: Any, _: Any, __: Any) -> HttpResponseBase | None:
        visit = _visit_of(request, self._gate)
        refusal = self._gate.enter(visit, *_all_of(visit, view))
        return None if refusal is None else _response(refusal)

    async def _enter_async(self, request: HttpRequest, view: Any, _: Any, __: Any) -> HttpResponseBase | None:
        visit = _visit_of(request, self._gate)
        refusal = await self._gate.enter(visit, *_all_of(visit, view))
        return None if refusal is None else _response(refusal)


def limit(limits: Quotas | QuotasOfKey | None = None, **terms: Unpack[BudgetSettings]) -> Callable[[F], F]:
    """Return a decorator that limits a view; see `Budget` for what it may be told.

    For views that are classes: ``@method_decorator(limit("5/minute"), name="dispatch")``.
    """
    budget = Budget(limits=limits, **terms)

    def decorate(view: F) -> F:
        _SITE.gate(is_async=_kind_of(view)[1]).know(budget)
        limited: F = decorated_with(view, budget, partial(_limited, view))
        return limited

    return decorate


def reset(key: str, name: str = "default", *, limits: Quotas | None = None) -> None:
    """Forget what a key used; see `Gate.reset`."""
    _SITE.gate(is_async=False).reset(key, name, limits=limits)


def _limited(view: Any, budgets: list[Budget]) -> Any:
    """Return a view that has budgets. The middleware finds them; where that is not there, the view asks itself."""
    own, is_async = _kind_of(view)

    @wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        request = _request_of(own, args)
        visit = _visit_of(request, _SITE.gate(is_async=False))
        with visit.asking(budgets) as rest:  # the middleware, if it is there, does not ask afterwards
            gate: Any = visit.gate  # that of the middleware may be asynchronous: then this is one of its threads
            enter = async_to_sync(gate.enter) if gate.is_async else gate.enter
            gate.know(*rest)
            refusal = enter(visit, rest, f"{_route_of(request)}:{own}") if rest else None
            return view(*args, **kwargs) if refusal is None else _response(refusal)

    @wraps(view)
    async def limited_async(*args: Any, **kwargs: Any) -> Any:
        request = _request_of(own, args)
        visit = _visit_of(request, _SITE.gate(is_async=True))
        with visit.asking(budgets) as rest:
            visit.gate.know(*rest)
            gate = _SITE.gate(is_async=True)
            refusal = await gate.enter(visit, rest, f"{_route_of(request)}:{own}") if rest else None
            return await view(*args, **kwargs) if refusal is None else _response(refusal)

    return limited_async if is_async else limited


def _kind_of(view: Any) -> tuple[str, bool]:
    """Return what a view is called, and whether it is a coroutine function; a method is that of the class it is for."""
    instance = getattr(getattr(view, "func", None), "__self__", None)  # `method_decorator` decorates bound methods
    if not isinstance(instance, View):
        return name_of_function(view), iscoroutinefunction(view)
    name, method = name_of_function(type(instance)), view.__name__
    return name if method == "dispatch" else f"{name}.{method}", bool(instance.view_is_async)


def _check_routes(resolver: Any, above: str, known: dict[str, Any]) -> None:
    """Refuse routes with limits of their own that cannot be told apart by their paths. Raises UsageError."""
    for each in resolver.url_patterns:
        pattern = str(each.pattern)
        route = above + pattern.removeprefix("^") if above else pattern
        if hasattr(each, "url_patterns"):
            _check_routes(each, route, known)
            continue
        is_unnamed = any(budget.limits is not None and not budget.name for budget in own_budgets(each.callback))
        if is_unnamed and known.setdefault(route, each.callback) != each.callback:
            raise UsageError(f"two routes are /{route}: give their limits names, such as name='mails'")


def _request_of(name: str, args: Sequence[Any]) -> HttpRequest:
    """Return the request: the first argument of a view, or the second one of a method."""
    for each in args[:2]:
        if hasattr(each, "META"):
            found: HttpRequest = each
            return found
    raise UsageError(f"{name} is limited as a view, but its first argument is no request; see integrations.functions")


def _route_of(request: HttpRequest) -> str:
    """Return the name of the route of a request: its path, whatever its language; empty where there is none."""
    match, urlconf = request.resolver_match, getattr(request, "urlconf", None)
    if match is None:
        return ""
    is_translated = is_language_prefix_patterns_used(urlconf or conf.settings.ROOT_URLCONF)[0]
    route = match.route.removeprefix(f"{get_language()}/") if is_translated else match.route
    return f"/{route}" if urlconf is None else f"{getattr(urlconf, '__name__', urlconf)}:/{route}"


def _visit_of(request: HttpRequest, gate: Gatekeeping) -> Visit:
    visit: Visit | None = getattr(request, "headgate_visit", None)
    if visit is None:
        meta, scope = request.META, getattr(request, "scope", None)
        raw = scope.get("raw_path") if scope is not None else None
        path = raw.decode("latin-1") if raw else path_of(meta) if scope is None else request.get_full_path()
        visit = Visit(gate, request, meta.get("REMOTE_ADDR"), Lines(meta), path, request.method or "")
        request.headgate_visit = visit
    return visit


def _all_of(visit: Visit, view: Any) -> tuple[Sequence[Budget], str]:
    """Return what a view is limited by, and its name."""
    own = own_budgets(view)
    visit.gate.know(*own)
    visit.ask(own)
    return visit.gate.with_own(own), _route_of(visit.request)


def _response(refusal: Refusal) -> HttpResponseBase:
    if refusal.answer is not None:
        if not isinstance(refusal.answer, HttpResponseBase):
            raise UsageError(f"on_refused returns a response, or None, not {refusal.answer!r}")
        return refusal.answer
    response = HttpResponse(refusal.problem.encode(), status=refusal.status, content_type=CONTENT_TYPE)
    return _with_fields(response, refusal.fields)


def _with_fields(response: HttpResponseBase, fields: Sequence[tuple[str, str]]) -> HttpResponseBase:
    if "X-RateLimit-Limit" not in response.headers and "RateLimit" not in response.headers:
        for name, value in fields:
            response.headers[name] = value
    return response

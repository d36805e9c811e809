"""Django: a middleware for all views, and a decorator for some, whether they are coroutines or not.

::

    MIDDLEWARE = ["headgate.integrations.django.RateLimitMiddleware", ...]
    HEADGATE = {"limits": "100/minute", "store": "redis://localhost:6379/0"}

    @limit("5/minute")
    def search(request): ...

The settings are those of `LimiterSettings`; functions and the engine can be dotted paths. The limits of a view and
those for all views are decided together, before the view is called. The decorator also works without the middleware,
but then only refusals have header fields.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cache, partial, wraps
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
from headgate.integrations.budget import Budget, BudgetSettings, Quotas, QuotasOfKey
from headgate.integrations.exchange import Exchange, Flow
from headgate.integrations.limiter import AsyncRequestLimiter, LimiterBase, RequestLimiter
from headgate.integrations.routes import budgets_of, decorate_view, function_name
from headgate.integrations.wsgi import Lines, path_of
from headgate.stores import open_store
from headgate.web.errors import InvalidSettings
from headgate.web.problem import CONTENT_TYPE

__all__ = ["RateLimitMiddleware", "limit", "reset"]
F = TypeVar("F", bound=Callable[..., Any])
_PATHS = ("key", "cost", "exempt", "count_when", "on_refused", "limits", "engine", "identity", "headers", "clock")
"""Settings that can be dotted paths."""


@cache
def _site_limiter(*, is_async: bool) -> Any:
    """Return the limiter of this process for coroutines, or for other views; in memory, they share a store."""
    kind: Any = AsyncRequestLimiter if is_async else RequestLimiter
    return kind(_read_settings())


@cache
def _read_settings() -> dict[str, Any]:
    given = getattr(conf.settings, "HEADGATE", None)
    if given is None:
        raise InvalidSettings("HEADGATE is not set: use {'limits': '100/minute'}, or {} if only views have limits")
    if not isinstance(given, dict):
        raise InvalidSettings("HEADGATE must be a dictionary, such as {'limits': '100/minute'}")
    found = {str(name).lower(): value for name, value in given.items()}
    for name in _PATHS:
        value = found.get(name)
        if isinstance(value, str) and "." in value and "/" not in value:
            found[name] = import_string(value)
    store = found.get("store", "memory")
    if "engine" not in found and isinstance(store, str) and store.startswith("memory"):
        found["store"] = open_store(store, clock=found.pop("clock", None))
    return found


def _forget(*, setting: str, **_: Any) -> None:
    """Read the settings again after a test has changed them."""
    if setting == "HEADGATE":
        _site_limiter.cache_clear()
        _read_settings.cache_clear()


setting_changed.connect(_forget, dispatch_uid="headgate")


class RateLimitMiddleware:
    """Limits all views, by the settings and their own decorators."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        with suppress(ImproperlyConfigured):  # a site in one module is not loaded yet
            _check_routes(get_resolver(), "", {})
        self._get_response, is_async = get_response, iscoroutinefunction(get_response)
        self._limiter = _site_limiter(is_async=is_async)
        self.process_view: Any = lambda request, view, *_: self._limiter.run(self._check(request, view))
        if is_async:
            markcoroutinefunction(self)
            markcoroutinefunction(self.process_view)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        response: HttpResponseBase | Awaitable[HttpResponseBase] = self._limiter.run(self._serve(request))
        return response

    def _serve(self, request: HttpRequest) -> Flow[HttpResponseBase]:
        exchange = _exchange_of(request, self._limiter)
        response: HttpResponseBase = yield self._get_response(request)
        if exchange.covered is None:  # there is no view, or another middleware has responded
            refusal = yield from exchange.check(self._limiter.budgets)
            if refusal is not None:
                return _response(refusal)
        if exchange.is_open:
            yield from exchange.respond(response, response.status_code)
        return _with_fields(response, exchange.fields())

    def _check(self, request: HttpRequest, view: Any) -> Flow[HttpResponseBase | None]:
        exchange, own = _exchange_of(request, self._limiter), budgets_of(view)
        exchange.limiter.validate_once(*own)
        exchange.covered = frozenset(own)
        refusal = yield from exchange.check(exchange.limiter.with_own(own), _route_of(request))
        return None if refusal is None else _response(refusal)


def limit(limits: Quotas | QuotasOfKey | None = None, **terms: Unpack[BudgetSettings]) -> Callable[[F], F]:
    """Return a decorator that limits a view; see `Budget` for its options.

    For class-based views: ``@method_decorator(limit("5/minute"), name="dispatch")``.
    """
    budget = Budget(limits=limits, **terms)

    def decorate(view: F) -> F:
        _site_limiter(is_async=_kind_of(view)[1]).validate_once(budget)
        limited: F = decorate_view(view, budget, partial(_limited, view))
        return limited

    return decorate


def reset(key: str, name: str = "default", *, limits: Quotas | None = None) -> None:
    """Clear the usage of a key; see `RequestLimiter.reset`."""
    _site_limiter(is_async=False).reset(key, name, limits=limits)


def _limited(view: Any, budgets: list[Budget]) -> Any:
    """Return a view with budgets, which are checked here unless the middleware has found them."""
    own, is_async = _kind_of(view)

    @wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        request = _request_of(own, args)
        exchange = _exchange_of(request, _site_limiter(is_async=False))
        with exchange.covering(budgets) as rest:
            limiter: Any = exchange.limiter  # the middleware's may be asynchronous; then this is one of its threads
            run = async_to_sync(limiter.run) if limiter.is_async else limiter.run
            limiter.validate_once(*rest)
            refusal = run(exchange.check(rest, f"{_route_of(request)}:{own}")) if rest else None
            return view(*args, **kwargs) if refusal is None else _response(refusal)

    @wraps(view)
    async def limited_async(*args: Any, **kwargs: Any) -> Any:
        request, limiter = _request_of(own, args), _site_limiter(is_async=True)
        exchange = _exchange_of(request, limiter)
        with exchange.covering(budgets) as rest:
            exchange.limiter.validate_once(*rest)
            refusal = await limiter.check(exchange, rest, f"{_route_of(request)}:{own}") if rest else None
            return await view(*args, **kwargs) if refusal is None else _response(refusal)

    return limited_async if is_async else limited


def _kind_of(view: Any) -> tuple[str, bool]:
    """Return the name of a view, and whether it is asynchronous; a decorated method is named after its class."""
    instance = getattr(getattr(view, "func", None), "__self__", None)  # `method_decorator` decorates bound methods
    if not isinstance(instance, View):
        return function_name(view), iscoroutinefunction(view)
    name, method = function_name(type(instance)), view.__name__
    return name if method == "dispatch" else f"{name}.{method}", bool(instance.view_is_async)


def _check_routes(resolver: Any, above: str, known: dict[str, Any]) -> None:
    """Raise UsageError if unnamed limits of two routes would share a name."""
    for each in resolver.url_patterns:
        pattern = str(each.pattern)
        route = above + pattern.removeprefix("^") if above else pattern
        if hasattr(each, "url_patterns"):
            _check_routes(each, route, known)
            continue
        is_unnamed = any(budget.limits is not None and not budget.name for budget in budgets_of(each.callback))
        if is_unnamed and known.setdefault(route, each.callback) != each.callback:
            raise UsageError(f"two routes have the path /{route}: name their limits, such as name='mails'")


def _request_of(name: str, args: Sequence[Any]) -> HttpRequest:
    """Return the request: the first argument of a view, or the second of a method."""
    for each in args[:2]:
        if hasattr(each, "META"):
            found: HttpRequest = each
            return found
    raise UsageError(
        f"{name} is limited as a view, but its first argument is not a request; see integrations.functions"
    )


def _route_of(request: HttpRequest) -> str:
    """Return the name of a request's route: its path, without the language prefix; empty if there is no route."""
    match, urlconf = request.resolver_match, getattr(request, "urlconf", None)
    if match is None:
        return ""
    is_translated = is_language_prefix_patterns_used(urlconf or conf.settings.ROOT_URLCONF)[0]
    route = match.route.removeprefix(f"{get_language()}/") if is_translated else match.route
    return f"/{route}" if urlconf is None else f"{getattr(urlconf, '__name__', urlconf)}:/{route}"


def _exchange_of(request: HttpRequest, limiter: LimiterBase) -> Exchange:
    exchange: Exchange | None = getattr(request, "headgate_exchange", None)
    if exchange is None:
        meta, scope = request.META, getattr(request, "scope", None)
        raw = scope.get("raw_path") if scope is not None else None
        path = raw.decode("latin-1") if raw else path_of(meta) if scope is None else request.get_full_path()
        exchange = Exchange(limiter, request, meta.get("REMOTE_ADDR"), Lines(meta), path, request.method or "")
        request.headgate_exchange = exchange
    return exchange


def _response(refusal: Refusal) -> HttpResponseBase:
    if refusal.answer is not None:
        if not isinstance(refusal.answer, HttpResponseBase):
            raise UsageError(f"on_refused must return a response or None, got {refusal.answer!r}")
        return refusal.answer
    response = HttpResponse(refusal.problem.encode(), status=refusal.status, content_type=CONTENT_TYPE)
    return _with_fields(response, refusal.fields)


def _with_fields(response: HttpResponseBase, fields: Sequence[tuple[str, str]]) -> HttpResponseBase:
    if "X-RateLimit-Limit" not in response.headers and "RateLimit" not in response.headers:
        for name, value in fields:
            response.headers[name] = value
    return response

"""Django, by its own test clients: views of both kinds, behind handlers of both kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django import conf
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.test.utils import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from headgate import AddressReader, InvalidQuota, UnknownRule, UsageError, load_rules
from headgate.integrations.django import RateLimitMiddleware, _site_limiter, limit, reset
from headgate.testing import ManualClock
from headgate.web.errors import InvalidSettings
from tests.integrations import site
from tests.servers import redis_server

KINDS = [False, True]


@pytest.fixture(autouse=True)
def _usual() -> Iterator[None]:
    with override_settings(HEADGATE={"LIMITS": "100/minute", "CLOCK": ManualClock()}):  # of either case
        yield


def responses(is_async: bool, *paths: str, **headers: str) -> list[Any]:
    """The responses of the site, to a client of one kind."""
    if not is_async:
        client = Client(raise_request_exception=False)
        return [client.get(path, headers=headers) for path in paths]

    async def main() -> list[Any]:
        client = AsyncClient(raise_request_exception=False)
        return [await client.get(path, headers=headers) for path in paths]

    return asyncio.run(main())


def statuses(is_async: bool, *paths: str, **headers: str) -> list[int]:
    return [response.status_code for response in responses(is_async, *paths, **headers)]


class Calling:
    """A middleware that calls views itself, before others see them."""

    def __init__(self, get_response: Any) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response: HttpResponse = self._get_response(request)
        return response

    def process_view(self, request: HttpRequest, view: Any, _: Any, __: Any) -> HttpResponse:
        response: HttpResponse = view(request)
        return response


@pytest.mark.parametrize("is_async", KINDS)
def test_a_view_that_another_middleware_calls_is_checked_once(is_async: bool) -> None:
    first = [f"{__name__}.Calling", *conf.settings.MIDDLEWARE]
    with override_settings(HEADGATE={"limits": "1/minute", "clock": ManualClock()}, MIDDLEWARE=first):
        assert statuses(is_async, "/special", "/special", "/special", "/", "/") == [200, 200, 429, 200, 429]


def test_both_kinds_of_handlers_count_in_one_place_in_memory() -> None:
    assert statuses(False, "/own") + statuses(True, "/own") == [200, 429]
    reset("ip:127.0.0.1", "/own", limits="1/minute")
    assert statuses(True, "/own") + statuses(False, "/own") == [200, 429]


def refusing(request: HttpRequest, refusal: Any) -> HttpResponse:
    if request.path == "/own":
        raise PermissionDenied
    return HttpResponse(refusal.detail, status=420)


def by_header(request: HttpRequest) -> str | None:
    user: str | None = request.headers.get("x-user")
    return user


@pytest.mark.parametrize("is_async", KINDS)
def test_functions_may_be_named_by_their_path_and_the_hook_answers_or_raises(is_async: bool) -> None:
    given = {"limits": "1/minute", "key": f"{__name__}.by_header", "on_refused": refusing}
    with override_settings(HEADGATE=given):
        assert statuses(is_async, "/", "/", **{"x-user": "ada"}) == [200, 420]
        assert statuses(is_async, "/own", "/own", **{"x-user": "bob"}) == [200, 403]
        assert statuses(is_async, "/") == [420]  # without a key


def test_a_header_of_a_proxy_counts_only_if_configured() -> None:
    forged = {"x-forwarded-for": "192.0.2.1"}
    with override_settings(HEADGATE={"limits": "1/minute"}):
        assert statuses(False, "/", **forged) + statuses(False, "/") == [200, 429]
    proxied = {"limits": "1/minute", "identity": AddressReader("x-forwarded-for", hops=1)}
    with override_settings(HEADGATE=proxied):
        assert statuses(False, "/", **forged) + statuses(False, "/") == [200, 200]


def test_rules_decide_by_the_path() -> None:
    rules = load_rules("{version: 1, rules: [{id: items, limit: 1, window: 1m, dimension: ip, endpoint: /stream}]}")
    with override_settings(HEADGATE={"rules": rules}):
        for name in ("default", "items"):
            assert statuses(False, "/stream", "/stream", "/") == [200, 429, 200]
            reset("ip:127.0.0.1", name)
        with pytest.raises(UnknownRule, match="log-ins"):
            limit(rule="log-ins")(site.home)


@pytest.mark.parametrize("is_async", KINDS)
@pytest.mark.parametrize("middleware", [[], conf.settings.MIDDLEWARE])
def test_views_have_limits_of_their_own_with_the_middleware_and_without(middleware: Any, is_async: bool) -> None:
    with override_settings(MIDDLEWARE=middleware):
        paths = ["/own", "/coroutine", "/items", "/items-async", "/method", "/bare", "/bare-async"]
        answers = responses(is_async, *paths, *paths)
        assert [answer.status_code for answer in answers] == [200] * 7 + [429] * 7
        policies = {answer.headers["RateLimit-Policy"].count(";q=") for answer in answers[:7] if middleware}
        assert policies <= {2}, "the limit of the view, and that of all views"


class Urls:
    """Addresses of a site."""


def with_two_limits(first: str, second: str) -> list[Any]:
    """Classes with two limits, by all ways in which Django decorates methods."""
    one, other = limit(first), limit(second)

    class Plain(View):  # type: ignore[misc]
        def get(self, _: HttpRequest) -> HttpResponse:
            return HttpResponse("")

    class Coroutines(View):  # type: ignore[misc]
        @one
        @other
        async def get(self, _: HttpRequest) -> HttpResponse:
            return HttpResponse("")

    class Inner(View):  # type: ignore[misc]
        @method_decorator(one)  # type: ignore[untyped-decorator]
        @other
        def get(self, _: HttpRequest) -> HttpResponse:
            return HttpResponse("")

    class Both(Plain):
        @other
        def get(self, request: HttpRequest) -> HttpResponse:
            response: HttpResponse = super().get(request)
            return response

    stacked = method_decorator(one, name="dispatch")(method_decorator(other, name="dispatch")(type("S", (Plain,), {})))
    listed = method_decorator([one, other], name="dispatch")(type("L", (Plain,), {}))
    above = method_decorator(one, name="dispatch")(Both)
    return [Coroutines, Inner, stacked, listed, above]


@pytest.mark.parametrize("is_async", KINDS)
@pytest.mark.parametrize("middleware", [[], ["headgate.integrations.django.RateLimitMiddleware"]])
@pytest.mark.parametrize("quotas", [("4/minute", "7/minute"), ("7/minute", "4/minute")])
def test_each_of_several_limits_of_a_class_counts_once(is_async: bool, middleware: Any, quotas: Any) -> None:
    with override_settings(HEADGATE={"clock": ManualClock()}, MIDDLEWARE=middleware):
        classes, urls = with_two_limits(*quotas), Urls()
        urls.urlpatterns = [path(each.__name__, each.as_view()) for each in classes]  # type: ignore[attr-defined]
        with override_settings(ROOT_URLCONF=urls):
            for each in classes:
                assert statuses(is_async, *[f"/{each.__name__}"] * 5) == [200] * 4 + [429], each.__name__


def test_a_limit_of_a_view_on_another_function_is_an_error() -> None:
    with pytest.raises(UsageError, match="its first argument is not a request"):
        limit("1/minute")(len)("text")


def test_methods_in_threads_ask_redis_in_the_loop_that_the_middleware_is_in() -> None:
    async def main() -> list[int]:
        client = AsyncClient(raise_request_exception=False)
        seen = [(await client.get("/method")).status_code for _ in range(2)]
        await _site_limiter(is_async=True).close()
        return seen

    with redis_server() as redis, override_settings(HEADGATE={"limits": "100/minute", "store": redis.address}):
        assert asyncio.run(main()) == [200, 429]


def test_mistakes_are_errors_when_the_site_starts() -> None:
    for wrong, error in (({"limits": "5/minuet"}, InvalidQuota), ("5/minute", InvalidSettings)):
        with override_settings(HEADGATE=wrong), pytest.raises(error):
            RateLimitMiddleware(site.home)
    with override_settings():
        del conf.settings.HEADGATE
        with pytest.raises(InvalidSettings, match="not set"):
            RateLimitMiddleware(site.home)

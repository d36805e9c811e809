"""What every framework does alike: the same site in each, with limits for all routes and limits of routes.

What only one of them has is in its own file: `test_fastapi`, `test_flask` and so on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qs
from wsgiref.validate import validator

import pytest
from django.http import HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path as url
from fastapi import Depends, FastAPI
from flask import Flask, request
from flask import Response as FlaskResponse
from litestar import Litestar, Request, Response
from litestar import route as litestar_route
from litestar.response import Stream
from litestar.testing import TestClient as LitestarClient
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from headgate import InvalidQuota, ResponseHeaders, load_rules
from headgate.integrations import asgi, django, fastapi, litestar, wsgi
from headgate.integrations.flask import RateLimits
from headgate.testing import ManualClock
from tests.integrations import site  # noqa: F401  the settings of Django
from tests.integrations.clients import TestClient
from tests.integrations.test_wsgi import call as call_wsgi

RULES = "{version: 1, rules: [{id: streams, limit: 1, window: 1m, dimension: ip, endpoint: /stream}]}"
OWN: dict[str, dict[str, Any]] = {
    "/own": {"limits": "2/minute"},
    "/special": {"limits": "3/minute", "replaces": True},
    "/log-in": {"limits": "2/minute", "count_when": lambda response: response.status_code == 401},
    "/broken": {"limits": "1/minute", "refund_on_error": True},
    "/a": {"limits": "1/minute", "name": "shared"},
    "/b": {"limits": "1/minute", "name": "shared"},
}
"""Routes with limits of their own."""
PATHS = ["/", "/stream", *OWN]
PIECES = ["a", "b"]


class Answer(NamedTuple):
    status: int
    fields: dict[str, str]
    """By lower-case name."""
    body: bytes = b""


Ask = Callable[..., Answer]
"""Takes a path, and perhaps a method and header fields."""


def status_of(path: str, word: str | None) -> int:
    """Return the status of a response: that of a failed log-in if the word is wrong."""
    if path == "/broken":
        raise LookupError
    return 401 if word == "wrong" else 200


def answer_of(response: Any) -> Answer:
    return Answer(response.status_code, {name.lower(): value for name, value in response.headers.items()}, b"")


@contextmanager
def of_starlette(app: Any) -> Iterator[Ask]:
    client = TestClient(app, client=("203.0.113.9", 1), raise_server_exceptions=False)

    def ask(path: str, method: str = "GET", **headers: str) -> Answer:
        response = client.request(method, path, headers=headers)
        return answer_of(response)._replace(body=response.content)

    yield ask


def of_asgi(limited: Any, **settings: Any) -> Any:
    async def view(request: Any) -> Any:
        if request.url.path == "/stream":
            return StreamingResponse(iter(PIECES))
        return PlainTextResponse("hello", status_of(request.url.path, request.query_params.get("word")))

    return of_starlette(asgi.RateLimitMiddleware(Starlette(routes=[Route(path, view) for path in PATHS]), **settings))


@contextmanager
def of_wsgi(limited: Any, **settings: Any) -> Iterator[Ask]:
    def app(environ: Any, start_response: Any) -> Any:
        path = environ["PATH_INFO"]
        status = status_of(path, parse_qs(environ["QUERY_STRING"]).get("word", [None])[0]) if path in PATHS else 404
        start_response(f"{status} Whatever", [("Content-Type", "text/plain")])
        return [piece.encode() for piece in PIECES] if path == "/stream" else [b"hello"]

    inner = wsgi.RateLimitMiddleware(validator(app), **settings)

    def ask(path: str, method: str = "GET", **headers: str) -> Answer:
        more = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
        path, _, query = path.partition("?")
        try:
            status, fields, body = call_wsgi(validator(inner), path=path, method=method, QUERY_STRING=query, **more)
        except LookupError:  # a server answers 500
            return Answer(500, {})
        return Answer(status, {name.lower(): value for name, value in fields.items()}, body)

    yield ask


def of_fastapi(limited: Any, **settings: Any) -> Any:
    app = FastAPI()
    if settings:
        app.add_middleware(fastapi.RateLimitMiddleware, **settings)

    def view(path: str) -> Any:
        def endpoint(word: str | None = None) -> Any:
            return (
                StreamingResponse(iter(PIECES))
                if path == "/stream"
                else PlainTextResponse("hello", status_of(path, word))
            )

        return endpoint

    for path in PATHS:
        dependencies = [Depends(fastapi.limit(**limited[path]))] if path in limited else []
        app.api_route(path, methods=["GET", "HEAD"], dependencies=dependencies)(view(path))
    return of_starlette(app)


@contextmanager
def of_flask(limited: Any, **settings: Any) -> Iterator[Ask]:
    app = Flask(__name__)
    limits = RateLimits(app, **settings)

    def view(path: str) -> Any:
        def endpoint() -> Any:
            if path == "/stream":
                return FlaskResponse(iter(PIECES))
            return "hello", status_of(path, request.args.get("word"))

        return endpoint

    for path in PATHS:
        own = limits.limit(**limited[path])(view(path)) if path in limited else view(path)
        app.add_url_rule(path, path.strip("/") or "home", own)

    def ask(path: str, method: str = "GET", **headers: str) -> Answer:
        response = app.test_client().open(path, method=method, headers=headers)
        return answer_of(response)._replace(body=response.data)

    yield ask


class Urls:
    """The addresses of a site."""


@contextmanager
def of_django(limited: Any, *, is_async: bool, **settings: Any) -> Iterator[Ask]:
    def view(path: str) -> Any:
        def endpoint(request: Any) -> Any:
            if path == "/stream":
                return StreamingHttpResponse(iter(PIECES))
            return HttpResponse("hello", status=status_of(path, request.GET.get("word")))

        return endpoint

    def ask(path: str, method: str = "GET", **headers: str) -> Answer:
        kind = AsyncClient if is_async else Client
        called = kind(raise_request_exception=False).generic(method, path, headers=headers)
        response = asyncio.run(called) if is_async else called
        body = response.getvalue() if not (is_async and response.streaming) else b"ab"
        return answer_of(response)._replace(body=body)

    urls: Any = Urls()
    with override_settings(HEADGATE=settings, ROOT_URLCONF=urls):
        views = {path: django.limit(**limited[path])(view(path)) if path in limited else view(path) for path in PATHS}
        urls.urlpatterns = [url(path[1:], each) for path, each in views.items()]
        yield ask


@contextmanager
def of_litestar(limited: Any, **settings: Any) -> Iterator[Ask]:
    def view(path: str) -> Any:
        async def endpoint(request: Request[Any, Any, Any]) -> Response[Any]:
            if path == "/stream":
                return Stream(iter(PIECES))
            return Response("hello", status_code=status_of(path, request.query_params.get("word")))

        guards = [litestar.limit(**limited[path])] if path in limited else []
        return litestar_route(path, http_method=["GET", "HEAD"], guards=guards)(endpoint)

    app = Litestar([view(path) for path in PATHS], plugins=[litestar.RateLimitPlugin(**settings)])
    with LitestarClient(app, raise_server_exceptions=False) as client:

        def ask(path: str, method: str = "GET", **headers: str) -> Answer:
            response = client.request(method, path, headers=headers)
            return answer_of(response)._replace(body=response.content)

        yield ask


async def by_scope(scope: Any) -> str | None:
    await asyncio.sleep(0)
    value = dict(scope["headers"]).get(b"x-user")
    return None if value is None else value.decode()


async def by_header(request: Any) -> Any:
    await asyncio.sleep(0)
    return request.headers.get("x-user")


class Framework(NamedTuple):
    site: Any
    """Opens the site with settings and the limits of routes."""
    key: Any
    """Reads the header X-User, in a coroutine where that is possible."""
    response: Callable[[str, int], Any]
    """Makes a response with a text and a status."""


def of_environ(text: str, status: int) -> Any:
    def app(_: Any, start_response: Any) -> Any:
        start_response(f"{status} Whatever", [("Content-Type", "text/plain")])
        return [text.encode()]

    return app


ROUTED = {
    "fastapi": Framework(of_fastapi, by_header, PlainTextResponse),
    "flask": Framework(of_flask, lambda request: request.headers.get("x-user"), lambda *about: about),
    "django": Framework(
        partial(of_django, is_async=False),
        lambda request: request.headers.get("x-user"),
        lambda *about: HttpResponse(about[0], status=about[1]),
    ),
    "django-async": Framework(
        partial(of_django, is_async=True), by_header, lambda *about: HttpResponse(about[0], status=about[1])
    ),
    "litestar": Framework(of_litestar, by_header, lambda text, status: Response(text, status_code=status)),
}
ALL = {
    "asgi": Framework(of_asgi, by_scope, PlainTextResponse),
    "wsgi": Framework(of_wsgi, lambda environ: environ.get("HTTP_X_USER"), of_environ),
    **ROUTED,
}


@pytest.fixture(params=ALL)
def framework(request: pytest.FixtureRequest) -> Framework:
    return ALL[request.param]


@pytest.fixture(params=ROUTED)
def routed(request: pytest.FixtureRequest) -> Framework:
    return ROUTED[request.param]


@contextmanager
def opened(framework: Framework, routes: dict[str, Any] = {}, **settings: Any) -> Iterator[Ask]:  # noqa: B006  it is not changed
    with framework.site(routes, **{"clock": ManualClock(), **settings}) as ask:
        yield ask


def statuses(ask: Ask, *paths: str, **headers: str) -> list[int]:
    return [ask(path, **headers).status for path in paths]


def test_every_response_has_the_fields_and_a_refusal_is_a_problem_document(framework: Framework) -> None:
    with opened(framework, limits="2/minute", headers=ResponseHeaders(reset_format="seconds")) as ask:
        served, streamed, refused = ask("/"), ask("/stream"), ask("/")
        assert (served.status, served.fields["ratelimit"]) == (200, '"default";r=1;t=30')
        assert served.fields["x-ratelimit-remaining"] == "1"
        assert (streamed.body, streamed.fields["x-ratelimit-remaining"]) == (b"ab", "0")
        assert (refused.status, refused.fields["retry-after"], refused.fields["cache-control"]) == (
            429,
            "30",
            "no-store",
        )
        assert refused.fields["content-type"] == "application/problem+json"
        if framework not in {ROUTED["django"], ROUTED["django-async"]}:  # there, servers write it
            assert int(refused.fields["content-length"]) == len(refused.body)
        assert json.loads(refused.body)["detail"] == "default allows 2/minute. Retry in 30 s."
        only_fields = ask("/", "HEAD")
        assert (only_fields.status, only_fields.body, only_fields.fields["retry-after"]) == (429, b"", "30")
        if framework is not ROUTED["litestar"]:  # it runs no middleware for what is not there
            assert ask("/nowhere").status == 429


def test_a_key_may_come_from_the_request_and_a_request_without_one_is_refused(framework: Framework) -> None:
    with opened(framework, limits="1/minute", key=framework.key) as ask:
        assert statuses(ask, "/", "/", **{"x-user": "ada"}) == [200, 429]
        assert statuses(ask, "/", **{"x-user": "bob"}) == [200]
        assert statuses(ask, "/", **{"x-user": ""}) == statuses(ask, "/") == [400]


def test_a_condition_is_about_the_response(framework: Framework) -> None:
    with opened(framework, limits="1/minute", count_when=lambda response: response.status_code == 401) as ask:
        assert statuses(ask, "/", "/", "/log-in?word=wrong", "/") == [200, 200, 401, 429]


def test_an_error_costs_nothing_only_where_that_is_set(framework: Framework) -> None:
    with opened(framework, limits="1/minute") as ask:
        assert statuses(ask, "/broken", "/broken") == [500, 429]
    with opened(framework, limits="1/minute", refund_on_error=True) as ask:
        assert statuses(ask, "/broken", "/broken", "/", "/") == [500, 500, 200, 429]


def test_rules_decide_by_the_path(framework: Framework) -> None:
    with opened(framework, rules=load_rules(RULES)) as ask:
        assert statuses(ask, "/stream", "/stream", "/") == [200, 429, 200]


def test_the_hook_may_respond(framework: Framework) -> None:
    with opened(
        framework, OWN, limits="2/minute", on_refused=lambda _, refusal: framework.response(refusal.detail, 420)
    ) as ask:
        answers = [ask(path) for path in ("/", "/", "/")]
        assert [answer.status for answer in answers] == [200, 200, 420]
        assert b"default allows 2/minute" in answers[-1].body
    if framework in ROUTED.values():
        with opened(framework, OWN, on_refused=lambda _, __: framework.response("no", 420)) as ask:
            assert statuses(ask, "/own", "/own", "/own") == [200, 200, 420]


def test_a_route_may_have_a_limit_of_its_own_and_its_refusal_takes_nothing_of_the_others(routed: Framework) -> None:
    with opened(routed, OWN, limits="5/minute") as ask:
        assert ask("/own").fields["ratelimit-policy"].count(";q=") == 2
        assert ask("/own").fields["x-ratelimit-remaining"] == "0"
        refused = ask("/own")
        assert (refused.status, refused.fields["retry-after"]) == (429, "30")
        assert refused.fields["content-type"] == "application/problem+json"
        assert len(json.loads(refused.body)["violated-policies"]) == 1
        assert statuses(ask, "/", "/", "/", "/") == [200, 200, 200, 429]


def test_routes_share_the_budget_of_one_name(routed: Framework) -> None:
    with opened(routed, OWN) as ask:
        assert statuses(ask, "/a", "/b") == [200, 429]


def test_failed_log_ins_and_errors_of_a_route(routed: Framework) -> None:
    with opened(routed, OWN) as ask:
        words = ("right", "right", "right", "wrong", "right", "wrong", "right")
        assert statuses(ask, *[f"/log-in?word={word}" for word in words]) == [200, 200, 200, 401, 200, 401, 429]
        assert statuses(ask, "/broken", "/broken") == [500, 500]


@pytest.mark.parametrize("name", [name for name in ROUTED if name != "fastapi"])  # its middleware runs before routes
def test_a_route_may_replace_the_limits_of_all(name: str) -> None:
    with opened(ROUTED[name], OWN, limits="1/minute") as ask:
        assert statuses(ask, *["/special"] * 4, "/", "/") == [200, 200, 200, 429, 200, 429]


def test_a_wrong_quota_is_an_error_where_it_is_written(routed: Framework) -> None:
    with pytest.raises(InvalidQuota, match="minuet"), opened(routed, {"/own": {"limits": "5/minuet"}}):
        pass

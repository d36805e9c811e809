"""Different routes never share a budget by accident, however they are declared.

The same route has the same name in all processes.
"""

# ruff: noqa: PLW0108  lambdas are what is tried

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import litestar
import pytest
from django.conf.urls.i18n import i18n_patterns
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import include, path, re_path
from django.views import View
from fastapi import APIRouter, Depends, FastAPI, WebSocket
from fastapi.middleware.gzip import GZipMiddleware
from flask import Blueprint, Flask
from flask.views import MethodView
from litestar import Controller, Litestar, Router
from litestar.testing import TestClient as LitestarClient
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route

from headgate import LimitExceeded, MemoryStore, UsageError
from headgate.integrations import asgi, django, fastapi
from headgate.integrations import litestar as for_litestar
from headgate.integrations.celery import TaskLimits
from headgate.integrations.flask import RateLimits
from headgate.integrations.functions import limited
from headgate.testing import ManualClock
from tests.integrations import site  # noqa: F401  the settings of Django
from tests.integrations.clients import TestClient, WebSocketDenialResponse

Names = dict[str, str]
"""The budget of each route, by method and address."""


def once() -> Any:
    return Depends(fastapi.limit("1/minute"))


class Instance:
    def __call__(self) -> str:
        return "instance"

    def method(self) -> str:
        return "method"


@dataclass
class Unhashable:
    text: str = ""

    def __call__(self) -> str:
        return self.text


def made(text: str) -> Callable[[], str]:
    def endpoint() -> str:
        return text

    return endpoint


def served(text: str = "") -> str:
    return text


def hiding(function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(request: Any) -> Any:
        return await function(request)

    return wrapper


def answer(_: Any) -> PlainTextResponse:
    return PlainTextResponse("")


class Items(HTTPEndpoint):
    @fastapi.limited("1/minute")
    async def get(self, request: Any) -> PlainTextResponse:
        return answer(request)

    @fastapi.limited("1/minute")
    async def post(self, request: Any) -> PlainTextResponse:
        return answer(request)


def starlette_routes() -> list[Any]:
    one = fastapi.limited("1/minute")
    return [
        Route("/partial", partial(one(answer))),
        Route("/same", one(answer)),
        Route("/same/again", one(answer)),
        Route("/hidden", hiding(one(answer))),
        Route("/hidden/too", hiding(one(lambda request: answer(request)))),
        Route("/methods", one(lambda request: answer(request)), methods=["POST"]),
        Route("/methods", one(lambda request: answer(request)), methods=["GET", "PUT"]),
        Route("/class", Items),
        Route("/class/again", Items),
    ]


def declared(place: FastAPI | APIRouter) -> None:
    """Declare routes in all ways that an application or a router of FastAPI has."""
    endpoints: Sequence[Any] = (
        *(made("a"), made("b"), Instance(), Instance(), Instance().method, Instance().method),
        *(Unhashable(), Unhashable(), lambda: "", lambda: ""),
        *(partial(served, "a"), partial(served, "b"), served, served),
        *(fastapi.limited("1/minute")(made("c")), fastapi.limited("1/minute")(made("d"))),
    )
    for number, endpoint in enumerate(endpoints):
        own = [] if hasattr(endpoint, "__wrapped__") else [once()]
        place.add_api_route(f"/way/{number}", endpoint, dependencies=own)
    both: Any = made("e")
    default: Any = fastapi.limit("1/minute")
    place.post("/way/0", dependencies=[once()])(both)
    place.get("/files/{rest}", dependencies=[once()])(lambda: "")
    place.get("/files/{rest:path}", dependencies=[once()])(lambda: "")

    @place.get("/default")
    def defaulted(_: None = default) -> str:
        return ""

    @place.websocket("/socket", dependencies=[once()])
    async def socket(connection: WebSocket) -> None: ...


FASTAPI = [
    *(f"GET /way/{number}" for number in range(16)),
    *("POST /way/0", "GET /files/a", "GET /files/a/b", "GET /default"),
]
STARLETTE = [
    *(f"GET {path}" for path in ("/partial", "/same", "/same/again", "/hidden", "/hidden/too", "/class")),
    *("POST /methods", "PUT /methods", "POST /class", "GET /class/again"),
]


def under(prefix: str, addresses: Sequence[str]) -> list[str]:
    return [address.replace(" ", f" {prefix}") for address in addresses]


def of_fastapi() -> Iterator[tuple[Any, list[str]]]:
    app = FastAPI()
    router, inner = APIRouter(), APIRouter()
    for place in (app, router, inner):
        declared(place)
    router.include_router(inner, prefix="/inner")
    app.include_router(router, prefix="/one")
    app.include_router(router, prefix="/{tenant}/two")
    mounted, starlette, wrapped, own = FastAPI(), Starlette(routes=starlette_routes()), FastAPI(), FastAPI()
    for place in (mounted, wrapped, own):
        declared(place)
    own.add_middleware(fastapi.RateLimitMiddleware)  # with a limiter of its own
    app.mount("/m/one", mounted)
    app.mount("/m/{tenant}/x", mounted)
    app.mount("/m/starlette", starlette)
    app.mount("/m/wrapped", GZipMiddleware(wrapped))
    app.mount("/m/own", own)
    prefixes = ("", "/one", "/one/inner", "/t/two", "/t/two/inner", "/m/one", "/m/t/x", "/m/wrapped", "/m/own")
    addresses = [address for prefix in prefixes for address in under(prefix, FASTAPI)]
    app.add_middleware(fastapi.RateLimitMiddleware, clock=ManualClock())
    yield app, [*addresses, *under("/m/starlette", STARLETTE)]
    hosts = [Host(f"{name}.example.com", Starlette(routes=starlette_routes())) for name in ("a", "b")]
    routed = Starlette(routes=[Mount("/deep", routes=[Mount("/er", routes=starlette_routes())]), *hosts])
    found = [f"{address} {name}.example.com" for name in ("a", "b") for address in STARLETTE]
    yield (
        asgi.RateLimitMiddleware(routed, limits="999/minute", clock=ManualClock()),
        [*found, *under("/deep/er", STARLETTE)],
    )
    everywhere = FastAPI(dependencies=[once()])
    everywhere.add_middleware(fastapi.RateLimitMiddleware, clock=ManualClock())
    for path_ in ("/a", "/b"):
        everywhere.get(path_)(lambda: "")
    yield everywhere, ["GET /a", "GET /b"]


def asked_of_starlette() -> Iterator[tuple[list[str], Callable[[str], Any]]]:
    for app, addresses in of_fastapi():
        client = TestClient(app)

        def ask(address: str, client: TestClient = client) -> Any:
            method, path_, *host = address.split()
            return client.request(method, path_, headers={"host": host[0]} if host else {})

        yield addresses, ask


def asked_of_litestar() -> Iterator[tuple[list[str], Callable[[str], Any]]]:
    one: Any = {"guards": [for_litestar.limit("1/minute")], "sync_to_thread": True}

    class Things(Controller):
        path = "/things"

        @litestar.get("/", **one)
        def get_it(self) -> str:
            return ""

        @litestar.post("/", **one)
        def post_it(self) -> str:
            return ""

        @litestar.route(["/a", "/b/{number:int}"], http_method=["GET", "PUT"], **one)
        def both(self) -> str:
            return ""

    def plain() -> str:
        return ""

    handlers = [
        litestar.get(f"/way/{number}", **one)(each) for number, each in enumerate((made("a"), made("b"), plain))
    ]
    again = litestar.get("/way/again", guards=one["guards"], sync_to_thread=False)(plain)
    routers = [Router(prefix, route_handlers=[Things, again]) for prefix in ("/one", "/two")]
    app = Litestar([Things, *handlers, *routers], plugins=[for_litestar.RateLimitPlugin(clock=ManualClock())])
    things = ["GET /things", "POST /things", "GET /things/a", "PUT /things/b/1"]
    addresses = [*things, *(f"GET /way/{number}" for number in range(3))]
    with LitestarClient(app) as client:
        each = [*under("/one", [*things, "GET /way/again"]), *under("/two", [*things, "GET /way/again"])]
        yield [*addresses, *each], lambda address: client.request(*address.split())


def asked_of_flask() -> Iterator[tuple[list[str], Callable[[str], Any]]]:
    app = Flask(__name__, host_matching=True, static_host="static.example.com")
    limits = RateLimits(app, clock=ManualClock())
    one = limits.limit("1/minute")

    class Views(MethodView):
        @one
        def get(self) -> str:
            return ""

        @one
        def post(self) -> str:
            return ""

    def helper(text: str) -> Callable[..., str]:
        return one(lambda **_: text)

    inner, outer = Blueprint("inner", __name__), Blueprint("outer", __name__)
    for place in (app, inner, outer):
        for host in ("a", "b"):
            options: Any = {"host": f"{host}.example.com"}
            place.add_url_rule("/made", f"{host}-1", helper("a"), **options)
            place.add_url_rule("/other", f"{host}-1", **options)
            place.add_url_rule("/posted", f"{host}-2", one(made("b")), methods=["POST"], **options)
            place.add_url_rule("/posted", f"{host}-3", one(made("b")), methods=["GET"], **options)
            place.add_url_rule("/class", view_func=Views.as_view(f"{host}-4"), **options)
            place.add_url_rule("/hidden", f"{host}-5", lambda: one(made("e"))(), **options)
            place.add_url_rule("/<int:number>", f"{host}-6", helper("c"), **options)
            place.add_url_rule("/<number>", f"{host}-7", helper("d"), **options)
    outer.register_blueprint(inner, url_prefix="/inner")
    app.register_blueprint(outer, url_prefix="/one")
    app.register_blueprint(outer, url_prefix="/two", name="again")
    ways = [f"GET /{name}" for name in ("made", "other", "posted", "class", "hidden", "7", "x")]
    paths = [
        each
        for prefix in ("", "/one", "/one/inner", "/two", "/two/inner")
        for each in under(prefix, [*ways, "POST /posted", "POST /class"])
    ]
    client = app.test_client()

    def ask(address: str) -> Any:
        method, path_, host = address.split()
        return client.open(path_, method=method, base_url=f"http://{host}")

    yield [f"{each} {host}.example.com" for each in paths for host in ("a", "b")], ask


class Urls:
    """Addresses of Django, as a module has them."""

    urlpatterns: list[Any]


def views_of_django() -> list[Any]:
    one = django.limit("1/minute")

    def view(_: Any) -> HttpResponse:
        return HttpResponse("")

    class Plain(View):  # type: ignore[misc]
        @one
        def get(self, _: Any) -> HttpResponse:
            return HttpResponse("")

        @one
        def post(self, _: Any) -> HttpResponse:
            return HttpResponse("")

    decorated = one(view)
    return [
        path("lambda", one(lambda request: view(request))),
        path("lambda/too", one(lambda request: view(request))),
        path("same", decorated),
        path("same/too", decorated),
        path("partial", partial(decorated)),
        path("class", Plain.as_view()),
        path("class/too", Plain.as_view()),
        re_path("^re/(?P<rest>.)$", lambda request, rest: decorated(request)),
    ]


def asked_of_django() -> Iterator[tuple[list[str], Callable[[str], Any]]]:
    ways = "GET /lambda,GET /lambda/too,GET /same,GET /same/too,GET /partial,GET /class,POST /class,GET /re/a"
    views = views_of_django()
    urls: Any = Urls
    urls.urlpatterns = [*views, path("one/", include(views)), re_path("^two/", include(views))]
    addresses = [each for prefix in ("", "/one", "/two") for each in under(prefix, ways.split(","))]
    with override_settings(ROOT_URLCONF=urls, HEADGATE={"clock": ManualClock()}):
        client = Client()
        yield addresses, lambda address: client.generic(*address.split())


ALL = {
    "starlette": asked_of_starlette,
    "litestar": asked_of_litestar,
    "flask": asked_of_flask,
    "django": asked_of_django,
}


SAME = {
    "GET /t/two/way/0": "GET /other/two/way/0",
    "GET /m/t/x/way/0": "GET /m/other/x/way/0",
    "GET /m/starlette/same": "HEAD /m/starlette/same",
    "PUT /m/starlette/methods": "GET /m/starlette/methods",
    "PUT /things/b/1": "GET /things/b/2",
    "GET /one/inner/7 a.example.com": "HEAD /one/inner/8 a.example.com",
    "GET /one/re/a": "GET /one/re/b",
}
"""Other addresses of the same routes."""


DIGESTS = {"starlette": "0c8005d6", "litestar": "3cc8748c", "flask": "22d382b2", "django": "c0589c2d"}
"""Of the names, which every process finds: they do not depend on identities or hashes of objects."""


def names_of(framework: str) -> list[Names]:
    """Ask each route once; returns what its budget is called."""
    found: list[Names] = []
    for addresses, ask in ALL[framework]():
        names: Names = {}
        for address in addresses:
            response = ask(address)
            assert response.status_code < 300, (
                f"{address} shares the budget of another route, or is not there: {response}"
            )
            names[address] = response.headers["RateLimit-Policy"]
        again = [*addresses, *(SAME[address] for address in addresses if address in SAME)]
        assert [ask(address).status_code for address in again] == [429] * len(again)
        found.append(names)
    return found


@pytest.mark.parametrize("framework", ALL)
def test_no_two_routes_share_a_budget_and_each_has_the_same_name_in_all_processes(framework: str) -> None:
    names = names_of(framework)
    assert blake2b(json.dumps(names).encode(), digest_size=4).hexdigest() == DIGESTS[framework], names


def test_sockets_share_neither_with_each_other_nor_with_routes_of_their_path() -> None:
    app, router, mounted = FastAPI(), APIRouter(), FastAPI()

    async def socket(connection: WebSocket) -> None:
        await connection.accept()
        await connection.close()

    for place in (app, router, mounted):
        place.websocket("/a", dependencies=[once()])(socket)
        place.get("/a", dependencies=[once()])(served)
    for prefix in ("/one", "/two"):
        app.include_router(router, prefix=prefix)
        app.mount(f"{prefix}/mounted", mounted)
    app.add_middleware(fastapi.RateLimitMiddleware, clock=ManualClock())
    client = TestClient(app)
    for path_ in ("/a", "/one/a", "/two/a", "/one/mounted/a", "/two/mounted/a"):
        with client.websocket_connect(path_):
            assert client.get(path_).status_code == 200
        with pytest.raises(WebSocketDenialResponse), client.websocket_connect(path_):
            pass


def test_a_late_route_has_a_budget_and_files_need_a_name(tmp_path: Path) -> None:
    app = FastAPI()
    app.add_middleware(fastapi.RateLimitMiddleware, limits="99/minute", clock=ManualClock())
    client = TestClient(app, raise_server_exceptions=False)
    for path_ in ("/a", "/b"):
        app.get(path_, dependencies=[once()])(lambda: "")
        assert [client.get(path_).status_code for _ in range(2)] == [200, 429]
    (tmp_path / "page.txt").write_text("page")
    for limit, status in ((fastapi.limit("1/minute"), 500), (fastapi.limit("1/minute", name="files"), 200)):
        app = FastAPI(dependencies=[Depends(limit)])
        app.add_middleware(fastapi.RateLimitMiddleware, clock=ManualClock())
        app.get("/a")(lambda: "")
        app.frontend("/files", directory=tmp_path)
        client = TestClient(app, raise_server_exceptions=False)
        assert client.get("/files/page.txt").status_code == status


def test_languages_of_a_site_are_not_routes_of_their_own() -> None:
    urls: Any = Urls()
    urls.urlpatterns = i18n_patterns(path("a", django.limit("1/minute")(lambda request: HttpResponse(""))))
    middleware = ["headgate.integrations.django.RateLimitMiddleware", "django.middleware.locale.LocaleMiddleware"]
    with override_settings(ROOT_URLCONF=urls, HEADGATE={"clock": ManualClock()}, MIDDLEWARE=middleware, USE_I18N=True):
        assert [Client().get(f"/{language}/a").status_code for language in ("en", "de")] == [200, 429]


def test_routes_of_the_same_name_are_an_error_at_the_start() -> None:
    app = FastAPI()
    app.add_middleware(fastapi.RateLimitMiddleware)
    for _ in range(2):
        app.get("/a", dependencies=[once()])(lambda: "")
    with pytest.raises(UsageError, match=r"two routes have the name GET:/a: name their limits"), TestClient(app):
        pass
    one, urls = django.limit("1/minute"), Urls()
    alike = [each("a", one(lambda request: HttpResponse(""))) for each in (path, re_path)]
    urls.urlpatterns = alike
    with override_settings(ROOT_URLCONF=urls), pytest.raises(UsageError, match="two routes have the path /a"):
        Client().get("/a")


@pytest.mark.parametrize("function", [lambda: "", made("a"), partial(served), Instance(), Instance().method])
def test_functions_of_the_same_name_need_a_name_in_a_shared_store(function: Any) -> None:
    with pytest.raises(UsageError, match="set a unique name"):
        limited("1/minute", store="redis://127.0.0.1:1")(function)
    limited("1/minute", store="redis://127.0.0.1:1", name="own")(function)
    with pytest.raises(UsageError, match="set a unique name"):
        TaskLimits().limit("1/minute")(lambda: "")()


def again_by_flask() -> Any:
    app = Flask(__name__)
    limit = RateLimits(app, clock=ManualClock()).limit
    base = limit("3/minute")(made("a"))
    app.add_url_rule("/wide", "wide", base)
    app.add_url_rule("/tight", "tight", limit("2/minute")(base))
    return app.test_client().get


def again_by_fastapi() -> Any:
    app = FastAPI()
    base = fastapi.limited("3/minute")(made("a"))
    app.get("/wide")(base)
    app.get("/tight")(fastapi.limited("2/minute")(base))
    app.add_middleware(fastapi.RateLimitMiddleware, clock=ManualClock())
    return TestClient(app).get


def again_by_django() -> Any:
    base = django.limit("3/minute")(lambda request: HttpResponse(""))
    Urls.urlpatterns = [path("wide", base), path("tight", django.limit("2/minute")(base))]
    return Client().get


@pytest.mark.parametrize("by", [again_by_flask, again_by_fastapi, again_by_django])
def test_a_further_limit_for_one_route_of_a_view_leaves_its_other_routes_alone(by: Callable[[], Any]) -> None:
    with override_settings(HEADGATE={"clock": ManualClock()}, ROOT_URLCONF=Urls()):
        get = by()
        assert [get("/tight").status_code for _ in range(4)] == [200, 200, 429, 429]
        assert [get("/wide").status_code for _ in range(4)] == [200, 200, 200, 429]


def test_limits_of_one_function_do_not_share() -> None:
    store = MemoryStore()
    twice = limited("3/minute", store=store)(limited("3/minute", store=store)(served))
    assert [twice() for _ in range(3)] == [""] * 3
    with pytest.raises(LimitExceeded):
        twice()

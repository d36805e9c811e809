"""FastAPI and Starlette, by their own test client: dependencies, decorators, routers, mounted applications."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Query, Request, WebSocket
from fastapi.exception_handlers import http_exception_handler
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from headgate import UnknownRule, UsageError, load_rules
from headgate.integrations.fastapi import RateLimited, RateLimitMiddleware, limit, limited
from headgate.testing import ManualClock
from tests.integrations.clients import TestClient, WebSocketDenialResponse

CLIENT = ("203.0.113.9", 4711)


def application(**settings: Any) -> FastAPI:
    app = FastAPI()
    settings.setdefault("clock", ManualClock())
    app.add_middleware(RateLimitMiddleware, **settings)
    return app


def client_of(app: Any, **options: Any) -> TestClient:
    return TestClient(app, client=CLIENT, **options)


def statuses(app: Any, *paths: str, **headers: str) -> list[int]:
    client = client_of(app, headers=headers)
    return [client.get(path).status_code for path in paths]


def test_a_refusal_of_a_route_takes_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starlette runs a handler that is not a coroutine function in a thread: attackers could keep all of them busy."""
    app = application()

    @app.get("/", dependencies=[Depends(limit("1/minute"))])
    async def home() -> str:
        return "hello"

    monkeypatch.setattr("anyio.to_thread.run_sync", lambda *_, **__: pytest.fail("a thread was used"))
    assert statuses(app, "/", "/") == [200, 429]


def test_the_application_may_register_the_handler_of_the_framework() -> None:
    app = application()
    app.add_exception_handler(RateLimited, http_exception_handler)  # type: ignore[arg-type]
    app.get("/", dependencies=[Depends(limit("1/minute", name="home"))])(lambda: "hello")
    client = client_of(app)
    client.get("/")
    refused = client.get("/")
    assert (refused.status_code, refused.json()) == (429, {"detail": "home allows 1/minute. Retry in 60 s."})
    assert refused.headers["retry-after"] == "60"


def test_a_dependency_that_catches_a_refusal_may_add_a_field_to_its_answer() -> None:
    app = application()

    async def named() -> AsyncIterator[None]:
        try:
            yield
        except HTTPException as error:
            error.headers = {**(error.headers or {}), "x-request-id": "7"}
            raise

    @app.get("/", dependencies=[Depends(named)])
    @limited("1/minute")
    async def home() -> str:
        return "hello"

    client = client_of(app)
    client.get("/")
    refused = client.get("/")
    assert refused.headers["content-type"] == "application/problem+json"
    assert (refused.headers["retry-after"], refused.headers["x-request-id"]) == ("60", "7")


def test_a_decorated_route_needs_no_parameter_and_keeps_its_own() -> None:
    app = application()

    @app.get("/items/{item}")
    @limited("3/minute")
    @limited("2/minute", key=lambda connection: connection.path_params["item"])
    def item_of(item: int, size: Annotated[int, Query(le=10)] = 3) -> dict[str, int]:
        """Runs in a thread."""
        return {"item": item, "size": size}

    @app.get("/own")
    @limited("1/minute")
    async def own(request: Request, connection: HTTPConnection) -> str:
        return f"{request.url.path} {connection.url.path}"

    client = client_of(app)
    assert client.get("/items/1?size=4").json() == {"item": 1, "size": 4}
    assert statuses(app, "/items/1?size=11", "/items/x") == [422, 422]
    assert statuses(app, "/items/1", "/items/1", "/items/2", "/items/2") == [200, 429, 200, 429]
    assert client.get("/own").json() == "/own /own"
    assert client.get("/own").status_code == 429
    parameters = client.get("/openapi.json").json()["paths"]["/items/{item}"]["get"]["parameters"]
    assert [each["name"] for each in parameters] == ["item", "size"]


def test_a_key_may_be_in_the_body_which_the_endpoint_still_gets() -> None:
    async def by_user(request: Any) -> Any:
        return (await request.json()).get("user")

    app, key = application(), {"key": by_user}

    @app.post("/dependency", dependencies=[Depends(limit("1/minute", **key))])  # type: ignore[arg-type]
    async def with_model(body: dict[str, Any]) -> Any:
        return body

    @app.post("/decorated")
    @limited("1/minute", **key)  # type: ignore[arg-type]
    async def with_request(request: Request) -> Any:
        return await request.json()

    client = client_of(app)
    for path in ("/dependency", "/decorated"):
        bodies = [{"user": "ada", "more": "x" * 100_000}, {"user": "ada"}, {"user": "bob"}, {"user": ""}]
        answers = [client.post(path, json=body) for body in bodies]
        assert [answer.status_code for answer in answers] == [200, 429, 200, 400]
        assert answers[0].json() == bodies[0]


def test_a_limit_without_depends_limits_all_the_same() -> None:
    forgotten: Any = limit("1/minute")
    for dependencies, default in (([forgotten], None), ([], forgotten)):
        app = application()
        app.get("/", dependencies=dependencies)(lambda _=default: "hello")
        assert statuses(app, "/", "/") == [200, 429]


def test_a_mounted_application_has_the_limits_of_the_outer_one_and_may_have_its_own() -> None:
    inner = FastAPI()
    inner.get("/a", dependencies=[Depends(limit("2/minute"))])(lambda: "a")
    own = application(limits="1/minute")
    own.get("/a")(lambda: "a")
    app = application(limits="4/minute")
    app.mount("/inner", inner)
    app.mount("/own", own)
    assert statuses(app, "/inner/a", "/inner/a", "/inner/a", "/own/a", "/own/a") == [200, 200, 429, 200, 429]


def test_starlette_alone() -> None:
    @limited("1/minute")
    async def home(request: Request) -> JSONResponse:
        return JSONResponse({"path": request.url.path})

    inner = Starlette(routes=[Route("/home", home)])
    app = Starlette(routes=[Mount("/app", inner)])
    app.add_middleware(RateLimitMiddleware, limits="9/minute")
    assert statuses(app, "/app/home", "/app/home", "/app/nowhere") == [200, 429, 404]


def test_background_tasks_of_admitted_requests_run() -> None:
    app, done = application(), list[str]()

    @app.get("/task")
    @limited("1/minute")
    async def task(tasks: BackgroundTasks) -> str:
        tasks.add_task(done.append, "done")
        return "later"

    assert statuses(app, "/task", "/task") == [200, 429]
    assert done == ["done"]


def test_responses_to_exceptions_have_the_fields_and_may_be_refunded() -> None:
    app = application(limits="1/minute", refund_on_error=True)

    @app.get("/broken")
    def broken() -> None:
        raise LookupError

    @app.exception_handler(LookupError)
    def lost(request: Request, error: Exception) -> Response:
        return Response(status_code=404)

    @app.get("/worse")
    def worse() -> None:
        raise ZeroDivisionError

    client = client_of(app, raise_server_exceptions=False)
    assert client.get("/worse").status_code == 500
    assert client.get("/broken").headers["x-ratelimit-remaining"] == "0"
    assert client.get("/broken").status_code == 429


def test_websocket_routes_have_limits_of_their_own() -> None:
    app = application(limits="9/minute")

    async def greet(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("hello")
        await socket.close()

    app.websocket("/by-decorator")(limited("1/minute")(greet))
    app.websocket("/by-dependency", dependencies=[Depends(limit("1/minute"))])(greet)
    client = client_of(app)
    for path in ("/by-decorator", "/by-dependency"):
        with client.websocket_connect(path) as socket:
            assert socket.receive_text() == "hello"
            assert (b"x-ratelimit-remaining", b"0") in (socket.extra_headers or [])
        with pytest.raises(WebSocketDenialResponse) as refused, client.websocket_connect(path):
            pass
        assert refused.value.status_code == 429, path


def test_an_application_whose_route_names_no_rule_neither_starts_nor_serves() -> None:
    app = application(rules=load_rules("{version: 1, rules: [{id: logins, limit: 1, window: 1m}]}"))
    app.get("/login", dependencies=[Depends(limit(rule="log-ins"))])(lambda: "in")
    with pytest.raises(UnknownRule, match="log-ins"):
        client_of(app).get("/login")  # some servers do not announce that they start
    with pytest.raises(UnknownRule, match="log-ins"), client_of(app):
        pass


def test_routes_of_included_routers_are_checked_when_the_application_starts() -> None:
    unlimited = APIRouter()
    limited("5/minute")(unlimited.get("/a")(lambda: "a"))
    with_rule = APIRouter()
    with_rule.get("/b")(lambda: "b")
    for router, terms in ((unlimited, []), (with_rule, [Depends(limit(rule="nowhere"))])):
        app, outer = FastAPI(), APIRouter()
        app.add_middleware(RateLimitMiddleware, limits="5/minute")
        outer.include_router(router, prefix="/inner", dependencies=terms)
        app.include_router(outer, prefix="/outer")
        with pytest.raises(UsageError, match=r"below the route's decorator|needs the setting rules"), TestClient(app):
            pass
    app, inner = FastAPI(), FastAPI()
    app.add_middleware(RateLimitMiddleware)
    limited("5/minute")(inner.get("/a")(lambda: "a"))
    app.mount("/inner", inner)
    with pytest.raises(UsageError, match="below the route's decorator"), TestClient(app):
        pass


def test_a_limit_of_an_included_router_may_replace_those_of_the_application() -> None:
    app, router = FastAPI(dependencies=[Depends(limit("1/minute", name="all"))]), APIRouter()
    app.add_middleware(RateLimitMiddleware)
    router.get("/a")(lambda: "a")
    app.include_router(router, prefix="/usual")
    app.include_router(router, prefix="/special", dependencies=[Depends(limit("3/minute", replaces=True))])
    assert statuses(app, *["/usual/a"] * 2, *["/special/a"] * 4) == [200, 429, 200, 200, 200, 429]


def test_an_application_whose_settings_cannot_work_neither_starts_nor_serves() -> None:
    mistakes: list[tuple[Any, str]] = [({}, "limits nothing"), ({"limits": "3/minuet"}, "bad quota '3/minuet'")]
    for settings, message in mistakes:
        app = FastAPI()
        app.add_middleware(RateLimitMiddleware, **settings)
        with pytest.raises(UsageError, match=message):
            TestClient(app).get("/")
        with pytest.raises(UsageError, match=message), TestClient(app):
            pass
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, enabled=False)
    with TestClient(app):
        pass


def test_a_limited_route_without_the_middleware_is_an_error() -> None:
    app = FastAPI()
    app.get("/a", dependencies=[Depends(limit("5/minute"))])(lambda: "a")
    app.get("/b")(limited("5/minute")(lambda: "b"))
    for path in ("/a", "/b"):
        with pytest.raises(UsageError, match="add_middleware"):
            client_of(app).get(path)

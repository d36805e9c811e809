"""Litestar, by its own test client: the plugin, guards of handlers and controllers, WebSocket."""

from __future__ import annotations

from typing import Any

import pytest
from litestar import Controller, Litestar, Request, Response, Router, WebSocket, get, websocket
from litestar.exceptions import WebSocketDisconnect
from litestar.testing import TestClient
from starlette.responses import JSONResponse, PlainTextResponse

from headgate import UnknownRule, UsageError, load_rules
from headgate.integrations import asgi
from headgate.integrations.litestar import RateLimited, RateLimitPlugin, limit
from headgate.testing import ManualClock
from headgate.web.errors import InvalidSettings
from tests.integrations import clients


@get("/usual")
async def usual() -> str:
    return "usual"


@get("/own", guards=[limit("2/minute")])
async def own() -> str:
    return "own"


@get("/special", guards=[limit("3/minute", replaces=True)], sync_to_thread=False)
def special() -> str:
    return "special"


class Reports(Controller):
    path = "/reports"
    guards = [limit("1/minute")]  # noqa: RUF012  as Litestar has it

    @get("/a")
    async def a(self) -> str:
        return "a"

    @get("/b")
    async def b(self) -> str:
        return "b"


@websocket("/socket", guards=[limit("1/minute")])
async def socket(socket: WebSocket[Any, Any, Any]) -> None:
    await socket.accept()
    await socket.send_text("hello")
    await socket.close()


HANDLERS = [usual, own, special, Reports, socket]


def client_of(*handlers: Any, options: Any = None, **settings: Any) -> TestClient[Litestar]:
    plugin = RateLimitPlugin(clock=ManualClock(), **settings)
    return TestClient(Litestar([*(handlers or HANDLERS)], plugins=[plugin], **(options or {})))


def statuses(client: TestClient[Litestar], *paths: str) -> list[int]:
    with client:
        return [client.get(path).status_code for path in paths]


def test_controllers_limit_each_of_their_routes() -> None:
    assert statuses(client_of(), "/reports/a", "/reports/b", "/reports/a") == [200, 200, 429]


def test_websockets_are_refused_before_they_are_accepted() -> None:
    with client_of() as client:
        with client.websocket_connect("/socket") as connection:
            assert connection.receive_text() == "hello"
        with pytest.raises(WebSocketDisconnect) as refused, client.websocket_connect("/socket"):
            pass
        assert refused.value.code == asgi.TRY_LATER


def test_a_refusal_is_answered_by_the_handler_of_the_application_or_by_on_refused() -> None:
    def handled(_: Request[Any, Any, Any], error: RateLimited) -> Response[str]:
        return Response(f"{error.status_code} {error.headers['retry-after']}", status_code=420)  # type: ignore[index]

    with client_of(own, limits="1/minute", options={"exception_handlers": {RateLimited: handled}}) as client:
        client.get("/own")
        assert (client.get("/own").status_code, client.get("/own").text) == (420, "429 60")
    for answer in (Response("of Litestar", status_code=421), PlainTextResponse("of Starlette", 421)):
        with client_of(usual, limits="1/minute", on_refused=lambda _, __, answer=answer: answer) as client:
            client.get("/usual")
            refused = client.get("/usual")
            assert (refused.status_code, refused.text.partition(" ")[0]) == (421, "of")


def test_a_websocket_is_refused_by_the_response_that_on_refused_returns() -> None:
    for answer in (Response({"of": "Litestar"}, status_code=421), JSONResponse({"of": "Starlette"}, 421)):
        plugin = RateLimitPlugin(limits="1/minute", clock=ManualClock(), on_refused=lambda _, __, answer=answer: answer)
        client: Any = clients.TestClient(Litestar([socket], plugins=[plugin]))  # type: ignore[arg-type]
        with client.websocket_connect("/socket") as connection:
            assert connection.receive_text() == "hello"
        with pytest.raises(clients.WebSocketDenialResponse) as refused, client.websocket_connect("/socket"):
            pass
        assert (refused.value.status_code, list(refused.value.json())) == (421, ["of"])


def test_guards_work_under_the_middleware_of_asgi_which_counts_unknown_paths() -> None:
    def refused(_: Request[Any, Any, Any], error: RateLimited) -> Response[str]:
        return Response(str(error.refusal.retry_after), status_code=420)

    app = Litestar([Router("/v1", route_handlers=[own])], exception_handlers={RateLimited: refused})
    client: Any = TestClient(asgi.RateLimitMiddleware(app, limits="4/minute", clock=ManualClock()))  # type: ignore[arg-type]
    paths = ["/v1/own", "/v1/own", "/v1/own", "/nowhere", "/nowhere", "/nowhere"]
    assert [client.get(path).status_code for path in paths] == [200, 200, 420, 404, 404, 429]
    client = TestClient(asgi.RateLimitMiddleware(Litestar([own]), limits="4/minute", clock=ManualClock()))  # type: ignore[arg-type]
    refused_by_guard = [client.get("/own") for _ in range(3)][-1]
    assert (refused_by_guard.status_code, refused_by_guard.headers["retry-after"]) == (429, "30")
    assert refused_by_guard.json()["status_code"] == 429  # as Litestar writes its own
    client = TestClient(asgi.RateLimitMiddleware(Litestar([special]), limits="1/minute", clock=ManualClock()))  # type: ignore[arg-type]
    assert [client.get("/special").status_code for _ in range(2)] == [200, 429]  # replaces nothing of what is before it


def test_mistakes_are_errors_at_the_start() -> None:
    with pytest.raises(InvalidSettings, match="'close' or 'wait'"):
        RateLimitPlugin(on_message="drop")
    wrong = get("/", guards=[limit(rule="log-ins")])(usual.fn)
    rules = load_rules("{version: 1, rules: [{id: logins, limit: 1, window: 1m}]}")
    with pytest.raises(ExceptionGroup) as raised, client_of(wrong, rules=rules):
        pass
    assert raised.group_contains(UnknownRule)
    with pytest.raises(ExceptionGroup) as raised, client_of(usual):
        pass
    assert raised.group_contains(InvalidSettings, match="limits nothing")
    with client_of(own):
        pass
    with TestClient(Litestar([own], debug=True)) as client:
        assert UsageError.__name__ in client.get("/own").text

"""The ASGI middleware: HTTP, WebSocket connections and their messages, streams and what goes wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware

from headgate import InvalidQuota, ResponseHeaders
from headgate.integrations import Budget
from headgate.integrations.asgi import TRY_LATER, RateLimitMiddleware
from headgate.integrations.limiter import AsyncRequestLimiter
from headgate.testing import ManualClock
from headgate.web.errors import InvalidSettings
from headgate.web.headers import as_bytes
from tests.integrations.clients import call, scope_of

HELLO: list[dict[str, Any]] = [
    {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]},
    {"type": "http.response.body", "body": b"hel", "more_body": True},
    {"type": "http.response.body", "body": b"lo"},
]
CONNECT = {"type": "websocket.connect"}
TEXT = {"type": "websocket.receive", "text": "hi"}
GONE = {"type": "websocket.disconnect", "code": 1001}


async def hello(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    for message in HELLO:
        await send(message)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Accepts, and sends back what it gets until the client is gone."""
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept", "headers": []})
    while (message := await receive())["type"] != "websocket.disconnect":
        await send({"type": "websocket.send", "text": message["text"]})
    await send({"type": "websocket.send", "text": "bye"})  # to nobody, which must not harm


def limited(app: Any = hello, **settings: Any) -> RateLimitMiddleware:
    usual = {"clock": ManualClock(), "limits": "2/minute"}
    given = {name: value for name, value in {**usual, **settings}.items() if value is not None}
    return RateLimitMiddleware(app, **given)


def head(sent: list[dict[str, Any]]) -> tuple[int, dict[bytes, bytes]]:
    return sent[0]["status"], dict(sent[0]["headers"])


async def test_every_answer_has_the_fields_and_a_refusal_is_a_problem_document() -> None:
    app = limited(headers=ResponseHeaders(reset_format="seconds"))
    sent = await call(app, scope_of())
    status, fields = head(sent)
    assert status == 200
    assert fields[b"content-type"] == b"text/plain"
    assert fields[b"ratelimit"] == b'"default";r=1;t=30'
    assert fields[b"x-ratelimit-remaining"] == b"1"
    assert sent[1:] == HELLO[1:]  # piece by piece, as they came
    await call(app, scope_of())
    status, fields = head(refused := await call(app, scope_of()))
    assert (status, fields[b"retry-after"], fields[b"cache-control"]) == (429, b"30", b"no-store")
    body = refused[1]["body"]
    assert fields[b"content-type"] == b"application/problem+json"
    assert int(fields[b"content-length"]) == len(body)
    assert json.loads(body)["detail"] == "default allows 2/minute. Retry in 30 s."
    assert (await call(app, scope_of(method="HEAD")))[1]["body"] == b""
    assert head(await call(app, scope_of(client=("203.0.113.10", 1))))[0] == 200


async def test_fields_of_an_application_inside_are_left_alone() -> None:
    inner = limited(limits="5/minute")
    outer = limited(inner, limits="9/minute")
    sent = await call(outer, scope_of())
    assert [value for name, value in sent[0]["headers"] if name == b"x-ratelimit-limit"] == [b"5"]
    assert HELLO[0]["headers"] == [(b"content-type", b"text/plain")]  # what the application sent is not changed


def test_an_exception_passes_through_and_costs_nothing_where_that_is_asked_for() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError("broken")

    async def statuses(**settings: Any) -> list[str]:
        app, seen = limited(broken, limits="1/minute", **settings), []
        for _ in range(3):
            try:
                seen.append(str(head(await call(app, scope_of()))[0]))
            except LookupError as error:
                seen.append(str(error))
        return seen

    assert asyncio.run(statuses()) == ["broken", "429", "429"]
    assert asyncio.run(statuses(refund_on_error=True)) == ["broken"] * 3


async def test_a_condition_is_about_the_start_of_the_response() -> None:
    answers = iter([200, 401, 200])

    async def log_in(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": next(answers), "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = limited(log_in, limits="1/minute", count_when=lambda response: response.status_code == 401)
    seen = [head(await call(app, scope_of())) for _ in range(3)]
    assert [status for status, _ in seen] == [200, 401, 429]
    assert [fields[b"x-ratelimit-remaining"] for _, fields in seen] == [b"1", b"0", b"0"]


async def test_a_client_that_goes_away_leaves_nothing_behind_and_has_used_its_share() -> None:
    async def waits(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.disconnect"

    app = limited(waits, limits="1/minute", count_when=lambda _: False)
    assert await call(app, scope_of(), [{"type": "http.disconnect"}]) == []
    assert head(await call(app, scope_of(), [{"type": "http.disconnect"}]))[0] == 429
    task = asyncio.create_task(call(limited(waits), scope_of()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_who_hangs_up_gets_nothing_back() -> None:
    async def reads(scope: Any, receive: Any, send: Any) -> None:
        if (await receive())["type"] == "http.disconnect":
            raise ConnectionError

    async def connects(scope: Any, receive: Any, send: Any) -> None:
        while True:
            if (await receive())["type"] == "websocket.disconnect":
                raise ConnectionError

    async def gone(message: Any) -> None:
        raise OSError

    cases: list[Any] = [(reads, scope_of(), [{"type": "http.disconnect"}])]
    cases.append((connects, scope_of(kind="websocket"), [CONNECT, GONE]))
    for inside, scope, received in cases:
        app = limited(inside, limits="1/minute", refund_on_error=True)
        with pytest.raises(ConnectionError):
            await call(app, scope, received)
        assert head(await call(app, scope_of()))[0] == 429
    app = limited(limits="1/minute", refund_on_error=True)
    with pytest.raises(OSError):  # noqa: PT011  it is the one from above
        await app(scope_of(), None, gone)  # type: ignore[arg-type]
    assert head(await call(app, scope_of()))[0] == 429


async def test_the_hook_may_answer_with_an_application() -> None:
    app = limited(limits="1/minute", on_refused=lambda scope, refusal: hello)
    await call(app, scope_of())
    assert await call(app, scope_of()) == HELLO


async def test_a_websocket_connection_counts_as_a_request() -> None:
    app = limited(echo, limits="1/minute")
    sent = await call(app, scope_of(kind="websocket"), [CONNECT, TEXT, GONE])
    assert [message["type"] for message in sent] == ["websocket.accept", "websocket.send", "websocket.send"]
    assert dict(sent[0]["headers"])[b"x-ratelimit-remaining"] == b"0"
    (closed,) = await call(app, scope_of(kind="websocket"), [CONNECT])
    assert (closed["type"], closed["code"]) == ("websocket.close", TRY_LATER)
    scope = scope_of(kind="websocket", extensions={"websocket.http.response": {}})
    start, body = await call(app, scope, [CONNECT])
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert json.loads(body["body"])["status"] == 429


async def test_messages_count_over_all_connections_of_a_client() -> None:
    app = limited(echo, limits="100/minute", messages="3/minute")
    await call(app, scope_of(kind="websocket"), [CONNECT, TEXT, GONE])
    sent = await call(app, scope_of(kind="websocket"), [CONNECT, TEXT, TEXT, TEXT, TEXT])
    assert [message["type"].partition(".")[2] for message in sent] == ["accept", "send", "send", "close"]
    assert sent[-1]["reason"] == "Too many messages. Retry in 20 s."


async def test_messages_may_wait_for_their_turn() -> None:
    app = limited(echo, limits="100/minute", messages="100/s capacity 1", on_message="wait", clock=None)
    sent = await call(app, scope_of(kind="websocket"), [CONNECT, TEXT, TEXT, TEXT, GONE])
    assert [message["type"].partition(".")[2] for message in sent] == ["accept", "send", "send", "send", "send"]


def test_a_mistake_is_told_at_once_or_where_starlette_makes_its_middleware_at_every_request() -> None:
    """Starlette makes it no earlier than that: what was never started is not served either."""
    app, sent = Starlette(middleware=[Middleware(RateLimitMiddleware, limits="3/minuet")]), list[Any]()

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        for kind in ("lifespan", "http", "http"):
            with pytest.raises(InvalidQuota, match="3/minuet"):
                await app(scope_of(kind=kind), receive, send)

    with pytest.raises(InvalidQuota, match="3/minuet"):
        RateLimitMiddleware(Starlette(), limits="3/minuet")
    asyncio.run(main())
    assert [message.get("status", message["type"]) for message in sent if "body" not in message] == [
        "lifespan.startup.failed",
        500,
        500,
    ]


async def test_the_lifespan_passes_and_its_end_closes_what_was_opened() -> None:
    seen: list[str] = []

    async def starts(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    def closed() -> None:
        seen.append("closed")

    app = limited(starts)
    app.gate.engine.close = closed
    assert await call(app, {"type": "lifespan"}) == []
    assert seen == ["lifespan", "closed"]


async def test_a_gate_may_be_shared_and_reset() -> None:
    gate = AsyncRequestLimiter({"limits": "1/minute"}, as_bytes)
    first, second = (RateLimitMiddleware(hello, gate=gate) for _ in range(2))
    assert [head(await call(app, scope_of()))[0] for app in (first, second)] == [200, 429]
    await gate.reset("ip:203.0.113.9")
    assert head(await call(second, scope_of()))[0] == 200


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"gate": AsyncRequestLimiter({"limits": "1/minute"})}, "own clock, limits"),
        ({"gate": AsyncRequestLimiter({"limits": "1/minute"}), "limits": None, "clock": None}, "asgi.gate"),
        ({"on_message": "drop"}, "'close' or 'wait'"),
        ({"limits": None}, "limits nothing"),
        ({"messages": Budget(rule="messages")}, "needs the setting rules or engine"),
    ],
)
def test_what_cannot_work_is_loud_at_once(settings: Any, told: str) -> None:
    with pytest.raises(InvalidSettings, match=told):
        limited(**settings)

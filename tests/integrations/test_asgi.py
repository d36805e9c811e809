"""The ASGI middleware: HTTP, WebSocket connections and their messages, streams and what goes wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware

from headgate import InvalidQuota
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
    await send({"type": "websocket.send", "text": "bye"})  # to a closed connection, which must not harm


def limited(app: Any = hello, **settings: Any) -> RateLimitMiddleware:
    usual = {"clock": ManualClock(), "limits": "2/minute"}
    given = {name: value for name, value in {**usual, **settings}.items() if value is not None}
    return RateLimitMiddleware(app, **given)


def head(sent: list[dict[str, Any]]) -> tuple[int, dict[bytes, bytes]]:
    return sent[0]["status"], dict(sent[0]["headers"])


async def test_fields_of_an_application_inside_are_left_alone() -> None:
    inner = limited(limits="5/minute")
    outer = limited(inner, limits="9/minute")
    sent = await call(outer, scope_of())
    assert [value for name, value in sent[0]["headers"] if name == b"x-ratelimit-limit"] == [b"5"]
    assert sent[1:] == HELLO[1:]  # piece by piece, as they came
    assert HELLO[0]["headers"] == [(b"content-type", b"text/plain")]  # what the application sent is not changed


async def test_a_client_that_disconnects_leaves_nothing_behind_and_gets_no_refund() -> None:
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


async def test_clients_that_disconnect_get_no_refund() -> None:
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


def test_a_mistake_is_an_error_at_once_or_in_starlette_at_every_request() -> None:
    """Starlette creates it no earlier: an application that did not start is not served."""
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


async def test_the_end_of_the_lifespan_closes_the_store() -> None:
    seen: list[str] = []

    async def starts(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    def closed() -> None:
        seen.append("closed")

    app = limited(starts)
    app.limiter.store.close = closed
    assert await call(app, {"type": "lifespan"}) == []
    assert seen == ["lifespan", "closed"]


async def test_a_limiter_may_be_shared_and_reset() -> None:
    limiter = AsyncRequestLimiter({"limits": "1/minute"}, as_bytes)
    first, second = (RateLimitMiddleware(hello, limiter=limiter) for _ in range(2))
    assert [head(await call(app, scope_of()))[0] for app in (first, second)] == [200, 429]
    await limiter.reset("ip:203.0.113.9")
    assert head(await call(second, scope_of()))[0] == 200


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limiter": AsyncRequestLimiter({"limits": "1/minute"})}, "own clock, limits"),
        ({"limiter": AsyncRequestLimiter({"limits": "1/minute"}), "limits": None, "clock": None}, "asgi.request"),
        ({"on_message": "drop"}, "'close' or 'wait'"),
        ({"limits": None}, "limits nothing"),
        ({"messages": Budget(rule="messages")}, "needs the setting rules or engine"),
    ],
)
def test_mistakes_are_errors_at_once(settings: Any, message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        limited(**settings)

"""httpx, requests and aiohttp against real servers that enforce limits: few refusals, no surprise for the caller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from io import BytesIO
from typing import Self

import aiohttp
import httpx
import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPResponse

from benchmarks.clients.api import Api, Fields, headgate, serving
from headgate import Decision, Limiter, MemoryStore
from headgate.core.errors import UsageError
from headgate.pacing import AiohttpMiddleware, AsyncHttpxTransport, HttpxTransport, Pacer, RequestsAdapter, WaitTooLong
from headgate.testing import ManualClock
from tests.pacing.simulation import STYLES
from tests.servers import RedisServer


def by_httpx(url: str, count: int, at_once: int) -> list[int]:
    with httpx.Client(transport=HttpxTransport()) as client, ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(lambda _: client.get(url).status_code, range(count)))


def by_async_httpx(url: str, count: int, at_once: int) -> list[int]:
    async def one(client: httpx.AsyncClient, turns: asyncio.Semaphore) -> int:
        async with turns:
            return (await client.get(url)).status_code

    async def main() -> list[int]:
        turns = asyncio.Semaphore(at_once)
        async with httpx.AsyncClient(transport=AsyncHttpxTransport()) as client:
            return await asyncio.gather(*[one(client, turns) for _ in range(count)])

    return asyncio.run(main())


def by_requests(url: str, count: int, at_once: int) -> list[int]:
    with requests.Session() as session, ThreadPoolExecutor(at_once) as threads:
        session.mount("http://", RequestsAdapter())
        return list(threads.map(lambda _: session.get(url).status_code, range(count)))


def by_aiohttp(url: str, count: int, at_once: int) -> list[int]:
    async def one(session: aiohttp.ClientSession, turns: asyncio.Semaphore) -> int:
        async with turns, session.get(url) as answer:
            return answer.status

    async def main() -> list[int]:
        turns = asyncio.Semaphore(at_once)
        async with aiohttp.ClientSession(middlewares=[AiohttpMiddleware()]) as session:
            return await asyncio.gather(*[one(session, turns) for _ in range(count)])

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("send", "style"),
    [(by_httpx, "headgate"), (by_async_httpx, "ietf"), (by_requests, "github"), (by_aiohttp, "headgate")],
)
def test_all_requests_of_a_client_pass_and_hardly_any_is_refused(
    send: Callable[[str, int, int], list[int]], style: str
) -> None:
    """Of requests at once, chance decides in which order they arrive; `test_pacer` shows how few are refused."""
    quota = "20/2s fixed_window" if style == "github" else "20/s token_bucket"
    with serving(STYLES[style], quota) as api:
        assert send(f"{api.url}/orders", 30, 10) == [200] * 30
    with serving(STYLES[style], quota) as api:
        assert send(f"{api.url}/orders", 40, 1) == [200] * 40
        assert api.refused <= 1


def test_clients_that_share_a_store_stay_within_a_limit_together(redis: RedisServer) -> None:
    """Each has its own pacer, like processes."""
    with serving(headgate, "40/2s") as api, ThreadPoolExecutor(12) as threads, ExitStack() as stack:
        transports = [HttpxTransport(store=redis.address) for _ in range(3)]
        clients = [stack.enter_context(httpx.Client(transport=each)) for each in transports]
        sent = [threads.submit(client.get, f"{api.url}/orders") for client in clients * 30]
        assert [each.result().status_code for each in sent] == [200] * 90
        assert api.refused <= 4  # of 90; without the store, each would take all that is left


@pytest.fixture(scope="module")
def empty() -> Iterator[Api]:
    """An API whose only unit is used, for an hour from now."""
    with serving(headgate, "1/hour token_bucket") as api:
        httpx.get(f"{api.url}/x", headers={"Authorization": "used"})
        yield api


def test_a_store_of_this_process_is_shared_though_it_is_empty() -> None:
    headers = {"RateLimit-Policy": '"a";q=5;w=60', "RateLimit": '"a";r=4;t=60'}
    store = MemoryStore()
    inside = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers))
    with httpx.Client(transport=HttpxTransport(inside, store=store)) as client:
        assert [client.get("http://api.example/").status_code for _ in range(3)] == [200] * 3
        assert len(store) == 1


def test_a_request_that_would_wait_too_long_is_answered_without_being_sent(empty: Api) -> None:
    pacer = Pacer(max_wait=1)
    headers = {"Authorization": "used"}
    with httpx.Client(transport=HttpxTransport(pacer=pacer), headers=headers) as client:
        refused = client.get(f"{empty.url}/x")  # sent: nothing was known
        seen = len(empty.seen)
        own = client.get(f"{empty.url}/x")
    assert refused.status_code == own.status_code == 429
    assert refused.text == "hello"
    assert "x-ratelimit-source" not in refused.headers
    assert own.headers["x-ratelimit-source"] == "client"
    assert int(own.headers["retry-after"]) > 1
    assert own.json()["status"] == 429
    with requests.Session() as session:
        session.mount("http://", RequestsAdapter(pacer=pacer))  # one pacer for several clients
        answer = session.get(f"{empty.url}/x", headers=headers)
        assert (answer.status_code, answer.headers["X-RateLimit-Source"]) == (429, "client")
        assert answer.json()["title"] == "Too Many Requests"
    assert len(empty.seen) == seen


def test_refusals_are_raised_on_request(empty: Api) -> None:
    headers, url = {"Authorization": "used"}, f"{empty.url}/x"
    pacer = Pacer(max_wait=1)
    with httpx.Client(transport=HttpxTransport(pacer=pacer, raises=True), headers=headers) as client:
        with pytest.raises(WaitTooLong, match="the server refused it") as refused:
            client.get(url)
        assert refused.value.retry_after > 1
        assert refused.value.response.status_code == 429
        refused.value.response.close()
        with pytest.raises(WaitTooLong, match="it was not sent"):
            client.get(url)

    async def main() -> None:
        middleware = AiohttpMiddleware(pacer=pacer)
        async with aiohttp.ClientSession(middlewares=[middleware], headers=headers) as session:
            with pytest.raises(WaitTooLong):
                await session.get(url)
        await middleware.close()

    asyncio.run(main())


def test_a_body_is_sent_again_as_it_was_or_not_at_all() -> None:
    key, clock = {"Idempotency-Key": "order-1"}, ManualClock()

    def second_later(decision: Decision, now: int) -> Fields:
        if not decision:  # however long the requests take, the second is refused, and the third is not
            clock.advance(1)
        return STYLES["delta"](decision, now)

    for content, sent in ((b"order", 2), (iter([b"or", b"der"]), 1)):
        with serving(second_later, "1/s") as api, httpx.Client(transport=HttpxTransport()) as client:
            api.limiter = Limiter("1/s", clock=clock)
            httpx.get(f"{api.url}/first")
            answer = client.post(f"{api.url}/orders", content=content, headers=key)
            assert answer.status_code == (200 if sent == 2 else 429)
            assert len(api.bodies) == 1 + sent
            assert api.bodies[1:] == [b"order"] * sent if sent == 2 else True


class SkippingClock(ManualClock):
    """Waiting advances the clock at once."""

    def wait(self, _: threading.Event, until: int | None) -> None:
        self.set(until or self.now())

    async def wait_async(self, _: asyncio.Event, until: int | None) -> None:
        self.set(until or self.now())


def refused_httpx(close: Callable[[], None]) -> int:
    class Refused(httpx.Response):
        def close(self) -> None:
            close()

    answers = [httpx.Response(200), Refused(429, stream=httpx.ByteStream(b""))]
    inside = httpx.MockTransport(lambda _: answers.pop())
    with httpx.Client(transport=HttpxTransport(inside, pacer=Pacer(clock=SkippingClock()))) as client:
        return client.get("http://api.example/").status_code


def refused_async_httpx(close: Callable[[], None]) -> int:
    class Refused(httpx.Response):
        async def aclose(self) -> None:
            close()

    async def main() -> int:
        answers = [httpx.Response(200), Refused(429, stream=httpx.ByteStream(b""))]
        inside = httpx.MockTransport(lambda _: answers.pop())
        transport = AsyncHttpxTransport(inside, pacer=Pacer(clock=SkippingClock()))
        async with httpx.AsyncClient(transport=transport) as client:
            return (await client.get("http://api.example/")).status_code

    return asyncio.run(main())


def refused_requests(close: Callable[[], None]) -> int:
    class Refused(requests.Response):
        def close(self) -> None:
            close()

    answers = [requests.Response(), Refused()]
    for answer, status in zip(answers, (200, 429), strict=True):
        answer.status_code, answer.raw = status, HTTPResponse(BytesIO(), preload_content=False)

    class Inside(HTTPAdapter):
        def send(self, *_: object, **__: object) -> requests.Response:
            return answers.pop()

    with requests.Session() as session:
        session.mount("http://", RequestsAdapter(Inside(), pacer=Pacer(clock=SkippingClock())))
        return session.get("http://api.example/").status_code


@pytest.mark.parametrize("ask", [refused_httpx, refused_async_httpx, refused_requests])
def test_a_refusal_is_closed_once_as_its_class_does_it(ask: Callable[[Callable[[], None]], int]) -> None:
    closed: list[str] = []
    assert ask(lambda: closed.append("closed")) == 200
    assert closed == ["closed"]

    def fail() -> None:
        closed.append("failed")
        raise OSError("it cannot be closed")

    with pytest.raises(OSError, match="it cannot be closed"):
        ask(fail)
    assert closed == ["closed", "failed"]


def test_a_caller_that_is_cancelled_leaves_its_place_to_others() -> None:
    async def main(url: str) -> list[int]:
        async with httpx.AsyncClient(transport=AsyncHttpxTransport()) as client:
            assert (await client.get(url)).status_code == 200
            waiting = [asyncio.create_task(client.get(url)) for _ in range(6)]
            await asyncio.sleep(0)
            for task in waiting[:4]:
                task.cancel()
            answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[:4])
        return [answer.status_code for answer in answers[4:] if isinstance(answer, httpx.Response)]

    with serving(headgate, "2/s") as api:
        assert asyncio.run(main(f"{api.url}/orders")) == [200, 200]
        assert [status for _, status in api.seen].count(200) == 3, "cancelled requests took nothing"


def test_errors_are_those_of_the_library_in_use_and_of_settings() -> None:
    with httpx.Client(transport=HttpxTransport()) as client:
        for _ in range(3):
            with pytest.raises(httpx.ConnectError):
                client.get("http://127.0.0.1:9/")
    with pytest.raises(UsageError, match=r"pacer must be a headgate\.pacing\.Pacer, not 60"):
        HttpxTransport(pacer=60)  # type: ignore[arg-type]


class EnteredTransport(httpx.MockTransport):
    """Records the beginning and the end of a with block."""

    def __init__(self) -> None:
        super().__init__(lambda _: httpx.Response(200))
        self.events: list[str] = []

    def __enter__(self) -> Self:
        self.events.append("entered")
        return self

    def __exit__(self, *_: object) -> None:
        self.events.append("left")

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()


async def test_the_inner_transport_is_entered_and_left_with_its_client() -> None:
    inner = EnteredTransport()
    with httpx.Client(transport=HttpxTransport(inner)) as client:
        assert client.get("http://127.0.0.1/").status_code == 200  # noqa: ASYNC212  it does not block
        assert inner.events == ["entered"]
    async with httpx.AsyncClient(transport=AsyncHttpxTransport(inner)) as in_loop:
        assert (await in_loop.get("http://127.0.0.1/")).status_code == 200
    assert inner.events == ["entered", "left"] * 2

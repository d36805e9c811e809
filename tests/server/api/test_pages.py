"""What the recorder shows, to many who ask at once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from headgate.observe.recorder import Recorder
from headgate.server.api.pages import MetricsPages
from headgate.server.wire.messages import HttpRequest, HttpResponse

METRICS = HttpRequest(b"GET", b"/metrics")
OPENMETRICS = HttpRequest(b"GET", b"/metrics", headers=[(b"accept", b"application/openmetrics-text")])


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads in which pages were written."""
    threads: list[str] = []
    write = Recorder.metrics

    def noting(self: Recorder, accept: bytes | None = None) -> tuple[bytes, bytes]:
        threads.append(threading.current_thread().name)
        return write(self, accept)

    monkeypatch.setattr(Recorder, "metrics", noting)
    return threads


async def asked(*requests: HttpRequest) -> list[HttpResponse]:
    pages = MetricsPages(Recorder())
    return await asyncio.gather(*[pages.metrics(request) for request in requests])


def test_those_who_ask_at_once_share_a_page_that_a_thread_writes(written: list[str]) -> None:
    responses = asyncio.run(asked(*[METRICS] * 500))
    assert {response.status for response in responses} == {200}
    assert len({id(response.body) for response in responses}) == 1
    assert len(written) == 1
    assert written[0] != threading.main_thread().name


def test_each_gets_the_format_that_was_asked_for(written: list[str]) -> None:
    responses = asyncio.run(asked(*[METRICS, OPENMETRICS] * 10))
    kinds = [dict(response.headers)[b"content-type"] for response in responses]
    assert all(kind.startswith(b"text/plain") for kind in kinds[::2])
    assert all(kind.startswith(b"application/openmetrics-text") for kind in kinds[1::2])
    assert len(written) == 2


async def test_who_asks_later_gets_a_newer_page_and_one_who_leaves_takes_it_from_nobody() -> None:
    recorder = Recorder()
    pages = MetricsPages(recorder)
    bodies = [(await pages.metrics(METRICS)).body]
    recorder.called("check", "error", 1000)
    asking = [asyncio.create_task(pages.metrics(METRICS)) for _ in range(2)]
    await asyncio.sleep(0)
    asking.pop().cancel()
    bodies.append((await asking.pop()).body)
    before, after = bodies
    assert before != after

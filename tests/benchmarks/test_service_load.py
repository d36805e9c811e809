"""What wrk and h2load say is read rightly, and real ones are run against a small server, as is our own load."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import ANY

import pytest

from benchmarks.service.asking import HTTP_CHECK, RLS, text
from benchmarks.service.load import Load, Loader, LoadError, framed, latency, read_h2load, read_json, require
from tests.server.process.service import service

H2LOAD = """\
starting benchmark...
progress: 100% done

finished in {took}, 59182.12 req/s, 9.59MB/s
requests: 2000 total, 2000 started, {done} done, {done} succeeded, 0 failed, 0 errored, 0 timeout
status codes: {fine} 2xx, 0 3xx, {refused} 4xx, 0 5xx
traffic: 32.42MB (34000000) total, 21.93MB (23000000) headers (space savings 0.00%), 3.05MB (3200000) data
"""


@pytest.mark.parametrize(("took", "seconds"), [("3.38s", 3.38), ("950.20ms", 0.9502), ("800us", 0.0008)])
def test_h2load_says_how_many_and_how_long(took: str, seconds: float) -> None:
    found = read_h2load(H2LOAD.format(took=took, done=2000, fine=2000, refused=0))
    assert (found.requests, found.failed) == (2000, 0)
    assert found.seconds == pytest.approx(seconds)


@pytest.mark.parametrize(("done", "fine", "refused"), [(2000, 1999, 1), (1990, 1990, 0), (0, 0, 0)])
def test_a_load_in_which_requests_failed_is_no_figure(done: int, fine: int, refused: int) -> None:
    with pytest.raises(LoadError, match="requests failed"):
        read_h2load(H2LOAD.format(took="1s", done=done, fine=fine, refused=refused))


def test_an_h2load_that_says_nothing_is_no_figure() -> None:
    with pytest.raises(LoadError, match="does not say"):
        read_h2load("starting benchmark...\n")


def test_wrk_ends_with_a_line_of_json() -> None:
    told = 'Running 2s test\n  64 connections\n{"requests":193386,"seconds":2.002616,"failed":0}\n'
    assert read_json(told) == Load(193_386, 2.002616)
    with pytest.raises(LoadError, match="3 of 5 requests failed"):
        read_json('{"requests":5,"seconds":2.0,"failed":3}\n')


def test_latencies_are_those_of_all_requests() -> None:
    log = "".join(f"17{number}\t200\t{number * 1000}\n" for number in range(1, 101))
    found = latency(50, Load(100, 2.5), log)
    assert (found.asked, found.rate, found.p50, found.p99, found.worst) == (50, 40, 51, 100, 100)
    with pytest.raises(LoadError, match="no request was timed"):
        latency(50, Load(100, 2.5), "")


def test_a_message_of_grpc_has_its_length_before_it() -> None:
    assert framed(b"abc") == b"\0\0\0\0\3abc"


def test_a_protobuf_field_is_its_number_its_length_and_itself() -> None:
    assert text(2, "ab") == b"\x12\x02ab"
    assert RLS.body_of(0) == b"\x0a\x05bench\x12\x10\x0a\x0e\x0a\x04user\x12\x06user-0"
    assert text(1, "x" * 300) == b"\x0a\xac\x02" + b"x" * 300


def test_missing_programs_are_named_with_the_packages_that_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        LoadError, match="apt-get install --no-install-recommends wrk nghttp2-client nginx-light redis-"
    ):
        require()


def test_wrk_asks_for_one_user_after_the_other() -> None:
    with small_server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") as (port, seen):
        found = Loader(HTTP_CHECK, port, 3, {0}).flat_out(0.1, 100)
    assert 0 < found.requests <= len(seen)
    assert b"POST /api/v1/rate-limit/check HTTP/1.1\r\n" in seen[0]
    assert all(f'"user-{number}"'.encode() in b"".join(seen[:9]) for number in range(3))


def test_h2load_asks_at_a_constant_rate() -> None:
    with small_server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") as (port, seen):
        found = Loader(HTTP_CHECK, port, 1, {0}).at_rate(640, 0.2)
    assert found.asked == 640
    assert 0 < found.p50 <= found.p99 <= found.worst
    assert HTTP_CHECK.body_of(0) in seen[0]


def test_grpc_is_asked_as_fast_as_it_is_answered_or_at_a_constant_rate(tmp_path: Path) -> None:
    with service("--rules", rules_of(1000, tmp_path)) as found:
        loader = Loader(RLS, found.started().grpc_port, 10, {0})
        assert loader.flat_out(0.1, 1000) == Load(100, ANY, 0, 0)
        timed = loader.at_rate(1000, 0.1)
    assert timed.asked == 1000
    assert 0 < timed.p50 <= timed.p99 <= timed.worst


def test_grpc_that_is_refused_is_no_figure(tmp_path: Path) -> None:
    with service("--rules", rules_of(5, tmp_path)) as found:
        loader = Loader(RLS, found.started().grpc_port, 10, {0})
        assert loader.ask(10).refused == 5
        with pytest.raises(LoadError, match="100 of 100 requests"):
            loader.at_rate(1000, 0.1)


def rules_of(limit: int, folder: Path) -> str:
    """Return a file with one limit, for all together."""
    file = folder / "rules.yaml"
    file.write_text(f"version: 1\nrules: [{{id: all, dimension: global, limit: {limit}, window: 1d}}]\n")
    return str(file)


def test_a_load_that_is_refused_is_no_figure() -> None:
    refusal = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"
    with small_server(refusal) as (port, _), pytest.raises(LoadError, match="requests failed"):
        Loader(HTTP_CHECK, port, 1, {0}).at_rate(640, 0.1)


@contextmanager
def small_server(answer: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A server that gives one answer to whatever arrives in one piece, and keeps the pieces."""
    seen: list[bytes] = []
    loop = asyncio.new_event_loop()

    class Answering(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            seen.append(data)
            self.transport.write(answer)

    server = loop.run_until_complete(loop.create_server(Answering, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1], seen
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.run_until_complete(server.wait_closed())
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()

"""SIGTERM under load: no request that was taken is left without an answer."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from headgate.protos import RateLimitRequest
from headgate.server.configuration import EXAMPLE
from headgate.server.rls import SHOULD_RATE_LIMIT
from tests.server.process.service import SECONDS, Clients, Service, altered, service
from tests.servers import RedisServer, until

COUNTED = ("--log-access", "on", "--log-denials", "0")
"""A line for every request that was taken."""
GRACE = {"headgate.server.wire.listener._IN_TRANSIT": 2.0}
"""Longer than a busy machine keeps a client of these tests from asking again."""
_WORKER = """
from headgate.server import worker
from headgate.server.wire import listener
assert listener._IN_TRANSIT
listener._IN_TRANSIT = 2.0
raise SystemExit(worker.main())
"""
WORKERS_GRACE = {"headgate.server.supervisor._COMMAND": (sys.executable, "-P", "-c", _WORKER)}
"""The same for workers, which are programs of their own."""


def assert_drains(found: Service, *, keeps: bool = True) -> None:
    """No request fails, none is cut off, and all that were taken reach their clients."""
    with Clients(found.started().http_port, [f"u{number}" for number in range(8)], keeps=keeps) as clients:
        clients.until_answered(20)
        found.signal(signal.SIGTERM)
        until(lambda: all(client.was_refused for client in clients.all), "all have seen the end", SECONDS)
    assert found.ended() == 0
    assert clients.failures == []
    assert "cut off" not in found.complained
    assert clients.answered == found.complained.count("headgate.access")


@contextmanager
def unfinished(port: int) -> Iterator[None]:
    """A request that the service has begun to read, and of which no more comes."""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as slow:
        lines = b"POST /api/v1/rate-limit/check HTTP/1.1", b"host: x", b"content-length: 10", b"expect: 100-continue"
        slow.sendall(b"\r\n".join([*lines, b"", b""]))
        assert slow.recv(1000).startswith(b"HTTP/1.1 100 ")
        slow.sendall(b"{")
        yield


def test_one_process_drains_without_a_failed_request() -> None:
    with service(*COUNTED, program=altered(GRACE)) as found:
        assert_drains(found)


def test_workers_drain_without_a_failed_request(redis: RedisServer) -> None:
    with service("--workers", "2", "--store", redis.address, *COUNTED, program=altered(WORKERS_GRACE)) as found:
        assert_drains(found)


def test_those_who_connect_for_each_request_are_answered_or_refused_and_never_cut_off(redis: RedisServer) -> None:
    """A connection that the system took for a worker that stops is still served."""
    with service("--workers", "2", "--store", redis.address, *COUNTED, program=altered(WORKERS_GRACE)) as found:
        assert_drains(found, keeps=False)


def test_where_the_system_refuses_the_filter_it_drains_as_well() -> None:
    """Some do, to users without privileges."""
    with service(*COUNTED, program=altered({"headgate.server.ports._ATTACH_FILTER": 9999, **GRACE})) as found:
        assert_drains(found)
        assert "Traceback" not in found.complained


def test_calls_of_grpc_are_answered_to_the_last_one(redis: RedisServer) -> None:
    with service("--workers", "2", "--store", redis.address, program=altered(WORKERS_GRACE)) as found:
        address = f"127.0.0.1:{found.started().grpc_port}"
        callers = [Caller(address) for _ in range(4)]
        for caller in callers:
            caller.start()
        until(lambda: all(caller.answered >= 20 for caller in callers), "all are answered", SECONDS)
        found.signal(signal.SIGTERM)
        for caller in callers:
            caller.join(SECONDS)
            assert not caller.is_alive(), "a call hangs"
            assert "failed to connect" in caller.end, caller.end
        assert found.ended() == 0


def test_streams_of_http2_are_answered_to_the_last_one(redis: RedisServer, tmp_path: Path) -> None:
    """What h2load has not sent yet when it is told to go away counts as failed there, so what we took is counted."""
    question = tmp_path / "question.json"
    question.write_text('{"principal": {"user": "u1"}, "endpoint": "/api/v1/orders"}')
    with service("--workers", "2", "--store", redis.address, *COUNTED, program=altered(WORKERS_GRACE)) as found:
        url = f"http://127.0.0.1:{found.started().http_port}"
        command = ["h2load", "-c8", "-m10", "-n1000000", "-d", str(question), f"{url}/api/v1/rate-limit/check"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
            until(lambda: "headgate.access" in found.complained, "it is asked", SECONDS)
            found.signal(signal.SIGTERM)
            told, _ = load.communicate(timeout=SECONDS)
        assert found.ended() == 0
        succeeded = re.search(r"(\d+) succeeded", told)
        assert succeeded
        assert int(succeeded[1]) == found.complained.count("headgate.access")


def test_a_second_signal_ends_it_at_once(redis: RedisServer) -> None:
    with service("--workers", "2", "--store", redis.address, "--drain-seconds", "600") as found:
        with unfinished(found.started().http_port):
            found.signal(signal.SIGTERM)
            until(lambda: "draining" in found.complained, "it drains", SECONDS)
            found.signal(signal.SIGTERM)
            assert found.ended() == 0
        assert "stopped at once" in found.complained


@pytest.mark.parametrize("workers", [1, 2])
def test_who_is_not_done_in_the_time_for_draining_is_not_waited_for(redis: RedisServer, workers: int) -> None:
    with service("--workers", str(workers), "--store", redis.address, "--drain-seconds", "0.5") as found:
        with unfinished(found.started().http_port):
            found.signal(signal.SIGTERM)
            assert found.ended() == 0
        assert "some requests had not ended within 0.5 s and were cut off" in found.complained


def test_one_process_ends_at_once_at_the_second_signal() -> None:
    with service("--drain-seconds", "600") as found:
        with unfinished(found.started().http_port):
            found.signal(signal.SIGTERM)
            until(lambda: "draining" in found.complained, "it drains", SECONDS)
            found.signal(signal.SIGINT)
            assert found.ended() == 0
        assert "stopped at once" in found.complained


@pytest.mark.parametrize("workers", [1, 2])
def test_it_ends_when_its_terminal_is_closed(redis: RedisServer, tmp_path: Path, workers: int) -> None:
    said = tmp_path / "said"
    options = ["--http-port", "0", "--grpc-port", "0", "--workers", str(workers), "--store", redis.address]
    options += ["--rules", str(EXAMPLE)]
    command = [sys.executable, "-m", "headgate.cli", "serve", *options]
    heed = "signal.signal(signal.SIGHUP, signal.SIG_DFL)"  # also where these tests run under nohup
    script = f"import pty, signal, sys; {heed}; sys.exit(pty.spawn({command!r}))"
    with said.open("wb") as out:
        terminal = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.DEVNULL, stdout=out)
    try:
        until(lambda: "curl" in said.read_text(), "it serves", SECONDS)
        children = Path(f"/proc/{terminal.pid}/task/{terminal.pid}/children")
        (served,) = map(int, children.read_text().split())
    finally:
        terminal.kill()
        terminal.wait()
    try:
        until(lambda: has_ended(served), "it ends", SECONDS)
    finally:
        if not has_ended(served):
            os.kill(served, signal.SIGTERM)


def has_ended(process: int) -> bool:
    """Whether a process that may be nobody's child any more is gone, or only waits for its exit code to be read."""
    try:
        return " Z " in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


class Caller(threading.Thread):
    """Calls Envoy's method until the service is gone."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self.answered, self.end = 0, ""

    def run(self) -> None:
        message = RateLimitRequest(domain="edge", descriptors=[{"entries": [{"key": "user", "value": "u1"}]}])
        raw = message.SerializeToString()
        with grpc.insecure_channel(self._address) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(SHOULD_RATE_LIMIT.decode())
            while True:
                try:
                    assert call(raw, timeout=SECONDS)
                except grpc.RpcError as error:
                    self.end = str(error)
                    return
                self.answered += 1

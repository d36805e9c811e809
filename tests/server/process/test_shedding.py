"""A node that is asked too much says so, and still answers those who watch over it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from headgate.protos import RateLimitRequest, message_class
from headgate.server.admission import AdmissionController
from headgate.server.api.routes import BATCH
from headgate.server.rls import SHOULD_RATE_LIMIT
from headgate.testing import ManualClock
from headgate.web.apikey import digest
from tests.server.listening import Listening, listening
from tests.server.process.service import SECONDS, asked, service

HEALTH = b"/grpc.health.v1.Health/Check"


def test_beyond_the_ceiling_requests_are_refused_and_counted() -> None:
    with service("--max-checks-per-second", "1") as found:
        connection = HTTPConnection("127.0.0.1", found.started().http_port, timeout=SECONDS)
        try:
            answers = [asked(connection, "u1") for _ in range(50)]
            assert any(b'"allowed"' in answer for answer in answers)
            assert any(b"more requests per second than it accepts" in answer for answer in answers)
            connection.request("GET", "/healthz")
            response = connection.getresponse()
            assert response.status == 200
            response.read()
        finally:
            connection.close()
        shed = b'headgate_checks_total{api="check",outcome="shed"} '
        assert any(line.startswith(shed) and int(line.split()[-1]) for line in found.get("/metrics")[1].splitlines())


def called(channel: grpc.Channel, path: bytes, *metadata: tuple[str, str]) -> grpc.RpcError | None:
    """Make a call, and return how it failed."""
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path.decode())
    question = RateLimitRequest(domain="edge", descriptors=[{"entries": [{"key": "user", "value": "u1"}]}])
    message = question.SerializeToString() if path == SHOULD_RATE_LIMIT else b""
    try:
        call(message, timeout=SECONDS, metadata=metadata)
    except grpc.RpcError as error:
        return error
    return None


class Asker:
    """A client with connections of its own."""

    def __init__(self, served: Listening) -> None:
        self._http = HTTPConnection("127.0.0.1", served.http, timeout=SECONDS)
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{served.grpc}", options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self._channel.close()

    def over_http(self, count: int) -> bool:
        return self._posted(BATCH.decode(), {"requests": [{"principal": {"user": "u"}, "endpoint": "/a"}] * count})

    def as_json(self, count: int) -> bool:
        entries = {"entries": [{"key": "user", "value": "u"}]}
        return self._posted("/json", {"domain": "edge", "descriptors": [entries] * count})

    def over_grpc(self, count: int) -> bool:
        asked = {"identifier": "u", "dimension": "USER", "endpoint": "/a"}
        message = message_class("headgate.v1.CheckBatchRequest")(requests=[asked] * count)
        return self._called("/headgate.v1.RateLimiter/CheckRateLimitBatch", message)

    def for_envoy(self, count: int) -> bool:
        entries = {"entries": [{"key": "user", "value": "u"}]}
        return self._called(SHOULD_RATE_LIMIT.decode(), RateLimitRequest(domain="edge", descriptors=[entries] * count))

    def _posted(self, path: str, content: object) -> bool:
        self._http.request("POST", path, json.dumps(content))
        response = self._http.getresponse()
        response.read()
        assert response.status in {200, 503}
        assert (response.status == 503) == (response.headers["retry-after"] == "1")
        return response.status == 200

    def _called(self, path: str, message: Any) -> bool:
        make: Any = self._channel.unary_unary(path)
        call = make.future(message.SerializeToString(), timeout=SECONDS)
        if call.exception() is None:
            return True
        assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "grpc-retry-pushback-ms" in str(call.trailing_metadata())
        return False


@pytest.mark.parametrize("way", [Asker.over_http, Asker.as_json, Asker.over_grpc, Asker.for_envoy])
def test_many_questions_at_once_are_paid_for_by_who_asks_them(way: Callable[[Asker, int], bool]) -> None:
    """Time stands still: 200 may come at once. Who has asked 150 of them together is out, and nobody else is."""
    admission = AdmissionController(per_second=2000, clock=ManualClock())
    with listening(gate=admission) as served, Asker(served) as greedy, Asker(served) as modest:
        assert way(greedy, 150)
        assert not way(greedy, 150), "there are not so many left"
        assert [way(greedy, 1) for _ in range(3)] == [False] * 3, "it has had its share"
        assert [way(modest, 1) for _ in range(3)] == [True] * 3


@contextmanager
def channel_to(*options: str) -> Iterator[grpc.Channel]:
    """A channel to a service with these options."""
    with service(*options) as found, grpc.insecure_channel(f"127.0.0.1:{found.started().grpc_port}") as channel:
        yield channel


def test_over_grpc_refusals_say_when_to_try_again() -> None:
    with channel_to("--max-checks-per-second", "1") as channel:
        failures = [called(channel, SHOULD_RATE_LIMIT) for _ in range(50)]
        assert None in failures
        refused = next(failure for failure in failures if failure is not None)
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "grpc-retry-pushback-ms" in str(refused.trailing_metadata())
        assert called(channel, HEALTH) is None


def test_over_grpc_callers_prove_who_they_are(tmp_path: Path) -> None:
    keys = tmp_path / "callers"
    keys.write_text(f"edge {digest('key')}\n")
    with channel_to("--caller-keys", str(keys)) as channel:
        refused = called(channel, SHOULD_RATE_LIMIT)
        assert refused is not None
        assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
        assert called(channel, SHOULD_RATE_LIMIT, ("authorization", "Bearer key")) is None
        assert called(channel, SHOULD_RATE_LIMIT, ("x-api-key", "key")) is None
        assert called(channel, HEALTH) is None

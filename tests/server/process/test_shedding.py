"""An overloaded node refuses requests, but not health checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any, Self

import grpc
import pytest

from headgate.protos import RateLimitRequest, message_class
from headgate.server.admission import AdmissionController
from headgate.server.api.routes import BATCH
from headgate.server.rls import SHOULD_RATE_LIMIT
from headgate.testing import ManualClock
from tests.server.listening import Listening, listening
from tests.server.process.service import CHECK, SECONDS, service

HEALTH = b"/grpc.health.v1.Health/Check"


def called(channel: grpc.Channel, path: bytes, *metadata: tuple[str, str]) -> grpc.RpcError | None:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path.decode())
    question = RateLimitRequest(domain="edge", descriptors=[{"entries": [{"key": "user", "value": "u1"}]}])
    message = question.SerializeToString() if path == SHOULD_RATE_LIMIT else b""
    try:
        call(message, timeout=SECONDS, metadata=metadata)
    except grpc.RpcError as error:
        return error
    return None


class Asker:
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
        fields = {"identifier": "u", "dimension": "USER", "endpoint": "/a"}
        message = message_class("headgate.v1.CheckBatchRequest")(requests=[fields] * count)
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
def test_a_batch_is_charged_to_its_connection(way: Callable[[Asker, int], bool]) -> None:
    """On a manual clock, 200 are admitted at once. Only the connection that sent 150 of them is refused."""
    admission = AdmissionController(per_second=2000, clock=ManualClock())
    with listening(controller=admission) as served, Asker(served) as greedy, Asker(served) as modest:
        assert way(greedy, 150)
        assert not way(greedy, 150), "there are not so many left"
        assert [way(greedy, 1) for _ in range(3)] == [False] * 3, "it has had its share"
        assert [way(modest, 1) for _ in range(3)] == [True] * 3


def test_a_node_refuses_beyond_its_ceiling_with_a_time_to_retry_and_counts_it() -> None:
    with (
        service("--max-checks-per-second", "1") as found,
        grpc.insecure_channel(f"127.0.0.1:{found.started().grpc_port}") as channel,
    ):
        answers = [found.post(CHECK, {"principal": {"user": "u1"}})[1] for _ in range(20)]
        assert any(b'"allowed"' in answer for answer in answers)
        assert any(b"more requests per second than it accepts" in answer for answer in answers)
        failures = [called(channel, SHOULD_RATE_LIMIT) for _ in range(50)]
        refused = next(failure for failure in failures if failure is not None)
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "grpc-retry-pushback-ms" in str(refused.trailing_metadata())
        assert (called(channel, HEALTH), found.get("/healthz")[0]) == (None, 200)
        shed = b'headgate_checks_total{api="check",outcome="shed"} '
        assert any(line.startswith(shed) and int(line.split()[-1]) for line in found.get("/metrics")[1].splitlines())

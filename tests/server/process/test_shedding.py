"""A node that is asked too much says so, and still answers those who watch over it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import grpc

from headgate.server.rls import SHOULD_RATE_LIMIT
from headgate.server.rls.schema import RateLimitRequest
from headgate.web.apikey import digest
from tests.server.process.service import SECONDS, asked, service

HEALTH = b"/grpc.health.v1.Health/Check"


def test_beyond_the_ceiling_requests_are_refused_and_counted() -> None:
    with service("--max-checks-per-second", "20") as found:
        connection = HTTPConnection("127.0.0.1", found.started().http_port, timeout=SECONDS)
        try:
            answers = [asked(connection, "u1") for _ in range(50)]
            assert any(b'"allowed"' in answer for answer in answers)
            assert any(b"more often than it may be" in answer for answer in answers)
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


@contextmanager
def channel_to(*options: str) -> Iterator[grpc.Channel]:
    """A channel to a service with these options."""
    with service(*options) as found, grpc.insecure_channel(f"127.0.0.1:{found.started().grpc_port}") as channel:
        yield channel


def test_over_grpc_refusals_say_when_to_try_again() -> None:
    with channel_to("--max-checks-per-second", "20") as channel:
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

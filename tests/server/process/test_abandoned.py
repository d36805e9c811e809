"""A call that its caller abandons before the response takes nothing."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from struct import pack
from typing import Any

import grpc
import msgspec
import pytest

from headgate.protos import message_class
from headgate.server import authz
from headgate.server.rls import SHOULD_RATE_LIMIT
from tests.proxy import Proxy
from tests.server.authz.conftest import answered as authorized
from tests.server.authz.conftest import question
from tests.server.process.service import CHECK, SECONDS, Service, service
from tests.server.rls.messages import answered as limited
from tests.server.rls.messages import encoded
from tests.servers import RedisServer, until

RULES = """
version: 1
rules:
  - {id: per-user, dimension: user, limit: 5, window: 1h}
  - {id: per-address, dimension: ip, limit: 5, window: 1h}
  - {id: tried, dimension: user, limit: 5, window: 2h, shadow: true}
"""
TREES = "domain: trees\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 5}}]"
_CheckRequest = message_class("headgate.v1.CheckRequest")
_CheckResponse = message_class("headgate.v1.CheckResponse")


def remaining_for_envoy(raw: bytes) -> int:
    return int(limited(raw).statuses[0].limit_remaining)


CALLS: dict[str, tuple[str, bytes, bytes, Callable[[bytes], int]]] = {
    **{
        name: ("rls", SHOULD_RATE_LIMIT, encoded(domain, *descriptors), remaining_for_envoy)
        for name, domain, *descriptors in (
            ("rules", "edge", [("user", "rules")]),
            ("several", "edge", [("user", "several")], [("ip", "192.0.2.7")]),
            ("trees", "trees", [("user", "trees")]),
        )
    },
    "check": (
        "grpc_check",
        b"/headgate.v1.RateLimiter/CheckRateLimit",
        _CheckRequest(principal={"user": "check"}).SerializeToString(),
        lambda raw: int(_CheckResponse.FromString(raw).remaining),
    ),
    "authorization": (
        "ext_authz",
        authz.CHECK,
        question(client="192.0.2.9").SerializeToString(),
        lambda raw: int(authorized(raw).fields["x-ratelimit-remaining"]),
    ),
}


@pytest.fixture(scope="module")
def between(redis: RedisServer) -> Iterator[Proxy]:
    with closing(Proxy(redis.port)) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def found(between: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("abandoned")
    (folder / "rules.yaml").write_text(RULES)
    (folder / "trees").mkdir()
    (folder / "trees" / "trees.yaml").write_text(TREES)
    options = ("--rules", str(folder / "rules.yaml"), "--envoy-config", str(folder / "trees"))
    with service("--store", between.address("timeout=60"), *options) as running:
        yield running.started()


def counted(found: Service, name: str) -> int:
    lines = found.get("/metrics")[1].decode().splitlines()
    return sum(int(line.removeprefix(name)) for line in lines if line.startswith(name))


def cancelled(found: Service, api: str) -> int:
    return counted(found, f'headgate_checks_total{{api="{api}",outcome="cancelled"}} ')


@pytest.mark.parametrize(("name", "how"), [*((name, "cancel") for name in CALLS), ("rules", "deadline")])
def test_an_abandoned_grpc_call_takes_nothing(
    found: Service, redis: RedisServer, between: Proxy, name: str, how: str
) -> None:
    api, path, message, remaining = CALLS[name]
    before = cancelled(found, api)
    redis.ask("FLUSHALL")
    channel = grpc.insecure_channel(f"127.0.0.1:{found.grpc_port}")
    call: Any = channel.unary_unary(path.decode())
    between.open.clear()
    late = call.future(message, timeout=1 if how == "deadline" else SECONDS)
    until(lambda: redis.ask("DBSIZE"), "it is counted", SECONDS)
    {"cancel": late.cancel, "deadline": late.exception}[how]()
    with channel:  # the service has read that before what comes after it
        health: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert health(b"", timeout=SECONDS)
    between.open.set()
    until(lambda: cancelled(found, api) == before + 1, "it counts as cancelled", SECONDS)
    with grpc.insecure_channel(f"127.0.0.1:{found.grpc_port}") as other:
        again: Any = other.unary_unary(path.decode())
        assert remaining(again(message, timeout=SECONDS)) == 4


def test_over_http_a_connection_that_is_reset_takes_nothing(found: Service, redis: RedisServer, between: Proxy) -> None:
    before = cancelled(found, "check")
    redis.ask("FLUSHALL")
    body = msgspec.json.encode({"principal": {"user": "gone"}})
    between.open.clear()
    with socket.create_connection(("127.0.0.1", found.http_port), SECONDS) as client:
        client.sendall(
            b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (CHECK.encode(), len(body), body)
        )
        until(lambda: redis.ask("DBSIZE"), "it is counted", SECONDS)
        connections = counted(found, "headgate_connections ")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
    until(lambda: counted(found, "headgate_connections ") < connections, "the service has noticed", SECONDS)
    between.open.set()
    until(lambda: cancelled(found, "check") == before + 1, "it counts as cancelled", SECONDS)
    assert found.check("gone", "/")["remaining"] == 4

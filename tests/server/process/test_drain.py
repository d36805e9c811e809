"""SIGTERM under load: no request that was taken is left without an answer."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.server.process.service import Clients, service
from tests.servers import RedisServer, redis_server, until


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


def test_one_process_drains_without_a_failed_request() -> None:
    with service() as found:
        port = found.started().http_port
        with Clients(port, [f"u{number}" for number in range(8)]) as clients:
            clients.until_answered(20)
            found.signal(signal.SIGTERM)
            until(lambda: all(client.was_refused for client in clients.all), "all have seen the end", 60)
        assert clients.failures == []
        assert found.ended() == 0


def test_workers_drain_without_a_failed_request(redis: RedisServer) -> None:
    with service("--workers", "2", "--store", redis.address) as found:
        port = found.started().http_port
        with Clients(port, [f"w{number}" for number in range(8)]) as clients:
            clients.until_answered(20)
            found.signal(signal.SIGTERM)
            until(lambda: all(client.was_refused for client in clients.all), "all have seen the end", 60)
        assert clients.failures == []
        assert found.ended() == 0

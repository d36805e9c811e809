"""What is lost when a worker, or the store, is killed under load: no client hangs, and nothing is admitted twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.process.service import SECONDS, Clients, Service, service
from tests.servers import RedisServer, redis_server, until

LIMIT = 500
RULES = f"""
version: 1
rules:
  - {{id: whole, dimension: user, limit: {LIMIT}, window: 1d, algorithm: fixed_window}}
"""


@pytest.fixture
def rules(tmp_path: Path) -> str:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    return str(file)


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def found(redis: RedisServer, rules: str) -> Iterator[Service]:
    with service("--workers", "2", "--store", redis.address, "--rules", rules) as found:
        yield found.started()


def admitted(clients: Clients) -> int:
    return sum(answer["allowed"] for client in clients.all for answer in client.answers)


def test_a_worker_that_is_killed_is_replaced_and_admits_nothing_twice(found: Service) -> None:
    workers = found.workers()
    with Clients(found.http_port, ["everybody"] * 8) as clients:
        clients.until_answered(5)
        os.kill(min(workers), signal.SIGKILL)
        clients.until_answered(100)
        until(lambda: len(found.workers()) == 2 and found.workers() != workers, "another takes its place", SECONDS)
        clients.until_answered(20)
    lost = [client for client in clients.all if client.failures]
    assert len(lost) < len(clients.all) or len({*workers}) == 1, "some connections were the other worker's"
    assert all(len(client.failures) == 1 for client in lost), "a connection is lost once"
    assert admitted(clients) <= LIMIT
    assert not any(answer["degraded"] for client in clients.all for answer in client.answers)
    assert "died by SIGKILL: another takes its place" in found.complained
    found.signal(signal.SIGTERM)
    assert found.ended() == 0


def test_workers_end_when_their_supervisor_is_killed(found: Service) -> None:
    workers = found.workers()
    found.process.kill()
    until(lambda: not any(_lives(worker) for worker in workers), "they end", SECONDS)


def test_while_redis_is_away_everybody_is_answered_and_then_it_is_strict_again(
    found: Service, redis: RedisServer
) -> None:
    with Clients(found.http_port, [f"u{number}" for number in range(6)]) as clients:
        clients.until_answered(10)
        redis.stop()
        until(lambda: all(client.answers[-1]["degraded"] for client in clients.all), "all are degraded", SECONDS)
        clients.until_answered(20)
        redis.start()
        until(lambda: not any(client.answers[-1]["degraded"] for client in clients.all), "it is back", SECONDS)
    assert clients.failures == []
    for client in clients.all:
        count = sum(answer["allowed"] for answer in client.answers)
        assert count <= 3 * LIMIT + 2, "the store before, the share of each worker, and the store anew"


def test_while_redis_hangs_everybody_is_answered(redis: RedisServer, rules: str) -> None:
    with service("--store", f"redis://127.0.0.1:{redis.port}/0", "--rules", rules) as found:
        with Clients(found.started().http_port, [f"h{number}" for number in range(4)]) as clients:
            clients.until_answered(10)
            redis.send(signal.SIGSTOP)
            until(lambda: all(client.answers[-1]["degraded"] for client in clients.all), "all are degraded", SECONDS)
            clients.until_answered(20)
            redis.send(signal.SIGCONT)
            until(lambda: not any(client.answers[-1]["degraded"] for client in clients.all), "it is back", SECONDS)
        assert clients.failures == []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False

"""One Redis server for all tests of this folder; tests that disturb a server start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import RedisServer, redis_server


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server
        keys = server.command("--scan", "--pattern", "*").split()
        immortal = [key for key in keys if server.command("PTTL", key) == "-1"]
        assert immortal == [], "every key has a time to live after all tests"

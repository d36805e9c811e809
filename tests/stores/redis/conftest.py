"""One server, one cluster and one set of sentinels for all tests of this folder.

Tests that take a server away start their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headgate.stores import open_async_store, open_store
from headgate.stores.base import Store
from headgate.testing.blocking import Blocking
from tests.clusters import RedisCluster, redis_cluster
from tests.sentinels import RedisSentinels, redis_sentinels
from tests.servers import RedisServer, redis_server
from tests.stores.redis.script import Script

IMMORTAL = "every key has a time to live after all tests"


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server
        assert server.immortal() == [], IMMORTAL


@pytest.fixture(scope="module")
def script(server: RedisServer) -> Iterator[Script]:
    with Script(server) as script:
        yield script


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[RedisCluster]:
    with redis_cluster() as cluster:
        yield cluster
        assert [key for node in cluster.primaries for key in node.immortal()] == [], IMMORTAL


@pytest.fixture
def cluster(shared_cluster: RedisCluster) -> Iterator[RedisCluster]:
    """Three primaries and three replicas, without data; slots may be moved, and replicas promoted."""
    shared_cluster.flush()
    yield shared_cluster
    shared_cluster.settle()


@pytest.fixture(scope="session")
def sentinels() -> Iterator[RedisSentinels]:
    with redis_sentinels() as sentinels:
        yield sentinels
        assert sentinels.primary
        assert sentinels.primary.immortal() == [], IMMORTAL


@pytest.fixture(params=["sync", "async"])
def opened(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Store]]:
    stores: list[Store] = []

    def open_one(address: str) -> Store:
        asynchronous = request.param == "async"
        stores.append(Blocking(open_async_store(address)) if asynchronous else open_store(address))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()

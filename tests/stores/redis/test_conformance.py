"""The Redis stores keep the contract of a store: they decide as the pure core does, on real servers.

Every quota is tested on one topology, and random traces run on all. Behind Sentinel there is one server, and both
colours of a cluster share their routes, so traces are enough there.
"""

from __future__ import annotations

import pytest

from headgate.stores import open_async_store, open_store
from headgate.stores.base import Store
from headgate.testing import ManualClock
from headgate.testing.blocking import Blocking
from headgate.testing.conformance import FEW, LARGE, StoreConformance, StoreTraces
from tests.clusters import RedisCluster
from tests.sentinels import RedisSentinels
from tests.servers import RedisServer


class _Sync:
    address: str

    def make_store(self, clock: ManualClock) -> Store:
        return open_store(self.address, clock=clock)


class _Async:
    address: str

    def make_store(self, clock: ManualClock) -> Store:
        return Blocking(open_async_store(self.address, clock=clock))


class _OnRedis:
    address: str

    @pytest.fixture(autouse=True)
    def _the_server(self, server: RedisServer) -> None:
        server.ask("FLUSHALL")
        type(self).address = server.address


class _OnSentinel:
    address: str

    @pytest.fixture(autouse=True)
    def _the_server(self, sentinels: RedisSentinels) -> None:
        assert sentinels.primary
        sentinels.primary.ask("FLUSHALL")
        type(self).address = sentinels.address


class _OnCluster:
    address: str

    @pytest.fixture(autouse=True)
    def _the_cluster(self, cluster: RedisCluster) -> None:
        type(self).address = cluster.address


class TestRedis(_OnRedis, _Sync, StoreConformance):
    pass


class TestRedisTraces(_OnRedis, _Sync, StoreTraces):
    examples = 100


class TestAsyncRedis(_OnRedis, _Async, StoreConformance):
    quotas, large = FEW, LARGE[:1]


class TestAsyncRedisTraces(_OnRedis, _Async, StoreTraces):
    examples = 60


class TestSentinelTraces(_OnSentinel, _Sync, StoreTraces):
    examples = 30


class TestAsyncSentinelTraces(_OnSentinel, _Async, StoreTraces):
    examples = 30


class TestClusterTraces(_OnCluster, _Sync, StoreTraces):
    examples = 30


class TestAsyncCluster(_OnCluster, _Async, StoreConformance):
    quotas, large = FEW, LARGE[:1]


class TestAsyncClusterTraces(_OnCluster, _Async, StoreTraces):
    examples = 30

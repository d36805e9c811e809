"""The Redis stores keep the contract of a store: they decide as the pure core does, on a real server."""

from __future__ import annotations

import pytest

from headgate.stores import open_async_store, open_store
from headgate.stores.base import Store
from headgate.testing import ManualClock
from headgate.testing.blocking import Blocking
from headgate.testing.conformance import StoreConformance, StoreTraces
from tests.servers import RedisServer


class _OnRedis:
    server: RedisServer

    @pytest.fixture(autouse=True)
    def _the_server(self, server: RedisServer) -> None:
        type(self).server = server
        server.command("FLUSHALL")


class TestRedis(_OnRedis, StoreConformance):
    def make_store(self, clock: ManualClock) -> Store:
        return open_store(self.server.address, clock=clock)


class TestRedisTraces(_OnRedis, StoreTraces):
    examples = 100

    def make_store(self, clock: ManualClock) -> Store:
        return open_store(self.server.address, clock=clock)


class TestAsyncRedis(_OnRedis, StoreConformance):
    def make_store(self, clock: ManualClock) -> Store:
        return Blocking(open_async_store(self.server.address, clock=clock))


class TestAsyncRedisTraces(_OnRedis, StoreTraces):
    examples = 60

    def make_store(self, clock: ManualClock) -> Store:
        return Blocking(open_async_store(self.server.address, clock=clock))

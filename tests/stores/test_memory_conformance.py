"""The memory store keeps the contract of a store, for threads and for event loops."""

from __future__ import annotations

from headgate.stores.base import Store
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.testing import ManualClock
from headgate.testing.blocking import Blocking
from headgate.testing.conformance import FEW, LARGE, StoreConformance, StoreTraces


class TestMemory(StoreConformance):
    def make_store(self, clock: ManualClock) -> Store:
        return MemoryStore(clock=clock)


class TestMemoryTraces(StoreTraces):
    def make_store(self, clock: ManualClock) -> Store:
        return MemoryStore(clock=clock)


class TestAsyncMemory(StoreConformance):
    quotas, large = FEW, LARGE[:1]

    def make_store(self, clock: ManualClock) -> Store:
        return Blocking(AsyncMemoryStore(MemoryStore(clock=clock)))


class TestAsyncMemoryTraces(StoreTraces):
    examples = 30

    def make_store(self, clock: ManualClock) -> Store:
        return Blocking(AsyncMemoryStore(MemoryStore(clock=clock)))

"""What a limiter on a store that is away does, by the words of its user."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from headgate import AsyncLimiter, InvalidStore, Limiter, MemoryStore, StoreError
from headgate.stores import open_store
from headgate.stores.failover import AsyncFailoverStore, FailoverStore
from headgate.testing import ManualClock
from tests.servers import free_port, redis_server


@pytest.fixture
def nowhere() -> str:
    """The address of a server that is not there."""
    return f"redis://127.0.0.1:{free_port()}/0?timeout=20"


def asked(limiter: Limiter | AsyncLimiter, times: int) -> list[tuple[bool, str]]:
    async def ask() -> list[tuple[bool, str]]:
        assert isinstance(limiter, AsyncLimiter)
        decisions = [await limiter.check("ada") for _ in range(times)]
        await limiter.close()
        return [(decision.allowed, decision.degraded) for decision in decisions]

    if isinstance(limiter, AsyncLimiter):
        return asyncio.run(ask())
    decisions = [limiter.check("ada") for _ in range(times)]
    limiter.close()
    return [(decision.allowed, decision.degraded) for decision in decisions]


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
class TestALimiterWhoseStoreIsAway:
    def test_decides_by_itself_unless_told(self, kind: Any, nowhere: str, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "headgate.stores"):
            answers = asked(
                kind("6/hour", store=nowhere, nodes=1, clock=ManualClock()), 8
            )  # it is not time for a probe
        assert [allowed for allowed, _ in answers] == [True] * 6 + [False] * 2
        assert [reason for _, reason in answers] == ["storage_unavailable"] * 5 + ["circuit_open"] * 3
        assert "does not answer" in caplog.text

    def test_decides_with_its_share(self, kind: Any, nowhere: str) -> None:
        answers = asked(kind("6/hour", store=nowhere, nodes=3), 4)
        assert [allowed for allowed, _ in answers] == [True, True, False, False]

    def test_allows(self, kind: Any, nowhere: str) -> None:
        answers = asked(kind("2/hour", store=nowhere, on_store_failure="allow"), 4)
        assert all(allowed and reason for allowed, reason in answers)

    def test_denies(self, kind: Any, nowhere: str) -> None:
        answers = asked(kind("2/hour", store=nowhere, on_store_failure="deny"), 4)
        assert all(reason and not allowed for allowed, reason in answers)

    def test_raises(self, kind: Any, nowhere: str) -> None:
        with pytest.raises(StoreError):
            asked(kind("2/hour", store=nowhere, on_store_failure="raise"), 1)

    def test_is_not_ready(self, kind: Any, nowhere: str) -> None:
        limiter = kind("2/hour", store=nowhere)
        with pytest.raises(StoreError, match="cannot connect"):
            asyncio.run(limiter.ready()) if kind is AsyncLimiter else limiter.ready()

    def test_bad_words_are_refused(self, kind: Any, nowhere: str) -> None:
        with pytest.raises(InvalidStore, match="local, allow, deny, raise"):
            kind("1/s", store=nowhere, on_store_failure="panic")
        with pytest.raises(InvalidStore, match="nodes"):
            kind("1/s", nodes=2)
        with pytest.raises(InvalidStore, match="nodes"):
            kind("1/s", store=nowhere, nodes=0)

    def test_memory_needs_no_help(self, kind: Any) -> None:
        limiter = kind("1/s", store="memory")
        assert not isinstance(limiter._limits.store, FailoverStore | AsyncFailoverStore)


def test_a_store_object_is_used_as_it_is_unless_told() -> None:
    store = MemoryStore()
    assert Limiter("1/s", store=store)._limits.store is store
    assert isinstance(Limiter("1/s", store=store, on_store_failure="deny")._limits.store, FailoverStore)


def test_a_limiter_on_a_server_is_strict_and_says_so() -> None:
    with redis_server() as server:
        limiter = Limiter("2/hour", store=server.address)
        limiter.ready()
        assert asked(limiter, 3) == [(True, ""), (True, ""), (False, "")]
        bare = Limiter("2/hour", store=open_store(server.address))
        assert asked(bare, 1) == [(False, "")]

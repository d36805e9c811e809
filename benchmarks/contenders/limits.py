"""The package `limits`, in memory and on Redis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast

from limits import RateLimitItem, RateLimitItemPerSecond
from limits.aio.storage import RedisStorage as AsyncRedisStorage
from limits.aio.strategies import FixedWindowRateLimiter as AsyncFixedWindowRateLimiter
from limits.aio.strategies import MovingWindowRateLimiter as AsyncMovingWindowRateLimiter
from limits.aio.strategies import RateLimiter as AsyncRateLimiter
from limits.aio.strategies import SlidingWindowCounterRateLimiter as AsyncSlidingWindowCounterRateLimiter
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import (
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    RateLimiter,
    SlidingWindowCounterRateLimiter,
)

from benchmarks.contenders.base import AsyncCall, Blocking, Call, Concurrent, Subject, first
from benchmarks.in_memory.scenarios import Kind, Limit

_STRATEGIES: dict[Kind, tuple[type[RateLimiter], type[AsyncRateLimiter]]] = {
    Kind.FIXED_WINDOW: (FixedWindowRateLimiter, AsyncFixedWindowRateLimiter),
    Kind.SLIDING_WINDOW_LOG: (MovingWindowRateLimiter, AsyncMovingWindowRateLimiter),
    Kind.SLIDING_WINDOW_COUNTER: (SlidingWindowCounterRateLimiter, AsyncSlidingWindowCounterRateLimiter),
}
"""For callers that block, and for an event loop."""
Client = Literal["redispy", "coredis"]


class LimitsMemory:
    """`hit`, which returns a bool, with or without `get_window_stats`, which returns remaining and reset time.

    Several limits are checked in turn until one refuses; the statistics are then those of all of them.
    """

    name = "limits"

    def __init__(self, *, equal: bool) -> None:
        self.equal = equal
        self.work = "hit + get_window_stats" if equal else "hit"

    def takes_part(self, kind: Kind, _limits: int) -> bool:
        return kind in _STRATEGIES

    def open(self, kind: Kind, limits: tuple[Limit, ...]) -> Subject:
        storage = MemoryStorage()
        limiter = _STRATEGIES[kind][0](storage)
        items = _items(limits)
        bare: Call = partial(limiter.hit, items[0]) if len(items) == 1 else _each(limiter, items)

        def settle() -> None:
            storage.timer.join()

        if not self.equal:
            return Subject(bare, allowed=bool, take=bare, settle=settle)
        call = _one_with_stats(limiter, items[0]) if len(items) == 1 else _with_stats(limiter, items)
        return Subject(call, allowed=first, take=bare, settle=settle)


class LimitsRedis:
    """`hit`, which returns a bool, with or without `get_window_stats`, which returns remaining and reset time.

    Several limits are checked in turn until one refuses; the statistics are then those of all of them.

    Args:
        equal: with the statistics.
        client: the library underneath: ``redispy``, or ``coredis``, which needs an event loop and is the default there.
    """

    name = "limits"
    is_floor = False

    def __init__(self, *, equal: bool, client: Client = "redispy") -> None:
        self.equal, self._client = equal, client
        self.blocks = client == "redispy"
        calls = "hit + get_window_stats" if equal else "hit"
        self.work = calls if self.blocks else f"{calls}, over {client}"

    def takes_part(self, kind: Kind) -> bool:
        return kind in _STRATEGIES

    def open(self, server: str, kind: Kind, limits: tuple[Limit, ...]) -> Blocking:
        storage = RedisStorage(server)
        limiter = _STRATEGIES[kind][0](storage)
        items = _items(limits)
        close = storage.storage.close
        if self.equal:
            return Blocking(_with_stats(limiter, items), first, close)
        bare: Call = partial(limiter.hit, items[0]) if len(items) == 1 else _each(limiter, items)
        return Blocking(bare, bool, close)

    async def open_async(self, server: str, kind: Kind, limits: tuple[Limit, ...]) -> Concurrent:
        storage = AsyncRedisStorage(f"async+{server}", implementation=self._client)
        limiter = _STRATEGIES[kind][1](storage)
        items = _items(limits)
        client = cast("Any", storage.bridge).storage  # the client underneath, which only it can close

        async def close() -> None:
            if self.blocks:
                await client.aclose()
            else:
                client.connection_pool.disconnect()

        if self.equal:
            return Concurrent(_with_stats_async(limiter, items), first, close)
        bare: AsyncCall = partial(limiter.hit, items[0]) if len(items) == 1 else _each_async(limiter, items)
        return Concurrent(bare, bool, close)


def _items(limits: tuple[Limit, ...]) -> list[RateLimitItem]:
    return [RateLimitItemPerSecond(limit.units, limit.seconds) for limit in limits]


def _each(limiter: RateLimiter, items: Sequence[RateLimitItem]) -> Call:
    hit = limiter.hit

    def call(key: str) -> bool:
        for item in items:  # noqa: SIM110  a generator would make the peer slower
            if not hit(item, key):
                return False
        return True

    return call


def _each_async(limiter: AsyncRateLimiter, items: Sequence[RateLimitItem]) -> AsyncCall:
    async def call(key: str) -> bool:
        for item in items:
            if not await limiter.hit(item, key):
                return False
        return True

    return call


def _one_with_stats(limiter: RateLimiter, item: RateLimitItem) -> Call:
    hit, stats = limiter.hit, limiter.get_window_stats

    def call(key: str) -> tuple[bool, object]:
        return hit(item, key), stats(item, key)

    return call


def _with_stats(limiter: RateLimiter, items: Sequence[RateLimitItem]) -> Call:
    hit_each, stats = _each(limiter, items), limiter.get_window_stats

    def call(key: str) -> tuple[object, object]:
        return hit_each(key), [stats(item, key) for item in items]

    return call


def _with_stats_async(limiter: AsyncRateLimiter, items: Sequence[RateLimitItem]) -> AsyncCall:
    hit_each, stats = _each_async(limiter, items), limiter.get_window_stats

    async def call(key: str) -> tuple[object, object]:
        return await hit_each(key), [await stats(item, key) for item in items]

    return call

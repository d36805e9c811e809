"""The package `limits`, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from limits import RateLimitItem, RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import (
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    RateLimiter,
    SlidingWindowCounterRateLimiter,
)

from benchmarks.contenders.base import Call, Subject
from benchmarks.scenarios import Kind, Limit

_STRATEGIES: dict[Kind, type[RateLimiter]] = {
    Kind.FIXED_WINDOW: FixedWindowRateLimiter,
    Kind.SLIDING_WINDOW_LOG: MovingWindowRateLimiter,
    Kind.SLIDING_WINDOW_COUNTER: SlidingWindowCounterRateLimiter,
}


class LimitsMemory:
    """`hit`, which answers yes or no, with or without `get_window_stats`, which tells remaining and reset time.

    Several limits are asked in turn until one refuses; the statistics are then those of all of them.
    """

    name = "limits"

    def __init__(self, *, equal: bool) -> None:
        self.equal = equal
        self.work = "hit + get_window_stats" if equal else "hit"

    def takes_part(self, kind: Kind, _limits: int) -> bool:
        return kind in _STRATEGIES

    def open(self, kind: Kind, limits: tuple[Limit, ...]) -> Subject:
        storage = MemoryStorage()
        limiter = _STRATEGIES[kind](storage)
        items = [RateLimitItemPerSecond(limit.units, limit.seconds) for limit in limits]
        bare: Call = partial(limiter.hit, items[0]) if len(items) == 1 else _each(limiter, items)

        def settle() -> None:
            storage.timer.join()

        if not self.equal:
            return Subject(bare, allowed=bool, take=bare, settle=settle)
        call = _with_stats(limiter, items[0]) if len(items) == 1 else _each_with_stats(limiter, items)
        return Subject(call, allowed=_first, take=bare, settle=settle)


def _first(answer: tuple[bool, object]) -> bool:
    return answer[0]


def _each(limiter: RateLimiter, items: Sequence[RateLimitItem]) -> Call:
    hit = limiter.hit

    def call(key: str) -> bool:
        for item in items:  # noqa: SIM110  a generator would make the peer slower
            if not hit(item, key):
                return False
        return True

    return call


def _with_stats(limiter: RateLimiter, item: RateLimitItem) -> Call:
    hit, stats = limiter.hit, limiter.get_window_stats

    def call(key: str) -> tuple[bool, object]:
        return hit(item, key), stats(item, key)

    return call


def _each_with_stats(limiter: RateLimiter, items: Sequence[RateLimitItem]) -> Call:
    hit_each, stats = _each(limiter, items), limiter.get_window_stats

    def call(key: str) -> tuple[object, object]:
        return hit_each(key), [stats(item, key) for item in items]

    return call

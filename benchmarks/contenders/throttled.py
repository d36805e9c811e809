"""The package `throttled-py`, in memory and on Redis."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from throttled import MemoryStore, RateLimiterType, RateLimitResult, RedisStore, Throttled, per_duration
from throttled.asyncio import RedisStore as AsyncRedisStore
from throttled.asyncio import Throttled as AsyncThrottled

from benchmarks.contenders.base import Blocking, Call, Concurrent, Subject, first
from benchmarks.in_memory.scenarios import Kind, Limit

ROOM = 1_000_000
"""Keys the store has room for; its default of 1024 would evict."""

TYPES = {
    Kind.TOKEN_BUCKET: RateLimiterType.TOKEN_BUCKET,
    Kind.LEAKY_BUCKET: RateLimiterType.LEAKING_BUCKET,
    Kind.LEAKY_QUEUE: RateLimiterType.LEAKING_BUCKET,
    Kind.FIXED_WINDOW: RateLimiterType.FIXED_WINDOW,
    Kind.SLIDING_WINDOW_COUNTER: RateLimiterType.SLIDING_WINDOW,
    Kind.GCRA: RateLimiterType.GCRA,
}


class ThrottledMemory:
    """`Throttled.limit`; for equal work also the result's `state`: limit, remaining, reset and retry, made on demand.

    Several limits are checked in turn until one refuses; for equal work, the others are then peeked at.
    """

    name = "throttled-py"

    def __init__(self, *, equal: bool) -> None:
        self.equal = equal
        self.work = "limit + state" if equal else "limit, stop at the first refusal"

    def takes_part(self, kind: Kind, _: int) -> bool:
        return kind in TYPES

    def open(self, kind: Kind, limits: tuple[Limit, ...]) -> Subject:
        store = MemoryStore(options={"MAX_SIZE": ROOM})
        throttles = [Throttled(store=store, **_options(kind, limit)) for limit in limits]
        if len(throttles) == 1:
            limit = throttles[0].limit
            return Subject(_with_state(limit) if self.equal else limit, allowed=_passed, take=limit)
        bare = _until_refused(throttles)
        if self.equal:
            return Subject(_each(throttles), allowed=first, take=bare)
        return Subject(bare, allowed=bool, take=bare)


def _passed(result: RateLimitResult) -> bool:
    return not result.limited


def _with_state(limit: Callable[[str], RateLimitResult]) -> Call:
    def call(key: str) -> RateLimitResult:
        result = limit(key)
        _ = result.state
        return result

    return call


def _until_refused(throttles: list[Throttled]) -> Call:
    limits = [throttled.limit for throttled in throttles]

    def call(key: str) -> bool:
        for limit in limits:  # noqa: SIM110  a generator would make the peer slower
            if limit(key).limited:
                return False
        return True

    return call


def _each(throttles: list[Throttled]) -> Call:
    verbs = [(throttled.limit, throttled.peek) for throttled in throttles]

    def call(key: str) -> tuple[bool, object]:
        allowed = True
        answers: list[object] = []
        for limit, peek in verbs:
            if allowed:
                result = limit(key)
                allowed = not result.limited
                answers.append(result.state)
            else:
                answers.append(peek(key))
        return allowed, answers

    return call


class ThrottledRedis:
    """`Throttled.limit`, whose reply has the data of its `state`, made on demand.

    Several limits are checked in turn until one refuses.
    """

    name = "throttled-py"
    work = "limit"
    equal = True
    blocks = True
    is_floor = False

    def takes_part(self, kind: Kind) -> bool:
        return kind in TYPES

    def open(self, server: str, kind: Kind, limits: tuple[Limit, ...]) -> Blocking:
        store = RedisStore(server=server, options={"REUSE_CONNECTION": False})
        verbs = [Throttled(store=store, **_options(kind, limit)).limit for limit in limits]
        if len(verbs) == 1:
            return Blocking(verbs[0], _passed, _pool(store).disconnect)

        def each(key: str) -> RateLimitResult:
            for verb in verbs:
                result = verb(key)
                if result.limited:
                    break
            return result

        return Blocking(each, _passed, _pool(store).disconnect)

    async def open_async(self, server: str, kind: Kind, limits: tuple[Limit, ...]) -> Concurrent:
        store = AsyncRedisStore(server=server)
        verbs = [AsyncThrottled(store=store, **_options(kind, limit)).limit for limit in limits]
        if len(verbs) == 1:
            return Concurrent(verbs[0], _passed, _pool(store).disconnect)

        async def each(key: str) -> RateLimitResult:
            for verb in verbs:
                result = await verb(key)
                if result.limited:
                    break
            return result

        return Concurrent(each, _passed, _pool(store).disconnect)


def _options(kind: Kind, limit: Limit) -> dict[str, Any]:
    return {
        "using": TYPES[kind].value,
        "quota": per_duration(timedelta(seconds=limit.seconds), limit.units, burst=limit.units),
        "key_prefix": f"per-{limit.seconds}",  # else all limits of a key would count in one place
    }


def _pool(store: Any) -> Any:
    """Return the connections, which the library itself never closes."""
    return store._backend.get_client().connection_pool  # noqa: SLF001

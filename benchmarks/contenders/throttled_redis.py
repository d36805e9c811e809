"""The package `throttled-py`, on Redis."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from throttled import RateLimitResult, RedisStore, Throttled, per_duration
from throttled.asyncio import RedisStore as AsyncRedisStore
from throttled.asyncio import Throttled as AsyncThrottled

from benchmarks.contenders.redis_base import Blocking, Concurrent
from benchmarks.contenders.throttled_memory import TYPES
from benchmarks.scenarios import Kind, Limit


class ThrottledRedis:
    """`Throttled.limit`, whose reply has all that its `state` is made of on demand.

    Several limits are asked in turn until one refuses.
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


def _passed(result: RateLimitResult) -> bool:
    return not result.limited

"""The package `pyrate-limiter`, on Redis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from pyrate_limiter import (
    GCRA,
    AbstractBucket,
    BucketFactory,
    FixedWindow,
    Limiter,
    Rate,
    RateItem,
    RedisBucket,
    RedisStateStore,
    StateBucket,
    TokenBucket,
    WallClock,
)
from pyrate_limiter.buckets.redis_bucket import LuaScript
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from benchmarks.contenders.redis_base import AsyncCall, Blocking, Concurrent
from benchmarks.scenarios import Kind, Limit

_SUPPORTED = {Kind.TOKEN_BUCKET, Kind.FIXED_WINDOW, Kind.SLIDING_WINDOW_LOG, Kind.GCRA}
NewBucket = Callable[[str], AbstractBucket]


class PyrateRedis:
    """`Limiter.try_acquire`, which answers yes or no.

    Several limits are several rates of one bucket. In an event loop the answer of `try_acquire` is awaited, rather than
    `try_acquire_async`, which lets only one caller of a limiter ask at a time.
    """

    name = "pyrate-limiter"
    work = "try_acquire"
    equal = False
    blocks = True
    is_floor = False

    def takes_part(self, kind: Kind) -> bool:
        return kind in _SUPPORTED

    def open(self, server: str, kind: Kind, limits: tuple[Limit, ...]) -> Blocking:
        client = Redis.from_url(server)
        script = client.script_load(LuaScript.PUT_ITEM)
        limiter = Limiter(BucketPerName(_buckets(client, kind, _rates(limits), script)))
        return Blocking(partial(limiter.try_acquire, blocking=False), bool, client.close)

    async def open_async(self, server: str, kind: Kind, limits: tuple[Limit, ...]) -> Concurrent:
        client = AsyncRedis.from_url(server)
        script = await client.script_load(LuaScript.PUT_ITEM)
        limiter = Limiter(BucketPerName(_buckets(client, kind, _rates(limits), script)))
        ask = cast("AsyncCall", partial(limiter.try_acquire, blocking=False))  # the buckets' answers are awaitable
        return Concurrent(ask, bool, client.aclose)


class BucketPerName(BucketFactory):
    """The shortest factory that keeps names apart. No bucket is scheduled to leak."""

    def __init__(self, new: NewBucket) -> None:
        self._new = new
        self._buckets: dict[str, AbstractBucket] = {}
        self._clock = WallClock()

    def wrap_item(self, name: str, weight: int = 1) -> RateItem:
        return RateItem(name, self._clock.now(), weight=weight)

    def get(self, item: RateItem) -> AbstractBucket:
        bucket = self._buckets.get(item.name)
        if bucket is None:
            bucket = self._buckets[item.name] = self._new(item.name)
        return bucket


def _rates(limits: tuple[Limit, ...]) -> list[Rate]:
    return [Rate(limit.units, limit.seconds * 1000) for limit in limits]


def _buckets(client: Redis | AsyncRedis, kind: Kind, rates: list[Rate], script: str) -> NewBucket:
    if kind is Kind.TOKEN_BUCKET:
        return lambda name: StateBucket(rates, TokenBucket(), RedisStateStore(client, name))
    if kind is Kind.GCRA:
        return lambda name: StateBucket(rates, GCRA(), RedisStateStore(client, name))
    algorithm = FixedWindow() if kind is Kind.FIXED_WINDOW else None
    return lambda name: RedisBucket(rates, client, name, script, algorithm)

"""The package `pyrate-limiter`, in memory and on Redis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from pyrate_limiter import (
    GCRA,
    AbstractBucket,
    BucketFactory,
    FixedWindow,
    InMemoryBucket,
    Limiter,
    MonotonicClock,
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

from benchmarks.contenders.base import AsyncCall, Blocking, Call, Concurrent, Subject, first
from benchmarks.in_memory.scenarios import Kind, Limit

_SUPPORTED = {Kind.TOKEN_BUCKET, Kind.FIXED_WINDOW, Kind.SLIDING_WINDOW_LOG, Kind.GCRA}
NewBucket = Callable[[str], AbstractBucket]
"""Makes the bucket of a name."""


class PyrateMemory:
    """`Limiter.try_acquire`, which returns yes or no, with or without the other information of the bucket.

    The library counts all names of a bucket together and leaves it to a `BucketFactory` to find the bucket of a name.
    Several limits are several rates of one bucket.
    """

    name = "pyrate-limiter"

    def __init__(self, *, equal: bool) -> None:
        self.equal = equal
        self.work = "try_acquire + count + waiting" if equal else "try_acquire"

    def takes_part(self, kind: Kind, _limits: int) -> bool:
        return kind in _SUPPORTED

    def open(self, kind: Kind, limits: tuple[Limit, ...]) -> Subject:
        buckets = BucketPerName(_in_memory(kind, _rates(limits)), MonotonicClock())  # the clock that buckets have
        limiter = Limiter(buckets)
        bare: Call = partial(limiter.try_acquire, blocking=False)
        if not self.equal:
            return Subject(bare, allowed=bool, take=bare, close=limiter.close)
        return Subject(_with_state(limiter, buckets), allowed=first, take=bare, close=limiter.close)


def _with_state(limiter: Limiter, buckets: BucketPerName) -> Call:
    acquire, wrap, find = limiter.try_acquire, buckets.wrap_item, buckets.get

    def call(key: str) -> tuple[object, object, object]:
        allowed = acquire(key, blocking=False)
        item = wrap(key)
        bucket = find(item)
        return allowed, bucket.count(), bucket.waiting(item)

    return call


class PyrateRedis:
    """`Limiter.try_acquire`, which returns yes or no.

    Several limits are several rates of one bucket. In an event loop the answer of `try_acquire` is awaited, rather than
    `try_acquire_async`, which admits only one caller of a limiter at a time.
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
        limiter = Limiter(BucketPerName(_on_redis(client, kind, _rates(limits), script), WallClock()))
        return Blocking(partial(limiter.try_acquire, blocking=False), bool, client.close)

    async def open_async(self, server: str, kind: Kind, limits: tuple[Limit, ...]) -> Concurrent:
        client = AsyncRedis.from_url(server)
        script = await client.script_load(LuaScript.PUT_ITEM)
        limiter = Limiter(BucketPerName(_on_redis(client, kind, _rates(limits), script), WallClock()))
        call = cast("AsyncCall", partial(limiter.try_acquire, blocking=False))  # the buckets' results are awaitable
        return Concurrent(call, bool, client.aclose)


class BucketPerName(BucketFactory):
    """The shortest factory that keeps names apart. No bucket is scheduled to leak, which saves a thread."""

    def __init__(self, new: NewBucket, clock: MonotonicClock | WallClock) -> None:
        self._new, self._clock = new, clock
        self._buckets: dict[str, AbstractBucket] = {}

    def wrap_item(self, name: str, weight: int = 1) -> RateItem:
        return RateItem(name, self._clock.now(), weight=weight)

    def get(self, item: RateItem) -> AbstractBucket:
        bucket = self._buckets.get(item.name)
        if bucket is None:
            bucket = self._buckets[item.name] = self._new(item.name)
        return bucket


def _rates(limits: tuple[Limit, ...]) -> list[Rate]:
    return [Rate(limit.units, limit.seconds * 1000) for limit in limits]


def _in_memory(kind: Kind, rates: list[Rate]) -> NewBucket:
    if kind is Kind.TOKEN_BUCKET:
        return lambda _: StateBucket(rates, algorithm=TokenBucket())
    if kind is Kind.GCRA:
        return lambda _: StateBucket(rates, algorithm=GCRA())
    if kind is Kind.FIXED_WINDOW:
        return lambda _: InMemoryBucket(rates, algorithm=FixedWindow())
    return lambda _: InMemoryBucket(rates)


def _on_redis(client: Redis | AsyncRedis, kind: Kind, rates: list[Rate], script: str) -> NewBucket:
    if kind is Kind.TOKEN_BUCKET:
        return lambda name: StateBucket(rates, TokenBucket(), RedisStateStore(client, name))
    if kind is Kind.GCRA:
        return lambda name: StateBucket(rates, GCRA(), RedisStateStore(client, name))
    algorithm = FixedWindow() if kind is Kind.FIXED_WINDOW else None
    return lambda name: RedisBucket(rates, client, name, script, algorithm)

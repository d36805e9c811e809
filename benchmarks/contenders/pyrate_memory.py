"""The package `pyrate-limiter`, in memory."""

from __future__ import annotations

from functools import partial

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
    StateBucket,
    TokenBucket,
)

from benchmarks.contenders.base import Call, Subject
from benchmarks.scenarios import Kind, Limit

_SUPPORTED = {Kind.TOKEN_BUCKET, Kind.FIXED_WINDOW, Kind.SLIDING_WINDOW_LOG, Kind.GCRA}


class PyrateMemory:
    """`Limiter.try_acquire`, which answers yes or no, with or without what the bucket can tell besides.

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
        buckets = BucketPerName(kind, [Rate(limit.units, limit.seconds * 1000) for limit in limits])
        limiter = Limiter(buckets)
        bare: Call = partial(limiter.try_acquire, blocking=False)
        if not self.equal:
            return Subject(bare, allowed=bool, take=bare, close=limiter.close)
        return Subject(_with_state(limiter, buckets), allowed=_first, take=bare, close=limiter.close)


class BucketPerName(BucketFactory):
    """The shortest factory that keeps names apart. No bucket is scheduled to leak, which saves a thread."""

    def __init__(self, kind: Kind, rates: list[Rate]) -> None:
        self._kind, self._rates = kind, rates
        self._buckets: dict[str, AbstractBucket] = {}
        self._clock = MonotonicClock()  # the one that buckets have

    def wrap_item(self, name: str, weight: int = 1) -> RateItem:
        return RateItem(name, self._clock.now(), weight=weight)

    def get(self, item: RateItem) -> AbstractBucket:
        bucket = self._buckets.get(item.name)
        if bucket is None:
            bucket = self._buckets[item.name] = self._bucket()
        return bucket

    def _bucket(self) -> AbstractBucket:
        if self._kind is Kind.TOKEN_BUCKET:
            return StateBucket(self._rates, algorithm=TokenBucket())
        if self._kind is Kind.GCRA:
            return StateBucket(self._rates, algorithm=GCRA())
        if self._kind is Kind.FIXED_WINDOW:
            return InMemoryBucket(self._rates, algorithm=FixedWindow())
        return InMemoryBucket(self._rates)


def _first(answer: tuple[bool, object, object]) -> bool:
    return answer[0]


def _with_state(limiter: Limiter, buckets: BucketPerName) -> Call:
    acquire, wrap, find = limiter.try_acquire, buckets.wrap_item, buckets.get

    def call(key: str) -> tuple[object, object, object]:
        allowed = acquire(key, blocking=False)
        item = wrap(key)
        bucket = find(item)
        return allowed, bucket.count(), bucket.waiting(item)

    return call

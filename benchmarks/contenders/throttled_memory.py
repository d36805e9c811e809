"""The package `throttled-py`, in memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from throttled import MemoryStore, RateLimiterType, RateLimitResult, Throttled, per_duration

from benchmarks.contenders.base import Call, Subject
from benchmarks.scenarios import Kind, Limit

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
    """`Throttled.limit`; for equal work also the answer's `state`: limit, remaining, reset and retry, made on demand.

    Several limits are asked in turn until one refuses; for equal work the rest are then looked at with `peek`.
    """

    name = "throttled-py"

    def __init__(self, *, equal: bool) -> None:
        self.equal = equal
        self.work = "limit + state" if equal else "limit, stop at the first refusal"

    def takes_part(self, kind: Kind, _: int) -> bool:
        return kind in TYPES

    def open(self, kind: Kind, limits: tuple[Limit, ...]) -> Subject:
        store = MemoryStore(options={"MAX_SIZE": ROOM})
        throttles = [
            Throttled(
                using=TYPES[kind].value,
                quota=per_duration(timedelta(seconds=limit.seconds), limit.units, burst=limit.units),
                store=store,
                key_prefix=f"per-{limit.seconds}",  # else all limits of a key would count in one place
            )
            for limit in limits
        ]
        if len(throttles) == 1:
            limit = throttles[0].limit
            return Subject(_with_state(limit) if self.equal else limit, allowed=_passed, take=limit)
        bare = _until_refused(throttles)
        if self.equal:
            return Subject(_each(throttles), allowed=_first, take=bare)
        return Subject(bare, allowed=bool, take=bare)


def _passed(result: RateLimitResult) -> bool:
    return not result.limited


def _first(answer: tuple[bool, object]) -> bool:
    return answer[0]


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

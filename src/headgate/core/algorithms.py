"""The algorithms by name."""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol, Self

from headgate.core import (
    fixed_window,
    gcra,
    leaky_bucket,
    sliding_window_counter,
    sliding_window_log,
    token_bucket,
)
from headgate.core.decision import Decision
from headgate.core.errors import InvalidQuota
from headgate.core.numbers import fineness, short

if TYPE_CHECKING:
    from headgate.core.quota import Quota

Kept = tuple[Any, ...]
"""What a store keeps for a key: a tuple of integers (the log adds one list). The third of a bucket is the limit that it
was written under, which the store in memory reads."""
State = Kept | None
"""None means nothing used."""


class Transition(Protocol):
    """A limit: (state, cost, now) -> (state, decision).

    The cost is at most the capacity; 0 peeks, less refunds. With `since`, the refund is of a charge made at that time,
    which is not after `now`, as far as it certainly still counts: afterwards no more is left than without the charge.
    """

    def __call__(self, state: State, cost: int, now: int, since: int | None = None, /) -> tuple[State, Decision]: ...


class Algorithm(StrEnum):
    """How a limit counts."""

    TOKEN_BUCKET = "token_bucket"
    LEAKY_BUCKET = "leaky_bucket"
    FIXED_WINDOW = "fixed_window"
    SLIDING_WINDOW_LOG = "sliding_window_log"
    SLIDING_WINDOW_COUNTER = "sliding_window_counter"
    GCRA = "gcra"

    @classmethod
    def named(cls, name: str) -> Self:
        """Return the algorithm of that name; ``sliding_window`` is another name of the sliding window counter."""
        try:
            return cls("sliding_window_counter" if name == "sliding_window" else name)
        except ValueError:
            known = ", ".join(cls)
            raise InvalidQuota(f"unknown algorithm {short(name)}: use one of {known}") from None

    @property
    def code(self) -> str:
        """Two to four letters, for keys, and for the name of its step in Lua."""
        return _ALGORITHMS[self][0]

    @property
    def is_bucket(self) -> bool:
        """Whether it refills gradually, and so takes a burst."""
        return self in {Algorithm.TOKEN_BUCKET, Algorithm.LEAKY_BUCKET, Algorithm.GCRA}


_ALGORITHMS = {
    Algorithm.TOKEN_BUCKET: ("tb", token_bucket.transition, token_bucket.void_at),
    Algorithm.LEAKY_BUCKET: ("lb", leaky_bucket.transition, leaky_bucket.void_at),
    Algorithm.FIXED_WINDOW: ("fw", fixed_window.transition, fixed_window.void_at),
    Algorithm.SLIDING_WINDOW_LOG: ("swl", sliding_window_log.transition, sliding_window_log.void_at),
    Algorithm.SLIDING_WINDOW_COUNTER: ("swc", sliding_window_counter.transition, sliding_window_counter.void_at),
    Algorithm.GCRA: ("gcra", gcra.transition, gcra.void_at),
}
"""The code, the transition and the lifetime of each algorithm."""


def transition(quota: Quota) -> Transition:
    """Compile the pure function of `quota`."""
    return _ALGORITHMS[quota.algorithm][1](quota)


def grain_us(quota: Quota) -> int:
    """Return in how many microseconds `quota` counts time."""
    return sliding_window_counter.grains_of(quota)[0] if quota.algorithm is Algorithm.SLIDING_WINDOW_COUNTER else 1


def rounding(quota: Quota) -> Fraction:
    """Return by how much of a unit `quota` rounds up at most."""
    if not quota.algorithm.is_bucket or not quota.limit:
        return Fraction(0)
    fine = fineness(quota.limit, quota.window_us, quota.capacity)
    return Fraction(1, 1 << fine - 1) if fine else Fraction(0)


def void_at(state: State, quota: Quota) -> int:
    """Return the time in microseconds from which `state` means that nothing is used, so that it can be forgotten."""
    return 0 if state is None else _ALGORITHMS[quota.algorithm][2](state, quota)

"""A quota: the numbers of a limit, checked once so that every later computation is exact."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any, Self

from headgate.core import algorithms
from headgate.core.algorithms import Algorithm, Transition
from headgate.core.calendar import Calendar
from headgate.core.errors import InvalidQuota
from headgate.core.numbers import EXACT, short, whole

SECOND = 1_000_000
MAX_WINDOW_US = 3660 * 24 * 3600 * SECOND
ONE_OFF_WINDOW_US = 365 * 24 * 3600 * SECOND
MAX_REPLICAS = 100
MOST_REFILLS = 1000
"""The most times that a bucket may fill in a second: a faster rate is a typo."""
_RATE = re.compile(r"-?[0-9.]{1,40}(e[+-]?[0-9]{1,3}|/[0-9]{1,40})?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Quota:
    """`limit` units per `window_us` microseconds, counted by `algorithm`.

    ``Quota.parse("100/minute")`` is the usual way to make them; see `headgate.core.grammar` for the text form.
    ``Quota.per(250, Calendar("month", "Europe/Berlin"))`` counts by the calendar.

    Raises:
        InvalidQuota: a number is out of range, or the combination cannot be computed exactly in 53 bits.
    """

    limit: int
    """Units that come back (bucket algorithms) or may pass (window algorithms) per window. 0 only with a burst, in a
    token bucket: a one-off allowance, which comes back whole after the key was not used for one window."""
    window_us: int
    """Length of the window in microseconds; with a calendar, the nominal length of its longest period."""
    burst: int = 0
    """Units beyond `limit` that may pass at once; bucket algorithms only. The capacity is limit + burst: a negative
    burst makes it smaller than the limit, down to 1."""
    algorithm: Algorithm = Algorithm.TOKEN_BUCKET
    queue: bool = False
    """Leaky bucket only: admit with a `delay` (constant outflow) rather than as a meter."""
    refill_every_us: int = 1
    """Token bucket only: refill in steps at least this far apart, in microseconds."""
    warn_percent: int = 80
    """Usage above which a key is in the warning state."""
    calm_percent: int = 70
    """Usage below which a key leaves the warning state."""
    calendar: Calendar | None = None
    """Fixed window only: the windows are the periods of this calendar. `Quota.per` makes such a quota."""
    keeps_capacity: bool = field(default=False, repr=False, compare=False)
    """Whether the capacity was given rather than the burst, so that it stays when a tier or an override changes the
    limit. It decides nothing else."""
    replicas: int = field(default=0, repr=False)
    """How many replicas of a store must have the writes of a decision; otherwise the decision is degraded. Stores
    without replicas, such as that in memory, ignore it."""

    capacity: int = field(init=False, repr=False, compare=False)
    """limit + burst: the most that can pass at once."""
    shape: str = field(init=False, repr=False, compare=False)
    """What of the quota decides the meaning of its state, and so belongs in the key: algorithm and window."""
    grain_us: int = field(init=False, repr=False, compare=False)
    """Microseconds in which time is counted: 1, except in a sliding_window_counter of a long window or a large limit,
    where the overlap with the previous window is rounded up to this grain."""
    rounding: Fraction = field(init=False, repr=False, compare=False)
    """The most by which an admission is rounded up, in units: 0 where all is exact. Bucket algorithms whose fractions
    would leave 53 bits round up to a small fraction of one unit, at most 1/262144 for limits up to 10^9. The first
    admission after a change of the limit rounds up what it carries over as well, by less than one unit."""
    step: Transition = field(init=False, repr=False, compare=False)
    """The limit itself: the pure function (state, cost, now) -> (state, decision)."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        derive = object.__setattr__  # the instance is frozen; these are parts of its construction
        derive(self, "algorithm", Algorithm.named(self.algorithm))
        self._check_options()
        self._check_numbers()
        derive(self, "capacity", self.limit + self.burst)
        period = self.window_us if self.calendar is None else f"{self.calendar.unit}@{self.calendar.zone}"
        derive(self, "shape", f"{self.algorithm.code}:{period}")
        derive(self, "grain_us", algorithms.grain_us(self))
        derive(self, "rounding", algorithms.rounding(self))
        derive(self, "step", algorithms.transition(self))
        derive(self, "_hash", hash((self.shape, self.limit, self.burst, self.refill_every_us, self.warn_percent)))

    @classmethod
    def parse(cls, text: str) -> tuple[Self, ...]:
        """Read one or more quotas from text, such as ``"10/s burst 20; 5000/day gcra"``."""
        from headgate.core.grammar import parse  # noqa: PLC0415  the grammar builds quotas

        read = parse(text)
        try:
            return tuple(cls(**numbers) for numbers in read)
        except InvalidQuota as error:
            raise InvalidQuota(f"bad quota {text!r}: {error}") from None

    @classmethod
    def per(cls, limit: int, calendar: Calendar, *, warn_percent: int = 80, calm_percent: int = 70) -> Self:
        """`limit` units in each day, week, month or year: ``Quota.per(250, Calendar("month", "Europe/Berlin"))``."""
        return cls(
            limit,
            _calendar(calendar).window_us,
            algorithm=Algorithm.FIXED_WINDOW,
            warn_percent=warn_percent,
            calm_percent=calm_percent,
            calendar=calendar,
        )

    @classmethod
    def one_off(cls, capacity: int, *, keep_us: int = ONE_OFF_WINDOW_US) -> Self:
        """An allowance of `capacity` units that is not refilled.

        It is remembered until the key was not used for `keep_us` microseconds (default: 365 days).
        """
        whole("capacity", capacity, 1, EXACT, InvalidQuota)
        return cls(limit=0, window_us=keep_us, burst=capacity)

    @classmethod
    def from_bucket(
        cls,
        capacity: int,
        refill_rate: float | str | Fraction,
        *,
        min_refill_interval_ms: int = 0,
        algorithm: Algorithm = Algorithm.TOKEN_BUCKET,
        queue: bool = False,
    ) -> Self:
        """A bucket (token_bucket, leaky_bucket or gcra) by its size and its refill in units per second.

        Decimal numbers are taken as written: 0.1 means one token in ten seconds exactly. A number with
        too many digits for the longest window is rounded down, by less than 10^-8 of it.
        """
        whole("capacity", capacity, 1, EXACT, InvalidQuota)
        whole("min_refill_interval_ms", min_refill_interval_ms, 0, EXACT // 1000, InvalidQuota)
        rate, algorithm = _rate(refill_rate), Algorithm.named(algorithm)
        if not algorithm.is_bucket:
            right = "give limit and window, or use token_bucket, leaky_bucket or gcra"
            raise InvalidQuota(f"{algorithm} has no refill_rate: {right}", fields=("algorithm",))
        if min_refill_interval_ms and algorithm is not Algorithm.TOKEN_BUCKET:
            message = f"only token_bucket has a refill interval, not {algorithm}"
            raise InvalidQuota(message, fields=("min_refill_interval_ms",))
        if not rate:
            if algorithm is not Algorithm.TOKEN_BUCKET:
                message = f"only a token_bucket may have a refill_rate of 0, not {algorithm}"
                raise InvalidQuota(message, fields=("refill_rate",))
            return cls.one_off(capacity)
        if rate > MOST_REFILLS * capacity:
            message = f"a refill_rate of {refill_rate} fills a bucket of {capacity} within a millisecond"
            right = f"give at most {MOST_REFILLS} times the capacity, {MOST_REFILLS * capacity}"
            raise InvalidQuota(f"{message}: {right}", fields=("refill_rate",))
        try:
            rate = _countable(rate)
            return cls(
                limit=rate.numerator,
                window_us=rate.denominator * SECOND,
                burst=capacity - rate.numerator,
                algorithm=algorithm,
                queue=queue,
                refill_every_us=max(1, min_refill_interval_ms * 1000),
                keeps_capacity=True,
            )
        except InvalidQuota as error:
            message = f"a bucket of {capacity} with a refill_rate of {refill_rate}: {error}"
            fields = error.fields if "queue" in error.fields else ("refill_rate",)
            raise InvalidQuota(message, fields=fields) from None

    def __hash__(self) -> int:
        return self._hash  # computed once: quotas are the keys of caches

    def __str__(self) -> str:
        from headgate.core.grammar import render  # noqa: PLC0415  the grammar knows the text form

        return render(self)

    def __reduce__(self) -> tuple[Any, ...]:
        stated = (self.limit, self.window_us, self.burst, self.algorithm, self.queue, self.refill_every_us)
        options = (self.warn_percent, self.calm_percent, self.calendar, self.keeps_capacity, self.replicas)
        return type(self), (*stated, *options)

    def _check_numbers(self) -> None:
        one_off = self.limit == 0 and self.burst and self.algorithm is Algorithm.TOKEN_BUCKET
        whole("limit", self.limit, 0 if one_off else 1, EXACT, InvalidQuota)
        whole("window_us", self.window_us, 1, MAX_WINDOW_US, InvalidQuota)
        least = 1 - self.limit if self.algorithm.is_bucket and self.limit else 0
        whole("burst", self.burst, least, EXACT, InvalidQuota)
        whole("refill_every_us", self.refill_every_us, 1, MAX_WINDOW_US, InvalidQuota)
        whole("warn_percent", self.warn_percent, 1, 100, InvalidQuota)
        whole("calm_percent", self.calm_percent, 1, 100, InvalidQuota)
        whole("replicas", self.replicas, 0, MAX_REPLICAS, InvalidQuota)
        if self.calm_percent > self.warn_percent:
            raise InvalidQuota(
                f"calm_percent, {self.calm_percent}, must not be above warn_percent, {self.warn_percent}: give both",
                fields=("warn_percent", "calm_percent"),
            )

    def _check_options(self) -> None:
        if type(self.burst) is int and self.burst and not self.algorithm.is_bucket:
            raise InvalidQuota(
                f"{self.algorithm} has no burst: raise the limit, or use token_bucket, leaky_bucket or gcra",
                fields=("burst", "algorithm"),
            )
        if type(self.queue) is not bool:
            raise InvalidQuota(f"queue must be True or False, not {short(self.queue)}")
        if self.queue and self.algorithm is not Algorithm.LEAKY_BUCKET:
            raise InvalidQuota(f"only leaky_bucket can be a queue, not {self.algorithm}", fields=("queue",))
        if self.refill_every_us != 1 and self.algorithm is not Algorithm.TOKEN_BUCKET:
            message = f"only token_bucket has a refill interval, not {self.algorithm}"
            raise InvalidQuota(message, fields=("refill_every_us",))
        if self.calendar is None:
            return
        if self.algorithm is not Algorithm.FIXED_WINDOW:
            raise InvalidQuota(f"only fixed_window counts by a calendar, not {self.algorithm}", fields=("algorithm",))
        if self.window_us != _calendar(self.calendar).window_us:
            raise InvalidQuota(
                f"the windows are those of the calendar ({self.calendar}): leave window_us as it is, "
                f"{self.calendar.window_us}, or set calendar to None"
            )


def _calendar(value: object) -> Calendar:
    if isinstance(value, Calendar):
        return value
    right = "a Calendar, such as Calendar('month', 'Europe/Berlin'); other windows are text, such as '5/minute'"
    raise InvalidQuota(f"calendar must be {right}, not {short(value)}")


def _rate(value: object) -> Fraction:
    """Return a number of tokens per second as it is written; its length is bounded before it is computed."""
    shown = short(value)
    text = value if isinstance(value, str) else shown if isinstance(value, int | float) else str(value)
    try:
        rate = Fraction(text) if _RATE.fullmatch(text) else Fraction(-1)
    except (ValueError, ZeroDivisionError):
        rate = Fraction(-1)
    if rate >= 0:
        return rate
    right = "a number of tokens per second, such as 10, 0.5 or '1/3'"
    raise InvalidQuota(f"refill_rate must be {right}, not {shown}", fields=("refill_rate",))


def _countable(rate: Fraction) -> Fraction:
    """Return the highest rate up to `rate` whose window is not too long, preferably in few seconds.

    A fraction of few seconds that equals `rate` as a float is what was meant: 50/3 for 16.666666666666668.
    """
    longest = max(1, min(MAX_WINDOW_US // SECOND, (1 << 49) // ceil(rate)))
    if rate.denominator <= longest:
        return rate
    meant = rate.limit_denominator(min(1_000_000, longest))
    if float(meant) == float(rate):
        return meant
    for seconds in (min(1_000_000, longest), longest):
        near = _below(rate, seconds)
        if (rate - near) * 10**9 < rate:
            return near
    if near:
        return near
    raise InvalidQuota(f"less than one token in {MAX_WINDOW_US // 86_400_000_000} days")


def _below(rate: Fraction, largest: int) -> Fraction:
    """Return the highest fraction up to `rate` with a denominator up to `largest`."""
    near = rate.limit_denominator(largest)
    if near <= rate:
        return near
    over, under = near.numerator, near.denominator  # its neighbour below, among fractions with such denominators
    inverse = pow(over, -1, under) if under > 1 else 0
    denominator = largest - (largest - inverse) % under
    return Fraction((over * denominator - 1) // under, denominator)

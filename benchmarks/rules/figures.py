"""What was measured of rules, and what it is held against. Pure: figures in, ratios and verdicts out."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.timing import Figure

MOST_US = 5.0
"""To match a request takes at most so many microseconds."""
MOST_GROWTH = 1.2
"""With the most rules it takes at most so many times as long as with the fewest."""


@dataclass(frozen=True, slots=True)
class Row:
    """One case, measured with several numbers of rules."""

    case: str
    envoy: bool
    everywhere: bool
    """Whether every request is for another rule; otherwise all are for the same one."""
    times: dict[int, Figure]
    """By the number of rules, ascending: what matching takes."""
    floors: dict[int, Figure]
    """What a lookup in a dict of that size takes."""

    @property
    def fewest(self) -> int:
        return min(self.times)

    @property
    def most(self) -> int:
        return max(self.times)

    @property
    def slowest_us(self) -> float:
        """Microseconds, with the number of rules for which it takes longest."""
        return max(time.best for time in self.times.values()) / 1000

    @property
    def growth(self) -> float:
        """The time with the most rules over that with the fewest."""
        return self.times[self.most].over(self.times[self.fewest])

    @property
    def is_prompt(self) -> bool:
        return self.slowest_us <= MOST_US

    @property
    def is_flat(self) -> bool:
        return self.growth <= MOST_GROWTH

    def times_floor(self, rules: int) -> float:
        """Return the time over that of the lookup, with so many rules."""
        return self.times[rules].over(self.floors[rules])


@dataclass(frozen=True, slots=True)
class Decided:
    """What a whole decision in memory takes, with so many matching rules."""

    matching: int
    path: str
    floor: Figure
    """A clock read and a dict read-modify-write per limit."""
    limiter: Figure
    """`Limiter.check`: the same limits without rules."""
    plan: Figure
    """`Policy.plan`: matching alone."""
    engine: Figure
    """`Engine.check`."""

    @property
    def times_limiter(self) -> float:
        return self.engine.over(self.limiter)

    @property
    def times_floor(self) -> float:
        return self.engine.over(self.floor)


@dataclass(frozen=True, slots=True)
class Building:
    """How long a step of making rules takes."""

    step: str
    seconds: dict[int, float]
    """By the number of rules, ascending."""

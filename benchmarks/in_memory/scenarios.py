"""The scenarios in memory, and their aims. Pure: no clock, no library."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from benchmarks.timing import Figure

DAY, WEEK, MONTH = 86_400, 604_800, 30 * 86_400
MANY_KEYS = 10_000
MOST_TIMES_FLOOR = {1: 8.0, 3: 14.0}
"""A decision costs at most this many times the floor, by the number of limits."""
LEAST_TIMES_FASTER = 3.0
"""A decision is at least this many times faster than the fastest peer with the same algorithm."""


class Kind(StrEnum):
    """An algorithm, spelled as in the text of a quota."""

    TOKEN_BUCKET = "token_bucket"  # noqa: S105  no password
    LEAKY_BUCKET = "leaky_bucket"
    LEAKY_QUEUE = "leaky_bucket queue"
    FIXED_WINDOW = "fixed_window"
    SLIDING_WINDOW_LOG = "sliding_window_log"
    SLIDING_WINDOW_COUNTER = "sliding_window_counter"
    GCRA = "gcra"


class Path(StrEnum):
    """The result of every timed call."""

    ALLOW = "allow"
    DENY = "deny"


class Limit(NamedTuple):
    """`units` per `seconds`; the bucket algorithms get a capacity of `units` as well."""

    units: int
    seconds: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """One comparison. All contenders of a scenario get the same keys in the same order."""

    kind: Kind
    path: Path
    keys: int
    """How many keys are in play."""
    limits: tuple[Limit, ...]
    """All limits of a request; the first is the one that refuses on the deny path."""

    def __str__(self) -> str:
        keys = "one key" if self.keys == 1 else f"{self.keys} keys"
        limits = "one limit" if len(self.limits) == 1 else f"{len(self.limits)} limits"
        return f"{self.kind}, {self.path}, {keys}, {limits}"


# Long windows, so that none rolls over and not even one unit comes back while a scenario is measured: 86 s at 1000 a
# day. The rates fall with the length of the window, which pyrate-limiter insists on.
ALLOWING = (Limit(1000, DAY), Limit(5000, WEEK), Limit(15_000, MONTH))
REFUSING_ONE_KEY = (Limit(100, DAY), Limit(500, WEEK), Limit(1500, MONTH))
REFUSING_MANY_KEYS = (Limit(2, DAY), Limit(10, WEEK), Limit(30, MONTH))


def all_scenarios(many_keys: int = MANY_KEYS) -> list[Scenario]:
    """Return every combination, one limit first."""
    return [
        Scenario(kind, path, keys, _limits(path, keys)[:limits])
        for limits in (1, 3)
        for kind in Kind
        for path in Path
        for keys in (1, many_keys)
    ]


def _limits(path: Path, keys: int) -> tuple[Limit, ...]:
    if path is Path.ALLOW:
        return ALLOWING
    return REFUSING_ONE_KEY if keys == 1 else REFUSING_MANY_KEYS


@dataclass(frozen=True, slots=True)
class Peer:
    """The cost of a peer's decision."""

    name: str
    work: str
    equal: bool
    """Whether the result has as much information as ours."""
    figure: Figure


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario, measured."""

    scenario: Scenario
    floor: Figure
    ours: Figure
    peers: tuple[Peer, ...]

    @property
    def times_floor(self) -> float:
        """Our cost over the cost of the floor."""
        return self.ours.best / self.floor.best

    @property
    def fastest_equal(self) -> Peer | None:
        """The fastest peer whose result has as much information as ours."""
        return fastest([peer for peer in self.peers if peer.equal])

    @property
    def fastest_bare(self) -> Peer | None:
        """The fastest call of all peers, even with less information."""
        return fastest(list(self.peers))

    @property
    def times_faster(self) -> float | None:
        """The cost of equal work at the fastest peer over our cost; None without a peer."""
        return None if self.fastest_equal is None else self.fastest_equal.figure.best / self.ours.best

    @property
    def times_faster_than_bare(self) -> float | None:
        """The cost of the fastest peer call over our cost; None without a peer."""
        return None if self.fastest_bare is None else self.fastest_bare.figure.best / self.ours.best

    @property
    def most_times_floor(self) -> float:
        """The allowed multiple of the floor."""
        return MOST_TIMES_FLOOR[len(self.scenario.limits)]

    @property
    def within_floor(self) -> bool:
        return self.times_floor <= self.most_times_floor

    @property
    def beats_peers(self) -> bool | None:
        """Is our cost that much below the fastest peer's? None without a peer."""
        return None if self.times_faster is None else self.times_faster >= LEAST_TIMES_FASTER


def fastest(peers: list[Peer]) -> Peer | None:
    """Return the peer with the lowest cost, if there is any."""
    return min(peers, key=lambda peer: peer.figure.best, default=None)

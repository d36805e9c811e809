"""The cases on Redis, and their aims. Pure: without servers."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.in_memory.scenarios import DAY, MONTH, WEEK, Kind, Limit
from benchmarks.timing import Figure

CALLERS = 64
LEAST_TIMES_PEER = 5.0
"""64 callers get at least this many times the decisions per second of the best peer."""
LEAST_TIMES_INCR = 1.0
"""64 callers get more decisions than this many times a bare INCR's."""
MOST_TIMES_INCR_ALONE = 1.1
"""A decision takes one caller at most this many times a bare INCR's time."""


class Way(StrEnum):
    """The callers."""

    TOGETHER = "64 callers"
    ASYNC = "one async caller"
    BLOCKING = "one blocking caller"


class Traffic(StrEnum):
    """The keys, and the expected results."""

    MANY = "many keys"
    HOT = "one key"
    REFUSED = "one key, denied"


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison. All contenders of a case get the same keys in the same order."""

    kind: Kind
    way: Way
    traffic: Traffic
    limits: tuple[Limit, ...]
    keys: int
    """How many keys there are if they are many."""
    calls: int
    """Decisions per round."""
    cluster: bool = False
    other_floors: bool = False
    """Whether more floors are measured, for information."""

    def __str__(self) -> str:
        where = ", cluster" if self.cluster else ""
        limits = "" if len(self.limits) == 1 else f", {len(self.limits)} limits"
        return f"{self.name}, {self.way}{limits}{where}"

    @property
    def name(self) -> str:
        """The algorithm and the keys."""
        keys = f"{self.keys:,} keys" if self.traffic is Traffic.MANY else str(self.traffic)
        return f"{self.kind}, {keys}"

    @property
    def callers(self) -> int:
        return CALLERS if self.way is Way.TOGETHER else 1

    @property
    def allows(self) -> bool:
        """The expected result of every timed call."""
        return self.traffic is not Traffic.REFUSED

    def all_keys(self) -> list[str]:
        """Return the keys to prepare before timing, in an order that is not kind to caches."""
        if self.traffic is not Traffic.MANY:
            return ["user:1"] * self.limits[0].units if self.traffic is Traffic.REFUSED else ["user:prepared"]
        keys = [f"user:{number}" for number in range(self.keys)]
        random.Random(7).shuffle(keys)
        return keys

    def round(self, number: int) -> list[str]:
        """Return the keys of a round, one per call."""
        if self.traffic is Traffic.MANY:
            keys = self.all_keys()
            return [keys[(number * self.calls + each) % len(keys)] for each in range(self.calls)]
        return [f"user:round {number}" if self.traffic is Traffic.HOT else "user:1"] * self.calls


# Long windows: none ends, and no unit is restored, during a case.
ALLOWING = (Limit(10_000, DAY), Limit(50_000, WEEK), Limit(150_000, MONTH))
REFUSING = (Limit(2, DAY), Limit(10, WEEK), Limit(30, MONTH))
PROVING = (Limit(3, DAY), Limit(15, WEEK), Limit(45, MONTH))
"""Small enough to be used up, to verify that a contender limits."""

KINDS = (
    Kind.GCRA,
    Kind.TOKEN_BUCKET,
    Kind.FIXED_WINDOW,
    Kind.SLIDING_WINDOW_COUNTER,
    Kind.SLIDING_WINDOW_LOG,
)


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured."""

    keys: int
    calls: int
    """Decisions per round of 64 callers."""
    calls_alone: int
    """Decisions per round of one caller."""
    clients: int = 200
    """Clients whose memory is measured."""
    kinds: tuple[Kind, ...] = KINDS


def all_cases(amount: Amount) -> list[Case]:
    """Return all cases on one server."""
    return [*_together(amount), *_alone(amount), *_three_limits(amount)]


def cluster_cases(amount: Amount) -> list[Case]:
    """Return the cases in a cluster."""
    return [
        Case(kind, Way.TOGETHER, traffic, ALLOWING[:1], amount.keys, amount.calls, cluster=True)
        for kind, traffic in ((Kind.GCRA, Traffic.MANY), (Kind.FIXED_WINDOW, Traffic.MANY), (Kind.GCRA, Traffic.HOT))
    ]


def _together(amount: Amount) -> list[Case]:
    return [
        Case(
            kind,
            Way.TOGETHER,
            traffic,
            _limits(traffic)[:1],
            amount.keys,
            amount.calls,
            other_floors=(kind, traffic) == (Kind.GCRA, Traffic.MANY),
        )
        for kind in amount.kinds
        for traffic in Traffic
    ]


def _alone(amount: Amount) -> list[Case]:
    keys = max(1, amount.keys // 10)
    return [
        Case(kind, way, Traffic.MANY, ALLOWING[:1], keys, amount.calls_alone, other_floors=kind is Kind.GCRA)
        for way in (Way.BLOCKING, Way.ASYNC)
        for kind in amount.kinds
    ]


def _three_limits(amount: Amount) -> list[Case]:
    keys, calls = max(1, amount.keys // 10), max(1, amount.calls // 2)
    return [
        Case(kind, Way.TOGETHER, traffic, _limits(traffic), keys, calls)
        for kind in (Kind.GCRA, Kind.FIXED_WINDOW)
        for traffic in (Traffic.MANY, Traffic.REFUSED)
    ]


def _limits(traffic: Traffic) -> tuple[Limit, ...]:
    return REFUSING if traffic is Traffic.REFUSED else ALLOWING


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a contender's decision."""

    name: str
    work: str
    equal: bool
    """Whether the result has as much information as ours."""
    time: Figure
    """Nanoseconds on the clock: with many callers, of all together."""
    client_us: float
    """Microseconds of processor time of this process, over all rounds."""
    server_us: float
    """Microseconds of processor time of the server, over all rounds."""

    @property
    def label(self) -> str:
        return f"{self.name}: {self.work}"

    @property
    def per_second(self) -> float:
        return 1e9 / self.time.median


@dataclass(frozen=True, slots=True)
class Row:
    """One case, measured."""

    case: Case
    floor: Cost
    ours: Cost
    peers: tuple[Cost, ...] = ()
    other_floors: tuple[Cost, ...] = ()

    @property
    def costs(self) -> tuple[Cost, ...]:
        return (self.floor, *self.other_floors, self.ours, *self.peers)

    @property
    def best_peer(self) -> Cost | None:
        """The fastest call of all peers, even with less information."""
        return self._closest(self.peers)

    @property
    def best_equal_peer(self) -> Cost | None:
        """The fastest peer whose result has as much information as ours."""
        return self._closest(peer for peer in self.peers if peer.equal)

    @property
    def times_peer(self) -> float | None:
        """How many times faster than the best peer we are; None without a peer."""
        return _times(self.best_peer, self.ours)

    @property
    def times_equal_peer(self) -> float | None:
        return _times(self.best_equal_peer, self.ours)

    @property
    def times_floor(self) -> float:
        """How many decisions we make in the time of one INCR."""
        return self.floor.time.over(self.ours.time)

    @property
    def latency(self) -> float:
        """Our time over that of an INCR."""
        return self.ours.time.over(self.floor.time)

    @property
    def beats_peers(self) -> bool | None:
        return None if self.times_peer is None else self.times_peer >= LEAST_TIMES_PEER

    @property
    def beats_floor(self) -> bool:
        return self.times_floor > LEAST_TIMES_INCR

    @property
    def is_prompt(self) -> bool:
        return self.latency <= MOST_TIMES_INCR_ALONE

    def _closest(self, peers: Iterable[Cost]) -> Cost | None:
        return min(peers, key=lambda peer: peer.time.over(self.ours.time), default=None)


def _times(peer: Cost | None, ours: Cost) -> float | None:
    return None if peer is None else peer.time.over(ours.time)

"""What was measured on Redis, and what it is held against. Pure: figures in, ratios and verdicts out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.on_redis.cases import Case
from benchmarks.timing import Figure

LEAST_TIMES_PEER = 5.0
"""64 callers get at least this many times the decisions per second of the best peer."""
LEAST_TIMES_INCR = 1.0
"""64 callers get more decisions than this many times a bare INCR's."""
MOST_TIMES_INCR_ALONE = 1.1
"""A decision takes one caller at most this many times a bare INCR's time."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a decision costs a contender."""

    name: str
    work: str
    equal: bool
    """Whether the answer says as much as ours."""
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
        """The fastest peer call, however little it answers."""
        return self._closest(self.peers)

    @property
    def best_equal_peer(self) -> Cost | None:
        """The fastest peer whose answer says as much as ours."""
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

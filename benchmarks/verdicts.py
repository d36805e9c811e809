"""What the numbers are held against. Pure: figures in, ratios and verdicts out."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.scenarios import Scenario
from benchmarks.timing import Figure

MOST_TIMES_FLOOR = 7.0
"""A decision costs at most this many times the floor."""
LEAST_TIMES_FASTER = 5.0
"""A decision is at least this many times faster than the fastest peer with the same algorithm."""


@dataclass(frozen=True, slots=True)
class Peer:
    """What a decision costs a peer."""

    name: str
    work: str
    equal: bool
    """Whether the answer says as much as ours."""
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
        """The fastest peer whose answer says as much as ours."""
        return fastest([peer for peer in self.peers if peer.equal])

    @property
    def fastest_bare(self) -> Peer | None:
        """The fastest peer call of all, however little it answers."""
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
    def within_floor(self) -> bool:
        """Is our cost within the allowed multiple of the floor?"""
        return self.times_floor <= MOST_TIMES_FLOOR

    @property
    def beats_peers(self) -> bool | None:
        """Is our cost that much below the fastest peer's? None without a peer."""
        return None if self.times_faster is None else self.times_faster >= LEAST_TIMES_FASTER


def fastest(peers: list[Peer]) -> Peer | None:
    """Return the peer with the lowest cost, if there is any."""
    return min(peers, key=lambda peer: peer.figure.best, default=None)


def verdict(passed: bool | None) -> str:  # noqa: FBT001  the verdict on a bool
    """Say it in a word."""
    return "n/a" if passed is None else "PASS" if passed else "**FAIL**"

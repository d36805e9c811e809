"""Measures one scenario: open all contenders, verify the results, time them in turn, verify again."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.contenders import FLOOR, OURS, PEERS
from benchmarks.contenders.base import Contender, Subject
from benchmarks.in_memory.scenarios import Path, Peer, Row, Scenario
from benchmarks.timing import Pace, Round, alternate, time_calls

SLICES = 5
"""On many keys: each round calls the next fifth of them."""


class WrongPath(AssertionError):
    """A result of a contender is not that of the scenario, so its time would be meaningless."""


class Course:
    """The keys of a scenario: those that are called in each round, and those to verify with.

    On one key, a round of 1000 calls, the limit of the allow path, takes a fresh key from untouched to used up.
    """

    def __init__(self, scenario: Scenario, calls: int) -> None:
        self._scenario, self._calls = scenario, calls
        self._many = [f"user:{number}" for number in range(scenario.keys)]
        random.Random(7).shuffle(self._many)  # the order of creation would be kind to caches

    def prepare(self, subject: Subject) -> None:
        """Use up all there is, for the deny path."""
        if self._scenario.path is Path.DENY:
            for _ in range(self._scenario.limits[0].units):
                for key in self._many:
                    subject.take(key)

    def keys(self, number: int | str) -> Sequence[str]:
        """Return the keys of a round, a call each."""
        if self._scenario.keys > 1:
            size = max(1, len(self._many) // SLICES)
            first = int(number) % SLICES * size
            return self._many[first : first + size]
        key = f"user:round {number}" if self._scenario.path is Path.ALLOW else self._many[0]
        return [key] * self._calls

    def verify(self, contender: Contender, subject: Subject, when: str) -> None:
        """Raise WrongPath unless every result is that of the scenario."""
        if contender is FLOOR:
            return
        keys = self._many if self._scenario.keys > 1 else self.keys(when)
        expected = self._scenario.path is Path.ALLOW
        wrong = sum(subject.allowed(subject.call(key)) is not expected for key in keys)
        if wrong:
            raise WrongPath(
                f"{self._scenario}: {wrong} of {len(keys)} answers of {_label(contender)} "
                f"are not {self._scenario.path}, {when} timing"
            )


def measure(scenario: Scenario, pace: Pace) -> Row:
    """Return what one decision of `scenario` costs each contender.

    Raises:
        WrongPath: a contender answered otherwise than the scenario demands, twice in a row.
    """
    try:
        return _measure(scenario, pace)
    except WrongPath:
        return _measure(scenario, pace)  # a day, and with it a window, may have ended


def _measure(scenario: Scenario, pace: Pace) -> Row:
    limits = scenario.limits
    peers = [peer for peer in PEERS if peer.takes_part(scenario.kind, len(limits))]
    opened = [(contender, contender.open(scenario.kind, limits)) for contender in (FLOOR, OURS, *peers)]
    course = Course(scenario, pace.calls)
    try:
        for contender, subject in opened:
            course.prepare(subject)
            course.verify(contender, subject, "before")
            subject.settle()
        rounds = {_label(contender): _round(course, subject) for contender, subject in opened}
        figures = alternate(rounds, pace)
        for contender, subject in opened:
            course.verify(contender, subject, "after")
            subject.settle()
    finally:
        for _, subject in opened:
            subject.close()
    measured = tuple(Peer(peer.name, peer.work, peer.equal, figures[_label(peer)]) for peer in peers)
    return Row(scenario, figures[_label(FLOOR)], figures[_label(OURS)], measured)


def _label(contender: Contender) -> str:
    return f"{contender.name}: {contender.work}"


def _round(course: Course, subject: Subject) -> Round:
    def run(number: int) -> float:
        nanoseconds = time_calls(subject.call, course.keys(number))
        subject.settle()
        return nanoseconds

    return run

"""Measures what limiters cost applications: the processor time of a request, less that of the same without a limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from time import process_time_ns

from benchmarks.integrations.cases import CASES, MEMORY, OURS, PLAIN, Requests
from benchmarks.on_redis.servers import redis_server
from benchmarks.timing import Figure, Pace, Round, alternate

LIMIT = 1_000_000
"""Requests a minute that all are limited to: none is refused."""
MOST_SHARE = 1 / 3
"""Our largest cost, as a share of that of the framework's usual limiter."""


@dataclass(frozen=True, slots=True)
class Row:
    """One framework on one store; processor time of a whole request, in nanoseconds."""

    case: str
    store: str
    peer: str
    plain: Figure
    ours: Figure
    theirs: Figure

    @property
    def overhead_us(self) -> float:
        """Microseconds that our limit costs: the median of the differences within the rounds."""
        return _overhead(self.ours, self.plain)

    @property
    def peer_overhead_us(self) -> float:
        """Microseconds that theirs costs."""
        return _overhead(self.theirs, self.plain)

    @property
    def share(self) -> float:
        """What ours costs, over what theirs does."""
        return self.overhead_us / self.peer_overhead_us

    @property
    def passed(self) -> bool:
        return self.share <= MOST_SHARE


@dataclass(frozen=True, slots=True)
class IntegrationResults:
    """All that was measured of integrations."""

    rows: list[Row]


class NotLimited(AssertionError):
    """A limiter did not limit, so its time would be meaningless."""


def steps() -> int:
    """Return how many steps there are to report."""
    return 2 * len(CASES)


def run(pace: Pace, done: Callable[[str], None]) -> IntegrationResults:
    """Measure everything; `done` reports each step."""
    rows = []
    with redis_server() as server:
        for store in (MEMORY, server.address()):
            for case in CASES:
                server.forget()
                row = measure(case, store, pace)
                rows.append(row)
                done(f"{case}, {row.store}: {row.overhead_us:.1f} us, {row.peer} {row.peer_overhead_us:.1f} us")
    return IntegrationResults(rows)


def measure(case: str, store: str, pace: Pace) -> Row:
    """Measure one case. Raises NotLimited."""
    make, called, peer = CASES[case]
    rounds: dict[str, Round] = {}
    for name in (OURS, peer):
        with called(make(name, store, "3/day")) as requests:  # a minute could end in between
            verify(f"{case}, {name}", requests(4))
    with ExitStack() as stack:
        for name in (PLAIN, OURS, peer):
            rounds[name] = _round(stack.enter_context(called(make(name, store, f"{LIMIT}/minute"))), pace.calls)
        figures = alternate(rounds, pace)
    where = MEMORY if store == MEMORY else "Redis"
    return Row(case, where, peer, figures[PLAIN], figures[OURS], figures[peer])


def verify(what: str, statuses: Sequence[int]) -> None:
    """Raise NotLimited unless three of four requests were served, and the other refused."""
    if sorted(statuses) != [200, 200, 200, 429]:
        raise NotLimited(f"{what}: under a limit of 3, four requests were answered {statuses}")


def _round(requests: Requests, calls: int) -> Round:
    requests(10)  # the first requests create objects

    def timed(_: int) -> float:
        start = process_time_ns()
        statuses = requests(calls)
        spent = (process_time_ns() - start) / calls
        if set(statuses) != {200}:
            raise NotLimited(f"a request that is measured was refused: {set(statuses)}")
        return spent

    return timed


def _overhead(limited: Figure, plain: Figure) -> float:
    return median(ours - without for ours, without in zip(limited.rounds, plain.rounds, strict=True)) / 1000

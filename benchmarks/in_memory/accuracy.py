"""How often the sliding window counter, an estimate, decides otherwise than the exact sliding window log would.

Both decide the requests of a synthetic trace, which is the same in every run.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headgate import Algorithm, Quota
from headgate.core.algorithms import State

SECOND = 1_000_000
MINUTE = 60 * SECOND
LENGTH = 60 * MINUTE
"""An hour; one hour stands for a day in the diurnal class."""
LIMIT = 100
"""Requests per minute that each client may make; the patterns below are relative to it."""
START = 1_700_000_000 * SECOND
SEED = 20_170_607
ALL = "all"
_PLENTY = 1_000_000


class Request(NamedTuple):
    """One request of the trace."""

    at: int
    client: int
    pattern: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """A class of clients."""

    name: str
    what: str
    clients: int
    mean: float
    """Requests per minute and client, on average, as a multiple of the limit."""


PATTERNS = (
    Pattern("quiet", "Poisson, far below the limit", 400, 0.05),
    Pattern("steady", "Poisson, at half the limit", 30, 0.5),
    Pattern("at the limit", "Poisson, around the limit", 10, 1.0),
    Pattern("too fast", "Poisson, at three times the limit", 6, 3.0),
    Pattern("bursty", "bursts of 20 to 180 requests in 5 s, about once in two minutes", 30, 0.5),
    Pattern("diurnal", "Poisson, swinging between nothing and 1.4 times the limit", 20, 0.7),
)


def generate(scale: float = 1.0) -> list[Request]:
    """Return the trace in order of time; `scale` changes the number of clients."""
    source = random.Random(SEED)
    requests: list[Request] = []
    client = 0
    for pattern in PATTERNS:
        for _ in range(max(1, round(pattern.clients * scale))):
            requests += [Request(START + at, client, pattern.name) for at in _times(pattern, source)]
            client += 1
    requests.sort()
    return requests


def _times(pattern: Pattern, source: random.Random) -> Iterator[int]:
    if pattern.name == "bursty":
        return _bursts(source)
    per_us = pattern.mean * LIMIT / MINUTE
    if pattern.name == "diurnal":
        return _diurnal(per_us, source)
    return _poisson(per_us, source)


def _poisson(per_us: float, source: random.Random) -> Iterator[int]:
    at = source.expovariate(per_us)
    while at < LENGTH:
        yield int(at)
        at += source.expovariate(per_us)


def _diurnal(per_us: float, source: random.Random) -> Iterator[int]:
    phase = source.uniform(0, 2 * math.pi)
    for at in _poisson(2 * per_us, source):  # thinned to a rate that swings between 0 and twice the mean
        if source.random() < (1 + math.sin(phase + 2 * math.pi * at / LENGTH)) / 2:
            yield at


def _bursts(source: random.Random) -> Iterator[int]:
    at = source.expovariate(1 / (2 * MINUTE))
    while at < LENGTH:
        times = sorted(int(at + source.uniform(0, 5 * SECOND)) for _ in range(source.randint(20, 180)))
        yield from (time for time in times if time < LENGTH)
        at = times[-1] + source.expovariate(1 / (2 * MINUTE))


@dataclass(slots=True)
class Tally:
    """Counts over the requests of one class of clients."""

    requests: int = 0
    misjudged: int = 0
    """Counting every request, admitted or not: estimate and truth on different sides of the limit."""
    rate_errors: float = 0.0
    """Sum of |estimate - truth| / truth, truth being the number of requests in the trailing minute."""
    over_admitted: int = 0
    """Enforcing: admitted by the counter though the trailing minute already held `LIMIT` admissions."""
    refused_with_room: int = 0
    """Enforcing: refused by the counter though the trailing minute held fewer."""
    refused_with_room_for_one: int = 0
    """Those of them that had room for this one request only."""
    counter_refusals: int = 0
    log_refusals: int = 0
    """The refusals of the log alone for the same requests."""


@dataclass(slots=True)
class Client:
    """All states that are kept for one client during the replay."""

    counter: State = None
    admitted: State = None  # a log of the counter's admissions
    log: State = None
    every_counted: State = None
    every_logged: State = None


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The outcome of a replay."""

    tallies: dict[str, Tally]
    """By class of clients, and `ALL`."""
    clients: int
    worst_window: float
    """The most that the constructed worst case got through in a minute, as a multiple of the limit."""


class Replay:
    """Decides requests with the pure functions of both algorithms."""

    def __init__(self) -> None:
        self.counter = _quota(Algorithm.SLIDING_WINDOW_COUNTER, LIMIT)
        self._log = _quota(Algorithm.SLIDING_WINDOW_LOG, LIMIT)
        # Limits so high that they admit all: these only count.
        self._counting_counter = _quota(Algorithm.SLIDING_WINDOW_COUNTER, _PLENTY)
        self._counting_log = _quota(Algorithm.SLIDING_WINDOW_LOG, _PLENTY)

    def request(self, client: Client, now: int, tallies: Sequence[Tally]) -> None:
        """Decide one request and add it to the tallies."""
        misjudged, error = self._count(client, now)
        allowed, room = self._enforce(client, now)
        client.log, by_log = self._log.step(client.log, 1, now)
        for tally in tallies:
            tally.requests += 1
            tally.misjudged += misjudged
            tally.rate_errors += error
            tally.over_admitted += allowed and room <= 0
            tally.refused_with_room += not allowed and room > 0
            tally.refused_with_room_for_one += not allowed and room == 1
            tally.counter_refusals += not allowed
            tally.log_refusals += not by_log.allowed

    def _count(self, client: Client, now: int) -> tuple[bool, float]:
        """Count the request, admitted or not, as Cloudflare does.

        Returns whether the estimated rate is on the wrong side of the limit, and its relative error.
        """
        client.every_counted, estimated = self._counting_counter.step(client.every_counted, 1, now)
        client.every_logged, exact = self._counting_log.step(client.every_logged, 1, now)
        error = abs(estimated.used - exact.used) / exact.used
        return (estimated.used > LIMIT) is not (exact.used > LIMIT), error

    def _enforce(self, client: Client, now: int) -> tuple[bool, int]:
        """Let the counter decide; a refused request is not counted, as Headgate does.

        Returns whether it is admitted, and how many admissions there truly was room for.
        """
        client.counter, decision = self.counter.step(client.counter, 1, now)
        _, before = self._counting_log.step(client.admitted, 0, now)
        if decision.allowed:
            client.admitted, _ = self._counting_log.step(client.admitted, 1, now)
        return decision.allowed, LIMIT - before.used


def replay(trace: list[Request]) -> Accuracy:
    """Return how well the counter decides the requests of `trace`."""
    decide = Replay()
    clients: dict[int, Client] = defaultdict(Client)
    tallies = {name: Tally() for name in (*(pattern.name for pattern in PATTERNS), ALL)}
    for request in trace:
        decide.request(clients[request.client], request.at, (tallies[request.pattern], tallies[ALL]))
    return Accuracy(tallies, len(clients), worst_window(decide.counter))


def worst_window(quota: Quota) -> float:
    """Return the most that passes in any window's length under the worst traffic, as a multiple of the limit.

    The whole limit at the very end of one window, then a request every millisecond through the next.
    """
    boundary = 1000 * quota.window_us
    attempts = [boundary - 1] * quota.limit + list(range(boundary, boundary + quota.window_us, 1000))
    state: State = None
    passed: list[int] = []
    for now in attempts:
        state, decision = quota.step(state, 1, now)
        if decision.allowed:
            passed.append(now)
    most = first = 0
    for last, now in enumerate(passed):
        while passed[first] <= now - quota.window_us:
            first += 1
        most = max(most, last - first + 1)
    return most / quota.limit


def _quota(algorithm: Algorithm, limit: int) -> Quota:
    return Quota(limit, MINUTE, algorithm=algorithm)

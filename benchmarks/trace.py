"""A synthetic trace: who asks when. Seeded, so it is the same in every run.

Each class of clients has a share of the requests and a pattern. Times are microseconds from an arbitrary start.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

SECOND = 1_000_000
MINUTE = 60 * SECOND
LENGTH = 60 * MINUTE
"""An hour; one hour stands for a day in the diurnal class."""
LIMIT = 100
"""Requests per minute that each client may make; the patterns below are relative to it."""
START = 1_700_000_000 * SECOND
SEED = 20_170_607


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


def generate(scale: float = 1.0, seed: int = SEED) -> list[Request]:
    """Return the trace in order of time; `scale` changes the number of clients."""
    source = random.Random(seed)
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

"""How many processor cores so many requests per second take. Arithmetic on measured processor times, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

TARGET = 1_000_000
"""Requests per second."""
UTILISATION = 0.5
"""How busy the cores may be: the share of the highest rate at which latencies were measured."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What carries the target."""

    workers: int
    """Processes of `headgate serve`, each with a core."""
    primaries: int
    """Redis servers, each with a core; 0 without Redis."""


def fleet(cpu_us: float, store_us: float = 0.0, *, target: float = TARGET, utilisation: float = UTILISATION) -> Fleet:
    """Return the cores that the target takes, each no busier than `utilisation`.

    `cpu_us` and `store_us` are microseconds of processor time per request, of our processes and of Redis.
    """
    return Fleet(_cores(cpu_us, target, utilisation), _cores(store_us, target, utilisation))


def _cores(us: float, target: float, utilisation: float) -> int:
    return ceil(round(us * target / 1e6 / utilisation, 6))

"""How much memory a key takes."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from benchmarks.contenders import OURS, PEERS
from benchmarks.contenders.base import Contender
from benchmarks.scenarios import WEEK, Kind, Limit

KEYS = 100_000
LOG_KEYS_SHARE = 100
"""A filled log is measured on this many times fewer keys."""
LOG_ADMISSIONS = 100
LIMITS = (Limit(1000, WEEK),)
"""A unit comes back after 10 minutes: no state may expire while it is counted."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What is kept for each of `keys` keys after `admissions` admissions each."""

    kind: Kind
    contender: str
    keys: int
    admissions: int
    bytes_per_key: float
    """Bytes, with the text of the key and the share of all tables."""


def measure(keys: int = KEYS) -> Iterator[Footprint]:
    """Yield the footprint of every algorithm in every library that has it.

    Each is taken in a process of its own, as many at a time as there are cores: tracing is slow, and nothing is timed.
    """
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as processes:
        taken = [processes.submit(footprint, *task) for task in tasks(keys)]
        for each in taken:
            yield each.result()


def tasks(keys: int) -> list[tuple[Contender, Kind, int, int]]:
    """Return the arguments of all measurements: contender, algorithm, keys, admissions per key."""
    found: list[tuple[Contender, Kind, int, int]] = []
    for kind in Kind:
        if kind is Kind.LEAKY_QUEUE:  # keeps what the leaky bucket keeps
            continue
        contenders = [OURS, *(peer for peer in PEERS if peer.equal and peer.takes_part(kind, 1))]
        found += [(contender, kind, keys, 1) for contender in contenders]
        if kind is Kind.SLIDING_WINDOW_LOG:
            few = max(1, keys // LOG_KEYS_SHARE)
            found += [(contender, kind, few, LOG_ADMISSIONS) for contender in contenders]
    return found


def footprint(contender: Contender, kind: Kind, keys: int, admissions: int) -> Footprint:
    """Give each of `keys` keys `admissions` admissions and return what is allocated then."""
    gc.collect()
    tracemalloc.start()
    try:
        subject = contender.open(kind, LIMITS)
        before, _ = tracemalloc.get_traced_memory()
        take = subject.take
        for number in range(keys):
            key = f"user:{number:08}"  # made here, so that it counts where a library keeps it
            for _ in range(admissions):
                take(key)
        del key
        subject.settle()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        subject.close()
    finally:
        tracemalloc.stop()
    return Footprint(kind, contender.name, keys, admissions, (after - before) / keys)

"""What else is measured of the library: other verbs, a key's first check, an event loop, and the memory of a key."""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from time import perf_counter_ns

from benchmarks.contenders import FLOOR, OURS, PEERS
from benchmarks.contenders.base import Call, Contender
from benchmarks.contenders.headgate import quotas
from benchmarks.in_memory.scenarios import DAY, WEEK, Kind, Limit
from benchmarks.timing import Figure, Pace, Round, alternate, time_calls
from headgate import AsyncLimiter, Limiter

CALLS = 1000
LIMITS = (Limit(CALLS, DAY),)
ODD_LIMITS = (Limit(1009, DAY),)
"""A prime: a unit is not restored in a whole number of microseconds."""
NAMES = ("floor", "check", "check, odd limit", "check, new key", "AsyncLimiter.check", "peek", "refund")
MOST_TIMES_CHECK = 2.0
"""A peek takes at most this many times a check."""
KEYS = 100_000
LOG_KEYS_SHARE = 100
"""A filled log is measured on this many times fewer keys."""
LOG_ADMISSIONS = 100
KEPT_LIMITS = (Limit(1000, WEEK),)
"""A unit comes back after 10 minutes: no state may expire while it is counted."""


@dataclass(frozen=True, slots=True)
class Operations:
    """The costs of the operations with one algorithm, by name."""

    kind: Kind
    figures: dict[str, Figure]

    @property
    def peek_times_check(self) -> float:
        """The cost of a peek over that of a check."""
        return self.figures["peek"].over(self.figures["check"])

    @property
    def peeks_cheaply(self) -> bool:
        return self.peek_times_check <= MOST_TIMES_CHECK


def measure(kind: Kind, pace: Pace) -> Operations:
    """Return what each operation costs on one key under one limit of `CALLS` a day."""
    limiter, odd = Limiter(quotas(kind, LIMITS)), Limiter(quotas(kind, ODD_LIMITS))
    concurrent = AsyncLimiter(quotas(kind, LIMITS))
    with asyncio.Runner() as runner:
        rounds: tuple[Round, ...] = (
            _on_fresh_key("floor", FLOOR.open(kind, LIMITS).call),
            _on_fresh_key("check", limiter.check),
            _on_fresh_key("odd", odd.check),
            _on_new_keys("new", limiter.check),
            _in_event_loop("async", concurrent.check, runner),
            _on_used_key("peek", limiter, limiter.peek, used=CALLS // 2),
            _on_used_key("refund", limiter, limiter.refund, used=CALLS),
        )
        return Operations(kind, alternate(dict(zip(NAMES, rounds, strict=True)), pace))


def _on_fresh_key(name: str, call: Call) -> Round:
    return lambda number: time_calls(call, [f"{name} {number}"] * CALLS)


def _on_new_keys(name: str, call: Call) -> Round:
    return lambda number: time_calls(call, [f"{name} {number} {each}" for each in range(CALLS)])


def _on_used_key(name: str, limiter: Limiter, call: Call, used: int) -> Round:
    def run(number: int) -> float:
        key = f"{name} {number}"
        for _ in range(used):
            limiter.check(key)
        return time_calls(call, [key] * CALLS)

    return run


def _in_event_loop(name: str, check: Callable[[str], Awaitable[object]], runner: asyncio.Runner) -> Round:
    async def timed(keys: Sequence[str]) -> float:
        start = perf_counter_ns()
        for key in keys:
            await check(key)
        return (perf_counter_ns() - start) / len(keys)

    return lambda number: runner.run(timed([f"{name} {number}"] * CALLS))


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory for each of `keys` keys after `admissions` admissions."""

    kind: Kind
    contender: str
    keys: int
    admissions: int
    bytes_per_key: float
    """Bytes, with the text of the key and the share of all tables."""


def footprints(keys: int = KEYS) -> Iterator[Footprint]:
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
        if kind is Kind.LEAKY_QUEUE:  # has the state of the leaky bucket
            continue
        contenders = [OURS, *(peer for peer in PEERS if peer.equal and peer.takes_part(kind, 1))]
        found += [(contender, kind, keys, 1) for contender in contenders]
        if kind is Kind.SLIDING_WINDOW_LOG:
            few = max(1, keys // LOG_KEYS_SHARE)
            found += [(contender, kind, few, LOG_ADMISSIONS) for contender in contenders]
    return found


def footprint(contender: Contender, kind: Kind, keys: int, admissions: int) -> Footprint:
    """Admit `admissions` requests for each of `keys` keys, and return the allocated memory."""
    gc.collect()
    tracemalloc.start()
    try:
        subject = contender.open(kind, KEPT_LIMITS)
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

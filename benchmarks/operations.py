"""What else is asked of Headgate: peek, refund, a key's first check, an odd limit, and the check in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

from benchmarks.contenders import FLOOR
from benchmarks.contenders.base import Call
from benchmarks.contenders.headgate_memory import quotas
from benchmarks.scenarios import DAY, Kind, Limit
from benchmarks.timing import Figure, Pace, Round, alternate, time_calls
from headgate import AsyncLimiter, Limiter

CALLS = 1000
LIMITS = (Limit(CALLS, DAY),)
ODD_LIMITS = (Limit(1009, DAY),)
"""A prime: a unit takes no whole number of microseconds to come back."""
NAMES = ("floor", "check", "check, odd limit", "check, new key", "AsyncLimiter.check", "peek", "refund")


@dataclass(frozen=True, slots=True)
class Operations:
    """What the operations cost with one algorithm, by name."""

    kind: Kind
    figures: dict[str, Figure]


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

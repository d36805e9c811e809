"""Every row of the table of bad input in docs/concepts.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headgate import (
    AsyncLimiter,
    CostTooLarge,
    HeadgateError,
    InvalidCost,
    InvalidKey,
    InvalidQuota,
    InvalidStore,
    Limiter,
    LimitExceeded,
    MemoryStore,
    UsageError,
)
from headgate.testing import ManualClock

PAGE = Path(__file__).parents[2] / "docs" / "concepts.md"
LIMITER: Any = Limiter("10/hour")
TAKING = [LIMITER.check, LIMITER.peek, partial(LIMITER.acquire, timeout=0)]
VERBS = [*TAKING, LIMITER.refund]


def quotas(*wrong: Any) -> list[Callable[[], object]]:
    return [partial(Limiter, text) for text in wrong]


def keys(*wrong: Any) -> list[Callable[[], object]]:
    return [partial(verb, key) for key in wrong for verb in [*VERBS, LIMITER.reset]]


def costs(*wrong: Any, verbs: Sequence[Callable[..., object]] = VERBS) -> list[Callable[[], object]]:
    return [partial(verb, "ada", cost) for cost in wrong for verb in verbs]


def stores(*wrong: Any) -> list[Callable[[], object]]:
    return [partial(Limiter, "1/s", store=store) for store in wrong]


async def coroutine() -> None:
    """A coroutine function, to be guarded."""


def guarded() -> None:
    limiter = Limiter("1/hour")
    for _ in range(2):
        with limiter.guard("ada"):
            pass


ERRORS: dict[str, tuple[type[HeadgateError], list[Callable[[], object]]]] = {
    "quota text that cannot be read": (InvalidQuota, quotas("5/fortnight", "-1/s", "1.5/s", "", "ten/s", "10/s;", 7)),
    "a limit or window of zero": (InvalidQuota, quotas("0/s", "10/0s", "10/4000d", f"{1 << 60}/s")),
    "a month or a year": (InvalidQuota, quotas("10/month", "10/year")),
    "a burst in a window algorithm": (
        InvalidQuota,
        quotas("10/s fixed_window burst 5", "1/s sliding_window_log burst 5"),
    ),
    "a queue that is not a leaky bucket": (InvalidQuota, quotas("10/s queue", "10/s gcra queue")),
    "a capacity that takes more than 71 years": (InvalidQuota, quotas("1/day burst 100000", "1/60d gcra capacity 500")),
    "two quotas of the same": (InvalidQuota, quotas("10/s; 20/s", ["10/s gcra", "20/s gcra"])),
    "no quota": (InvalidQuota, quotas([])),
    "a key that is not text": (InvalidKey, keys(None, 42, b"ada", ["ada"], "", "x" * 65_537)),
    "a key with a lone surrogate": (InvalidKey, keys("\ud800")),
    "a limiter's name": (InvalidKey, [partial(Limiter, "1/s", name=name) for name in ("", "a b", "a|b", "x" * 65)]),
    "a cost that is not a whole number": (InvalidCost, costs(1.5, 1.0, "1", True, None, math.nan)),
    "a cost below 1": (InvalidCost, [*costs(-1, 100_001), lambda: LIMITER.peek("ada", 0)]),
    "a cost above the capacity": (CostTooLarge, costs(11, verbs=TAKING)),
    "a refund of a decision": (UsageError, [lambda: LIMITER.refund("ada", Limiter("1/s; 5/h").check("ada"))]),
    "a store that does not exist": (InvalidStore, stores("postgres://localhost", "", "disk", None)),
    "an unknown or wrong option": (InvalidStore, stores("memory:?size=1", "memory:?max_keys=0", "memory:?max_keys=x")),
    "a clock together with a store object": (
        InvalidStore,
        [lambda: Limiter("1/s", store=MemoryStore(), clock=ManualClock())],
    ),
    "a timeout that is negative": (
        UsageError,
        [partial(LIMITER.acquire, "ada", timeout=timeout) for timeout in (-1, math.nan, math.inf, "1")],
    ),
    "a function as the key": (UsageError, [lambda: LIMITER.guard(str).__enter__()]),
    "a coroutine function": (
        UsageError,
        [lambda: LIMITER.guard("ada")(coroutine), lambda: AsyncLimiter("1/s").guard("ada")(guarded)],  # type: ignore[arg-type]
    ),
    "too many requests in `guard`": (LimitExceeded, [guarded]),
}


def refused() -> bool:
    limiter = Limiter("1/hour")
    limiter.check("ada")
    return not (limiter.check("ada") or limiter.peek("ada") or limiter.acquire("ada", timeout=0))


DECISIONS: dict[str, Callable[[], bool]] = {
    "a cost of 0": lambda: Limiter("5/hour").check("ada", 0).remaining == 5,
    "a refund of more": lambda: Limiter("5/hour").refund("ada", 6).remaining == 5,
    "too many requests in `check`": refused,
}


def rows() -> list[list[str]]:
    table = PAGE.read_text().partition("| input | outcome |\n|---|---|\n")[2]
    return [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_a_row_of_the_table(row: list[str]) -> None:
    found = [(error, calls) for start, (error, calls) in ERRORS.items() if row[0].startswith(start)]
    for error, calls in found:
        assert row[1].startswith(f"`{error.__name__}`")
        for call in calls:
            with pytest.raises(error) as caught:
                call()
            assert type(caught.value) is error
            assert isinstance(caught.value, UsageError | ValueError) is (error is not LimitExceeded)
    decided = [decide for start, decide in DECISIONS.items() if row[0].startswith(start)]
    for decide in decided:
        assert row[1].startswith("a decision")
        assert decide()
    assert len(found) + len(decided) == 1

"""Checks in memory, written out for a number of limits: the hot path of `headgate.stores.memory`.

The lock of that store keeps out other threads, but not code that runs in the middle of a call on the same thread, a
signal handler or a ``__del__``. It runs where a function is called or returns and where a loop begins again, nowhere
else. So the states of several limits must be replaced without a loop and without a call, by a line for each of them.
The lines are made here, once for each number of limits. (With a loop, and with states that are replaced by functions in
C, three limits take 1.7 times as long.)

Both functions read all states, decide, and then make sure that what they read is still there and replace it. Where a
limit has no state yet, or something has come in between, the store decides by a loop, or they decide again.
"""

from __future__ import annotations

from functools import lru_cache
from textwrap import indent
from types import CodeType
from typing import Any

from headgate.core.plan import Family

MOST_WRITTEN = 32
"""The most limits whose check is written out: Python nests blocks a hundred deep, and long plans are rare."""

_BOUND = """
def check(key: str, cost: int = 1) -> Decision:
    if cost is not one:
        if type(cost) is int and cost == 0:
            return peek(key)
        cost = checked_cost(cost)
    for _ in locked:
        try:
            now = time_ns() // 1000 if clock is None else clock()
            if now >= store._next_due:
                store._sweep(now)
{body}
        except KeyError:  # a new key, or one that must be looked for elsewhere
            return first(key, cost, now)
        except TypeError:
            checked_principal(key)  # an unhashable key
            raise
        finally:
            release()
    raise AssertionError("the lock was not acquired")
"""
"""Checks the limits of a family: the states of each limit are at hand as t0, t1 ..., its step as s0, s1 ..."""

_PLAN = """
def check(store, plan, cost, now):
    tables = store._tables
    {limits} = plan
    try:
{body}
    except KeyError:  # a new key, or one that must be looked for elsewhere
        return first(store, plan, cost, now)
"""
"""Checks the limits of any plan, in a store whose lock is held."""


def bound_check(family: Family, names: dict[str, Any]) -> Any:
    """Return the function ``check(key, cost=1)`` of a family; `names` has all that it refers to."""
    queues = any(quota.queue for quota in family.quotas)
    exec(_compiled_bound(len(family.quotas), queues=queues), names)  # noqa: S102  our own text
    check = names["check"]
    check.__qualname__ = "MemoryStore.bind.<locals>.check"  # as any function that another one makes
    return check


class PlanChecks(dict[int, Any]):
    """The functions ``check(store, plan, cost, now)``, by the number of limits; made when they are needed.

    Args:
        first: does the same for limits that have no state yet, and for plans that are not written out.
        names: all else that they refer to.
    """

    def __init__(self, first: Any, **names: Any) -> None:
        self._first, self._names = first, names

    def __missing__(self, limits: int) -> Any:
        if not 0 < limits <= MOST_WRITTEN:
            return self._first
        names = {**self._names, "first": self._first}
        exec(_compiled_plan(limits), names)  # noqa: S102  our own text
        self[limits] = names["check"]
        return self[limits]


@lru_cache(maxsize=64)
def _compiled_bound(limits: int, *, queues: bool) -> CodeType:
    places, steps = [f"t{i}[key]" for i in range(limits)], [f"s{i}" for i in range(limits)]
    read = [f"x{i} = {place}" for i, place in enumerate(places)]
    body = "\n".join([*read, *_decided(places, steps, again="continue", queues=queues)])
    return compile(_BOUND.format(body=indent(body, " " * 12)), __name__, "exec")


@lru_cache(maxsize=64)
def _compiled_plan(limits: int) -> CodeType:
    places, steps = [f"t{i}[k{i}]" for i in range(limits)], [f"q{i}.step" for i in range(limits)]
    read = [f"t{i} = tables[p{i}].states; x{i} = {place}" for i, place in enumerate(places)]
    body = "\n".join([*read, *_decided(places, steps, again="return first(store, plan, cost, now)", queues=True)])
    unpacked = "".join(f"(p{i}, k{i}, q{i}), " for i in range(limits))
    return compile(_PLAN.format(limits=unpacked, body=indent(body, " " * 8)), __name__, "exec")


def _decided(places: list[str], steps: list[str], again: str, *, queues: bool) -> list[str]:
    """Return the lines that decide and replace, for limits whose states, read as x0, x1 ..., are in these places.

    They do what `headgate.core.plan.check` says, and describe the limit that `headgate.core.plan.combine` would.
    """
    if len(places) == 1:
        replaced = ["if y0 is x0:", "    return d0", f"if {places[0]} is x0:", f"    {places[0]} = y0", "    return d0"]
        return [f"y0, d0 = {steps[0]}(x0, cost, now)", *replaced, again]
    numbers = range(len(places))
    lines: list[str] = []
    for i, step in enumerate(steps):
        lines += [f"{'    ' * i}y{i}, d{i} = {step}(x{i}, cost, now)", f"{'    ' * i}if d{i}.allowed:"]
    lines += [f"{'    ' * len(places)}{line}" for line in [*_admitted(places, queues=queues), again]]
    for i in reversed(numbers):
        lines += [f"{'    ' * i}else:", f"{'    ' * i}    refused = {i}; told = d{i}; retry = d{i}.retry_after_us"]
    for i, step in enumerate(steps):
        lines += (
            [f"if refused > {i}:", f"    d{i} = {step}(x{i}, 0, now)[1]; y{i} = x{i}"] if i < len(places) - 1 else []
        )
        lines += [f"{'el' if i < len(places) - 1 else ''}if refused < {i}:", *_looked_at(i, step)] if i else []
    lines += [f"if y{i} is not x{i} and {place} is x{i}: {place} = y{i}" for i, place in enumerate(places)]
    return [*lines, f"return {_answer('False, told.limit, told.remaining, retry', '0, 0, 0', 'refused', numbers)}"]


def _admitted(places: list[str], *, queues: bool) -> list[str]:
    """Return the lines that replace the states, and answer; only queues have delays."""
    lines = [
        f"if {' and '.join(f'{place} is x{i}' for i, place in enumerate(places))}:",
        f"    {'; '.join(f'{place} = y{i}' for i, place in enumerate(places))}",
        "    told = d0; index = 0; left = d0.remaining; limit = d0.limit",
        *["    delay = d0.delay_us"] * queues,
    ]
    for i in range(1, len(places)):
        lines += [
            f"    here = d{i}.remaining; of = d{i}.limit",
            "    if here * limit < left * of:",
            f"        told = d{i}; index = {i}; left = here; limit = of",
            *[f"    if d{i}.delay_us > delay: delay = d{i}.delay_us"] * queues,
        ]
    taken = f"{'delay' if queues else 0}, told.taken, told.taken_at_us"
    return [*lines, f"    return {_answer('True, limit, left, 0', taken, 'index', range(len(places)))}"]


def _looked_at(i: int, step: str) -> list[str]:
    """Return the lines that ask a limit behind the one that refuses; it may refuse for longer."""
    return [
        f"    d{i} = {step}(x{i}, 0, now)[1]; y{i} = x{i}",
        f"    if d{i}.remaining < cost:",
        f"        y{i}, d{i} = {step}(x{i}, cost, now)",
        f"        if d{i}.retry_after_us > retry: refused = {i}; told = d{i}; retry = d{i}.retry_after_us",
    ]


def _answer(numbers: str, taken: str, index: str, limits: range) -> str:
    parts = ", ".join(f"d{i}" for i in limits)
    about = "told.reset_after_us, told.state, told.quota"
    return f"Decision({numbers}, {about}, {taken}, ({parts}), '', {index})"

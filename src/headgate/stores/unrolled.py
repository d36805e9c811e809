"""Checks in memory, written out for a number of limits: the hot path of `headgate.stores.memory`.

The lock of that store keeps out other threads, but not code that runs in the middle of a call on the same thread, a
signal handler or a ``__del__``. It runs where a function is called or returns and where a loop begins again, nowhere
else. So the states of several limits must be replaced without a loop and without a call, by a line for each of them.
The lines are made here, once for each number of limits. (With a loop, and with states that are replaced by functions in
C, three limits take 1.7 times as long.)

Both functions read all states, decide, and then make sure that what they read is still there and replace it. They raise
KeyError where a limit has no state yet, and decide again, or return None, where something has come in between.
"""

from __future__ import annotations

from functools import lru_cache
from textwrap import indent
from types import CodeType
from typing import Any

_BOUND = """
def check(key, cost=1):
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
def check(tables, plan, cost, now):
    {limits} = plan
{body}
    return None
"""
"""Checks the limits of any plan, in a store whose lock is held."""


def bound_check(limits: int, names: dict[str, Any]) -> Any:
    """Return the function ``check(key, cost=1)`` of a family; `names` has all that it refers to."""
    exec(_compiled_bound(limits), names)  # noqa: S102  our own text
    return names["check"]


class PlanChecks(dict[int, Any]):
    """The functions ``check(tables, plan, cost, now)``, by the number of limits; made when they are needed.

    Args:
        names: all that they refer to.
    """

    def __init__(self, **names: Any) -> None:
        self._names = names

    def __missing__(self, limits: int) -> Any:
        names = dict(self._names)
        exec(_compiled_plan(limits), names)  # noqa: S102  our own text
        self[limits] = names["check"]
        return self[limits]


@lru_cache(maxsize=64)
def _compiled_bound(limits: int) -> CodeType:
    read = [f"x{i} = t{i}[key]" for i in range(limits)]
    body = [*read, *_decided([f"t{i}[key]" for i in range(limits)], [f"s{i}" for i in range(limits)], "quotas")]
    return compile(_BOUND.format(body=indent("\n".join(body), " " * 12)), __name__, "exec")


@lru_cache(maxsize=64)
def _compiled_plan(limits: int) -> CodeType:
    read = [f"t{i} = tables[p{i}].states; x{i} = t{i}[k{i}]" for i in range(limits)]
    places, steps = [f"t{i}[k{i}]" for i in range(limits)], [f"q{i}.step" for i in range(limits)]
    quotas = f"({', '.join(f'q{i}' for i in range(limits))})"
    body = indent("\n".join([*read, *_decided(places, steps, quotas)]), " " * 4)
    unpacked = "".join(f"(p{i}, k{i}, q{i}), " for i in range(limits))
    return compile(_PLAN.format(limits=unpacked, body=body), __name__, "exec")


def _decided(places: list[str], steps: list[str], quotas: str) -> list[str]:
    """Return the lines that decide and replace, for limits whose states, read as x0, x1 ..., are in these places."""
    if len(places) == 1:
        return [
            f"y0, d0 = {steps[0]}(x0, cost, now)",
            "if y0 is x0:",
            "    return d0",
            f"if {places[0]} is x0:",
            f"    {places[0]} = y0",
            "    return d0",
        ]
    numbers = range(len(places))
    found = ", ".join(f"({place.replace('[', ', ').replace(']', '')}, x{i})" for i, place in enumerate(places))
    lines = []
    for i, step in enumerate(steps):
        lines += [
            f"y{i}, d{i} = {step}(x{i}, cost, now)",
            f"if not d{i}.allowed:",
            f"    return refuse(({found}), {quotas}, cost, now, ({i}, y{i}, d{i}))",
        ]
    lines += [
        f"if {' and '.join(f'{place} is x{i}' for i, place in enumerate(places))}:",
        f"    {'; '.join(f'{place} = y{i}' for i, place in enumerate(places))}",
        "    told = d0; index = 0; left = d0.remaining; limit = d0.limit; delay = d0.delay_us",
    ]
    for i in numbers[1:]:  # as `headgate.core.plan.combine` does
        lines += [
            f"    here = d{i}.remaining; of = d{i}.limit",
            "    if here * limit < left * of:",
            f"        told = d{i}; index = {i}; left = here; limit = of",
            f"    if d{i}.delay_us > delay:",
            f"        delay = d{i}.delay_us",
        ]
    parts = ", ".join(f"d{i}" for i in numbers)
    return [
        *lines,
        "    return Decision(True, limit, left, 0, told.reset_after_us, told.state, told.quota, delay, told.taken,",
        f"        told.taken_at_us, ({parts}), '', index)",
    ]

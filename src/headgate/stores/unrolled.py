"""Checks in memory, written out limit by limit: the hot path of `headgate.stores.memory`.

The lock of that store keeps out other threads, but not code that runs in the middle of a call on the same thread, a
signal handler or a ``__del__``. It runs where a function is called or returns and where a loop begins again, nowhere
else. So the states of several limits must be replaced without a loop and without a call, by a line for each of them.
The lines are made here, once for each kind of limits. (With a loop, and with states that are replaced by functions in
C, three limits take 1.7 times as long.)

All functions read the states, decide, and then make sure that what they read is still there and replace it. Where a
limit has no state yet, or something has come in between, the store decides by a loop, or they decide again. So what is
admitted has been admitted by the step of every limit, from the very states that it then replaced: no more can pass
than the steps let pass.

There are two kinds. `bound_check` is for the limits of a `Limiter`, whose decisions are seldom asked for more than the
limit that they describe: it has the steps in place (see `headgate.stores.inlined`) and leaves it to the answer to find
the others by the same steps, should somebody read them. `PlanChecks` is for any plan, such as those of the service,
which tells about all limits: it calls the steps, and keeps their decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from textwrap import indent
from types import CodeType
from typing import Any, NamedTuple

from headgate.core import plan as plans
from headgate.core.plan import Family
from headgate.stores.inlined import StepShape, in_place, names_of, shape_of

MOST_WRITTEN = 32
"""The most limits whose check is written out: Python nests blocks a hundred deep, and long plans are rare."""

_BOUND = """
def {signature}
    for _ in _locked:
        try:
            now = {clock}
            if now >= _store._next_due:
                _store._sweep(now)
{body}
        except KeyError:  # a new key, or one that must be looked for elsewhere
            return _first(key, cost, now)
        except TypeError:
            _checked_principal(key)  # an unhashable key
            raise
        finally:
            _release()
    raise AssertionError("the lock was not acquired")
"""
"""Checks the limits of a family. The states of each limit are at hand as _t0, _t1 ..., its step as _step0 ..., its
quota as _quota0 ...; its state before is _x0 ..., after it _y0 ... All names that are not a step's own begin with an
underscore."""

_CHECK = """check(key, cost=1):
    if cost is not _one:
        if type(cost) is int and cost == 0:
            return _peek()(key)
        cost = _checked_cost(cost)"""
_PEEK = "check(key, cost=0):"

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


def bound_check(family: Family, names: dict[str, Any], *, peeks: bool = False) -> Any:
    """Return the function ``check(key, cost=1)`` of a family.

    Args:
        family: the limits.
        names: all that it refers to besides its limits.
        peeks: make the one that says whether a cost of 1 would pass, and takes nothing.
    """
    own: dict[str, Any] = {"_quotas": family.quotas, "_admitted": plans.admitted, "_looked_at": plans.looked_at}
    for number, quota in enumerate(family.quotas):
        own |= {f"_quota{number}": quota, f"_capacity{number}": quota.capacity, f"_step{number}": quota.step}
        own |= names_of(quota.step, number)
    own |= names
    shapes = tuple([shape_of(quota.step) for quota in family.quotas])
    queues, own_clock = any(quota.queue for quota in family.quotas), own["_clock"] is not None
    exec(compiled_bound(shapes, peeks=peeks, queues=queues, own_clock=own_clock), own)  # noqa: S102  our own text
    check = own["check"]
    check.__qualname__ = "MemoryStore.bind.<locals>.check"  # as any function that another one makes
    return check


@lru_cache(maxsize=256)
def compiled_bound(shapes: tuple[StepShape, ...], *, peeks: bool, queues: bool, own_clock: bool) -> CodeType:
    """Return the code of a check; limits of the same kinds share it."""
    text = _BOUND.format(
        signature=_PEEK if peeks else _CHECK,
        clock="_clock()" if own_clock else "_time_ns() // 1000",
        body=indent("\n".join(lines_of(shapes, peeks=peeks, queues=queues)), " " * 12),
    )
    return compile(text, __name__, "exec")


def lines_of(shapes: Sequence[StepShape], *, peeks: bool, queues: bool) -> list[str]:
    """Return the lines that decide about limits with steps of these shapes."""
    if len(shapes) > 1:
        return _several_limits(shapes, peeks=peeks, queues=queues)
    return ["state = _x0 = _t0[key]", *in_place(shapes[0], 0, _Alone(peeks), looks=peeks)]


class _Alone(NamedTuple):
    """Where the step of a single limit returns: the check answers, unless something has come in between."""

    peeks: bool

    def told(self, state: str, fields: Sequence[str]) -> list[str]:
        answer = f"_Decision({', '.join(fields)})"
        if self.peeks:
            return [f"if {fields[2]} < 1: return _step0(_x0, 1, now)[1]", f"return {answer}"]
        return [f"_y0 = {state}", *([] if fields[0] == "True" else [f"if _y0 is _x0: return {answer}"]), *_put(answer)]

    def asked(self, call: str) -> list[str]:
        if self.peeks:
            return [f"_told = {call}[1]", "return _told if _told.remaining else _step0(_x0, 1, now)[1]"]
        return [f"_y0, _told = {call}", "if _y0 is _x0: return _told", *_put("_told")]


def _put(answer: str) -> list[str]:
    return ["if _t0[key] is _x0:", "    _t0[key] = _y0", f"    return {answer}", "continue"]


class _Among(NamedTuple):
    """Where the step of one of several limits returns: the check goes on with the next one, whatever it says.

    What an admission says is kept, under the number of the limit. Of refusals, the one that blocks longest is; one
    that had to mend its state (see law 8 of `headgate.core`) does so at once, for the answer is settled.
    """

    number: int
    peeks: bool
    queues: bool
    """Is any of the limits a queue? Only those have delays."""

    def told(self, state: str, fields: Sequence[str]) -> list[str]:
        allowed, _limit, left, retry, reset, pressure, _quota, delay, *_taken = fields
        if allowed == "True":
            return [*self._passed(left, reset, pressure, delay), f"_y{self.number} = {state}", "break"]
        return [*self._refused(left, retry, reset), f"_y{self.number} = {state}", *self._mended(), "break"]

    def asked(self, call: str) -> list[str]:
        i, passed = self.number, self._passed("_d.remaining", "_d.reset_after_us", "_d.state", "_d.delay_us")
        lines = [f"_y{i}, _d = {call}", "if _d.allowed:", *_indented(passed)]
        return [*lines, "else:", *_indented([*self._refused_as("_d"), *self._mended()]), "break"]

    def _passed(self, left: str, reset: str, pressure: str, delay: str) -> list[str]:
        i = self.number
        lines = [f"_left{i} = {left}", f"_reset{i} = {reset}", f"_pressure{i} = {pressure}"]
        return [*lines, *[f"_delay{i} = {delay}"] * self.queues]

    def _refused(self, left: str, retry: str, reset: str) -> list[str]:
        kept = f"_refused = {self.number}; _retry = {retry}; _left = {left}; _reset = {reset}"
        return [kept] if not self.number else [f"if {retry} > _retry:", f"    {kept}"]

    def _refused_as(self, decision: str) -> list[str]:
        return self._refused(*[f"{decision}.{name}" for name in ("remaining", "retry_after_us", "reset_after_us")])

    def _mended(self) -> list[str]:
        i = self.number
        return [] if self.peeks else [f"if _y{i} is not _x{i} and _t{i}[key] is _x{i}: _t{i}[key] = _y{i}"]

    def lines(self, shape: StepShape) -> list[str]:
        """Return the lines that ask this limit: a loop that is left where the step would return, and never repeats."""
        i, body = self.number, in_place(shape, self.number, self, looks=self.peeks)
        lines = [f"state = _x{i} = _t{i}[key]", "while True:", *_indented(body)]
        if self.peeks:  # a cost of 0 is never refused: a peek asks whether 1 would be
            again = [f"_d = _step{i}(_x{i}, 1, now)[1]", *self._refused_as("_d")]
            lines += [f"if _left{i} < 1:", *_indented(again)]
        return lines


def _several_limits(shapes: Sequence[StepShape], *, peeks: bool, queues: bool) -> list[str]:
    """Return the lines that decide: what `headgate.core.plan.check`, or `look`, says of all limits together.

    All limits are asked, whatever the first ones say: what refuses must be known to tell which limit blocks longest. So
    a refusal costs what an admission does. They describe the limit that `headgate.core.plan.combine` would.
    """
    numbers = range(len(shapes))
    lines = ["_refused = _retry = -1"]
    for i, shape in enumerate(shapes):
        lines += _Among(i, peeks, queues).lines(shape)
    asked = f"_quotas, {1 if peeks else 'cost'}, now, {', '.join(f'_x{i}' for i in numbers)}"
    refusal = "False, _told.capacity, _left, _retry, _reset, _throttled, _told, 0, 0, 0"
    lines += ["if _refused >= 0:", "    _told = _quotas[_refused]"]
    lines += [f"    return _Decision({refusal}, (_looked_at, {asked}), '', _refused)"]
    if not peeks:
        there, put = [f"_t{i}[key] is _x{i}" for i in numbers], [f"_t{i}[key] = _y{i}" for i in numbers]
        lines += [f"if not ({' and '.join(there)}): continue", "; ".join(put)]
    lines += [f"_told = 0; _left = _left0; _limit = _capacity0; {_described(0)}"]
    for i in numbers[1:]:
        described = f"_told = {i}; _left = _left{i}; _limit = _capacity{i}; {_described(i)}"
        lines += [f"if _left{i} * _limit < _left * _capacity{i}:", f"    {described}"]
        lines += [f"if _delay{i} > _delay0: _delay0 = _delay{i}"] * queues
    told = f"_limit, _left, 0, _reset, _pressure, _quota, {'_delay0' if queues else 0}, {0 if peeks else 'cost'}, now"
    tell = "_looked_at" if peeks else "_admitted"
    return [*lines, f"return _Decision(True, {told}, ({tell}, {asked}), '', _told)"]


def _described(i: int) -> str:
    return f"_reset = _reset{i}; _pressure = _pressure{i}; _quota = _quota{i}"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


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
def _compiled_plan(limits: int) -> CodeType:
    places, steps = [f"t{i}[k{i}]" for i in range(limits)], [f"q{i}.step" for i in range(limits)]
    read = [
        f"t{i} = tables[l{i}.space].states; k{i} = l{i}.principal; q{i} = l{i}.quota; x{i} = {place}"
        for i, place in enumerate(places)
    ]
    body = "\n".join([*read, *_decided(places, steps, again="return first(store, plan, cost, now)")])
    unpacked = "".join(f"l{i}, " for i in range(limits))
    return compile(_PLAN.format(limits=unpacked, body=indent(body, " " * 8)), __name__, "exec")


def _decided(places: list[str], steps: list[str], again: str) -> list[str]:
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
    lines += [f"{'    ' * len(places)}{line}" for line in [*_admitted(places), again]]
    for i in reversed(numbers):
        lines += [f"{'    ' * i}else:", f"{'    ' * i}    refused = {i}; told = d{i}; retry = d{i}.retry_after_us"]
    for i, step in enumerate(steps):
        lines += (
            [f"if refused > {i}:", f"    d{i} = {step}(x{i}, 0, now)[1]; y{i} = x{i}"] if i < len(places) - 1 else []
        )
        lines += [f"{'el' if i < len(places) - 1 else ''}if refused < {i}:", *_looked_at(i, step)] if i else []
    lines += [f"if y{i} is not x{i} and {place} is x{i}: {place} = y{i}" for i, place in enumerate(places)]
    return [*lines, f"return {_answer('False, told.limit, told.remaining, retry', '0, 0, 0', 'refused', numbers)}"]


def _admitted(places: list[str]) -> list[str]:
    """Return the lines that replace the states, and answer."""
    lines = [
        f"if {' and '.join(f'{place} is x{i}' for i, place in enumerate(places))}:",
        f"    {'; '.join(f'{place} = y{i}' for i, place in enumerate(places))}",
        "    told = d0; index = 0; left = d0.remaining; limit = d0.limit; delay = d0.delay_us",
    ]
    for i in range(1, len(places)):
        lines += [
            f"    here = d{i}.remaining; of = d{i}.limit",
            "    if here * limit < left * of:",
            f"        told = d{i}; index = {i}; left = here; limit = of",
            f"    if d{i}.delay_us > delay: delay = d{i}.delay_us",
        ]
    answer = _answer("True, limit, left, 0", "delay, told.taken, told.taken_at_us", "index", range(len(places)))
    return [*lines, f"    return {answer}"]


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

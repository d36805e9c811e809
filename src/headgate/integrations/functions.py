"""Any function: calls that are too many raise, wait for their turn, or get another answer.

::

    @limited("10/s", key=lambda user: f"user:{user}")
    def send(user): ...

    @limited("100/minute", otherwise="wait", timeout=5)
    async def fetch(address): ...

Functions of the terms, such as `key`, get the arguments of the call. Without a key all calls count together.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, Unpack, cast

import msgspec

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import HeadgateError, LimitExceeded
from headgate.core.numbers import short
from headgate.flows import drive, drive_async
from headgate.integrations.answers import Refusal
from headgate.integrations.budgets import Budget, CallTerms, Quotas, QuotasOfKey, check_name, name_of_function
from headgate.integrations.gate import AsyncGate, Gate, GateSettings, at_once
from headgate.integrations.visit import Visit
from headgate.waiting import deadline
from headgate.web.errors import InvalidSettings

__all__ = ["CallRefused", "limited"]
P = ParamSpec("P")
R = TypeVar("R")
ALL = "all"
"""The key of calls that have none."""
_SETTINGS = frozenset({"rules", "engine", "store", "on_store_failure", "nodes", "clock", "on_refused", "enabled"})
_LAYERS = "__headgate_layers__"
"""The attribute by which a decorated function has the number of its limits."""
_LONGEST_US = 60_000_000
"""Microseconds after which a caller that waits asks again in any case: somebody may have given something back."""


class CallRefused(HeadgateError):
    """A call is refused for another reason than a limit.

    Attributes:
        status: see `Refusal.status`.
    """

    def __init__(self, detail: str, status: int) -> None:
        super().__init__(detail, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class FunctionTerms(CallTerms, total=False):
    """What functions may be told: see `Budget`, and `GateSettings` for the rest."""

    rules: Any
    engine: Any
    store: Any
    on_store_failure: str
    nodes: int
    clock: Clock
    on_refused: Callable[..., Any]
    enabled: bool


class Invocation(msgspec.Struct, frozen=True):
    """One call of a function: what `on_refused` gets."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Pause(msgspec.Struct, frozen=True, gc=False):
    """Wait so long, in microseconds, until it is worth asking again."""

    us: int


_Flow: TypeAlias = Generator[Any, Any, tuple[Visit, Refusal | None]]


def limited(
    limits: Quotas | QuotasOfKey | None = None,
    *,
    otherwise: Literal["raise", "wait"] | Callable[..., Any] = "raise",
    timeout: float | None = None,
    **terms: Unpack[FunctionTerms],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that limits a function, or a coroutine function, which it lets wait without blocking.

    An asynchronous generator counts once, when its first item is asked for.

    Args:
        limits: quotas, or a function that says which ones a key has.
        otherwise: what to do with a call that is refused: ``"raise"`` LimitExceeded; ``"wait"`` until it passes; or a
            function, which is called with the same arguments instead.
        timeout: how many seconds to wait at most before LimitExceeded is raised; None: no end to waiting.
        terms: see `Budget` and `GateSettings`.
    """
    if otherwise not in {"raise", "wait"} and not callable(otherwise):
        raise InvalidSettings(f"otherwise is 'raise', 'wait' or a function, not {short(otherwise)}")
    settings: Any = {name: value for name, value in terms.items() if name in _SETTINGS}
    given: Any = {name: value for name, value in terms.items() if name not in _SETTINGS}
    budget = budget_of(limits, given)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        wanted, nth = deadline(0, timeout) if otherwise == "wait" else 0, getattr(function, _LAYERS, 0) + 1
        route = name_of_function(function) if nth == 1 else f"{name_of_function(function)}:{nth}"
        is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        made: Any = _guarded_async if is_async else _guarded
        guarded: Any = made(function, _Terms(budget, settings, otherwise, wanted, route))
        setattr(guarded, _LAYERS, nth)
        if not guarded.gate.is_private:
            check_name(function, budget)
        limited: Callable[P, R] = guarded
        return limited

    return decorate


class _Terms(msgspec.Struct, frozen=True):
    """What is the same for all calls of a function."""

    budget: Budget
    settings: GateSettings
    otherwise: Any
    wait_us: int | None
    """Microseconds; None: no end to waiting."""
    route: str

    def enter(self, gate: Gate | AsyncGate, invocation: Invocation) -> _Flow:
        """Let a call pass; yields pauses as well. Raises LimitExceeded and CallRefused, unless there is a fallback."""
        waited = 0
        while True:
            visit = Visit(gate, invocation)
            refusal = yield from visit.enter((self.budget,), self.route)
            if refusal is None and visit.delay_us:
                yield _Pause(visit.delay_us)  # its place in a queue
            if refusal is None or callable(self.otherwise):
                return visit, refusal
            decision = refusal.decision
            if decision is None:
                raise CallRefused(refusal.detail, refusal.status)
            left = None if self.wait_us is None else self.wait_us - waited
            if left is not None and decision.retry_after_us > left:  # it would be in vain
                raise exceeded(visit, self.route, decision)
            pause = min(decision.retry_after_us, _LONGEST_US) or 1
            yield _Pause(pause)
            waited += pause


def exceeded(visit: Visit, name: str, decision: Decision) -> LimitExceeded:
    """Return the error of a call that is refused: it has the key, and mentions the function where calls have keys."""
    error = LimitExceeded(name if visit.key == ALL else str(visit.key), decision)
    error.add_note(f"It is a call of {name}.")
    return error


def _guarded(function: Callable[..., Any], terms: _Terms) -> Callable[..., Any]:
    gate = Gate(terms.settings)
    gate.checked(terms.budget)

    def do(step: Any) -> Any:
        if isinstance(step, _Pause):
            gate.clock.wait(threading.Event(), gate.clock.ticks() + step.us)
            return None
        return at_once(step)

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        visit, refusal = drive(terms.enter(gate, Invocation(function, args, kwargs)), do)
        if refusal is not None:
            return terms.otherwise(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except Exception:
            gate.run(visit.fail())
            raise

    guarded.gate = gate  # type: ignore[attr-defined]
    return guarded


def _guarded_async(function: Callable[..., Any], terms: _Terms) -> Callable[..., Any]:
    gate = AsyncGate(terms.settings)
    gate.checked(terms.budget)

    async def do(step: Any) -> Any:
        if isinstance(step, _Pause):
            await gate.clock.wait_async(asyncio.Event(), gate.clock.ticks() + step.us)
            return None
        return await step if inspect.isawaitable(step) else step

    @wraps(function)
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        visit, refusal = await drive_async(terms.enter(gate, Invocation(function, args, kwargs)), do)
        if refusal is not None:
            answer = terms.otherwise(*args, **kwargs)
            return await answer if inspect.isawaitable(answer) else answer
        try:
            return await function(*args, **kwargs)
        except Exception:
            await gate.run(visit.fail())
            raise

    @wraps(function)
    async def generated(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        visit, refusal = await drive_async(terms.enter(gate, Invocation(function, args, kwargs)), do)
        items = function(*args, **kwargs) if refusal is None else terms.otherwise(*args, **kwargs)
        try:
            async with aclosing(items):
                async for item in items:
                    yield item
        except Exception:
            await gate.run(visit.fail())
            raise

    chosen: Any = generated if inspect.isasyncgenfunction(function) else guarded
    chosen.gate = gate
    return cast("Callable[..., Any]", chosen)


def budget_of(limits: Quotas | QuotasOfKey | None, terms: dict[str, Any]) -> Budget:
    """Return a budget whose functions get the arguments of a call."""
    unpacked = {name: _unpacked(terms[name]) for name in ("cost", "exempt") if callable(terms.get(name))}
    return Budget(limits=limits, **{**terms, **unpacked, "key": key_of(terms.get("key"))})


def key_of(function: Callable[..., Any] | None) -> Callable[[Invocation], Any]:
    """Return a function that finds the key of a call; without one, all calls have the same."""
    return (lambda _: ALL) if function is None else _unpacked(function)


def _unpacked(function: Callable[..., Any]) -> Callable[[Invocation], Any]:
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def told_async(call: Invocation) -> Any:
            return await function(*call.args, **call.kwargs)

        return told_async

    @wraps(function)
    def told(call: Invocation) -> Any:
        return function(*call.args, **call.kwargs)

    return told

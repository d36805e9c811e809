"""Any function: calls above a limit raise, wait for their turn, or call another function.

::

    @limited("10/s", key=lambda user: f"user:{user}")
    def send(user): ...

    @limited("100/minute", otherwise="wait", timeout=5)
    async def fetch(address): ...

Functions such as `key` get the arguments of the call. Without a key, all calls count together.
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
from headgate.integrations.budget import Budget, CallTerms, Quotas, QuotasOfKey
from headgate.integrations.exchange import Exchange
from headgate.integrations.limiter import (
    AsyncRequestLimiter,
    LimiterSettings,
    RequestLimiter,
    reject_awaitable,
    resolve,
)
from headgate.integrations.routes import function_name, require_name
from headgate.waiting import deadline
from headgate.web.errors import InvalidSettings

__all__ = ["CallRefused", "limited"]
P = ParamSpec("P")
R = TypeVar("R")
ALL = "all"
"""The key of calls without one."""
_SETTINGS = frozenset({"rules", "engine", "store", "on_store_failure", "nodes", "clock", "on_refused", "enabled"})
_LAYERS = "__headgate_layers__"
"""The attribute of a decorated function that counts its limits."""
_LONGEST_US = 60_000_000
"""Microseconds after which a waiting call tries again in any case, since others may have been refunded."""


class CallRefused(HeadgateError):
    """A call is refused, but not by a limit.

    Attributes:
        status: see `Refusal.status`.
    """

    def __init__(self, detail: str, status: int) -> None:
        super().__init__(detail, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class FunctionTerms(CallTerms, total=False):
    """The options of `limited`: see `Budget` and `LimiterSettings`."""

    rules: Any
    engine: Any
    store: Any
    on_store_failure: str
    nodes: int
    clock: Clock
    on_refused: Callable[..., Any]
    enabled: bool


class Invocation(msgspec.Struct, frozen=True):
    """A call of a function; the argument of `on_refused`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Pause(msgspec.Struct, frozen=True, gc=False):
    """A wait before the next step of a flow, in microseconds."""

    us: int


_Flow: TypeAlias = Generator[Any, Any, tuple[Exchange, Refusal | None]]


def limited(
    limits: Quotas | QuotasOfKey | None = None,
    *,
    otherwise: Literal["raise", "wait"] | Callable[..., Any] = "raise",
    timeout: float | None = None,
    **terms: Unpack[FunctionTerms],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that limits a function, a coroutine function or an asynchronous generator.

    An asynchronous generator counts once, when its first item is requested.

    Args:
        limits: quotas, or a function that returns the quotas of a key.
        otherwise: what a refused call does: ``"raise"`` LimitExceeded; ``"wait"`` for its turn; or a function, which is
            called with the same arguments instead.
        timeout: the longest wait in seconds, before LimitExceeded is raised; None: unlimited.
        terms: see `Budget` and `LimiterSettings`.
    """
    if otherwise not in {"raise", "wait"} and not callable(otherwise):
        raise InvalidSettings(f"otherwise must be 'raise', 'wait' or a function, got {short(otherwise)}")
    settings: Any = {name: value for name, value in terms.items() if name in _SETTINGS}
    given: Any = {name: value for name, value in terms.items() if name not in _SETTINGS}
    budget = budget_of(limits, given)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        wait_us, nth = deadline(0, timeout) if otherwise == "wait" else 0, getattr(function, _LAYERS, 0) + 1
        route = function_name(function) if nth == 1 else f"{function_name(function)}:{nth}"
        is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        limit: Any = _limited_async if is_async else _limited
        limited: Any = limit(function, _Terms(budget, settings, otherwise, wait_us, route))
        setattr(limited, _LAYERS, nth)
        if not limited.gate.is_private:
            require_name(function, budget)
        return cast("Callable[P, R]", limited)

    return decorate


class _Terms(msgspec.Struct, frozen=True):
    """The limit of a function."""

    budget: Budget
    settings: LimiterSettings
    otherwise: Any
    wait_us: int | None
    """Microseconds; None: unlimited."""
    route: str

    def check(self, limiter: RequestLimiter | AsyncRequestLimiter, invocation: Invocation) -> _Flow:
        """Check a call; also yields pauses. Raises LimitExceeded and CallRefused unless there is a fallback."""
        waited = 0
        while True:
            exchange = Exchange(limiter, invocation)
            refusal = yield from exchange.check((self.budget,), self.route)
            if refusal is None and exchange.delay_us:
                yield _Pause(exchange.delay_us)  # in a leaky bucket's queue
            if refusal is None or callable(self.otherwise):
                return exchange, refusal
            decision = refusal.decision
            if decision is None:
                raise CallRefused(refusal.detail, refusal.status)
            left = None if self.wait_us is None else self.wait_us - waited
            if left is not None and decision.retry_after_us > left:
                raise exceeded(exchange, self.route, decision)
            pause = min(decision.retry_after_us, _LONGEST_US) or 1
            yield _Pause(pause)
            waited += pause


def exceeded(exchange: Exchange, name: str, decision: Decision) -> LimitExceeded:
    """Return the error of a refused call, with its key, or the function's name if calls have no keys."""
    error = LimitExceeded(name if exchange.key == ALL else str(exchange.key), decision)
    error.add_note(f"It is a call of {name}.")
    return error


def _limited(function: Callable[..., Any], terms: _Terms) -> Callable[..., Any]:
    gate = RequestLimiter(terms.settings)
    gate.validate(terms.budget)

    def do(step: Any) -> Any:
        if isinstance(step, _Pause):
            gate.clock.wait(threading.Event(), gate.clock.ticks() + step.us)
            return None
        return reject_awaitable(step)

    @wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        exchange, refusal = drive(terms.check(gate, Invocation(function, args, kwargs)), do)
        if refusal is not None:
            return terms.otherwise(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except Exception:
            gate.run(exchange.fail())
            raise

    limited.gate = gate  # type: ignore[attr-defined]
    return limited


def _limited_async(function: Callable[..., Any], terms: _Terms) -> Callable[..., Any]:
    gate = AsyncRequestLimiter(terms.settings)
    gate.validate(terms.budget)

    async def do(step: Any) -> Any:
        if isinstance(step, _Pause):
            await gate.clock.wait_async(asyncio.Event(), gate.clock.ticks() + step.us)
            return None
        return await resolve(step)

    @wraps(function)
    async def limited(*args: Any, **kwargs: Any) -> Any:
        exchange, refusal = await drive_async(terms.check(gate, Invocation(function, args, kwargs)), do)
        if refusal is not None:
            return await resolve(terms.otherwise(*args, **kwargs))
        try:
            return await function(*args, **kwargs)
        except Exception:
            await gate.run(exchange.fail())
            raise

    @wraps(function)
    async def generate(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        exchange, refusal = await drive_async(terms.check(gate, Invocation(function, args, kwargs)), do)
        items = function(*args, **kwargs) if refusal is None else terms.otherwise(*args, **kwargs)
        try:
            async with aclosing(items):
                async for item in items:
                    yield item
        except Exception:
            await gate.run(exchange.fail())
            raise

    chosen: Any = generate if inspect.isasyncgenfunction(function) else limited
    chosen.gate = gate
    return cast("Callable[..., Any]", chosen)


def budget_of(limits: Quotas | QuotasOfKey | None, terms: dict[str, Any]) -> Budget:
    """Return a budget whose functions get the arguments of a call."""
    unpacked = {name: _unpacked(terms[name]) for name in ("cost", "exempt") if callable(terms.get(name))}
    return Budget(limits=limits, **{**terms, **unpacked, "key": key_of(terms.get("key"))})


def key_of(function: Callable[..., Any] | None) -> Callable[[Invocation], Any]:
    """Return the key function of calls; without one, all calls have the same key."""
    return (lambda _: ALL) if function is None else _unpacked(function)


def _unpacked(function: Callable[..., Any]) -> Callable[[Invocation], Any]:
    """Return a function that passes on the arguments of a call."""
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call_async(call: Invocation) -> Any:
            return await function(*call.args, **call.kwargs)

        return call_async

    @wraps(function)
    def call_sync(call: Invocation) -> Any:
        return function(*call.args, **call.kwargs)

    return call_sync

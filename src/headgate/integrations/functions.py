"""Any function: calls above a limit raise, wait for their turn, or call another function.

::

    @limited("10/s", key=lambda user: f"user:{user}")
    def send(user): ...

    @limited("100/minute", otherwise="wait", timeout=5)
    async def fetch(address): ...

Functions such as `key` get the arguments of the call. Without a key, all calls count together.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from functools import partial, wraps
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, Unpack, cast

import msgspec

from headgate.core.decision import Decision
from headgate.core.errors import HeadgateError, LimitExceeded
from headgate.core.numbers import short
from headgate.integrations.answers import Refusal
from headgate.integrations.budget import Budget, CallTerms, Quotas, QuotasOfKey
from headgate.integrations.exchange import Exchange
from headgate.integrations.limiter import AsyncRequestLimiter, DeciderSettings, RequestLimiter, resolve
from headgate.integrations.routes import function_name, require_name
from headgate.waiting import Pause, deadline
from headgate.web.errors import InvalidSettings

__all__ = ["CallRefused", "limited"]
P = ParamSpec("P")
R = TypeVar("R")
ALL = "all"
"""The key of calls without one."""
_LAYERS = "__headgate_layers__"
"""The attribute of a decorated function that counts its limits."""
_LONGEST_US = 60_000_000
"""Microseconds after which a waiting call tries again in any case, since others may have been refunded."""


class CallRefused(HeadgateError):
    """A call is refused for a reason other than a limit.

    Attributes:
        status: see `Refusal.status`.
    """

    def __init__(self, detail: str, status: int) -> None:
        super().__init__(detail, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class FunctionTerms(CallTerms, DeciderSettings, total=False):
    """The options of `limited`: see `Budget` and `LimiterSettings`."""


class Invocation(msgspec.Struct, frozen=True):
    """A call of a function; the argument of `on_refused`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


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
    settings: Any = {name: value for name, value in terms.items() if name in DeciderSettings.__annotations__}
    given: Any = {name: value for name, value in terms.items() if name not in settings}
    budget = budget_of(limits, given)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        wait_us, nth = deadline(0, timeout) if otherwise == "wait" else 0, getattr(function, _LAYERS, 0) + 1
        route = function_name(function) if nth == 1 else f"{function_name(function)}:{nth}"
        is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        limiter = AsyncRequestLimiter(settings) if is_async else RequestLimiter(settings)
        limiter.validate(budget)

        def check(*args: Any, **kwargs: Any) -> Any:
            begin = partial(Exchange, limiter, Invocation(function, args, kwargs))
            return limiter.run(_check(begin, budget, route, otherwise, wait_us))

        limit: Any = _limited_async if is_async else _limited
        limited: Any = limit(function, limiter, check, otherwise)
        setattr(limited, _LAYERS, nth)
        store = settings.get("store") or "memory"
        if not (isinstance(store, str) and store.startswith("memory")):  # others may use it
            require_name(function, budget)
        return cast("Callable[P, R]", limited)

    return decorate


def _check(begin: Callable[[], Exchange], budget: Budget, route: str, otherwise: Any, wait_us: int | None) -> _Flow:
    """Check a call, which may wait for so many microseconds (None: unlimited); also yields pauses.

    Raises LimitExceeded and CallRefused unless there is a fallback.
    """
    waited = 0
    while True:
        exchange = begin()
        ticks = exchange.limiter.clock.ticks
        refusal = yield from exchange.check((budget,), route)
        if refusal is None and exchange.delay_us:
            yield Pause(ticks() + exchange.delay_us)  # in a leaky bucket's queue
        if refusal is None or callable(otherwise):
            return exchange, refusal
        decision = refusal.decision
        if decision is None:
            raise CallRefused(refusal.detail, refusal.status)
        if wait_us is not None and decision.retry_after_us > wait_us - waited:
            raise limit_error(exchange, route, decision)
        pause = min(decision.retry_after_us, _LONGEST_US) or 1
        yield Pause(ticks() + pause)
        waited += pause


def limit_error(exchange: Exchange, name: str, decision: Decision) -> LimitExceeded:
    """Return the error of a refused call, with its key, or the function's name if calls have no keys."""
    error = LimitExceeded(name if exchange.key == ALL else str(exchange.key), decision)
    error.add_note(f"It is a call of {name}.")
    return error


def _limited(function: Callable[..., Any], limiter: RequestLimiter, check: Any, otherwise: Any) -> Any:
    @wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        exchange, refusal = check(*args, **kwargs)
        if refusal is not None:
            return otherwise(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except Exception:
            limiter.run(exchange.fail())
            raise

    return limited


def _limited_async(function: Callable[..., Any], limiter: AsyncRequestLimiter, check: Any, otherwise: Any) -> Any:
    @wraps(function)
    async def limited(*args: Any, **kwargs: Any) -> Any:
        exchange, refusal = await check(*args, **kwargs)
        if refusal is not None:
            return await resolve(otherwise(*args, **kwargs))
        try:
            return await function(*args, **kwargs)
        except Exception:
            await limiter.run(exchange.fail())
            raise

    @wraps(function)
    async def generate(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        exchange, refusal = await check(*args, **kwargs)
        items = function(*args, **kwargs) if refusal is None else otherwise(*args, **kwargs)
        try:
            async with aclosing(items):
                async for item in items:
                    yield item
        except Exception:
            await limiter.run(exchange.fail())
            raise

    return generate if inspect.isasyncgenfunction(function) else limited


def budget_of(limits: Quotas | QuotasOfKey | None, terms: dict[str, Any]) -> Budget:
    """Return a budget whose functions get the arguments of a call."""
    unpacked = {name: _unpack(terms[name]) for name in ("cost", "exempt") if callable(terms.get(name))}
    return Budget(limits=limits, **{**terms, **unpacked, "key": key_of(terms.get("key"))})


def key_of(function: Callable[..., Any] | None) -> Callable[[Invocation], Any]:
    """Return the key function of calls; without one, all calls have the same key."""
    return (lambda _: ALL) if function is None else _unpack(function)


def _unpack(function: Callable[..., Any]) -> Callable[[Invocation], Any]:
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

"""The library: `Limiter` for blocking code, `AsyncLimiter` for code in an event loop.

They have the same names and differ only in awaits; `_Limits` has their shared logic.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable
from functools import partial, wraps
from types import FunctionType
from typing import Any, Generic, ParamSpec, Self, TypeVar

from headgate import waiting
from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import InvalidCost, InvalidQuota, LimitExceeded, UsageError
from headgate.core.grammar import EXAMPLES
from headgate.core.key import once_token
from headgate.core.numbers import short, whole
from headgate.core.plan import MAX_COST, Call, Family, Verb
from headgate.core.quota import Quota
from headgate.flows import drive, drive_async
from headgate.stores import open_resilient_async_store, open_resilient_store
from headgate.stores.base import AsyncStore, Store
from headgate.stores.memory import MemoryStore
from headgate.stores.refunds import refund_for, with_identity

Quotas = str | Quota | Iterable[str | Quota]
"""Text such as "100/minute" or "10/s burst 20; 5000/day", a quota, or several of them."""
Key = str | Callable[..., str]
"""A key, or a function from the arguments of a decorated function to a key."""
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
AnyStore = TypeVar("AnyStore", bound=Store | AsyncStore)
AnyLimiter = TypeVar("AnyLimiter")
_ONE = 1
"""The default cost, compared by identity: True and 1.0 equal it, but are not valid costs."""


class _Limits(Generic[AnyStore]):
    """What both limiters share: limits, store, queues of waiting callers, and the calls of verbs."""

    def __init__(self, quotas: Quotas, name: str, opened: Callable[..., AnyStore]) -> None:
        parts = [quotas] if isinstance(quotas, str | Quota) else quotas
        if not isinstance(parts, Iterable) or isinstance(parts, bytes):
            raise InvalidQuota(f"quotas must be text such as {EXAMPLES}, or Quota objects, not {short(quotas)}")
        found: list[Quota] = []
        for part in parts:
            found.extend([part] if isinstance(part, Quota) else Quota.parse(part))
        self._family = Family(name, found)
        self._store = opened(shared=" ".join(self._family.spaces))
        self._queues = waiting.WaitQueues()

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """The quotas, in order."""
        return self._family.quotas

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'; '.join(map(str, self.quotas))!r})"

    def _peek_call(self, key: str, cost: int) -> Call:
        return Call(Verb.PEEK, self._family.plan(key), self._family.checked_cost(cost))

    def _once_call(self, key: str, idempotency_key: str, cost: int) -> Call:
        plan, cost = self._family.plan(key), self._family.checked_cost(cost)
        return Call(Verb.CHECK_ONCE, plan, cost, once_token(plan, cost, idempotency_key))

    def _acquisition(self, key: str, cost: int, timeout: float | None, ticket: waiting.Ticket) -> waiting.Flow:
        plan, cost, clock = self._family.plan(key), self._family.checked_cost(cost), self._store.clock
        wanted = waiting.WaitRequest(plan, cost, waiting.deadline(clock.ticks(), timeout))
        return waiting.acquire(self._queues, key, ticket, clock, wanted)

    def _refund_call(self, key: str, what: Decision | int) -> Call:
        plan = self._family.plan(key)
        if not isinstance(what, Decision):
            return refund_for(plan, whole("cost", what, 1, MAX_COST, InvalidCost))
        if [part.quota.shape for part in what.limits] != [limit.quota.shape for limit in plan]:
            quotas = "; ".join([str(quota) for quota in self.quotas])
            raise UsageError(f"{what!r} is not a decision of a limiter of {quotas}")
        return refund_for(plan, what)


class Limiter(_Limits[Store]):
    """Limits how often something may happen, separately for each key.

    >>> limiter = Limiter("2/minute")
    >>> limiter.check("user:42").allowed, limiter.check("user:42").allowed, limiter.check("user:42").allowed
    (True, True, False)

    Several quotas make one atomic decision: a request passes all of them, or takes nothing.

    Args:
        quotas: text such as ``"100/minute"`` or ``"10/s burst 20; 5000/day"``, or `Quota` objects.
        store: holds the state: an address such as ``"memory"``, or a store that several limiters share.
        name: separates this limiter from others in the same store; same name and same shape of quotas: same state.
        clock: the source of time, for tests; only with a store given by address.
        on_store_failure: the decision while the store is unavailable: ``"local"`` (by this process, with its share),
            ``"allow"``, ``"deny"``, or ``"raise"`` for a StoreError. Default: ``"local"`` for an address of Redis.
        nodes: number of processes, including this one, that share the limits, for ``"local"``. Default: counted in
        Redis.

    Safe for any number of threads.
    """

    def __init__(
        self,
        quotas: Quotas,
        *,
        store: str | Store = "memory",
        name: str = "default",
        clock: Clock | None = None,
        on_store_failure: str | None = None,
        nodes: int | None = None,
    ) -> None:
        opened = partial(open_resilient_store, store, clock=clock, on_store_failure=on_store_failure, nodes=nodes)
        super().__init__(quotas, name, opened)
        self._check = self._store.bind(self._family)
        if type(self).check is Limiter.check:  # call the store's bound check directly
            self.check = _shown_as(Limiter.check, self._check)  # type: ignore[method-assign]

    def check(self, key: str, cost: int = 1) -> Decision:
        """Take `cost` now if every limit admits it, else take nothing. A cost of 0 peeks.

        Raises InvalidKey, InvalidCost, and CostTooLarge for a cost that could never pass.
        """
        return self._check(key, cost)

    def peek(self, key: str, cost: int = 1) -> Decision:
        """Return what a check of `cost` would decide; take nothing. `remaining` is the current remainder."""
        return self._check(key, 0) if cost is _ONE else self._store.run(self._peek_call(key, cost))

    def check_once(self, key: str, idempotency_key: str, cost: int = 1) -> Decision:
        """Check; a repetition with the same `idempotency_key` counts once.

        Within 5 minutes, the same `idempotency_key` (text of 1 to 512 characters) for the same `key` and `cost` returns
        the first decision unchanged, and takes nothing. Refusals took nothing and are not remembered.
        """
        call = self._once_call(key, idempotency_key, cost)
        return with_identity(self._store.run(call), call.token)

    def acquire(self, key: str, cost: int = 1, *, timeout: float | None = None) -> Decision:
        """Wait until `cost` is taken, in a queue with other callers of `key`.

        Returns as soon as the outcome is certain: the admission, or a refusal if it cannot come within `timeout`
        seconds (None: wait indefinitely). A queueing limit's delay is waited for as well.
        """
        store, ticket = self._store, waiting.ThreadTicket()

        def do(step: Call | waiting.Pause) -> Decision | None:
            if isinstance(step, Call):
                return store.run(step)
            store.clock.wait(ticket.event if step.listen else threading.Event(), step.until)
            return None

        return drive(self._acquisition(key, cost, timeout, ticket), do)

    def refund(self, key: str, cost: Decision | int = 1) -> Decision:
        """Refund what `cost`, a decision for `key`, took: as far as it still counts, and only once.

        A refunded decision admits nothing that would not have been admitted without its request. A number of units is
        refunded from the newest usage, and never more than is counted. Refunding an old charge by number may admit that
        many units twice in one window. Returns the remainder.
        """
        decision = self._store.run(self._refund_call(key, cost))
        self._queues.wake(key)
        return decision

    def reset(self, key: str) -> None:
        """Reset all usage of `key` (but see `MemoryStore` on keys that share a state)."""
        self._store.run(Call(Verb.RESET, self._family.plan(key)))
        self._queues.wake(key)

    def guard(self, key: Key, cost: int = 1, *, timeout: float | None = 0) -> Guard:
        """Return a context manager and decorator that runs code only when admitted.

        >>> limiter = Limiter("10/s")
        >>> with limiter.guard("reports"):
        ...     pass
        >>> @limiter.guard(lambda user: f"user:{user}", timeout=1)
        ... def handle(user): ...

        It waits up to `timeout` seconds, by default not at all, and raises `LimitExceeded` when refused. A decorator's
        key may be a function of the call's arguments.
        """
        return Guard(self, key, cost, timeout)

    def ready(self) -> None:
        """Return if the store can decide, else raise a StoreError with the reason. For health checks."""
        self._store.ready()

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLimiter(_Limits[AsyncStore]):
    """`headgate.Limiter` for code in an event loop: the same arguments and methods, most of which are awaited."""

    def __init__(
        self,
        quotas: Quotas,
        *,
        store: str | AsyncStore | MemoryStore = "memory",
        name: str = "default",
        clock: Clock | None = None,
        on_store_failure: str | None = None,
        nodes: int | None = None,
    ) -> None:
        opened = partial(open_resilient_async_store, store, clock=clock, on_store_failure=on_store_failure, nodes=nodes)
        super().__init__(quotas, name, opened)
        self._check = self._store.bind(self._family)
        if type(self).check is AsyncLimiter.check:  # call the store's bound check directly
            self.check = _shown_as(AsyncLimiter.check, self._check)  # type: ignore[method-assign]

    def check(self, key: str, cost: int = 1) -> Awaitable[Decision]:
        """``await limiter.check(key)``: as `Limiter.check`."""
        return self._check(key, cost)

    async def peek(self, key: str, cost: int = 1) -> Decision:
        """Return what a check would decide, as `Limiter.peek`."""
        if cost is _ONE:
            return await self._check(key, 0)
        return await self._store.run(self._peek_call(key, cost))

    async def check_once(self, key: str, idempotency_key: str, cost: int = 1) -> Decision:
        """Check; a repetition with the same `idempotency_key` counts once, as `Limiter.check_once`."""
        call = self._once_call(key, idempotency_key, cost)
        return with_identity(await self._store.run(call), call.token)

    async def acquire(self, key: str, cost: int = 1, *, timeout: float | None = None) -> Decision:  # noqa: ASYNC109  a refusal, not a TimeoutError
        """Wait until `cost` is taken, as `Limiter.acquire`. A cancelled task leaves the queue."""
        store, ticket = self._store, waiting.TaskTicket()

        async def do(step: Call | waiting.Pause) -> Decision | None:
            if isinstance(step, Call):
                return await store.run(step)
            await store.clock.wait_async(ticket.event if step.listen else asyncio.Event(), step.until)
            return None

        return await drive_async(self._acquisition(key, cost, timeout, ticket), do)

    async def refund(self, key: str, cost: Decision | int = 1) -> Decision:
        """Refund what `cost` took, as `Limiter.refund`."""
        decision = await self._store.run(self._refund_call(key, cost))
        self._queues.wake(key)
        return decision

    async def reset(self, key: str) -> None:
        """Reset all usage of `key`, as `Limiter.reset`."""
        await self._store.run(Call(Verb.RESET, self._family.plan(key)))
        self._queues.wake(key)

    def guard(self, key: Key, cost: int = 1, *, timeout: float | None = 0) -> AsyncGuard:
        """Return an asynchronous context manager and decorator, as `Limiter.guard`."""
        return AsyncGuard(self, key, cost, timeout)

    async def ready(self) -> None:
        """Return if the store can decide, as `Limiter.ready`."""
        await self._store.ready()

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _shown_as(method: F, bound: F) -> F:
    """Return a store's bound check with the help and the name of the method that it replaces."""
    if isinstance(bound, FunctionType) and isinstance(method, FunctionType) and "<locals>" in bound.__qualname__:
        bound.__doc__, bound.__qualname__ = method.__doc__, method.__qualname__
    return bound


class _Guard(Generic[AnyLimiter]):
    def __init__(self, limiter: AnyLimiter, key: Key, cost: int, timeout: float | None) -> None:
        self._limiter, self._key, self._cost, self._timeout = limiter, key, cost, timeout

    def _key_of(self, *args: Any, **kwargs: Any) -> str:
        return self._key(*args, **kwargs) if callable(self._key) else self._key

    def _key_of_block(self) -> str:
        if callable(self._key):  # a block has no arguments
            raise UsageError("a function as key of guard(...) works only for decorated functions")
        return self._key


class Guard(_Guard[Limiter]):
    """A context manager and decorator; see `Limiter.guard`."""

    def __enter__(self) -> Decision:
        return self._pass(self._key_of_block())

    def __exit__(self, *_: object) -> None:
        """Keep what was taken."""

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(function):
            raise UsageError(f"{function!r} is a coroutine function: guard it with an AsyncLimiter")

        @wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            self._pass(self._key_of(*args, **kwargs))
            return function(*args, **kwargs)

        return guarded

    def _pass(self, key: str) -> Decision:
        return _require(key, self._limiter.acquire(key, self._cost, timeout=self._timeout))


class AsyncGuard(_Guard[AsyncLimiter]):
    """An asynchronous context manager and decorator; see `AsyncLimiter.guard`."""

    async def __aenter__(self) -> Decision:
        return await self._pass(self._key_of_block())

    async def __aexit__(self, *_: object) -> None:
        """Keep what was taken."""

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        if not inspect.iscoroutinefunction(function):
            raise UsageError(f"{function!r} is not a coroutine function: guard it with a Limiter")

        @wraps(function)
        async def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            await self._pass(self._key_of(*args, **kwargs))
            return await function(*args, **kwargs)

        return guarded

    async def _pass(self, key: str) -> Decision:
        return _require(key, await self._limiter.acquire(key, self._cost, timeout=self._timeout))


def _require(key: str, decision: Decision) -> Decision:
    if not decision:
        raise LimitExceeded(key, decision)
    return decision

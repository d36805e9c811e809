"""The library for code that may block: threads, scripts, WSGI applications."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from headgate import waiting
from headgate.binding import Key, Quotas, family_of, key_for_block, refund_for, shown_as
from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import LimitExceeded, UsageError
from headgate.core.key import once_token
from headgate.core.plan import Call, Verb
from headgate.core.quota import Quota
from headgate.flows import drive
from headgate.stores import open_resilient_store
from headgate.stores.base import Store

P = ParamSpec("P")
R = TypeVar("R")
_ONE = 1
"""The usual cost, compared by identity: True and 1.0 equal it, but are not costs."""


class Limiter:
    """Limits how often something may happen, for each key on its own.

    >>> limiter = Limiter("2/minute")
    >>> limiter.check("user:42").allowed, limiter.check("user:42").allowed, limiter.check("user:42").allowed
    (True, True, False)

    Several quotas make one atomic decision: a request passes all of them, or takes from none.

    Args:
        quotas: text such as ``"100/minute"`` or ``"10/s burst 20; 5000/day"``, or `Quota` objects.
        store: where the state lives: an address such as ``"memory"``, or a store that several limiters share.
        name: separates this limiter from others in the same store; same name, same quotas' shape: same state.
        clock: where time comes from, for tests; only with a store given by address.
        on_store_failure: what to answer while the store is away: ``"local"`` (this process decides, with its share),
            ``"allow"``, ``"deny"``, or ``"raise"`` for a StoreError. Default: ``"local"`` for an address of Redis.
        nodes: how many processes share the limits, this one included, for ``"local"``.

    Safe for use from any number of threads.
    """

    def __init__(
        self,
        quotas: Quotas,
        *,
        store: str | Store = "memory",
        name: str = "default",
        clock: Clock | None = None,
        on_store_failure: str | None = None,
        nodes: int = 1,
    ) -> None:
        self._family = family_of(quotas, name)
        self._store = open_resilient_store(store, clock=clock, on_store_failure=on_store_failure, nodes=nodes)
        self._clock = self._store.clock
        self._lines = waiting.Lines()
        self._check = self._store.bind(self._family)
        if type(self).check is Limiter.check:  # what the store has prepared, without a method's call in between
            self.check = shown_as(Limiter.check, self._check)  # type: ignore[method-assign]

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """The quotas, in order."""
        return self._family.quotas

    def check(self, key: str, cost: int = 1) -> Decision:
        """Take `cost` now if every limit admits it, else take nothing. A cost of 0 peeks.

        Raises InvalidKey, InvalidCost, and CostTooLarge for a cost that could never pass.
        """
        return self._check(key, cost)

    def peek(self, key: str, cost: int = 1) -> Decision:
        """Say whether `cost` would pass now; take nothing. `remaining` is what there is."""
        if cost is _ONE:
            return self._check(key, 0)
        return self._store.run(Call(Verb.PEEK, self._family.plan(key), self._family.checked_cost(cost)))

    def check_once(self, key: str, idempotency_key: str, cost: int = 1) -> Decision:
        """Check, but count a request that is sent again only once.

        Asked again within 5 minutes with the same `idempotency_key` (text of 1 to 512 characters), for the same `key`
        and `cost`, it gives the first answer again, exactly as it was, and takes nothing. Refusals took nothing and are
        not remembered.
        """
        plan, cost = self._family.plan(key), self._family.checked_cost(cost)
        return self._store.run(Call(Verb.CHECK_ONCE, plan, cost, once_token(plan, cost, idempotency_key)))

    def acquire(self, key: str, cost: int = 1, *, timeout: float | None = None) -> Decision:
        """Wait until `cost` is taken, in line behind all who wait for `key` already.

        Returns as soon as the answer is certain: the admission, or a refusal once it cannot come within `timeout`
        seconds (None: no end to waiting). A queue's delay is waited for as well.
        """
        plan, cost = self._family.plan(key), self._family.checked_cost(cost)
        ticket = waiting.ThreadTicket()
        until = waiting.deadline(self._clock.ticks(), timeout)
        flow = waiting.acquire(self._lines, key, ticket, self._clock, waiting.Wanted(plan, cost, until))

        def do(step: Call | waiting.Pause) -> Decision | None:
            if isinstance(step, Call):
                return self._store.run(step)
            self._clock.wait(ticket.event if step.listen else threading.Event(), step.until)
            return None

        return drive(flow, do)

    def refund(self, key: str, cost: Decision | int = 1) -> Decision:
        """Give back what `cost`, a decision for `key`, took: as far as it still counts, and only once.

        That lets nobody pass who would not have passed without the request. A number of units is given back as well,
        off the newest use, whatever that was for, and never more than is counted as used. Whoever gives back a charge
        that is old by then, in this way, lets others pass twice in one window: up to the number given back. Says what
        is left then.
        """
        with refund_for(self._family, key, cost) as refund:
            decision = refund.done(self._store.run(refund.call))
        self._lines.wake(key)
        return decision

    def reset(self, key: str) -> None:
        """Forget all that `key` used (but see `MemoryStore` on keys that had to share a state)."""
        self._store.run(Call(Verb.RESET, self._family.plan(key)))
        self._lines.wake(key)

    def guard(self, key: Key, cost: int = 1, *, timeout: float | None = 0) -> Guard:
        """Return a context manager and decorator that lets code run only when admitted.

        >>> limiter = Limiter("10/s")
        >>> with limiter.guard("reports"):
        ...     pass
        >>> @limiter.guard(lambda user: f"user:{user}", timeout=1)
        ... def handle(user): ...

        It waits up to `timeout` seconds, by default not at all, and raises `LimitExceeded` when refused. A decorator's
        key may be a function, which gets the arguments of the call.
        """
        return Guard(self, key, cost, timeout)

    def ready(self) -> None:
        """Return when the store can decide now, else raise StoreError, which says why not. For health checks."""
        self._store.ready()

    def close(self) -> None:
        """Release what the store holds."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'; '.join(map(str, self.quotas))!r})"


class Guard:
    """Made by `Limiter.guard`."""

    def __init__(self, limiter: Limiter, key: Key, cost: int, timeout: float | None) -> None:
        self._limiter, self._key, self._cost, self._timeout = limiter, key, cost, timeout

    def __enter__(self) -> Decision:
        return self._pass(key_for_block(self._key))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to undo: what was taken stays taken."""

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(function):
            raise UsageError(f"{function!r} is a coroutine function: guard it with an AsyncLimiter")
        key = self._key

        @wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            self._pass(key(*args, **kwargs) if callable(key) else key)
            return function(*args, **kwargs)

        return guarded

    def _pass(self, key: str) -> Decision:
        decision = self._limiter.acquire(key, self._cost, timeout=self._timeout)
        if not decision:
            raise LimitExceeded(key, decision)
        return decision

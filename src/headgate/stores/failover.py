"""A store around a store, which always answers: asks the inner one, and decides by itself when that one does not.

Every answer the inner store did not give says so: `Decision.degraded` has the reason. While the store is away nobody
waits for it (see `headgate.stores.breaker`); when it is back, that is noticed without anybody's help.

What the modes promise while the store is away, for a limit of capacity C on N nodes:

* ``local``: this node decides with its share. All nodes together admit at most N * ceil(C / N), which is less than
  C + N, in addition to what the store admits before and after, however often it comes and goes (and a bucket refills by
  at most N * ceil(limit / N) per window). So where C may pass, less than 2 C + N do around an outage if the store kept
  its state, and less than 3 C + N if it came back empty. More nodes than N admit a share each; fewer admit less.
* ``allow``: no limit holds. ``deny``: nothing passes.

A question whose outcome is unknown is never asked again: the mode answers. Perhaps the store has taken the cost all the
same; then it admits that much less later. What `check_once` promises holds for each that answers, the store and the
mode: a retry that the other one answers counts there as well.

What sync and async share is in `headgate.stores.attempt`; the two stores differ in their awaits only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, Unpack

from headgate.core.decision import Decision
from headgate.core.errors import InvalidStore, StoreError
from headgate.core.mode import Mode
from headgate.core.plan import Family, Limit, Plan
from headgate.stores.attempt import Failover, Reason, Statistics
from headgate.stores.base import AsyncCheck, AsyncStore, Check, Sharded, Store
from headgate.stores.binding import plain_async_check, plain_check
from headgate.stores.deadline import Timely
from headgate.stores.inner import check_colour

__all__ = ["AsyncFailoverStore", "FailoverStore", "Options", "Reason", "Statistics"]


class Options(TypedDict, total=False):
    """What both failover stores accept besides the store."""

    mode: str | Callable[[Limit], Mode]
    """What to answer when the store does not: "local" unless told, "allow" or "deny"; or a function that tells for each
    limit."""
    nodes: int
    """How many nodes share the limits, this one included, for the mode "local"; 1 unless told."""
    max_keys: int
    """The most states of single keys that the mode "local" keeps; see `MemoryStore`."""
    failures: int
    """So many failures in a row open the circuit; 5 unless told."""
    pause: float
    """Seconds until the first probe; 0.25 unless told. Each probe that fails doubles it, and chance shortens it."""
    longest_pause: float
    """The most it grows to, in seconds; 2 unless told."""
    shard_of: Callable[[Plan], str] | None
    """Names the part of the store that a plan lives on; each has a circuit of its own. The store's own `shard_of`
    unless told; a store without one has one circuit."""


class FailoverStore:
    """A `Store` that always answers, for callers that may block.

    >>> from headgate import Limiter
    >>> from headgate.stores import open_store
    >>> limiter = Limiter("100/minute", store=FailoverStore(open_store("redis://localhost:6379/0"), nodes=4))

    Args:
        store: the store to ask. It answers or raises a `StoreError`, and that before callers lose patience: a call that
            is cancelled says nothing about the store, and so never opens the circuit.
        deadline: not here: a blocking call cannot be given up. See `AsyncFailoverStore`.
        options: see `Options`.

    Of the verbs, only `reset` raises StoreError: it forgets what this node decided, and whoever asked for a reset must
    know when the store was not reset.
    """

    def __init__(self, store: Store, *, deadline: None = None, **options: Unpack[Options]) -> None:
        check_colour(store, asynchronous=False, outer=type(self))
        if deadline is not None:
            raise InvalidStore("a blocking call cannot be given up: deadline is for AsyncFailoverStore only")
        self._store = store
        self.clock = store.clock
        self._failover = Failover(store.clock, **_with_shards(store, options))

    def check(self, plan: Plan, cost: int) -> Decision:
        attempt = self._failover.attempt(plan)
        with attempt as may_ask:
            if may_ask:
                return self._store.check(plan, cost)
        return attempt.check(plan, cost)

    def check_once(self, plan: Plan, cost: int, token: bytes) -> Decision:
        attempt = self._failover.attempt(plan)
        with attempt as may_ask:
            if may_ask:
                return self._store.check_once(plan, cost, token)
        return attempt.check_once(plan, cost, token)

    def peek(self, plan: Plan, cost: int) -> Decision:
        attempt = self._failover.attempt(plan)
        with attempt as may_ask:
            if may_ask:
                return self._store.peek(plan, cost)
        return attempt.peek(plan, cost)

    def refund(self, plan: Plan, cost: int) -> Decision:
        attempt = self._failover.attempt(plan)
        with attempt as may_ask:
            if may_ask:
                return self._store.refund(plan, cost)
        return attempt.refund(plan, cost)

    def reset(self, plan: Plan) -> None:
        attempt = self._failover.attempt(plan)
        attempt.reset(plan)
        with attempt as may_ask:
            if may_ask:
                self._store.reset(plan)
                return
        raise attempt.error()

    def bind(self, family: Family) -> Check:
        failover, careful = self._failover, plain_check(self, family)
        if failover.is_sharded:
            return careful
        bound = self._store.bind(family)

        def check(key: str, cost: int = 1) -> Decision:
            attempt = failover.attempt_any()
            if not attempt.is_calm:  # what is not acceptable must not become the probe, so look first
                return careful(key, cost)
            with attempt as may_ask:
                if may_ask:
                    return bound(key, cost)
            return plain_check(attempt, family)(key, cost)

        return check

    def ready(self) -> None:
        """Return when the inner store can decide now, else raise its StoreError: for health checks.

        This store answers all the same.
        """
        self._store.ready()

    def statistics(self) -> Statistics:
        """Return what happened so far, for metrics."""
        return self._failover.statistics()

    def close(self) -> None:
        self._failover.close()
        self._store.close()


class AsyncFailoverStore:
    """The same for callers in an event loop: an `AsyncStore` that always answers.

    Args:
        store: the store to ask.
        deadline: seconds after which a call of the store counts as failed, with an unknown outcome: for a store that
            has no deadline of its own. None unless told.
        options: see `Options`.
    """

    def __init__(self, store: AsyncStore, *, deadline: float | None = None, **options: Unpack[Options]) -> None:
        check_colour(store, asynchronous=True, outer=type(self))
        self._store = store if deadline is None else Timely(store, deadline)
        self.clock = store.clock
        self._failover = Failover(store.clock, **_with_shards(store, options))

    async def check(self, plan: Plan, cost: int) -> Decision:
        failover = self._failover
        if failover.is_sharded or not failover.is_untroubled:
            attempt = failover.attempt(plan)
            with attempt as may_ask:
                if may_ask:
                    return await self._store.check(plan, cost)
            return attempt.check(plan, cost)
        failover.calls += 1  # an event loop has one thread
        ticket = failover.ticket
        try:
            decision = await self._store.check(plan, cost)
        except StoreError as error:
            return failover.failed(ticket, error).check(plan, cost)
        if not failover.is_untroubled:
            failover.succeeded(ticket)
        return decision

    async def check_once(self, plan: Plan, cost: int, token: bytes) -> Decision:
        attempt = self._failover.attempt(plan)
        with attempt as may_ask:
            if may_ask:
                return await self._store.check_once(plan, cost, token)
        return attempt.check_once(plan, cost, token)

    async def peek(self, plan: Plan, cost: int) -> Decision:
        attempt = self._failover.attempt(plan)
        with attempt as may_ask:
            if may_ask:
                return await self._store.peek(plan, cost)
        return attempt.peek(plan, cost)

    async def refund(self, plan: Plan, cost: int) -> Decision:
        attempt = self._failover.attempt(plan)
        with attempt as may_ask:
            if may_ask:
                return await self._store.refund(plan, cost)
        return attempt.refund(plan, cost)

    async def reset(self, plan: Plan) -> None:
        attempt = self._failover.attempt(plan)
        attempt.reset(plan)
        with attempt as may_ask:
            if may_ask:
                await self._store.reset(plan)
                return
        raise attempt.error()

    def bind(self, family: Family) -> AsyncCheck:
        failover, careful = self._failover, plain_async_check(self, family)
        if failover.is_sharded:
            return careful
        bound = self._store.bind(family)

        async def check(key: str, cost: int = 1) -> Decision:
            if not failover.is_untroubled:  # what is not acceptable must not become the probe, so look first
                return await careful(key, cost)
            failover.calls += 1  # an event loop has one thread
            ticket = failover.ticket
            try:
                decision = await bound(key, cost)
            except StoreError as error:
                return plain_check(failover.failed(ticket, error), family)(key, cost)
            if not failover.is_untroubled:
                failover.succeeded(ticket)
            return decision

        return check

    async def ready(self) -> None:
        """Return when the inner store can decide now, else raise its StoreError: for health checks."""
        await self._store.ready()

    def statistics(self) -> Statistics:
        """Return what happened so far, for metrics."""
        return self._failover.statistics()

    async def close(self) -> None:
        self._failover.close()
        await self._store.close()


def _with_shards(store: Store | AsyncStore, options: Options) -> Options:
    if options.get("shard_of") is None and isinstance(store, Sharded):
        options["shard_of"] = store.shard_of
    return options

"""The contract of a store: it runs a call atomically, and nothing else.

A store never interprets a quota. In memory it calls `headgate.core.plan.decide` under a lock; elsewhere it runs the
twin of that function where the state is. `headgate.testing.conformance` is the contract as a test suite.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import Protocol, runtime_checkable

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.plan import Call, Family, Plan, Verb


class Check(Protocol):
    """Takes `cost` for `key` if all its limits admit it, else nothing; a cost of 0 peeks instead.

    Raises InvalidKey, InvalidCost.
    """

    def __call__(self, key: str, cost: int = 1) -> Decision: ...


class AsyncCheck(Protocol):
    """The same for an event loop."""

    def __call__(self, key: str, cost: int = 1) -> Awaitable[Decision]: ...


class Store(Protocol):
    """Keeps the state of limits, for callers that may block."""

    clock: Clock
    """The clock of the callers' waits."""

    def run(self, call: Call) -> Decision:
        """Run a call (see `headgate.core.plan.Verb`), and return the decision.

        It is atomic: no other call, from any thread, process or host that shares the state, sees or changes it
        meanwhile. The caller has checked cost and plan.
        """

    def bind(self, family: Family) -> Check:
        """Return a function that checks keys of `family`, prepared for many calls."""

    def ready(self) -> None:
        """Return if the store can decide now, else raise a StoreError with the reason."""

    def close(self) -> None:
        """Release all resources and the state in this process."""


class AsyncStore(Protocol):
    """The same contract for an event loop, which it never blocks."""

    clock: Clock

    async def run(self, call: Call) -> Decision: ...

    def bind(self, family: Family) -> AsyncCheck: ...

    async def ready(self) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class WithDeadlines(Protocol):
    """An optional interface of an `AsyncStore`: deadlines of its callers."""

    def within(self, seconds: float) -> AsyncStore:
        """Return the same store for callers that wait at most `seconds`, and no longer than the store does.

        After that it raises OutcomeUnknown; a later answer is passed to its `on_late_answer`.
        """


@runtime_checkable
class Sharded(Protocol):
    """An optional interface of a store on several servers, which fail one by one.

    No method waits or fails. The errors of such a store name the server that did not answer (`StoreError.server`).
    """

    def servers_of(self, plan: Plan) -> tuple[str, ...]:
        """Return the name of the server of each limit; empty where it is not known yet."""

    def servers(self) -> Collection[str]:
        """Return the names of all servers of the store; empty if they are not known yet."""


def plain_check(store: Store, family: Family) -> Check:
    """Return the function that checks keys of `family`, for a store without a faster one."""
    return lambda key, cost=1: store.run(_call_for(family, key, cost))


def plain_async_check(store: AsyncStore, family: Family) -> AsyncCheck:
    return lambda key, cost=1: store.run(_call_for(family, key, cost))


def _call_for(family: Family, key: str, cost: int) -> Call:
    plan = family.plan(key)
    if type(cost) is int and cost == 0:
        return Call(Verb.PEEK, plan, 1)
    return Call(Verb.CHECK, plan, family.checked_cost(cost))

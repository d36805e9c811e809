"""The contract of a store: it runs a call atomically. That is all a store does.

A store never interprets a quota. In memory it calls `headgate.core.plan.decide` under a lock; elsewhere it runs the
twin of that function where the state lives. `headgate.testing.conformance` is the contract as a test suite.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import Protocol, runtime_checkable

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.plan import Call, Family, Plan


class Check(Protocol):
    """Takes `cost` for `key` if all its limits admit it, else nothing; a cost of 0 peeks instead.

    Raises InvalidKey, InvalidCost.
    """

    def __call__(self, key: str, cost: int = 1) -> Decision: ...


class AsyncCheck(Protocol):
    """The same for callers in an event loop."""

    def __call__(self, key: str, cost: int = 1) -> Awaitable[Decision]: ...


class Store(Protocol):
    """Keeps the state of limits for callers that may block."""

    clock: Clock
    """The clock that callers wait on."""

    def run(self, call: Call) -> Decision:
        """Do what a call says (see `headgate.core.plan.Verb`), and answer it.

        It is atomic: no other call, from any thread, process or host that shares the state, sees or changes it in
        between. Costs and plans have been checked by the caller.
        """
        ...

    def bind(self, family: Family) -> Check:
        """Return the function that checks keys of `family`, prepared for many calls."""
        ...

    def ready(self) -> None:
        """Return when the store can decide now, else raise a StoreError that says why not."""
        ...

    def close(self) -> None:
        """Release what the store holds; what it kept in this process is forgotten."""
        ...


class AsyncStore(Protocol):
    """The same contract for callers in an event loop, which it never blocks."""

    clock: Clock

    async def run(self, call: Call) -> Decision: ...

    def bind(self, family: Family) -> AsyncCheck: ...

    async def ready(self) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class WithDeadlines(Protocol):
    """What a store for callers in an event loop may offer besides, if they may have deadlines of their own."""

    def within(self, seconds: float) -> AsyncStore:
        """Return the same store for callers that wait no longer than so many seconds, and no longer than it does.

        It raises OutcomeUnknown then. An answer that comes later is given to its `told_late`.
        """
        ...


@runtime_checkable
class Sharded(Protocol):
    """What a store of either kind may offer besides, if it lives on several servers, which fail one by one.

    Neither method ever waits or fails. Errors of such a store say which server did not answer (`StoreError.server`).
    """

    def servers_of(self, plan: Plan) -> tuple[str, ...]:
        """Return the name of the server of each limit, as far as is known now; empty where it is not."""
        ...

    def servers(self) -> Collection[str]:
        """Return the names of all servers that have a part of the store; none if that is not known yet."""
        ...

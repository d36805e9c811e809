"""The contract of a store: it runs a plan atomically. That is all a store does.

A store never interprets a quota. In memory it calls the pure functions of `headgate.core.plan` under a lock; elsewhere
it runs their twin where the state lives. `headgate.testing.conformance` is the contract as a test suite.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import Protocol, runtime_checkable

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.plan import Charge, Family, Plan


class Check(Protocol):
    """Takes `cost` for `key` if all its limits admit it, else nothing; a cost of 0 peeks instead.

    Raises InvalidKey, InvalidCost.
    """

    def __call__(self, key: str, cost: int = 1) -> Decision: ...


class AsyncCheck(Protocol):
    """The same for callers in an event loop."""

    def __call__(self, key: str, cost: int = 1) -> Awaitable[Decision]: ...


class Store(Protocol):
    """Keeps the state of limits for callers that may block.

    Every method is atomic: no other call, from any thread, process or host that shares the state, sees or changes it
    in between. Costs and plans have been checked by the caller.
    """

    clock: Clock
    """The clock that callers wait on."""

    def check(self, plan: Plan, cost: int) -> Decision:
        """Take `cost` from all limits of the plan if all admit it, else from none."""
        ...

    def check_once(self, plan: Plan, cost: int, token: bytes) -> Decision:
        """Do as `check`, but only once: give the first answer again, and take nothing, when asked with its token again.

        An admission is remembered for 5 minutes (`headgate.core.key.ONCE_US`), exactly as it was, whatever happens to
        the limits meanwhile; it is remembered by the same atomic step that takes the cost. A refusal took nothing and
        is not remembered: who waited as long as it says is admitted. `token` is that of `once_token` for this plan and
        cost. (Where a limit was changed in between, the answer may name the new limit.)
        """
        ...

    def peek(self, plan: Plan, cost: int) -> Decision:
        """Say what `check` would answer; take nothing."""
        ...

    def refund(self, plan: Plan, cost: int, charge: Charge | None = None) -> Decision:
        """Give `cost` back to all limits of the plan, and never more than is counted as used; says what is left then.

        With a `charge` it is what that charge took, as far as it surely still counts. Without, it is taken off the
        newest use, whatever that was for.
        """
        ...

    def reset(self, plan: Plan) -> None:
        """Forget all that was used of the limits of the plan."""
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

    async def check(self, plan: Plan, cost: int) -> Decision: ...

    async def check_once(self, plan: Plan, cost: int, token: bytes) -> Decision: ...

    async def peek(self, plan: Plan, cost: int) -> Decision: ...

    async def refund(self, plan: Plan, cost: int, charge: Charge | None = None) -> Decision: ...

    async def reset(self, plan: Plan) -> None: ...

    def bind(self, family: Family) -> AsyncCheck: ...

    async def ready(self) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class Hurried(Protocol):
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

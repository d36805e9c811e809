"""What is written once for stores and those who call them: checks of a family, refunds, and the options of wrappers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from msgspec.structs import force_setattr

from headgate.core.decision import Decision
from headgate.core.errors import InvalidStore, StoreUnavailable
from headgate.core.numbers import short
from headgate.core.plan import Call, Family, Plan, Verb, refund_of
from headgate.stores.base import AsyncCheck, AsyncStore, Check, Store
from headgate.stores.circuits import Reason

_NOT_ASKED = {Reason.STORE_UNAVAILABLE, Reason.CIRCUIT_OPEN, Reason.OVERLOADED}
"""Why a decision of a failover store is degraded: the store was not asked, or was not reached."""


class Refund:
    """A refund under way: a context manager in which its call is made.

    A decision is refunded once: from then on it says that it took nothing. If the store surely did not give it back,
    that can be tried again.

    Args:
        plan: the limits.
        what: the decision about them that took what is given back, or a number of units.
        told: who says then that nothing was taken, if not that decision.
    """

    def __init__(self, plan: Plan, what: Decision | int, told: Sequence[Decision] = ()) -> None:
        if isinstance(what, int):
            self.call, self._told, self._taken = Call(Verb.REFUND, plan, what), told, 0
        else:
            self.call, self._told, self._taken = refund_of(plan, what), told or (what,), what.taken

    def __enter__(self) -> Self:
        self._tell(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StoreUnavailable):
            self._tell(self._taken)

    def done(self, answer: Decision) -> Decision:
        """Return the answer to the call, having noted whether it says that the store was not asked."""
        charge = self.call.charge
        if charge is not None and charge.degraded not in _NOT_ASKED and answer.degraded in _NOT_ASKED:
            self._tell(self._taken)
        return answer

    def _tell(self, taken: int) -> None:
        for decision in self._told:
            force_setattr(decision, "taken", taken)


def call_for(family: Family, key: str, cost: int) -> Call:
    """Return the call that checks a key of `family`; a cost of 0 peeks. Raises InvalidKey, InvalidCost."""
    plan = family.plan(key)
    if type(cost) is int and cost == 0:
        return Call(Verb.PEEK, plan, 1)
    return Call(Verb.CHECK, plan, family.checked_cost(cost))


def plain_check(store: Store, family: Family) -> Check:
    """Return the function that checks keys of `family`, for a store that has no quicker one."""
    return lambda key, cost=1: store.run(call_for(family, key, cost))


def plain_async_check(store: AsyncStore, family: Family) -> AsyncCheck:
    """Do the same for callers in an event loop."""
    return lambda key, cost=1: store.run(call_for(family, key, cost))


def check_colour(store: object, *, asynchronous: bool, outer: type) -> None:
    """Refuse what is not a store object, and one that the store `outer` cannot call."""
    run = getattr(store, "run", None)
    if isinstance(store, str | type) or run is None:
        raise InvalidStore(f"a store object is needed, not {short(store)}: open it with open_store or open_async_store")
    if inspect.iscoroutinefunction(run) != asynchronous:
        name = outer.__name__.removeprefix("Async")
        raise InvalidStore(f"{type(store).__name__} is for the other of {name} and Async{name}")


def microseconds(name: str, seconds: object, *, or_none: bool = False) -> int:
    """Return an option that is given in seconds, up to an hour; 0 only where that stands for never."""
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        if 0 < seconds <= 3600:
            return max(1, round(seconds * 1_000_000))
        if seconds == 0 and or_none:
            return 0
    accepted = "from 0 to 3600" if or_none else "above 0 and up to 3600"
    raise InvalidStore(f"{name} must be a number of seconds {accepted}, not {short(seconds)}")

"""Decides by quotas alone, with the verbs of an engine."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.core.decision import Decision
from headgate.core.mode import Mode
from headgate.core.plan import Call, Family, Plan, Verb, checked_cost
from headgate.engine import Ruling
from headgate.integrations.budget import cached
from headgate.policy.selection import Verdict
from headgate.stores.base import AsyncStore, Store
from headgate.stores.wrapping import refund_for

_LIMITED = Verdict.LIMITED


class QuotaRequest(msgspec.Struct, frozen=True, gc=False):
    """A request for quotas: a key of a family or, for several families, a plan."""

    names: tuple[str, ...]
    """The name of the budget of each limit."""
    cost: int
    family: Family | None = None
    key: str = ""
    joined: Plan = ()
    """The limits of several families."""

    @property
    def plan(self) -> Plan:
        """All limits. Raises InvalidKey."""
        return self.family.plan(self.key) if self.family is not None else self.joined

    def ruling(self, decision: Decision) -> Ruling:
        """Return a decision as a ruling."""
        names = self.names
        return Ruling(decision.allowed, _LIMITED, decision, names[decision.index], names, matched=True)


class QuotaEngine:
    """Decides by the quotas of requests.

    Args:
        store: an open one. If it is asynchronous, all methods but `mode_of` return awaitables.
        mode: what to answer while the store is unavailable.
        is_async: whether the store is asynchronous.
    """

    def __init__(self, store: Store | AsyncStore, mode: str | None, *, is_async: bool = False) -> None:
        self.clock, self._mode = store.clock, Mode(mode) if mode in set(Mode) else Mode.LOCAL
        self.is_async = is_async
        self._store: Any = store
        self._bind: Any = cached(self._store.bind)

    def mode_of(self, _: str) -> Mode:
        """Return what is answered while the store is unavailable."""
        return self._mode

    def check(self, request: QuotaRequest) -> Any:
        """Return the decision: takes the cost from all limits, or from none. Raises InvalidCost and InvalidKey."""
        family = request.family
        if family is not None:
            return self._bind(family)(request.key, request.cost)
        if request.cost == 0 and type(request.cost) is int:
            return self._store.run(Call(Verb.PEEK, request.joined))
        cost = checked_cost(request.cost, [limit.quota for limit in request.joined])
        return self._store.run(Call(Verb.CHECK, request.joined, cost))

    def refund(self, request: QuotaRequest, decision: Decision) -> Any:
        """Refund what a decision took; returns the decision afterwards."""
        return self._store.run(refund_for(request.plan, decision))

    def reset(self, request: QuotaRequest) -> Any:
        """Forget what was used."""
        return self._store.run(Call(Verb.RESET, request.plan))

    def close(self) -> Any:
        """Close the store."""
        return self._store.close()

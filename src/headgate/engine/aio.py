"""The engine for callers in an event loop."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from copy import copy
from types import TracebackType
from typing import Self, TypeVar

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.mode import Mode
from headgate.core.plan import Call, Verb
from headgate.engine.binding import Book, Rules, checked_mode, plans_of, to_reset
from headgate.engine.charges import parse, refunded_by_name
from headgate.engine.driving import driven
from headgate.engine.explained import Explained, joined
from headgate.engine.flow import refunded, ruled
from headgate.engine.leftover import used_up
from headgate.engine.ruling import Passed, Reset, Ruling, passed, ruling_of
from headgate.engine.together import Part, selected, together
from headgate.live import LoadStatistics
from headgate.policy.compiled import Policy
from headgate.policy.explain import explain
from headgate.policy.request import Request
from headgate.policy.selection import Selection
from headgate.stores import open_async_store
from headgate.stores.base import AsyncStore
from headgate.stores.failover import AsyncFailoverStore, Statistics
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.stores.traffic import TrafficStatistics, Travelled

Answer = TypeVar("Answer")


class AsyncEngine:
    """Decides requests by rules; see `headgate.engine.Engine`. Shadow rules are asked at the same time.

    Args:
        rules: a file, which is watched for changes; rules; or a policy.
        store: where the state lives: an address, or a store object.
        on_store_failure: what to answer while the store is away, where a rule does not say: local, allow or deny.
        nodes: how many processes share the limits, this one included, for "local".
        clock: where time comes from, for tests; only with a store given by address.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        store: str | AsyncStore | MemoryStore = "memory",
        on_store_failure: str = Mode.LOCAL,
        nodes: int = 1,
        clock: Clock | None = None,
    ) -> None:
        self._book = Book(rules, checked_mode(on_store_failure))
        opened = open_async_store(store, clock=clock)
        self._failover: AsyncFailoverStore | None = None
        self._store: AsyncStore = opened
        self._travelled = opened if isinstance(opened, Travelled) else None
        if not isinstance(opened, AsyncMemoryStore):  # memory is never away
            self._store = self._failover = AsyncFailoverStore(opened, mode=self._book.mode_of_limit, nodes=nodes)
        self._memory = opened.store if isinstance(opened, AsyncMemoryStore) else None
        self._clock = opened.clock
        self._book.open()

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._book.policy()

    @property
    def clock(self) -> Clock:
        """What time it is for the rules."""
        return self._clock

    def mode_of(self, rule_id: str) -> Mode:
        """Return what is answered for a rule while the store is away."""
        return self._book.mode_of(rule_id)

    def within(self, seconds: float) -> AsyncEngine:
        """Return the same engine for callers that wait no longer than so many seconds for the store."""
        if self._failover is None:
            return self
        hurried = copy(self)
        hurried._store = self._failover.within(seconds)  # noqa: SLF001  it is one of us
        return hurried

    async def check(self, request: Request) -> Ruling:
        """Take the request's cost from all limits that apply if all admit it, else from none. A cost of 0 peeks.

        Raises InvalidRequest, InvalidKey, InvalidCost, and CostTooLarge for a cost that could never pass.
        """
        policy = self._book.policy()
        selection, cost = policy.plan(request, self._clock.now()), request.cost
        if selection.shadow or not (selection.enforced.plan and cost):
            return await self._run(ruled(selection, Verb.CHECK, cost, policy.version))
        plan, memory = selection.enforced.plan, self._memory
        call = Call(Verb.CHECK, plan, cost)
        decision = memory.run(call) if memory is not None else await self._store.run(call)
        return ruling_of(selection, decision, policy.version)

    async def check_once(self, request: Request, idempotency_key: str) -> Ruling:
        """Check, but count a request that is sent again with the same key within 5 minutes only once."""
        policy = self.policy
        selection = self._selected(policy, request)
        return await self._run(ruled(selection, Verb.CHECK_ONCE, request.cost, policy.version, idempotency_key))

    async def peek(self, request: Request) -> Ruling:
        """Say what `check` would answer; take nothing."""
        policy = self.policy
        return await self._run(ruled(self._selected(policy, request), Verb.PEEK, request.cost, policy.version))

    async def is_passed(self, client_id: str, rule_id: str) -> Passed:
        """Check one rule, by its id, for one value of what it counts by: passed, reset time, limit, remaining.

        Raises UnknownRule for a rule that does not exist. `check` does the same with a cost, or several principals:
        ``check(Request({"user": "42"}, cost=5, rule_id="orders-user"))``.
        """
        now = self._clock.now()
        return passed(await self.check(self._book.policy().request_of(client_id, rule_id)), now)

    async def check_together(self, parts: Sequence[Part]) -> tuple[Ruling, ...]:
        """Take the costs of several requests if all of them pass, else none; see `headgate.engine.together`.

        Each ruling says what the limits of its own request say: some may be allowed, and yet nothing was taken.
        """
        return await self._run(together(self._book.policy(), parts, self._clock.now()))

    async def use_up(self, part: Part) -> None:
        """Take a request's cost from each limit that applies, or what is left of it: it was used already."""
        selection = selected(self._book.policy(), part, self._clock.now())
        for plan in plans_of(selection):
            await self._run(used_up(plan, part.request.cost))

    async def refund(self, request: Request | Ruling, charge: str = "") -> Ruling:
        """Give back what a ruling took, to the limits that it took it from, as far as it still counts. Once is enough.

        Elsewhere, where the ruling is not at hand, the request and `charge_of` the ruling do the same. With a request
        alone its cost is given back, to all limits that apply to it now, off their newest use, whatever that was for;
        see `headgate.Limiter.refund` on what that may let pass. Says what is left then.

        Raises InvalidCharge, and what `peek` raises.
        """
        policy = self.policy
        if isinstance(request, Ruling):
            return await self._run(refunded(request, policy.version))
        named = parse(charge) if charge else None
        selection = policy.plan(request, self._clock.now(), asking=False)
        if named is not None:
            return await self._run(refunded_by_name(named, selection, policy.version))
        return await self._run(ruled(selection, Verb.REFUND, request.cost, policy.version))

    async def reset(self, request: Request) -> Reset:
        """Forget all that was used of the limits that apply to the request and are counted by one of its principals.

        Limits that others share (by endpoint, by an attribute, global) are left alone, unless the request names their
        rule. Says which rules' limits were reset, if any.
        """
        plans, reset = to_reset(self._book.policy(), request, self._clock.now())
        for plan in plans:
            await self._store.run(Call(Verb.RESET, plan))
        return reset

    async def explain(self, request: Request) -> Explained:
        """Say for every rule whether it applies and why, what state its limits are in, and what would be decided."""
        policy = self.policy
        explanation = explain(policy, request, self._clock.now())
        ruling = await self._run(ruled(explanation.selection, Verb.PEEK, request.cost, policy.version))
        return joined(explanation, ruling)

    async def ready(self) -> None:
        """Raise StoreError unless the store can decide now."""
        await self._store.ready()

    def rules_statistics(self) -> LoadStatistics | None:
        """Return how loading the rules went so far, for metrics; None where they do not change."""
        return self._book.statistics()

    def statistics(self) -> Statistics | None:
        """Return how the store did so far, for metrics; None in memory, which is never away."""
        return self._failover.statistics() if self._failover else None

    def traffic(self) -> TrafficStatistics | None:
        """Return what came back from the servers of the store so far, for metrics; None in memory."""
        return self._travelled.traffic() if self._travelled else None

    async def close(self) -> None:
        """Stop watching the rules, and release what the store holds."""
        self._book.close()
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _selected(self, policy: Policy, request: Request) -> Selection:
        return policy.plan(request, self._clock.now())

    async def _run(self, flow: Generator[Sequence[Call], Sequence[Decision], Answer]) -> Answer:
        return await driven(self._store, flow)

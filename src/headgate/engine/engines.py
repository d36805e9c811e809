"""The engines, blocking and asynchronous: two drivers of the same verbs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from time import perf_counter_ns
from types import TracebackType
from typing import Self

from headgate.clock import Clock
from headgate.core.errors import UsageError
from headgate.core.mode import Mode
from headgate.core.plan import Call
from headgate.engine.base import AsyncEngineBase, StoreOptions
from headgate.engine.charges import Seal
from headgate.engine.joint import JointCheck, JointRequest
from headgate.engine.ruling import Explained, Passed, Reset, Ruling
from headgate.engine.verbs import Flow, Observer, Rules, SelectedCheck, T, Verbs
from headgate.flows import drive
from headgate.live import LoadStatistics
from headgate.policy.compiled import Policy
from headgate.policy.request import Request
from headgate.stores import open_async_store, open_store
from headgate.stores.base import AsyncStore, Store
from headgate.stores.failover import FailoverStore, Statistics
from headgate.stores.memory import MemoryStore

_SHARED = "rules"
"""Name under which processes are counted."""


class _Ruled:
    """The rules of both engines."""

    _verbs: Verbs

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._verbs.policy

    def mode_of(self, rule_id: str) -> Mode:
        """Return how to decide by a rule while the store is unavailable."""
        return self._verbs.mode_of(rule_id)

    def refusal_of(self, rule_id: str) -> tuple[int, str]:
        """Return the status and the message of a rule's refusals; without a message, it describes the limit."""
        return self._verbs.refusal_of(rule_id)

    def rules_statistics(self) -> LoadStatistics | None:
        """Return the statistics of loading the rules, for metrics; None if they are constant."""
        return self._verbs.statistics()


class Engine(_Ruled):
    r"""Decides requests by rules.

    >>> from headgate.policy.loading import load
    >>> from headgate.policy.request import Request
    >>> rules = load("version: 1\nrules: [{id: per-user, limit: 2, window: 1m}]")
    >>> engine = Engine(rules)
    >>> [engine.check(Request({"user": "ada"})).allowed for _ in range(3)]
    [True, True, False]

    Args:
        rules: a file, which is watched for changes; rules; or a policy.
        store: where the state lives: an address, or a store object.
        on_store_failure: how to decide while the store is unavailable, unless the rule has a mode: local, allow, deny.
        nodes: the number of processes that share the limits, for "local"; by default, they are counted.
        clock: the source of time, for tests; only with a store given by address.

    Thread-safe. It always decides: a decision that the store did not make is marked as degraded.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        store: str | Store = "memory",
        on_store_failure: str = Mode.LOCAL,
        nodes: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        opened = open_store(store, clock=clock)
        self.clock: Clock = opened.clock
        """The time of the rules."""
        self._verbs = Verbs(rules, on_store_failure, opened.clock)
        self._failover: FailoverStore | None = None
        self._store: Store = opened
        if not isinstance(opened, MemoryStore):  # memory is always available
            self._store = self._failover = FailoverStore(
                opened, mode=self._verbs.mode_of_limit, nodes=nodes, shared=_SHARED
            )
        self._verbs.open()

    def check(self, request: Request) -> Ruling:
        """Take the request's cost from all limits that apply if all admit it, or from none. A cost of 0 peeks.

        Raises InvalidRequest, InvalidKey, InvalidCost, and CostTooLarge for a cost that could never pass.
        """
        selected = self._verbs.select(request)
        if selected.call is None:
            return self._drive(self._verbs.check(selected))
        return self._verbs.conclude(selected, self._store.run(selected.call))

    def check_once(self, request: Request, idempotency_key: str) -> Ruling:
        """Check, but count a request that is sent again with the same key within 5 minutes only once."""
        return self._drive(self._verbs.check_once(request, idempotency_key))

    def check_batch(self, requests: Sequence[Request]) -> tuple[Ruling | UsageError, ...]:
        """Check several requests separately; return a ruling for each, or the error that `check` would raise."""
        return tuple([self._outcome(request) for request in requests])

    def _outcome(self, request: Request) -> Ruling | UsageError:
        try:
            return self.check(request)
        except UsageError as error:
            return error

    def peek(self, request: Request) -> Ruling:
        """Return what `check` would return, and take nothing."""
        return self._drive(self._verbs.peek(request))

    def is_passed(self, client_id: str, rule_id: str) -> Passed:
        """Check one rule by its id, for one principal: passed, reset time, limit, remaining.

        A rule that does not exist or is disabled passes; if `unknown_rule` of the rules is "error", it raises
        UnknownRule. For a cost, or several principals, use `check`:
        ``check(Request({"user": "42"}, cost=5, rule_id="orders-user"))``.
        """
        return self._drive(self._verbs.is_passed(client_id, rule_id))

    def check_together(self, parts: Sequence[JointRequest]) -> tuple[Ruling, ...]:
        """Take the costs of several requests if all of them pass, or none; see `headgate.engine.joint`.

        Each ruling has the decisions of its own limits: it may be allowed although nothing was taken.
        """
        return self._drive(self._verbs.check_together(self._verbs.joint_check(parts)))

    def use_up(self, part: JointRequest) -> None:
        """Take a cost that was used already from each limit that applies, or what is left there."""
        self._drive(self._verbs.use_up(part))

    def refund(self, request: Request | Ruling, charge: str = "") -> Ruling:
        """Refund what a ruling took, once, as far as it still counts. Returns a ruling with the remainder.

        Another process refunds with the request and `charge_of(ruling)`. With a request alone, its cost is refunded to
        all limits that apply to it now, from their newest usage; see `headgate.Limiter.refund` for the consequences.

        Raises InvalidCharge, and what `peek` raises.
        """
        return self._drive(self._verbs.refund(request, charge))

    def charge_of(self, ruling: Ruling) -> str:
        """Return text that identifies what a ruling took, for a refund by any process that shares the store."""
        return self._drive(self._verbs.charge_of(ruling))

    def reset(self, request: Request) -> Reset:
        """Reset the usage of the limits that apply to the request and are counted by one of its principals.

        Limits that others share (by endpoint, by an attribute, global) are not reset unless the request names their
        rule.
        """
        return self._drive(self._verbs.reset(request))

    def reset_all(self, request: Request) -> Reset:
        """Reset the usage of every limit that is counted by principals of the request, at any endpoint.

        A rule that counts by other dimensions too, such as user and endpoint together, is not reset, and listed.
        """
        return self._drive(self._verbs.reset_all(request))

    def explain(self, request: Request) -> Explained:
        """Return for every rule whether it applies and why, the state of its limits, and what would be decided."""
        return self._drive(self._verbs.explain(request))

    def ready(self) -> None:
        """Raise StoreError unless the store can decide now."""
        self._store.ready()

    def statistics(self) -> Statistics | None:
        """Return the statistics of the store, for metrics; None in memory, which is always available."""
        return self._failover.statistics() if self._failover else None

    def close(self) -> None:
        """Stop watching the rules, and close the store."""
        self._verbs.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drive(self, flow: Flow[T]) -> T:
        run = self._store.run
        return drive(flow, lambda calls: [run(call) for call in calls])


class AsyncEngine(_Ruled, AsyncEngineBase):
    """Decides requests by rules, with the arguments and methods of `headgate.engine.Engine`, and:

    Args:
        is_cached: whether peeks are cached for 50 ms, and refusals for up to a second, unless the store is in memory;
            see `headgate.stores.cached` for the consequences.
        store_options: see `headgate.engine.base.StoreOptions`.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        store: str | AsyncStore | MemoryStore = "memory",
        on_store_failure: str = Mode.LOCAL,
        nodes: int | None = None,
        clock: Clock | None = None,
        is_cached: bool = False,
        store_options: StoreOptions | None = None,
    ) -> None:
        opened = open_async_store(store, clock=clock)
        self._verbs = Verbs(rules, on_store_failure, opened.clock)
        AsyncEngineBase.__init__(
            self, opened, self._verbs.mode_of_limit, nodes, _SHARED, is_cached=is_cached, options=store_options
        )
        self._verbs.open()

    def serving(self, observer: Observer) -> AsyncEngine:
        """Return the same engine for a service, with an observer.

        A request that names an unknown rule passes without a match, unless the rules make that an error.
        """
        serving = self._copy()
        serving._verbs = self._verbs.observed(observer)  # noqa: SLF001  of the same class
        return serving

    async def check(self, request: Request) -> Ruling:
        """See `Engine.check`."""
        ruling = self.decide(request)
        return ruling if isinstance(ruling, Ruling) else await ruling

    def select(self, request: Request, before: SelectedCheck | None = None) -> SelectedCheck:
        """Select the limits of a request; return `before`, of the same request, while it is valid.

        Raises what `check` raises.
        """
        return self._verbs.select(request, before)

    def decide(self, request: Request, selected: SelectedCheck | None = None) -> Ruling | Awaitable[Ruling]:
        """Check; return the ruling itself if there is nothing to wait for, as in memory.

        `selected` is what `select` has just returned for the request, if known.
        """
        began, verbs, memory = perf_counter_ns(), self._verbs, self._memory
        if selected is None:
            selected = verbs.select(request)
        if selected.call is None:
            return self._drive(verbs.check(selected, began))
        if memory is not None:
            return verbs.conclude(selected, memory.run(selected.call), began)
        return self._await_store(selected, selected.call, began)

    async def _await_store(self, selected: SelectedCheck, call: Call, began: int) -> Ruling:
        return self._verbs.conclude(selected, await self._store.run(call), began)

    async def check_once(self, request: Request, idempotency_key: str) -> Ruling:
        """See `Engine.check_once`."""
        return await self._drive(self._verbs.check_once(request, idempotency_key))

    async def check_batch(self, requests: Sequence[Request]) -> tuple[Ruling | UsageError, ...]:
        """See `Engine.check_batch`; all are sent to a remote store at once."""
        return tuple(await asyncio.gather(*map(self._outcome, requests)))

    async def _outcome(self, request: Request) -> Ruling | UsageError:
        try:
            return await self.check(request)
        except UsageError as error:
            return error

    async def peek(self, request: Request) -> Ruling:
        """See `Engine.peek`."""
        return await self._drive(self._verbs.peek(request))

    async def is_passed(self, client_id: str, rule_id: str) -> Passed:
        """See `Engine.is_passed`."""
        return await self._drive(self._verbs.is_passed(client_id, rule_id))

    async def check_together(self, parts: Sequence[JointRequest]) -> tuple[Ruling, ...]:
        """See `Engine.check_together`."""
        return await self._drive(self._verbs.check_together(self._verbs.joint_check(parts)))

    def joint_check(self, requests: Sequence[JointRequest], before: JointCheck | None = None) -> JointCheck:
        """Select the limits of requests that pass together; see `select`."""
        return self._verbs.joint_check(requests, before)

    def decide_together(self, check: JointCheck) -> tuple[Ruling, ...] | Awaitable[tuple[Ruling, ...]]:
        """Make a joint check that `joint_check` has just returned; see `decide`."""
        began, verbs, call, memory = perf_counter_ns(), self._verbs, check.call, self._memory
        if memory is None:
            return self._drive(verbs.check_together(check)) if call is None else self._await_joint(check, call, began)
        if call is None:
            return drive(verbs.check_together(check), lambda calls: [memory.run(each) for each in calls])
        return verbs.conclude_together(check, check.rulings(memory.run(call)), began)

    async def _await_joint(self, check: JointCheck, call: Call, began: int) -> tuple[Ruling, ...]:
        return self._verbs.conclude_together(check, check.rulings(await self._store.run(call)), began)

    async def use_up(self, part: JointRequest) -> None:
        """See `Engine.use_up`."""
        await self._drive(self._verbs.use_up(part))

    async def refund(self, request: Request | Ruling, charge: str = "") -> Ruling:
        """See `Engine.refund`."""
        return await self._drive(self._verbs.refund(request, charge))

    async def charge_of(self, ruling: Ruling) -> str:
        """See `Engine.charge_of`."""
        return await self._drive(self._verbs.charge_of(ruling))

    @property
    def seal(self) -> Seal:
        """The seal of charges; known from the first charge on."""
        return self._verbs.seal

    async def with_secret(self, ruling: Ruling | Awaitable[Ruling]) -> Ruling:
        """Return a ruling once the seal is known, or the store did not provide it."""
        await self._drive(self._verbs.fetch_secret())
        return ruling if isinstance(ruling, Ruling) else await ruling

    async def undo(self, rulings: Sequence[Ruling]) -> None:
        """Refund what a check, or several that passed together, took for a caller that has gone."""
        await self._drive(self._verbs.undo(rulings))

    async def reset(self, request: Request) -> Reset:
        """See `Engine.reset`."""
        return await self._drive(self._verbs.reset(request))

    async def reset_all(self, request: Request) -> Reset:
        """See `Engine.reset_all`."""
        return await self._drive(self._verbs.reset_all(request))

    async def explain(self, request: Request) -> Explained:
        """See `Engine.explain`."""
        return await self._drive(self._verbs.explain(request))

    async def close(self) -> None:
        """Stop watching the rules, and close the store."""
        self._verbs.close()
        await AsyncEngineBase.close(self)

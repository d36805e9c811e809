"""The engines, for callers that may block and for callers in an event loop: the same verbs, driven in two ways."""

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
"""What the processes share that count each other."""


class _Ruled:
    """What both engines have: rules, and what is known about them."""

    _verbs: Verbs

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._verbs.policy

    def mode_of(self, rule_id: str) -> Mode:
        """Return what is answered for a rule while the store is away."""
        return self._verbs.mode_of(rule_id)

    def refusal_of(self, rule_id: str) -> tuple[int, str]:
        """Return the status and the message of a rule's refusals; without a message, the limit says it."""
        return self._verbs.refusal_of(rule_id)

    def rules_statistics(self) -> LoadStatistics | None:
        """Return how loading the rules went so far, for metrics; None where they do not change."""
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
        on_store_failure: what to answer while the store is away, where a rule does not say: local, allow or deny.
        nodes: how many processes share the limits, this one included, for "local". Default: those it counts.
        clock: where time comes from, for tests; only with a store given by address.

    Safe for use from any number of threads. It always answers: what the store did not decide is marked as degraded.
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
        """What time it is for the rules."""
        self._verbs = Verbs(rules, on_store_failure, opened.clock)
        self._failover: FailoverStore | None = None
        self._store: Store = opened
        if not isinstance(opened, MemoryStore):  # memory is never away
            self._store = self._failover = FailoverStore(
                opened, mode=self._verbs.mode_of_limit, nodes=nodes, shared=_SHARED
            )
        self._verbs.open()

    def check(self, request: Request) -> Ruling:
        """Take the request's cost from all limits that apply if all admit it, else from none. A cost of 0 peeks.

        Raises InvalidRequest, InvalidKey, InvalidCost, and CostTooLarge for a cost that could never pass.
        """
        asked = self._verbs.asked(request)
        if asked.call is None:
            return self._drive(self._verbs.check(asked))
        return self._verbs.answered(asked, self._store.run(asked.call))

    def check_once(self, request: Request, idempotency_key: str) -> Ruling:
        """Check, but count a request that is sent again with the same key within 5 minutes only once."""
        return self._drive(self._verbs.check_once(request, idempotency_key))

    def check_batch(self, requests: Sequence[Request]) -> tuple[Ruling | UsageError, ...]:
        """Check several requests, each on its own: one ruling for each, or the error that `check` would raise."""
        return tuple([self._outcome(request) for request in requests])

    def _outcome(self, request: Request) -> Ruling | UsageError:
        try:
            return self.check(request)
        except UsageError as error:
            return error

    def peek(self, request: Request) -> Ruling:
        """Say what `check` would answer; take nothing."""
        return self._drive(self._verbs.peek(request))

    def is_passed(self, client_id: str, rule_id: str) -> Passed:
        """Check one rule, by its id, for one value of what it counts by: passed, reset time, limit, remaining.

        A rule that does not exist or is disabled lets pass, unless `unknown_rule` of the rules is "error": then it
        raises UnknownRule. `check` does the same with a cost, or several principals:
        ``check(Request({"user": "42"}, cost=5, rule_id="orders-user"))``.
        """
        return self._drive(self._verbs.is_passed(client_id, rule_id))

    def check_together(self, parts: Sequence[JointRequest]) -> tuple[Ruling, ...]:
        """Take the costs of several requests if all of them pass, else none; see `headgate.engine.joint`.

        Each ruling says what the limits of its own request say: some may be allowed, and yet nothing was taken.
        """
        return self._drive(self._verbs.check_together(self._verbs.joint_check(parts)))

    def use_up(self, part: JointRequest) -> None:
        """Take a request's cost from each limit that applies, or what is left of it: it was used already."""
        self._drive(self._verbs.use_up(part))

    def refund(self, request: Request | Ruling, charge: str = "") -> Ruling:
        """Refund what a ruling took, once, to the limits that it took it from, as far as it still counts.

        Elsewhere, where the ruling is not at hand, the request and `charge_of(ruling)` do the same. With a request
        alone its cost is given back, to all limits that apply to it now, off their newest use, whatever that was for;
        see `headgate.Limiter.refund` on what that may let pass. Says what is left then.

        Raises InvalidCharge, and what `peek` raises.
        """
        return self._drive(self._verbs.refund(request, charge))

    def charge_of(self, ruling: Ruling) -> str:
        """Return text that names what a ruling took, for a refund by any process that shares the store."""
        return self._drive(self._verbs.charge_of(ruling))

    def reset(self, request: Request) -> Reset:
        """Forget all that was used of the limits that apply to the request and are counted by one of its principals.

        Limits that others share (by endpoint, by an attribute, global) are left alone, unless the request names their
        rule. Says which rules' limits were reset, if any.
        """
        return self._drive(self._verbs.reset(request))

    def reset_all(self, request: Request) -> Reset:
        """Forget what was used of every limit that is counted by principals of the request, whatever it is for.

        A rule that counts by these and more, such as user and endpoint together, is left alone, and named.
        """
        return self._drive(self._verbs.reset_all(request))

    def explain(self, request: Request) -> Explained:
        """Say for every rule whether it applies and why, what state its limits are in, and what would be decided."""
        return self._drive(self._verbs.explain(request))

    def ready(self) -> None:
        """Raise StoreError unless the store can decide now."""
        self._store.ready()

    def statistics(self) -> Statistics | None:
        """Return how the store did so far, for metrics; None in memory, which is never away."""
        return self._failover.statistics() if self._failover else None

    def close(self) -> None:
        """Stop watching the rules, and release what the store holds."""
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
    """Decides requests by rules; see `headgate.engine.Engine`.

    Args:
        rules: a file, which is watched for changes; rules; or a policy.
        store: where the state lives: an address, or a store object.
        on_store_failure: what to answer while the store is away, where a rule does not say: local, allow or deny.
        nodes: how many processes share the limits, this one included, for "local". Default: those it counts.
        clock: where time comes from, for tests; only with a store given by address.
        is_cached: whether answers to peeks are repeated for 50 ms, and refusals for up to a second, without asking a
            store that is not in memory; see `headgate.stores.cached` on what that costs.
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
        """Return the same engine as a service uses it: an observer is told what it does.

        And a request that names a rule which does not exist passes, and matched nothing, unless the rules say that it
        is an error.
        """
        serving = self._copied()
        serving._verbs = self._verbs.observed(observer)  # noqa: SLF001  of the same class
        return serving

    async def check(self, request: Request) -> Ruling:
        """See `Engine.check`."""
        ruling = self.decide(request)
        return ruling if isinstance(ruling, Ruling) else await ruling

    def asked(self, request: Request, before: SelectedCheck | None = None) -> SelectedCheck:
        """Return what is to be asked of the store; that is `before`, of the same request, as long as it holds.

        Raises what `check` raises.
        """
        return self._verbs.asked(request, before)

    def decide(self, request: Request, asked: SelectedCheck | None = None) -> Ruling | Awaitable[Ruling]:
        """Check; return the ruling itself where there is nothing to wait for, as in memory: to await costs time.

        Args:
            request: who asks for what.
            asked: what `asked` has just returned for it, if that is known.
        """
        began, verbs, memory = perf_counter_ns(), self._verbs, self._memory
        if asked is None:
            asked = verbs.asked(request)
        if asked.call is None:
            return self._drive(verbs.check(asked, began))
        if memory is not None:
            return verbs.answered(asked, memory.run(asked.call), began)
        return self._awaited(asked, asked.call, began)

    async def _awaited(self, asked: SelectedCheck, call: Call, began: int) -> Ruling:
        return self._verbs.answered(asked, await self._store.run(call), began)

    async def check_once(self, request: Request, idempotency_key: str) -> Ruling:
        """See `Engine.check_once`."""
        return await self._drive(self._verbs.check_once(request, idempotency_key))

    async def check_batch(self, requests: Sequence[Request]) -> tuple[Ruling | UsageError, ...]:
        """See `Engine.check_batch`; a store on the network hears of all of them at once."""
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
        """Return what requests that pass together ask of the store; see `asked`."""
        return self._verbs.joint_check(requests, before)

    def decide_together(self, check: JointCheck) -> tuple[Ruling, ...] | Awaitable[tuple[Ruling, ...]]:
        """Make a joint check that `joint_check` has just returned; see `decide`."""
        flow, memory = self._verbs.check_together(check), self._memory
        if memory is None:
            return self._drive(flow)
        return drive(flow, lambda calls: [memory.run(call) for call in calls])

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
        """By which charges are sealed; known from the first charge on."""
        return self._verbs.seal

    async def sealed(self, ruling: Ruling | Awaitable[Ruling]) -> Ruling:
        """Return a ruling once the seal is known, or cannot be."""
        await self._drive(self._verbs.sealing())
        return ruling if isinstance(ruling, Ruling) else await ruling

    async def undo(self, rulings: Sequence[Ruling]) -> None:
        """Refund what a check took, or several that passed together, whose caller no longer waited for the answer."""
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
        """Stop watching the rules, and release what the store holds."""
        self._verbs.close()
        await AsyncEngineBase.close(self)

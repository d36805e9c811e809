"""Envoy's descriptor trees and a store in one object: a request of Envoy in, an answer out.

Descriptors are decided separately and concurrently, as in envoyproxy/ratelimit: one that passes takes its hits even if
another one refuses. `headgate.policy.envoy` lists other similarities and differences.

A descriptor with 0 hits asks whether 1 would pass. envoyproxy/ratelimit allows it until the limit is exceeded, since it
counts hits beyond the limit; refused hits are not counted here, so it would pass an exhausted limit.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Sequence
from typing import Any

import msgspec

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import InvalidKey
from headgate.core.mode import Mode
from headgate.core.numbers import short
from headgate.core.plan import Call, Limit, Plan, Verb, refund_of
from headgate.engine.base import AsyncEngineBase, StoreOptions
from headgate.engine.verbs import Flow, checked_mode, use_up_plan
from headgate.live import LoadStatistics
from headgate.policy.envoy import (
    Descriptor,
    DescriptorPolicy,
    EnvoyAnswer,
    LiveDescriptors,
    Match,
    Matching,
    envoy_answer,
)
from headgate.policy.envoy.matching import MatchOutcome, principal_of
from headgate.stores import open_async_store
from headgate.stores.base import AsyncStore
from headgate.stores.memory import MemoryStore

Trees = str | os.PathLike[str] | DescriptorPolicy | LiveDescriptors
"""A folder of files, which is watched; or the descriptors."""


class Answered(msgspec.Struct, frozen=True, gc=False):
    """The decisions about a request, from which the answer is made."""

    matching: Matching
    decisions: tuple[Decision | None, ...]
    """The decision about each descriptor; None without a limit."""
    at_us: int
    """The time of the request by the engine's clock, in microseconds since the epoch."""
    shadow_mode: bool = False
    quota_mode: bool = False
    """Whether all limits were in one of these modes, regardless of the files."""

    @property
    def answer(self) -> EnvoyAnswer:
        """The answer to Envoy; computed on each access."""
        return envoy_answer(
            self.matching, self.decisions, self.at_us, shadow_mode=self.shadow_mode, quota_mode=self.quota_mode
        )


class AsyncDescriptorEngine(AsyncEngineBase):
    """Decides requests of Envoy by the configuration of envoyproxy/ratelimit.

    Args:
        trees: a folder, whose files are watched for changes; or descriptors.
        store, on_store_failure, nodes, clock, is_cached, store_options: see `AsyncEngine`.
        merge_domains: whether several files may have the same domain.
        shadow_mode: nothing is refused, regardless of the files.
        quota_mode: all limits are in quota mode, regardless of the files.
        count_refused: whether refused hits use up the remainder of their limit. For hits that are known only after the
            response (``apply_on_stream_done``, tokens of a language model): they were used already, so the next request
            is refused.
    """

    def __init__(
        self,
        trees: Trees,
        *,
        store: str | AsyncStore | MemoryStore = "memory",
        on_store_failure: str = Mode.LOCAL,
        nodes: int | None = None,
        merge_domains: bool = False,
        shadow_mode: bool = False,
        quota_mode: bool = False,
        count_refused: bool = False,
        clock: Clock | None = None,
        is_cached: bool = False,
        store_options: StoreOptions | None = None,
    ) -> None:
        self.mode = checked_mode(on_store_failure)
        """How to decide while the store is unavailable."""
        super().__init__(
            open_async_store(store, clock=clock),
            self.mode,
            nodes,
            "descriptors",
            is_cached=is_cached,
            options=store_options,
        )
        self._own = isinstance(trees, str | os.PathLike)
        if isinstance(trees, str | os.PathLike):
            trees = LiveDescriptors(trees, merge_domains=merge_domains)
            trees.start()
        self._trees = trees
        self.shadow_mode = shadow_mode
        self._modes = [shadow_mode, quota_mode]
        self._count_refused = count_refused

    @property
    def policy(self) -> DescriptorPolicy:
        """The trees in force."""
        return self._trees.value if isinstance(self._trees, LiveDescriptors) else self._trees

    def enforce(self, *, enforcing: bool) -> None:
        """Turn enforcement on, unless the engine is in shadow mode, or off, from the next request on.

        Engines from `within` are included.
        """
        self._modes[0] = self.shadow_mode or not enforcing

    def match(self, domain: str, descriptors: Sequence[Descriptor], hits_addend: int = 0) -> Matching:
        """Find the limits of a request; see `DescriptorPolicy.match`. Raises InvalidRequest."""
        return self.policy.match(domain, descriptors, hits_addend)

    def decide(self, matching: Matching) -> Answered | Awaitable[Answered]:
        """Decide a request; return the result itself if there is nothing to wait for, as in memory."""
        now, memory = self.clock.now(), self._memory
        if memory is None or self._count_refused:
            return self._await_store(matching, now)
        decisions = _by_match(matching, [memory.run(call) for call in matching.calls])
        return Answered(matching, decisions, now, *self._modes)

    async def _await_store(self, matching: Matching, now: int) -> Answered:
        if self._count_refused:
            decisions = await self._drive(_decide_counting_refused(matching))
        else:
            calls = matching.calls  # a single one needs no further coroutine
            answers = (await self._store.run(calls[0]),) if len(calls) == 1 else await self._make(calls)
            decisions = _by_match(matching, answers)
        return Answered(matching, decisions, now, *self._modes)

    async def explain(
        self, domain: str, descriptors: Sequence[Descriptor], hits_addend: int = 0
    ) -> list[dict[str, Any]]:
        """Return the limits of each descriptor and their remainders, as data. Nothing is taken.

        Raises InvalidRequest.
        """
        matching = self.match(domain, descriptors, hits_addend)
        decisions = iter(await self._drive(_make([Call(Verb.PEEK, each.plan, each.cost) for each in matching.calls])))
        unknown = "" if matching.known else f"no file has the domain {short(domain)}"
        return [
            _explain(match, next(decisions) if match.limits else None, unknown, shadow_mode=self._modes[0])
            for match in matching.matches
        ]

    async def undo(self, answered: Answered) -> None:
        """Refund what a request took whose caller has gone."""
        decisions = [decision for decision in answered.decisions if decision is not None]
        pairs = zip(answered.matching.calls, decisions, strict=True)
        calls = [refund_of(call.plan, decision) for call, decision in pairs if decision.taken]
        if calls:
            await self._drive(_make(calls))

    def rules_statistics(self) -> LoadStatistics | None:
        """Return the statistics of loading the files, for metrics; None if they are constant."""
        return self._trees.statistics() if isinstance(self._trees, LiveDescriptors) else None

    async def close(self) -> None:
        """Stop watching the files, and close the store."""
        if self._own and isinstance(self._trees, LiveDescriptors):
            self._trees.close()
        await super().close()


def _by_match(matching: Matching, answers: Sequence[Decision]) -> tuple[Decision | None, ...]:
    """Return the answers to the calls of a request by descriptor; None for one without limits."""
    if len(answers) == len(matching.matches):
        return tuple(answers)
    following = iter(answers)
    return tuple([next(following) if match.limits else None for match in matching.matches])


def _decide_counting_refused(matching: Matching) -> Flow[tuple[Decision | None, ...]]:
    """Decide all descriptors; refused hits use up the remainder."""
    decisions = _by_match(matching, (yield from _make(matching.calls)))
    for match, decision in zip(matching.matches, decisions, strict=True):
        is_refused = match.outcome is MatchOutcome.TOO_MANY or (decision is not None and not decision.allowed)
        if is_refused and match.hits > 1 and not match.refund:
            yield from use_up_plan(_plan(match), match.hits)
    return decisions


def _make(calls: Sequence[Call]) -> Flow[Sequence[Decision]]:
    return (yield calls) if calls else ()


def _explain(match: Match, decision: Decision | None, problem: str, *, shadow_mode: bool) -> dict[str, Any]:
    refuses = match.outcome in {MatchOutcome.BANNED, MatchOutcome.TOO_MANY, MatchOutcome.INVALID}
    is_over = refuses if decision is None else not decision.allowed
    rule = match.rule
    parts = () if decision is None or rule is None else zip(rule.limits, decision.limits, strict=True)
    return {
        "allowed": match.shadow_mode or shadow_mode or not is_over,
        "outcome": str(match.outcome),
        "rule": ".".join(match.stat),
        "problem": match.problem or problem,
        "shadow_mode": match.shadow_mode or shadow_mode,
        "degraded": "" if decision is None else decision.degraded,
        "limits": [
            {"name": limit.name, "quota": str(part.quota), "remaining": part.remaining, "limit": part.limit}
            for limit, part in parts
        ],
    }


def _plan(match: Match) -> Plan:
    """Return the limits of a rule for a descriptor, even if they could never admit its hits."""
    if match.rule is None:
        return ()
    try:
        principal = principal_of(match.entries, match.rule.shares)
    except InvalidKey:  # no state is kept for such a key: it can only be refused
        return ()
    return tuple([Limit(space, principal, quota) for space, quota in match.rule.counted])

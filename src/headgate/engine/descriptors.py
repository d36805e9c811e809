"""Envoy's descriptor trees and a store in one object: a request of Envoy in, an answer out.

Each descriptor is decided on its own, all of them at the same time, as in envoyproxy/ratelimit: one that passes takes
its hits, also where another one refuses. `headgate.policy.envoy` says where else this is as there, and where it is not.

What is asked with 0 hits is whether 1 would pass. There, the last answer before the limit is exceeded is also OK, since
hits beyond the limit are counted; here, refused hits are not, so whoever looks would pass a used-up limit.
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
from headgate.engine.verbs import Flow, checked_mode, used_up
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
"""A folder of files, which is watched; or what was made of them."""


class Answered(msgspec.Struct, frozen=True, gc=False):
    """What was decided, of which the answer is made."""

    matching: Matching
    decisions: tuple[Decision | None, ...]
    """Of the store, for each descriptor; None where it was not asked."""
    at_us: int
    """When it was asked for, by the engine's clock, in microseconds since the epoch."""
    shadow_mode: bool = False
    quota_mode: bool = False
    """Whether all limits were in one of these modes, whatever the files say."""

    @property
    def answer(self) -> EnvoyAnswer:
        """What comes of the decisions; worked out whenever it is asked for."""
        modes = {"shadow_mode": self.shadow_mode, "quota_mode": self.quota_mode}
        return envoy_answer(self.matching, self.decisions, self.at_us, **modes)


class AsyncDescriptorEngine(AsyncEngineBase):
    """Decides what Envoy asks, by the configuration of envoyproxy/ratelimit.

    Args:
        trees: a folder, whose files are watched for changes; or what was made of them.
        store: where the state lives: an address, or a store object.
        on_store_failure: what to answer while the store is away: local, allow or deny.
        nodes: how many processes share the limits, this one included, for "local". Default: those it counts.
        merge_domains: whether several files may have the same domain.
        shadow_mode: nothing is refused, whatever the files say.
        quota_mode: all limits are in quota mode, whatever the files say.
        count_refused: whether hits that are refused use up what is left of their limit. For hits that are known only
            after the response (``apply_on_stream_done``, tokens of a language model): they were used all the same, and
            the next request is the one to be refused.
        clock: where time comes from, for tests; only with a store given by address.
        is_cached: see `AsyncEngine`.
        store_options: see `headgate.engine.base.StoreOptions`.
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
        """What is answered while the store is away."""
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
        """Let limits refuse, unless it is in shadow mode anyway, or refuse nothing, from the next request on.

        It is the same for the engines that `within` has returned, or will.
        """
        self._modes[0] = self.shadow_mode or not enforcing

    def match(self, domain: str, descriptors: Sequence[Descriptor], hits_addend: int = 0) -> Matching:
        """Return what applies to a request; see `DescriptorPolicy.match`. Raises InvalidRequest."""
        return self.policy.match(domain, descriptors, hits_addend)

    def decide(self, matching: Matching) -> Answered | Awaitable[Answered]:
        """Ask the store about all that applies; return the answer itself where there is nothing to wait for.

        See `AsyncEngine.decide`.
        """
        now, memory, calls = self.clock.now(), self._memory, matching.calls
        call = calls[0] if len(matching.matches) == 1 == len(calls) and not self._count_refused else None
        if call is not None and memory is not None:
            return Answered(matching, (memory.run(call),), now, *self._modes)
        return self._awaited(matching, call, now)

    async def _awaited(self, matching: Matching, call: Call | None, now: int) -> Answered:
        """Wait for an answer; `call` is the one that decides it, if it is one."""
        if call is not None:
            decisions: tuple[Decision | None, ...] = (await self._store.run(call),)
        else:
            decisions = await self._drive(_decided(matching, count_refused=self._count_refused))
        return Answered(matching, decisions, now, *self._modes)

    async def explain(
        self, domain: str, descriptors: Sequence[Descriptor], hits_addend: int = 0
    ) -> list[dict[str, Any]]:
        """Return for each descriptor which limits apply, and what is left of them, as data. Nothing is taken.

        Raises InvalidRequest.
        """
        matching = self.match(domain, descriptors, hits_addend)
        decisions = iter(await self._drive(_made([Call(Verb.PEEK, each.plan, each.cost) for each in matching.calls])))
        unknown = "" if matching.known else f"no file has the domain {short(domain)}"
        return [
            _explained(match, next(decisions) if match.limits else None, unknown, shadow_mode=self._modes[0])
            for match in matching.matches
        ]

    async def undo(self, answered: Answered) -> None:
        """Refund what an answer took whose caller no longer waited for it."""
        decisions = [decision for decision in answered.decisions if decision is not None]
        pairs = zip(answered.matching.calls, decisions, strict=True)
        calls = [refund_of(call.plan, decision) for call, decision in pairs if decision.taken]
        if calls:
            await self._drive(_made(calls))

    def rules_statistics(self) -> LoadStatistics | None:
        """Return how loading the files went so far, for metrics; None where they do not change."""
        return self._trees.statistics() if isinstance(self._trees, LiveDescriptors) else None

    async def close(self) -> None:
        """Stop watching the files, and release what the store holds."""
        if self._own and isinstance(self._trees, LiveDescriptors):
            self._trees.close()
        await super().close()


def _decided(matching: Matching, *, count_refused: bool) -> Flow[tuple[Decision | None, ...]]:
    """Ask about all descriptors; hits that are refused use up what is left, if they are counted."""
    matches = matching.matches
    answers = iter((yield matching.calls) if matching.calls else ())
    decisions = tuple([next(answers) if match.limits else None for match in matches])
    if count_refused:
        for match, decision in zip(matches, decisions, strict=True):
            is_refused = match.outcome is MatchOutcome.TOO_MANY or (decision is not None and not decision.allowed)
            if is_refused and match.hits > 1 and not match.refund:
                yield from used_up(_plan(match), match.hits)
    return decisions


def _made(calls: Sequence[Call]) -> Flow[Sequence[Decision]]:
    return (yield calls) if calls else ()


def _explained(match: Match, decision: Decision | None, problem: str, *, shadow_mode: bool) -> dict[str, Any]:
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
    """Return the limits of a rule for a descriptor, also where it asks for more than they could admit."""
    if match.rule is None:
        return ()
    try:
        principal = principal_of(match.entries, match.rule.shares)
    except InvalidKey:  # no state is kept for such a key: it can only be refused
        return ()
    return tuple([Limit(space, principal, quota) for space, quota in match.rule.counted])

"""Envoy's descriptor trees and a store in one object: a request of Envoy in, an answer out.

Each descriptor is decided on its own, all of them at the same time, as in envoyproxy/ratelimit: one that passes takes
its hits, also where another one refuses. `headgate.policy.envoy` says where else this is as there, and where it is not.

What is asked with 0 hits is whether 1 would pass. There, the last answer before the limit is exceeded is also OK, since
hits beyond the limit are counted; here, refused hits are not, and a limit that is used up would always pass who looks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from copy import copy
from types import TracebackType
from typing import Self

import msgspec

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import InvalidKey
from headgate.core.mode import Mode
from headgate.core.plan import Call, Limit, Verb
from headgate.engine.binding import checked_mode
from headgate.engine.driving import driven
from headgate.engine.leftover import used_up
from headgate.live import LoadStatistics
from headgate.policy.envoy import Answer, Descriptor, DescriptorPolicy, LiveDescriptors, Match, Matching, combine
from headgate.policy.envoy.matching import Outcome, principal_of
from headgate.stores import open_async_store
from headgate.stores.base import AsyncStore
from headgate.stores.failover import AsyncFailoverStore, Statistics
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.stores.traffic import TrafficStatistics, Travelled

Trees = str | os.PathLike[str] | DescriptorPolicy | LiveDescriptors
"""A folder of files, which is watched; or what was made of them."""


class Answered(msgspec.Struct, frozen=True, gc=False):
    """An answer, and what it is made of."""

    matching: Matching
    decisions: tuple[Decision | None, ...]
    """Of the store, for each descriptor; None where it was not asked."""
    answer: Answer


class AsyncDescriptorEngine:
    """Decides what Envoy asks, by the configuration of envoyproxy/ratelimit.

    Args:
        trees: a folder, whose files are watched for changes; or what was made of them.
        store: where the state lives: an address, or a store object.
        on_store_failure: what to answer while the store is away: local, allow or deny.
        nodes: how many processes share the limits, this one included, for "local".
        merge_domains: whether several files may have the same domain.
        shadow_mode: nothing is refused, whatever the files say.
        quota_mode: all limits are in quota mode, whatever the files say.
        count_refused: whether hits that are refused use up what is left of their limit. For hits that are known only
            after the response (``apply_on_stream_done``, tokens of a language model): they were used all the same, and
            the next request is the one to be refused.
        clock: where time comes from, for tests; only with a store given by address.
    """

    def __init__(
        self,
        trees: Trees,
        *,
        store: str | AsyncStore | MemoryStore = "memory",
        on_store_failure: str = Mode.LOCAL,
        nodes: int = 1,
        merge_domains: bool = False,
        shadow_mode: bool = False,
        quota_mode: bool = False,
        count_refused: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.mode = checked_mode(on_store_failure)
        """What is answered while the store is away."""
        self._own = isinstance(trees, str | os.PathLike)
        if isinstance(trees, str | os.PathLike):
            trees = LiveDescriptors(trees, merge_domains=merge_domains)
        self._trees = trees
        opened = open_async_store(store, clock=clock)
        self._failover: AsyncFailoverStore | None = None
        self._store: AsyncStore = opened
        self._travelled = opened if isinstance(opened, Travelled) else None
        self._waits = not isinstance(opened, AsyncMemoryStore)
        if self._waits:  # memory is never away
            self._store = self._failover = AsyncFailoverStore(opened, mode=self.mode, nodes=nodes)
        self._clock = opened.clock
        self._shadow_mode = shadow_mode
        self._modes = {"shadow_mode": shadow_mode, "quota_mode": quota_mode}
        self.shadow_mode = shadow_mode
        self._count_refused = count_refused
        if self._own and isinstance(trees, LiveDescriptors):
            trees.start()

    @property
    def policy(self) -> DescriptorPolicy:
        """The trees in force."""
        return self._trees.value if isinstance(self._trees, LiveDescriptors) else self._trees

    @property
    def clock(self) -> Clock:
        """What time it is for the limits."""
        return self._clock

    def within(self, seconds: float) -> AsyncDescriptorEngine:
        """Return the same engine for callers that wait no longer than so many seconds for the store."""
        if self._failover is None:
            return self
        hurried = copy(self)
        hurried._store = self._failover.within(seconds)  # noqa: SLF001  it is one of us
        return hurried

    def enforce(self, *, enforcing: bool) -> None:
        """Let limits refuse, unless it is in shadow mode anyway, or refuse nothing, from the next request on.

        It is the same for the engines that `within` has returned, or will.
        """
        self._modes["shadow_mode"] = self._shadow_mode or not enforcing

    def match(self, domain: str, descriptors: Sequence[Descriptor], hits_addend: int = 0) -> Matching:
        """Return what applies to a request; see `DescriptorPolicy.match`. Raises InvalidRequest."""
        return self.policy.match(domain, descriptors, hits_addend)

    async def decide(self, matching: Matching) -> Answered:
        """Ask the store about all that applies, and return the answer."""
        matches = matching.matches
        decisions: Sequence[Decision | None]
        if len(matches) == 1:
            decisions = [await self._decided(matches[0])]
        elif self._waits:
            decisions = await asyncio.gather(*map(self._decided, matches))
        else:
            decisions = [await self._decided(match) for match in matches]
        return Answered(matching, tuple(decisions), combine(matching, decisions, self._clock.now(), **self._modes))

    async def ready(self) -> None:
        """Raise StoreError unless the store can decide now."""
        await self._store.ready()

    def rules_statistics(self) -> LoadStatistics | None:
        """Return how loading the files went so far, for metrics; None where they do not change."""
        return self._trees.statistics() if isinstance(self._trees, LiveDescriptors) else None

    def statistics(self) -> Statistics | None:
        """Return how the store did so far, for metrics; None in memory, which is never away."""
        return self._failover.statistics() if self._failover else None

    def traffic(self) -> TrafficStatistics | None:
        """Return what came back from the servers of the store so far, for metrics; None in memory."""
        return self._travelled.traffic() if self._travelled else None

    async def close(self) -> None:
        if self._own and isinstance(self._trees, LiveDescriptors):
            self._trees.close()
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _decided(self, match: Match) -> Decision | None:
        limits, hits = match.limits, match.hits
        if not limits:
            if self._count_refused and match.outcome is Outcome.TOO_MANY:
                await self._take_rest(match)
            return None
        if match.refund:
            return await self._store.run(Call(Verb.REFUND if hits else Verb.PEEK, limits, hits or 1))
        if not hits:
            return await self._store.run(Call(Verb.PEEK, limits))
        decision = await self._store.run(Call(Verb.CHECK, limits, hits))
        if self._count_refused and not decision.allowed and hits > 1:
            await self._take_rest(match)
        return decision

    async def _take_rest(self, match: Match) -> None:
        """Take what is left of each limit, up to the hits; others that ask at the same time may be quicker."""
        rule = match.rule
        if rule is None:
            return
        try:
            principal = principal_of(match.entries, rule.shares)
        except InvalidKey:  # no state is kept for such a key: it can only be refused
            return
        plan = tuple([Limit(place, principal, quota) for place, quota in rule.counted])
        await driven(self._store, used_up(plan, match.hits))

"""A store around a store, which repeats what it was told a moment ago rather than ask again.

Two caches, and neither ever admits anything: whatever takes or gives back goes to the inner store.

* The *read cache* answers `peek` from an answer to the same question that is at most `peeks` seconds old. What other
  processes did meanwhile is not in it; what was done through this store is: a limit that it touched is asked about
  again.
* The *deny cache*, off unless asked for, answers `check` with the refusal that the same question got, until the
  moment at which that refusal said to ask again. Only time brings that moment nearer, with these exceptions: *another
  process* gives back, resets, or takes under a higher limit of the same name and shape; a refund or reset through this
  store comes to an unknown end; the store's clock leaps ahead. Then requests are refused that the inner store would
  admit, until the refusal's `retry_after` is over. That is the price; it buys that a client who does not heed refusals
  costs the inner store next to nothing.

The question includes the whole plan, quotas and all, so under a changed limit no old answer is found. Times are told as
of now. Answers that the inner store was not the one to give (`Decision.degraded`) are not repeated.

How old an answer is, is counted from before its question was sent, by the clock's ticks, which are never set back.

What sync and async share is `_Cache`; the two stores differ in their awaits only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from headgate.core.decision import Decision
from headgate.core.errors import InvalidStore
from headgate.core.numbers import short, whole
from headgate.core.plan import Call, Family, Plan, Verb, shadowed
from headgate.flows import drive, drive_async
from headgate.locks import new_lock
from headgate.stores.base import AsyncCheck, AsyncStore, Check, Sharded, Store
from headgate.stores.wrapping import check_colour, microseconds, plain_async_check, plain_check

PEEKS = 0.05
MAX_ENTRIES = 10_000
_MARKS = 4096
_FOREVER = 1 << 62


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """What a cached store has done so far."""

    peek_hits: int
    """Peeks answered from the cache."""
    peek_misses: int
    """Peeks that the inner store was asked, while peeks are cached."""
    denial_hits: int
    """Checks answered from the cache."""
    denial_misses: int
    """Checks that the inner store was asked, while denials are cached."""
    entries: int
    """Answers kept now, old ones included."""


class CachedStore:
    """A `Store` that repeats recent answers, for callers that may block.

    >>> from headgate import Limiter
    >>> from headgate.stores import open_store
    >>> limiter = Limiter("100/minute", store=CachedStore(open_store("redis://localhost:6379/0"), denials=True))

    Args:
        store: the store to ask.
        peeks: how many seconds the answer to a peek may be repeated; 0 for never.
        denials: repeat refusals until the moment that they name; see this module on what that costs.
        max_entries: the most answers kept of either kind. Beyond them the oldest are dropped.
    """

    def __init__(
        self, store: Store, *, peeks: float = PEEKS, denials: bool = False, max_entries: int = MAX_ENTRIES
    ) -> None:
        check_colour(store, asynchronous=False, outer=type(self))
        self._store = store
        self.clock = store.clock
        if isinstance(store, Sharded):
            self.servers_of, self.servers = store.servers_of, store.servers
        self._cache = _Cache(store, peeks, denials, max_entries)

    def run(self, call: Call) -> Decision:
        verb, plan, cost = call.verb, call.plan, call.cost
        if call.shadow:
            return drive(shadowed(call), self.run)
        if verb is Verb.CHECK:
            question = self._cache.denials.ask(plan, cost)
            if question.answer is not None:
                return question.answer
            try:
                decision = self._store.run(call)
            finally:
                self._cache.peeks.forget(plan)
            return self._cache.told(question, plan, decision)
        if verb is Verb.PEEK:
            question = self._cache.peeks.ask(plan, cost)
            if question.answer is not None:
                return question.answer
            return question.keep(self._store.run(call))
        try:
            return self._store.run(call)
        finally:
            self._cache.forget(plan)

    def bind(self, family: Family) -> Check:
        return plain_check(self, family)

    def ready(self) -> None:
        self._store.ready()

    def statistics(self) -> CacheStatistics:
        """Return what happened so far, for metrics."""
        return self._cache.statistics()

    def close(self) -> None:
        self._cache.clear()
        self._store.close()


class AsyncCachedStore:
    """The same for callers in an event loop: an `AsyncStore` that repeats recent answers."""

    def __init__(
        self, store: AsyncStore, *, peeks: float = PEEKS, denials: bool = False, max_entries: int = MAX_ENTRIES
    ) -> None:
        check_colour(store, asynchronous=True, outer=type(self))
        self._store = store
        self.clock = store.clock
        if isinstance(store, Sharded):
            self.servers_of, self.servers = store.servers_of, store.servers
        self._cache = _Cache(store, peeks, denials, max_entries)

    async def run(self, call: Call) -> Decision:
        verb, plan, cost = call.verb, call.plan, call.cost
        if call.shadow:
            return await drive_async(shadowed(call), self.run)
        if verb is Verb.CHECK:
            question = self._cache.denials.ask(plan, cost)
            if question.answer is not None:
                return question.answer
            try:
                decision = await self._store.run(call)
            finally:
                self._cache.peeks.forget(plan)
            return self._cache.told(question, plan, decision)
        if verb is Verb.PEEK:
            question = self._cache.peeks.ask(plan, cost)
            if question.answer is not None:
                return question.answer
            return question.keep(await self._store.run(call))
        try:
            return await self._store.run(call)
        finally:
            self._cache.forget(plan)

    def bind(self, family: Family) -> AsyncCheck:
        return plain_async_check(self, family)

    async def ready(self) -> None:
        await self._store.ready()

    def statistics(self) -> CacheStatistics:
        """Return what happened so far, for metrics."""
        return self._cache.statistics()

    async def close(self) -> None:
        self._cache.clear()
        await self._store.close()


class _Cache:
    """What both stores share: the answers of either kind."""

    def __init__(self, store: Store | AsyncStore, peeks: float, denials: object, max_entries: int) -> None:
        if not isinstance(denials, bool):
            raise InvalidStore(f"denials must be True or False, not {short(denials)}")
        most = whole("max_entries", max_entries, 1, 1 << 40, InvalidStore)
        self._sharded = isinstance(store, Sharded)
        clock = store.clock
        self.peeks = _Answers(clock.ticks, microseconds("peeks", peeks, or_none=True), most)
        self.denials = _Answers(clock.ticks, _FOREVER if denials else 0, most)

    def told(self, question: _Question, plan: Plan, decision: Decision) -> Decision:
        """Learn from the answer to a check, and return it.

        What was admitted puts off the moments that earlier refusals named, so those are asked for again.
        """
        if decision.allowed:
            self.denials.forget(plan)
            return decision
        if self._sharded and any(limit.principal != plan[0].principal for limit in plan):
            return decision  # it may be due to what another try has taken for a moment, and gives back
        return question.keep(decision)

    def forget(self, plan: Plan) -> None:
        """Repeat nothing that was said about a limit of `plan` before now."""
        self.peeks.forget(plan)
        self.denials.forget(plan)

    def clear(self) -> None:
        self.peeks.clear()
        self.denials.clear()

    def statistics(self) -> CacheStatistics:
        peeks, denials = self.peeks, self.denials
        return CacheStatistics(
            peeks.hits, peeks.misses, denials.hits, denials.misses, len(peeks.kept) + len(denials.kept)
        )


class _Kept(NamedTuple):
    """An answer, and when it may be repeated."""

    decision: Decision
    marks: list[object]
    since: int
    """The tick at which it came."""
    until: int


class _Answers:
    """Answers by plan and cost. Each counts for a time, and as long as no limit of its plan is to be forgotten.

    To forget a limit is to replace its *mark*, an object that it shares with those limits that have the same hash. An
    answer is kept with the marks that its limits had before the question was sent, and is good while they still have
    them; so it does not matter whether it came before or after a limit was forgotten, nor is it necessary to know
    which answers there are, or are yet to come.
    """

    def __init__(self, ticks: Callable[[], int], longest_us: int, most: int) -> None:
        self._ticks, self._longest_us, self._most = ticks, longest_us, most
        self._marks = [object()] * _MARKS
        self._lock = new_lock()
        self.kept: OrderedDict[tuple[Plan, int], _Kept] = OrderedDict()
        self.hits = self.misses = 0

    def ask(self, plan: Plan, cost: int) -> _Question:
        """Return the question, with its answer if that is known."""
        if not self._longest_us:
            return _UNKEPT
        key, now = (plan, cost), self._ticks()
        marks = [self._marks[hash(limit[:2]) % _MARKS] for limit in plan]
        with self._lock:
            kept = self.kept.get(key)
            if kept is not None and kept.since <= now < kept.until and kept.marks == marks:
                self.hits += 1
                return _Question(None, key, marks, now, _aged(kept.decision, now - kept.since))
            self.misses += 1
        return _Question(self, key, marks, now)

    def keep(self, key: tuple[Plan, int], decision: Decision, marks: list[object], sent: int) -> None:
        """Keep the answer to a question that was sent at the tick `sent`."""
        now, until = self._ticks(), sent + min(self._longest_us, _steady_us(decision))
        with self._lock:
            self.kept.pop(key, None)  # the new one is the youngest
            if len(self.kept) >= self._most:
                self.kept.popitem(last=False)
            self.kept[key] = _Kept(decision, marks, now, until)

    def forget(self, plan: Plan) -> None:
        """Repeat nothing that was said about a limit of `plan` before now."""
        if self._longest_us:
            for limit in plan:
                self._marks[hash(limit[:2]) % _MARKS] = object()

    def clear(self) -> None:
        with self._lock:
            self.kept.clear()


class _Question:
    """A question to the inner store, or the answer that makes it unnecessary."""

    __slots__ = ("_answers", "_key", "_marks", "_sent", "answer")

    def __init__(
        self,
        answers: _Answers | None,
        key: tuple[Plan, int],
        marks: list[object],
        sent: int,
        answer: Decision | None = None,
    ) -> None:
        self._answers, self._key, self._marks, self._sent = answers, key, marks, sent
        self.answer = answer

    def keep(self, decision: Decision) -> Decision:
        """Keep the answer, if it is one to repeat, and return it."""
        if self._answers is not None and not decision.degraded:
            self._answers.keep(self._key, decision, self._marks, self._sent)
        return decision


_UNKEPT = _Question(None, ((), 0), [], 0)


def _steady_us(decision: Decision) -> int:
    """Return for how long the times in a decision pass while everything else that it says stays true enough.

    When a limit would admit the request again, or nothing counts as used any more, there is more to say than that.
    """
    times = [us for part in decision.limits for us in (part.retry_after_us, part.reset_after_us) if us]
    return min(times, default=_FOREVER)


def _aged(decision: Decision, us: int) -> Decision:
    """Return a decision that came `us` microseconds ago with its times as of now. They are never told too short."""
    if not us:
        return decision
    return msgspec.structs.replace(
        decision,
        retry_after_us=max(0, decision.retry_after_us - us),
        reset_after_us=max(0, decision.reset_after_us - us),
        delay_us=max(0, decision.delay_us - us),
        parts=tuple([_aged(part, us) for part in decision.parts]),
    )

"""A store around a store, which repeats what it was told a moment ago rather than ask again.

Two caches, and neither ever admits anything: whatever takes or gives back goes to the inner store.

* The *read cache* answers a peek from an answer to the same question that is at most `peeks` seconds old. What other
  processes did meanwhile is not in it; what was done through this store is: a limit that it touched is asked about
  again.
* The *deny cache*, off by default, answers a check with the refusal that the same question got, until the moment at
  which that refusal said to ask again, and for at most `denials` seconds. Only time brings that moment nearer, with
  these exceptions: *another process* gives back, resets, or takes under a higher limit of the same name and shape; a
  refund or reset through this store comes to an unknown end; the store's clock leaps ahead. Then requests are refused
  that the inner store would admit, until those seconds are over. That is the price; it buys that a client who ignores
  refusals costs the inner store next to nothing. What the shadow plans of a refused request say is as old as the
  refusal.

The question includes the whole plan, quotas and all, so under a changed limit no old answer is found. Times are told as
of now. Answers that the inner store was not the one to give (`Decision.degraded`) are not repeated.

The age of an answer is counted from before its question was sent, by the clock's ticks, which are never set back.
"""

from __future__ import annotations

from collections import OrderedDict
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import msgspec

from headgate.core.decision import Decision
from headgate.core.errors import InvalidStore
from headgate.core.numbers import whole
from headgate.core.plan import Call, Family, Limit, Verb
from headgate.locks import new_lock
from headgate.stores.base import AsyncCheck, AsyncStore, Check, Hurried, Sharded, Store
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
    >>> limiter = Limiter("100/minute", store=CachedStore(open_store("redis://localhost:6379/0"), denials=1))

    Args:
        store: the store to ask.
        peeks: how many seconds the answer to a peek may be repeated; 0 for never.
        denials: how many seconds a refusal may be repeated, at most until the moment that it names; 0 for never. See
            this module on what that costs.
        max_entries: the most answers kept of either kind. Beyond them the oldest are dropped.
    """

    def __init__(
        self, store: Store, *, peeks: float = PEEKS, denials: float = 0, max_entries: int = MAX_ENTRIES
    ) -> None:
        check_colour(store, asynchronous=False, outer=type(self))
        self._store, self._cache = store, _Cache(store, peeks, denials, max_entries)
        self.clock, self.statistics = store.clock, self._cache.statistics
        if isinstance(store, Sharded):
            self.servers_of, self.servers = store.servers_of, store.servers

    def run(self, call: Call) -> Decision:
        question = self._cache.ask(call)
        if question.answer is None:
            try:
                question.answer = self._store.run(call)
            finally:
                question.end()
        return question.answer

    def bind(self, family: Family) -> Check:
        return plain_check(self, family)

    def ready(self) -> None:
        self._store.ready()

    def close(self) -> None:
        self._cache.clear()
        self._store.close()


class AsyncCachedStore:
    """The same for callers in an event loop: an `AsyncStore` that repeats recent answers."""

    def __init__(
        self, store: AsyncStore, *, peeks: float = PEEKS, denials: float = 0, max_entries: int = MAX_ENTRIES
    ) -> None:
        check_colour(store, asynchronous=True, outer=type(self))
        self._store, self._cache = store, _Cache(store, peeks, denials, max_entries)
        self.clock, self.statistics = store.clock, self._cache.statistics
        if isinstance(store, Sharded):
            self.servers_of, self.servers = store.servers_of, store.servers

    def within(self, seconds: float) -> AsyncCachedStore:
        """Return the same store for callers that wait no longer than so many seconds; all share the caches.

        It is the same if the inner store cannot be asked so.
        """
        if not isinstance(self._store, Hurried):
            return self
        hurried = copy(self)
        hurried._store = self._store.within(seconds)  # noqa: SLF001  it is one of us
        return hurried

    async def run(self, call: Call) -> Decision:
        question = self._cache.ask(call)
        if question.answer is None:
            try:
                question.answer = await self._store.run(call)
            finally:
                question.end()
        return question.answer

    def bind(self, family: Family) -> AsyncCheck:
        return plain_async_check(self, family)

    async def ready(self) -> None:
        await self._store.ready()

    async def close(self) -> None:
        self._cache.clear()
        await self._store.close()


class _Kept(NamedTuple):
    """An answer, and when it may be repeated."""

    decision: Decision
    call: Call
    """The question; also so that nothing else takes the identity of its quotas."""
    marks: list[object]
    since: int
    """The tick at which it came."""
    until: int


_Key: TypeAlias = tuple[object, ...]


class _Answers:
    """Answers of one kind, by question."""

    __slots__ = ("hits", "kept", "longest_us", "misses")

    def __init__(self, longest_us: int) -> None:
        self.longest_us = longest_us
        self.kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self.hits = self.misses = 0


class _Cache:
    """What both stores share. An answer counts for a time, and as long as no limit of its question was touched.

    To touch a limit is to replace its *mark*, an object that it shares with those limits that have the same hash. An
    answer is kept with the marks that its limits had before the question was sent, and is good while they still have
    them; so it does not matter whether it came before or after a limit was touched, nor is it necessary to know which
    answers there are, or are yet to come. A refusal touches nothing.
    """

    def __init__(self, store: Store | AsyncStore, peeks: float, denials: float, max_entries: int) -> None:
        self._most = whole("max_entries", max_entries, 1, 1 << 40, InvalidStore)
        self._answers = {
            Verb.PEEK: _Answers(microseconds("peeks", peeks, or_none=True)),
            Verb.CHECK: _Answers(microseconds("denials", denials, or_none=True)),
        }
        self._sharded, self._ticks = isinstance(store, Sharded), store.clock.ticks
        self._marks = [object()] * _MARKS
        self._lock = new_lock()

    def ask(self, call: Call) -> _Question:
        """Return the question, with its answer if that is known."""
        limits = call.plan if not call.shadow else (*call.plan, *[limit for plan in call.shadow for limit in plan])
        places = [hash((space, principal)) % _MARKS for space, principal, _ in limits]
        answers = self._answers.get(call.verb)
        if answers is None or not answers.longest_us:
            return _Question(self, call, places)
        marks, now = [self._marks[place] for place in places], self._ticks()
        key = _key(call, limits)
        with self._lock:
            kept = answers.kept.get(key)
            if kept is not None and kept.since <= now < kept.until and kept.marks == marks:
                answers.hits += 1
                return _Question(self, call, places, _aged(kept.decision, now - kept.since))
            answers.misses += 1
        return _Question(self, call, places, None, key, marks, now)

    def touch(self, places: list[int]) -> None:
        """Repeat nothing that was said about the limits of these places before now."""
        for place in places:
            self._marks[place] = object()

    def keep(self, key: _Key, call: Call, decision: Decision, marks: list[object], sent: int) -> None:
        """Keep the answer to a question that was sent at the tick `sent`."""
        if self._sharded and call.verb is Verb.CHECK and len({limit.principal for limit in call.plan}) > 1:
            return  # it may be due to what another try has taken for a moment, and gives back
        answers = self._answers[call.verb]
        now, until = self._ticks(), sent + min(answers.longest_us, _steady_us(decision))
        with self._lock:
            answers.kept.pop(key, None)  # the new one is the youngest
            if len(answers.kept) >= self._most:
                answers.kept.popitem(last=False)
            answers.kept[key] = _Kept(decision, call, marks, now, until)

    def clear(self) -> None:
        with self._lock:
            for answers in self._answers.values():
                answers.kept.clear()

    def statistics(self) -> CacheStatistics:
        """Return what happened so far, for metrics."""
        peeks, denials = self._answers[Verb.PEEK], self._answers[Verb.CHECK]
        entries = len(peeks.kept) + len(denials.kept)
        return CacheStatistics(peeks.hits, peeks.misses, denials.hits, denials.misses, entries)


class _Question:
    """A call of the inner store, or the answer that makes it unnecessary."""

    __slots__ = ("_cache", "_call", "_key", "_marks", "_places", "_sent", "answer")

    def __init__(  # noqa: PLR0917  one for each call
        self,
        cache: _Cache,
        call: Call,
        places: list[int],
        answer: Decision | None = None,
        key: _Key = (),
        marks: list[object] | None = None,
        sent: int = 0,
    ) -> None:
        self._cache, self._call, self._places, self.answer = cache, call, places, answer
        self._key, self._marks, self._sent = key, marks, sent

    def end(self) -> None:
        """Learn from how the call ended. Without an answer, nobody knows what was done."""
        decision, verb = self.answer, self._call.verb
        if decision is None or not (verb is Verb.PEEK or (verb is Verb.CHECK and not decision.allowed)):
            self._cache.touch(self._places)
        elif self._marks is not None and not decision.degraded:
            self._cache.keep(self._key, self._call, decision, self._marks, self._sent)


def _key(call: Call, limits: tuple[Limit, ...]) -> _Key:
    """Return what tells questions apart: quotas by identity, which is quicker than their hashes."""
    where = [part for space, principal, quota in limits for part in (space, principal, id(quota))]
    return (call.cost, *map(len, (call.plan, *call.shadow)), *where)


def _steady_us(decision: Decision) -> int:
    """Return for how long the times in a decision pass while everything else that it says stays true enough.

    When a limit would admit the request again, or nothing counts as used any more, there is more to say than that.
    """
    parts = [part for each in (decision, *decision.shadow) for part in each.limits]
    return min([us for part in parts for us in (part.retry_after_us, part.reset_after_us) if us], default=_FOREVER)


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
        shadow=tuple([_aged(each, us) for each in decision.shadow]),
    )

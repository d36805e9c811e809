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
  refusals costs the inner store next to nothing. What it says of limits that do not refuse, and of the shadow plans of
  the request, is as old as the refusal: others who use up a limit that all share do not end it.

The question includes the whole plan, quotas and all, so under a changed limit no old answer is found. Times are told as
of now. Answers that the inner store was not the one to give (`Decision.degraded`) are not repeated.

The age of an answer is counted from before its question was sent, by the clock's ticks, which are never set back.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import count, islice
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from headgate.core.decision import Decision
from headgate.core.errors import InvalidStore
from headgate.core.numbers import whole
from headgate.core.plan import Call, Family, Verb
from headgate.locks import new_lock
from headgate.stores.base import AsyncCheck, AsyncStore, Check, Sharded, Store, WithDeadlines
from headgate.stores.wrapping import check_colour, microseconds, plain_async_check, plain_check

PEEKS = 0.05
MAX_ENTRIES = 10_000
_MARKS = 1 << 15
_PLACES = _MARKS - 1
"""The bits of a hash that say where a mark is."""
_FREELY = 1000
"""So many refusals are kept of whoever is refused. More would not stay in the processor's caches."""
_RECENT = 1 << 17
"""Places for notes of who was refused: more than there are such at a time, or they would overwrite each other's."""
_MOMENT = 19
"""Bits of a time in microseconds that are within the same moment, of about half a second."""
_CHECK, _PEEK = Verb.CHECK, Verb.PEEK  # a name is found faster than a member


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
        max_entries: the most answers kept of either kind. Beyond them the oldest make room. From 1000 on, a
            refusal is kept only if the same was refused a moment ago.
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
        cache = self._cache
        asked = cache.ask(call)
        if isinstance(asked, Decision):
            return asked
        decision = None
        try:
            decision = self._store.run(call)
        finally:
            cache.end(call, asked, decision)
        return decision

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
        if not isinstance(self._store, WithDeadlines):
            return self
        copied = copy(self)
        copied._store = self._store.within(seconds)  # noqa: SLF001  of the same class
        return copied

    async def run(self, call: Call) -> Decision:
        cache = self._cache
        asked = cache.ask(call)
        if isinstance(asked, Decision):
            return asked
        decision = None
        try:
            decision = await self._store.run(call)
        finally:
            cache.end(call, asked, decision)
        return decision

    def bind(self, family: Family) -> AsyncCheck:
        return plain_async_check(self, family)

    async def ready(self) -> None:
        await self._store.ready()

    async def close(self) -> None:
        self._cache.clear()
        await self._store.close()


_Sent: TypeAlias = tuple[int, int, int]
"""When a question was sent: the tick, its number among questions and touches, and its key; 0 where that is not made."""


class _Kept(msgspec.Struct, frozen=True, gc=False):
    """An answer, and what says whether it may be repeated."""

    call: Call
    """The question."""
    decision: Decision
    number: int
    """That of the question."""
    places: Sequence[int]
    """The places of the marks of the limits that it depends on."""
    since: int
    """The tick at which the answer came."""
    until: int
    """The tick from which on it may not be repeated."""


class _Answers:
    """Answers of one kind, by the hash of what tells most questions apart; each says itself what the question was.

    While there are few, every answer is kept. One more, or what takes the place of an older one to the same question,
    is kept only if the same question was answered in this moment or the one before, by the store or by what was kept:
    most who are refused do not come back within the time for which that is repeated, and to keep what nobody asks for
    costs more than to answer it. Where answers are `fleeting`, the oldest makes room for any other.

    Args:
        longest_us: for how long one may be repeated.
        most: how many are kept.
        fleeting: see above.
    """

    __slots__ = ("_fleeting", "_freely", "_lock", "_most", "_recent", "hits", "kept", "longest_us", "misses")

    def __init__(self, longest_us: int, most: int, *, fleeting: bool) -> None:
        self.longest_us, self._most, self._fleeting, self._freely = longest_us, most, fleeting, min(most, _FREELY)
        self.kept: dict[int, _Kept] = {}
        self.hits = self.misses = 0
        # Keys, each with the moment in which its question was answered.
        self._recent = array("q", bytes(0 if fleeting or not longest_us else 8 * _RECENT))
        self._lock = new_lock()

    def has_room(self, key: int, tick: int) -> bool:
        """Is the answer to a question to be kept? Takes note that there was one."""
        if self._fleeting or (len(self.kept) < self._freely and key not in self.kept):
            return True
        recent, place, moment = self._recent, key & (_RECENT - 1), tick >> _MOMENT
        before = recent[place] ^ key
        recent[place] = key ^ moment
        return moment - 1 <= before <= moment

    def hit(self, key: int, tick: int) -> None:
        """Note that a kept answer was given."""
        self.hits += 1
        if not self._fleeting:
            self._recent[key & (_RECENT - 1)] = key ^ tick >> _MOMENT

    def keep(self, key: int, kept: _Kept) -> None:
        with self._lock:
            self.kept.pop(key, None)  # the new one is the youngest
            if len(self.kept) >= self._most:  # several at once: to find the first takes longer the more are gone
                for oldest in list(islice(self.kept, -(-self._most // 16))):
                    del self.kept[oldest]
            self.kept[key] = kept

    def clear(self) -> None:
        with self._lock:
            self.kept.clear()


class _Cache:
    """What both stores share. An answer counts for a time, and until a limit that it depends on is touched.

    Those are all limits of a peek, and of a refusal those that refuse: what others have does not change it.

    Questions and touches are numbered, and the number of the last touch is the *mark* of a limit; limits of the same
    hash share one. An answer is good while none of those limits has a mark above the question's number; so it does
    not matter whether it came before or after a limit was touched, nor is it necessary to know which answers there are,
    or are yet to come. A refusal touches nothing.

    Nearly all calls are checks that pass, or are refused to somebody who does not ask again, so these are to cost next
    to nothing: no key is made where no answer is kept, and only those that keep one take the lock.
    """

    def __init__(self, store: Store | AsyncStore, peeks: float, denials: float, max_entries: int) -> None:
        most = whole("max_entries", max_entries, 1, 1 << 40, InvalidStore)
        self._peeks = _Answers(microseconds("peeks", peeks, or_none=True), most, fleeting=True)
        self._denials = _Answers(microseconds("denials", denials, or_none=True), most, fleeting=False)
        self._sharded, self._ticks = isinstance(store, Sharded), store.clock.ticks
        self._numbers, self._marks = count(1), array("q", bytes(8 * _MARKS))

    def ask(self, call: Call) -> Decision | _Sent:
        """Return the answer to a question if that is known, else what to say at the end of it."""
        now, verb, key = self._ticks(), call.verb, 0
        answers = self._denials if verb is _CHECK else self._peeks if verb is _PEEK else None
        if answers is not None and answers.longest_us:
            if answers.kept:
                key = _key(call)
                kept = answers.kept.get(key)
                if kept is not None and kept.since <= now < kept.until and self._is_good(kept, call):
                    answers.hit(key, now)
                    return _aged(kept.decision, now - kept.since)
            answers.misses += 1
        return now, next(self._numbers), key

    def end(self, call: Call, sent: _Sent, decision: Decision | None) -> None:
        """Learn from how a question ended. Without an answer, nobody knows what was done."""
        verb = call.verb
        if decision is not None and (verb is _PEEK or (verb is _CHECK and not decision.allowed)):
            tick, number, key = sent
            answers = self._denials if verb is _CHECK else self._peeks
            if answers.longest_us:
                key = key or _key(call)
                if answers.has_room(key, tick) and self._is_repeatable(call, decision):
                    steady_us, places = _basis(call, decision, answers.longest_us)
                    answers.keep(key, _Kept(call, decision, number, places, self._ticks(), tick + steady_us))
            return
        number, marks = next(self._numbers), self._marks
        for limit in call.plan:
            marks[hash((limit.space, limit.principal)) & _PLACES] = number
        for plan in call.shadow:
            for limit in plan:
                marks[hash((limit.space, limit.principal)) & _PLACES] = number

    def clear(self) -> None:
        self._peeks.clear()
        self._denials.clear()

    def statistics(self) -> CacheStatistics:
        """Return what happened so far, for metrics."""
        peeks, denials = self._peeks, self._denials
        entries = len(peeks.kept) + len(denials.kept)
        return CacheStatistics(peeks.hits, peeks.misses, denials.hits, denials.misses, entries)

    def _is_repeatable(self, call: Call, decision: Decision) -> bool:
        """May an answer be repeated at all?"""
        if decision.degraded or (decision.shadow and any(each.degraded for each in decision.shadow)):
            return False
        # By several servers, a refusal may be due to what another try has taken for a moment, and gives back.
        return not self._sharded or call.verb is _PEEK or len({limit.principal for limit in call.plan}) <= 1

    def _is_good(self, kept: _Kept, call: Call) -> bool:
        """Is this the answer to that question, and was no limit touched since that it depends on?"""
        for place in kept.places:
            if self._marks[place] > kept.number:
                return False
        return kept.call == call


def _key(call: Call) -> int:
    """Return what tells questions apart, but for quotas and shadow plans: those are compared."""
    plan = call.plan
    if len(plan) == 1:
        return hash((plan[0].space, plan[0].principal)) ^ call.cost
    return hash(tuple([(limit.space, limit.principal) for limit in plan])) ^ call.cost


def _basis(call: Call, decision: Decision, longest_us: int) -> tuple[int, Sequence[int]]:
    """Return for how long an answer stays true enough, and the places of the marks of the limits that it depends on.

    A refusal depends on the limits that refuse.
    """
    if len(call.plan) == 1 and not call.shadow:
        limit = call.plan[0]
        return _steady_us(decision, longest_us), (hash((limit.space, limit.principal)) & _PLACES,)
    places, is_peek = [], call.verb is _PEEK
    for plan, each in zip((call.plan, *call.shadow), (decision, *decision.shadow), strict=True):
        for limit, part in zip(plan, each.limits, strict=False):  # of no limits, it has one part all the same
            longest_us = _steady_us(part, longest_us)
            if is_peek or (each is decision and not part.allowed):
                places.append(hash((limit.space, limit.principal)) & _PLACES)
    return longest_us, places


def _steady_us(decision: Decision, longest_us: int) -> int:
    """Return for how long the times in a decision pass while everything else that it says stays true enough.

    When a limit would admit the request again, or nothing counts as used any more, there is more to say than that.
    """
    retry_after, reset_after = decision.retry_after_us, decision.reset_after_us
    if 0 < retry_after < longest_us:
        longest_us = retry_after
    return reset_after if 0 < reset_after < longest_us else longest_us


def _aged(decision: Decision, us: int) -> Decision:
    """Return a decision that came `us` microseconds ago with its times as of now. They are never told too short."""
    retry_after, reset_after, delay = decision.retry_after_us, decision.reset_after_us, decision.delay_us
    aged = replace(
        decision,
        retry_after_us=retry_after - us if retry_after > us else 0,
        reset_after_us=reset_after - us if reset_after > us else 0,
        delay_us=delay - us if delay > us else 0,
    )
    if decision.made_of or decision.shadow:
        return replace(aged, made_of=_all_aged(decision.parts, us), shadow=_all_aged(decision.shadow, us))
    return aged


def _all_aged(decisions: tuple[Decision, ...], us: int) -> tuple[Decision, ...]:
    return tuple([_aged(decision, us) for decision in decisions])

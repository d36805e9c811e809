"""A store around a store that reuses recent answers.

There are two caches. Neither admits anything: whatever takes or refunds goes to the inner store.

* The *read cache* answers a peek with an answer to the same peek that is at most `peeks` seconds old. It misses what
  other processes did meanwhile, but not what was done through this store: limits that it touched are read again.
* The *deny cache*, off by default, answers a check with the refusal of the same check, until the time at which that
  refusal advised to retry, and for at most `denials` seconds. Only time brings that closer, with these exceptions:
  *another process* refunds, resets, or takes under a higher limit of the same name and shape; a refund or reset through
  this store has an unknown outcome; the store's clock leaps ahead. Then requests are refused that the inner store would
  admit, until those seconds are over. In return, a client that ignores refusals costs the inner store next to nothing.
  The decisions about shadow plans, and about limits that do not refuse, are as old as the refusal: use of a shared
  limit by others does not end it.

Calls are compared with their whole plans, including quotas, so a changed limit never gets an old answer. Times in
answers are adjusted to now. Answers that the inner store did not give itself (`Decision.degraded`) are not cached.

The age of an answer counts from before its call was sent, in ticks of the clock, which never go back.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from headgate.core.decision import Decision
from headgate.core.errors import InvalidStore
from headgate.core.numbers import whole
from headgate.core.plan import Call, Verb
from headgate.locks import new_lock
from headgate.stores.base import AsyncStore, Sharded, Store
from headgate.stores.wrapper import AnyStore, AsyncWrapper, Wrapper, WrapperBase, microseconds

PEEKS = 0.05
MAX_ENTRIES = 10_000
_MARKS = 1 << 15
_MASK = _MARKS - 1
"""The bits of a hash that select a mark."""
_UNCONDITIONAL = 1000
"""Refusals that are kept without a condition. More would not stay in the processor's caches."""
_RECENT = 1 << 17
"""Slots for recently refused keys: enough that few overwrite each other."""
_MOMENT = 19
"""Bits of a time in microseconds that are dropped to compare moments, of about half a second."""
_CHECK, _PEEK = Verb.CHECK, Verb.PEEK  # a global is found faster than an enum member


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    peek_hits: int
    """Peeks answered from the cache."""
    peek_misses: int
    """Peeks sent to the inner store, while peeks are cached."""
    denial_hits: int
    """Checks answered from the cache."""
    denial_misses: int
    """Checks sent to the inner store, while denials are cached."""
    entries: int
    """Cached answers, including expired ones."""


class _Caching(WrapperBase[AnyStore]):
    def __init__(
        self, store: AnyStore, *, peeks: float = PEEKS, denials: float = 0, max_entries: int = MAX_ENTRIES
    ) -> None:
        super().__init__(store)
        self._layer = cache = _Cache(store, peeks, denials, max_entries)
        self.statistics = cache.statistics


class CachedStore(_Caching[Store], Wrapper):
    """A `Store` that reuses recent answers, for callers that may block.

    >>> from headgate import Limiter
    >>> from headgate.stores import open_store
    >>> limiter = Limiter("100/minute", store=CachedStore(open_store("redis://localhost:6379/0"), denials=1))

    Args:
        store: the inner store.
        peeks: how many seconds the answer to a peek may be reused; 0 for never.
        denials: how many seconds a refusal may be reused, at most until the time that it names; 0 for never. The
            module describes the price.
        max_entries: the most answers kept of either kind; the oldest are evicted. From 1000 on, a refusal is kept
            only if the same was refused a moment ago.
    """


class AsyncCachedStore(_Caching[AsyncStore], AsyncWrapper):
    """The same for an event loop."""


_Sent: TypeAlias = tuple[int, int, int]
"""A call that was sent: the tick, its number among calls and touches, and its key; 0 if that was not needed."""


class _Kept(msgspec.Struct, frozen=True, gc=False):
    call: Call
    decision: Decision
    number: int
    """The number of the call."""
    marks: Sequence[int]
    """The marks of the limits that it depends on."""
    since: int
    """The tick at which the answer arrived."""
    until: int
    """The tick at which it expires."""


class _Answers:
    """Answers of one kind, by a hash of most of the call; the kept call is compared.

    The first answers are all kept. A further one, or one that replaces an older one to the same call, is kept only if
    the same call was answered in this moment or the one before, by the store or the cache: most refused clients do not
    come back in time, and keeping answers that are never used costs more than the calls. If answers are `short_lived`,
    all are kept, and the oldest are evicted.

    Args:
        longest_us: for how long an answer may be reused.
        most: how many are kept.
        short_lived: see above.
    """

    __slots__ = ("_lock", "_most", "_recent", "_short_lived", "_unconditional", "hits", "kept", "longest_us", "misses")

    def __init__(self, longest_us: int, most: int, *, short_lived: bool) -> None:
        self.longest_us, self._most, self._short_lived = longest_us, most, short_lived
        self._unconditional = min(most, _UNCONDITIONAL)
        self.kept: dict[int, _Kept] = {}
        self.hits = self.misses = 0
        # Keys, each combined with the moment in which its call was answered.
        self._recent = array("q", bytes(0 if short_lived or not longest_us else 8 * _RECENT))
        self._lock = new_lock()

    def should_keep(self, key: int, tick: int) -> bool:
        """Record an answer; returns whether it is to be kept."""
        if self._short_lived or (len(self.kept) < self._unconditional and key not in self.kept):
            return True
        recent, place, moment = self._recent, key & (_RECENT - 1), tick >> _MOMENT
        before = recent[place] ^ key
        recent[place] = key ^ moment
        return moment - 1 <= before <= moment

    def hit(self, key: int, tick: int) -> None:
        self.hits += 1
        if not self._short_lived:
            self._recent[key & (_RECENT - 1)] = key ^ tick >> _MOMENT

    def keep(self, key: int, kept: _Kept) -> None:
        with self._lock:
            self.kept.pop(key, None)  # the new one is the youngest
            if len(self.kept) >= self._most:  # many at once: finding the first is slower the more are deleted
                for oldest in list(islice(self.kept, -(-self._most // 16))):
                    del self.kept[oldest]
            self.kept[key] = kept

    def clear(self) -> None:
        with self._lock:
            self.kept.clear()


class _Cache:
    """The caches of both stores. An answer is valid for a time, and until a limit that it depends on is touched.

    A peek depends on all its limits, a refusal on those that refuse: the state of the others does not change it.

    Calls and touches are numbered. The number of the last touch is the *mark* of a limit; limits with the same hash
    share one. An answer is valid while none of its limits has a mark above the number of its call, whether it arrived
    before or after the touch. So a touch need not know the answers, present or future. A refusal touches nothing.

    Nearly all calls are checks that pass, or are refused once, so these must cost next to nothing: no key is computed
    unless answers are kept, and only keeping one takes the lock.
    """

    def __init__(self, store: Store | AsyncStore, peeks: float, denials: float, max_entries: int) -> None:
        most = whole("max_entries", max_entries, 1, 1 << 40, InvalidStore)
        self._peeks = _Answers(microseconds("peeks", peeks, or_none=True), most, short_lived=True)
        self._denials = _Answers(microseconds("denials", denials, or_none=True), most, short_lived=False)
        self._sharded, self._ticks = isinstance(store, Sharded), store.clock.ticks
        self._numbers, self._marks = count(1), array("q", bytes(8 * _MARKS))

    def begin(self, call: Call) -> Decision | _Sent:
        """Return the cached answer to a call, or the call that is sent."""
        now, verb, key = self._ticks(), call.verb, 0
        answers = self._denials if verb is _CHECK else self._peeks if verb is _PEEK else None
        if answers is not None and answers.longest_us:
            if answers.kept:
                key = _key(call)
                kept = answers.kept.get(key)
                if kept is not None and kept.since <= now < kept.until and self._is_valid(kept, call):
                    answers.hit(key, now)
                    return _age(kept.decision, now - kept.since)
            answers.misses += 1
        return now, next(self._numbers), key

    def answered(self, call: Call, sent: _Sent, decision: Decision) -> Decision:
        """Keep the decision, or mark touched limits."""
        verb = call.verb
        if verb is not _PEEK and (verb is not _CHECK or decision.allowed):
            self._touch(call)
            return decision
        tick, number, key = sent
        answers = self._denials if verb is _CHECK else self._peeks
        if answers.longest_us:
            key = key or _key(call)
            if answers.should_keep(key, tick) and self._is_reusable(call, decision):
                steady_us, marks = _basis(call, decision, answers.longest_us)
                answers.keep(key, _Kept(call, decision, number, marks, self._ticks(), tick + steady_us))
        return decision

    def failed(self, call: Call, _: _Sent, error: BaseException) -> Decision:
        """Mark the limits, since the call may have touched them."""
        self._touch(call)
        raise error

    def _touch(self, call: Call) -> None:
        number, marks = next(self._numbers), self._marks
        for limit in call.plan:
            marks[hash((limit.space, limit.principal)) & _MASK] = number
        for plan in call.shadow:
            for limit in plan:
                marks[hash((limit.space, limit.principal)) & _MASK] = number

    def close(self) -> None:
        self._peeks.clear()
        self._denials.clear()

    def statistics(self) -> CacheStatistics:
        peeks, denials = self._peeks, self._denials
        entries = len(peeks.kept) + len(denials.kept)
        return CacheStatistics(peeks.hits, peeks.misses, denials.hits, denials.misses, entries)

    def _is_reusable(self, call: Call, decision: Decision) -> bool:
        if decision.degraded or (decision.shadow and any(each.degraded for each in decision.shadow)):
            return False
        # With several servers, another call may have caused the refusal with units that it refunds at once.
        return not self._sharded or call.verb is _PEEK or len({limit.principal for limit in call.plan}) <= 1

    def _is_valid(self, kept: _Kept, call: Call) -> bool:
        """Whether it answers the same call, and no limit that it depends on was touched since."""
        for mark in kept.marks:
            if self._marks[mark] > kept.number:
                return False
        return kept.call == call


def _key(call: Call) -> int:
    """Return a hash of a call without quotas and shadow plans: those are compared."""
    plan = call.plan
    if len(plan) == 1:
        return hash((plan[0].space, plan[0].principal)) ^ call.cost
    return hash(tuple([(limit.space, limit.principal) for limit in plan])) ^ call.cost


def _basis(call: Call, decision: Decision, longest_us: int) -> tuple[int, Sequence[int]]:
    """Return for how long an answer is valid, and the marks of the limits that it depends on: see `_Cache`."""
    if len(call.plan) == 1 and not call.shadow:
        limit = call.plan[0]
        return _steady_us(decision, longest_us), (hash((limit.space, limit.principal)) & _MASK,)
    marks, is_peek = [], call.verb is _PEEK
    for plan, each in zip((call.plan, *call.shadow), (decision, *decision.shadow), strict=True):
        for limit, part in zip(plan, each.limits, strict=False):  # without limits there is one part all the same
            longest_us = _steady_us(part, longest_us)
            if is_peek or (each is decision and not part.allowed):
                marks.append(hash((limit.space, limit.principal)) & _MASK)
    return longest_us, marks


def _steady_us(decision: Decision, longest_us: int) -> int:
    """Return for how long only the times in a decision change.

    They end when a limit would admit the request again, or counts nothing as used.
    """
    retry_after, reset_after = decision.retry_after_us, decision.reset_after_us
    if 0 < retry_after < longest_us:
        longest_us = retry_after
    return reset_after if 0 < reset_after < longest_us else longest_us


def _age(decision: Decision, us: int) -> Decision:
    """Return a decision of `us` microseconds ago with its times adjusted to now, never too short."""
    retry_after, reset_after, delay = decision.retry_after_us, decision.reset_after_us, decision.delay_us
    aged = replace(
        decision,
        retry_after_us=retry_after - us if retry_after > us else 0,
        reset_after_us=reset_after - us if reset_after > us else 0,
        delay_us=delay - us if delay > us else 0,
    )
    if decision.parts or decision.shadow:
        return replace(aged, parts=_age_all(decision.parts, us), shadow=_age_all(decision.shadow, us))
    return aged


def _age_all(decisions: tuple[Decision, ...], us: int) -> tuple[Decision, ...]:
    return tuple([_age(decision, us) for decision in decisions])

"""The cached stores: fewer calls, no admissions of their own, and current times in all decisions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limiter, Quota
from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown, StoreUnavailable
from headgate.core.key import once_token
from headgate.core.plan import Call, Family, Verb
from headgate.stores.base import Store
from headgate.stores.cached import AsyncCachedStore, CachedStore, CacheStatistics
from headgate.stores.failover import FailoverStore
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.testing import ManualClock
from headgate.testing.conformance import FEW, LARGE, QUOTAS, StoreConformance
from headgate.testing.reference import ReferenceStore
from tests.stores.subjects import HOUR, SECOND, TEN, Inner, Make, Shards, Subject, maker

make = maker(CachedStore, AsyncCachedStore)


def blocking(**options: Any) -> Subject:
    return Subject((CachedStore, AsyncCachedStore), "sync", Inner(ManualClock()), **options)


class TestCached(StoreConformance):
    quotas, large = FEW, LARGE[:1]

    def make_store(self, clock: ManualClock) -> Store:
        return CachedStore(MemoryStore(clock=clock))


class TestDenying(StoreConformance):
    def make_store(self, clock: ManualClock) -> Store:
        return CachedStore(MemoryStore(clock=clock), denials=3600)

    def test_large_numbers_are_exact(self, store: Store, clock: ManualClock, large: Quota) -> None:
        """Except `remaining`: a repeated refusal has the value of its time, which is not too high."""
        reference = ReferenceStore(clock)
        plan = Family("large", [large]).plan("user")
        for turn in range(60):
            cost = min(large.capacity, 1 + turn * 7919 % 100_000)
            found, true = store.run(Call(Verb.CHECK, plan, cost)), reference.run(Call(Verb.CHECK, plan, cost))
            assert found.remaining <= true.remaining
            assert msgspec.structs.replace(found, remaining=true.remaining) == true
            clock.advance(us=turn * turn * turn * large.window_us // 100_003)


# The read cache


def test_a_peek_is_repeated_for_50_ms(make: Make) -> None:
    subject = make()
    subject.check(4)
    first = subject.peek()
    subject.asked()
    subject.clock.advance(us=49_999)
    again = subject.peek()
    assert subject.asked() == []
    assert (again.remaining, again.reset_after_us) == (first.remaining, first.reset_after_us - 49_999)
    subject.clock.advance(us=1)
    subject.peek()
    assert subject.asked() == ["peek"]


def test_the_age_of_a_peek_counts_from_before_its_call(make: Make) -> None:
    """Its waits count from its arrival, so they are long enough."""
    subject = make()
    subject.check(10)
    subject.inner.takes_us = 20_000
    decision = subject.peek()
    assert (decision.retry_after_us, subject.clock.now() - ManualClock.START) == (HOUR - 10_000, 20_000)
    subject.asked()
    subject.clock.advance(us=29_999)
    assert (subject.peek().retry_after_us, subject.asked()) == (HOUR - 10_000 - 29_999, [])
    subject.clock.advance(us=1)
    subject.peek()
    assert subject.asked() == ["peek"]


def test_other_peeks_are_calls(make: Make) -> None:
    """Another cost, another key, a changed limit, one limit more."""
    subject = make()
    raised, more = Family("test", [Quota(20, HOUR, algorithm=TEN.algorithm)]), Family("test", [TEN, Quota(5, SECOND)])
    subject.peek()
    assert subject.store.run(Call(Verb.PEEK, subject.plan, 2)).allowed
    assert subject.store.run(Call(Verb.PEEK, subject.family.plan("other"))).remaining == 10
    assert subject.store.run(Call(Verb.PEEK, raised.plan("user"))).remaining == 20
    assert len(subject.store.run(Call(Verb.PEEK, more.plan("user"))).limits) == 2
    assert subject.asked() == ["peek"] * 5


@pytest.mark.parametrize("verb", ["check", "check_once", "refund", "reset", "bound"])
@pytest.mark.parametrize("fault", [None, StoreUnavailable, OutcomeUnknown, ZeroDivisionError])
def test_calls_through_this_store_are_seen(make: Make, verb: str, fault: type[Exception] | None) -> None:
    """Also by plans that have only one of the limits in common, and when the call fails."""
    subject = make()
    pair = Family("test", [Quota(100, SECOND), TEN]).plan("user")
    other = subject.family.plan("other")
    acts: dict[str, Callable[[], object]] = {
        "check": lambda: subject.store.run(Call(Verb.CHECK, pair)),
        "check_once": lambda: subject.store.run(Call(Verb.CHECK_ONCE, pair, 1, once_token(pair, 1, "once"))),
        "refund": lambda: subject.store.run(Call(Verb.REFUND, pair)),
        "reset": lambda: subject.store.run(Call(Verb.RESET, pair)),
        "bound": lambda: subject.store.bind(subject.family)("user"),
    }
    subject.peek()
    subject.store.run(Call(Verb.PEEK, other))
    subject.inner.fault = fault
    if fault:
        with pytest.raises(fault):
            acts[verb]()
    else:
        acts[verb]()
    subject.inner.fault = None
    subject.asked()
    subject.peek()
    subject.store.run(Call(Verb.PEEK, other))
    assert subject.asked() == ["peek"]


def test_a_peek_that_was_under_way_meanwhile_is_not_repeated() -> None:
    subject = blocking()
    subject.inner.meanwhile = lambda: subject.check(3)
    assert subject.peek().remaining == 10
    assert subject.peek().remaining == 7
    assert subject.asked() == ["peek", "check", "peek"]


async def test_a_cancelled_check_is_seen() -> None:
    class Hanging(AsyncMemoryStore):
        async def run(self, call: Call) -> Decision:
            decision = await super().run(call)
            if call.verb is Verb.CHECK:
                await asyncio.Event().wait()
            return decision

    store = AsyncCachedStore(Hanging(MemoryStore(clock=ManualClock())))
    plan = Family("test", [TEN]).plan("user")
    assert (await store.run(Call(Verb.PEEK, plan))).remaining == 10
    task = asyncio.create_task(store.run(Call(Verb.CHECK, plan)))
    await asyncio.sleep(0)
    assert (await store.run(Call(Verb.PEEK, plan))).remaining == 10  # as long as it is under way
    task.cancel()
    await asyncio.wait([task])
    assert (await store.run(Call(Verb.PEEK, plan))).remaining == 9


def test_many_peeks_are_bounded_and_the_newest_stay(make: Make) -> None:
    """The oldest make room a few at a time; what was asked again is as new as any."""
    subject = make(max_entries=100)
    plans = [subject.family.plan(f"user {number}") for number in range(250)]
    for place, plan in enumerate(plans):
        subject.store.run(Call(Verb.PEEK, plan))
        assert min(place + 1, 90) <= subject.wrapper.statistics().entries <= 100
    assert 90 <= subject.wrapper.statistics().entries <= 100
    subject.asked()
    for plan in plans[-90:]:
        subject.store.run(Call(Verb.PEEK, plan))
    assert subject.asked() == []
    subject.clock.advance(us=50_000)
    subject.store.run(Call(Verb.PEEK, plans[-90]))
    for plan in plans[:50]:
        subject.store.run(Call(Verb.PEEK, plan))
    subject.asked()
    subject.store.run(Call(Verb.PEEK, plans[-90]))
    assert subject.asked() == []


# The deny cache


def test_no_refusal_is_repeated_by_default(make: Make) -> None:
    subject = make()
    subject.check(10)
    assert not subject.check()
    assert not subject.check()
    assert subject.asked() == ["check"] * 3


@pytest.mark.parametrize("verb", [Verb.CHECK, Verb.PEEK])
def test_a_refusal_is_repeated_exactly_until_its_retry(make: Make, verb: Verb) -> None:
    for quota in QUOTAS:
        subject = make(denials=3600, peeks=3600)
        plan = Family("test", [quota]).plan("user")
        subject.store.run(Call(Verb.CHECK, plan, 5))
        refusal = subject.store.run(Call(verb, plan))
        subject.asked()
        subject.clock.advance(us=refusal.retry_after_us - 1)
        again = subject.store.run(Call(verb, plan))
        assert (again.allowed, again.retry_after_us, again.state) == (False, 1, "throttled"), quota
        assert subject.asked() == []
        subject.clock.advance(us=1)
        assert subject.store.run(Call(verb, plan)), quota
        assert subject.asked() == [verb.value]


def test_a_refusal_is_repeated_for_at_most_the_given_seconds(make: Make) -> None:
    """So refunds by other processes take effect within them."""
    subject = make(denials=1)
    subject.check(10)
    assert subject.check().retry_after_us == HOUR
    subject.asked()
    subject.clock.advance(us=SECOND - 1)
    assert (subject.check().retry_after_us, subject.asked()) == (HOUR - SECOND + 1, [])
    subject.inner.run(Call(Verb.RESET, subject.plan))
    assert not subject.check()
    subject.asked()
    subject.clock.advance(us=1)
    assert (subject.check().allowed, subject.asked()) == (True, ["check"])


def test_a_refusal_is_repeated_with_its_shadow_decisions(make: Make) -> None:
    subject = make(denials=3600)
    tried = Family("tried", [TEN]).plan("user")
    call = Call(Verb.CHECK, subject.plan, 6, shadow=(tried,))
    assert [decision.remaining for decision in subject.store.run(call).shadow] == [4]
    first = subject.store.run(call)
    assert (first.allowed, subject.asked()) == (False, ["check", "check"])
    subject.clock.advance(us=1)
    again = subject.store.run(call)
    assert (again.retry_after_us, subject.asked()) == (first.retry_after_us - 1, [])
    assert [decision.reset_after_us for decision in again.shadow] == [first.shadow[0].reset_after_us - 1]
    assert not subject.store.run(msgspec.structs.replace(call, shadow=()))
    assert subject.asked() == ["check"]
    subject.store.run(Call(Verb.RESET, tried))
    assert subject.store.run(call).shadow[0].remaining == 10


def test_a_refusal_outlasts_what_others_use_of_limits_that_do_not_refuse(make: Make) -> None:
    """Only the limits that refuse count: a caller without budget stays refused, whatever others use or refund."""
    subject = make(denials=1)
    shared = Family("everybody", [Quota(1000, HOUR)]).plan("all")
    own = subject.family.plan("user") + shared
    assert subject.store.run(Call(Verb.CHECK, own, 10)).allowed
    refusal = subject.store.run(Call(Verb.CHECK, own))
    assert subject.store.run(Call(Verb.CHECK, subject.family.plan("another") + shared)).allowed
    assert subject.asked() == ["check"] * 3
    assert subject.store.run(Call(Verb.CHECK, own)) == refusal
    assert subject.store.run(Call(Verb.RESET, shared)).allowed
    assert subject.store.run(Call(Verb.CHECK, own)) == refusal
    assert subject.asked() == ["reset"]
    subject.store.run(Call(Verb.REFUND, subject.plan))
    assert subject.store.run(Call(Verb.CHECK, own)).allowed


def test_a_full_cache_keeps_refusals_of_callers_that_repeat_soon(make: Make) -> None:
    """Most refused callers do not repeat a request in time; those that do are then answered without the store."""
    subject = make(denials=1, max_entries=2)
    users = [subject.family.plan(f"user {number}") for number in range(5)]
    for plan in users:
        subject.store.run(Call(Verb.CHECK, plan, 10))
        assert not subject.store.run(Call(Verb.CHECK, plan))
    assert subject.wrapper.statistics().entries == 2
    subject.asked()
    assert not subject.store.run(Call(Verb.CHECK, users[0]))
    assert subject.asked() == [], "there was room for the first two"
    assert not subject.store.run(Call(Verb.CHECK, users[4]))
    assert subject.asked() == ["check"], "it is the second time, so it is kept"
    assert not subject.store.run(Call(Verb.CHECK, users[4]))
    assert (subject.asked(), subject.wrapper.statistics().entries) == ([], 2)
    for _ in range(2):
        subject.clock.advance(us=2 * SECOND)
        for _ in range(3):
            assert not subject.store.run(Call(Verb.CHECK, users[4]))
        assert subject.asked() == ["check", "check"], "what is kept is too old: the third is repeated again"


def test_a_slow_refusal_is_repeated_only_until_its_retry(make: Make) -> None:
    """The store decided some time after that, so it is asked in time to admit."""
    subject = make(denials=3600)
    subject.check(10)
    subject.inner.takes_us = 1000
    subject.clock.advance(us=HOUR - 10_000)
    refusal = subject.check()
    assert refusal.retry_after_us == 9500
    subject.asked()
    subject.inner.takes_us = 0
    subject.clock.advance(us=8499)
    assert (subject.check().retry_after_us, subject.asked()) == (9500 - 8499, [])
    subject.clock.advance(us=1)
    assert (subject.check().retry_after_us, subject.asked()) == (500, ["check"])


def test_other_costs_and_bound_checks(make: Make) -> None:
    subject = make(denials=3600)
    bound = subject.store.bind(subject.family)
    subject.check(8)
    assert not bound("user", 3)
    subject.asked()
    assert not bound("user", 3)
    assert not subject.check(3)
    assert subject.asked() == []
    assert not subject.check(4)
    assert bound("user", 2)
    assert subject.asked() == ["check", "check"]
    assert bound("user", 0).remaining == 0


def test_a_refusal_that_was_under_way_meanwhile_is_not_repeated() -> None:
    subject = blocking(denials=3600)
    subject.check(10)
    subject.inner.meanwhile = lambda: subject.store.run(Call(Verb.RESET, subject.plan))
    assert not subject.check()
    assert subject.check()


def test_answers_of_an_outage_are_not_repeated() -> None:
    clock = ManualClock()
    inner = Inner(clock)
    cached = CachedStore(FailoverStore(inner, mode="deny", failures=1), denials=3600)
    plan = Family("test", [TEN]).plan("user")
    inner.fault = StoreUnavailable
    assert cached.run(Call(Verb.CHECK, plan)).degraded
    assert cached.run(Call(Verb.PEEK, plan)).degraded
    inner.fault = None
    inner.run(Call(Verb.RESET, plan))
    clock.advance(us=cached.run(Call(Verb.CHECK, plan)).retry_after_us)
    assert cached.run(Call(Verb.PEEK, plan)).degraded == ""
    assert cached.run(Call(Verb.CHECK, plan)).allowed
    assert cached.statistics().denial_hits == cached.statistics().peek_hits == 0


def test_a_refusal_by_several_servers_is_not_repeated_also_around_failover() -> None:
    """Another try may have taken something for a moment, and refunded it."""
    inner = Shards(ManualClock())
    family = Family("test", [TEN])
    one, two = family.plan("user"), (*family.plan("user"), *family.plan("other"))
    for cached in (CachedStore(inner, denials=3600), CachedStore(FailoverStore(inner), denials=3600)):
        cached.run(Call(Verb.CHECK, one, 10))
        inner.asked.clear()
        for plan in (one, two):
            assert [cached.run(Call(Verb.CHECK, plan)).allowed for _ in range(3)] == [False] * 3
        assert inner.asked == ["check"] * 4
        cached.run(Call(Verb.RESET, one))


def test_a_clock_that_goes_back_repeats_nothing(make: Make) -> None:
    subject = make(denials=3600)
    subject.check(10)
    subject.check()
    subject.peek()
    subject.asked()
    subject.clock.advance(us=-1)
    subject.check()
    subject.peek()
    assert subject.asked() == ["check", "peek"]


PLANS = st.lists(st.sampled_from(QUOTAS), min_size=1, max_size=3, unique_by=lambda quota: quota.shape)
ACTS = st.one_of(
    st.tuples(st.sampled_from(["check", "check", "check", "bound", "part", "refund", "once"]), st.integers(1, 5)),
    st.tuples(st.just("reset"), st.just(0)),
    st.tuples(st.just("time"), st.one_of(st.integers(0, SECOND), st.sampled_from([1, 50_000, SECOND, 10 * SECOND]))),
    st.tuples(st.just("wait"), st.sampled_from([-1, 0])),
)


@given(PLANS, st.lists(ACTS, max_size=60))
def test_one_process_alone_gets_the_answers_of_the_store(quotas: list[Quota], trace: list[tuple[str, int]]) -> None:
    """Whether a request may pass and, if not, exactly when: whatever is taken and refunded."""
    clock = ManualClock()
    cached, reference = CachedStore(MemoryStore(clock=clock), denials=3600), ReferenceStore(clock)
    family = Family("test", quotas)
    plan, part, bound = family.plan("user"), family.plan("user")[:1], cached.bind(family)
    last = 0
    for verb, number in trace:
        if verb in {"check", "bound", "part"}:
            asked = part if verb == "part" else plan
            found = bound("user", number) if verb == "bound" else cached.run(Call(Verb.CHECK, asked, number))
            true = reference.run(Call(Verb.CHECK, asked, number))
            assert (found.allowed, found.retry_after_us) == (true.allowed, true.retry_after_us)
            assert [each.allowed for each in found.limits] == [each.allowed for each in true.limits]
            assert [each.retry_after_us for each in found.limits] == [each.retry_after_us for each in true.limits]
            assert [each.reset_after_us for each in found.limits] == [each.reset_after_us for each in true.limits]
            assert all(one.remaining <= other.remaining for one, other in zip(found.limits, true.limits, strict=True))
            last = found.retry_after_us
        elif verb == "once":
            token = once_token(plan, number, "retry")
            assert cached.run(Call(Verb.CHECK_ONCE, plan, number, token)) == reference.run(
                Call(Verb.CHECK_ONCE, plan, number, token)
            )
        elif verb == "refund":
            assert cached.run(Call(Verb.REFUND, plan, number)) == reference.run(Call(Verb.REFUND, plan, number))
        elif verb == "reset":
            cached.run(Call(Verb.RESET, plan))
            reference.run(Call(Verb.RESET, plan))
        elif verb == "wait":
            clock.advance(us=max(0, last + number))
        else:
            clock.advance(us=number)


def test_callers_that_wait_get_through() -> None:
    class Skipping(ManualClock):
        def wait(self, event: threading.Event, until: int | None) -> None:  # noqa: ARG002  the contract has it
            assert until is not None
            assert until > self.now()
            self.set(until)

    clock = Skipping()
    inner = Inner(clock)
    limiter = Limiter("2/minute", store=CachedStore(inner, denials=3600))
    assert [limiter.acquire("user").allowed for _ in range(10)] == [True] * 10
    assert clock.now() - ManualClock.START == 8 * 30 * SECOND


# The rest


def test_statistics_count_what_happened(make: Make) -> None:
    subject = make(denials=3600)
    assert subject.wrapper.statistics() == CacheStatistics(0, 0, 0, 0, 0)
    for _ in range(3):
        subject.peek()
    subject.check(10)
    for _ in range(4):
        subject.check()
    assert subject.wrapper.statistics() == CacheStatistics(
        peek_hits=2, peek_misses=1, denial_hits=3, denial_misses=2, entries=2
    )
    plain = make(peeks=0)
    plain.peek()
    plain.check()
    assert plain.wrapper.statistics() == CacheStatistics(0, 0, 0, 0, 0)


def test_everything_else_is_the_inner_stores(make: Make) -> None:
    subject = make()
    subject.store.ready()
    assert subject.asked() == ["ready"]
    assert subject.wrapper.clock is subject.inner.clock
    assert not hasattr(subject.wrapper, "servers_of"), "there are no servers to distinguish"
    subject.inner.fault = StoreUnavailable
    with pytest.raises(StoreUnavailable, match="injected"):
        subject.store.ready()

    sharded = make(Shards)
    assert (sharded.wrapper.servers_of(sharded.plan), sharded.wrapper.servers()) == (("u",), set())


def test_close_forgets_and_closes(make: Make) -> None:
    subject = make(denials=3600)
    subject.check(10)
    subject.check()
    subject.peek()
    if isinstance(subject.wrapper, CachedStore):
        subject.wrapper.close()
    else:
        asyncio.run(subject.wrapper.close())
    assert (subject.wrapper.statistics().entries, len(subject.inner)) == (0, 0)

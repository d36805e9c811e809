"""The cached stores: they ask less, never admit by themselves, and tell every time as of now."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Algorithm, AsyncLimiter, InvalidCost, InvalidKey, InvalidStore, Limiter, Quota
from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown, StoreUnavailable
from headgate.core.key import once_token
from headgate.core.plan import Call, Family, Plan, Verb
from headgate.stores.base import Store
from headgate.stores.cached import AsyncCachedStore, CachedStore, CacheStatistics
from headgate.stores.failover import FailoverStore
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.testing import ManualClock
from headgate.testing.blocking import Blocking
from headgate.testing.conformance import FEW, LARGE, QUOTAS, StoreConformance, StoreTraces
from headgate.testing.reference import ReferenceStore

SECOND = 1_000_000
HOUR = 3600 * SECOND
TEN = Quota(10, HOUR, algorithm=Algorithm.SLIDING_WINDOW_LOG)


class Counting(MemoryStore):
    """A memory store that counts what it is asked, takes its time, and fails when told."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.manual = clock
        self.asked: list[str] = []
        self.fault: type[Exception] | None = None
        self.takes_us = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def _asked(self, verb: str, work: Callable[[], Any]) -> Any:
        """Act in the middle of the time that the call takes; `meanwhile` happens after that."""
        self.asked.append(verb)
        self.manual.advance(us=self.takes_us // 2)
        done = work()
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        self.manual.advance(us=self.takes_us - self.takes_us // 2)
        if self.fault:
            raise self.fault("told to")
        return done

    def run(self, call: Call) -> Decision:
        done: Decision = self._asked(call.verb.value, lambda: super(Counting, self).run(call))
        return done

    def ready(self) -> None:
        self._asked("ready", lambda: None)


class Subject:
    """A cached store of either colour around a counting one."""

    store: Store

    def __init__(self, colour: str, **options: Any) -> None:
        self.clock = ManualClock()
        self.inner = Counting(self.clock)
        self.cached: CachedStore | AsyncCachedStore
        if colour == "sync":
            self.cached = self.store = CachedStore(self.inner, **options)
        else:
            self.cached = AsyncCachedStore(AsyncMemoryStore(self.inner), **options)
            self.store = Blocking(self.cached)
        self.family = Family("test", [TEN])
        self.plan = self.family.plan("user")

    def check(self, cost: int = 1) -> Decision:
        return self.store.run(Call(Verb.CHECK, self.plan, cost))

    def peek(self, cost: int = 1) -> Decision:
        return self.store.run(Call(Verb.PEEK, self.plan, cost))

    def asked(self) -> list[str]:
        """Return what the inner store was asked since the last time."""
        asked, self.inner.asked = self.inner.asked, []
        return asked


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Subject]]:
    made: list[Subject] = []

    def make(**options: Any) -> Subject:
        made.append(Subject(request.param, **options))
        return made[-1]

    yield make
    for subject in made:
        subject.store.close()


class TestCached(StoreConformance):
    quotas, large = FEW, LARGE[:1]

    def make_store(self, clock: ManualClock) -> Store:
        return CachedStore(MemoryStore(clock=clock))


class TestAsyncCached(StoreConformance):
    quotas, large = FEW, LARGE[:1]

    def make_store(self, clock: ManualClock) -> Store:
        return Blocking(AsyncCachedStore(AsyncMemoryStore(MemoryStore(clock=clock))))


class TestDenying(StoreConformance):
    def make_store(self, clock: ManualClock) -> Store:
        return CachedStore(MemoryStore(clock=clock), denials=3600)

    def test_large_numbers_are_exact(self, store: Store, clock: ManualClock, large: Quota) -> None:
        """All but `remaining`: a refusal that is repeated tells it as it was, which is not too much."""
        reference = ReferenceStore(clock)
        plan = Family("large", [large]).plan("user")
        for turn in range(60):
            cost = min(large.capacity, 1 + turn * 7919 % 100_000)
            found, true = store.run(Call(Verb.CHECK, plan, cost)), reference.run(Call(Verb.CHECK, plan, cost))
            assert found.remaining <= true.remaining
            assert msgspec.structs.replace(found, remaining=true.remaining) == true
            clock.advance(us=turn * turn * turn * large.window_us // 100_003)


class TestUncachedTraces(StoreTraces):
    """With both caches off it is the inner store."""

    def make_store(self, clock: ManualClock) -> Store:
        return CachedStore(MemoryStore(clock=clock), peeks=0)


class TestUncachedAsyncTraces(StoreTraces):
    examples = 30

    def make_store(self, clock: ManualClock) -> Store:
        return Blocking(AsyncCachedStore(AsyncMemoryStore(MemoryStore(clock=clock)), peeks=0))


# The read cache


def test_a_peek_is_repeated_for_50_ms(make: Callable[..., Subject]) -> None:
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


def test_its_age_counts_from_before_it_was_asked(make: Callable[..., Subject]) -> None:
    """And its times from when it came: waiting as long as it says is long enough."""
    subject = make()
    subject.check(10)
    subject.inner.takes_us = 20_000
    told = subject.peek()
    assert (told.retry_after_us, subject.clock.now() - ManualClock.START) == (HOUR - 10_000, 20_000)
    subject.asked()
    subject.clock.advance(us=29_999)
    assert (subject.peek().retry_after_us, subject.asked()) == (HOUR - 10_000 - 29_999, [])
    subject.clock.advance(us=1)
    subject.peek()
    assert subject.asked() == ["peek"]


def test_other_questions_are_asked(make: Callable[..., Subject]) -> None:
    """Another cost, another key, a changed limit, one limit more."""
    subject = make()
    raised, more = Family("test", [Quota(20, HOUR, algorithm=TEN.algorithm)]), Family("test", [TEN, Quota(5, SECOND)])
    subject.peek()
    assert subject.store.run(Call(Verb.PEEK, subject.plan, 2)).allowed
    assert subject.store.run(Call(Verb.PEEK, subject.family.plan("other"))).remaining == 10
    assert subject.store.run(Call(Verb.PEEK, raised.plan("user"))).remaining == 20
    assert len(subject.store.run(Call(Verb.PEEK, more.plan("user"))).limits) == 2
    assert subject.asked() == ["peek"] * 5


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_a_peek_that_refuses_is_not_repeated_when_it_would_admit(make: Callable[..., Subject], quota: Quota) -> None:
    subject = make(peeks=3600)
    plan = Family("test", [quota]).plan("user")
    subject.store.run(Call(Verb.CHECK, plan, 5))
    refusal = subject.store.run(Call(Verb.PEEK, plan))
    subject.asked()
    subject.clock.advance(us=refusal.retry_after_us - 1)
    assert (subject.store.run(Call(Verb.PEEK, plan)).retry_after_us, subject.asked()) == (1, [])
    subject.clock.advance(us=1)
    assert subject.store.run(Call(Verb.PEEK, plan)).allowed


@pytest.mark.parametrize("verb", ["check", "check_once", "refund", "reset", "bound"])
@pytest.mark.parametrize("fault", [None, StoreUnavailable, OutcomeUnknown, ZeroDivisionError])
def test_what_goes_through_this_store_is_seen(
    make: Callable[..., Subject], verb: str, fault: type[Exception] | None
) -> None:
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
    subject = Subject("sync")
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


def test_peeks_are_bounded_and_the_oldest_go_first(make: Callable[..., Subject]) -> None:
    subject = make(max_entries=3)
    plans = [subject.family.plan(f"user {number}") for number in range(5)]
    for plan in plans:
        subject.store.run(Call(Verb.PEEK, plan))
    assert subject.cached.statistics().entries == 3
    subject.asked()
    for plan in reversed(plans):
        subject.store.run(Call(Verb.PEEK, plan))
    assert subject.asked() == ["peek", "peek"]


def test_many_peeks_are_bounded_and_the_newest_stay(make: Callable[..., Subject]) -> None:
    """The oldest make room a few at a time; what was asked again is as new as any."""
    subject = make(max_entries=100)
    plans = [subject.family.plan(f"user {number}") for number in range(250)]
    for place, plan in enumerate(plans):
        subject.store.run(Call(Verb.PEEK, plan))
        assert min(place + 1, 90) <= subject.cached.statistics().entries <= 100
    assert 90 <= subject.cached.statistics().entries <= 100
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


def test_no_check_is_repeated_unless_asked_for(make: Callable[..., Subject]) -> None:
    subject = make()
    subject.check(10)
    assert not subject.check()
    assert not subject.check()
    assert subject.asked() == ["check"] * 3


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_a_refusal_is_repeated_exactly_until_it_said(make: Callable[..., Subject], quota: Quota) -> None:
    subject = make(denials=3600)
    plan = Family("test", [quota]).plan("user")
    subject.store.run(Call(Verb.CHECK, plan, 5))
    refusal = subject.store.run(Call(Verb.CHECK, plan))
    subject.asked()
    subject.clock.advance(us=refusal.retry_after_us - 1)
    again = subject.store.run(Call(Verb.CHECK, plan))
    assert (again.allowed, again.retry_after_us, again.state) == (False, 1, "throttled")
    assert subject.asked() == []
    subject.clock.advance(us=1)
    assert subject.store.run(Call(Verb.CHECK, plan))
    assert subject.asked() == ["check"]


def test_a_refusal_is_repeated_for_at_most_the_given_seconds(make: Callable[..., Subject]) -> None:
    """So that what another process gives back acts within them."""
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


def test_a_refusal_is_repeated_with_what_its_shadow_plans_said(make: Callable[..., Subject]) -> None:
    subject = make(denials=3600)
    tried = Family("tried", [TEN]).plan("user")
    call = Call(Verb.CHECK, subject.plan, 6, shadow=(tried,))
    assert [told.remaining for told in subject.store.run(call).shadow] == [4]
    first = subject.store.run(call)
    assert (first.allowed, subject.asked()) == (False, ["check", "check"])
    subject.clock.advance(us=1)
    again = subject.store.run(call)
    assert (again.retry_after_us, subject.asked()) == (first.retry_after_us - 1, [])
    assert [told.reset_after_us for told in again.shadow] == [first.shadow[0].reset_after_us - 1]
    assert not subject.store.run(msgspec.structs.replace(call, shadow=()))
    assert subject.asked() == ["check"]
    subject.store.run(Call(Verb.RESET, tried))
    assert subject.store.run(call).shadow[0].remaining == 10


def test_a_refusal_outlasts_what_others_use_of_limits_that_do_not_refuse(make: Callable[..., Subject]) -> None:
    """Only the limits that refuse count: somebody who used up their own share is refused by it, whatever others do."""
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


def test_a_full_cache_keeps_refusals_of_those_who_come_back_within_a_moment(make: Callable[..., Subject]) -> None:
    """Most who are refused do not ask again in time, and whoever does is answered without the store from then on."""
    subject = make(denials=1, max_entries=2)
    users = [subject.family.plan(f"user {number}") for number in range(5)]
    for plan in users:
        subject.store.run(Call(Verb.CHECK, plan, 10))
        assert not subject.store.run(Call(Verb.CHECK, plan))
    assert subject.cached.statistics().entries == 2
    subject.asked()
    assert not subject.store.run(Call(Verb.CHECK, users[0]))
    assert subject.asked() == [], "there was room for the first two"
    assert not subject.store.run(Call(Verb.CHECK, users[4]))
    assert subject.asked() == ["check"], "it is the second time, so it is kept"
    assert not subject.store.run(Call(Verb.CHECK, users[4]))
    assert (subject.asked(), subject.cached.statistics().entries) == ([], 2)
    for _ in range(2):
        subject.clock.advance(us=2 * SECOND)
        for _ in range(3):
            assert not subject.store.run(Call(Verb.CHECK, users[4]))
        assert subject.asked() == ["check", "check"], "what is kept is too old: the third is repeated again"


def test_it_is_repeated_no_longer_than_that_after_it_was_asked(make: Callable[..., Subject]) -> None:
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


def test_other_costs_and_bound_checks(make: Callable[..., Subject]) -> None:
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
    wrong: Any
    for wrong in ("", 7, None):
        with pytest.raises(InvalidKey):
            bound(wrong)
    for wrong in (11, -1, True, 1.0):
        with pytest.raises(InvalidCost):
            bound("user", wrong)


@pytest.mark.parametrize("verb", ["refund", "reset"])
def test_what_is_given_back_through_this_store_is_seen_at_once(make: Callable[..., Subject], verb: str) -> None:
    subject = make(denials=3600)
    pair = Family("test", [Quota(100, SECOND), TEN]).plan("user")
    for _ in range(2):
        subject.store.run(Call(Verb.CHECK, subject.plan, 10))
        assert not subject.check()
        assert not subject.store.run(Call(Verb.CHECK, pair))
        if verb == "refund":
            subject.store.run(Call(Verb.REFUND, subject.plan, 10))
        else:
            subject.store.run(Call(Verb.RESET, subject.plan))
        assert subject.store.run(Call(Verb.CHECK, pair))
        assert subject.check(9)
        subject.store.run(Call(Verb.RESET, subject.plan))


def test_a_refusal_that_was_under_way_meanwhile_is_not_repeated() -> None:
    subject = Subject("sync", denials=3600)
    subject.check(10)
    subject.inner.meanwhile = lambda: subject.store.run(Call(Verb.RESET, subject.plan))
    assert not subject.check()
    assert subject.check()


def test_a_check_once_is_always_asked(make: Callable[..., Subject]) -> None:
    """It may have been admitted before the limit was spent."""
    subject = make(denials=3600)
    token = once_token(subject.plan, 1, "retry")
    first = subject.store.run(Call(Verb.CHECK_ONCE, subject.plan, 1, token))
    subject.check(9)
    assert not subject.check()
    assert subject.store.run(Call(Verb.CHECK_ONCE, subject.plan, 1, token)) == first
    assert first.allowed


def test_answers_of_an_outage_are_not_repeated() -> None:
    clock = ManualClock()
    inner = Counting(clock)
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
    """Another try may have taken something for a moment, and given it back."""

    class Sharded(Counting):
        def servers_of(self, plan: Plan) -> tuple[str, ...]:
            return tuple([f"server of {limit.principal!r}" for limit in plan])

        def servers(self) -> set[str]:
            return set()

    inner = Sharded(ManualClock())
    family = Family("test", [TEN])
    one, two = family.plan("user"), (*family.plan("user"), *family.plan("other"))
    for cached in (CachedStore(inner, denials=3600), CachedStore(FailoverStore(inner), denials=3600)):
        cached.run(Call(Verb.CHECK, one, 10))
        inner.asked.clear()
        for plan in (one, two):
            assert [cached.run(Call(Verb.CHECK, plan)).allowed for _ in range(3)] == [False] * 3
        assert inner.asked == ["check"] * 4
        cached.run(Call(Verb.RESET, one))


def test_a_clock_that_goes_back_repeats_nothing(make: Callable[..., Subject]) -> None:
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
    """Whether it may pass, and if not, exactly when: whatever it takes and gives back."""
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


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_16_threads_admit_exactly_the_capacity(quota: Quota) -> None:
    clock = ManualClock()
    limiter = Limiter([quota], store=CachedStore(MemoryStore(clock=clock), denials=3600))
    start = threading.Barrier(16)

    def work(_: int) -> int:
        start.wait()
        return sum(limiter.check("user").allowed for _ in range(50))

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(work, range(16))) == 5
    clock.advance(us=limiter.check("user").retry_after_us)
    assert limiter.check("user")


def test_callers_that_wait_get_through() -> None:
    class Skipping(ManualClock):
        def wait(self, event: threading.Event, until: int | None) -> None:  # noqa: ARG002  the contract has it
            assert until is not None
            assert until > self.now()
            self.set(until)

    clock = Skipping()
    inner = Counting(clock)
    limiter = Limiter("2/minute", store=CachedStore(inner, denials=3600))
    assert [limiter.acquire("user").allowed for _ in range(10)] == [True] * 10
    assert clock.now() - ManualClock.START == 8 * 30 * SECOND


# The rest


def test_statistics_tell_what_happened(make: Callable[..., Subject]) -> None:
    subject = make(denials=3600)
    assert subject.cached.statistics() == CacheStatistics(0, 0, 0, 0, 0)
    for _ in range(3):
        subject.peek()
    subject.check(10)
    for _ in range(4):
        subject.check()
    assert subject.cached.statistics() == CacheStatistics(
        peek_hits=2, peek_misses=1, denial_hits=3, denial_misses=2, entries=2
    )
    plain = make(peeks=0)
    plain.peek()
    plain.check()
    assert plain.cached.statistics() == CacheStatistics(0, 0, 0, 0, 0)


def test_it_is_the_inner_store_in_all_else(make: Callable[..., Subject]) -> None:
    subject = make()
    subject.store.ready()
    assert subject.asked() == ["ready"]
    assert subject.cached.clock is subject.inner.clock
    assert not hasattr(subject.cached, "servers_of"), "there are no servers to be told apart"
    subject.inner.fault = StoreUnavailable
    with pytest.raises(StoreUnavailable, match="told to"):
        subject.store.ready()

    class Sharded(MemoryStore):
        def servers_of(self, plan: Plan) -> tuple[str, ...]:
            return tuple([f"server of {limit.principal!r}" for limit in plan])

        def servers(self) -> set[str]:
            return {"all"}

    class AsyncSharded(AsyncMemoryStore):
        servers_of, servers = Sharded.servers_of, Sharded.servers

    for cached in (CachedStore(Sharded()), AsyncCachedStore(AsyncSharded(MemoryStore()))):
        assert (cached.servers_of(subject.plan), cached.servers()) == (("server of 'user'",), {"all"})


def test_close_forgets_and_closes(make: Callable[..., Subject]) -> None:
    subject = make(denials=3600)
    subject.check(10)
    subject.check()
    subject.peek()
    if isinstance(subject.cached, CachedStore):
        subject.cached.close()
    else:
        asyncio.run(subject.cached.close())
    assert (subject.cached.statistics().entries, len(subject.inner)) == (0, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peeks": -1}, "peeks must be a number of seconds from 0 to 3600, not -1"),
        ({"peeks": "1"}, "peeks must be a number of seconds from 0 to 3600, not '1'"),
        ({"peeks": True}, "peeks must be a number of seconds"),
        ({"peeks": float("nan")}, "peeks must be a number of seconds"),
        ({"denials": -1}, "denials must be a number of seconds from 0 to 3600, not -1"),
        ({"denials": True}, "denials must be a number of seconds from 0 to 3600, not True"),
        ({"max_entries": 0}, "max_entries must be a whole number from 1"),
    ],
    ids=str,
)
def test_refuses_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidStore, match=message):
        CachedStore(MemoryStore(), **options)
    with pytest.raises(InvalidStore, match=message):
        AsyncCachedStore(AsyncMemoryStore(MemoryStore()), **options)


def test_refuses_what_is_no_store_or_of_the_other_colour() -> None:
    wrong: Any
    for wrong in ("redis://localhost", MemoryStore, None, AsyncMemoryStore(MemoryStore())):
        with pytest.raises(
            InvalidStore, match=r"open it with open_store|the other of CachedStore and AsyncCachedStore"
        ):
            CachedStore(wrong)
    wrong = MemoryStore()
    with pytest.raises(InvalidStore, match="for the other of CachedStore and AsyncCachedStore"):
        AsyncCachedStore(wrong)


async def test_limiters_take_it_as_their_store() -> None:
    clock = ManualClock()
    limiter = Limiter("2/hour", store=CachedStore(MemoryStore(clock=clock), denials=3600))
    assert [limiter.check("user").allowed for _ in range(4)] == [True, True, False, False]
    limiter.refund("user")
    assert limiter.check("user")
    store = AsyncCachedStore(AsyncMemoryStore(MemoryStore(clock=clock)), denials=3600)
    async with AsyncLimiter("2/hour", store=store) as in_a_loop:
        assert [(await in_a_loop.check("user")).allowed for _ in range(4)] == [True, True, False, False]
        await in_a_loop.reset("user")
        assert await in_a_loop.check("user")

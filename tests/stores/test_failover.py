"""The failover stores: they always answer, say when the answer is theirs, and keep the bound that they publish."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from headgate import Algorithm, AsyncLimiter, Clock, InvalidCost, InvalidKey, InvalidStore, Limiter, Quota
from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown, StoreError, StoreUnavailable
from headgate.core.key import once_token
from headgate.core.mode import Mode
from headgate.core.plan import Family, Plan
from headgate.stores import open_store
from headgate.stores.attempt import MAX_SHARDS
from headgate.stores.base import Check, Store
from headgate.stores.breaker import Circuit
from headgate.stores.failover import AsyncFailoverStore, FailoverStore, Reason
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.testing import ManualClock
from headgate.testing.blocking import Blocking
from headgate.testing.conformance import StoreConformance, StoreTraces
from headgate.testing.reference import ReferenceStore

SECOND = 1_000_000
HOUR = 3600 * SECOND
UNAVAILABLE, UNKNOWN, UNASKED = Reason.STORE_UNAVAILABLE, Reason.OUTCOME_UNKNOWN, Reason.CIRCUIT_OPEN
TEN = Quota(10, HOUR, algorithm=Algorithm.SLIDING_WINDOW_LOG)


class Faulty(MemoryStore):
    """A memory store that fails when told: before it does anything, or, as a lost reply, after it did it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.fault: type[BaseException] | None = None
        self.asked = 0

    def _asked(self, work: Callable[[], Any]) -> Any:
        self.asked += 1
        if self.fault is OutcomeUnknown:
            work()
        if self.fault:
            raise self.fault("told to")
        return work()

    def check(self, plan: Plan, cost: int) -> Decision:
        done: Decision = self._asked(lambda: super(Faulty, self).check(plan, cost))
        return done

    def check_once(self, plan: Plan, cost: int, token: bytes) -> Decision:
        done: Decision = self._asked(lambda: super(Faulty, self).check_once(plan, cost, token))
        return done

    def ready(self) -> None:
        self._asked(lambda: super(Faulty, self).ready())

    def peek(self, plan: Plan, cost: int) -> Decision:
        done: Decision = self._asked(lambda: super(Faulty, self).peek(plan, cost))
        return done

    def refund(self, plan: Plan, cost: int) -> Decision:
        done: Decision = self._asked(lambda: super(Faulty, self).refund(plan, cost))
        return done

    def reset(self, plan: Plan) -> None:
        self._asked(lambda: super(Faulty, self).reset(plan))

    def bind(self, family: Family) -> Check:
        bound = super().bind(family)

        def check(key: str, cost: int = 1) -> Decision:
            family.plan(key)
            done: Decision = self._asked(lambda: bound(key, cost))
            return done

        return check


class Subject:
    """A failover store of either colour around a store that can be made to fail."""

    def __init__(self, colour: str, clock: ManualClock | None = None, **options: Any) -> None:
        self.clock = clock or ManualClock()
        self.inner = Faulty(self.clock)
        self.failover: FailoverStore | AsyncFailoverStore
        if colour == "sync":
            self.failover = self.store = FailoverStore(self.inner, **options)
        else:
            self.failover = AsyncFailoverStore(AsyncMemoryStore(self.inner), **options)
            self.store = Blocking(self.failover)
        self.statistics = self.failover.statistics
        self.plan = Family("test", [TEN]).plan("user")

    store: Store

    def check(self, cost: int = 1) -> Decision:
        return self.store.check(self.plan, cost)

    def fail(self, fault: type[BaseException] = StoreUnavailable, times: int = 5) -> None:
        """Make the store fail, and open the circuit."""
        self.inner.fault = fault
        for _ in range(times):
            self.store.peek(self.plan, 1)

    def heal(self) -> None:
        """Make the store work, and let the longest pause pass."""
        self.inner.fault = None
        self.clock.advance(2)

    @property
    def circuit(self) -> Circuit:
        return self.statistics().breakers[""].state


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Subject]]:
    made: list[Subject] = []

    def make(**options: Any) -> Subject:
        made.append(Subject(request.param, **options))
        return made[-1]

    yield make
    for subject in made:
        subject.store.close()


class TestHealthy(StoreConformance):
    def make_store(self, clock: ManualClock) -> Store:
        return FailoverStore(MemoryStore(clock=clock))


class TestHealthyTraces(StoreTraces):
    def make_store(self, clock: ManualClock) -> Store:
        return FailoverStore(ReferenceStore(clock), nodes=3)


class TestHealthyAsync(StoreConformance):
    def make_store(self, clock: ManualClock) -> Store:
        return Blocking(AsyncFailoverStore(AsyncMemoryStore(MemoryStore(clock=clock)), mode="deny"))


class TestHealthyAsyncTraces(StoreTraces):
    examples = 30

    def make_store(self, clock: ManualClock) -> Store:
        return Blocking(AsyncFailoverStore(AsyncMemoryStore(MemoryStore(clock=clock)), shard_of=lambda _: "a"))


def failed_store(clock: ManualClock, shards: Callable[[Plan], str] | None = None) -> FailoverStore:
    inner = Faulty(clock)
    inner.fault = StoreUnavailable
    return FailoverStore(inner, shard_of=shards)


class _Undegraded:
    """Answers of a failover store without the mark, to be compared with those of a store that decides alone."""

    def __init__(self, store: FailoverStore) -> None:
        self._store, self.clock = store, store.clock
        self.peek, self.refund, self.check = map(self._plain, (store.peek, store.refund, store.check))

    @staticmethod
    def _plain(verb: Callable[[Plan, int], Decision]) -> Callable[[Plan, int], Decision]:
        def plain(plan: Plan, cost: int) -> Decision:
            return unmarked(verb(plan, cost))

        return plain

    def check_once(self, plan: Plan, cost: int, token: bytes) -> Decision:
        return unmarked(self._store.check_once(plan, cost, token))

    def reset(self, plan: Plan) -> None:
        with pytest.raises(StoreError):
            self._store.reset(plan)

    def ready(self) -> None:
        with pytest.raises(StoreUnavailable, match="told to"):
            self._store.ready()

    def bind(self, family: Family) -> Check:
        bound = self._store.bind(family)
        return lambda key, cost=1: unmarked(bound(key, cost))

    def close(self) -> None:
        self._store.close()


def unmarked(decision: Decision) -> Decision:
    assert decision.degraded
    assert all(part.degraded == decision.degraded for part in decision.limits)
    fields = {name: getattr(decision, name) for name in decision.__struct_fields__}
    fields["parts"] = tuple(unmarked(part) for part in decision.parts)
    return Decision(**{**fields, "degraded": ""})


class TestAwayFromTheStart(StoreConformance):
    """One node alone, without a store from the first call on, decides as any store does."""

    def make_store(self, clock: ManualClock) -> Store:
        return _Undegraded(failed_store(clock))


class TestAwayTraces(StoreTraces):
    def make_store(self, clock: ManualClock) -> Store:
        return _Undegraded(failed_store(clock, lambda plan: str(plan[0].principal)))


# Marks and reasons


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("fault", "reason"), [(StoreUnavailable, UNAVAILABLE), (OutcomeUnknown, UNKNOWN)])
def test_every_answer_of_its_own_is_marked(
    make: Callable[..., Subject], mode: Mode, fault: type[StoreError], reason: Reason
) -> None:
    subject = make(mode=mode)
    assert subject.check().degraded == ""
    subject.inner.fault = fault
    bound = subject.store.bind(Family("test", [TEN, Quota(100, SECOND)]))
    several = [subject.check(), subject.store.peek(subject.plan, 1), subject.store.refund(subject.plan, 1), bound("x")]
    assert [decision.degraded for decision in several] == [reason] * 4
    assert [part.degraded for part in several[-1].limits] == [reason, reason]
    assert bound("x", 0).degraded == reason
    assert [bound("x").degraded, bound("x", 0).degraded, subject.check().degraded] == [UNASKED] * 3


def test_a_bare_store_error_is_an_unknown_outcome(make: Callable[..., Subject]) -> None:
    subject = make()
    subject.inner.fault = StoreError
    assert subject.check().degraded == UNKNOWN


def test_a_marked_decision_is_a_value_like_any_other(make: Callable[..., Subject]) -> None:
    subject = make(mode="allow")
    subject.inner.fault = StoreUnavailable
    decision = subject.check()
    assert pickle.loads(pickle.dumps(decision)) == decision  # noqa: S301  our own bytes
    assert repr(decision).endswith("normal, degraded=store_unavailable>")


# The circuit


def test_while_open_nobody_asks_the_store(make: Callable[..., Subject]) -> None:
    subject = make()
    subject.fail()
    assert subject.circuit is Circuit.OPEN
    asked = subject.inner.asked
    for _ in range(20):
        subject.check()
    with pytest.raises(StoreUnavailable, match=r"failed before, and is asked again in 0\.\d+ s"):
        subject.store.reset(subject.plan)
    assert subject.inner.asked == asked == 5


def test_an_answer_in_between_forgets_the_failures(make: Callable[..., Subject]) -> None:
    subject = make()
    for _ in range(3):
        subject.fail(times=4)
        subject.inner.fault = None
        assert subject.check().degraded == ""
    assert (subject.circuit, subject.statistics().openings) == (Circuit.CLOSED, 0)


def test_an_unknown_outcome_is_never_sent_again(make: Callable[..., Subject]) -> None:
    """The store took the cost; so did this node. Both count, and neither is asked twice."""
    subject = make()
    subject.inner.fault = OutcomeUnknown
    assert subject.check(3).remaining == 7
    assert subject.inner.asked == 1
    subject.inner.fault = None
    assert subject.check().remaining == 6


def test_recovery_is_noticed_by_a_probe_and_counted(make: Callable[..., Subject]) -> None:
    subject = make()
    assert subject.check().remaining == 9
    subject.fail()
    subject.clock.advance(2)
    assert [subject.check().degraded, subject.check().degraded] == [UNAVAILABLE, UNASKED]
    subject.heal()
    assert (subject.check().degraded, subject.circuit) == ("", Circuit.CLOSED)
    assert subject.check().remaining == 7
    seen = subject.statistics()
    assert (seen.openings, seen.recoveries, seen.breakers[""].probes) == (1, 1, 2)


def test_opening_and_recovery_are_logged_once(make: Callable[..., Subject], caplog: pytest.LogCaptureFixture) -> None:
    subject = make(mode="deny")
    with caplog.at_level(logging.WARNING, "headgate"):
        subject.fail(times=20)
        subject.heal()
        subject.check()
        subject.check()
    assert caplog.messages == [
        "the store does not answer (told to): decided without it until it does",
        "the store answers again",
    ]


def test_misuse_is_not_a_failure_of_the_store_and_never_the_probe(make: Callable[..., Subject]) -> None:
    subject = make()
    check: Any = subject.store.bind(Family("test", [TEN]))
    for _ in range(2):
        for key, cost, error in [("", 1, InvalidKey), (7, 1, InvalidKey), ("user", 11, InvalidCost)]:
            with pytest.raises(error):
                check(key, cost)
        with pytest.raises(InvalidCost):
            check("user", True)
        if subject.circuit is Circuit.CLOSED:
            subject.fail()
            subject.heal()
    assert check("user").degraded == ""
    assert sum(subject.statistics().failures.values()) == 5


def test_other_exceptions_of_a_store_reach_the_caller(make: Callable[..., Subject]) -> None:
    subject = make()
    subject.inner.fault = ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        subject.check()
    subject.inner.fault = None
    subject.fail()
    subject.clock.advance(2)
    subject.inner.fault = ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        subject.check()
    assert (subject.circuit, subject.check().degraded) == (Circuit.OPEN, UNASKED)


def test_each_shard_has_a_circuit_of_its_own(make: Callable[..., Subject]) -> None:
    subject = make(shard_of=lambda plan: str(plan[0].principal)[0])
    family = Family("test", [TEN])
    check = subject.store.bind(family)
    subject.inner.fault = StoreUnavailable
    for _ in range(5):
        subject.store.check(family.plan("a1"), 1)
    assert check("b1").degraded == UNAVAILABLE
    subject.inner.fault = None
    assert [check(key).degraded for key in ("a1", "a2", "b1", "c1")] == [UNASKED, UNASKED, "", ""]
    seen = subject.statistics().breakers
    assert {shard: each.state for shard, each in seen.items()} == {
        "a": Circuit.OPEN,
        "b": Circuit.CLOSED,
        "c": Circuit.CLOSED,
    }


class Sharded(Faulty):
    """A store whose parts are named by the first letter of the principal."""

    def shard_of(self, plan: Plan) -> str:
        return str(plan[0].principal)[0]


class AsyncSharded(AsyncMemoryStore):
    def shard_of(self, plan: Plan) -> str:
        return str(plan[0].principal)[0]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_shards_are_the_store_s_own_unless_told(*, asynchronous: bool) -> None:
    clock = ManualClock()
    inner = Sharded(clock)
    for options, shards in [({}, {"a", "b"}), ({"shard_of": None}, {"a", "b"}), ({"shard_of": lambda _: "x"}, {"x"})]:
        known: Any = options
        failover: Any = (
            AsyncFailoverStore(AsyncSharded(inner), **known) if asynchronous else FailoverStore(inner, **known)
        )
        store: Store = Blocking(failover) if asynchronous else failover
        check = store.bind(Family("test", [TEN]))
        assert check("a1", 0).degraded == check("b1").degraded == ""
        assert set(failover.statistics().breakers) == shards
        with pytest.raises(InvalidCost):
            check("a1", 11)
        with pytest.raises(InvalidKey):
            check("")
        store.close()


def test_shards_that_come_and_go_leave_no_circuits_behind(make: Callable[..., Subject]) -> None:
    """Untroubled ones are forgotten; the outages that they had are still counted."""
    subject = make(shard_of=lambda plan: str(plan[0].principal), failures=1, mode="allow")
    check = subject.store.bind(Family("test", [TEN]))
    subject.inner.fault = StoreUnavailable
    assert check("was away").degraded
    subject.heal()
    assert not check("was away").degraded
    subject.inner.fault = StoreUnavailable
    assert check("is away").degraded
    subject.inner.fault = None
    for number in range(2500):
        check(f"node {number}")
        assert len(subject.failover._failover._breakers) <= MAX_SHARDS
    seen = subject.statistics()
    assert (seen.openings, seen.recoveries) == (2, 1)
    assert seen.breakers["is away"].state is Circuit.OPEN
    assert "was away" not in seen.breakers
    assert check("is away").degraded == UNASKED


def test_even_troubled_circuits_are_bounded(make: Callable[..., Subject]) -> None:
    subject = make(shard_of=lambda plan: str(plan[0].principal), failures=1, mode="allow")
    check = subject.store.bind(Family("test", [TEN]))
    subject.inner.fault = StoreUnavailable
    for number in range(2500):
        check(f"node {number}")
        assert len(subject.failover._failover._breakers) <= MAX_SHARDS
        if number == 1200:  # those that are well go before those in trouble
            subject.inner.fault = None
            assert not any(check(f"healthy {each}").degraded for each in range(100))
            subject.inner.fault = StoreUnavailable
    assert subject.statistics().openings == 2500
    assert not [shard for shard in subject.statistics().breakers if shard.startswith("healthy")]
    assert subject.statistics().breakers["node 2499"].state is Circuit.OPEN


def test_a_cancelled_probe_leaves_the_way_to_another() -> None:
    """While it was under way others were answered at once; it says nothing about the store."""
    clock = ManualClock()

    class Hanging(AsyncMemoryStore):
        fault = "refuse"

        async def check(self, plan: Plan, cost: int) -> Decision:
            if self.fault == "refuse":
                raise StoreUnavailable("told to")
            if self.fault == "hang":
                await asyncio.Event().wait()
            return await super().check(plan, cost)

    async def story() -> None:
        inner = Hanging(MemoryStore(clock=clock))
        store = AsyncFailoverStore(inner)
        plan = Family("test", [TEN]).plan("user")
        for _ in range(5):
            await store.check(plan, 1)
        inner.fault = "hang"
        clock.advance(2)
        probe = asyncio.create_task(store.check(plan, 1))
        await asyncio.sleep(0)
        assert store.statistics().breakers[""].state is Circuit.HALF_OPEN
        assert (await store.check(plan, 1)).degraded == UNASKED
        probe.cancel()
        await asyncio.wait([probe])
        assert probe.cancelled()
        inner.fault = ""
        assert (await store.check(plan, 1)).degraded == UNASKED
        clock.advance(2)
        assert (await store.check(plan, 1)).degraded == ""
        assert store.statistics().recoveries == 1

    asyncio.run(story())


# The modes


def test_local_admits_the_share_of_this_node(make: Callable[..., Subject]) -> None:
    subject = make(nodes=3)
    subject.fail()
    assert sum(subject.check().allowed for _ in range(20)) == 4  # ceil(10 / 3)
    refusal = subject.check()
    assert (refusal.limit, refusal.remaining, refusal.retry_after) == (4, 0, 3600)
    assert subject.store.peek(subject.plan, 1).retry_after == 3600


def test_local_refuses_what_is_above_its_share_until_the_store_is_back(make: Callable[..., Subject]) -> None:
    subject = make(nodes=3)
    subject.fail()
    for refusal in (subject.check(5), subject.store.peek(subject.plan, 5)):
        assert (refusal.allowed, refusal.remaining, refusal.state) == (False, 4, "throttled")
        assert 0.125 <= refusal.retry_after <= 0.25
    pair = Family("test", [TEN, Quota(100, SECOND)]).plan("user")
    assert [part.allowed for part in subject.store.check(pair, 5).limits] == [False, True]
    assert subject.check(4)


def test_an_outage_with_interruptions_admits_no_more_than_one_without(make: Callable[..., Subject]) -> None:
    subject = make(nodes=2)
    admitted = []
    for _ in range(10):
        subject.fail()
        admitted += [decision for decision in (subject.check() for _ in range(3)) if decision]
        subject.heal()
        admitted += [decision for decision in (subject.check() for _ in range(3)) if decision]
    assert sum(bool(decision.degraded) for decision in admitted) == 5
    assert sum(not decision.degraded for decision in admitted) == 10


def test_allow_admits_everything_with_all_remaining(make: Callable[..., Subject]) -> None:
    subject = make(mode="allow")
    subject.check(9)
    subject.fail()
    pair = Family("test", [TEN, Quota(5, SECOND, algorithm=Algorithm.FIXED_WINDOW)]).plan("user")
    decisions = [subject.store.check(pair, 5) for _ in range(20)]
    assert all(decision.allowed for decision in decisions)
    assert [(part.remaining, part.reset_after_us) for part in decisions[-1].limits] == [(10, 0), (5, 0)]
    assert subject.store.refund(pair, 5).allowed


def test_deny_admits_nothing_until_the_next_probe(make: Callable[..., Subject]) -> None:
    subject = make(mode="deny")
    subject.fail()
    refusal = subject.check()
    assert (refusal.allowed, refusal.remaining, refusal.limit, refusal.state) == (False, 0, 10, "throttled")
    assert 0.125 <= refusal.retry_after <= 0.25
    subject.inner.fault = None
    subject.clock.advance(us=refusal.retry_after_us - 1)
    assert not subject.check()
    subject.clock.advance(us=1)
    assert subject.check()


def test_waiting_callers_get_through_when_the_store_is_back() -> None:
    """In the mode deny, `acquire` waits for the probe rather than in a busy loop."""

    class Healing(ManualClock):
        def wait(self, event: threading.Event, until: int | None) -> None:  # noqa: ARG002  the contract has it
            assert until is not None
            assert until > self.now()
            self.set(until)
            if subject.inner.asked == 4:
                subject.inner.fault = None

    subject = Subject("sync", Healing(), mode="deny", failures=1)
    subject.inner.fault = StoreUnavailable
    assert Limiter([TEN], store=subject.store).acquire("user").degraded == ""
    assert subject.inner.asked == 5


@pytest.mark.parametrize("fault", [StoreUnavailable, OutcomeUnknown])
def test_a_refund_goes_to_this_node_if_the_store_surely_did_not_get_it(
    make: Callable[..., Subject], fault: type[StoreError]
) -> None:
    subject = make(failures=100)
    subject.inner.fault = StoreUnavailable
    subject.check(6)
    subject.inner.fault = fault
    refunded = subject.store.refund(subject.plan, 2)
    assert refunded.remaining == (6 if fault is StoreUnavailable else 4)


def test_a_refund_here_gives_back_only_what_was_taken_here(make: Callable[..., Subject]) -> None:
    subject = make(nodes=2)
    subject.check(8)
    subject.fail()
    subject.check(1)
    assert subject.store.refund(subject.plan, 8).remaining == 5
    subject.heal()
    assert subject.store.peek(subject.plan, 1).remaining == 2


def test_reset_forgets_here_and_there(make: Callable[..., Subject]) -> None:
    subject = make()
    subject.check(10)
    subject.fail()
    subject.check(10)
    subject.heal()
    subject.store.reset(subject.plan)
    assert subject.check(10)
    subject.fail()
    assert subject.check(10)


@pytest.mark.parametrize("fault", [StoreUnavailable, OutcomeUnknown])
@pytest.mark.parametrize("mode", Mode)
def test_reset_says_when_the_store_was_not_reset(
    make: Callable[..., Subject], fault: type[StoreError], mode: Mode
) -> None:
    """It raises what the store raised, and has forgotten what this node decided."""
    subject = make(mode=mode)
    subject.inner.fault = fault
    subject.check(10)
    with pytest.raises(fault, match="told to"):
        subject.store.reset(subject.plan)
    assert bool(subject.check(10)) == (mode != Mode.DENY)


# Once


def test_check_once_goes_to_the_store_and_in_an_outage_to_this_node(make: Callable[..., Subject]) -> None:
    subject = make(nodes=2)
    token = once_token(subject.plan, 2, "retry")
    first = subject.store.check_once(subject.plan, 2, token)
    assert (first.remaining, first.degraded) == (8, "")
    assert subject.store.check_once(subject.plan, 2, token) == first
    subject.fail()
    here = [subject.store.check_once(subject.plan, 2, token) for _ in range(3)]
    assert here == [here[0]] * 3
    assert (here[0].allowed, here[0].remaining, here[0].degraded) == (True, 3, UNASKED)
    beyond = subject.store.check_once(subject.plan, 6, once_token(subject.plan, 6, "retry"))
    assert (beyond.allowed, beyond.remaining) == (False, 3)
    subject.heal()
    assert subject.store.check_once(subject.plan, 2, token) == first
    assert subject.check().remaining == 7


@pytest.mark.parametrize("mode", ["allow", "deny"])
def test_check_once_in_the_other_modes(make: Callable[..., Subject], mode: str) -> None:
    subject = make(mode=mode)
    subject.inner.fault = OutcomeUnknown
    answer = subject.store.check_once(subject.plan, 2, once_token(subject.plan, 2, "retry"))
    assert (answer.allowed, answer.degraded) == (mode == "allow", UNKNOWN)
    subject.inner.fault = None
    answer = subject.store.check_once(subject.plan, 2, once_token(subject.plan, 2, "retry"))
    assert (answer.allowed, answer.remaining, answer.degraded) == (True, 8, "")


# Health, and deadlines


def test_is_as_ready_as_its_store(make: Callable[..., Subject]) -> None:
    subject = make()
    subject.store.ready()
    subject.inner.fault = StoreUnavailable
    with pytest.raises(StoreUnavailable, match="told to"):
        subject.store.ready()
    subject.fail()
    subject.inner.fault = None
    subject.store.ready()
    assert subject.check().degraded == UNASKED


class Hung:
    """A store of which no call returns."""

    clock: Clock = ManualClock()

    async def _hang(self, *_: object) -> Any:
        await asyncio.Event().wait()

    check = check_once = peek = refund = reset = ready = _hang

    def bind(self, family: Family) -> Any:  # noqa: ARG002  the contract has it
        return self._hang

    async def close(self) -> None:
        """Nothing to release."""


def test_a_store_that_hangs_has_failed_after_the_deadline() -> None:
    async def story() -> None:
        store = AsyncFailoverStore(Hung(), deadline=0.001, failures=8)
        family = Family("test", [TEN])
        plan, bound = family.plan("user"), store.bind(family)
        answers = [
            await store.check(plan, 1),
            await store.check_once(plan, 1, once_token(plan, 1, "once")),
            await store.peek(plan, 1),
            await store.refund(plan, 1),
            await bound("user"),
        ]
        assert {answer.degraded for answer in answers} == {UNKNOWN}
        with pytest.raises(OutcomeUnknown, match=r"no answer in 0\.001 s"):
            await store.reset(plan)
        with pytest.raises(OutcomeUnknown, match="no answer"):
            await store.ready()
        assert [(await bound("user")).degraded for _ in range(3)] == [UNKNOWN, UNKNOWN, UNASKED]
        assert store.statistics().failures == {UNKNOWN: 8}
        await store.close()

    asyncio.run(story())


def test_a_store_within_its_deadline_is_as_without() -> None:
    class Late(AsyncMemoryStore):
        async def peek(self, plan: Plan, cost: int) -> Decision:  # noqa: ARG002  the contract has them
            raise TimeoutError("its own")

    async def story() -> None:
        store = AsyncFailoverStore(Late(MemoryStore()), deadline=60)
        family = Family("test", [TEN])
        assert (await store.check(family.plan("user"), 1)).remaining == 9
        assert (await store.bind(family)("user")).remaining == 8
        with pytest.raises(TimeoutError, match="its own"):
            await store.peek(family.plan("user"), 1)
        await store.ready()

    asyncio.run(story())


def test_a_blocking_call_has_no_deadline() -> None:
    none: Any = 0.5
    with pytest.raises(InvalidStore, match="a blocking call cannot be given up: deadline is for AsyncFailoverStore"):
        FailoverStore(MemoryStore(), deadline=none)
    wrong: Any
    for wrong in (0, -1, "1", True, 3601, float("nan")):
        with pytest.raises(InvalidStore, match="deadline must be a number of seconds above 0 and up to 3600"):
            AsyncFailoverStore(AsyncMemoryStore(MemoryStore()), deadline=wrong)


# Numbers, and mistakes


def test_statistics_tell_what_happened(make: Callable[..., Subject]) -> None:
    subject = make(mode="allow", failures=3)
    before = subject.statistics()
    subject.check()
    subject.inner.fault = StoreUnavailable
    subject.check()
    subject.inner.fault = OutcomeUnknown
    for _ in range(4):
        subject.check()
    seen = subject.statistics()
    assert (before.calls, seen.calls) == (0, 6)
    assert seen.failures == {UNAVAILABLE: 1, UNKNOWN: 2}
    assert seen.degraded == {("allow", UNAVAILABLE): 1, ("allow", UNKNOWN): 2, ("allow", UNASKED): 2}
    assert (seen.openings, seen.recoveries, seen.breakers[""].state) == (1, 0, "open")
    changed: Any = seen
    with pytest.raises(FrozenInstanceError):
        changed.calls = 7
    with pytest.raises(TypeError):
        changed.failures[UNKNOWN] = 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "open"}, "mode must be one of local, allow, deny, not 'open'"),
        ({"mode": None}, "mode must be one of"),
        ({"nodes": 0}, "nodes must be a whole number from 1"),
        ({"nodes": 2.0}, "nodes must be a whole number from 1"),
        ({"failures": 0}, "threshold must be a whole number from 1"),
        ({"pause": 0}, "pause must be a number of seconds"),
        ({"pause": 3}, "longest_pause_us must be a whole number from 3000000"),
        ({"longest_pause": "1"}, "longest_pause must be a number of seconds"),
        ({"max_keys": 0}, "max_keys must be"),
    ],
    ids=str,
)
def test_refuses_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidStore, match=message):
        FailoverStore(MemoryStore(), **options)
    with pytest.raises(InvalidStore, match=message):
        AsyncFailoverStore(AsyncMemoryStore(MemoryStore()), **options)


def test_refuses_what_is_no_store_or_of_the_other_colour() -> None:
    wrong: Any
    for wrong in ("redis://localhost", MemoryStore, None, 7):
        with pytest.raises(InvalidStore, match="open it with open_store"):
            FailoverStore(wrong)
    wrong = AsyncMemoryStore(MemoryStore())
    with pytest.raises(InvalidStore, match="for the other of FailoverStore and AsyncFailoverStore"):
        FailoverStore(wrong)
    wrong = MemoryStore()
    with pytest.raises(InvalidStore, match="for the other of FailoverStore and AsyncFailoverStore"):
        AsyncFailoverStore(wrong)


def test_limiters_take_it_as_their_store() -> None:
    clock = ManualClock()
    limiter = Limiter("2/hour", store=FailoverStore(open_store("memory", clock=clock)))
    assert [limiter.check("user").allowed for _ in range(3)] == [True, True, False]

    async def story() -> None:
        store = AsyncFailoverStore(AsyncMemoryStore(MemoryStore(clock=clock)))
        async with AsyncLimiter("2/hour", store=store) as limiter:
            assert [(await limiter.check("user")).allowed for _ in range(3)] == [True, True, False]

    asyncio.run(story())

"""The failover stores: they always answer, mark their own decisions, and keep the published bound."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import FrozenInstanceError
from typing import Any

import msgspec
import pytest

from headgate import Algorithm, InvalidCost, InvalidKey, Limiter, Quota
from headgate.core.decision import Decision, marked
from headgate.core.errors import OutcomeUnknown, StoreError, StoreUnavailable
from headgate.core.key import once_token
from headgate.core.mode import Mode
from headgate.core.plan import Call, Family, Plan, Verb, combine
from headgate.stores.base import Check, Store
from headgate.stores.breaker import Circuit
from headgate.stores.failover import AsyncFailoverStore, FailoverStore, Reason
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.testing import ManualClock
from headgate.testing.blocking import Blocking
from headgate.testing.conformance import FEW, LARGE, StoreConformance, StoreTraces
from headgate.testing.reference import ReferenceStore
from tests.stores.subjects import HOUR, SECOND, TEN, AsyncInner, Inner, Make, Shards, Subject, maker

UNAVAILABLE, UNKNOWN, UNASKED = Reason.STORE_UNAVAILABLE, Reason.OUTCOME_UNKNOWN, Reason.CIRCUIT_OPEN
make = maker(FailoverStore, AsyncFailoverStore)


def fail(subject: Subject, times: int = 5) -> None:
    """Make the store fail, and open the circuit."""
    subject.inner.fault = StoreUnavailable
    for _ in range(times):
        subject.peek()


def heal(subject: Subject) -> None:
    """Make the store work, and let the longest pause pass."""
    subject.inner.fault = None
    subject.clock.advance(2)


def circuit_of(subject: Subject) -> Circuit:
    state: Circuit = subject.statistics().breakers[""].state
    return state


class TestHealthy(StoreConformance):
    quotas, large = FEW, LARGE[:1]

    def make_store(self, clock: ManualClock) -> Store:
        return FailoverStore(MemoryStore(clock=clock))


class TestHealthyTraces(StoreTraces):
    examples = 50

    def make_store(self, clock: ManualClock) -> Store:
        return FailoverStore(ReferenceStore(clock), nodes=3)


class TestHealthyAsyncTraces(StoreTraces):
    examples = 30

    def make_store(self, clock: ManualClock) -> Store:
        return Blocking(AsyncFailoverStore(AsyncInner(Shards(clock))))


class _Undegraded:
    """A failover store around one that fails, whose answers have no mark: a store that decides alone."""

    def __init__(self, inner: Inner) -> None:
        inner.fault = StoreUnavailable
        self._store, self.clock = FailoverStore(inner), inner.clock

    def run(self, call: Call) -> Decision:
        if call.verb is Verb.RESET:
            with pytest.raises(StoreError):
                self._store.run(call)
            call = Call(Verb.PEEK, call.plan)
        if call.charge is not None:
            call = msgspec.structs.replace(call, charge=call.charge._replace(degraded=Reason.CIRCUIT_OPEN))
        decision = self._store.run(call)
        if not call.plan:  # there was nothing to decide
            return msgspec.structs.replace(decision, shadow=tuple(map(unmarked, decision.shadow)))
        return unmarked(decision)

    def ready(self) -> None:
        with pytest.raises(StoreUnavailable, match="injected"):
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
    fields["shadow"] = tuple(unmarked(each) for each in decision.shadow)
    return Decision(**{**fields, "degraded": ""})


class TestAwayTraces(StoreTraces):
    examples = 50

    def make_store(self, clock: ManualClock) -> Store:
        return _Undegraded(Shards(clock))


# Marks and reasons


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(
    ("fault", "reason"), [(StoreUnavailable, UNAVAILABLE), (OutcomeUnknown, UNKNOWN), (StoreError, UNKNOWN)]
)
def test_every_answer_of_its_own_is_marked(make: Make, mode: Mode, fault: type[StoreError], reason: Reason) -> None:
    subject = make(mode=mode)
    assert subject.check().degraded == ""
    subject.inner.fault = fault
    bound = subject.store.bind(Family("test", [TEN, Quota(100, SECOND)]))
    several = [
        subject.check(),
        subject.store.run(Call(Verb.PEEK, subject.plan)),
        subject.store.run(Call(Verb.REFUND, subject.plan)),
        bound("x"),
    ]
    assert [decision.degraded for decision in several] == [reason] * 4
    assert [part.degraded for part in several[-1].limits] == [reason, reason]
    assert bound("x", 0).degraded == reason
    assert [bound("x").degraded, bound("x", 0).degraded, subject.check().degraded] == [UNASKED] * 3


# The circuit


def test_while_open_the_store_is_not_called(make: Make) -> None:
    subject = make()
    fail(subject)
    assert circuit_of(subject) is Circuit.OPEN
    asked = len(subject.inner.asked)
    for _ in range(20):
        subject.check()
    with pytest.raises(StoreUnavailable, match=r"failed before, and is tried again in 0\.\d+ s"):
        subject.store.run(Call(Verb.RESET, subject.plan))
    assert len(subject.inner.asked) == asked == 5


def test_an_unknown_outcome_is_never_sent_again(make: Make) -> None:
    """The store took the cost; so did this node. Both count, and neither is asked twice."""
    subject = make()
    subject.inner.fault = OutcomeUnknown
    assert subject.check(3).remaining == 7
    assert len(subject.inner.asked) == 1
    subject.inner.fault = None
    assert subject.check().remaining == 6


def test_recovery_is_noticed_by_a_probe_and_counted(make: Make) -> None:
    subject = make()
    assert subject.check().remaining == 9
    fail(subject)
    subject.clock.advance(2)
    assert [subject.check().degraded, subject.check().degraded] == [UNAVAILABLE, UNASKED]
    heal(subject)
    assert (subject.check().degraded, circuit_of(subject)) == ("", Circuit.CLOSED)
    assert subject.check().remaining == 7
    seen = subject.statistics()
    assert (seen.openings, seen.recoveries, seen.breakers[""].probes) == (1, 1, 2)


def test_opening_and_recovery_are_logged_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    subject = make(mode="deny")
    with caplog.at_level(logging.WARNING, "headgate"):
        fail(subject, 20)
        heal(subject)
        subject.check()
        subject.check()
    assert caplog.messages == [
        "the store is unavailable (injected): requests are decided without it until it responds",
        "the store responds again",
    ]


def test_misuse_is_not_a_failure_of_the_store_and_never_the_probe(make: Make) -> None:
    subject = make()
    check: Any = subject.store.bind(Family("test", [TEN]))
    for _ in range(2):
        for key, cost, error in [("", 1, InvalidKey), (7, 1, InvalidKey), ("user", 11, InvalidCost)]:
            with pytest.raises(error):
                check(key, cost)
        with pytest.raises(InvalidCost):
            check("user", True)
        if circuit_of(subject) is Circuit.CLOSED:
            fail(subject)
            heal(subject)
    assert check("user").degraded == ""
    assert sum(subject.statistics().failures.values()) == 5


def test_other_exceptions_of_a_store_reach_the_caller(make: Make) -> None:
    subject = make()
    subject.inner.fault = ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        subject.check()
    subject.inner.fault = None
    fail(subject)
    subject.clock.advance(2)
    subject.inner.fault = ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        subject.check()
    assert (circuit_of(subject), subject.check().degraded) == (Circuit.OPEN, UNASKED)


def circuits_of(subject: Subject) -> dict[str, Circuit]:
    return {server: each.state for server, each in subject.statistics().breakers.items()}


def over(*principals: str) -> Plan:
    return tuple([Family("test", [TEN]).plan(principal)[0] for principal in principals])


def test_a_plan_needs_the_circuits_of_all_its_servers(make: Make) -> None:
    """Combinations of servers have no circuits: a server that is down counts for all plans on it."""
    subject = make(Shards)
    subject.inner.away = {"a"}
    for number in range(5):
        assert subject.store.run(Call(Verb.CHECK, over(f"{'bcdef'[number]}1", "a1"))).degraded == UNKNOWN
    assert circuits_of(subject) == {"a": Circuit.OPEN} | dict.fromkeys("bcdef", Circuit.CLOSED)
    subject.inner.away = set()
    asked = len(subject.inner.asked)
    bound = subject.store.bind(subject.family)
    assert [bound("a1").degraded, bound("a2", 0).degraded] == [UNASKED, UNASKED]
    assert subject.store.run(Call(Verb.CHECK, over("b1", "a2"))).degraded == UNASKED
    assert subject.store.run(Call(Verb.CHECK, over("x1", "a3"))).degraded == UNASKED
    assert len(subject.inner.asked) == asked
    assert subject.store.run(Call(Verb.CHECK, over("b1", "c1"))).degraded == ""


def test_plans_over_several_servers_are_served_again_as_soon_as_the_circuits_are_closed(make: Make) -> None:
    """A hundred combinations need one probe."""
    subject = make(Shards)
    subject.inner.away = {"a"}
    for _ in range(5):
        subject.store.run(Call(Verb.CHECK, over("a1")))
    subject.inner.away = set()
    subject.clock.advance(2)
    assert subject.store.run(Call(Verb.CHECK, over("b1", "a1"))).degraded == "", "it is the probe"
    assert subject.statistics().breakers["a"].probes == 1
    for other in "bcdefgh":
        assert subject.store.run(Call(Verb.CHECK, over(f"{other}9", "a9"))).degraded == ""


def test_a_probe_that_shares_its_incident_with_another_is_not_lost(make: Make) -> None:
    """Two circuits whose probes fail of one cause are both open again, and both probed again after their pause."""
    subject = make(Shards)
    subject.inner.away = {"a", "b"}
    for name in "ab":
        for _ in range(5):
            subject.store.run(Call(Verb.CHECK, over(f"{name}1")))
    subject.inner.incident = object()
    subject.clock.advance(2)
    for name in "ab":
        assert subject.store.run(Call(Verb.CHECK, over(f"{name}1"))).degraded == UNKNOWN
    assert circuits_of(subject) == dict.fromkeys("ab", Circuit.OPEN)
    subject.inner.away = set()
    subject.clock.advance(2)
    assert [subject.store.run(Call(Verb.CHECK, over(f"{name}1"))).degraded for name in "ab"] == ["", ""]


def test_a_failure_counts_only_for_the_server_that_failed(make: Make) -> None:
    """The probe of the other one is due again later: its state is not known."""
    subject = make(Shards, failures=1)
    subject.inner.away = {"a", "b"}
    subject.store.run(Call(Verb.CHECK, over("a1")))
    subject.store.run(Call(Verb.CHECK, over("b1")))
    subject.inner.away = {"b"}
    subject.clock.advance(2)
    assert subject.store.run(Call(Verb.CHECK, over("a1", "b1"))).degraded == UNKNOWN
    assert circuits_of(subject) == {"a": Circuit.OPEN, "b": Circuit.OPEN}
    subject.clock.advance(1)
    assert subject.store.run(Call(Verb.CHECK, over("a1"))).degraded == ""
    assert circuits_of(subject) == {"a": Circuit.CLOSED, "b": Circuit.OPEN}


def test_while_one_circuit_is_open_the_others_of_a_plan_are_not_probed(make: Make) -> None:
    subject = make(Shards, failures=1)
    subject.inner.away = {"a"}
    subject.store.run(Call(Verb.CHECK, over("a1")))
    subject.clock.advance(2)
    subject.inner.away = {"b"}
    subject.store.run(Call(Verb.CHECK, over("b1")))
    refused = subject.store.run(Call(Verb.CHECK, over("a1", "b1")))
    assert refused.degraded == UNASKED
    assert subject.statistics().breakers["a"].probes == 0
    with pytest.raises(StoreUnavailable, match=r"the store \(shard a, b\) failed before, and is tried again in"):
        subject.store.run(Call(Verb.RESET, over("a1", "b1")))


def test_a_server_whose_part_of_a_refusal_is_missing_has_failed(make: Make) -> None:
    """A refusal stands without what the others have; but callers do not wait for them again and again."""

    class Silent(Shards):
        def run(self, call: Call) -> Decision:
            here, there = super().run(call).limits
            return combine([msgspec.structs.replace(here, allowed=False), marked(there, UNAVAILABLE)])

    subject = make(Silent)
    answers = [subject.store.run(Call(Verb.CHECK, over("a1", "b1"))) for _ in range(5)]
    assert [answer.allowed for answer in answers] == [False] * 5
    assert circuits_of(subject) == {"a": Circuit.CLOSED, "b": Circuit.OPEN}
    assert subject.store.run(Call(Verb.CHECK, over("a1", "b1"))).degraded == UNASKED


def test_servers_that_left_are_forgotten_and_their_outages_are_not(make: Make) -> None:
    subject = make(Shards, failures=1)
    subject.inner.away = {"a"}
    subject.store.run(Call(Verb.CHECK, over("a1")))
    assert circuits_of(subject) == {"a": Circuit.OPEN}, "as long as it is not known who belongs to the store"
    subject.inner.members = {"b", "c"}
    subject.store.run(Call(Verb.CHECK, over("b1")))
    assert circuits_of(subject) == {"b": Circuit.CLOSED}
    assert (subject.statistics().openings, subject.statistics().recoveries) == (1, 0)
    subject.inner.members = {"c"}
    assert circuits_of(subject) == {}


async def test_a_cancelled_probe_leaves_the_way_to_another() -> None:
    """While it was under way others were answered at once; its end has no meaning for the store."""
    clock = ManualClock()

    class Hanging(AsyncMemoryStore):
        fault = "refuse"

        async def run(self, call: Call) -> Decision:
            if self.fault == "refuse":
                raise StoreUnavailable("injected")
            if self.fault == "hang":
                await asyncio.Event().wait()
            return await super().run(call)

    inner = Hanging(MemoryStore(clock=clock))
    store = AsyncFailoverStore(inner)
    plan = Family("test", [TEN]).plan("user")
    for _ in range(5):
        await store.run(Call(Verb.CHECK, plan))
    inner.fault = "hang"
    clock.advance(2)
    probe = asyncio.create_task(store.run(Call(Verb.CHECK, plan)))
    await asyncio.sleep(0)
    assert store.statistics().breakers[""].state is Circuit.HALF_OPEN
    assert (await store.run(Call(Verb.CHECK, plan))).degraded == UNASKED
    probe.cancel()
    await asyncio.wait([probe])
    assert probe.cancelled()
    inner.fault = ""
    assert (await store.run(Call(Verb.CHECK, plan))).degraded == UNASKED
    clock.advance(2)
    assert (await store.run(Call(Verb.CHECK, plan))).degraded == ""
    assert store.statistics().recoveries == 1


# The modes


def test_local_admits_the_share_of_this_node(make: Make) -> None:
    subject = make(nodes=3)
    fail(subject)
    assert sum(subject.check().allowed for _ in range(20)) == 4  # ceil(10 / 3)
    refusal = subject.check()
    assert (refusal.limit, refusal.remaining, refusal.retry_after) == (4, 0, 3600)
    assert subject.store.run(Call(Verb.PEEK, subject.plan)).retry_after == 3600


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize(("nodes", "used", "left"), [(1, 0, 10), (1, 4, 6), (3, 4, 2), (3, 9, 1), (3, 10, 0)])
def test_local_begins_with_its_share_of_what_the_store_had_left(
    make: Make, algorithm: Algorithm, nodes: int, used: int, left: int
) -> None:
    subject = make(nodes=nodes)
    subject.plan = Family("test", [Quota(10, 24 * HOUR, algorithm=algorithm)]).plan("user")
    subject.store.run(Call(Verb.PEEK, subject.plan))
    for _ in range(used):
        assert subject.check().degraded == ""
    fail(subject)
    assert sum(subject.check().allowed for _ in range(20)) == left


def test_local_begins_with_its_share_of_each_limit_and_for_bound_keys_too(make: Make) -> None:
    subject = make()
    family = Family("test", [TEN, Quota(100, HOUR)])
    check = subject.store.bind(family)
    assert check("ada", 7).degraded == ""
    fail(subject)
    assert [(part.limit, part.remaining) for part in check("ada", 2).limits] == [(10, 1), (100, 91)]
    assert [part.remaining for part in check("bob", 2).limits] == [8, 98], "of whom nothing was seen here"


def test_usage_seen_in_the_store_ages_as_it_does_there(make: Make) -> None:
    subject = make()
    subject.plan = Family("test", [Quota(10, HOUR, algorithm=Algorithm.TOKEN_BUCKET)]).plan("user")
    subject.check(10)
    subject.clock.advance(1800)
    fail(subject)
    assert subject.store.run(Call(Verb.PEEK, subject.plan)).remaining == 5
    heal(subject)
    assert subject.store.run(Call(Verb.PEEK, subject.plan)).remaining == 5


def test_answers_of_the_store_in_between_count_as_well(make: Make) -> None:
    """Others used the key while this node was well again."""
    subject = make(nodes=2)
    subject.check()
    fail(subject)
    assert subject.check().remaining == 4
    heal(subject)
    subject.inner.run(Call(Verb.CHECK, subject.plan, 7))
    assert subject.check().remaining == 1
    fail(subject)
    assert [subject.check().allowed for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize(("quotas", "known", "forgotten"), [([TEN], 100, 0), ([TEN, Quota(20, 24 * HOUR)], 50, 99)])
def test_what_was_seen_is_bounded(make: Make, quotas: list[Quota], known: int, forgotten: int) -> None:
    """The keys that were seen last are known, each limit of its own; of those forgotten the whole share may pass."""
    subject = make(max_keys=100)
    check = subject.store.bind(Family("test", quotas))
    for number in range(200):
        check(f"user {number}", 10)
    fail(subject)
    assert not any(check(f"user {number}").allowed for number in range(200 - known, 200))
    assert check(f"user {forgotten}").allowed


def test_local_refuses_what_is_above_its_share_until_the_store_is_back(make: Make) -> None:
    subject = make(nodes=3)
    fail(subject)
    for refusal in (subject.check(5), subject.store.run(Call(Verb.PEEK, subject.plan, 5))):
        assert (refusal.allowed, refusal.remaining, refusal.state) == (False, 4, "throttled")
        assert 0.125 <= refusal.retry_after <= 0.25
    pair = Family("test", [TEN, Quota(100, SECOND)]).plan("user")
    assert [part.allowed for part in subject.store.run(Call(Verb.CHECK, pair, 5)).limits] == [False, True]
    assert subject.check(4)


def test_an_outage_with_interruptions_admits_no_more_than_one_without(make: Make) -> None:
    subject = make(nodes=2)
    admitted = []
    for _ in range(10):
        fail(subject)
        admitted += [decision for decision in (subject.check() for _ in range(3)) if decision]
        heal(subject)
        admitted += [decision for decision in (subject.check() for _ in range(3)) if decision]
    assert sum(bool(decision.degraded) for decision in admitted) == 5
    assert sum(not decision.degraded for decision in admitted) == 10


def test_allow_admits_everything_with_all_remaining(make: Make) -> None:
    subject = make(mode="allow")
    subject.check(9)
    fail(subject)
    pair = Family("test", [TEN, Quota(5, SECOND, algorithm=Algorithm.FIXED_WINDOW)]).plan("user")
    decisions = [subject.store.run(Call(Verb.CHECK, pair, 5)) for _ in range(20)]
    assert all(decision.allowed for decision in decisions)
    assert [(part.remaining, part.reset_after_us) for part in decisions[-1].limits] == [(10, 0), (5, 0)]
    assert subject.store.run(Call(Verb.REFUND, pair, 5)).allowed


def test_deny_admits_nothing_until_the_next_probe(make: Make) -> None:
    subject = make(mode="deny")
    fail(subject)
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
            if len(subject.inner.asked) == 4:
                subject.inner.fault = None

    subject = Subject((FailoverStore, AsyncFailoverStore), "sync", Inner(Healing()), mode="deny", failures=1)
    subject.inner.fault = StoreUnavailable
    assert Limiter([TEN], store=subject.store).acquire("user").degraded == ""
    assert len(subject.inner.asked) == 5


@pytest.mark.parametrize("fault", [StoreUnavailable, OutcomeUnknown])
def test_a_refund_is_made_here_if_the_store_certainly_did_not_get_it(make: Make, fault: type[StoreError]) -> None:
    subject = make(failures=100)
    subject.inner.fault = StoreUnavailable
    subject.check(6)
    subject.inner.fault = fault
    refunded = subject.store.run(Call(Verb.REFUND, subject.plan, 2))
    assert refunded.remaining == (6 if fault is StoreUnavailable else 4)


def test_a_refund_here_refunds_only_what_was_taken_here(make: Make) -> None:
    subject = make(nodes=2)
    subject.check(8)
    fail(subject)
    subject.check(1)
    assert subject.store.run(Call(Verb.REFUND, subject.plan, 8)).remaining == 5
    heal(subject)
    assert subject.store.run(Call(Verb.PEEK, subject.plan)).remaining == 2


def test_reset_forgets_here_and_there(make: Make) -> None:
    subject = make()
    subject.check(5)
    fail(subject)
    assert subject.check(5)
    assert not subject.check(1)
    heal(subject)
    subject.store.run(Call(Verb.RESET, subject.plan))
    fail(subject)
    assert subject.check(10), "here"
    heal(subject)
    assert subject.check(10), "there"


@pytest.mark.parametrize("fault", [StoreUnavailable, OutcomeUnknown])
@pytest.mark.parametrize("mode", Mode)
def test_reset_raises_when_the_store_was_not_reset(make: Make, fault: type[StoreError], mode: Mode) -> None:
    """It raises what the store raised, and has forgotten what this node decided."""
    subject = make(mode=mode)
    subject.inner.fault = fault
    subject.check(10)
    with pytest.raises(fault, match="injected"):
        subject.store.run(Call(Verb.RESET, subject.plan))
    assert bool(subject.check(10)) == (mode != Mode.DENY)


# Once


def test_check_once_goes_to_the_store_and_in_an_outage_to_this_node(make: Make) -> None:
    subject = make(nodes=2)
    token = once_token(subject.plan, 2, "retry")
    first = subject.store.run(Call(Verb.CHECK_ONCE, subject.plan, 2, token))
    assert (first.remaining, first.degraded) == (8, "")
    assert subject.store.run(Call(Verb.CHECK_ONCE, subject.plan, 2, token)) == first
    fail(subject)
    here = [subject.store.run(Call(Verb.CHECK_ONCE, subject.plan, 2, token)) for _ in range(3)]
    assert here == [here[0]] * 3
    assert (here[0].allowed, here[0].remaining, here[0].degraded) == (True, 2, UNASKED)
    beyond = subject.store.run(Call(Verb.CHECK_ONCE, subject.plan, 6, once_token(subject.plan, 6, "retry")))
    assert (beyond.allowed, beyond.remaining) == (False, 2)
    heal(subject)
    assert subject.store.run(Call(Verb.CHECK_ONCE, subject.plan, 2, token)) == first
    assert subject.check().remaining == 7


@pytest.mark.parametrize("mode", ["allow", "deny"])
def test_check_once_in_the_other_modes(make: Make, mode: str) -> None:
    subject = make(mode=mode)
    subject.inner.fault = OutcomeUnknown
    answer = subject.store.run(Call(Verb.CHECK_ONCE, subject.plan, 2, once_token(subject.plan, 2, "retry")))
    assert (answer.allowed, answer.degraded) == (mode == "allow", UNKNOWN)
    subject.inner.fault = None
    answer = subject.store.run(Call(Verb.CHECK_ONCE, subject.plan, 2, once_token(subject.plan, 2, "retry")))
    assert (answer.allowed, answer.remaining, answer.degraded) == (True, 8, "")


# Health


def test_is_as_ready_as_its_store(make: Make) -> None:
    subject = make()
    subject.store.ready()
    subject.inner.fault = StoreUnavailable
    with pytest.raises(StoreUnavailable, match="injected"):
        subject.store.ready()
    fail(subject)
    subject.inner.fault = None
    subject.store.ready()
    assert subject.check().degraded == UNASKED


# Numbers, and mistakes


def test_statistics_count_what_happened(make: Make) -> None:
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

"""The routes of queries and of plans through the shards of a cluster, step by step, without a server."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate import Decision, OutcomeUnknown, Pressure, Quota, StoreError, StoreUnavailable
from headgate.core.plan import Call, Charge, Limit, Plan, Verb
from headgate.stores.redis import protocol, spread
from headgate.stores.redis.address import Address, Cluster, Role, Service
from headgate.stores.redis.cluster import ATTEMPTS, Pass, Send, route
from headgate.stores.redis.discovery import SLOTS, Sentinels, SlotMap, slot_of
from headgate.stores.redis.script import NOT_REPLICATED, key_of, mark_unconfirmed

A, B, C = (Address("127.0.0.1", port, role=Role.NODE) for port in (1, 2, 3))
ANSWER = [1, 2, 3]


def slots_of(owner: Address = A) -> SlotMap:
    slots = SlotMap(Cluster((A,)))
    slots.learn(7, owner, (owner.host, owner.port))
    return slots


def said(text: str) -> StoreError:
    return protocol.refusal(A, Exception(text))


def walk(slots: SlotMap, *happenings: object) -> tuple[list[Send | Pass], object]:
    """Follow a route: each happening answers a question. Returns the steps, and the answer or the error."""
    way, steps, left = route(slots, 7), [], list(happenings)
    try:
        step = next(way)
        while True:
            steps.append(step)
            if isinstance(step, Pass):
                step = next(way)
            elif isinstance(happening := left.pop(0), Exception):
                step = way.throw(happening)
            else:
                step = way.send(happening)  # type: ignore[arg-type]
    except StopIteration as stop:
        return steps, stop.value
    except StoreError as error:
        return steps, error


FIRST, MOVED, ASKED = Send(A, asking=False), [Pass.HINT, Send(B, asking=False)], Send(B, asking=True, alone=True)


@pytest.mark.parametrize(
    ("replies", "steps", "owner"),
    [
        ([], [FIRST], A),
        (["MOVED 7 127.0.0.1:2"], [FIRST, *MOVED], B),
        (["MOVED 7 :2"], [FIRST, *MOVED], B),  # the same host
        (["ASK 7 127.0.0.1:2"], [FIRST, ASKED], A),  # followed once, and not learned
        (["ASK 7 127.0.0.1:2", "TRYAGAIN"], [FIRST, ASKED, Pass.PAUSE, Send(A, asking=False, alone=True)], A),
    ],
)
def test_redirections_are_followed(replies: list[str], steps: list[Send | Pass], owner: Address) -> None:
    slots = slots_of()
    assert walk(slots, *map(said, replies), ANSWER) == (steps, ANSWER)
    assert slots.owner(7) == owner


@pytest.mark.parametrize("text", ["CLUSTERDOWN sorry", "READONLY no", "LOADING wait", "MASTERDOWN gone"])
def test_a_server_that_cannot_answer_is_an_error_if_no_other_has_the_slot(text: str) -> None:
    steps, error = walk(slots_of(), said(text))
    assert steps == [Send(A, asking=False), Pass.REFRESH]
    assert isinstance(error, StoreUnavailable)
    assert text.split(maxsplit=1)[0] in str(error)


def test_a_server_that_is_gone_is_replaced_by_the_one_that_has_the_slot_now() -> None:
    slots = slots_of()
    way = route(slots, 7)
    assert next(way) == Send(A, asking=False)
    assert way.throw(StoreUnavailable("cannot connect")) is Pass.REFRESH
    slots.learn(7, A, ("127.0.0.1", 3))
    assert next(way) == Send(C, asking=False)


def test_a_query_with_an_unknown_outcome_is_never_repeated() -> None:
    steps, error = walk(slots_of(), OutcomeUnknown("connection lost"))
    assert steps == [Send(A, asking=False)]
    assert isinstance(error, OutcomeUnknown)


def test_servers_that_point_at_each_other_are_given_up() -> None:
    circle = [said(f"MOVED 7 127.0.0.1:{1 + number % 2}") for number in range(1, 100)]
    steps, error = walk(slots_of(), *circle)
    assert sum(isinstance(step, Send) for step in steps) == ATTEMPTS
    assert isinstance(error, StoreUnavailable)


def test_a_slot_without_a_server_is_looked_for_once() -> None:
    steps, error = walk(SlotMap(Cluster((A,))))
    assert steps == [Pass.REFRESH]
    assert "slot 7" in str(error)


@pytest.mark.parametrize("text", ["MOVED", "MOVED 7", "MOVED 7 x", "MOVED 7 h:99999999", "ASK x y:z", "MOVED 7 h:-1"])
def test_a_redirection_that_makes_no_sense_is_no_crash(text: str) -> None:
    _, outcome = walk(slots_of(), said(text), ANSWER)
    assert outcome == ANSWER


def inquired(inquiry: Any, *replies: object) -> object:
    """Drive an inquiry with these replies; returns what it found, or its error."""
    left = list(replies)
    try:
        next(inquiry)
        while True:
            inquiry.send(left.pop(0))
    except StopIteration as stop:
        return stop.value
    except StoreError as error:
        return error


def test_the_slot_map_is_read() -> None:
    slots = SlotMap(Cluster((A,)))
    reply = [[0, 100, [b"127.0.0.1", 2, b"id", []], [b"127.0.0.1", 9, b"replica", []]], [101, 16383, [b"", 3, b"id"]]]
    assert inquired(slots.refresh(), reply) is None
    assert (slots.owner(0), slots.owner(100), slots.owner(101), slots.owner(16383)) == (B, B, C, C)
    assert slots.nodes == {B, C}


def test_another_server_is_queried_when_one_does_not_know() -> None:
    slots = SlotMap(Cluster((A, B)))
    assert inquired(slots.refresh(), StoreUnavailable("gone"), [[5, 6, [b"127.0.0.1", 3]]]) is None
    assert (slots.owner(4), slots.owner(5)) == (None, C)


def test_without_a_new_map_the_old_one_stays() -> None:
    slots = slots_of(B)
    inquired(slots.refresh(), StoreUnavailable("gone"), [], None)
    assert "gone" in slots.trouble
    assert slots.owner(7) == B


_REPLIES = st.recursive(
    st.none() | st.integers(-2, 20_000) | st.binary(max_size=5) | st.builds(Exception, st.text(max_size=9)),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=20,
)


@given(_REPLIES)
def test_no_reply_is_too_strange_for_a_map(reply: object) -> None:
    slots = SlotMap(Cluster((A,)))
    assert inquired(slots.refresh(), reply) is None
    assert bool(slots.trouble) is not bool(slots.nodes)


@given(_REPLIES)
def test_no_reply_is_too_strange_for_a_sentinel(reply: object) -> None:
    service = Service("main", (A,), B)
    assert isinstance(inquired(Sentinels(service).primary(), reply), StoreUnavailable | Address)


def test_the_sentinel_that_answered_comes_first_next_time() -> None:
    sentinels = Sentinels(Service("main", (A, B, C), Address(password="pw", role=Role.PRIMARY)))  # noqa: S106
    found = inquired(sentinels.primary(), StoreUnavailable("gone"), [b"h", b"9"])
    assert found == Address("h", 9, password="pw", role=Role.PRIMARY)  # noqa: S106
    assert next(sentinels.primary())[0] == B


def test_without_sentinels_the_last_primary_is_used_unless_one_knows_none() -> None:
    sentinels = Sentinels(Service("main", (A, B), C))
    found = inquired(sentinels.primary(), [b"h", b"9"])
    assert inquired(sentinels.primary(), StoreUnavailable("gone"), StoreUnavailable("gone")) == found
    assert isinstance(inquired(sentinels.primary(), None, StoreUnavailable("gone")), StoreUnavailable)


def test_sentinels_that_do_not_know_the_service_are_an_error() -> None:
    error = inquired(Sentinels(Service("main", (A, B), C)).primary(), None, StoreUnavailable("gone"))
    assert "'main'" in str(error)
    assert "gone" in str(error)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50) | st.binary(min_size=16, max_size=16))
def test_slots_are_those_of_the_cluster_specification(principal: str | bytes) -> None:
    """CRC16 (XMODEM) of what is between the first brace and the next, written out bit by bit."""
    key = key_of("limit|tb:1", principal)
    tag, crc = key[key.index(b"{") + 1 : key.index(b"}")], 0
    for byte in tag:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    assert slot_of(key) == crc % SLOTS


QUOTA = Quota(5, 3_600_000_000)
PLAN: Plan = tuple(Limit(f"limit|{QUOTA.shape}", principal, QUOTA) for principal in ("ada", "bob", "eve"))
YES = Decision(True, 5, 4, 0, 60, Pressure.NORMAL, QUOTA, 0, 1, 77)
NO = Decision(False, 5, 0, 1000, 1000, Pressure.THROTTLED, QUOTA)
GONE = StoreUnavailable("gone")


def played(flow: spread.Flow, *happenings: Decision | StoreError) -> tuple[list[str], Decision | StoreError]:
    """Play a flow: each happening answers a question. Returns verb and principal of the questions, and the outcome."""
    asked, left = [], list(happenings)
    try:
        step = next(flow)
        while True:
            verb = next(verb for verb in VERBS if step.call == VERBS[verb](step.call.plan))
            assert step.late == (verb == "undo") <= step.attempt
            asked.append(f"{verb} {step.call.plan[0].principal!s}")
            happening = left.pop(0)
            step = flow.throw(happening) if isinstance(happening, StoreError) else flow.send(happening)
    except StopIteration as stop:
        return asked, stop.value
    except StoreError as error:
        return asked, error


VERBS = {
    "check": lambda plan: Call(Verb.CHECK, plan),
    "peek": lambda plan: Call(Verb.PEEK, plan),
    "refund": lambda plan: Call(Verb.REFUND, plan),
    "undo": lambda plan: Call(Verb.REFUND, plan, charge=Charge((77,))),
}


def test_all_admit() -> None:
    asked, decision = played(spread.decide(Call(Verb.CHECK, PLAN)), YES, YES, YES)
    assert asked == ["check ada", "check bob", "check eve"]
    assert isinstance(decision, Decision)
    assert decision.allowed
    assert len(decision.limits) == 3


def test_a_later_refusal_undoes_what_was_taken() -> None:
    asked, decision = played(spread.decide(Call(Verb.CHECK, PLAN)), YES, YES, NO, YES, YES)
    assert asked == ["check ada", "check bob", "check eve", "undo bob", "undo ada"]
    assert isinstance(decision, Decision)
    assert [part.allowed for part in decision.limits] == [True, True, False]


def test_a_refusal_stands_though_other_shards_do_not_answer() -> None:
    _, decision = played(spread.decide(Call(Verb.CHECK, PLAN)), YES, NO, GONE, GONE)
    assert isinstance(decision, Decision)
    assert (decision.allowed, decision.retry_after_us, decision.degraded) == (False, 1000, "storage_unavailable")
    assert [part.degraded for part in decision.limits] == ["storage_unavailable", "", "storage_unavailable"]


@pytest.mark.parametrize(
    ("verb", "happenings", "calls", "error"),
    [
        (Verb.CHECK, [YES, GONE, YES], ["check ada", "check bob", "undo ada"], StoreUnavailable),
        (Verb.CHECK, [YES, GONE, GONE], ["check ada", "check bob", "undo ada"], OutcomeUnknown),  # not undone
        (Verb.REFUND, [GONE], ["refund ada"], StoreUnavailable),
        (Verb.REFUND, [YES, GONE], ["refund ada", "refund bob"], OutcomeUnknown),  # done in part
        (Verb.PEEK, [YES, GONE], ["peek ada", "peek bob"], StoreUnavailable),
    ],
)
def test_a_missing_shard_admits_nothing_and_the_error_shows_whether_a_repetition_is_safe(
    verb: Verb,
    happenings: list[Decision | StoreError],
    calls: list[str],
    error: type[StoreError],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "headgate.stores"):
        asked, raised = played(spread.decide(Call(verb, PLAN)), *happenings)
    assert (asked, type(raised)) == (calls, error)
    assert ("stays taken: gone" in caplog.text) == (happenings[2:] == [GONE])


def test_a_part_that_is_not_replicated_degrades_the_whole() -> None:
    _, decision = played(spread.decide(Call(Verb.CHECK, PLAN)), YES, mark_unconfirmed(YES), YES)
    assert isinstance(decision, Decision)
    assert (decision.allowed, decision.degraded) == (True, NOT_REPLICATED)


ADA, BOB, EVE = ((limit,) for limit in PLAN)


def with_shadow(plan: Plan, *shadow: Plan) -> spread.Flow:
    return spread.decide(Call(Verb.CHECK, plan, shadow=shadow))


def test_a_shadow_plan_in_the_same_slot_goes_with_its_call() -> None:
    flow = with_shadow(ADA, ADA, BOB)
    first = next(flow)
    assert first.call == Call(Verb.CHECK, ADA, shadow=(ADA,))
    second = flow.send(replace(YES, shadow=(NO,)))
    assert second.call == Call(Verb.CHECK, BOB)
    with pytest.raises(StopIteration) as stop:
        flow.send(YES)
    assert stop.value.value == replace(YES, shadow=(NO, YES))


def test_a_shadow_plan_elsewhere_follows_and_is_a_peek_after_a_refusal() -> None:
    asked, decision = played(with_shadow(ADA, BOB, EVE), NO, YES, YES)
    assert asked == ["check ada", "peek bob", "peek eve"]
    assert isinstance(decision, Decision)
    assert (decision.allowed, [tried.allowed for tried in decision.shadow]) == (False, [True, True])


def test_a_shadow_plan_that_is_not_answered_changes_nothing() -> None:
    asked, decision = played(with_shadow(ADA, BOB, EVE), YES, GONE, YES)
    assert asked == ["check ada", "check bob", "check eve"]
    assert isinstance(decision, Decision)
    assert (decision.allowed, decision.degraded) == (True, "")
    assert [tried.degraded for tried in decision.shadow] == ["storage_unavailable", ""]


def test_shadow_plans_alone_are_checked_one_by_one() -> None:
    asked, decision = played(with_shadow((), ADA, BOB), YES, NO)
    assert asked == ["check ada", "check bob"]
    assert isinstance(decision, Decision)
    assert (decision.allowed, [tried.allowed for tried in decision.shadow]) == (True, [True, False])

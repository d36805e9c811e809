"""The way of a question through a cluster, step by step, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import OutcomeUnknown, StoreError, StoreUnavailable
from headgate.stores.redis import protocol
from headgate.stores.redis.address import Address, Cluster, Role, Service
from headgate.stores.redis.cluster import ATTEMPTS, Ask, Pass, route
from headgate.stores.redis.discovery import SLOTS, Sentinels, SlotMap, slot_of
from headgate.stores.redis.script import key_of

A, B, C = (Address("127.0.0.1", port, role=Role.NODE) for port in (1, 2, 3))
ANSWER = [1, 2, 3]


def slots_of(owner: Address = A) -> SlotMap:
    slots = SlotMap(Cluster((A,)))
    slots.learn(7, owner, (owner.host, owner.port))
    return slots


def said(text: str) -> StoreError:
    return protocol.refusal(A, Exception(text))


def walk(slots: SlotMap, *happenings: object) -> tuple[list[Ask | Pass], object]:
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


def test_the_owner_is_asked() -> None:
    assert walk(slots_of(), ANSWER) == ([Ask(A, asking=False)], ANSWER)


def test_moved_is_followed_and_learned() -> None:
    slots = slots_of()
    assert walk(slots, said("MOVED 7 127.0.0.1:2"), ANSWER) == (
        [Ask(A, asking=False), Pass.HINT, Ask(B, asking=False)],
        ANSWER,
    )
    assert slots.owner(7) == B


def test_moved_without_a_host_means_the_same_host() -> None:
    slots = slots_of()
    walk(slots, said("MOVED 7 :2"), ANSWER)
    assert slots.owner(7) == B


def test_ask_is_followed_once_and_not_learned() -> None:
    slots = slots_of()
    assert walk(slots, said("ASK 7 127.0.0.1:2"), ANSWER) == (
        [Ask(A, asking=False), Ask(B, asking=True, alone=True)],
        ANSWER,
    )
    assert slots.owner(7) == A


def test_keys_on_the_move_are_tried_again_from_the_start() -> None:
    steps, answer = walk(slots_of(), said("ASK 7 127.0.0.1:2"), said("TRYAGAIN later"), ANSWER)
    assert steps == [
        Ask(A, asking=False),
        Ask(B, asking=True, alone=True),
        Pass.PAUSE,
        Ask(A, asking=False, alone=True),
    ]
    assert answer == ANSWER


@pytest.mark.parametrize("text", ["CLUSTERDOWN sorry", "READONLY no", "LOADING wait", "MASTERDOWN gone"])
def test_a_server_that_cannot_answer_is_an_error_if_nobody_else_has_the_slot(text: str) -> None:
    steps, error = walk(slots_of(), said(text))
    assert steps == [Ask(A, asking=False), Pass.REFRESH]
    assert isinstance(error, StoreUnavailable)
    assert text.split(maxsplit=1)[0] in str(error)


def test_a_server_that_is_gone_is_replaced_by_the_one_that_has_the_slot_now() -> None:
    slots = slots_of()
    way = route(slots, 7)
    assert next(way) == Ask(A, asking=False)
    assert way.throw(StoreUnavailable("cannot connect")) is Pass.REFRESH
    slots.learn(7, A, ("127.0.0.1", 3))
    assert next(way) == Ask(C, asking=False)


def test_an_unknown_outcome_is_never_asked_again() -> None:
    steps, error = walk(slots_of(), OutcomeUnknown("connection lost"))
    assert steps == [Ask(A, asking=False)]
    assert isinstance(error, OutcomeUnknown)


def test_servers_that_point_at_each_other_are_given_up() -> None:
    circle = [said(f"MOVED 7 127.0.0.1:{1 + number % 2}") for number in range(1, 100)]
    steps, error = walk(slots_of(), *circle)
    assert sum(isinstance(step, Ask) for step in steps) == ATTEMPTS
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
    reply = [
        [0, 100, [b"127.0.0.1", 2, b"id", []], [b"127.0.0.1", 9, b"replica", []]],
        [101, 16383, [b"", 3, b"id"]],
    ]
    assert inquired(slots.refresh(), reply) is None
    assert (slots.owner(0), slots.owner(100), slots.owner(101), slots.owner(16383)) == (B, B, C, C)
    assert slots.nodes == {B, C}


def test_another_server_is_asked_when_one_does_not_know() -> None:
    slots = SlotMap(Cluster((A, B)))
    assert inquired(slots.refresh(), StoreUnavailable("gone"), [[5, 6, [b"127.0.0.1", 3]]]) is None
    assert (slots.owner(4), slots.owner(5)) == (None, C)


def test_a_map_that_nobody_has_leaves_the_old_one() -> None:
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


def test_the_sentinel_that_answered_is_asked_first_next_time() -> None:
    sentinels = Sentinels(Service("main", (A, B, C), Address(password="pw", role=Role.PRIMARY)))  # noqa: S106
    found = inquired(sentinels.primary(), StoreUnavailable("gone"), [b"h", b"9"])
    assert found == Address("h", 9, password="pw", role=Role.PRIMARY)  # noqa: S106
    assert next(sentinels.primary())[0] == B


def test_without_sentinels_the_primary_is_where_it_was_unless_one_says_that_it_knows_none() -> None:
    sentinels = Sentinels(Service("main", (A, B), C))
    found = inquired(sentinels.primary(), [b"h", b"9"])
    assert inquired(sentinels.primary(), StoreUnavailable("gone"), StoreUnavailable("gone")) == found
    assert isinstance(inquired(sentinels.primary(), None, StoreUnavailable("gone")), StoreUnavailable)


def test_sentinels_that_do_not_know_the_service_say_so() -> None:
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

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.server.callers import CallerKeys
from headgate.server.guard import (
    EXEMPT,
    TOO_FAST,
    TOO_MANY_STREAMS,
    TOO_MUCH,
    UNFAIR,
    UNKNOWN_CALLER,
    ConnectionAdmission,
    Guard,
)
from headgate.server.wire.messages import NOBODY, Peer
from headgate.testing import ManualClock
from headgate.web.apikey import Holder, digest

CHECK = b"/api/v1/rate-limit/check"


def admitted(place: ConnectionAdmission, times: int) -> int:
    return sum(place.admit(CHECK, []) is None for _ in range(times))


def test_without_a_ceiling_all_that_fits_is_let_in() -> None:
    guard = Guard(in_flight=100)
    assert admitted(guard.admission(NOBODY), 1000) == 100
    assert guard.in_flight == 100


def test_the_ceiling_lets_in_so_many_per_second_and_a_tenth_at_once() -> None:
    clock = ManualClock()
    guard = Guard(per_second=10_000, in_flight=1_000_000, clock=clock)
    place = guard.admission(NOBODY)
    assert admitted(place, 5000) == 1000
    assert place.admit(CHECK, []) == TOO_FAST
    total = 0
    for _ in range(100):
        clock.advance(0.01)
        total += admitted(place, 200)
    assert 9_980 <= total <= 10_000


def test_those_who_ask_little_are_not_refused_because_of_those_who_ask_much() -> None:
    clock = ManualClock()
    guard = Guard(per_second=10_000, in_flight=1_000_000, clock=clock)
    floods, little = [guard.admission(NOBODY), guard.admission(NOBODY)], guard.admission(NOBODY)
    passed = [0, 0, 0]
    for _ in range(3000):
        clock.advance(us=1000)
        for number, flood in enumerate(floods):
            passed[number] += admitted(flood, 50)
        passed[2] += admitted(little, 1)
    assert passed[2] > 2900, "it asks 1000 times in a second, and its share is 3333"
    assert sum(passed) <= 30_000 + 1000
    assert min(passed[:2]) > 6000


def batch(guard: Guard, place: ConnectionAdmission, peer: Peer, size: int) -> bool:
    """Whether a batch is let in."""
    if place.admit(CHECK, []) is not None:
        return False
    place.release()
    return guard.charge(size - 1, peer) is None


def test_a_batch_counts_for_all_that_it_asks() -> None:
    clock, peer = ManualClock(), Peer()
    guard = Guard(per_second=10_000, in_flight=1_000_000, clock=clock)
    place = guard.admission(peer)
    assert batch(guard, place, peer, 1000)
    assert place.admit(CHECK, []) == TOO_FAST
    total = 0
    for _ in range(1000):
        clock.advance(0.001)
        total += 300 * batch(guard, place, peer, 300)
    assert 9000 <= total <= 10_000


@pytest.mark.parametrize("size", [2, 100, 500, 1000])
def test_those_who_ask_little_are_not_refused_because_of_batches(size: int) -> None:
    """A batch is paid for by its own connection, which gets its share of the ceiling in the long run."""
    clock, greedy = ManualClock(), Peer()
    guard = Guard(per_second=10_000, in_flight=1_000_000, clock=clock)
    flood, little = guard.admission(greedy), guard.admission(Peer())
    in_batches = passed = 0
    for _ in range(3000):
        clock.advance(us=1000)
        for _ in range(3):
            in_batches += size * batch(guard, flood, greedy, size)
        passed += admitted(little, 1)
    assert passed > 2900, "it asks 1000 times in a second, and its share is 5000"
    assert in_batches + passed <= 30_000 + 1000
    assert in_batches > 12_000, "its share is 15 000 in these three seconds"


def test_a_batch_does_not_starve_behind_single_requests() -> None:
    clock, peer = ManualClock(), Peer()
    guard = Guard(per_second=10_000, in_flight=1_000_000, clock=clock)
    flood, batches = guard.admission(Peer()), guard.admission(peer)
    passed = in_batches = 0
    for _ in range(3000):
        clock.advance(us=1000)
        passed += admitted(flood, 50)
        in_batches += 500 * batch(guard, batches, peer, 500)
    assert passed > 12_000
    assert in_batches > 10_000


def test_a_batch_that_could_never_be_let_in_is_told_how_large_it_may_be() -> None:
    clock, peer = ManualClock(), Peer()
    guard = Guard(per_second=50, clock=clock)
    place = guard.admission(peer)
    refusal = guard.charge(5, peer)
    assert refusal is not None
    assert (refusal.status, refusal.headers) == (413, ()), "no wait helps"
    assert "at most 5 checks at once" in refusal.detail
    assert batch(guard, place, peer, 5)
    clock.advance(1)
    assert guard.charge_descriptors(200, peer) is None, "what cannot be split counts as much as could be let in"
    assert guard.charge_descriptors(200, peer) == TOO_FAST
    del place


def test_without_a_ceiling_batches_are_free() -> None:
    assert Guard().charge(10**6, Peer()) is None


def test_a_small_ceiling_is_exact() -> None:
    clock = ManualClock()
    guard = Guard(per_second=3, clock=clock)
    assert admitted(guard.admission(NOBODY), 10) == 1
    clock.advance(1)
    assert admitted(guard.admission(NOBODY), 10) == 1


def test_health_and_metrics_are_let_in_always() -> None:
    guard = Guard(per_second=1, in_flight=1, keys=CallerKeys({digest("k"): Holder("k")}))
    places = [guard.admission(NOBODY) for _ in range(3)]
    assert {b"/healthz", b"/readyz", b"/healthcheck", b"/grpc.health.v1.Health/List"} <= EXEMPT
    for place in places:
        assert all(place.admit(path, []) is None for path in EXEMPT)
    assert places[0].admit(CHECK, [(b"x-api-key", b"k")]) == TOO_MUCH


def test_a_connection_that_floods_is_refused_before_others() -> None:
    guard = Guard(in_flight=100)
    flood, other = guard.admission(NOBODY), guard.admission(NOBODY)
    assert admitted(flood, 90) == 90
    assert admitted(other, 1) == 1
    assert flood.admit(CHECK, []) == UNFAIR
    assert admitted(other, 9) == 9
    assert other.admit(CHECK, []) == TOO_MUCH
    for _ in range(50):
        flood.release()
    assert admitted(other, 60) >= 40


def test_shares_of_what_is_in_flight_count_from_three_quarters_on() -> None:
    guard = Guard(in_flight=100)
    flood, other = guard.admission(NOBODY), guard.admission(NOBODY)
    assert (admitted(flood, 50), admitted(other, 1)) == (50, 1)
    assert admitted(flood, 50) == 24
    assert (guard.in_flight, flood.admit(CHECK, [])) == (75, UNFAIR)


def test_shares_of_the_ceiling_count_for_a_second_after_it_was_reached() -> None:
    clock = ManualClock()
    guard = Guard(per_second=10_000, in_flight=1_000_000, clock=clock)
    greedy, other = guard.admission(NOBODY), guard.admission(NOBODY)
    counts = []
    for pause in (0.9, 1.1):
        admitted(greedy, 5000)  # all there is, and more
        for _ in range(9):
            clock.advance(pause / 9)
            other.admit(CHECK, [])
        counts.append(admitted(greedy, 900))
        clock.advance(10)
    assert counts[0] < 900 == counts[1]


def test_a_connection_alone_may_use_all() -> None:
    guard = Guard(in_flight=100)
    guard.admission(NOBODY)
    assert admitted(guard.admission(NOBODY), 200) == 100


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=300))
def test_what_is_in_flight_is_counted_and_bounded(steps: list[tuple[int, bool]]) -> None:
    guard = Guard(in_flight=10)
    places = [guard.admission(NOBODY) for _ in range(5)]
    for number, arrives in steps:
        place = places[number]
        if arrives:
            place.admit(CHECK, [])
        elif place.in_flight:
            place.release()
        assert guard.in_flight == sum(each.in_flight for each in places) <= 10
        assert guard.busy == sum(each.in_flight > 0 for each in places)


def test_shed_requests_are_counted_and_unknown_callers_are_not_among_them(caplog: pytest.LogCaptureFixture) -> None:
    shed: list[bytes] = []
    guard = Guard(in_flight=1, shed=shed.append, keys=CallerKeys({digest("k"): Holder("k")}))
    place = guard.admission(NOBODY)
    assert place.admit(CHECK, []) == UNKNOWN_CALLER
    for _ in range(4):
        place.admit(CHECK, [(b"x-api-key", b"k")])
    assert shed == [CHECK] * 3
    assert len(caplog.records) == 1


def test_a_caller_proves_itself_with_every_request() -> None:
    guard = Guard(keys=CallerKeys({digest("k"): Holder("k"), digest("other"): Holder("o")}))
    place = guard.admission(NOBODY)
    good = [(b"authorization", b"Bearer k")]
    assert [place.admit(CHECK, good) for _ in range(2)] == [None, None]
    assert place.admit(CHECK, [(b"authorization", b"Bearer other")]) is None
    assert place.admit(CHECK, [(b"authorization", b"Bearer x")]) == UNKNOWN_CALLER
    assert place.admit(CHECK, []) == UNKNOWN_CALLER
    assert place.admit(CHECK, good * 2) == UNKNOWN_CALLER
    assert guard.in_flight == 3


def test_keys_that_are_replaced_count_at_once() -> None:
    guard = Guard(keys=CallerKeys({digest("k"): Holder("k")}))
    place = guard.admission(NOBODY)
    assert place.admit(CHECK, [(b"x-api-key", b"k")]) is None
    guard.keys = CallerKeys({digest("new"): Holder("k")})
    assert place.admit(CHECK, [(b"x-api-key", b"k")]) == UNKNOWN_CALLER
    assert place.admit(CHECK, [(b"x-api-key", b"new")]) is None


WATCH, REFLECT = b"/grpc.health.v1.Health/Watch", b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


@pytest.mark.parametrize("path", [WATCH, REFLECT])
def test_calls_that_last_take_nothing_from_requests(path: bytes) -> None:
    guard = Guard(in_flight=1000)
    places = [guard.admission(NOBODY) for _ in range(100)]
    streams = [place for place in places for _ in range(1000) if place.admit_stream(path, []) is None]
    assert guard.streams == len(streams) == 100
    assert guard.in_flight == 0
    assert places[0].admit(CHECK, []) is None
    assert places[0].admit_stream(path, []) == TOO_MANY_STREAMS
    for place in streams:
        place.release_stream()
    assert guard.streams == 0
    assert places[0].admit_stream(path, []) is None


def test_one_connection_has_a_part_of_the_calls_that_last() -> None:
    guard = Guard(in_flight=10_000)
    greedy, modest = guard.admission(NOBODY), guard.admission(NOBODY)
    assert sum(greedy.admit_stream(WATCH, []) is None for _ in range(1000)) == 100
    assert modest.admit_stream(WATCH, []) is None


def test_calls_that_last_need_a_key_and_a_token_but_for_health() -> None:
    keys = CallerKeys({digest("secret"): Holder("edge")})
    place = Guard(keys=keys).admission(NOBODY)
    assert place.admit_stream(REFLECT, []) == UNKNOWN_CALLER
    assert place.admit_stream(REFLECT, [(b"x-api-key", b"secret")]) is None
    assert place.admit_stream(WATCH, []) is None
    busy = Guard(per_second=10, in_flight=100, clock=ManualClock()).admission(NOBODY)
    assert admitted(busy, 10) == 1
    assert busy.admit_stream(REFLECT, []) == TOO_FAST
    assert busy.admit_stream(WATCH, []) is None

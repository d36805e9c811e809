from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.server.admission import (
    EXEMPT,
    TOO_FAST,
    TOO_MANY_STREAMS,
    TOO_MUCH,
    UNFAIR,
    UNKNOWN_CALLER,
    AdmissionController,
    ConnectionAdmission,
)
from headgate.server.caller_keys import CallerKeys
from headgate.server.wire.admission import NotAdmitted
from headgate.server.wire.messages import NOBODY, Headers, Peer
from headgate.testing import ManualClock
from headgate.web.apikey import Holder, digest

CHECK = b"/api/v1/rate-limit/check"


def entered(connection: ConnectionAdmission, path: bytes, headers: Headers) -> NotAdmitted | None:
    """Ask for a request that has to wait."""
    refusal = connection.admit(path, headers)
    if refusal is None:
        connection.hold()
    return refusal


def admitted(connection: ConnectionAdmission, times: int) -> int:
    return sum(entered(connection, CHECK, []) is None for _ in range(times))


def test_without_a_ceiling_all_that_fits_is_let_in() -> None:
    admission = AdmissionController(in_flight=100)
    assert admitted(admission.admission(NOBODY), 1000) == 100
    assert admission.in_flight.total == 100


def test_the_ceiling_lets_in_so_many_per_second_and_a_tenth_at_once() -> None:
    clock = ManualClock()
    admission = AdmissionController(per_second=10_000, in_flight=1_000_000, clock=clock)
    connection = admission.admission(NOBODY)
    assert admitted(connection, 5000) == 1000
    assert entered(connection, CHECK, []) == TOO_FAST
    total = 0
    for _ in range(100):
        clock.advance(0.01)
        total += admitted(connection, 200)
    assert 9_980 <= total <= 10_000


def test_those_who_ask_little_are_not_refused_because_of_those_who_ask_much() -> None:
    clock = ManualClock()
    admission = AdmissionController(per_second=10_000, in_flight=1_000_000, clock=clock)
    floods, little = [admission.admission(NOBODY), admission.admission(NOBODY)], admission.admission(NOBODY)
    passed = [0, 0, 0]
    for _ in range(3000):
        clock.advance(us=1000)
        for number, flood in enumerate(floods):
            passed[number] += admitted(flood, 50)
        passed[2] += admitted(little, 1)
    assert passed[2] > 2900, "it asks 1000 times in a second, and its share is 3333"
    assert sum(passed) <= 30_000 + 1000
    assert min(passed[:2]) > 6000


def batch(admission: AdmissionController, connection: ConnectionAdmission, peer: Peer, size: int) -> bool:
    """Whether a batch is let in."""
    if entered(connection, CHECK, []) is not None:
        return False
    connection.release()
    return admission.admit_more(size - 1, peer) is None


def test_a_batch_counts_for_all_that_it_asks() -> None:
    clock, peer = ManualClock(), Peer()
    admission = AdmissionController(per_second=10_000, in_flight=1_000_000, clock=clock)
    connection = admission.admission(peer)
    assert batch(admission, connection, peer, 1000)
    assert entered(connection, CHECK, []) == TOO_FAST
    total = 0
    for _ in range(1000):
        clock.advance(0.001)
        total += 300 * batch(admission, connection, peer, 300)
    assert 9000 <= total <= 10_000


@pytest.mark.parametrize("size", [2, 100, 500, 1000])
def test_those_who_ask_little_are_not_refused_because_of_batches(size: int) -> None:
    """A batch is paid for by its own connection, which gets its share of the ceiling in the long run."""
    clock, greedy = ManualClock(), Peer()
    admission = AdmissionController(per_second=10_000, in_flight=1_000_000, clock=clock)
    flood, little = admission.admission(greedy), admission.admission(Peer())
    in_batches = passed = 0
    for _ in range(3000):
        clock.advance(us=1000)
        for _ in range(3):
            in_batches += size * batch(admission, flood, greedy, size)
        passed += admitted(little, 1)
    assert passed > 2900, "it asks 1000 times in a second, and its share is 5000"
    assert in_batches + passed <= 30_000 + 1000
    assert in_batches > 12_000, "its share is 15 000 in these three seconds"


def test_a_batch_does_not_starve_behind_single_requests() -> None:
    clock, peer = ManualClock(), Peer()
    admission = AdmissionController(per_second=10_000, in_flight=1_000_000, clock=clock)
    flood, batches = admission.admission(Peer()), admission.admission(peer)
    passed = in_batches = 0
    for _ in range(3000):
        clock.advance(us=1000)
        passed += admitted(flood, 50)
        in_batches += 500 * batch(admission, batches, peer, 500)
    assert passed > 12_000
    assert in_batches > 10_000


def test_a_batch_that_could_never_be_let_in_is_told_how_large_it_may_be() -> None:
    clock, peer = ManualClock(), Peer()
    admission = AdmissionController(per_second=50, clock=clock)
    connection = admission.admission(peer)
    refusal = admission.admit_more(5, peer)
    assert refusal is not None
    assert (refusal.status, refusal.headers) == (413, ()), "no wait helps"
    assert "at most 5 checks at once" in refusal.detail
    assert batch(admission, connection, peer, 5)
    clock.advance(1)
    assert admission.admit_descriptors(200, peer) is None, "what cannot be split counts as much as could be let in"
    assert admission.admit_descriptors(200, peer) == TOO_FAST
    del connection


def test_without_a_ceiling_batches_are_free() -> None:
    assert AdmissionController().admit_more(10**6, Peer()) is None


def test_health_and_metrics_are_let_in_always() -> None:
    admission = AdmissionController(per_second=1, in_flight=1, keys=lambda: CallerKeys({digest("k"): Holder("k")}))
    connections = [admission.admission(NOBODY) for _ in range(3)]
    assert {b"/healthz", b"/readyz", b"/healthcheck", b"/grpc.health.v1.Health/List"} <= EXEMPT
    for connection in connections:
        assert all(entered(connection, path, []) is None for path in EXEMPT)
    assert entered(connections[0], CHECK, [(b"x-api-key", b"k")]) == TOO_MUCH


def test_a_connection_that_floods_is_refused_before_others() -> None:
    admission = AdmissionController(in_flight=100)
    flood, other = admission.admission(NOBODY), admission.admission(NOBODY)
    assert admitted(flood, 90) == 90
    assert admitted(other, 1) == 1
    assert entered(flood, CHECK, []) == UNFAIR
    assert admitted(other, 9) == 9
    assert entered(other, CHECK, []) == TOO_MUCH
    for _ in range(50):
        flood.release()
    assert admitted(other, 60) >= 40


def test_a_connection_alone_may_use_all() -> None:
    admission = AdmissionController(in_flight=100)
    admission.admission(NOBODY)
    assert admitted(admission.admission(NOBODY), 200) == 100


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=300))
def test_what_is_in_flight_is_counted_and_bounded(steps: list[tuple[int, bool]]) -> None:
    admission = AdmissionController(in_flight=10)
    connections = [admission.admission(NOBODY) for _ in range(5)]
    for number, arrives in steps:
        connection = connections[number]
        if arrives:
            entered(connection, CHECK, [])
        elif connection.in_flight:
            connection.release()
        assert admission.in_flight.total == sum(each.in_flight for each in connections) <= 10
        assert admission.in_flight.busy == sum(each.in_flight > 0 for each in connections)


def test_shed_requests_are_counted_and_unknown_callers_are_not_among_them(caplog: pytest.LogCaptureFixture) -> None:
    shed: list[bytes] = []
    admission = AdmissionController(in_flight=1, shed=shed.append, keys=lambda: CallerKeys({digest("k"): Holder("k")}))
    connection = admission.admission(NOBODY)
    assert entered(connection, CHECK, []) == UNKNOWN_CALLER
    for _ in range(4):
        entered(connection, CHECK, [(b"x-api-key", b"k")])
    assert shed == [CHECK] * 3
    assert len(caplog.records) == 1


def test_a_caller_proves_itself_with_every_request() -> None:
    keys = CallerKeys({digest("k"): Holder("k"), digest("other"): Holder("o")})
    admission = AdmissionController(keys=lambda: keys)
    connection = admission.admission(NOBODY)
    good = [(b"authorization", b"Bearer k")]
    assert [entered(connection, CHECK, good) for _ in range(2)] == [None, None]
    assert entered(connection, CHECK, [(b"authorization", b"Bearer other")]) is None
    assert entered(connection, CHECK, [(b"authorization", b"Bearer x")]) == UNKNOWN_CALLER
    assert entered(connection, CHECK, []) == UNKNOWN_CALLER
    assert entered(connection, CHECK, good * 2) == UNKNOWN_CALLER
    assert admission.in_flight.total == 3


def test_whose_keys_were_accepted_is_noted_again_after_somebody_took_note() -> None:
    """Also on a connection that stays open for days; and never of whom nobody knows."""
    known = CallerKeys({digest("a" * 40): Holder("edge")})
    admission = AdmissionController(keys=lambda: known)
    connection = admission.admission(NOBODY)
    for _ in range(2):
        assert entered(connection, CHECK, [(b"x-api-key", b"b" * 40)]) is not None
        assert admission.accepted_callers == set()
        assert entered(connection, CHECK, [(b"x-api-key", b"a" * 40)]) is None
        assert entered(connection, CHECK, [(b"x-api-key", b"a" * 40)]) is None
        assert admission.accepted_callers == {"edge"}
        admission.accepted_callers.clear()
    assert entered(connection, CHECK, [(b"x-api-key", b"a" * 40)]) is None
    assert admission.accepted_callers == {"edge"}


def test_keys_that_are_replaced_count_at_once() -> None:
    keys = [CallerKeys({digest("k"): Holder("k")})]
    admission = AdmissionController(keys=lambda: keys[-1])
    connection = admission.admission(NOBODY)
    assert entered(connection, CHECK, [(b"x-api-key", b"k")]) is None
    keys.append(CallerKeys({digest("new"): Holder("k")}))
    assert entered(connection, CHECK, [(b"x-api-key", b"k")]) == UNKNOWN_CALLER
    assert entered(connection, CHECK, [(b"x-api-key", b"new")]) is None


WATCH, REFLECT = b"/grpc.health.v1.Health/Watch", b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


@pytest.mark.parametrize("path", [WATCH, REFLECT])
def test_calls_that_last_take_nothing_from_requests(path: bytes) -> None:
    admission = AdmissionController(in_flight=1000)
    connections = [admission.admission(NOBODY) for _ in range(100)]
    streams = [
        connection for connection in connections for _ in range(1000) if connection.admit_stream(path, []) is None
    ]
    assert admission.streams.total == len(streams) == 100
    assert admission.in_flight.total == 0
    assert entered(connections[0], CHECK, []) is None
    assert connections[0].admit_stream(path, []) == TOO_MANY_STREAMS
    for connection in streams:
        connection.release_stream()
    assert admission.streams.total == 0
    assert connections[0].admit_stream(path, []) is None


def test_one_connection_has_a_part_of_the_calls_that_last() -> None:
    admission = AdmissionController(in_flight=10_000)
    greedy, modest = admission.admission(NOBODY), admission.admission(NOBODY)
    assert sum(greedy.admit_stream(WATCH, []) is None for _ in range(1000)) == 100
    assert modest.admit_stream(WATCH, []) is None


def test_calls_that_last_need_a_key_and_a_token_but_for_health() -> None:
    keys = CallerKeys({digest("secret"): Holder("edge")})
    connection = AdmissionController(keys=lambda: keys).admission(NOBODY)
    assert connection.admit_stream(REFLECT, []) == UNKNOWN_CALLER
    assert connection.admit_stream(REFLECT, [(b"x-api-key", b"secret")]) is None
    assert connection.admit_stream(WATCH, []) is None
    busy = AdmissionController(per_second=10, in_flight=100, clock=ManualClock()).admission(NOBODY)
    assert admitted(busy, 10) == 1
    assert busy.admit_stream(REFLECT, []) == TOO_FAST
    assert busy.admit_stream(WATCH, []) is None

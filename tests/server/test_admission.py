from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import UsageError
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
BY_KEY = [(b"x-api-key", b"k")]


def holders(**names: str) -> CallerKeys:
    return CallerKeys({digest(key): Holder(name) for key, name in names.items()})


def entered(connection: ConnectionAdmission, path: bytes = CHECK, headers: Headers | None = None) -> NotAdmitted | None:
    """Ask for a request that has to wait."""
    refusal = connection.admit(path, headers or [])
    if refusal is None:
        connection.hold()
    return refusal


def admitted(connection: ConnectionAdmission, times: int) -> int:
    return sum(entered(connection) is None for _ in range(times))


def limited(per_second: int = 10_000) -> tuple[ManualClock, AdmissionController]:
    clock = ManualClock()
    return clock, AdmissionController(per_second=per_second, in_flight=1_000_000, clock=clock)


def test_without_a_ceiling_one_connection_may_use_all_room() -> None:
    admission = AdmissionController(in_flight=100)
    admission.admission(NOBODY)
    assert admitted(admission.admission(NOBODY), 1000) == admission.in_flight.total == 100
    assert admission.admit_more(10**6, Peer()) is None, "batches are free"


def test_the_ceiling_admits_a_number_per_second_and_a_tenth_at_once() -> None:
    clock, admission = limited()
    connection = admission.admission(NOBODY)
    assert admitted(connection, 5000) == 1000
    assert entered(connection) == TOO_FAST
    total = 0
    for _ in range(100):
        clock.advance(0.01)
        total += admitted(connection, 200)
    assert 9_980 <= total <= 10_000


def test_modest_connections_are_not_refused_because_of_floods() -> None:
    clock, admission = limited()
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
    if entered(connection) is not None:
        return False
    connection.release()
    return admission.admit_more(size - 1, peer) is None


@pytest.mark.parametrize("size", [2, 100, 500, 1000])
def test_modest_connections_are_not_refused_because_of_batches(size: int) -> None:
    """A batch is paid for by its own connection, which gets its share of the ceiling in the long run."""
    (clock, admission), greedy = limited(), Peer()
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
    (clock, admission), peer = limited(), Peer()
    flood, batches = admission.admission(Peer()), admission.admission(peer)
    passed = in_batches = 0
    for _ in range(3000):
        clock.advance(us=1000)
        passed += admitted(flood, 50)
        in_batches += 500 * batch(admission, batches, peer, 500)
    assert passed > 12_000
    assert in_batches > 10_000


def test_a_batch_that_could_never_be_admitted_gets_the_largest_size() -> None:
    (clock, admission), peer = limited(50), Peer()
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


def test_health_and_metrics_are_always_admitted() -> None:
    admission = AdmissionController(per_second=1, in_flight=1, keys=lambda: holders(k="k"))
    connections = [admission.admission(NOBODY) for _ in range(3)]
    assert {b"/healthz", b"/readyz", b"/healthcheck", b"/grpc.health.v1.Health/List"} <= EXEMPT
    for connection in connections:
        assert all(entered(connection, path) is None for path in EXEMPT)
    assert entered(connections[0], CHECK, BY_KEY) == TOO_MUCH


def test_a_connection_that_floods_is_refused_before_others() -> None:
    admission = AdmissionController(in_flight=100)
    flood, other = admission.admission(NOBODY), admission.admission(NOBODY)
    assert (admitted(flood, 90), admitted(other, 1), entered(flood)) == (90, 1, UNFAIR)
    assert (admitted(other, 9), entered(other)) == (9, TOO_MUCH)
    for _ in range(50):
        flood.release()
    assert admitted(other, 60) >= 40


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=300))
def test_requests_in_flight_are_counted_and_bounded(steps: list[tuple[int, bool]]) -> None:
    admission = AdmissionController(in_flight=10)
    connections = [admission.admission(NOBODY) for _ in range(5)]
    for number, arrives in steps:
        connection = connections[number]
        if arrives:
            entered(connection)
        elif connection.in_flight:
            connection.release()
        assert admission.in_flight.total == sum(each.in_flight for each in connections) <= 10
        assert admission.in_flight.busy == sum(each.in_flight > 0 for each in connections)


def test_shed_requests_are_counted_and_unknown_callers_are_not_among_them(caplog: pytest.LogCaptureFixture) -> None:
    shed: list[bytes] = []
    admission = AdmissionController(in_flight=1, shed=shed.append, keys=lambda: holders(k="k"))
    connection = admission.admission(NOBODY)
    assert entered(connection) == UNKNOWN_CALLER
    for _ in range(4):
        entered(connection, CHECK, BY_KEY)
    assert (shed, len(caplog.records)) == ([CHECK] * 3, 1)


def test_every_request_needs_a_key_and_replaced_keys_take_effect_at_once() -> None:
    keys = [holders(k="k", other="o")]
    admission = AdmissionController(keys=lambda: keys[-1])
    connection = admission.admission(NOBODY)
    k, other, unknown = ([(b"authorization", b"Bearer " + key)] for key in (b"k", b"other", b"x"))
    assert [entered(connection, CHECK, good) for good in (k, k, other, BY_KEY)] == [None] * 4
    assert [entered(connection, CHECK, bad) for bad in (unknown, [], k * 2)] == [UNKNOWN_CALLER] * 3
    assert admission.in_flight.total == 4
    keys.append(holders(new="k"))
    assert entered(connection, CHECK, BY_KEY) == UNKNOWN_CALLER
    assert entered(connection, CHECK, [(b"x-api-key", b"new")]) is None


def test_accepted_callers_are_recorded_again_after_they_were_read() -> None:
    """Even on a long-lived connection; unknown callers are never recorded."""
    known = holders(k="edge")
    admission = AdmissionController(keys=lambda: known)
    connection = admission.admission(NOBODY)
    for keys, noted in (
        ([b"b"], set[str]()),
        ([b"k", b"k"], {"edge"}),
        ([b"b"], set()),
        ([b"k"], {"edge"}),
        ([b"k"], {"edge"}),
    ):
        for key in keys:
            assert (entered(connection, CHECK, [(b"x-api-key", key)]) is None) == bool(noted)
        assert admission.accepted_callers == noted
        admission.accepted_callers.clear()


WATCH, REFLECT = b"/grpc.health.v1.Health/Watch", b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


@pytest.mark.parametrize("path", [WATCH, REFLECT])
def test_long_lived_calls_take_no_room_of_requests(path: bytes) -> None:
    admission = AdmissionController(in_flight=1000)
    connections = [admission.admission(NOBODY) for _ in range(100)]
    streams = [
        connection for connection in connections for _ in range(1000) if connection.admit_stream(path, []) is None
    ]
    assert admission.streams.total == len(streams) == 100
    assert admission.in_flight.total == 0
    assert entered(connections[0]) is None
    assert connections[0].admit_stream(path, []) == TOO_MANY_STREAMS
    for connection in streams:
        connection.release_stream()
    assert admission.streams.total == 0
    assert connections[0].admit_stream(path, []) is None


def test_one_connection_has_a_share_of_the_long_lived_calls() -> None:
    admission = AdmissionController(in_flight=10_000)
    greedy, modest = admission.admission(NOBODY), admission.admission(NOBODY)
    assert sum(greedy.admit_stream(WATCH, []) is None for _ in range(1000)) == 100
    assert modest.admit_stream(WATCH, []) is None


def test_long_lived_calls_need_a_key_and_a_token_except_for_health() -> None:
    connection = AdmissionController(keys=lambda: holders(k="edge")).admission(NOBODY)
    assert connection.admit_stream(REFLECT, []) == UNKNOWN_CALLER
    assert connection.admit_stream(REFLECT, BY_KEY) is None
    assert connection.admit_stream(WATCH, []) is None
    busy = AdmissionController(per_second=10, in_flight=100, clock=ManualClock()).admission(NOBODY)
    assert admitted(busy, 10) == 1
    assert busy.admit_stream(REFLECT, []) == TOO_FAST
    assert busy.admit_stream(WATCH, []) is None


@pytest.fixture
def keys() -> CallerKeys:
    text = f"# callers\n\nedge {digest('one')}  # first\nedge {digest('two').upper()}\nbilling {digest('three')}\n"
    return CallerKeys.parse(text, "callers")


def test_a_caller_is_known_by_its_only_key(keys: CallerKeys) -> None:
    for header, name in (
        *(((b"authorization", b"Bearer one"), "edge"), ((b"authorization", b"bearer two"), "edge")),
        *(((b"x-api-key", b"three"), "billing"), ((b"x-api-key", b"four"), ""), ((b"x-api-key", b""), "")),
        *(((b"authorization", b"one"), ""), ((b"authorization", b"Basic one"), ""), ((b"accept", b"one"), "")),
    ):
        assert keys.caller([(b":path", b"/x"), header])[0] == name, header
    assert keys.caller([(b"x-api-key", b"one"), (b"x-api-key", b"one")]) == ("", b"")
    assert keys.caller([(b"x-api-key", b"one"), (b"authorization", b"Bearer one")]) == ("", b"")


def test_a_wrong_file_is_refused_without_showing_its_content() -> None:
    for text, message in (
        *(("edge secret-key-in-plain", ":1: each line must be NAME"), ("\x00\x01", "each line must be NAME")),
        *((f"\nedge {'0' * 63}", ":2: each line must be NAME"), (f"edge one {'0' * 64}", ":1: each line must be NAME")),
        *((f"a {'0' * 64}\nb {'0' * 64}", ":2: the same key"), ("# nobody", "every request would be refused")),
        ("x" * 1_100_000, "more than"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            CallerKeys.parse(text, "callers")
        assert "secret" not in str(caught.value), text

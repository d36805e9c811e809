from __future__ import annotations

import pytest

from headgate.server.wire.http1.connection import Http1Connection, Phase
from headgate.server.wire.http1.parsing import Http1Heads
from headgate.server.wire.limits import DEFAULT, WireLimits
from headgate.server.wire.messages import DateHeader, HttpResponse

from .conversation import asked, connection, request, statuses

GET = request(line="GET /a/b?c=d&e HTTP/1.1")


def test_a_request_is_handed_out_as_it_was_sent() -> None:
    machine = connection()
    (only,) = asked(
        machine, request("X-One:  a b \t", "x-ONE: c", "Content-Length: 3", line="PUT /%7Ea//?q=%2F? HTTP/1.1") + b"abc"
    )
    assert (only.method, only.path, only.query, only.body) == (b"PUT", b"/%7Ea//", b"q=%2F?", b"abc")
    assert only.headers == [(b"host", b"api"), (b"x-one", b"a b"), (b"x-one", b"c"), (b"content-length", b"3")]


def test_a_response_has_its_length_and_a_date_and_its_headers() -> None:
    machine = connection()
    asked(machine, GET, HttpResponse(201, b"{}", ((b"content-type", b"application/json"), (b"x-a", b"b"))))
    head, _, body = machine.outgoing().partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 201 Created",
        b"date: Thu, 01 Jan 1970 00:00:00 GMT",
        b"content-type: application/json",
        b"x-a: b",
        b"content-length: 2",
    ]
    assert body == b"{}"


@pytest.mark.parametrize("status", [204, 304])
def test_some_statuses_have_no_body(status: int) -> None:
    machine = connection()
    asked(machine, GET, HttpResponse(status, b"ignored"))
    sent = machine.outgoing()
    assert sent.endswith(b"\r\n\r\n")
    assert b"content-length" not in sent


def test_an_answer_to_head_has_the_length_of_the_body_and_not_the_body() -> None:
    machine = connection()
    asked(machine, request(line="HEAD / HTTP/1.1") + GET)
    sent = machine.outgoing()
    assert statuses(sent) == [200, 200]
    assert sent.count(b"content-length: 3\r\n\r\n") == 2
    assert sent.count(b"yes") == 1


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb"])
def test_a_response_with_a_line_break_in_a_header_is_never_sent(value: bytes) -> None:
    machine = connection()
    machine.receive(GET)
    with pytest.raises(ValueError, match="line break"):
        machine.answer(0, HttpResponse(200, b"", ((b"x-a", value),)))
    assert machine.outgoing() == b""
    machine.answer(0, HttpResponse(500))
    assert statuses(machine.outgoing()) == [500]


def test_pipelined_requests_are_answered_in_their_order() -> None:
    machine = connection()
    assert len(machine.receive(GET * 4)) == 4
    machine.answer(2, HttpResponse(202))
    machine.answer(1, HttpResponse(201))
    assert machine.outgoing() == b""
    machine.answer(0, HttpResponse(200))
    assert statuses(machine.outgoing()) == [200, 201, 202]
    machine.answer(3, HttpResponse(203))
    assert statuses(machine.outgoing()) == [203]
    assert machine.in_flight == 0


def test_no_more_requests_are_in_flight_than_may_be() -> None:
    machine = connection(WireLimits(pipelined=2))
    assert len(machine.receive(GET * 5)) == 2
    assert machine.is_full
    assert machine.phase is Phase.BUSY
    assert not machine.has_more
    machine.answer(0, HttpResponse(200))
    assert machine.has_more
    assert len(machine.receive(b"")) == 1
    for number in (1, 2):
        machine.answer(number, HttpResponse(200))
    assert len(machine.receive(b"")) == 2


def test_the_answer_to_a_bad_request_waits_for_its_turn() -> None:
    machine = connection()
    assert len(machine.receive(GET + b"nonsense\r\n\r\n")) == 1
    assert machine.outgoing() == b""
    assert not machine.is_over
    machine.answer(0, HttpResponse(200))
    assert statuses(machine.outgoing()) == [200, 400]
    assert machine.is_over


def test_a_problem_says_what_is_wrong_and_that_the_connection_ends() -> None:
    machine = connection()
    asked(machine, request(host=""))
    sent = machine.outgoing()
    assert b"content-type: application/problem+json\r\n" in sent
    assert b"connection: close\r\n" in sent
    assert sent.endswith(b'{"status":400,"title":"Bad Request","detail":"There must be exactly one Host header."}')


@pytest.mark.parametrize(
    "head",
    [
        request("Connection: close", line="GET / HTTP/1.1"),
        request("Connection: x, Close", line="GET / HTTP/1.1"),
        request(line="GET / HTTP/1.0"),
        request("Connection: keep-alive", line="GET / HTTP/1.0"),
        request(line="GET / HTTP/1.0", host=""),
    ],
)
def test_the_connection_ends_with_the_response_if_the_client_wants_it_or_is_old(head: bytes) -> None:
    machine = connection()
    assert len(asked(machine, head + GET)) == 1
    assert b"connection: close\r\n" in machine.outgoing()
    assert machine.is_over
    assert machine.phase is Phase.OVER


def test_an_offer_of_another_protocol_is_not_taken() -> None:
    machine = connection()
    assert (
        len(asked(machine, request("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", line="GET / HTTP/1.1") + GET))
        == 2
    )
    assert statuses(machine.outgoing()) == [200, 200]


def test_of_an_address_the_path_is_served_and_its_host_counts() -> None:
    machine = connection()
    one, other = asked(
        machine, request(line="GET http://real:80/a?b HTTP/1.1") + request(line="GET HTTPS://real?b HTTP/1.1")
    )
    assert (one.path, one.query, one.header(b"host")) == (b"/a", b"b", b"real:80")
    assert (other.path, other.query) == (b"/", b"b")


def test_options_may_ask_for_all() -> None:
    machine = connection()
    (only,) = asked(machine, request(line="OPTIONS * HTTP/1.1"))
    assert only.path == b"*"


def test_empty_lines_before_a_request_are_ignored() -> None:
    machine = connection()
    assert len(asked(machine, b"\r\n" + GET + b"\r\n\r\n\r\n" + GET)) == 2
    assert asked(machine, b"\r") == []
    assert asked(machine, b"\n") == []
    assert machine.phase is Phase.IDLE
    assert len(asked(machine, GET)) == 1


class TestContinue:
    HEAD = request("Content-Length: 3", "Expect: 100-continue")

    def test_a_client_that_waits_is_told_to_go_on(self) -> None:
        machine = connection()
        assert machine.receive(self.HEAD) == []
        assert machine.outgoing() == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert len(asked(machine, b"abc")) == 1
        assert statuses(machine.outgoing()) == [200]

    def test_not_one_that_has_sent_the_body_already(self) -> None:
        machine = connection()
        assert len(asked(machine, self.HEAD + b"abc")) == 1
        assert statuses(machine.outgoing()) == [200]

    def test_not_before_the_requests_ahead_of_it_are_answered(self) -> None:
        machine = connection()
        machine.receive(GET + self.HEAD)
        assert machine.outgoing() == b""
        machine.answer(0, HttpResponse(200))
        assert statuses(machine.outgoing()) == [200, 100]

    def test_not_if_the_body_came_in_the_meantime(self) -> None:
        machine = connection()
        machine.receive(GET + self.HEAD)
        assert len(machine.receive(b"abc")) == 1
        for number in range(2):
            machine.answer(number, HttpResponse(200))
        assert statuses(machine.outgoing()) == [200, 200]

    def test_a_body_that_is_too_long_is_refused_before_it_is_sent(self) -> None:
        machine = connection(WireLimits(body_bytes=2))
        machine.receive(self.HEAD)
        assert statuses(machine.outgoing()) == [413]

    def test_another_expectation_is_refused(self) -> None:
        machine = connection()
        machine.receive(request("Expect: a miracle"))
        assert statuses(machine.outgoing()) == [417]


class TestLimits:
    LIMITS = WireLimits(target_bytes=50, header_bytes=200, headers=5, body_bytes=10)

    @pytest.mark.parametrize(
        ("sent", "status"),
        [
            (request(line=f"GET /{'a' * 50} HTTP/1.1"), 414),
            (f"GET /{'a' * 200}".encode(), 414),
            (request(f"X-A: {'b' * 200}"), 431),
            (b"GET / HTTP/1.1\r\nX-A: " + b"b" * 300, 431),
            (request(*["X-A: b"] * 5), 431),
            (request("Content-Length: 11"), 413),
            (request("Transfer-Encoding: chunked") + b"b\r\n", 413),
            (request("Transfer-Encoding: chunked") + b"a\r\n0123456789\r\n1\r\n", 413),
            (request("Transfer-Encoding: chunked") + b"0\r\n" + b"a: b\r\n" * 40, 431),
        ],
    )
    def test_what_is_too_big_is_refused(self, sent: bytes, status: int) -> None:
        machine = connection(self.LIMITS)
        assert asked(machine, sent) == []
        assert statuses(machine.outgoing()) == [status]
        assert machine.is_over

    def test_what_is_just_small_enough_is_served(self) -> None:
        machine = connection(self.LIMITS)
        head = request(*["X-A: b"] * 3, "Content-Length: 10", line=f"POST /{'a' * 49} HTTP/1.1")
        assert len(asked(machine, head + b"0123456789")) == 1

    def test_heads_are_remembered_up_to_a_bound(self) -> None:
        machine = connection()
        for number in range(machine._heads.REMEMBERED * 3):
            asked(machine, request(f"X-Number: {number}"))
        assert len(machine._heads._known) <= machine._heads.REMEMBERED
        asked(machine, request(f"X-Long: {'a' * machine._heads.LONGEST}"))
        assert all(len(raw) <= machine._heads.LONGEST for raw in machine._heads._known)


class TestPhases:
    """They are how a transport knows which deadline counts."""

    def test_they_follow_the_request(self) -> None:
        machine = connection()
        phases = [machine.phase]
        for piece in (b"POST", b" / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n", b"ab", b"c"):
            machine.receive(piece)
            phases.append(machine.phase)
        machine.answer(0, HttpResponse(200))
        phases.append(machine.phase)
        assert phases == [Phase.IDLE, Phase.HEADERS, Phase.BODY, Phase.BODY, Phase.BUSY, Phase.IDLE]

    @pytest.mark.parametrize("sent", [b"GET / HT", request("Content-Length: 3") + b"a"])
    def test_a_request_that_takes_too_long_is_told_so(self, sent: bytes) -> None:
        machine = connection()
        machine.receive(sent)
        machine.expire()
        assert statuses(machine.outgoing()) == [408]
        assert machine.is_over

    def test_an_idle_connection_ends_in_silence(self) -> None:
        machine = connection()
        machine.expire()
        assert machine.outgoing() == b""
        assert machine.is_over


class TestDraining:
    def test_an_idle_connection_ends(self) -> None:
        machine = connection()
        machine.drain()
        assert not machine.is_over
        machine.finish_draining()
        assert machine.is_over

    def test_the_last_response_says_that_it_is_the_last(self) -> None:
        machine = connection()
        machine.receive(GET * 2)
        machine.drain()
        machine.finish_draining()
        machine.answer(0, HttpResponse(200))
        assert b"connection: close" not in machine.outgoing()
        machine.answer(1, HttpResponse(200))
        assert b"connection: close" in machine.outgoing()
        assert machine.is_over

    def test_a_request_that_has_begun_is_answered(self) -> None:
        machine = connection()
        machine.receive(GET[:10])
        machine.finish_draining()
        assert len(asked(machine, GET[10:])) == 1
        assert b"connection: close" in machine.outgoing()
        assert machine.is_over

    def test_one_that_comes_before_the_end_is_answered(self) -> None:
        machine = connection()
        machine.drain()
        assert len(asked(machine, GET)) == 1
        assert b"connection: close" in machine.outgoing()


def test_a_few_empty_lines_before_a_request_are_ignored_and_many_are_refused() -> None:
    machine = connection()
    (only,) = asked(machine, b"\r\n" * 50 + GET)
    assert only.path == b"/a/b"
    assert asked(machine, b"\r\n" * 1000 + GET) == []
    assert statuses(machine.outgoing()) == [200, 400]


@pytest.mark.parametrize(
    "data",
    [
        request("X: a\x01b", line="GET /ask HTTP/1.1"),
        request("X: a\x01b", line="GET /ask?a=b HTTP/1.1"),
        request(*[f"X-{n}: a" for n in range(110)], line="GET /ask HTTP/1.1"),
        request(*[f"X-{n}: {'a' * 1700}" for n in range(10)], line="GET /ask HTTP/1.1"),
        request(*[f"X-{n}: {'a' * 1700}" for n in range(10)], line="GET /ask HTTP/1.1")[:-4],
        request("X: a\nb", line="GET /ask HTTP/1.1")[:-4],
        request("Expect: wonders", line="GET /ask HTTP/1.1"),
        request("Content-Length: 9999999", line="POST /ask HTTP/1.1"),
        request("Transfer-Encoding: chunked", line="POST /ask HTTP/1.1") + b"x\r\n",
        request("Transfer-Encoding: x", line="POST /ask HTTP/1.1"),
    ],
)
def test_what_is_not_understood_has_the_status_of_its_path_where_there_is_one(data: bytes) -> None:
    """The document still says what was wrong; at another path the status is HTTP's own."""
    machine = Http1Connection(DEFAULT, Http1Heads(DEFAULT), DateHeader(), statuses={b"/ask": 403})
    assert asked(machine, data) == []
    answer = machine.outgoing()
    assert statuses(answer) == [403]
    assert b"cache-control: no-store\r\n" in answer
    other = connection()
    asked(other, data)
    (status,) = statuses(other.outgoing())
    assert f'"status":{status}'.encode() in answer.replace(b" ", b"")
    assert status != 403


def test_what_takes_too_long_has_the_status_of_its_path_too() -> None:
    for data in (b"GET /ask HTTP/1.1\r\nHost: ", request("Content-Length: 9", line="POST /ask HTTP/1.1")):
        machine = Http1Connection(DEFAULT, Http1Heads(DEFAULT), DateHeader(), statuses={b"/ask": 403})
        machine.receive(data)
        machine.expire()
        assert statuses(machine.outgoing()) == [403]

from __future__ import annotations

import pytest

from headgate.server.wire.http1.connection import Http1Connection, Phase
from headgate.server.wire.http1.parsing import MOST_CACHED, Http1Heads
from headgate.server.wire.limits import DEFAULT, WireLimits
from headgate.server.wire.messages import DateHeader, HttpResponse

from .conversation import connection, exchange, request, statuses

GET = request(line="GET /a/b?c=d&e HTTP/1.1")
WAITING = request("Content-Length: 3", "Expect: 100-continue")
ANSWER = HttpResponse(200)


def test_a_request_is_parsed_as_sent() -> None:
    head = request("X-One:  a b \t", "x-ONE: c", "Content-Length: 3", line="PUT /%7Ea//?q=%2F? HTTP/1.1")
    (only,) = exchange(connection(), head + b"abc")
    assert (only.method, only.path, only.query, only.body) == (b"PUT", b"/%7Ea//", b"q=%2F?", b"abc")
    assert only.headers == [(b"host", b"api"), (b"x-one", b"a b"), (b"x-one", b"c"), (b"content-length", b"3")]


def test_a_response_has_its_length_and_a_date_and_its_headers() -> None:
    machine = connection()
    exchange(machine, GET, HttpResponse(201, b"{}", ((b"content-type", b"application/json"), (b"x-a", b"b"))))
    assert machine.outgoing().split(b"\r\n") == [
        *(b"HTTP/1.1 201 Created", b"date: Thu, 01 Jan 1970 00:00:00 GMT", b"content-type: application/json"),
        *(b"x-a: b", b"content-length: 2", b"", b"{}"),
    ]


def test_some_statuses_have_no_body_and_an_answer_to_head_only_its_length() -> None:
    for status in (204, 304):
        machine = connection()
        exchange(machine, GET, HttpResponse(status, b"ignored"))
        sent = machine.outgoing()
        assert (sent.endswith(b"\r\n\r\n"), b"content-length" in sent) == (True, False), status
    machine = connection()
    exchange(machine, request(line="HEAD / HTTP/1.1") + GET)
    sent = machine.outgoing()
    assert (statuses(sent), sent.count(b"content-length: 3\r\n\r\n"), sent.count(b"yes")) == ([200, 200], 2, 1)


def test_a_response_with_a_line_break_in_a_header_is_never_sent() -> None:
    for value in (b"a\r\nset-cookie: b", b"a\nb", b"a\rb"):
        machine = connection()
        machine.receive(GET)
        with pytest.raises(ValueError, match="line break"):
            machine.answer(0, HttpResponse(200, b"", ((b"x-a", value),)))
        assert machine.outgoing() == b"", value
        machine.answer(0, HttpResponse(500))
        assert statuses(machine.outgoing()) == [500], value


def test_pipelined_requests_are_answered_in_their_order() -> None:
    machine = connection()
    assert len(machine.receive(GET * 4)) == 4
    machine.answer(2, HttpResponse(202))
    machine.answer(1, HttpResponse(201))
    assert machine.outgoing() == b""
    machine.answer(0, HttpResponse(200))
    assert statuses(machine.outgoing()) == [200, 201, 202]
    machine.answer(3, HttpResponse(203))
    assert (statuses(machine.outgoing()), machine.in_flight) == ([203], 0)


def test_requests_in_flight_are_bounded() -> None:
    machine = connection(WireLimits(pipelined=2))
    assert len(machine.receive(GET * 5)) == 2
    assert (machine.is_full, machine.phase, machine.has_more) == (True, Phase.BUSY, False)
    machine.answer(0, ANSWER)
    assert machine.has_more
    assert len(machine.receive(b"")) == 1
    for number in (1, 2):
        machine.answer(number, ANSWER)
    assert len(machine.receive(b"")) == 2


def test_the_answer_to_a_bad_request_waits_for_its_turn() -> None:
    machine = connection()
    assert len(machine.receive(GET + b"nonsense\r\n\r\n")) == 1
    assert (machine.outgoing(), machine.is_over) == (b"", False)
    machine.answer(0, ANSWER)
    assert (statuses(machine.outgoing()), machine.is_over) == ([200, 400], True)


def test_a_refusal_has_a_problem_document_and_closes() -> None:
    machine = connection()
    exchange(machine, request(host=""))
    sent = machine.outgoing()
    assert b"content-type: application/problem+json\r\n" in sent
    assert b"connection: close\r\n" in sent
    assert sent.endswith(b'{"status":400,"title":"Bad Request","detail":"There must be exactly one Host header."}')


def test_the_connection_ends_with_the_response_if_the_client_wants_it_or_is_old() -> None:
    new, old = "GET / HTTP/1.1", "GET / HTTP/1.0"
    for head in (
        *[request(f"Connection: {value}", line=new) for value in ("close", "x, Close")],
        *[request(line=old), request("Connection: keep-alive", line=old), request(line=old, host="")],
    ):
        machine = connection()
        assert len(exchange(machine, head + GET)) == 1, head
        assert b"connection: close\r\n" in machine.outgoing(), head
        assert (machine.is_over, machine.phase) == (True, Phase.OVER), head


def test_an_offer_of_another_protocol_is_not_taken() -> None:
    machine, offer = connection(), request("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", line="GET / HTTP/1.1")
    assert len(exchange(machine, offer + GET)) == 2
    assert statuses(machine.outgoing()) == [200, 200]


def test_of_an_address_the_path_is_served_and_its_host_counts_and_options_may_be_for_all() -> None:
    lines = "GET http://real:80/a?b HTTP/1.1", "GET HTTPS://real?b HTTP/1.1", "OPTIONS * HTTP/1.1"
    one, other, options = exchange(connection(), b"".join([request(line=line) for line in lines]))
    assert (one.path, one.query, one.header(b"host")) == (b"/a", b"b", b"real:80")
    assert (other.path, other.query, options.path) == (b"/", b"b", b"*")


def test_a_few_empty_lines_before_a_request_are_ignored_and_many_are_refused() -> None:
    machine = connection()
    assert len(exchange(machine, b"\r\n" + GET + b"\r\n\r\n\r\n" + GET)) == 2
    assert [exchange(machine, b"\r"), exchange(machine, b"\n"), machine.phase] == [[], [], Phase.IDLE]
    assert len(exchange(machine, b"\r\n" * 50 + GET)) == 1
    assert exchange(machine, b"\r\n" * 1000 + GET) == []
    assert statuses(machine.outgoing()) == [200, 200, 200, 400]


class TestContinue:
    def test_a_waiting_client_gets_100_continue(self) -> None:
        machine = connection()
        assert machine.receive(WAITING) == []
        assert machine.outgoing() == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert len(exchange(machine, b"abc")) == 1
        assert statuses(machine.outgoing()) == [200]

    def test_a_client_that_has_sent_its_body_gets_no_100_continue(self) -> None:
        machine = connection()
        assert len(exchange(machine, WAITING + b"abc")) == 1
        assert statuses(machine.outgoing()) == [200]
        machine = connection()
        machine.receive(GET + WAITING)
        assert len(machine.receive(b"abc")) == 1
        for number in range(2):
            machine.answer(number, ANSWER)
        assert statuses(machine.outgoing()) == [200, 200]

    def test_no_100_continue_is_sent_before_earlier_responses(self) -> None:
        machine = connection()
        machine.receive(GET + WAITING)
        assert machine.outgoing() == b""
        machine.answer(0, ANSWER)
        assert statuses(machine.outgoing()) == [200, 100]

    def test_a_body_that_is_too_long_is_refused_before_it_is_sent_and_so_is_another_expectation(self) -> None:
        for limits, sent, status in (
            (WireLimits(body_bytes=2), WAITING, 413),
            (DEFAULT, request("Expect: a miracle"), 417),
        ):
            machine = connection(limits)
            machine.receive(sent)
            assert statuses(machine.outgoing()) == [status]


class TestLimits:
    LIMITS = WireLimits(target_bytes=50, header_bytes=200, headers=5, body_bytes=10)

    def test_oversized_parts_are_refused(self) -> None:
        chunked = request("Transfer-Encoding: chunked")
        for sent, status in (
            (request(line=f"GET /{'a' * 50} HTTP/1.1"), 414),
            (f"GET /{'a' * 200}".encode(), 414),
            (request(f"X-A: {'b' * 200}"), 431),
            (b"GET / HTTP/1.1\r\nX-A: " + b"b" * 300, 431),
            (request(*["X-A: b"] * 5), 431),
            (request("Content-Length: 11"), 413),
            (chunked + b"b\r\n", 413),
            (chunked + b"a\r\n0123456789\r\n1\r\n", 413),
            (chunked + b"0\r\n" + b"a: b\r\n" * 40, 431),
        ):
            machine = connection(self.LIMITS)
            assert exchange(machine, sent) == [], sent
            assert (statuses(machine.outgoing()), machine.is_over) == ([status], True), sent
        head = request(*["X-A: b"] * 3, "Content-Length: 10", line=f"POST /{'a' * 49} HTTP/1.1")
        assert len(exchange(connection(self.LIMITS), head + b"0123456789")) == 1, "just small enough"

    def test_the_cache_of_heads_is_bounded(self) -> None:
        machine = connection()
        for number in range(MOST_CACHED * 3):
            exchange(machine, request(f"X-Number: {number}"))
        assert len(machine._heads) <= MOST_CACHED
        exchange(machine, request(f"X-Long: {'a' * 3000}"))
        assert not any(len(raw) > 2048 for raw in machine._heads)


def test_a_slow_request_gets_408_and_an_idle_connection_nothing() -> None:
    for sent, expected in ((b"GET / HT", [408]), (request("Content-Length: 3") + b"a", [408]), (b"", [])):
        machine = connection()
        machine.receive(sent)
        machine.expire()
        assert (statuses(machine.outgoing()), machine.is_over) == (expected, True), sent


class TestDraining:
    def test_the_last_response_announces_the_close(self) -> None:
        machine = connection()
        machine.receive(GET * 2)
        machine.drain()
        machine.finish_draining()
        machine.answer(0, ANSWER)
        assert b"connection: close" not in machine.outgoing()
        machine.answer(1, ANSWER)
        assert (b"connection: close" in machine.outgoing(), machine.is_over) == (True, True)

    def test_a_request_that_has_begun_or_comes_before_the_end_is_answered(self) -> None:
        begun, early = connection(), connection()
        begun.receive(GET[:10])
        begun.finish_draining()
        early.drain()
        for machine, rest in ((begun, GET[10:]), (early, GET)):
            assert len(exchange(machine, rest)) == 1
            assert b"connection: close" in machine.outgoing()
        assert begun.is_over


LARGE = request(*[f"X-{n}: {'a' * 1700}" for n in range(10)], line="GET /ask HTTP/1.1")


@pytest.mark.parametrize(
    "data",
    [
        request("X: a\x01b", line="GET /ask HTTP/1.1"),
        request("X: a\x01b", line="GET /ask?a=b HTTP/1.1"),
        request(*[f"X-{n}: a" for n in range(110)], line="GET /ask HTTP/1.1"),
        LARGE,
        LARGE[:-4],
        request("X: a\nb", line="GET /ask HTTP/1.1")[:-4],
        request("Expect: wonders", line="GET /ask HTTP/1.1"),
        request("Content-Length: 9999999", line="POST /ask HTTP/1.1"),
        request("Transfer-Encoding: chunked", line="POST /ask HTTP/1.1") + b"x\r\n",
        request("Transfer-Encoding: x", line="POST /ask HTTP/1.1"),
        b"GET /ask HTTP/1.1\r\nHost: ",
        request("Content-Length: 9", line="POST /ask HTTP/1.1"),
    ],
)
def test_malformed_and_slow_requests_have_the_status_of_their_path(data: bytes) -> None:
    """The document has the usual problem; other paths have the usual status."""
    answers = []
    for given in ({b"/ask": 403}, {}):
        machine = Http1Connection(DEFAULT, Http1Heads(DEFAULT), DateHeader(), statuses=given)
        assert exchange(machine, data) == []
        machine.expire()
        answers.append(machine.outgoing())
    answer, usual = answers
    assert (statuses(answer), b"cache-control: no-store\r\n" in answer) == ([403], True)
    (status,) = statuses(usual)
    assert status != 403
    assert f'"status":{status}'.encode() in answer.replace(b" ", b"")

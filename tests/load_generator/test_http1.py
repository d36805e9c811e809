"""The client of HTTP/1.1: strict, bounded, and it never takes anything else for an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.load_generator.http1 import MOST_BODY, MOST_HEADERS, Http1
from headgate.load_generator.outcomes import ALLOWED, DENIED, NOT_UNDERSTOOD, SHED, BadAnswer, Outcome, failed
from headgate.load_generator.questions import Asked, http_question
from headgate.load_generator.targets import Target

QUESTION = http_question(Target("127.0.0.1", 8080), Asked())
YES = b'{"allowed": true}'


def answer(body: bytes = YES, status: int = 200, *fields: bytes) -> bytes:
    lines = [b"HTTP/1.1 %d Any" % status, b"content-length: %d" % len(body), *fields]
    return b"\r\n".join([*lines, b"", body])


def asked() -> Http1:
    client = Http1(QUESTION)
    assert (client.greeting(), client.room()) == (b"", 1)
    assert client.ask(5) == (1, QUESTION.filled(5))
    assert client.room() == 0
    return client


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        (answer(), ALLOWED),
        (answer(b'{"allowed": false}'), DENIED),
        (answer(b"refused", 429), DENIED),
        (answer(b"busy", 503), SHED),
        (answer(b"", 500), failed("HTTP 500")),
        (answer(b"moved", 301), failed("HTTP 301")),
        (answer(b"hello"), NOT_UNDERSTOOD),
        (b"HTTP/1.1 204 None\r\n\r\n", failed("HTTP 204")),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + answer(), ALLOWED),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n11\r\n" + YES + b"\r\n0\r\n\r\n", ALLOWED),
    ],
)
def test_one_answer_whole_and_byte_by_byte(data: bytes, outcome: Outcome) -> None:
    assert asked().receive(data) == [(1, outcome)]
    client = asked()
    assert [end for byte in data for end in client.receive(bytes([byte]))] == [(1, outcome)]
    assert (client.room(), client.reply()) == (1, b"")
    assert client.ask(6)[0] == 2


def test_a_connection_that_the_server_closes_is_over() -> None:
    client = asked()
    assert client.receive(answer(YES, 200, b"connection: close")) == [(1, ALLOWED)]
    assert client.is_over
    assert client.room() == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\0\1\2",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        answer() + answer(),
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * MOST_HEADERS,
        answer(b"x" * (MOST_BODY + 1)),
    ],
)
def test_what_is_not_the_protocol_ends_it(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        asked().receive(data)


def test_an_answer_that_nobody_asked_for_ends_it() -> None:
    with pytest.raises(BadAnswer):
        Http1(QUESTION).receive(answer())


@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([answer(), b"HTTP/1.1 ", b"200 OK\r\n", b"\r\n"]))))
def test_any_bytes_are_answers_or_bad(parts: list[bytes]) -> None:
    client, ends = asked(), 0
    try:
        for part in parts:
            ends += len(client.receive(part))
    except BadAnswer:
        pass
    assert ends <= 1

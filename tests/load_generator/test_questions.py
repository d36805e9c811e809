"""Questions differ in their user only, and answers are read strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import UsageError
from headgate.load_generator.outcomes import (
    ALLOWED,
    ALLOWED_DEGRADED,
    DENIED,
    DENIED_DEGRADED,
    NOT_UNDERSTOOD,
    UNMATCHED,
    Outcome,
)
from headgate.load_generator.protobuf import number, text
from headgate.load_generator.questions import (
    Asked,
    Service,
    caller_fields,
    grpc_method,
    http_question,
    read_check,
    read_http,
    read_rls,
)
from headgate.load_generator.targets import Target

TARGET = Target("127.0.0.1", 8080)
METADATA = text(6, text(1, text(1, b"degraded") + text(2, text(3, b"storage_unavailable"))))


def test_over_http() -> None:
    question = http_question(TARGET, Asked('/a "b"/\u00e9', "POST", cost=3), "secret")
    head, _, body = question.filled(42).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /api/v1/rate-limit/check HTTP/1.1"
    assert {"host: 127.0.0.1:8080", "authorization: Bearer secret", f"content-length: {len(body)}"} <= set(lines)
    assert json.loads(body) == {
        "principal": {"user": "load-0000042"},
        "endpoint": '/a "b"/\u00e9',
        "method": "POST",
        "cost": 3,
    }
    assert question.size == len(question.filled(0)) == len(question.filled(9_999_999))


@pytest.mark.parametrize("service", Service)
def test_over_grpc_all_users_are_as_long(service: Service) -> None:
    message = grpc_method(service, Asked()).message
    assert b"load-0000007" in message.filled(7)
    assert message.size == len(message.filled(0)) == len(message.filled(9_999_999))


@pytest.mark.parametrize(
    "asked", [{"path": ""}, {"path": "/\n"}, {"path": "/" * 3000}, {"method": "\0"}, {"domain": ""}]
)
def test_what_cannot_be_asked(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(asked))):
        Asked(**asked)


@pytest.mark.parametrize("key", ["", "a\r\nb", "\u00e9", "x" * 3000])
def test_a_caller_key_cannot_smuggle_headers(key: str) -> None:
    with pytest.raises(UsageError, match="caller key"):
        caller_fields(key)


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (b'{"allowed": true}', ALLOWED),
        (b'{"allowed": true, "matched": false}', UNMATCHED),
        (b'{"allowed": false, "degraded": false, "more": [1]}', DENIED),
        (b'{"allowed": true, "degraded": true}', ALLOWED_DEGRADED),
        (b'{"allowed": false, "degraded": "storage_unavailable"}', DENIED_DEGRADED),
        (b'{"allowed": 1}', NOT_UNDERSTOOD),
        (b"{}", NOT_UNDERSTOOD),
        (b"", NOT_UNDERSTOOD),
        (b"\xff", NOT_UNDERSTOOD),
        (b"<html>", NOT_UNDERSTOOD),
    ],
)
def test_answers_of_http(body: bytes, outcome: Outcome) -> None:
    assert read_http(body) == outcome


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        (number(1, 1) + text(2, number(1, 1) + text(2, b"")), ALLOWED),
        (number(1, 1) + text(2, number(1, 1)), UNMATCHED),
        (number(1, 2) + text(2, b"\x08\x02"), DENIED),
        (number(1, 1) + METADATA, ALLOWED_DEGRADED),
        (number(1, 2) + METADATA, DENIED_DEGRADED),
        (b"", NOT_UNDERSTOOD),
        (number(1, 0), NOT_UNDERSTOOD),
        (b"\x08", NOT_UNDERSTOOD),
        (text(1, b"\x01"), NOT_UNDERSTOOD),
    ],
)
def test_answers_of_envoys_service(message: bytes, outcome: Outcome) -> None:
    assert read_rls(message) == outcome


@given(st.binary())
def test_no_bytes_break_a_reader(message: bytes) -> None:
    for read in (read_http, read_rls, read_check):
        assert isinstance(read(message), Outcome)


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        (number(1, 1) + number(3, 5) + text(7, b"rule") + number(11, 1), ALLOWED),
        (number(1, 1), UNMATCHED),
        (number(3, 5) + number(6, 9), DENIED),
        (number(1, 1) + number(9, 1), ALLOWED_DEGRADED),
        (number(9, 1), DENIED_DEGRADED),
        (number(1, 2), NOT_UNDERSTOOD),
        (text(1, b"yes"), NOT_UNDERSTOOD),
        (b"\x08", NOT_UNDERSTOOD),
    ],
)
def test_answers_of_our_own_service(message: bytes, outcome: Outcome) -> None:
    assert read_check(message) == outcome

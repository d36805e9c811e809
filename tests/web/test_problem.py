"""Bodies of refusals and errors."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota
from headgate.web import problem
from headgate.web.headers import ResponseHeaders
from headgate.web.problem import ProblemDocument, bad_request, of_status, plain, quota_exceeded, reduced_capacity, shown
from tests.web import plain as plain_form

SECOND = 1_000_000
MINUTE, DAY = Quota.parse("100/minute; 5000/day")
REFUSED = Decision(False, 100, 0, 11_500_000, 60 * SECOND, Pressure.THROTTLED, MINUTE)
CALM = Decision(True, 5000, 4000, 0, 17_280 * SECOND, Pressure.NORMAL, DAY)
BOTH = msgspec.structs.replace(REFUSED, parts=(CALM, REFUSED), index=1, degraded="circuit_open")


def body(made: ProblemDocument) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(made.encode())
    return decoded


def test_the_body_of_a_refusal() -> None:
    assert body(quota_exceeded(REFUSED, ["orders-user"])) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota Exceeded",
        "status": 429,
        "detail": "orders-user allows 100/minute. Retry in 12 s.",
        "violated-policies": ["orders-user"],
        "limit": 100,
        "remaining": 0,
        "retry_after": 12,
        "limits": [
            {
                "policy": "orders-user",
                "limit": 100,
                "remaining": 0,
                "reset_after": 60,
                "retry_after": 12,
                "state": "throttled",
            }
        ],
    }


def test_of_several_limits_only_those_that_refuse_are_violated() -> None:
    made = body(quota_exceeded(BOTH, ["daily", "minute"], instance="/requests/7"))
    assert made["violated-policies"] == ["minute"]
    assert (made["degraded"], made["instance"]) == ("circuit_open", "/requests/7")


def test_body_and_headers_agree() -> None:
    headers = dict(ResponseHeaders().of(BOTH, ["a", "b"], now=1))
    assert str(body(quota_exceeded(BOTH, ["a", "b"]))["retry_after"]) == headers["Retry-After"]
    assert body(quota_exceeded(REFUSED))["violated-policies"] == ["default"]
    assert body(quota_exceeded(BOTH))["violated-policies"] == ["default#2"]


def test_the_body_of_a_bad_request() -> None:
    made = body(bad_request("cost must be a whole number", [("/cost", "is -1"), ("/principal", "is missing")]))
    assert made == {
        "status": 400,
        "title": "Bad Request",
        "detail": "cost must be a whole number",
        "errors": [{"pointer": "/cost", "detail": "is -1"}, {"pointer": "/principal", "detail": "is missing"}],
    }


def test_bodies_of_other_statuses() -> None:
    assert body(of_status(404)) == {"status": 404, "title": "Not Found"}
    assert body(of_status(403, "not yours"))["detail"] == "not yours"
    assert problem.CONTENT_TYPE == "application/problem+json"


def test_values_of_a_request_are_quoted() -> None:
    texts = ("abc", "'abc'"), ("a'b\r\n\x1b", '"a\'b\\r\\n\\x1b"'), ("é\u202e", "'\\xe9\\u202e'"), (b"\xff", "b'\\xff'")
    long = ("x" * 61, "'" + "x" * 50 + "'... (61 characters)"), (["y" * 1000], "['" + "y" * 238 + "...")
    for value, text in (*texts, (-1, "-1"), *long):
        assert shown(value) == text


def test_markup_is_escaped_and_texts_have_an_end() -> None:
    encoded = bad_request("</script><img src=x onerror=alert(1)>&amp;").encode()
    assert not re.search(rb"[<>&]", encoded)
    assert json.loads(encoded)["detail"] == "</script><img src=x onerror=alert(1)>&amp;"
    assert (len(plain("x" * 1_000_000)), plain("a" * 1000)) == (problem.LONGEST, "a" * 1000)


anything = st.text(max_size=60) | st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"]), max_size=20)


@given(anything, anything, anything, anything)
def test_no_text_gets_out_unescaped(detail: str, pointer: str, instance: str, name: str) -> None:
    for made in (
        bad_request(detail, [(pointer, detail)], instance=instance),
        of_status(409, detail, instance=instance),
        quota_exceeded(REFUSED, [name], instance=instance),
        reduced_capacity(REFUSED, [name], instance=instance),
    ):
        encoded = made.encode()
        assert encoded.decode().isprintable()
        assert not re.search(rb"[<>&]", encoded)
        texts = [value for value in json.loads(encoded).values() if isinstance(value, str)]
        assert all(text.isprintable() for text in texts)


@given(plain_form.decisions())
def test_prepared_parts_make_the_same_output_as_a_plain_writer(decision: Decision) -> None:
    names = ["orders", "da%ily", "orders", "x"][: len(decision.limits)]
    expected = json.dumps(plain_form.refusal(decision, names), separators=(",", ":")).encode()
    if not decision.allowed:
        assert quota_exceeded(decision, names).encode() == expected
    ours = json.dumps(plain_form.refusal(decision, names, is_ours=True), separators=(",", ":")).encode()
    assert reduced_capacity(decision, names).encode() == ours

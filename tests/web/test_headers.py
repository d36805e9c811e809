"""The response headers of a decision."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limiter
from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota
from headgate.server.rls import codec
from headgate.stores.memory import MemoryStore
from headgate.testing import ManualClock
from headgate.web.errors import InvalidHeader, InvalidSettings
from headgate.web.headers import (
    EXPOSED,
    HeaderWriter,
    ResponseHeaders,
    Spelling,
    as_bytes,
    as_line,
    most_shown,
    policy_names,
    raw,
    retry_after_s,
)
from headgate.web.ietf import Headers
from tests.web import plain

SECOND = 1_000_000
QUOTA = Quota.parse("100/minute")[0]
CALM = Decision(True, 100, 88, 0, 7_200_001, Pressure.NORMAL, QUOTA)
WARNED = msgspec.structs.replace(CALM, remaining=12, state=Pressure.WARNING)
REFUSED = Decision(False, 100, 0, 600_000, 60 * SECOND, Pressure.THROTTLED, QUOTA)
NOW = 1_800_000_000 * SECOND
WRITE = ResponseHeaders(reset_format="seconds")


def of(decision: Decision, names: Sequence[str] = ("orders",), **settings: Any) -> dict[str, str]:
    return dict(ResponseHeaders(**settings).of(decision, names, now=NOW))


def test_an_admission_says_what_is_left() -> None:
    assert WRITE.of(CALM, ["orders"]) == [
        ("X-RateLimit-Limit", "100"),
        ("X-RateLimit-Remaining", "88"),
        ("X-RateLimit-Reset", "8"),
        ("RateLimit-Policy", '"orders";q=100;w=60'),
        ("RateLimit", '"orders";r=88;t=8'),
    ]


def test_a_refusal_says_when_to_come_back_and_is_not_cached() -> None:
    assert WRITE.of(REFUSED, ["orders"]) == [
        ("X-RateLimit-Limit", "100"),
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Reset", "60"),
        ("X-RateLimit-State", "throttled"),
        ("Retry-After", "1"),
        ("Cache-Control", "no-store"),
        ("RateLimit-Policy", '"orders";q=100;w=60'),
        ("RateLimit", '"orders";r=0;t=1'),
    ]


@pytest.mark.parametrize(
    ("retry_us", "seconds"), [(0, 1), (1, 1), (999_999, 1), (SECOND, 1), (SECOND + 1, 2), (90 * SECOND, 90)]
)
def test_retry_after_is_rounded_up_and_at_least_one(retry_us: int, seconds: int) -> None:
    refused = msgspec.structs.replace(REFUSED, retry_after_us=retry_us)
    assert retry_after_s(refused) == seconds
    assert of(refused)["Retry-After"] == str(seconds)


def test_a_warning_is_a_header() -> None:
    assert "X-RateLimit-State" not in of(CALM)
    assert of(WARNED)["X-RateLimit-State"] == "warning"
    assert of(REFUSED)["X-RateLimit-State"] == "throttled"


def test_the_state_is_the_worst_among_the_limits() -> None:
    """The most restrictive limit may be calm while another, with a lower threshold, is not."""
    for states, expected in [
        ((CALM, WARNED), "warning"),
        ((CALM, CALM), None),
        ((WARNED, REFUSED, CALM), "throttled"),
    ]:
        several = msgspec.structs.replace(CALM, made_of=states)
        assert of(several, "abc"[: len(states)]).get("X-RateLimit-State") == expected


def test_a_degraded_answer_says_so_and_why() -> None:
    headers = of(msgspec.structs.replace(CALM, degraded="storage_unavailable"))
    assert headers["X-RateLimit-Degraded"] == "true"
    assert headers["X-RateLimit-Degraded-Reason"] == "storage_unavailable"
    assert not [name for name in of(CALM) if "Degraded" in name]


def test_reset_is_a_time_by_default() -> None:
    headers = dict(ResponseHeaders().of(CALM, ["p"], now=NOW))
    assert headers["X-RateLimit-Reset"] == "1800000008"
    assert headers["RateLimit"] == '"p";r=88;t=8'


@pytest.mark.parametrize(("us", "text"), [(1, "0.000001"), (1_500_000, "1.5"), (20 * SECOND, "20")])
def test_a_place_in_a_queue_is_told_in_seconds(us: int, text: str) -> None:
    assert of(msgspec.structs.replace(CALM, delay_us=us))["X-RateLimit-Delay"] == text
    assert "X-RateLimit-Delay" not in of(CALM)


def test_a_time_needs_the_time() -> None:
    with pytest.raises(InvalidHeader, match=r"now=clock.now\(\)"):
        ResponseHeaders().of(CALM, ["p"])


def test_the_reset_of_a_fixed_window_does_not_wobble() -> None:
    clock = ManualClock(NOW)
    limiter = Limiter("1000/minute fixed_window", store=MemoryStore(clock=clock))
    write, seen = ResponseHeaders(), set()
    for _ in range(59):
        seen.add(dict(write.of(limiter.check("u"), now=clock.now()))["X-RateLimit-Reset"])
        clock.advance(1.0)
    assert seen == {"1800000060"}


def test_parts_can_be_switched_off() -> None:
    assert list(of(CALM, ietf="off")) == ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]
    assert list(of(CALM, legacy=False)) == ["RateLimit-Policy", "RateLimit"]
    assert list(of(REFUSED, legacy=False, ietf="off")) == ["X-RateLimit-State", "Retry-After", "Cache-Control"]


def test_another_version_can_be_plugged_in() -> None:
    def future(limits: Sequence[Decision], names: Sequence[str], partitions: Sequence[bytes] = ()) -> Headers:
        return [("RateLimit", f'"{names[0]}";a={limits[0].remaining}') for _ in range(1 - len(partitions))]

    assert ResponseHeaders(future).of(CALM, ["p"], now=NOW)[-1] == ("RateLimit", '"p";a=88')


def test_partitions_are_passed_on() -> None:
    assert WRITE.of(CALM, ["p"], partitions=[b"abc"])[-1] == ("RateLimit", '"p";r=88;t=8;pk=:YWJj:')


def test_another_quota_under_the_same_name_is_noticed() -> None:
    """Users with overrides share a rule's id, and not its numbers."""
    for text, policy in [("1/s", '"p";q=1;w=1'), ("2/s", '"p";q=2;w=1'), ("1/s", '"p";q=1;w=1')] * 2:
        (quota,) = Quota.parse(text)
        headers = dict(WRITE.of(Decision(True, quota.capacity, 0, 0, 0, Pressure.NORMAL, quota), ["p"]))
        assert (headers["X-RateLimit-Limit"], headers["RateLimit-Policy"]) == (text[0], policy)


def test_what_is_remembered_is_bounded() -> None:
    write = ResponseHeaders(reset_format="seconds")
    for number in range(5000):
        assert dict(write.of(CALM, [f"p{number}"]))["RateLimit-Policy"] == f'"p{number}";q=100;w=60'
    assert len(write._prepared) <= 4096


def test_fields_are_the_same_in_every_spelling() -> None:
    writer = HeaderWriter(ResponseHeaders(), as_bytes)
    for decision in (CALM, WARNED, REFUSED, msgspec.structs.replace(REFUSED, degraded="x", delay_us=1)):
        reset_at = -(-(NOW + decision.reset_after_us) // 1_000_000)
        written = writer.write(decision, writer.prepare("orders", QUOTA), reset_at)
        assert written == raw(ResponseHeaders().of(decision, ["orders"], now=NOW))


@pytest.mark.parametrize("spelling", [as_line, codec.header])
@pytest.mark.parametrize("settings", [{}, {"reset_format": "seconds"}, {"legacy": False}, {"ietf": "off"}])
def test_joined_fields_are_those_that_are_written_one_by_one(
    spelling: Spelling[bytes], settings: dict[str, Any]
) -> None:
    writer = HeaderWriter(ResponseHeaders(**settings), spelling)
    limit = writer.prepare('100 %b "0"', QUOTA)
    for decision in (CALM, WARNED, REFUSED):
        for remaining, us in [(0, 1), (7, 10_000_001), (12, 0), (10**15 - 1, 10**15), (10**15, 59_000_000)]:
            wait = 0 if decision.allowed else us
            each = msgspec.structs.replace(decision, remaining=remaining, reset_after_us=us, retry_after_us=wait)
            for one in (each, msgspec.structs.replace(each, delay_us=us, degraded="away")):
                for reset_at in (1_800_000_000, 7):
                    assert writer.joined(one, limit, reset_at) == b"".join(writer.write(one, limit, reset_at))


def test_of_too_many_limits_the_one_that_decides_is_shown() -> None:
    several = msgspec.structs.replace(REFUSED, made_of=(CALM, REFUSED), index=1)
    assert most_shown(several, ["a", "b"]) == (several, ["a", "b"])
    assert most_shown(several, [f"{number}" for number in range(21)]) == (REFUSED, ("1",))


def test_limits_without_names_get_some() -> None:
    assert of(CALM, ())["RateLimit"] == '"default";r=88;t=8'
    assert of(msgspec.structs.replace(CALM, made_of=(CALM, CALM)), ())["RateLimit"] == (
        '"default";r=88;t=8, "default#2";r=88;t=8'
    )


def test_the_windows_of_one_rule_are_told_apart() -> None:
    assert policy_names(["a", "b"], 2) == ["a", "b"]
    assert policy_names(["a", "b", "a", "a"], 4) == ["a", "b", "a#2", "a#3"]


def test_names_must_be_as_many_as_limits() -> None:
    with pytest.raises(InvalidHeader, match="1 limits need 1 names, got 2"):
        WRITE.of(CALM, ["a", "b"])


@pytest.mark.parametrize("text", ["a\r\nX-Evil: 1", "a\nb", "a\x00", "\u202e", "é"])
def test_nothing_can_be_injected(text: str) -> None:
    with pytest.raises(InvalidHeader):
        WRITE.of(CALM, [text])
    with pytest.raises(InvalidHeader):
        WRITE.of(msgspec.structs.replace(CALM, degraded=text), ["p"])


@pytest.mark.parametrize(
    "settings", [{"reset_format": "delta"}, {"reset_format": None}, {"ietf": "draft-99"}, {"ietf": ""}]
)
def test_settings_that_do_not_exist_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match="must be"):
        ResponseHeaders(**settings)


def test_as_bytes_names_are_in_lower_case() -> None:
    assert raw([("X-RateLimit-Limit", "1"), ("X-Other", "2")]) == [(b"x-ratelimit-limit", b"1"), (b"x-other", b"2")]


def test_browsers_may_be_shown_all_of_them() -> None:
    degraded = msgspec.structs.replace(REFUSED, degraded="x", delay_us=1)
    assert set(of(degraded)) - {"Cache-Control"} == set(EXPOSED.split(", "))


def test_a_real_decision_of_several_limits() -> None:
    limiter = Limiter("2/s; 5/minute", store=MemoryStore(clock=ManualClock(0)))
    names = ["per-second", "per-minute"]
    assert dict(WRITE.of(limiter.check("u"), names))["RateLimit"] == '"per-second";r=1;t=1, "per-minute";r=4;t=12'
    limiter.check("u")
    refused = dict(WRITE.of(limiter.check("u"), names))
    assert (refused["Retry-After"], refused["RateLimit"]) == ("1", '"per-second";r=0;t=1, "per-minute";r=3;t=24')


micros = st.integers(0, 10**15)
decisions = st.tuples(
    st.booleans(),
    st.integers(1, 10**15),
    st.integers(0, 10**15),
    micros,
    micros,
    st.sampled_from(Pressure),
    st.integers(1, 10**6).map(lambda limit: replace(QUOTA, limit=limit)),
).map(lambda facts: Decision(*facts))


@given(decisions, st.lists(decisions, max_size=3), st.sampled_from(["seconds", "epoch"]), st.integers(1, 10**15))
def test_any_decision_has_headers_without_surprises(one: Decision, parts: list[Decision], form: str, now: int) -> None:
    decision = msgspec.structs.replace(one, made_of=tuple(parts), degraded="circuit_open" if now % 2 else "")
    names = [f"rule-{number}" for number in range(len(decision.limits))]
    headers = ResponseHeaders(reset_format=form).of(decision, names, now=now)
    assert len(dict(headers)) == len(headers)
    assert all(re.fullmatch(r"[A-Za-z-]+", name) and re.fullmatch(r"[ -~]+", value) for name, value in headers)
    assert ("Retry-After" in dict(headers)) == ("Cache-Control" in dict(headers)) == (not decision.allowed)


@given(plain.decisions(), st.sampled_from(["seconds", "epoch"]), st.booleans())
def test_what_is_prepared_says_what_is_written_out_plainly(decision: Decision, form: str, legacy: bool) -> None:  # noqa: FBT001  hypothesis has no names
    names = ["orders", "daily", "orders", "x"][: len(decision.limits)]
    write = ResponseHeaders(reset_format=form, legacy=legacy)
    for _ in range(2):
        expected = plain.header_fields(decision, names, reset_format=form, legacy=legacy)
        assert write.of(decision, names, now=plain.NOW) == expected

"""The response headers of a decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limiter
from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota
from headgate.stores.memory import MemoryStore
from headgate.testing import ManualClock
from headgate.web.errors import InvalidHeader, InvalidSettings
from headgate.web.headers import EXPOSED, HeaderWriter, ResponseHeaders, as_bytes, most_shown, policy_names, raw
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


def test_the_fields_of_a_refusal() -> None:
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


def test_another_version_can_be_plugged_in_and_partitions_are_passed_on() -> None:
    def future(limits: Sequence[Decision], names: Sequence[str], partitions: Sequence[bytes] = ()) -> Headers:
        return [("RateLimit", f'"{names[0]}";a={limits[0].remaining}') for _ in range(1 - len(partitions))]

    assert ResponseHeaders(future).of(CALM, ["p"], now=NOW)[-1] == ("RateLimit", '"p";a=88')

    assert WRITE.of(CALM, ["p"], partitions=[b"abc"])[-1] == ("RateLimit", '"p";r=88;t=8;pk=:YWJj:')


def test_another_quota_under_the_same_name_is_noticed() -> None:
    """Users with overrides share a rule's id, and not its numbers."""
    for text, policy in [("1/s", '"p";q=1;w=1'), ("2/s", '"p";q=2;w=1'), ("1/s", '"p";q=1;w=1')] * 2:
        (quota,) = Quota.parse(text)
        headers = dict(WRITE.of(Decision(True, quota.capacity, 0, 0, 0, Pressure.NORMAL, quota), ["p"]))
        assert (headers["X-RateLimit-Limit"], headers["RateLimit-Policy"]) == (text[0], policy)


def test_fields_are_the_same_in_every_spelling() -> None:
    writer = HeaderWriter(ResponseHeaders(), as_bytes)
    for decision in (CALM, WARNED, REFUSED, msgspec.structs.replace(REFUSED, degraded="x", delay_us=1)):
        reset_at = -(-(NOW + decision.reset_after_us) // 1_000_000)
        written = writer.write(decision, [writer.prepare("orders", QUOTA)], reset_at)
        assert written == raw(ResponseHeaders().of(decision, ["orders"], now=NOW))


def test_of_too_many_limits_the_one_that_decides_is_shown() -> None:
    several = msgspec.structs.replace(REFUSED, parts=(CALM, REFUSED), index=1)
    assert most_shown(several, ["a", "b"]) == (several, ["a", "b"])
    assert most_shown(several, [f"{number}" for number in range(21)]) == (REFUSED, ("1",))


def test_names_are_as_many_as_limits_and_those_of_one_rule_are_numbered() -> None:
    assert of(CALM, ())["RateLimit"] == '"default";r=88;t=8'
    both = msgspec.structs.replace(CALM, parts=(CALM, CALM))
    assert of(both, ())["RateLimit"] == '"default";r=88;t=8, "default#2";r=88;t=8'
    assert policy_names(["a", "b"], 2) == ["a", "b"]
    assert policy_names(["a", "b", "a", "a"], 4) == ["a", "b", "a#2", "a#3"]
    with pytest.raises(InvalidHeader, match="1 limits need 1 names, got 2"):
        WRITE.of(CALM, ["a", "b"])


def test_nothing_can_be_injected() -> None:
    for text in ("a\r\nX-Evil: 1", "a\nb", "a\x00", "\u202e", "é"):
        with pytest.raises(InvalidHeader):
            WRITE.of(CALM, [text])
        with pytest.raises(InvalidHeader):
            WRITE.of(msgspec.structs.replace(CALM, degraded=text), ["p"])


def test_settings_that_do_not_exist_are_refused() -> None:
    unknown: list[dict[str, Any]] = [{"reset_format": "delta"}, {"reset_format": None}, {"ietf": "draft-99"}]
    for settings in (*unknown, {"ietf": ""}):
        with pytest.raises(InvalidSettings, match="must be"):
            ResponseHeaders(**settings)


def test_as_bytes_names_are_in_lower_case() -> None:
    assert raw([("X-RateLimit-Limit", "1"), ("X-Other", "2")]) == [(b"x-ratelimit-limit", b"1"), (b"x-other", b"2")]


def test_browsers_may_be_shown_all_of_them() -> None:
    degraded = msgspec.structs.replace(REFUSED, degraded="x", delay_us=1)
    assert set(of(degraded)) - {"Cache-Control"} == set(EXPOSED.split(", "))


@given(plain.decisions(), st.sampled_from(["seconds", "epoch"]), st.booleans())
def test_prepared_parts_make_the_same_output_as_a_plain_writer(decision: Decision, form: str, legacy: bool) -> None:  # noqa: FBT001  hypothesis has no names
    names = ["orders", "daily", "orders", "x"][: len(decision.limits)]
    write = ResponseHeaders(reset_format=form, legacy=legacy)
    for _ in range(2):
        expected = plain.header_fields(decision, names, reset_format=form, legacy=legacy)
        assert write.of(decision, names, now=plain.NOW) == expected

"""Limits in response headers of all dialects; no header can do harm."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.quota import SECOND
from headgate.pacing.fields import LONGEST_US, MOST, Announced, Notice, ResetTime, read

NOW = 1_790_000_000 * SECOND
MINUTE = 60 * SECOND


def limits(**fields: str) -> tuple[Announced, ...]:
    return read([(name.replace("_", "-"), value) for name, value in fields.items()], NOW).limits


RESETS = {
    "37": ResetTime(37 * SECOND),
    "1.5": ResetTime(1_500_000, is_coarse=False),
    "0": ResetTime(0),
    "-3": ResetTime(0),
    "1800000037": ResetTime(1_800_000_037 * SECOND, is_absolute=True),
    "1800000037250": ResetTime(1_800_000_037_250_000, is_absolute=True, is_coarse=False),
    "1800000037250000": ResetTime(1_800_000_037_250_000, is_absolute=True, is_coarse=False),
    "2027-01-15T08:00:37Z": ResetTime(1_800_000_037 * SECOND, is_absolute=True),
    "Fri, 15 Jan 2027 08:00:37 GMT": ResetTime(1_800_000_037 * SECOND, is_absolute=True),
    "1s": ResetTime(SECOND),
    "6m0s": ResetTime(360 * SECOND),
    "20ms": ResetTime(20_000, is_coarse=False),
    "1h2m3.5s": ResetTime(3_723_500_000, is_coarse=False),
    "37, 38": ResetTime(38 * SECOND),
    "999999999": ResetTime(LONGEST_US),
    **dict.fromkeys(["", "soon", "NaN", "Infinity", "1e400", "9" * 400, "0x10", "12:30", "0001-13-45"]),
}
"""Texts, and the times that they mean; None: an invalid text, which is ignored."""


def test_a_reset_is_read_in_every_format() -> None:
    for text, reset in RESETS.items():
        found = limits(X_RateLimit_Limit="10", X_RateLimit_Remaining="4", X_RateLimit_Reset=text)
        assert found == (Announced("", 10, None, 4, reset),), text


def test_the_fields_of_the_draft_list_all_limits_with_their_windows() -> None:
    found = limits(
        RateLimit_Policy='"burst";q=20;w=1, "daily, \\"all\\"";q=5000;w=86400;pk=:c2VjcmV0:',
        RateLimit='"burst";r=19;t=1, "daily, \\"all\\"";r=4999;t=18;pk=:c2VjcmV0:',
        X_RateLimit_Remaining="3",
    )
    assert found == (
        Announced("burst", 20, SECOND, 19, ResetTime(SECOND)),
        Announced('daily, "all";:c2VjcmV0:', 5000, 86400 * SECOND, 4999, ResetTime(18 * SECOND)),
    )


def test_older_drafts_mean_the_same() -> None:
    apart = {"RateLimit_Remaining": "4", "RateLimit_Reset": "7"}
    for fields in (
        {"RateLimit": "limit=10, remaining=4, reset=7", "RateLimit_Policy": "10;w=60"},
        {"RateLimit_Limit": "10, 10;w=60", **apart},
        {"RateLimit_Limit": "10", "RateLimit_Policy": '10;w=60;comment="x"', **apart},
    ):
        assert limits(**fields) == (Announced("", 10, MINUTE, 4, ResetTime(7 * SECOND)),)


def test_github_names_the_resource() -> None:
    found = limits(
        x_ratelimit_limit="5000",
        x_ratelimit_remaining="4999",
        x_ratelimit_reset="1800000000",
        x_ratelimit_used="1",
        x_ratelimit_resource="core",
    )
    assert found == (Announced("core", 5000, None, 4999, ResetTime(1_800_000_000 * SECOND, is_absolute=True)),)


def test_openai_has_limits_of_several_kinds() -> None:
    found = limits(
        x_ratelimit_limit_requests="60",
        x_ratelimit_limit_tokens="150000",
        x_ratelimit_remaining_requests="59",
        x_ratelimit_remaining_tokens="149984",
        x_ratelimit_reset_requests="1s",
        x_ratelimit_reset_tokens="6m0s",
    )
    assert found == (
        Announced("requests", 60, None, 59, ResetTime(SECOND)),
        Announced("tokens", 150000, None, 149984, ResetTime(360 * SECOND)),
    )


def test_other_dialects() -> None:
    assert limits(x_rate_limit_limit="15", x_rate_limit_remaining="14", x_rate_limit_reset="1800000000") == (
        Announced("", 15, None, 14, ResetTime(1_800_000_000 * SECOND, is_absolute=True)),
    )
    assert limits(X_RateLimit_Limit_Minute="10", X_RateLimit_Remaining_Minute="9") == (
        Announced("minute", 10, MINUTE, 9),
    )
    assert limits(
        anthropic_ratelimit_requests_limit="50",
        anthropic_ratelimit_requests_remaining="49",
        anthropic_ratelimit_requests_reset="2027-01-15T08:00:00Z",
    ) == (Announced("requests", 50, None, 49, ResetTime(1_800_000_000 * SECOND, is_absolute=True)),)
    assert limits(
        X_RateLimit_Limit="5",
        X_RateLimit_Remaining="0",
        X_RateLimit_Reset="1800000000",
        X_RateLimit_Reset_After="1.25",
        X_RateLimit_Bucket="abcd",
    ) == (Announced("abcd", 5, None, 0, ResetTime(1_250_000, is_coarse=False)),)


RETRIES: list[tuple[list[tuple[str, str]], int | None]] = [
    ([("Retry-After", "120")], 120 * SECOND),
    ([("retry-after", "1.5")], 1_500_000),
    ([("Retry-After", "-1")], 0),
    ([("Retry-After", "2"), ("Retry-After", "5")], 5 * SECOND),
    ([("Retry-After", "9" * 20)], LONGEST_US),
    ([("Retry-After", "9" * 400)], None),
    ([("Retry-After", "tomorrow")], None),
    ([("Retry-After", "Fri, 15 Jan 2027 08:00:37 GMT"), ("Date", "Fri, 15 Jan 2027 08:00:00 GMT")], 37 * SECOND),
    ([("Retry-After", "Mon, 01 Jan 0001 00:00:00 GMT"), ("Date", "Fri, 15 Jan 2027 08:00:00 GMT")], 0),
    ([("Retry-After", "Mon, 21 Sep 2026 14:13:22 GMT")], 2 * SECOND),
]


def test_retry_after_is_read_in_every_format() -> None:
    for fields, wait in RETRIES:
        assert read(fields, NOW).retry_after_us == wait, fields


def test_of_two_numbers_the_stricter_one_counts() -> None:
    found = read([("X-RateLimit-Limit", "10"), ("X-RateLimit-Limit", "8"), ("X-RateLimit-Remaining", "4, 3")], NOW)
    assert found.limits == (Announced("", 8, None, 3),)
    assert limits(X_RateLimit_Limit="10", X_RateLimit_Remaining="-5") == (Announced("", 10, None, 0),)
    assert limits(X_RateLimit_Limit="1" * 30, X_RateLimit_Remaining="4") == (Announced("", MOST, None, 4),)


def test_an_invalid_list_of_the_draft_is_ignored_entirely() -> None:
    for text in ('"a";r=1;t=2 nonsense', '"a', "=", ";r=1", '"a";r=1,, "b";r=2', "\x00"):
        assert limits(RateLimit=text) == ()


NAMES = """
    RateLimit RateLimit-Policy RateLimit-Limit X-RateLimit-Limit X-RateLimit-Remaining Date X-RateLimit-Reset
    x-ratelimit-reset-tokens X-RateLimit-Reset-After Retry-After Limit-
"""
VALUES = st.one_of(
    st.text(max_size=40),
    st.text('"\\;=,:.0123456789rtqwslimeandg -+?', max_size=60),
    st.integers().map(str),
    st.floats().map(str),
    st.dates().map(str),
    st.datetimes().map(str),
    st.just("9" * 5000),
)


@given(st.lists(st.tuples(st.sampled_from(NAMES.split()), VALUES), max_size=12))
def test_any_fields_are_read_within_bounds(fields: list[tuple[str, str]]) -> None:
    found = read(fields, NOW)
    assert isinstance(found, Notice)
    assert len(found.limits) <= 16
    assert found.retry_after_us is None or 0 <= found.retry_after_us <= LONGEST_US
    for limit in found.limits:
        assert limit.limit is None or 0 <= limit.limit <= MOST
        assert limit.remaining is None or 0 <= limit.remaining <= MOST
        assert limit.window_us is None or 0 <= limit.window_us <= LONGEST_US
        assert limit.reset is None or limit.reset.is_absolute or 0 <= limit.reset.us <= LONGEST_US
        assert len(limit.name) <= 256

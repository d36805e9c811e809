"""The text form of quotas, and the errors of other texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from headgate import Algorithm, Calendar, InvalidQuota, Quota
from headgate.core.grammar import EXAMPLES, MAX_TEXT
from headgate.core.numbers import EXACT
from headgate.core.quota import MAX_WINDOW_US
from tests.core.quotas import acceptable, quotas

SECOND = 1_000_000
MINUTE, HOUR, DAY, WEEK = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND, 604_800 * SECOND

UNITS = {
    1: ["us", "microsecond", "microseconds"],
    1000: ["ms", "millisecond", "milliseconds"],
    SECOND: ["s", "sec", "secs", "second", "seconds"],
    MINUTE: ["m", "min", "mins", "minute", "minutes"],
    HOUR: ["h", "hr", "hrs", "hour", "hours"],
    DAY: ["d", "day", "days"],
    WEEK: ["w", "week", "weeks"],
}


class TestForms:
    @pytest.mark.parametrize(
        ("text", "quota"),
        [
            ("100/minute", Quota(100, MINUTE)),
            ("10/s burst 20", Quota(10, SECOND, burst=20)),
            ("5000/day gcra", Quota(5000, DAY, algorithm=Algorithm.GCRA)),
            ("3 per 250ms", Quota(3, 250_000)),
            ("100/15 min", Quota(100, 15 * MINUTE)),
            ("1000/day fixed_window", Quota(1000, DAY, algorithm=Algorithm.FIXED_WINDOW)),
            ("500 once", Quota.one_off(500)),
            ("1_000_000/day", Quota(1_000_000, DAY)),
            ("10/1_000ms", Quota(10, SECOND)),
            ("10/s burst 1_0", Quota(10, SECOND, burst=10)),
            ("4/s leaky_bucket queue", Quota(4, SECOND, algorithm=Algorithm.LEAKY_BUCKET, queue=True)),
            ("4/s queue burst 2 leaky_bucket", Quota(4, SECOND, 2, Algorithm.LEAKY_BUCKET, queue=True)),
            ("10/s burst 0", Quota(10, SECOND)),
            ("10/s capacity 5", Quota(10, SECOND, burst=-5)),
            ("10/s capacity 2_5", Quota(10, SECOND, burst=15)),
            ("4/s queue capacity 2 leaky_bucket", Quota(4, SECOND, -2, Algorithm.LEAKY_BUCKET, queue=True)),
            ("4/s fixed_window capacity 4", Quota(4, SECOND, algorithm=Algorithm.FIXED_WINDOW)),
            ("007/s", Quota(7, SECOND)),
            ("250/month in Europe/Berlin", Quota.per(250, Calendar("month", "Europe/Berlin"))),
            ("250 PER 1 Year IN Etc/GMT+12", Quota.per(250, Calendar("year", "Etc/GMT+12"))),
            ("5/d in UTC fixed_window", Quota.per(5, Calendar("day", "UTC"))),
            (" 5/weeks  fixed_window in  UTC ", Quota.per(5, Calendar("week", "UTC"))),
        ],
    )
    def test_one_quota(self, text: str, quota: Quota) -> None:
        assert Quota.parse(text) == (quota,)

    @pytest.mark.parametrize(("length", "name"), [(length, name) for length, names in UNITS.items() for name in names])
    def test_units(self, length: int, name: str) -> None:
        every = [f"1/{name}", f"1/ {name}", f"1/1{name}", f"1 per {name}", f"1per1 {name}", f"1/{name.upper()}"]
        assert {Quota.parse(text) for text in every} == {(Quota(1, length),)}

    @pytest.mark.parametrize(
        "text",
        ["10/s burst 20", " 10 / s  burst   20 ", "\t10\n/\r\ns burst 20", "10/S BURST 20", "10 Per Second Burst 20"],
    )
    def test_space_and_letter_case_do_not_matter(self, text: str) -> None:
        assert Quota.parse(text) == (Quota(10, SECOND, burst=20),)

    @pytest.mark.parametrize("text", ["10/s;5000/day gcra", "10/s ; 5000/day gcra", " 10/s\n;\n5000/day gcra\n"])
    def test_several_quotas(self, text: str) -> None:
        assert Quota.parse(text) == (Quota(10, SECOND), Quota(5000, DAY, algorithm=Algorithm.GCRA))

    def test_the_examples_in_error_messages_are_right(self) -> None:
        *quoted, joined = EXAMPLES.split(", ")
        assert joined == 'joined by ";"'
        assert len(Quota.parse("; ".join(text.strip('"') for text in quoted))) == 4


class TestRoundTrip:
    """`str` writes what `parse` reads."""

    @pytest.mark.parametrize(
        ("quota", "text"),
        [
            (Quota(5, 1), "5/microsecond"),
            (Quota(5, 7), "5/7us"),
            (Quota(5, 1000), "5/millisecond"),
            (Quota(5, 250_000), "5/250ms"),
            (Quota(5, SECOND), "5/second"),
            (Quota(5, 90 * SECOND), "5/90s"),
            (Quota(5, MINUTE), "5/minute"),
            (Quota(5, HOUR), "5/hour"),
            (Quota(5, DAY), "5/day"),
            (Quota(5, WEEK), "5/week"),
            (Quota(5, 2 * WEEK), "5/2w"),
            (Quota(5, 30 * DAY), "5/30d"),
            (Quota(5, SECOND, burst=2), "5/second burst 2"),
            (Quota(5, SECOND, algorithm=Algorithm.SLIDING_WINDOW_LOG), "5/second sliding_window_log"),
            (
                Quota(5, SECOND, burst=2, algorithm=Algorithm.LEAKY_BUCKET, queue=True),
                "5/second burst 2 leaky_bucket queue",
            ),
            (Quota(5, SECOND, burst=-2), "5/second capacity 3"),
            (Quota(5, SECOND, burst=-4, algorithm=Algorithm.GCRA), "5/second capacity 1 gcra"),
            (
                Quota(5, SECOND, burst=-2, algorithm=Algorithm.LEAKY_BUCKET, queue=True),
                "5/second capacity 3 leaky_bucket queue",
            ),
            (Quota.from_bucket(10, 33.3), "333/10s capacity 10"),
            (Quota.one_off(5), "5 once"),
            (Quota.per(5, Calendar("day")), "5/day in UTC"),
            (
                Quota.per(5, Calendar("month", "America/Argentina/Buenos_Aires")),
                "5/month in America/Argentina/Buenos_Aires",
            ),
        ],
        ids=str,
    )
    def test_table(self, quota: Quota, text: str) -> None:
        assert str(quota) == text
        assert Quota.parse(text) == (quota,)

    @given(
        st.integers(1, 10**12),
        st.one_of(
            st.integers(1, MAX_WINDOW_US), *(st.integers(1, MAX_WINDOW_US // unit).map(unit.__mul__) for unit in UNITS)
        ),
        st.one_of(st.just(0), st.integers(-(10**12), 10**6)),
        st.sampled_from(list(Algorithm)),
        st.booleans(),
    )
    def test_any_quota(self, limit: int, window_us: int, burst: int, algorithm: Algorithm, queue: bool) -> None:  # noqa: FBT001  hypothesis passes it
        quota = acceptable(limit, window_us, max(burst, 1 - limit) if algorithm.is_bucket else 0, algorithm)
        assume(quota)
        assert quota
        quota = replace(quota, queue=queue and algorithm is Algorithm.LEAKY_BUCKET)
        assert Quota.parse(str(quota)) == (quota,)

    @given(st.lists(quotas(), min_size=1, max_size=8))
    def test_several(self, several: list[Quota]) -> None:
        assert Quota.parse("; ".join(map(str, several))) == tuple(several)


class TestErrors:
    """The message has the text, what was expected and found there, and examples of valid texts."""

    unit = "a unit of time (us, ms, s, m, h, d, w or second, minute, hour, day, week)"
    option = '"burst", "capacity", "queue", "in" or an algorithm'
    period = "in a time zone, a window must be one day, week, month or year"
    zone = ', or "in" and a time zone after it'
    twice = "burst occurs twice (capacity is an alternative form)"

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            ("", "expected a count, found the end"),
            ("10/s;", "expected a count, found the end"),
            ("/s", "expected a count, found '/'"),
            ("ten/s", "expected a count, found 'ten'"),
            ("once", "expected a count, found 'once'"),
            ("10", 'expected "/" or "per", found the end'),
            ("10 s", 'expected "/" or "per", found \'s\''),
            ("1e3/s", 'expected "/" or "per", found \'e\''),
            ("10/", f"expected {unit}, found the end"),
            ("10/fortnight", f"expected {unit}, found 'fortnight'"),
            ("10/month", f"a month has no fixed length: write 30d{zone}"),
            ("10/mo", f"a mo has no fixed length: write 30d{zone}"),
            ("10/2 months", f"a months has no fixed length: write 60d{zone}"),
            ("10/year", f"a year has no fixed length: write 365d{zone}"),
            ("10/0s", "a window must be longer than 0"),
            ("10/0 months", "a window must be longer than 0"),
            ("10/day in", "expected the name of a time zone after in, found the end"),
            ("10/2 months in UTC", period),
            ("10/hour in UTC", period),
            ("10/day in UTC in UTC", "calendar occurs twice"),
            ("0 once", "expected a count of at least 1 before once, found the end"),
            ("100 once nonsense", "expected nothing after once, found 'nonsense'"),
            ("100 once burst 5", "expected nothing after once, found 'burst'"),
            ("1__0/s", "cannot read '1__0/s'"),
            ("1_/s", "cannot read '1_/s'"),
            ("10/1_ms", "cannot read '1_ms'"),
            ("10/s 20", f"expected {option}, found '20'"),
            ("10/s / 20", f"expected {option}, found '/'"),
            ("10/s xyzzy", f"expected {option}, found 'xyzzy'"),
            ("10/s brust 20", f"expected {option} (did you mean burst?), found 'brust'"),
            ("10/s capcity 20", f"expected {option} (did you mean capacity?), found 'capcity'"),
            ("10/s tokenbucket", f"expected {option} (did you mean token_bucket?), found 'tokenbucket'"),
            ("10/s burst", "expected a count after burst, found the end"),
            ("10/s burst gcra", "expected a count after burst, found 'gcra'"),
            ("10/s capacity", "expected a count after capacity of at least 1, found the end"),
            ("10/s capacity -5", "cannot read '-5'"),
            ("10/s burst 5 burst 5", twice),
            ("10/s burst 5 capacity 15", twice),
            ("10/s capacity 5 gcra burst 5", twice),
            ("10/s gcra gcra", "algorithm occurs twice"),
            ("10/s leaky_bucket queue queue", "queue occurs twice"),
            ("10/s fixed-window", "cannot read '-window'"),
            ("-5/s", "cannot read '-5/s'"),
            ("1.5/s", "cannot read '1.5/s'"),
            ("1,000/s", "cannot read '1,000/s'"),
            ("10/1.5s", "cannot read '1.5s'"),
            ("10/s, 5/m", "cannot read ', 5/m'"),
            ("10/s\x00", "cannot read '\\x00'"),
            ("²/s", "cannot read '²/s'"),
            ("10/µs", "cannot read 'µs'"),
        ],
    )
    def test_table(self, text: str, what: str) -> None:
        with pytest.raises(InvalidQuota) as error:
            Quota.parse(text)
        assert str(error.value) == f"bad quota {text!r}: {what}. Accepted forms: {EXAMPLES}"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("0/s", "limit must be a whole number from 1 to"),
            ("10/5000d", "window_us must be a whole number from 1 to"),
            ("99999999999999999999/s", "limit must be a whole number from 1 to"),
            ("10/s burst 99999999999999999999", f"burst must be a whole number from -9 to {EXACT}, not"),
            ("10/s capacity 0", "expected a count after capacity of at least 1, found '0'"),
            ("10/s capacity 99999999999999999999", f"burst must be a whole number from -9 to {EXACT}, not"),
            ("10/s fixed_window burst 5", "fixed_window has no burst"),
            ("10/s fixed_window capacity 5", "fixed_window has no burst"),
            ("10/s queue", "only leaky_bucket can be a queue, not token_bucket"),
            ("1/365d burst 100", "a capacity of 101 would take 101 years to come back"),
            ("5/s; 0/m", "limit must be a whole number from 1 to"),
            ("5/day in Europe/Berln", "unknown time zone 'Europe/Berln': did you mean Europe/Berlin?"),
            ("5/day gcra in UTC", "only fixed_window counts by a calendar, not gcra"),
            ("5/day in UTC burst 5", "fixed_window has no burst"),
        ],
    )
    def test_text_that_reads_well_and_is_no_quota(self, text: str, message: str) -> None:
        with pytest.raises(InvalidQuota) as error:
            Quota.parse(text)
        assert str(error.value).startswith(f"bad quota {text!r}: ")
        assert message in str(error.value)

    @pytest.mark.parametrize("bad", [None, 100, 1.5, True, b"10/s", ["10/s"], Quota(10, SECOND)], ids=repr)
    def test_not_text(self, bad: Any) -> None:
        with pytest.raises(InvalidQuota) as error:
            Quota.parse(bad)
        assert str(error.value).startswith(f"a quota must be text such as {EXAMPLES}, not {repr(bad)[:50]}")


KNOWN = [
    *"0123456789_/;. ,-\x00\u0660",
    *("per", "once", "burst", "capacity", "queue", "s", "day", "month", " in ", "UTC", "gcra", "fixed_window"),
]


def _misspelled(text: str, at: int, wrong: str, dropped: int) -> str:
    at %= len(text) + 1
    return text[:at] + wrong + text[at + dropped :]


class TestHostileText:
    """Whatever comes in, out comes a quota or InvalidQuota."""

    @pytest.mark.parametrize(
        "text",
        [
            "9" * 5000 + "/s",
            "10/" + "9" * 5000 + "s",
            "10/s" + " " * 1000,
            "10/s;" * 10_000,
            "\x00" * 100_000,
            "(" * 2000,
        ],
        ids=["count", "window", "spaces", "quotas", "NUL", "brackets"],
    )
    def test_very_long(self, text: str) -> None:
        with pytest.raises(
            InvalidQuota, match=f"^a quota text must have at most {MAX_TEXT} characters, not {len(text)}$"
        ):
            Quota.parse(text)

    @pytest.mark.parametrize(
        ("text", "low"), [("{}/s", 1), ("10/{}s", 1), ("10/s burst {}", -9), ("10/s capacity {}", -9), ("{} once", 0)]
    )
    def test_a_number_as_long_as_the_text_may_be(self, text: str, low: int) -> None:
        with pytest.raises(InvalidQuota, match=f"must be a whole number from {low} to"):
            Quota.parse(text.format("9" * 900))

    @pytest.mark.parametrize("digits", ["١٠", "१०", "１０", "𝟙𝟘"])  # noqa: RUF001  that is the point
    def test_digits_of_other_scripts_are_not_read(self, digits: str) -> None:
        with pytest.raises(InvalidQuota, match=f"cannot read '{digits}/s'"):
            Quota.parse(f"{digits}/s")

    @given(
        st.text(max_size=50)
        | st.lists(st.sampled_from(KNOWN), max_size=12).map("".join)
        | st.builds(_misspelled, quotas().map(str), st.integers(0, 100), st.characters(), st.integers(0, 1))
    )
    @example("1\u0660/s")
    @example("\u212a/s")
    @example("1/\u017f")
    @example("\u0130")
    @example("\ud800/s")
    @settings(max_examples=100)
    def test_any_text(self, text: str) -> None:
        """Also mixtures of words of the grammar, and quotas with one wrong character."""
        try:
            assert all(isinstance(quota, Quota) for quota in Quota.parse(text))
        except InvalidQuota as error:
            assert str(error)  # noqa: PT017  either is right

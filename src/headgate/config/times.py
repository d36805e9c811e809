"""Durations and times: forms, and their text. All are microseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from string import ascii_letters

from headgate.config.problems import shown
from headgate.config.schema import Meaningless, Scalar
from headgate.core.grammar import ABOUT_DAYS, CALENDAR_WORDS, LENGTHS
from headgate.core.quota import MAX_WINDOW_US, SECOND

CALENDAR_UNITS = ("day", "week", "month", "year")
_LONGEST_TEXT = 100
_LENGTH = r" *(?:[0-9]{1,18}(?:_[0-9]{1,18})* *)?[A-Za-z]{1,20} *"
_MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LENGTHS = "a number of seconds, or a duration such as 500ms, 30s, 1m, 15 min, 1 hour, 1d or 1 week"
_MOMENTS = "a time with its time zone, such as 2026-12-01T00:00:00Z or 2026-12-01T00:00:00+01:00"


def length(*, calendar: bool = False) -> Scalar:
    """A duration in microseconds; with `calendar`, the name of a calendar unit stays as it is."""

    def means(value: float | str) -> int | str:
        if not isinstance(value, str):
            exact = Fraction(repr(value)) * SECOND
            if exact.denominator != 1:
                raise Meaningless(f"{value} seconds are not a whole number of microseconds")
            return int(exact)
        if value.strip().lstrip("0123456789_ ") == "M":
            month = ", or `window: month` with a `calendar`" if calendar else ""
            hint = f"Write {value.strip()[:-1].strip() or 1}m for minutes{month}."
            raise Meaningless(f"{shown(value)} may mean minutes or months", hint=hint)
        return value if calendar and value in CALENDAR_UNITS else length_of(value)

    text = {"pattern": f"^{_LENGTH}$", "maxLength": _LONGEST_TEXT}
    json = {"type": ["string", "number"], **text, "exclusiveMinimum": 0, "maximum": MAX_WINDOW_US // SECOND}
    return Scalar(json, "is not a duration", _LENGTHS, means)


def length_of(text: str) -> int:
    """Return a length such as 30s or 1 hour in microseconds. Raises Meaningless."""
    unit = text.strip().lstrip("0123456789_ ").lower()
    number = int(text.strip().rstrip(ascii_letters).strip() or 1)
    wrong = f"{shown(text)} is not a duration"
    if unit not in LENGTHS:
        days = ABOUT_DAYS.get(CALENDAR_WORDS.get(unit, ""), 0)
        fixed = f": a {CALENDAR_WORDS[unit]} has no fixed length: write {number * days}d" if days else ""
        raise Meaningless(f"{wrong}{fixed}", _LENGTHS)
    if not number:
        raise Meaningless(f"{wrong}: a window must be longer than 0", _LENGTHS)
    if number * LENGTHS[unit] > MAX_WINDOW_US:
        raise Meaningless(f"{shown(text)} is longer than {MAX_WINDOW_US // 86400 // SECOND} days", _LENGTHS)
    return number * LENGTHS[unit]


def moment(*, as_written: bool = False) -> Scalar:
    """A point in time in RFC 3339, in microseconds since the epoch, or as written."""

    def means(value: str) -> int | str:
        try:
            given = datetime.fromisoformat(value.upper()).astimezone(UTC)  # which may be in the year 10000
            moment_us = (given - _EPOCH) // timedelta(microseconds=1)
        except (ValueError, OverflowError) as error:
            raise Meaningless(f"{value!r} is not a time: {error}", _MOMENTS) from None
        if moment_us < 0:
            raise Meaningless(f"{value!r} is before 1970")
        return value if as_written else moment_us

    def is_naive(value: object) -> bool:
        return isinstance(value, str) and re.fullmatch(_MOMENT, f"{value}Z") is not None

    return Scalar(
        {"type": "string", "format": "date-time", "pattern": f"^{_MOMENT}$"},
        lambda value: "has no time zone" if is_naive(value) else "is not a time",
        _MOMENTS,
        means,
        lambda value, _: f"Write {value}Z if it is UTC." if is_naive(value) else "",
    )


def length_text(length_us: int) -> str:
    """Return microseconds as text for `length`, in the largest exact unit."""
    for unit, size in (("d", 86400 * SECOND), ("h", 3600 * SECOND), ("m", 60 * SECOND), ("s", SECOND), ("ms", 1000)):
        if length_us % size == 0:
            return f"{length_us // size}{unit}"
    return f"{length_us}us"


def moment_text(moment_us: int) -> str:
    """Return microseconds since the epoch as text for `moment`."""
    return (_EPOCH + timedelta(microseconds=moment_us)).isoformat().replace("+00:00", "Z")

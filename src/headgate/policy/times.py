"""Lengths of time and moments, as fields have them and as they are written. Everything becomes microseconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import lru_cache

from headgate.core.errors import InvalidQuota
from headgate.core.grammar import parse
from headgate.core.quota import MAX_WINDOW_US, SECOND
from headgate.policy.problems import Findings, Path, ProblemKind, shown, unlike
from headgate.policy.schema import Schema

CALENDAR_UNITS = ("day", "week", "month", "year")
_LONGEST_TEXT = 100
_LENGTH = r" *(?:[0-9]{1,18}(?:_[0-9]{1,18})* *)?[A-Za-z]{1,20} *"
_MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LENGTHS = "a number of seconds, or a length such as 500ms, 30s, 1m, 15 min, 1 hour, 1d or 1 week"
_MOMENTS = "a moment with its time zone, such as 2026-12-01T00:00:00Z or 2026-12-01T00:00:00+01:00"


@dataclass(frozen=True, slots=True)
class Length:
    """A length of time, read as microseconds; where `calendar` is true, the word of a calendar unit stays as it is."""

    calendar: bool = False

    def read(self, value: object, path: Path, findings: Findings) -> int | str | None:
        if isinstance(value, str):
            return self._from_text(value, path, findings)
        if type(value) in {int, float} and isinstance(value, int | float) and 0 < value <= MAX_WINDOW_US // SECOND:
            length = Fraction(repr(value)) * SECOND
            if length.denominator == 1:
                return int(length)
            findings.add(path, f"{value} seconds are not a whole number of microseconds", kind=ProblemKind.MEANING)
            return None
        findings.add(path, unlike(value, "is not a length of time"), _LENGTHS)
        return None

    def _from_text(self, text: str, path: Path, findings: Findings) -> int | str | None:
        if len(text) > _LONGEST_TEXT or not re.fullmatch(_LENGTH, text):
            findings.add(path, f"{shown(text)} is not a length of time", _LENGTHS)
            return None
        if text.strip().lstrip("0123456789_ ") == "M":
            month = ", or `window: month` with a `calendar`" if self.calendar else ""
            hint = f"Write {text.strip()[:-1].strip() or 1}m for minutes{month}."
            findings.add(path, f"{shown(text)} may mean minutes or months", hint=hint, kind=ProblemKind.MEANING)
            return None
        if self.calendar and text in CALENDAR_UNITS:
            return text
        length = length_of(text)
        if isinstance(length, str):
            findings.add(path, length, _LENGTHS, kind=ProblemKind.MEANING)
            return None
        return length

    def schema(self) -> Schema:
        longest = MAX_WINDOW_US // SECOND
        text = {"pattern": f"^{_LENGTH}$", "maxLength": _LONGEST_TEXT}
        return {"type": ["string", "number"], **text, "exclusiveMinimum": 0, "maximum": longest}


@lru_cache(maxsize=1000)
def length_of(text: str) -> int | str:
    """Return the microseconds that `text` means, or what is wrong with it."""
    try:
        (numbers,) = parse(f"1/{text}")
    except InvalidQuota as error:
        detail = str(error).partition(": ")[2].partition(". Accepted forms")[0]
        return f"{shown(text)} is not a length of time" + (f": {detail}" if "expected" not in detail else "")
    if not 0 < (length := int(numbers["window_us"])) <= MAX_WINDOW_US:
        return f"{shown(text)} is longer than {MAX_WINDOW_US // 86400 // SECOND} days"
    return length


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time as RFC 3339 writes it."""

    as_written: bool = False
    """Keep the text, rather than microseconds since the epoch."""

    def read(self, value: object, path: Path, findings: Findings) -> int | str | None:
        if not isinstance(value, str) or not re.fullmatch(_MOMENT, value):
            naive = isinstance(value, str) and re.fullmatch(_MOMENT, f"{value}Z")
            why = f"{value!r} has no time zone" if naive else unlike(value, "is not a moment")
            findings.add(path, why, _MOMENTS, f"Write {value}Z if it is UTC." if naive else "")
            return None
        try:
            moment = (datetime.fromisoformat(value.upper()) - _EPOCH) // timedelta(microseconds=1)
        except (ValueError, OverflowError) as error:
            findings.add(path, f"{value!r} is not a moment: {error}", _MOMENTS, kind=ProblemKind.MEANING)
            return None
        if moment < 0:
            findings.add(path, f"{value!r} is before 1970", kind=ProblemKind.MEANING)
            return None
        return value if self.as_written else moment

    def schema(self) -> Schema:
        return {"type": "string", "format": "date-time", "pattern": f"^{_MOMENT}$"}


def length_text(length_us: int) -> str:
    """Write microseconds as `Length` reads them, in the largest unit that is exact."""
    for unit, size in (("d", 86400 * SECOND), ("h", 3600 * SECOND), ("m", 60 * SECOND), ("s", SECOND), ("ms", 1000)):
        if length_us % size == 0:
            return f"{length_us // size}{unit}"
    return f"{length_us}us"


def moment_text(moment_us: int) -> str:
    """Write microseconds since the epoch as `Moment` reads them."""
    return (_EPOCH + timedelta(microseconds=moment_us)).isoformat().replace("+00:00", "Z")

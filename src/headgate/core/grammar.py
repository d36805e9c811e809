"""The text form of quotas.

::

    quotas    := quota { ";" quota }
    quota     := count ( "/" | "per" ) [ number ] unit { option }  |  count "once"
    option    := "burst" count | "capacity" count | algorithm | "queue" | "in" zone
    unit      := us ms s m h d w, or a word: microsecond millisecond second sec minute min hour hr day week, or plural;
                 with "in": day week month year
    algorithm := token_bucket leaky_bucket fixed_window sliding_window_log sliding_window_counter gcra

Examples: ``100/minute``, ``10/s burst 20``, ``5000/day gcra``, ``3 per 250ms``, ``100/15 min; 1000/day fixed_window``,
``10/s capacity 5``, ``500 once``, ``250/month in Europe/Berlin``. The capacity is limit + burst unless it is given.
Counts are whole numbers and may carry underscores: ``1_000_000/day``. Letter case matters only in the name of a time
zone. With a zone the windows are those of its calendar, from local midnight on, and the algorithm is fixed_window.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from headgate.core.algorithms import Algorithm
from headgate.core.calendar import Calendar
from headgate.core.errors import InvalidQuota
from headgate.core.numbers import short

if TYPE_CHECKING:
    from headgate.core.quota import Quota

EXAMPLES = '"100/minute", "10/s burst 20", "5000/day gcra", "3 per 250ms", joined by ";"'
MAX_TEXT = 1000
_SECOND = 1_000_000
_UNITS = {
    "us": (1, ("microsecond", "microseconds")),
    "ms": (1000, ("millisecond", "milliseconds")),
    "s": (_SECOND, ("sec", "secs", "second", "seconds")),
    "m": (60 * _SECOND, ("min", "mins", "minute", "minutes")),
    "h": (3600 * _SECOND, ("hr", "hrs", "hour", "hours")),
    "d": (86400 * _SECOND, ("day", "days")),
    "w": (7 * 86400 * _SECOND, ("week", "weeks")),
}
LENGTHS = {name: length for unit, (length, words) in _UNITS.items() for name in (unit, *words)}
"""Microseconds of every unit of time, by any of its names."""
_LONG_NAMES = {length: words[-2] for length, words in _UNITS.values()}
_PERIODS = {
    "day": ("d", "day", "days"),
    "week": ("w", "week", "weeks"),
    "month": ("mo", "month", "months"),
    "year": ("y", "yr", "year", "years"),
}
CALENDAR_WORDS = {word: unit for unit, words in _PERIODS.items() for word in words}
"""The periods of a calendar, by any of their names."""
ABOUT_DAYS = {"month": 30, "year": 365}
"""Days of the periods that have no fixed length."""
_ALGORITHMS = {*Algorithm, "sliding_window"}
_TOKEN = re.compile(r"\s*(?:[0-9]+(?:_[0-9]+)*(?![0-9_.,])|[A-Za-z_]+|/)\s*")
_ZONE = re.compile(r"\S+\s*")


def parse(text: str) -> list[dict[str, Any]]:
    """Read quotas from `text`; returns the arguments of `Quota` for each.

    Raises:
        InvalidQuota: the text is not of that form; the message shows the place and the accepted forms.
    """
    if not isinstance(text, str):
        raise InvalidQuota(f"a quota must be text such as {EXAMPLES}, not {short(text)}")
    if len(text) > MAX_TEXT:
        raise InvalidQuota(f"a quota text must have at most {MAX_TEXT} characters, not {len(text)}")
    return [_quota(part, text) for part in text.split(";")]


def render(quota: Quota) -> str:
    """Write `quota` as text. `parse` reads it back, but for what has no text form: refill steps and thresholds."""
    if quota.limit == 0:
        return f"{quota.burst} once"
    if quota.calendar is not None:
        return f"{quota.limit}/{quota.calendar}"
    window = _LONG_NAMES.get(quota.window_us) or next(
        f"{quota.window_us // length}{unit}"
        for unit, (length, _) in reversed(_UNITS.items())
        if quota.window_us % length == 0
    )
    text = f"{quota.limit}/{window}"
    if quota.burst:
        by_burst = quota.burst > 0 and not quota.keeps_capacity
        text += f" burst {quota.burst}" if by_burst else f" capacity {quota.capacity}"
    if quota.algorithm is not Algorithm.TOKEN_BUCKET:
        text += f" {quota.algorithm}"
    return text + " queue" if quota.queue else text


def _quota(text: str, whole_text: str) -> dict[str, Any]:
    tokens = _Tokens(text, whole_text)
    count = tokens.count("a count")
    if tokens.take("once"):
        if not count or not tokens.done:
            tokens.fail("nothing after once" if count else "a count of at least 1 before once")
        from headgate.core.quota import ONE_OFF_WINDOW_US  # noqa: PLC0415  the quota knows how long it is kept

        return {"limit": 0, "window_us": ONE_OFF_WINDOW_US, "burst": count}
    if not tokens.take("/") and not tokens.take("per"):
        tokens.fail('"/" or "per"')
    number, unit = tokens.window()
    found: dict[str, Any] = {"limit": count}
    while not tokens.done:
        option: dict[str, Any]
        if tokens.take("burst"):
            option = {"burst": tokens.count("a count after burst")}
        elif tokens.take("capacity"):
            option = {"burst": tokens.count("a count after capacity", least=1) - count, "keeps_capacity": True}
        elif tokens.take("queue"):
            option = {"queue": True}
        elif tokens.take("in"):
            option = {"calendar": tokens.calendar(number, unit)}
        else:
            option = {"algorithm": tokens.algorithm()}
        if option.keys() & found.keys():
            raise tokens.error(
                f"{min(option)} occurs twice" + " (capacity is an alternative form)" * ("burst" in option)
            )
        found |= option
    if "calendar" in found:
        return {"window_us": found["calendar"].window_us, "algorithm": Algorithm.FIXED_WINDOW, **found}
    if unit not in LENGTHS:
        about = f"{number * ABOUT_DAYS[CALENDAR_WORDS[unit]]}d"
        raise tokens.error(f'a {unit} has no fixed length: write {about}, or "in" and a time zone after it')
    return {"window_us": number * LENGTHS[unit], **found}


class _Tokens:
    """The words of one quota, read from left to right."""

    def __init__(self, text: str, whole_text: str) -> None:
        self._whole = whole_text
        self._words = list(self._split(text))

    def _split(self, text: str) -> Iterator[str]:
        position, end, word = 0, len(text.rstrip()), ""
        while position < end:
            zone = word == "in"
            match = (_ZONE if zone else _TOKEN).match(text, position)
            if not match:
                raise self.error(f"cannot read {text[position:].strip()!r}")
            word = match.group().strip()
            if not zone:
                word = word.lower()
            yield word
            position = match.end()

    @property
    def done(self) -> bool:
        return not self._words

    def take(self, word: str) -> bool:
        """Step over `word` if it is next."""
        if self._words and self._words[0] == word:
            del self._words[0]
            return True
        return False

    def count(self, wanted: str, *, least: int = 0) -> int:
        if not self._words or not self._words[0][0].isdecimal() or int(self._words[0]) < least:
            self.fail(f"{wanted} of at least {least}" if least else wanted)
        return int(self._words.pop(0))

    def window(self) -> tuple[int, str]:
        """Read how many of which unit of time; a unit that only a calendar knows is accepted here."""
        number = self.count("a number") if self._words and self._words[0][0].isdecimal() else 1
        unit = self._words.pop(0) if self._words else ""
        if not number:
            raise self.error("a window must be longer than 0")
        if unit not in LENGTHS and unit not in CALENDAR_WORDS:
            self._words.insert(0, unit)
            self.fail("a unit of time (us, ms, s, m, h, d, w or second, minute, hour, day, week)")
        return number, unit

    def calendar(self, number: int, unit: str) -> Calendar:
        if not self._words:
            self.fail("the name of a time zone after in")
        if number != 1 or unit not in CALENDAR_WORDS:
            raise self.error("in a time zone, a window must be one day, week, month or year")
        try:
            return Calendar(CALENDAR_WORDS[unit], self._words.pop(0))
        except InvalidQuota as error:
            raise InvalidQuota(f"bad quota {self._whole!r}: {error}") from None

    def algorithm(self) -> str:
        word = self._words[0]
        if word not in _ALGORITHMS:
            near = get_close_matches(word, [*_ALGORITHMS, "burst", "capacity", "queue"], 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            self.fail(f'"burst", "capacity", "queue", "in" or an algorithm{hint}')
        return self._words.pop(0)

    def fail(self, wanted: str) -> None:
        found = repr(self._words[0]) if self._words and self._words[0] else "the end"
        raise self.error(f"expected {wanted}, found {found}")

    def error(self, what: str) -> InvalidQuota:
        return InvalidQuota(f"bad quota {self._whole!r}: {what}. Accepted forms: {EXAMPLES}")

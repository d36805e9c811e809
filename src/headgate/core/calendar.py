"""Calendar windows: days, weeks, months and years as the clocks of a time zone show them.

A period begins at local midnight and ends where the next one begins, so a day may have 23 or 25 hours. Where clocks
are set forward over midnight, the day begins at the first moment that exists; where midnight comes twice, at the first
of the two. A day that a zone skipped (Samoa, 30 December 2011) has no moments, and so no window.

What a zone's clocks show is read from the system's time zone data once, when a `Calendar` is made; all else is
arithmetic.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from difflib import get_close_matches
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from headgate.core.errors import InvalidQuota
from headgate.core.numbers import short

DAY_US = 86_400_000_000
SHIFT_US = DAY_US
"""By how much a period may be longer than its days have hours: no zone ever set its clocks back by more."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND, _MICROSECOND = timedelta(seconds=1), timedelta(microseconds=1)
_ZONE = re.compile(r"(?!(?:posix|right)/)[A-Za-z][A-Za-z0-9_+/-]{0,63}")
_NO_ZONES = {"localtime", "posixrules"}  # another zone on every machine

_UNITS: dict[str, tuple[int, Callable[[date], date]]] = {
    "day": (1, lambda day: day),
    "week": (7, lambda day: day - timedelta(days=day.weekday())),
    "month": (31, lambda day: day.replace(day=1)),
    "year": (366, lambda day: day.replace(month=1, day=1)),
}
"""The most days of a period, and the first day of the period that a day is in. A week begins on Monday."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """The periods of a calendar: ``Calendar("month", "Europe/Berlin")``.

    Raises:
        InvalidQuota: there is no such unit or time zone, or no time zone data on this system.
    """

    unit: str
    """day, week (from Monday), month or year."""
    zone: str = "UTC"
    """The name of a time zone in the IANA database, in its own spelling."""

    window_us: int = field(init=False, repr=False, compare=False)
    """The nominal length of the longest period, in microseconds: 1, 7, 31 or 366 days of 24 hours."""
    _tz: tzinfo = field(init=False, repr=False, compare=False)
    _known: tuple[int, int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        derive = object.__setattr__  # the instance is frozen; these are parts of its construction
        if not isinstance(self.unit, str) or self.unit not in _UNITS:
            raise InvalidQuota(f"the unit of a calendar must be day, week, month or year, not {short(self.unit)}")
        derive(self, "_tz", _time_zone(self.zone))
        derive(self, "window_us", _UNITS[self.unit][0] * DAY_US)
        derive(self, "_known", (0, 0, 0))

    def __str__(self) -> str:
        return f"{self.unit} in {self.zone}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.unit, self.zone)

    def bounds(self, now_us: int) -> tuple[int, int]:
        """Return when the period at `now_us` begins, and when it is over. All times in microseconds since the epoch."""
        return self.around(now_us)[:2]

    def around(self, now_us: int) -> tuple[int, int, int]:
        """Return when the period at `now_us` begins, when the next one does, and when that is over.

        Within one period it is the same tuple again, found at once.
        """
        known = self._known
        if known[0] <= now_us < known[1]:
            return known
        boundaries = self._boundaries((_EPOCH + timedelta(microseconds=now_us)).astimezone(self._tz).date())
        start = end = next(boundaries)
        while end <= now_us:  # once; twice where clocks were set back over midnight, and show a day that is over
            start, end = end, next(boundaries)
        known = start, end, next(later for later in boundaries if later > end)
        object.__setattr__(self, "_known", known)
        return known

    def _boundaries(self, day: date) -> Iterator[int]:
        """Yield the beginning of the period that has `day`, and of all that follow."""
        days, first_of = _UNITS[self.unit]
        first = first_of(day)
        while True:
            yield self._beginning(first)
            first = first_of(first + timedelta(days=days))

    def _beginning(self, day: date) -> int:
        """Return the first moment of `day`, or the moment at which it was skipped."""
        midnight = datetime.combine(day, time(), self._tz)
        moment, earliest = midnight.astimezone(UTC), midnight.replace(fold=1).astimezone(UTC)
        if earliest < moment:  # somewhere between the two the clocks were set forward, over midnight
            moments = range((moment - earliest) // _SECOND)
            shown = bisect_left(moments, True, key=lambda second: self._shows(day, earliest + second * _SECOND))
            moment = earliest + shown * _SECOND
        return (moment - _EPOCH) // _MICROSECOND

    def _shows(self, day: date, moment: datetime) -> bool:
        """Return whether the clocks show `day`, or a later one."""
        return moment.astimezone(self._tz).date() >= day


def _time_zone(zone: object) -> tzinfo:
    if zone == "UTC":
        return UTC  # needs no data
    if isinstance(zone, str) and _ZONE.fullmatch(zone) and zone not in _NO_ZONES:
        try:
            return ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):  # the others: a file or folder that is not a zone
            pass
    zones = {name.lower(): name for name in sorted(available_timezones() - _NO_ZONES)}
    if not zones:
        raise InvalidQuota(
            f"the time zone {short(zone)} needs time zone data, and this system has none: install the package tzdata "
            f'("pip install tzdata")',
            fields=("calendar",),
        )
    near = get_close_matches(zone.lower(), zones, 1) if isinstance(zone, str) and len(zone) <= 64 else []
    hint = f"did you mean {zones[near[0]]}?" if near else "use a name such as Europe/Berlin or UTC"
    raise InvalidQuota(f"unknown time zone {short(zone)}: {hint}", fields=("calendar",))

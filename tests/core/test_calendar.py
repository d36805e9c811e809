"""Calendars: where periods begin and end in every time zone, and what is no calendar."""

from __future__ import annotations

import copy
import pickle
import sys
import zoneinfo
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.calendar import DAY_US, SHIFT_US, Calendar
from headgate.core.errors import InvalidQuota

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = 3_600_000_000
UNITS = ["day", "week", "month", "year"]
AWKWARD = [
    "Africa/Cairo",  # sets its clocks forward at midnight
    "Africa/Casablanca",  # daylight saving time is below zero
    "America/Asuncion",  # at midnight as well
    "America/Caracas",  # moved by half an hour
    "America/Havana",
    "America/Santiago",
    "America/Sao_Paulo",
    "America/Scoresbysund",
    "America/St_Johns",  # sets its clocks at one minute past midnight, until 2011
    "Antarctica/Casey",  # moved by three hours, back and forth
    "Antarctica/Troll",  # sets its clocks by two hours
    "Asia/Amman",
    "Asia/Beirut",
    "Asia/Kathmandu",  # 5:45
    "Asia/Pyongyang",
    "Asia/Tehran",
    "Australia/Lord_Howe",  # sets its clocks by half an hour
    "Europe/Berlin",
    "Pacific/Apia",  # skipped a day in 2011
    "Pacific/Chatham",  # 12:45
    "Pacific/Kiritimati",  # skipped a day in 1994 or 1995
    "Pacific/Kwajalein",  # skipped a day in 1993
    "UTC",
]
EVERY = sorted(available_timezones() - {"localtime"})
zones = st.sampled_from(AWKWARD) | st.sampled_from(EVERY)
moments = st.integers(631_152_000 * 10**6, 3_786_912_000 * 10**6)  # 1990 to 2090


def at(zone: str, *local: int) -> int:
    """Return the moment when the clocks of `zone` show that time, in microseconds."""
    return (datetime(*local, tzinfo=ZoneInfo(zone)) - EPOCH) // timedelta(microseconds=1)  # type: ignore[misc,arg-type]


def shown(zone: str, moment: int) -> datetime:
    return (EPOCH + timedelta(microseconds=moment)).astimezone(ZoneInfo(zone)).replace(tzinfo=None)


def first_day(unit: str, day: date) -> date:
    return {
        "day": day,
        "week": date.fromisocalendar(*day.isocalendar()[:2], 1),
        "month": date(day.year, day.month, 1),
        "year": date(day.year, 1, 1),
    }[unit]


class TestEveryZone:
    @given(st.sampled_from(UNITS), zones, moments)
    def test_a_period_begins_and_ends_with_its_first_and_last_moment(self, unit: str, zone: str, now: int) -> None:
        """It begins at midnight, or at the first moment after a gap: just before, the clocks show the period before.

        In between they show the period, unless they were set back.
        """
        start, end = Calendar(unit, zone).bounds(now)
        local, before = shown(zone, start), shown(zone, start - 1)
        period, showing = first_day(unit, local.date()), first_day(unit, shown(zone, now).date())
        assert period > first_day(unit, before.date())
        if local != datetime.combine(period, datetime.min.time()):
            midnight = datetime.combine(local.date(), datetime.min.time(), ZoneInfo(zone))
            there_and_back = midnight.astimezone(UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
            assert there_and_back != midnight.replace(tzinfo=None), "midnight does not exist"
            assert before.date() < local.date()
        assert showing == period or (showing < period and now - start < DAY_US)
        assert first_day(unit, shown(zone, end).date()) > period

    @given(st.sampled_from(UNITS), zones, moments, st.integers(1, 40))
    def test_periods_have_their_moments_and_follow_each_other(self, unit: str, zone: str, now: int, count: int) -> None:
        periods = Calendar(unit, zone)
        start, end, after = periods.around(now)
        assert type(start) is type(end) is int
        assert start <= now < end
        assert end - start <= periods.window_us + SHIFT_US
        found = [periods.bounds(now), periods.bounds(end)]
        assert found == [(start, end), (end, after)]
        for _ in range(count):
            found.append(periods.bounds(found[-1][1]))
        assert all(before[1] == after[0] for before, after in pairwise(found))
        for start, end in found:
            fresh = Calendar(unit, zone)
            assert fresh.bounds(end - 1) == fresh.bounds(start) == (start, end)

    @pytest.mark.parametrize("zone", AWKWARD)
    def test_all_days_of_a_generation(self, zone: str) -> None:
        """Counted: none is missing but those that a zone skipped."""
        days, now = Calendar("day", zone), at(zone, 1993, 1, 1)
        end, count = at(zone, 2016, 1, 1), 0
        while now < end:
            start, now = days.bounds(now)
            count += 1
            assert 20 * HOUR <= now - start <= 27 * HOUR
        assert now == end
        skipped = zone in {"Pacific/Apia", "Pacific/Kiritimati", "Pacific/Kwajalein"}
        assert count == (date(2016, 1, 1) - date(1993, 1, 1)).days - skipped

    @pytest.mark.parametrize("unit", UNITS)
    @pytest.mark.parametrize("seconds", [-(1 << 53) // 10**6, -1, 0, 1, (1 << 53) // 10**6])
    def test_any_time_that_a_lua_number_can_hold(self, unit: str, seconds: int) -> None:
        for zone in ("UTC", "Europe/Berlin", "America/Sitka"):
            start, end = Calendar(unit, zone).bounds(seconds * 10**6)
            assert start <= seconds * 10**6 < end


class TestByHand:
    @pytest.mark.parametrize(
        ("zone", "day", "begins", "hours"),
        [
            ("Europe/Berlin", (2025, 3, 30), 0, 23),
            ("Europe/Berlin", (2025, 10, 26), 0, 25),
            ("Europe/Berlin", (2025, 6, 1), 0, 24),
            ("Australia/Lord_Howe", (2025, 4, 6), 0, 24.5),
            ("Australia/Lord_Howe", (2025, 10, 5), 0, 23.5),
            ("Antarctica/Troll", (2025, 3, 30), 0, 22),
            ("Antarctica/Troll", (2025, 10, 26), 0, 26),
            ("Asia/Tehran", (2022, 3, 22), 1, 23),
            ("Asia/Tehran", (2022, 9, 21), 0, 25),
            ("America/Sao_Paulo", (2018, 11, 4), 1, 23),
            ("America/Sao_Paulo", (2018, 2, 17), 0, 25),
            ("America/St_Johns", (2009, 11, 1), 0, 25),  # midnight, a minute, and an hour earlier again
            ("America/Toronto", (1919, 3, 31), 0.5, 23.5),  # from 23:30 to 0:30
            ("Pacific/Kwajalein", (1969, 9, 30), 0, 47),
            ("America/Sitka", (1867, 10, 19), 0, 48),  # sold by Russia
        ],
    )
    def test_days_of_other_lengths(self, zone: str, day: tuple[int, int, int], begins: float, hours: float) -> None:
        start, end = Calendar("day", zone).bounds(at(zone, *day, 23, 59))
        assert shown(zone, start) == datetime(*day) + timedelta(hours=begins)  # noqa: DTZ001  local time
        assert end - start == hours * HOUR


class TestValue:
    def test_is_frozen_hashable_and_equal_by_unit_and_zone(self) -> None:
        one, other = Calendar("day", "Europe/Berlin"), Calendar("day", "Europe/Berlin")
        one.bounds(at("UTC", 2025, 6, 15))
        assert one == other
        assert len({one, other, Calendar("week", "Europe/Berlin"), Calendar("day", "Europe/Paris")}) == 3
        changed: Any = one
        with pytest.raises(FrozenInstanceError):
            changed.unit = "week"

    def test_the_default_is_utc(self) -> None:
        assert Calendar("day") == Calendar("day", "UTC")

    def test_text(self) -> None:
        assert repr(Calendar("day", "Europe/Berlin")) == "Calendar(unit='day', zone='Europe/Berlin')"
        assert str(Calendar("day", "Europe/Berlin")) == "day in Europe/Berlin"

    @pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
    def test_copies_are_equal_and_work(self, zone: str) -> None:
        days, now = Calendar("day", zone), at("UTC", 2025, 6, 15)
        for twin in (pickle.loads(pickle.dumps(days)), copy.copy(days), copy.deepcopy(days)):  # noqa: S301  our own bytes
            assert twin == days
            assert twin.bounds(now) == days.bounds(now)


class TestErrors:
    @pytest.mark.parametrize("unit", ["hour", "Month", "", None, 5, ["day"]], ids=repr)
    def test_bad_unit(self, unit: Any) -> None:
        with pytest.raises(InvalidQuota) as error:
            Calendar(unit)
        assert str(error.value) == f"the unit of a calendar must be day, week, month or year, not {unit!r}"

    @pytest.mark.parametrize(
        ("zone", "near"),
        [
            ("Berlin", "Europe/Berlin"),
            ("europe/berlin", "Europe/Berlin"),
            ("Europe/Berln", "Europe/Berlin"),
            ("America/New York", "America/New_York"),
            ("Europe//Berlin", "Europe/Berlin"),
            ("posix/Europe/Berlin", "Europe/Berlin"),
            ("right/Europe/Berlin", "Europe/Berlin"),
            ("/Europe/Berlin", "Europe/Berlin"),
        ],
    )
    def test_the_nearest_name_is_proposed(self, zone: str, near: str) -> None:
        with pytest.raises(InvalidQuota) as error:
            Calendar("day", zone)
        assert str(error.value) == f"unknown time zone {zone!r}: did you mean {near}?"

    @pytest.mark.parametrize(
        "zone",
        [
            *("", "?", "localtime", "../../etc/passwd", "zone.tab", "Q", "|", "UTC|", "\x00", "é", None, 5, b"UTC"),
            *("America", "leapseconds", "posixrules"),
        ],
        ids=repr,
    )
    def test_no_zone(self, zone: Any) -> None:
        """Neither one that differs between machines, nor a file outside the folder of zones, nor another file in it."""
        with pytest.raises(InvalidQuota) as error:
            Calendar("day", zone)
        assert str(error.value).startswith(f"unknown time zone {zone!r}: ")

    def test_a_long_name_is_not_repeated_at_length(self) -> None:
        with pytest.raises(InvalidQuota) as error:
            Calendar("day", "Europe/" * 100_000)
        assert len(str(error.value)) < 200

    def test_every_zone_is_accepted(self) -> None:
        assert [Calendar("day", zone).zone for zone in EVERY] == EVERY
        assert "|" not in "".join(EVERY), "it separates the parts of a key"


class TestWithoutTimeZoneData:
    @pytest.fixture(autouse=True)
    def _no_data(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        for name in [name for name in sys.modules if name.startswith("tzdata.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "tzdata", None)
        paths = zoneinfo.TZPATH
        zoneinfo.reset_tzpath(to=[])
        ZoneInfo.clear_cache()
        yield
        zoneinfo.reset_tzpath(to=paths)

    def test_the_package_to_install_is_named(self) -> None:
        with pytest.raises(InvalidQuota) as error:
            Calendar("day", "Europe/Berlin")
        assert str(error.value) == (
            "the time zone 'Europe/Berlin' needs time zone data, and this system has none: install the package tzdata "
            '("pip install tzdata")'
        )

    def test_utc_needs_no_data(self) -> None:
        assert Calendar("day", "UTC").bounds(DAY_US + 1) == (DAY_US, 2 * DAY_US)

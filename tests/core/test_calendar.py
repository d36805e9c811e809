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
    """Return what the clocks of `zone` show."""
    return (EPOCH + timedelta(microseconds=moment)).astimezone(ZoneInfo(zone)).replace(tzinfo=None)


def first_day(unit: str, day: date) -> date:
    """Return the first day of the period that has `day`."""
    return {
        "day": day,
        "week": date.fromisocalendar(*day.isocalendar()[:2], 1),
        "month": date(day.year, day.month, 1),
        "year": date(day.year, 1, 1),
    }[unit]


class TestEveryZone:
    @given(st.sampled_from(UNITS), zones, moments)
    def test_a_moment_is_in_its_period(self, unit: str, zone: str, now: int) -> None:
        start, end = Calendar(unit, zone).bounds(now)
        assert start <= now < end
        assert type(start) is type(end) is int
        assert end - start <= Calendar(unit, zone).window_us + SHIFT_US

    @given(st.sampled_from(UNITS), zones, moments)
    def test_a_period_begins_at_the_first_moment_of_its_first_day(self, unit: str, zone: str, now: int) -> None:
        """At midnight, or at the first moment after a gap: just before, the clocks show the period before."""
        start, _ = Calendar(unit, zone).bounds(now)
        local = shown(zone, start)
        before = shown(zone, start - 1)
        assert first_day(unit, local.date()) > first_day(unit, before.date())
        if local != datetime.combine(first_day(unit, local.date()), datetime.min.time()):
            midnight = datetime.combine(local.date(), datetime.min.time(), ZoneInfo(zone))
            there_and_back = midnight.astimezone(UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
            assert there_and_back != midnight.replace(tzinfo=None), "midnight does not exist"
            assert before.date() < local.date()

    @given(st.sampled_from(UNITS), zones, moments)
    def test_the_clocks_show_the_period_unless_they_were_set_back(self, unit: str, zone: str, now: int) -> None:
        start, end = Calendar(unit, zone).bounds(now)
        period, showing = first_day(unit, shown(zone, start).date()), first_day(unit, shown(zone, now).date())
        if showing != period:
            assert showing < period
            assert now - start < DAY_US
        assert first_day(unit, shown(zone, end).date()) > period

    @given(st.sampled_from(UNITS), zones, moments, st.integers(1, 40))
    def test_periods_follow_each_other_without_a_gap(self, unit: str, zone: str, now: int, count: int) -> None:
        periods = Calendar(unit, zone)
        found = [periods.bounds(now)]
        for _ in range(count):
            found.append(periods.bounds(found[-1][1]))
        assert all(before[1] == after[0] for before, after in pairwise(found))
        for start, end in found:
            fresh = Calendar(unit, zone)
            assert fresh.bounds(end - 1) == fresh.bounds(start) == (start, end)

    @given(st.sampled_from(UNITS), zones, moments)
    def test_around_is_this_period_and_the_next(self, unit: str, zone: str, now: int) -> None:
        periods = Calendar(unit, zone)
        start, end, after = periods.around(now)
        assert (start, end) == periods.bounds(now)
        assert (end, after) == periods.bounds(end)

    @pytest.mark.parametrize("zone", AWKWARD)
    def test_all_days_of_a_generation(self, zone: str) -> None:
        """Counted: none is missing but those that a zone skipped."""
        days, now = Calendar("day", zone), at(zone, 1990, 1, 1)
        end, count = at(zone, 2028, 1, 1), 0
        while now < end:
            start, now = days.bounds(now)
            count += 1
            assert 20 * HOUR <= now - start <= 27 * HOUR
        assert now == end
        skipped = zone in {"Pacific/Apia", "Pacific/Kiritimati", "Pacific/Kwajalein"}
        assert count == (date(2028, 1, 1) - date(1990, 1, 1)).days - skipped

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

    def test_a_skipped_day(self) -> None:
        days, now = Calendar("day", "Pacific/Apia"), at("Pacific/Apia", 2011, 12, 29, 12)
        start, end, after = days.around(now)
        assert (end - start, after - end) == (DAY_US, DAY_US)
        assert shown("Pacific/Apia", end - 1).date() == date(2011, 12, 29)
        assert shown("Pacific/Apia", end).date() == date(2011, 12, 31)

    @pytest.mark.parametrize("day", range(1, 29))
    def test_weeks_begin_on_monday(self, day: int) -> None:
        start, end = Calendar("week", "Asia/Tokyo").bounds(at("Asia/Tokyo", 2025, 9, day, 12))
        monday = shown("Asia/Tokyo", start)
        assert (monday.weekday(), monday.day) == (0, (day - 1) // 7 * 7 + 1)
        assert end - start == 7 * DAY_US

    @pytest.mark.parametrize(
        ("month", "days", "hours"), [(1, 31, 0), (2, 28, 0), (3, 31, -1), (4, 30, 0), (10, 31, 1), (12, 31, 0)]
    )
    def test_months(self, month: int, days: int, hours: int) -> None:
        start, end = Calendar("month", "Europe/Berlin").bounds(at("Europe/Berlin", 2025, month, 28))
        assert start == at("Europe/Berlin", 2025, month, 1)
        assert end - start == days * DAY_US + hours * HOUR

    @pytest.mark.parametrize(("year", "days"), [(2023, 365), (2024, 366), (2025, 365), (2000, 366)])
    def test_years(self, year: int, days: int) -> None:
        start, end = Calendar("year", "America/New_York").bounds(at("America/New_York", year, 12, 31, 23, 59))
        assert start == at("America/New_York", year, 1, 1)
        assert end - start == days * DAY_US

    def test_zones_begin_their_days_at_different_moments(self) -> None:
        now = at("UTC", 2025, 6, 15, 12)
        starts = {zone: Calendar("day", zone).bounds(now)[0] for zone in ("UTC", "Asia/Kathmandu", "Pacific/Chatham")}
        assert starts == {
            "UTC": at("UTC", 2025, 6, 15),
            "Asia/Kathmandu": at("UTC", 2025, 6, 14, 18, 15),
            "Pacific/Chatham": at("UTC", 2025, 6, 15, 11, 15),
        }

    def test_one_period_is_found_at_once(self) -> None:
        months, now = Calendar("month", "Europe/Berlin"), at("Europe/Berlin", 2025, 6, 1)
        first = months.around(now)
        assert all(months.around(now + day * DAY_US) is first for day in range(30))
        assert months.around(now + 30 * DAY_US) is not first
        assert months.around(now) == first


class TestValue:
    def test_is_frozen_hashable_and_equal_by_unit_and_zone(self) -> None:
        one, other = Calendar("day", "Europe/Berlin"), Calendar("day", "Europe/Berlin")
        one.bounds(at("UTC", 2025, 6, 15))
        assert one == other
        assert len({one, other, Calendar("week", "Europe/Berlin"), Calendar("day", "Europe/Paris")}) == 3
        changed: Any = one
        with pytest.raises(FrozenInstanceError):
            changed.unit = "week"

    def test_is_utc_unless_told(self) -> None:
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
        assert str(error.value) == f"the unit of a calendar is day, week, month or year, not {unit!r}"

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
        ["", "?", "localtime", "../../etc/passwd", "zone.tab", "Q", "|", "UTC|", "\x00", "é", None, 5, b"UTC"],
        ids=repr,
    )
    def test_no_zone(self, zone: Any) -> None:
        """Not what is another zone on every machine, and not what is outside the folder of zones."""
        with pytest.raises(InvalidQuota) as error:
            Calendar("day", zone)
        assert str(error.value).startswith(f"unknown time zone {zone!r}: ")

    @pytest.mark.parametrize("zone", ["America", "leapseconds", "posixrules"])
    def test_what_is_in_the_folder_and_no_zone(self, zone: str) -> None:
        with pytest.raises(InvalidQuota, match=f"^unknown time zone '{zone}': "):
            Calendar("day", zone)

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

    def test_utc_needs_none(self) -> None:
        assert Calendar("day", "UTC").bounds(DAY_US + 1) == (DAY_US, 2 * DAY_US)

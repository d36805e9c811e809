"""From the fields of a quota, written in one of several ways, to quotas."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from headgate.core.algorithms import Algorithm
from headgate.core.calendar import Calendar
from headgate.core.errors import InvalidQuota
from headgate.core.plan import Family
from headgate.core.quota import Quota
from headgate.policy.forms import BY_BUCKET, BY_TEXT, LIMIT, SEVERAL, AsText, Quotas
from headgate.policy.problems import Findings, Kind, Path
from headgate.policy.times import CALENDAR_UNITS, length_of

_Values = dict[str, Any]


def quotas_of(read: _Values, form: Quotas, path: Path, findings: Findings) -> tuple[Quota, ...] | None:
    """Return the quotas that the fields of a rule, a change or a limit describe."""
    if form.way(read) is not SEVERAL:
        return _quota(read, form, path, findings)
    path = (*path, "limits")
    parts = [
        quotas_of(item, LIMIT, (*path, index), findings) if item is not None else None
        for index, item in enumerate(read["limits"])
    ]
    quotas = tuple(quota for part in parts for quota in part or ())
    if None in parts:
        return None
    return _distinct(quotas, path, findings)


def _distinct(quotas: tuple[Quota, ...], path: Path, findings: Findings) -> tuple[Quota, ...] | None:
    if len(quotas) != 1:
        try:
            Family("limits", quotas)
        except InvalidQuota as error:
            findings.add(path, str(error), kind=Kind.MEANING)
            return None
    return quotas


def _quota(read: _Values, form: Quotas, path: Path, findings: Findings) -> tuple[Quota, ...] | None:
    way = form.way(read)
    if read.get("calendar") and read["window"] not in CALENDAR_UNITS:
        told = f"with a calendar, the window is one of {', '.join(CALENDAR_UNITS)}"
        findings.add((*path, "window"), told, kind=Kind.MEANING)
        return None
    percents = {name: read[name] for name in ("warn_percent", "calm_percent") if name in read}
    try:
        if way is BY_TEXT:
            quotas = _from_text(read["quota"], **percents)
            return _distinct(quotas, path if isinstance(read, AsText) else (*path, "quota"), findings)
        if way is BY_BUCKET:
            interval = read.get("min_refill_interval_ms", 0)
            return (_from_bucket(read["capacity"], read["refill_rate"], interval, **percents),)
        return (_from_window(**{name: read[name] for name in way.fields if name in read}),)
    except InvalidQuota as error:
        message = str(error)
        words = {*re.findall("[a-z_]+", message), *(["calendar"] if "time zone" in message else [])}
        field = next((name for name in (*way.may, *way.needs) if name in read and name in words), way.needs[0])
        findings.add(path if isinstance(read, AsText) else (*path, field), message, kind=Kind.MEANING)
        return None


@lru_cache(maxsize=10_000)  # thousands of rules have a few quotas among them
def _from_text(text: str, **percents: Any) -> tuple[Quota, ...]:
    return tuple(replace(quota, **percents) if percents else quota for quota in Quota.parse(text))


@lru_cache(maxsize=10_000)
def _from_bucket(capacity: int, rate: float | str, interval_ms: int, **percents: Any) -> Quota:
    quota = Quota.from_bucket(capacity, rate, min_refill_interval_ms=interval_ms)
    return replace(quota, **percents) if percents else quota


@lru_cache(maxsize=10_000)
def _from_window(
    limit: int,
    window: int | str,
    *,
    burst: int | None = None,
    capacity: int | None = None,
    algorithm: str | None = None,
    calendar: bool | str = False,
    refill_every: int = 1,
    **options: Any,
) -> Quota:
    if burst is not None and capacity is not None:
        raise InvalidQuota("burst and capacity are two ways to say the same: give one of them")
    if calendar:
        if algorithm not in {None, Algorithm.FIXED_WINDOW}:
            raise InvalidQuota(f"only fixed_window follows a calendar, not the algorithm {algorithm}: leave it out")
        if burst or capacity is not None or refill_every != 1:
            raise InvalidQuota("a window of a calendar has a limit, and no burst, capacity or refill_every")
        periods = Calendar(str(window), "UTC" if calendar is True else calendar)
        return replace(Quota.per(limit, periods), **options)
    return Quota(
        limit,
        window_us(window),
        burst=capacity - limit if capacity is not None else burst or 0,
        algorithm=Algorithm.named(algorithm or Algorithm.TOKEN_BUCKET),
        refill_every_us=refill_every,
        keeps_capacity=capacity is not None,
        **options,
    )


def window_us(window: int | str) -> int:
    """Return the microseconds of a window that is none of the calendar. Raises InvalidQuota."""
    if isinstance(window, int):
        return window
    length = length_of(window)
    if isinstance(length, int):
        return length
    days = {"month": 30, "year": 365}[window]
    raise InvalidQuota(
        f"the window {window!r} has no fixed length: add `calendar: UTC`, or another time zone, for those of the "
        f"calendar, or write {days}d"
    )

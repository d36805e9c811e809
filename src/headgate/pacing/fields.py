"""Parse the rate limit header fields of responses.

=============================================  ==================================================================
``Retry-After``                                seconds, or a date
``X-RateLimit-Limit``, ``-Remaining``,         the reset in seconds from now, in seconds, milliseconds or
``-Reset`` (also ``X-Rate-Limit-``)            microseconds since 1970, as a duration (``6m0s``) or as a date
``X-RateLimit-Reset-After``, ``-Bucket``       Discord's
``X-RateLimit-Resource``                       GitHub's: which of several limits it is
``X-RateLimit-Limit-Requests``, ``-Tokens``    OpenAI's: a limit of each kind; Kong's ``-Minute`` is its window
``Anthropic-RateLimit-Requests-Limit``         the kind in the middle
``RateLimit``, ``RateLimit-Policy``            the IETF's draft 8 to 11: ``"name";r=1;t=2``, ``"name";q=10;w=60``
``RateLimit: limit=10, remaining=1, reset=2``  its draft 7
``RateLimit-Limit``, ``-Remaining``, ...       its drafts up to 6, ``RateLimit-Policy: 10;w=60`` included
=============================================  ==================================================================

The size of a reset distinguishes a delay from a time: 10^9 seconds are 31 years from now, or the year 2001.

Nothing here raises: invalid fields are ignored. Servers are not trusted, so all lengths and numbers are bounded. Of
contradicting values, the stricter one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from headgate.core.quota import SECOND

LONGEST_US = 10 * 366 * 24 * 3600 * SECOND
"""Longest wait: ten years, in microseconds."""
MOST = 999_999_999_999_999
"""Largest number of units."""
_LONGEST_FIELD, _MOST_LIMITS = 4096, 16
_OTHERS = {"date", "retry-after", "ratelimit"}
"""Fields that are read and whose names do not contain ``limit-``."""
_NAME = re.compile(r"(?:[a-z]+-)?rate-?limit-(?:([a-z0-9-]+?)-)?(limit|remaining|reset-after|reset)(?:-([a-z0-9-]+))?")
_NUMBER = re.compile(r"([+-]?)([0-9]{1,30})(?:\.([0-9]{1,30}))?")
_DURATION = re.compile(r"(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|us|µs|ns|d|h|m|s))")
_UNITS_US: dict[str, float] = {"d": 86400 * SECOND, "h": 3600 * SECOND, "m": 60 * SECOND, "s": SECOND}
_UNITS_US |= {"ms": 1000, "us": 1, "µs": 1, "ns": 0.001}
_WINDOWS_US = {"second": SECOND, "minute": 60 * SECOND, "hour": 3600 * SECOND, "day": 86400 * SECOND}
_KEY = r"[A-Za-z*][\w.*:/%+-]*"
_ITEM = re.compile(rf'\s*("(?:[^"\\]|\\["\\])*"|{_KEY}|-?[0-9.]+)')
_PARAMETER = re.compile(
    rf'\s*;\s*([a-z*][a-z0-9_.*-]*)(?:=("(?:[^"\\]|\\["\\])*"|:[\w+/=]*:|\?[01]|{_KEY}|-?[0-9.]+))?'
)
_PAIR = re.compile(r"\s*(limit|remaining|reset)\s*=\s*([0-9]{1,15})\s*(?:;[^,]*)?")


class ResetTime(NamedTuple):
    """When a limit is fully restored: microseconds after the response, or since 1970."""

    us: int
    is_absolute: bool = False
    is_coarse: bool = True
    """Possibly rounded to whole seconds."""


class Announced(NamedTuple):
    """One limit as described by a response."""

    name: str = ""
    """Of its policy, kind or resource; may be empty."""
    limit: int | None = None
    """Capacity in units."""
    window_us: int | None = None
    """Time for the whole capacity to return."""
    remaining: int | None = None
    reset: ResetTime | None = None


class Notice(NamedTuple):
    limits: tuple[Announced, ...] = ()
    retry_after_us: int | None = None
    date_us: int | None = None
    """The server's time in microseconds since 1970, rounded down to a second."""


def read(fields: Iterable[tuple[str, str]], now_us: int) -> Notice:
    """Parse header fields; `now_us` since 1970 is the time base of a date in Retry-After without a Date field."""
    found: dict[str, str] = {}
    for name, value in fields:
        lower = name.lower()
        if lower in _OTHERS or "limit-" in lower:
            found[lower] = f"{found[lower]}, {value}" if lower in found else value
    found = {name: value.strip() for name, value in found.items() if len(value) <= _LONGEST_FIELD}
    date_us = _date(found.get("date", ""))
    retry_after_us = _retry_after(found.get("retry-after", ""), now_us if date_us is None else date_us)
    return Notice(_limits(found)[:_MOST_LIMITS], retry_after_us, date_us)


def _limits(found: dict[str, str]) -> tuple[Announced, ...]:
    """Return the limits of the IETF's fields, which say most; else those of all others."""
    stated = _standard(found)
    if any(limit.remaining is not None for limit in stated):
        return stated
    return _plain(found, stated) or stated


def _standard(found: dict[str, str]) -> tuple[Announced, ...]:
    text = found.get("ratelimit", "")
    pairs = dict(_PAIR.findall(text))
    if "remaining" in pairs:
        reset = ResetTime(_clamp(int(pairs["reset"]) * SECOND)) if "reset" in pairs else None
        limit = int(pairs["limit"]) if "limit" in pairs else None
        return (Announced("", limit, _window(found, limit), int(pairs["remaining"]), reset),)
    limits: dict[str, Announced] = {}
    for name, parameters in _items(found.get("ratelimit-policy", "")):
        if not name.lstrip("-").replace(".", "").isdigit():
            whole = _name(name, parameters)
            limits[whole] = Announced(whole, _whole(parameters, "q"), _seconds(parameters, "w"))
    for name, parameters in _items(text):
        whole = _name(name, parameters)
        known, after = limits.get(whole, Announced(whole)), _seconds(parameters, "t")
        reset = None if after is None else ResetTime(after)
        limits[whole] = known._replace(remaining=_whole(parameters, "r"), reset=reset)
    return tuple(limits.values())


def _plain(found: dict[str, str], stated: tuple[Announced, ...]) -> tuple[Announced, ...]:
    """Return the limits of fields that hold one number each."""
    limits: dict[str, Announced] = {}
    resource = found.get("x-ratelimit-resource", "") or found.get("x-ratelimit-bucket", "")
    for field, value in found.items():
        match = _NAME.fullmatch(field)
        if not match or field == "ratelimit-policy":
            continue
        before, what, after = match.groups()
        kind = before or after or ""
        name = kind or resource[:256]
        known = limits.get(name) or Announced(name, None, _WINDOWS_US.get(kind))
        if what in ("reset", "reset-after"):
            if what == "reset-after" or known.reset is None or known.reset.is_absolute:
                known = known._replace(reset=_reset(value, is_delta=what == "reset-after") or known.reset)
        elif what == "limit":
            known = known._replace(limit=_strictest(value))
        else:
            known = known._replace(remaining=_strictest(value))
        limits[name] = known
    if "" in limits and limits[""].window_us is None:
        limit = limits[""].limit
        window = _window(found, limit) or next((each.window_us for each in stated if each.limit == limit), None)
        limits[""] = limits[""]._replace(window_us=window)
    return tuple([each for each in limits.values() if each.limit is not None or each.remaining is not None])


def _window(found: dict[str, str], limit: int | None) -> int | None:
    """Return a limit's window from a policy of the older drafts: ``10;w=60``."""
    for field in ("ratelimit-policy", "ratelimit-limit"):
        for number, parameters in _items(found.get(field, "")):
            window = _seconds(parameters, "w")
            if window and number == str(limit):
                return window
    return None


def _items(text: str) -> list[tuple[str, dict[str, str]]]:
    """Return the items of an RFC 9651 list with their parameters, all as text; nothing for an invalid list."""
    found: list[tuple[str, dict[str, str]]] = []
    at = 0
    while at < len(text) and len(found) < _MOST_LIMITS:
        item = _ITEM.match(text, at)
        if not item:
            return []
        at, parameters = item.end(), {}
        while parameter := _PARAMETER.match(text, at):
            parameters[parameter[1]] = parameter[2] or ""
            at = parameter.end()
        found.append((_unquote(item[1]), parameters))
        rest = text[at:].lstrip()
        if rest and not rest.startswith(","):
            return []
        at = len(text) - len(rest) + 1
    return found


def _unquote(text: str) -> str:
    return text[1:-1].replace('\\"', '"').replace("\\\\", "\\") if text.startswith('"') else text


def _name(name: str, parameters: dict[str, str]) -> str:
    """Return the name of a policy; its partitions count separately."""
    partition = parameters.get("pk", "")
    return f"{name};{partition}"[:256] if partition else name[:256]


def _whole(parameters: dict[str, str], name: str) -> int | None:
    us = _microseconds(parameters.get(name, ""))
    return None if us is None else min(max(us, 0) // SECOND, MOST)


def _seconds(parameters: dict[str, str], name: str) -> int | None:
    us = _microseconds(parameters.get(name, ""))
    return None if us is None else _clamp(us)


def _strictest(text: str) -> int | None:
    """Return a number of units: the least, where a proxy has joined several fields."""
    found = [_microseconds(part.partition(";")[0]) for part in text.split(",")]
    return min([min(max(us, 0) // SECOND, MOST) for us in found if us is not None], default=None)


def _microseconds(text: str) -> int | None:
    """Return a decimal number in millionths; None if it is not one."""
    match = _NUMBER.fullmatch(text.strip())
    if not match:
        return None
    sign, entire, fraction = match.groups(default="")
    us = int(entire) * SECOND + int(fraction[:6].ljust(6, "0") or 0)
    return -us if sign == "-" else us


def _reset(text: str, *, is_delta: bool) -> ResetTime | None:
    """Return the time of a reset in any format; of several, the latest."""
    found = [reset for reset in (_one_reset(part, is_delta=is_delta) for part in _parts(text)) if reset]
    return max(found, key=lambda reset: (reset.is_absolute, reset.us), default=None)


def _parts(text: str) -> list[str]:
    return [text] if text[:1].isalpha() else text.split(",")  # a date contains a comma


def _one_reset(text: str, *, is_delta: bool) -> ResetTime | None:
    text = text.strip()
    us = _microseconds(text)
    if us is None:
        return _duration_or_date(text)
    is_coarse = "." not in text
    if is_delta or us < 10**9 * SECOND:
        return ResetTime(_clamp(us), is_coarse=is_coarse)
    for digits, divisor in ((17, 10**9), (14, 10**6), (11, 1000)):
        if us >= 10**digits * SECOND:
            return ResetTime(us // divisor, is_absolute=True, is_coarse=False)
    return ResetTime(us, is_absolute=True, is_coarse=is_coarse)


def _duration_or_date(text: str) -> ResetTime | None:
    parts = _DURATION.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        us = sum(float(number) * _UNITS_US[unit] for number, unit in parts)
        return ResetTime(_clamp(round(us)), is_coarse=text.endswith("s") and us >= SECOND and us % SECOND == 0)
    at = _date(text)
    return None if at is None else ResetTime(at, is_absolute=True)


def _date(text: str) -> int | None:
    """Return a date of HTTP or ISO 8601 in microseconds since 1970."""
    if not 10 <= len(text) <= 64:
        return None
    try:
        date = datetime.fromisoformat(text) if text[0].isdigit() and text[4] == "-" else parsedate_to_datetime(text)
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return round((date - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * SECOND)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _retry_after(text: str, now_us: int) -> int | None:
    seconds = [us for us in map(_microseconds, _parts(text)) if us is not None]
    if seconds:
        return _clamp(max(seconds))
    at = _date(text)
    return None if at is None else _clamp(at - now_us)


def _clamp(us: int) -> int:
    return min(max(us, 0), LONGEST_US)

"""A request in an access log, and the notations that formats share: times, request lines, hosts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple, TypeAlias

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_EPOCH, _US = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_LAST = 253402300800 * 1_000_000
"""Microseconds at the end of the year 9999."""
_UNITS = ((1e11, 1_000_000), (1e14, 1_000), (1e17, 1))
"""Bounds of numbers in seconds, milliseconds, microseconds; larger ones are in nanoseconds."""
_METHOD = re.compile(r"[A-Za-z][A-Za-z_-]{0,31}", re.ASCII)
_ESCAPE = re.compile(rb"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"v": b"\v", b"f": b"\f"}
_NOT_HTTP = "no HTTP request in it"


class Entry(NamedTuple):
    """A request recorded by an access log. Unknown values are empty."""

    at: int
    """Microseconds since the epoch."""
    address: str
    user: str
    method: str
    path: str
    """As sent, without the query."""
    host: str
    """Without the port."""
    status: int
    """0 if unknown."""
    agent: str = ""
    fields: Mapping[str, str] = {}
    """Other columns, by their configured names; `apikey` if there is such a column."""


Parser: TypeAlias = Callable[[str], Entry | None]
"""Returns the request of a line, or None for lines such as headers. Raises ValueError."""


@lru_cache(maxsize=1024)  # consecutive lines have the same second
def clf_time(text: str) -> int:
    """Parse a time as web servers write it, 18/Nov/2026:22:05:01 +0000, to microseconds. Raises ValueError."""
    if text[2:3] + text[6:7] + text[11:12] + text[17:18] != "//::" or text[3:6] not in _MONTHS:
        raise ValueError(f"not a time: {text[:40]!r}")
    return _iso_time(f"{text[7:11]}-{_MONTHS.index(text[3:6]) + 1:02}-{text[:2]}", text[12:])


def moment(text: str) -> int:
    """Parse a time in ISO 8601, in the notation of web servers, or as a number since the epoch, to microseconds.

    The default zone is UTC. Raises ValueError.
    """
    if text[2:3] == "/":
        return clf_time(text)
    if text[10:11] in {"T", " "} and text[16:17] == ":":
        return _iso_time(text[:10].replace("/", "-"), text[11:])
    try:
        number = int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise ValueError(f"not a time: {text[:40]!r}") from None
    return since_epoch(number)


def _iso_time(date: str, time: str) -> int:
    """Convert a date and a time of day, which a space may separate from its zone. Raises ValueError."""
    time = time.replace(" ", "").replace("UTC", "Z")
    if time[6:8] == "60":  # a leap second
        time = f"{time[:6]}59{time[8:]}"
    at = datetime.fromisoformat(f"{date}T{time}")
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // _US


def since_epoch(number: float) -> int:
    """Convert seconds, milliseconds, microseconds or nanoseconds to microseconds. Raises ValueError."""
    if not 1e8 <= number < 1e20:  # also NaN; a number before 1973 is rather a count
        raise ValueError(f"not a time: {number!r:.40}")
    at = next((number * unit for bound, unit in _UNITS if number < bound), None)
    micros = number // 1000 if at is None else at
    if micros >= _LAST:
        raise ValueError(f"not a time: {number!r:.40}")
    return round(micros)


def parse_request_line(line: str) -> tuple[str, str, str]:
    """Return the method, the path and the host of a request line, such as GET /orders?page=2 HTTP/1.1.

    Raises ValueError if it is not an HTTP request: servers log unparsable bytes as request lines too.
    """
    method, _, rest = line.partition(" ")
    target, _, protocol = rest.rpartition(" ")
    if not protocol.startswith("HTTP/"):
        target = rest  # HTTP/0.9 has no version
    if _METHOD.fullmatch(method) is None:
        raise ValueError(_NOT_HTTP)
    return method, *parse_target(target)


def parse_target(target: str) -> tuple[str, str]:
    """Return the path and the host of a request target: a path, or a whole URL. Raises ValueError."""
    host = ""
    if target[:1] != "/":
        scheme, separator, rest = target.partition("://")
        if not (separator and scheme.isalpha()):
            raise ValueError(f"no path in {target[:40]!r}" if target and target != "-" else _NOT_HTTP)
        rest, _, _ = rest.partition("?")
        host, _, path = rest.partition("/")
        return f"/{path}", strip_port(host)
    return target.partition("?")[0], host


def strip_port(text: str) -> str:
    """Return a host or address without its port and brackets; "" for `-` and for a Unix socket."""
    if text[:1] == "[":
        return text[1:].partition("]")[0]
    host, colon, port = text.rpartition(":")
    if colon and port.isdecimal() and (":" not in host or host.count(":") == 7):
        text = host  # eight groups, or none: not the end of an IPv6 address
    return "" if text in {"-", "unix:"} else text


def unescape(text: str) -> str:
    r"""Undo a server's escapes in a quoted field: \x22, \" and \\."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_unescape, text.encode()).decode("utf-8", "replace")


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes([int(code[1:], 16)]) if len(code) == 3 else _ESCAPED.get(code, code)

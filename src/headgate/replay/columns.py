"""Parse access logs with named fields: JSON lines, CSV with a header row, and W3C logs.

The names that common servers use are known; `columns` names others: ``{"user": "x_user_id"}``. In JSON, a dot enters an
object: ``request.headers.X-Tenant``.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from headgate.core.errors import UsageError
from headgate.replay.entry import Entry, Parser, moment, parse_request_line, parse_target, since_epoch, strip_port

APIKEY = "apikey"
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "at": (
        "StartUTC", "time", "timestamp", "@timestamp", "ts", "start_time", "time_iso8601", "time_local", "msec",
        "datetime", "date", "EdgeStartTimestamp", "request_time_utc", "at",
    ),
    "address": (
        "client_ip", "remote_addr", "remote_ip", "client", "ip", "address", "ClientHost", "ClientIP", "clientip",
        "downstream_remote_address", "downstream_remote_address_without_port", "request.client_ip",
        "request.remote_ip", "request.remote_addr", "httpRequest.remoteIp", "source_ip", "client_address", "c-ip",
        "remote_host", "RemoteAddr",
    ),
    "user": (
        "user", "user_id", "userid", "remote_user", "username", "ClientUsername", "cs-username", "principal", "sub",
    ),
    "method": (
        "method", "request_method", "RequestMethod", "request.method", "http_method", "verb", "cs-method",
        "ClientRequestMethod", "httpRequest.requestMethod", "http.method",
    ),
    "path": (
        "path", "uri", "request_uri", "url", "RequestPath", "request.uri", "request.url", "request_path", "endpoint",
        "cs-uri-stem", "ClientRequestURI", "httpRequest.requestUrl", "http.target", "target",
    ),
    "host": (
        "host", "authority", "http_host", "server_name", "RequestHost", "request.host", "cs-host", "cs(Host)",
        "ClientRequestHost", "vhost",
    ),
    "status": (
        "status", "response_code", "DownstreamStatus", "status_code", "sc-status", "EdgeResponseStatus",
        "httpRequest.status", "http.status_code", "code",
    ),
    "agent": (
        "user_agent", "http_user_agent", "request_User-Agent", "request.headers.User-Agent", "agent", "useragent",
        "cs(User-Agent)", "ClientRequestUserAgent", "httpRequest.userAgent",
    ),
    "request": ("request", "request_line"),
    APIKEY: ("apikey", "api_key", "apikey_id", "key_id"),
}  # fmt: skip
"""Names of each field; the first that a line has counts. `request` is a whole request line."""
_REQUIRED = {"at": "time of a request", "path": "path of a request"}
_SECONDS = "seconds"
"""The column with the time of day, if separate from the date."""
_DELIMITERS = ",\t;|"
Read: TypeAlias = Callable[[str], Any]
"""Returns the value of a field in the current line, or None."""


def json_lines(_: str, columns: Mapping[str, str]) -> Parser:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    names = {**COLUMNS, **{name: (column,) for name, column in columns.items()}}
    paths = {name: [_steps(each) for each in known] for name, known in names.items()}
    others = _others(names)

    def parse(line: str) -> Entry:
        try:
            record = decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"not a JSON object: {error}") from None

        return _entry(lambda name: _first(record, paths[name]), others)

    return parse


def delimited(header: str, columns: Mapping[str, str]) -> Parser:
    """Return a parser of CSV whose first line names the columns. Raises ValueError."""
    delimiter = max(_DELIMITERS, key=header.count)
    parse = _by_position(_split(header, delimiter), columns)

    def parsed(line: str) -> Entry | None:
        return None if line == header else parse(_split(line, delimiter))

    return parsed


def w3c(header: str, columns: Mapping[str, str]) -> Parser:
    """Return a parser of a W3C extended log, such as those of IIS and CloudFront. Raises ValueError."""
    if not header.startswith(("#Version:", "#Software:", "#Fields:", "#Date:")):
        raise ValueError("no directive such as #Fields: in the first line")
    parse: Callable[[Sequence[str]], Entry] | None = None

    def parsed(line: str) -> Entry | None:
        nonlocal parse
        if line[:1] == "#":
            if line.startswith("#Fields:"):
                parse = _by_position(line.split()[1:], columns)
            return None
        if parse is None:
            raise ValueError("no #Fields: before this line")
        return parse(line.split("\t") if "\t" in line else line.split(" "))

    return parsed


def _by_position(names: Sequence[str], columns: Mapping[str, str]) -> Callable[[Sequence[str]], Entry]:
    """Return a function from the values of these columns to an entry. Raises ValueError, or UsageError."""
    found = _places(names, columns)
    seconds = found.pop(_SECONDS, None)
    others, count = _others(found), len(names)

    def parse(values: Sequence[str]) -> Entry:
        if len(values) != count:
            raise ValueError(f"{len(values)} columns instead of {count}")

        def value(name: str) -> str | None:
            place = found.get(name)
            if place is None:
                return None
            return f"{values[place]} {values[seconds]}" if name == "at" and seconds is not None else values[place]

        return _entry(value, others)

    return parse


def _others(names: Iterable[str]) -> list[str]:
    return [name for name in names if name not in COLUMNS or name == APIKEY]


def _places(names: Sequence[str], columns: Mapping[str, str]) -> dict[str, int]:
    places = {name.strip().casefold(): place for place, name in reversed([*enumerate(names)])}
    found = {
        role: places[name.casefold()]
        for role, known in COLUMNS.items()
        for name in reversed(known)
        if name.casefold() in places
    }
    if "date" in places and "time" in places:
        found |= {"at": places["date"], _SECONDS: places["time"]}
    for role, name in columns.items():
        if name.casefold() not in places:
            wrong = UsageError if found else ValueError  # without known columns, the line is probably not a header
            raise wrong(f"no column {name!r} for {role}; the columns are: {', '.join(names)[:500]}")
        found[role] = places[name.casefold()]
    if "at" in columns:
        found.pop(_SECONDS, None)
    for role, what in _REQUIRED.items():
        if role not in found and not (role == "path" and "request" in found):
            raise ValueError(f"no column contains the {what}; the columns are: {', '.join(names)[:500]}")
    return found


def _entry(value: Read, others: Iterable[str]) -> Entry:
    """Return the entry for the values of the fields. Raises ValueError."""
    at, method = value("at"), _text(value("method"))
    if target := _text(value("path")):
        path, host = parse_target(target)
    elif request := _text(value("request")):
        method, path, host = parse_request_line(request)
    else:
        raise ValueError("the line has no request path")
    if not isinstance(at, str | int | float) or at in {"", "-"}:
        raise ValueError("the line has no request time")
    status = _text(value("status"))
    return Entry(
        moment(at.strip()) if isinstance(at, str) else since_epoch(at),
        strip_port(_text(value("address"))),
        _text(value("user")),
        method,
        path,
        strip_port(_text(value("host"))) or host,
        int(float(status)) if status.replace(".", "", 1).isdecimal() else 0,
        _text(value("agent")),
        {name: text for name in others if (text := _text(value(name)))},
    )


def _text(value: Any) -> str:
    """Return a value as text: the first of a list, and "" for "-" and other types."""
    if isinstance(value, list):
        value = value[0] if value else None
    if isinstance(value, str):
        return "" if value == "-" else value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def _steps(name: str) -> tuple[str, tuple[str, ...]]:
    """Return a name as it is, and as a path into objects, which is empty without a dot."""
    steps = tuple(name.split("."))
    return name, steps if len(steps) > 1 else ()


def _first(record: Mapping[str, Any], names: Iterable[tuple[str, tuple[str, ...]]]) -> Any:
    for name, steps in names:
        value = record.get(name)
        if value is None and steps:
            value = record
            for step in steps:
                value = value.get(step) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None


def _split(line: str, delimiter: str) -> list[str]:
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise ValueError(f"not CSV: {error}") from None

"""Logs of a node: one line per event, as JSON or text, through the standard library's logging.

Lines may contain what clients sent: control characters are escaped and texts are cut, so that no request can forge a
line, control a terminal, or fill a disk. Add fields with ``extra=fields(rule="orders")``.

Refusals are logged up to a rate, since refused clients often continue. Principals are logged as digests by default,
and listed so among the hot keys.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from heapq import nlargest
from typing import Any, NamedTuple, TextIO

import msgspec

from headgate.core.errors import UsageError
from headgate.core.numbers import short
from headgate.core.quota import SECOND
from headgate.messages import printable

LONGEST_TEXT = 2000
"""Longest message or field, in characters."""
LONGEST_TRACE = 10_000
MOST_FIELDS = 30
PER_RULE = 10
IN_ALL = 100
"""Lines per second about refusals: of one rule, and in total."""
_NAMED = 5
_DENIALS = logging.getLogger("headgate.denials")
_FIELDS = "headgate_fields"
_encode = msgspec.json.Encoder().encode


def fields(**values: str | float | None) -> dict[str, Any]:
    """Return the `extra` for fields of a log line."""
    return {_FIELDS: values}


_TALKATIVE = ("alembic", "uvicorn")
"""Verbose libraries."""


def setup(
    form: str = "text", level: str = "info", stream: TextIO | None = None, *, worker: int | None = None
) -> logging.Handler:
    """Write all logs of this process to `stream`, by default standard error, and return the handler.

    Other handlers are removed. With `worker`, every line has its number, since workers log the same events. Raises
    UsageError for an unknown format or level.
    """
    levels = ("debug", "info", "warning", "error", "critical")
    if level.lower() not in levels:
        raise UsageError(f"log level must be one of {', '.join(levels)}, not {short(level)}")
    formats = {"text": TextLines, "json": JsonLines}
    if form not in formats:
        raise UsageError(f"log format must be one of {', '.join(formats)}, not {short(form)}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formats[form]())
    if worker is not None:

        def number(record: logging.LogRecord) -> bool:
            setattr(record, _FIELDS, {**_fields_of(record), "worker": worker})
            return True

        handler.addFilter(number)
    root = logging.getLogger()
    for other in root.handlers[:]:
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    return handler


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": clean(record.name),
            "message": clean(record.getMessage()),
        }
        for name, value in _fields_of(record).items():
            line.setdefault(clean(name), clean(value) if isinstance(value, str) else value)
        if trace := _trace(self, record):
            line["trace"] = [clean(each) for each in trace.splitlines()]
        return _encode(line).decode()


class TextLines(logging.Formatter):
    """One line per record: time, level, logger, message, fields. Tracebacks are indented."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_time(record), record.levelname, clean(record.name), clean(record.getMessage())]
        parts += [f"{clean(name)}={_quoted(value)}" for name, value in _fields_of(record).items()]
        if trace := _trace(self, record):
            parts.append("".join([f"\n    {clean(each)}" for each in trace.splitlines()]))
        return " ".join(parts)


clean = partial(printable, longest=LONGEST_TEXT)
"""Returns text that is safe in a line."""


def _quoted(value: object) -> str:
    if not isinstance(value, str):
        return str(value)
    value = clean(value)
    plain = value and not any(each in value for each in ' "=')
    return value if plain else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    found = getattr(record, _FIELDS, None)
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in list(found.items())[:MOST_FIELDS] if value is not None}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the end of a record's traceback, which is the most specific."""
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    return formatter.formatException(record.exc_info)[-LONGEST_TRACE:]


class Principals(NamedTuple):
    """How principals are shown: as digests or, with `plain`, in clear text."""

    plain: bool = False

    def shown(self, value: str) -> str:
        """Return the principal, or its digest: ``#`` and 16 hexadecimal digits."""
        if self.plain:
            return value
        return "#" + blake2b(value.encode(errors="surrogatepass"), digest_size=8).hexdigest()


class Denials:
    """Logs refusals, at most `per_rule` lines a second about one rule and `IN_ALL` in total, and counts the others."""

    def __init__(self, principals: Principals, *, per_rule: int = PER_RULE) -> None:
        if per_rule < 0:
            raise UsageError(f"denials logged per second must be 0 or more, not {per_rule}")
        self._principals, self._per_rule = principals, per_rule
        self._lines = 0
        self._seen: dict[str, int] = {}
        self._logged: dict[str, int] = {}

    def wants(self, rule: str) -> bool:
        """Return whether to log a refusal by this rule; if not, it is counted."""
        if not self._per_rule:
            return False
        seen = self._seen[rule] = self._seen.get(rule, 0) + 1
        if seen > self._per_rule or self._lines >= IN_ALL:
            return False
        self._lines += 1
        self._logged[rule] = seen
        return True

    def log(self, rule: str, who: str, *, api: str, retry_after_us: int | None, reason: str = "") -> None:
        """Log a refusal; `reason` is its cause if not a limit."""
        shown = self._principals.shown(who) if who else None
        retry_after = retry_after_us / SECOND if retry_after_us is not None else None
        extra = fields(
            rule=rule or None, principal=shown, retry_after=retry_after, api=api or None, reason=reason or None
        )
        _DENIALS.info("denied", extra=extra)

    def second(self) -> int:
        """Log and return how many refusals of the last second were not logged."""
        left_out = {rule: seen - self._logged.get(rule, 0) for rule, seen in self._seen.items()}
        count = sum(left_out.values())
        if count:
            most = nlargest(_NAMED, left_out.items(), key=lambda item: item[1])
            first = ", ".join(f"{rule or 'deny list'}: {each}" for rule, each in most if each)
            of_rules = sum(map(bool, left_out.values()))
            _DENIALS.info("denials not logged", extra=fields(count=count, of_rules=of_rules, first=first))
        self._lines = 0
        self._seen.clear()
        self._logged.clear()
        return count

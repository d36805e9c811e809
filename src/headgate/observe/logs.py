"""Logs of a node: one line for each event, as JSON or as text, on the standard library's logging.

What came from outside may be in any line: control characters are escaped and texts are cut, so that nobody can forge a
line, repaint a terminal, or fill a disk with one request. Fields are added with ``extra=fields(rule="orders")``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TextIO

import msgspec

from headgate.core.errors import UsageError

LONGEST_TEXT = 2000
"""The most characters of a message, or of a field."""
LONGEST_TRACE = 10_000
MOST_FIELDS = 30
_FIELDS = "headgate_fields"
_encode = msgspec.json.Encoder().encode


class Format(StrEnum):
    """How a line looks."""

    TEXT = "text"
    JSON = "json"


def fields(**values: str | float | None) -> dict[str, Any]:
    """Return fields of a log line, for `extra`."""
    return {_FIELDS: values}


def setup(form: str = Format.TEXT, level: str = "info", stream: TextIO | None = None) -> logging.Handler:
    """Write all logs of this process to `stream`, by default standard error, and return what does that.

    Handlers that were there are removed. Raises UsageError for a format or a level that there is not.
    """
    levels = ("debug", "info", "warning", "error", "critical")
    if level.lower() not in levels:
        raise UsageError(f"a log level is one of {', '.join(levels)}, not {level!r:.100}")
    if form not in tuple(Format):
        raise UsageError(f"a log format is one of {', '.join(Format)}, not {form!r:.100}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == Format.JSON else TextLines())
    root = logging.getLogger()
    for other in root.handlers[:]:
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(level.upper())
    return handler


class JsonLines(logging.Formatter):
    """Each record is an object on a line: time, level, logger, message, and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
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
    """Each record is a line: time, level, logger, message, fields. Lines of a traceback are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        parts = [_time(record), record.levelname, clean(record.name), clean(record.getMessage())]
        parts += [f"{clean(name)}={_quoted(value)}" for name, value in _fields_of(record).items()]
        if trace := _trace(self, record):
            parts.append("".join([f"\n    {clean(each)}" for each in trace.splitlines()]))
        return " ".join(parts)


def clean(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return text that is safe in a line: cut, and with an escape for whatever is not printable."""
    if len(text) > longest:
        text = f"{text[:longest]}... ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else _escape(each) for each in text])


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


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
    """Return the traceback of a record; its end, if it is long, since that says most."""
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    return formatter.formatException(record.exc_info)[-LONGEST_TRACE:]

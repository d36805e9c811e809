"""Reading access logs as a stream: any of the known formats, compressed or not, in memory that does not grow.

A log is what clients made servers write, so nothing in it is trusted: a line that cannot be read is counted and the
first few are kept to be shown, a line has a length at which it is given up, and what is compressed is decompressed in
blocks of a bounded size.
"""

from __future__ import annotations

import gzip
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from io import BufferedReader
from pathlib import Path
from typing import IO, NamedTuple, Protocol, cast

from headgate.core.errors import UsageError, not_installed
from headgate.core.numbers import printable
from headgate.replay import columns as by_name
from headgate.replay import formats
from headgate.replay.entry import Entry, Parser

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    try:
        from backports import zstd
    except ModuleNotFoundError:
        zstd = None  # type: ignore[assignment]

__all__ = ["AUTO", "FORMATS", "STDIN", "Entry", "LogReader", "Unread", "UnreadLine"]
AUTO, STDIN = "auto", "-"
_BLOCK = 1 << 18
"""Bytes that are read, or decompressed, in one go. A line that is longer is given up."""
_SHOWN = 10
_EXCERPT = 100
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_OTHER_COMPRESSION = {b"BZh": "bzcat", b"\xfd7zXZ": "xzcat", b"PK\x03\x04": "unzip -p", b"\x04\x22\x4d\x18": "lz4cat"}
_BROKEN: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, *([zstd.ZstdError] if zstd else []))


class Format(NamedTuple):
    """One format of access logs."""

    about: str
    begin: Callable[[str, Mapping[str, str]], Parser]
    """Takes the first line that can be read and the names of columns; raises ValueError if it is another format."""
    has_names: bool = False


def _text(parse: Callable[[str], Entry]) -> Callable[[str, Mapping[str, str]], Parser]:
    """Return how a format begins that has neither a header nor names of columns."""

    def begin(line: str, _: Mapping[str, str]) -> Parser:
        parse(line)
        return parse

    return begin


def _json(line: str, columns: Mapping[str, str]) -> Parser:
    parse = by_name.json_lines(line, columns)
    parse(line)
    return parse


FORMATS: Mapping[str, Format] = {
    "vhost_combined": Format("Apache, with the virtual host first", _text(formats.vhost_combined)),
    "combined": Format("nginx, Apache; common too", _text(formats.combined)),
    "envoy": Format("Envoy's and Istio's default", _text(formats.envoy)),
    "alb": Format("AWS Application Load Balancer", _text(formats.alb)),
    "json": Format("a JSON object on each line, as of Envoy, nginx, Caddy, Traefik", _json, has_names=True),
    "w3c": Format("IIS, CloudFront", by_name.w3c, has_names=True),
    "csv": Format("with a header row", by_name.delimited, has_names=True),
}
"""By name, in the order in which they are tried."""


class UnreadLine(NamedTuple):
    """A line that could not be read."""

    file: str
    line: int
    """The number of the line, from 1."""
    why: str
    excerpt: str


class Unread:
    """How many lines could not be read, and the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[UnreadLine] = []

    def add(self, file: str, line: int, why: str, excerpt: str = "") -> None:
        """Count a line."""
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(UnreadLine(file, line, why, printable(excerpt[:_EXCERPT])))


class _Readable(Protocol):
    def read1(self, size: int, /) -> bytes: ...


class _Counted:
    """A file that counts what is read of it."""

    def __init__(self, file: BufferedReader, reader: LogReader) -> None:
        self._file, self._reader = file, reader

    def read(self, size: int, /) -> bytes:
        data = self._file.read(size)
        self._reader.read_bytes += len(data)
        return data

    def read1(self, size: int, /) -> bytes:
        data = self._file.read1(size)
        self._reader.read_bytes += len(data)
        return data


class LogReader:
    """Reads the requests in access logs, in the order of the files and their lines.

    Args:
        paths: the files; `-` is the standard input. Each may be compressed by gzip or zstd.
        format: one of `FORMATS`; `auto` recognises it from the first lines of each file.
        columns: which column of CSV, JSON lines or W3C logs has a field of `Entry`, or, under any other name, what
            becomes one of its `fields`: ``{"user": "x_user_id", "region": "cf_region"}``.

    Raises UsageError: a file cannot be opened, or (when lines are read) its format is not known.
    """

    def __init__(self, paths: Sequence[str], *, format: str = AUTO, columns: Mapping[str, str] | None = None) -> None:  # noqa: A002
        if format != AUTO and format not in FORMATS:
            raise UsageError(f"no format {format!r}: {_names()}")
        if columns and format != AUTO and not FORMATS[format].has_names:
            raise UsageError(f"the fields of the format {format} have no names: columns are of json, csv and w3c")
        if not paths:
            raise UsageError("no access log is named; - is the standard input")
        self._paths, self._format, self._columns = tuple(paths), format, dict(columns or {})
        sizes = [_size(path) for path in self._paths]
        self.total_bytes = None if None in sizes else sum(size for size in sizes if size is not None)
        """Of all files, as they are stored; None if that is not known in advance."""
        self.read_bytes = 0
        self.unread = Unread()
        self._parser: Parser | None = None

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the requests; lines that cannot be read are counted in `unread`."""
        for path in self._paths:
            name, number, parse = "stdin" if path == STDIN else path, 0, None
            for lines in self._lines(path, name):
                if parse is None:
                    parse = self._recognised(lines, name)
                if parse is None:  # no line of these can be read, whatever the format
                    number += len(lines)
                    continue
                for line in lines:
                    number += 1
                    try:
                        found = parse(line)
                    except (ValueError, OverflowError) as error:
                        if line and not line.isspace():
                            self.unread.add(name, number, str(error), line)
                        continue
                    if found is not None:
                        yield found

    def _recognised(self, lines: Sequence[str], name: str) -> Parser | None:
        """Return what reads lines of the format that these are in; None if all are empty. Raises UsageError."""
        written = [line for line in lines if line and not line.isspace()]
        for line in written:
            found = self._begun(line, name)
            if found is not None:
                self._parser = found
                return found
        if not written or self._parser is not None:  # as in the file before, so that each line is counted
            return self._parser if written else None
        shown = repr(printable(written[0][:_EXCERPT]))
        if self._format != AUTO:
            raise UsageError(f"{name}: not in the format {self._format} ({self._why(written[0])}): {shown}")
        raise UsageError(f"{name}: its format is not known: {shown}\n{_names()}")

    def _begun(self, line: str, name: str) -> Parser | None:
        """Return what reads the format that a line is in; None if it is in none. Raises UsageError."""
        for kind in FORMATS.values() if self._format == AUTO else [FORMATS[self._format]]:
            try:
                found = kind.begin(line, self._columns)
            except UsageError as error:
                raise UsageError(f"{name}: {error}") from None
            except (ValueError, OverflowError):
                continue
            if self._columns and not kind.has_names:
                raise UsageError(f"{name}: its fields have no names: columns are of json, csv and w3c")
            return found
        return None

    def _why(self, line: str) -> str:
        """Return why a line is not in the format that was given."""
        try:
            FORMATS[self._format].begin(line, self._columns)
        except (ValueError, OverflowError) as error:
            return str(error)
        return ""

    def _lines(self, path: str, name: str) -> Iterator[list[str]]:
        """Iterate over blocks of lines; one that is no text is counted, and empty."""
        number, rest, too_long = 0, b"", False
        try:
            with self._opened(path, name) as file:
                while block := file.read1(_BLOCK):
                    whole, newline, rest = (rest + block).rpartition(b"\n")
                    if newline:
                        if too_long:  # this is its end
                            _, newline, whole = whole.partition(b"\n")
                            whole, too_long = newline + whole, False
                        lines = self._decoded(whole, name, number)
                        number += len(lines)
                        yield lines
                    elif too_long:
                        rest = b""
                    if len(rest) > _BLOCK:
                        self._add_bytes(name, number + 1, f"longer than {_BLOCK >> 10} KiB", rest)
                        rest, too_long = b"", True
                if rest:
                    yield self._decoded(rest, name, number)
        except _BROKEN as error:
            why = "the compressed data ends early" if isinstance(error, EOFError) else f"cannot be read on: {error}"
            self.unread.add(name, number + 1, why)

    def _decoded(self, block: bytes, name: str, number: int) -> list[str]:
        """Return the lines of a block that comes after so many lines."""
        try:
            text = block.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" not in text:
            text = text if number else text.removeprefix("\ufeff")  # as Windows writes it
            return (text.replace("\r\n", "\n") if "\r" in text else text).split("\n")
        lines = []
        for index, line in enumerate(block.split(b"\n"), start=number + 1):
            why = "has NUL bytes" if b"\0" in line else ""
            try:
                text = line.decode().rstrip("\r")
            except UnicodeDecodeError:
                why = why or "not UTF-8"
            if why:
                self._add_bytes(name, index, why, line)
            lines.append("" if why else text)
        return lines

    def _add_bytes(self, name: str, number: int, why: str, line: bytes) -> None:
        self.unread.add(name, number, why, line[:_EXCERPT].decode("utf-8", "replace"))

    @contextmanager
    def _opened(self, path: str, name: str) -> Iterator[_Readable]:
        """Open a file, and decompress it. Raises UsageError."""
        with nullcontext(sys.stdin.buffer) if path == STDIN else Path(path).open("rb") as file:
            start, counted = cast("BufferedReader", file).peek(8), _Counted(cast("BufferedReader", file), self)
            for magic, command in _OTHER_COMPRESSION.items():
                if start.startswith(magic):
                    raise UsageError(
                        f"{name}: compressed, but not by gzip or zstd. Try: {command} {name} | headgate ... -"
                    )
            if start.startswith(_GZIP):
                yield gzip.GzipFile(fileobj=cast("IO[bytes]", counted))
            elif start.startswith(_ZSTD):
                if zstd is None:
                    raise UsageError(f"{name} is compressed by zstd: {not_installed('backports', 'replay')}")
                yield zstd.ZstdFile(cast("IO[bytes]", counted))
            else:
                yield counted


def _size(path: str) -> int | None:
    """Return the bytes of a file; None if that is not known in advance. Raises UsageError."""
    if path == STDIN:
        return None
    try:
        found = Path(path).stat()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{path} is a folder: name the files in it, such as {path.rstrip('/')}/access.log*")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{path}: no permission to read it")
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _names() -> str:
    return "the formats are:\n" + "\n".join(f"  {name:15} {kind.about}" for name, kind in FORMATS.items())

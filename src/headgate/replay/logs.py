"""Read access logs as streams, in any known format and compression, in bounded memory.

Logs contain what clients sent, so nothing in them is trusted: invalid lines are counted and the first few kept for
display, lines have a maximum length, and decompression works in bounded blocks.
"""

from __future__ import annotations

import gzip
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from heapq import merge
from io import BufferedIOBase, BufferedReader
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import IO, NamedTuple, cast

from headgate.core.errors import UsageError
from headgate.messages import not_installed, printable
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

__all__ = ["AUTO", "FORMATS", "STDIN", "Entry", "LogReader", "MergedLogs", "UnreadLine"]
AUTO, STDIN = "auto", "-"
_BLOCK = 1 << 18
"""Bytes per read or decompression. Longer lines are skipped."""
_SHOWN = 10
_NEVER = 1 << 62
_EXCERPT = 100
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_OTHER_COMPRESSION = {b"BZh": "bzcat", b"\xfd7zXZ": "xzcat", b"PK\x03\x04": "unzip -p", b"\x04\x22\x4d\x18": "lz4cat"}
_BROKEN: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, *([zstd.ZstdError] if zstd else []))


class Format(NamedTuple):
    about: str
    begin: Callable[[str, Mapping[str, str]], Parser]
    """Takes the first line and the names of columns; raises ValueError for another format."""
    has_names: bool = False


def _text(parse: Callable[[str], Entry]) -> Callable[[str, Mapping[str, str]], Parser]:
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
"""By name, in the order of detection."""


class UnreadLine(NamedTuple):
    file: str
    line: int
    why: str
    excerpt: str


class _Counted:
    """A file that counts the bytes read from it."""

    def __init__(self, file: BufferedReader, reader: LogReader) -> None:
        self._file, self._reader = file, reader

    def read(self, size: int, /) -> bytes:
        return self._count(self._file.read(size))

    def read1(self, size: int, /) -> bytes:
        return self._count(self._file.read1(size))

    def _count(self, data: bytes) -> bytes:
        self._reader.read_bytes += len(data)
        return data


class LogReader:
    """Reads the requests of an access log.

    Args:
        path: the file; `-` is the standard input. It may be compressed with gzip or zstd.
        format: one of `FORMATS`; `auto` detects it from the first lines.
        columns: the column of CSV, JSON lines or W3C logs for a field of `Entry` or, under another name, for one of its
            `fields`: ``{"user": "x_user_id", "region": "cf_region"}``.

    Raises UsageError if the file cannot be opened, or, while reading, if its format is unknown.
    """

    def __init__(self, path: str, *, format: str = AUTO, columns: Mapping[str, str] | None = None) -> None:  # noqa: A002
        if format != AUTO and format not in FORMATS:
            raise UsageError(f"unknown format {format!r}; {_names()}")
        if columns and format != AUTO and not FORMATS[format].has_names:
            raise UsageError(f"format {format} has no named fields: columns require json, csv or w3c")
        self._path, self._format, self._columns = path, format, dict(columns or {})
        self._name = "stdin" if path == STDIN else path
        self.total_bytes = _size(path)
        """Stored size of the file; None if unknown in advance."""
        self.read_bytes = 0
        self.unread_count = 0
        """The number of lines that could not be parsed."""
        self.unread_first: list[UnreadLine] = []

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the requests; lines that cannot be parsed are counted."""
        number, parse = 0, None
        for lines in self._lines():
            if parse is None:
                parse = self._detect(lines)
            if parse is None:  # all lines of the block are empty
                number += len(lines)
                continue
            for line in lines:
                number += 1
                try:
                    found = parse(line)
                except (ValueError, OverflowError) as error:
                    if line and not line.isspace():
                        self._skip(number, str(error), line)
                    continue
                if found is not None:
                    yield found

    def _skip(self, number: int, why: str, line: str | bytes = "") -> None:
        self.unread_count += 1
        if len(self.unread_first) < _SHOWN:
            excerpt = line[:_EXCERPT]
            text = excerpt if isinstance(excerpt, str) else excerpt.decode("utf-8", "replace")
            self.unread_first.append(UnreadLine(self._name, number, why, printable(text)))

    def _detect(self, lines: Sequence[str]) -> Parser | None:
        """Return the parser for the first lines of the file; None if all are empty. Raises UsageError."""
        name = self._name
        written = [line for line in lines if line and not line.isspace()]
        why = ""
        for line in written:
            for kind in [FORMATS[self._format]] if self._format != AUTO else FORMATS.values():
                try:
                    parse = kind.begin(line, self._columns)
                except UsageError as error:
                    raise UsageError(f"{name}: {error}") from None
                except (ValueError, OverflowError) as error:
                    why = why or str(error)
                    continue
                if self._columns and not kind.has_names:
                    raise UsageError(f"{name}: no named fields: columns require json, csv or w3c")
                return parse
        if not written:
            return None
        shown = repr(printable(written[0][:_EXCERPT]))
        if self._format != AUTO:
            raise UsageError(f"{name}: not in format {self._format} ({why}): {shown}")
        raise UsageError(f"{name}: unknown format: {shown}\n{_names()}")

    def _lines(self) -> Iterator[list[str]]:
        """Iterate over blocks of lines; an undecodable line is counted and empty."""
        number, rest, too_long = 0, b"", False
        try:
            with self._open_file() as file:
                while block := file.read1(_BLOCK):
                    whole, newline, rest = (rest + block).rpartition(b"\n")
                    if newline:
                        if too_long:  # skip the rest of the long line
                            _, newline, whole = whole.partition(b"\n")
                            whole, too_long = newline + whole, False
                        lines = self._decode(whole, number)
                        number += len(lines)
                        yield lines
                    elif too_long:
                        rest = b""
                    if len(rest) > _BLOCK:
                        self._skip(number + 1, f"longer than {_BLOCK >> 10} KiB", rest)
                        rest, too_long = b"", True
                if rest:
                    yield self._decode(rest, number)
        except _BROKEN as error:
            why = "the compressed data ends early" if isinstance(error, EOFError) else f"read error: {error}"
            self._skip(number + 1, why)

    def _decode(self, block: bytes, number: int) -> list[str]:
        """Decode a block; `number` is the count of lines before it."""
        try:
            text = block.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" not in text:
            text = text if number else text.removeprefix("\ufeff")
            return (text.replace("\r\n", "\n") if "\r" in text else text).split("\n")
        lines = []
        for index, line in enumerate(block.split(b"\n"), start=number + 1):
            why = "has NUL bytes" if b"\0" in line else ""
            try:
                text = line.decode().rstrip("\r")
            except UnicodeDecodeError:
                why = why or "not UTF-8"
            if why:
                self._skip(index, why, line)
            lines.append("" if why else text)
        return lines

    @contextmanager
    def _open_file(self) -> Iterator[_Counted | BufferedIOBase]:
        """Open and decompress a file. Raises UsageError."""
        name = self._name
        with nullcontext(sys.stdin.buffer) if self._path == STDIN else Path(self._path).open("rb") as file:
            start, counted = cast("BufferedReader", file).peek(8), _Counted(cast("BufferedReader", file), self)
            for magic, command in _OTHER_COMPRESSION.items():
                if start.startswith(magic):
                    raise UsageError(
                        f"{name}: compressed, but not with gzip or zstd. Try: {command} {name} | headgate ... -"
                    )
            if start.startswith(_GZIP):
                yield gzip.GzipFile(fileobj=cast("IO[bytes]", counted))
            elif start.startswith(_ZSTD):
                if zstd is None:
                    raise UsageError(f"{name} is compressed with zstd: {not_installed('backports', 'replay')}")
                yield zstd.ZstdFile(cast("IO[bytes]", counted))
            else:
                yield counted


class MergedLogs:
    """Merges the requests of several logs by time: rotated files in any order, or those of several servers.

    A file is opened when the time of its first line has come, so a year of rotated files takes no more memory and open
    files than one day. Each log's lines are expected in order. Arguments and errors are those of `LogReader`; duplicate
    paths are read once.
    """

    def __init__(self, paths: Sequence[str], *, form: str = AUTO, columns: Mapping[str, str] | None = None) -> None:
        if not paths:
            raise UsageError("no access log given; - is the standard input")
        self.paths = [*dict.fromkeys(paths)]
        self._open = partial(LogReader, format=form, columns=columns)
        self._readers = [self._open(path) for path in self.paths]

    @property
    def total_bytes(self) -> int | None:
        """Stored size of all files; None if unknown in advance."""
        sizes = [reader.total_bytes for reader in self._readers]
        return None if None in sizes else sum([size or 0 for size in sizes])

    @property
    def read_bytes(self) -> int:
        return sum([reader.read_bytes for reader in self._readers])

    @property
    def unread(self) -> int:
        return sum([reader.unread_count for reader in self._readers])

    @property
    def unread_first(self) -> list[UnreadLine]:
        """The first of them in each file."""
        return [line for reader in self._readers for line in reader.unread_first]

    def __iter__(self) -> Iterator[Entry]:
        if len(self._readers) == 1:
            return iter(self._readers[0])
        begins = [_Begin(self._first_at(path)) for path in self.paths]
        logs = [chain([begin], reader) for begin, reader in zip(begins, self._readers, strict=True)]
        return (each for each in merge(*logs, key=attrgetter("at")) if isinstance(each, Entry))

    def _first_at(self, path: str) -> int:
        """Return the time of the first line. Standard input cannot be read twice: it begins immediately."""
        if path == STDIN:
            return -_NEVER
        first = next(iter(self._open(path)), None)
        return first.at if first is not None else _NEVER


class _Begin(NamedTuple):
    """Precedes the entries of a log, so that merging opens the file only when its time has come."""

    at: int


def _size(path: str) -> int | None:
    """Return the size of a file in bytes; None if unknown in advance. Raises UsageError."""
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

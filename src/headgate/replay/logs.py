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
from heapq import heappop, heappush
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

__all__ = ["AUTO", "FORMATS", "STDIN", "Entry", "LogReader", "MergedLogs", "Unread", "UnreadLine"]
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
    """One format of access logs."""

    about: str
    begin: Callable[[str, Mapping[str, str]], Parser]
    """Takes the first line and the names of columns; raises ValueError for another format."""
    has_names: bool = False


def _text(parse: Callable[[str], Entry]) -> Callable[[str, Mapping[str, str]], Parser]:
    """Return the `begin` of a format without header and named columns."""

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


class Unread:
    """The number of lines that could not be parsed, and the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[UnreadLine] = []

    def add(self, file: str, line: int, why: str, excerpt: str = "") -> None:
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(UnreadLine(file, line, why, printable(excerpt[:_EXCERPT])))


class _Readable(Protocol):
    def read1(self, size: int, /) -> bytes: ...


class _Counted:
    """A file that counts the bytes read from it."""

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
    """Reads the requests of access logs, file by file.

    Args:
        paths: the files; `-` is the standard input. They may be compressed with gzip or zstd.
        format: one of `FORMATS`; `auto` detects it from the first lines of each file.
        columns: the column of CSV, JSON lines or W3C logs for a field of `Entry` or, under another name, for one of its
            `fields`: ``{"user": "x_user_id", "region": "cf_region"}``.

    Raises UsageError if a file cannot be opened, or, while reading, if its format is unknown.
    """

    def __init__(self, paths: Sequence[str], *, format: str = AUTO, columns: Mapping[str, str] | None = None) -> None:  # noqa: A002
        if format != AUTO and format not in FORMATS:
            raise UsageError(f"unknown format {format!r}; {_names()}")
        if columns and format != AUTO and not FORMATS[format].has_names:
            raise UsageError(f"format {format} has no named fields: columns require json, csv or w3c")
        if not paths:
            raise UsageError("no access log given; - is the standard input")
        self._paths, self._format, self._columns = tuple(paths), format, dict(columns or {})
        sizes = [_size(path) for path in self._paths]
        self.total_bytes = None if None in sizes else sum(size for size in sizes if size is not None)
        """Stored size of all files; None if unknown in advance."""
        self.read_bytes = 0
        self.unread = Unread()
        self._parser: Parser | None = None

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the requests; invalid lines are counted in `unread`."""
        for path in self._paths:
            name, number, parse = "stdin" if path == STDIN else path, 0, None
            for lines in self._lines(path, name):
                if parse is None:
                    parse = self._recognised(lines, name)
                if parse is None:  # no line of the block can be parsed
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
        """Return the parser for a block of lines; None if all are empty. Raises UsageError."""
        written = [line for line in lines if line and not line.isspace()]
        for line in written:
            found = self._begun(line, name)
            if found is not None:
                self._parser = found
                return found
        if not written or self._parser is not None:  # keep the previous file's parser, so that each line is counted
            return self._parser if written else None
        shown = repr(printable(written[0][:_EXCERPT]))
        if self._format != AUTO:
            raise UsageError(f"{name}: not in format {self._format} ({self._why(written[0])}): {shown}")
        raise UsageError(f"{name}: unknown format: {shown}\n{_names()}")

    def _begun(self, line: str, name: str) -> Parser | None:
        """Return the parser for a line; None if no format matches. Raises UsageError."""
        for kind in FORMATS.values() if self._format == AUTO else [FORMATS[self._format]]:
            try:
                found = kind.begin(line, self._columns)
            except UsageError as error:
                raise UsageError(f"{name}: {error}") from None
            except (ValueError, OverflowError):
                continue
            if self._columns and not kind.has_names:
                raise UsageError(f"{name}: no named fields: columns require json, csv or w3c")
            return found
        return None

    def _why(self, line: str) -> str:
        try:
            FORMATS[self._format].begin(line, self._columns)
        except (ValueError, OverflowError) as error:
            return str(error)
        return ""

    def _lines(self, path: str, name: str) -> Iterator[list[str]]:
        """Iterate over blocks of lines; an undecodable line is counted and empty."""
        number, rest, too_long = 0, b"", False
        try:
            with self._opened(path, name) as file:
                while block := file.read1(_BLOCK):
                    whole, newline, rest = (rest + block).rpartition(b"\n")
                    if newline:
                        if too_long:  # skip the rest of the long line
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
            why = "the compressed data ends early" if isinstance(error, EOFError) else f"read error: {error}"
            self.unread.add(name, number + 1, why)

    def _decoded(self, block: bytes, name: str, number: int) -> list[str]:
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
                self._add_bytes(name, index, why, line)
            lines.append("" if why else text)
        return lines

    def _add_bytes(self, name: str, number: int, why: str, line: bytes) -> None:
        self.unread.add(name, number, why, line[:_EXCERPT].decode("utf-8", "replace"))

    @contextmanager
    def _opened(self, path: str, name: str) -> Iterator[_Readable]:
        """Open and decompress a file. Raises UsageError."""
        with nullcontext(sys.stdin.buffer) if path == STDIN else Path(path).open("rb") as file:
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
        self._form, self._columns = form, columns
        self.paths = [*dict.fromkeys(paths)]
        self._readers = [self._reader(path) for path in self.paths]

    def _reader(self, path: str) -> LogReader:
        return LogReader([path], format=self._form, columns=self._columns)

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
        """The number of lines that could not be parsed."""
        return sum([reader.unread.count for reader in self._readers])

    @property
    def unread_first(self) -> list[UnreadLine]:
        """The first of them in each file."""
        return [line for reader in self._readers for line in reader.unread.first]

    def __iter__(self) -> Iterator[Entry]:
        if len(self._readers) == 1:
            yield from self._readers[0]
            return
        begins = [self._begin(path) for path in self.paths]
        waiting = sorted(range(len(begins)), key=begins.__getitem__, reverse=True)
        reading: list[tuple[int, int, Entry, Iterator[Entry]]] = []
        while reading or waiting:
            while waiting and (not reading or begins[waiting[-1]] <= reading[0][0]):
                place = waiting.pop()
                _go_on(reading, place, iter(self._readers[place]))
            if not reading:
                continue
            _, place, entry, lines = heappop(reading)
            yield entry
            if not reading:  # nothing to merge until the next file begins
                until = begins[waiting[-1]] if waiting else _NEVER
                for following in lines:
                    if following.at >= until:
                        heappush(reading, (following.at, place, following, lines))
                        break
                    yield following
            else:
                _go_on(reading, place, lines)

    def _begin(self, path: str) -> int:
        """Return the time of the first line. Standard input cannot be read twice: it begins immediately."""
        if path == STDIN:
            return -_NEVER
        first = next(iter(self._reader(path)), None)
        return first.at if first is not None else _NEVER


def _go_on(reading: list[tuple[int, int, Entry, Iterator[Entry]]], place: int, lines: Iterator[Entry]) -> None:
    """Queue the next line of a log for merging."""
    entry = next(lines, None)
    if entry is not None:
        heappush(reading, (entry.at, place, entry, lines))


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

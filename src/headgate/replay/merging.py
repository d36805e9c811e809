"""Several access logs as one: rotated files in whatever order they are named, or those of several servers.

Lines are merged by time. A file is opened when the time of its first line has come, so that a year of rotated files
takes no more memory, and no more open files, than those of one day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush

from headgate.replay.logs import AUTO, STDIN, Entry, LogReader, UnreadLine

_NEVER = 1 << 62


class MergedLogs:
    """Reads the requests of several logs by their times, as far as the lines of each log are in order.

    Args:
        paths: the files; a file that is named twice is read once.
        form: see `headgate.replay.logs.LogReader`; so are the columns.
        columns: see there.

    Raises UsageError: a file cannot be opened, or (when lines are read) its format is not known.
    """

    def __init__(self, paths: Sequence[str], *, form: str = AUTO, columns: Mapping[str, str] | None = None) -> None:
        self._form, self._columns = form, columns
        self.paths = [*dict.fromkeys(paths)]
        self._readers = [self._reader(path) for path in self.paths]

    def _reader(self, path: str) -> LogReader:
        return LogReader([path], format=self._form, columns=self._columns)

    @property
    def total_bytes(self) -> int | None:
        """Of all files, as they are stored; None if that is not known in advance."""
        sizes = [reader.total_bytes for reader in self._readers]
        return None if None in sizes else sum([size or 0 for size in sizes])

    @property
    def read_bytes(self) -> int:
        return sum([reader.read_bytes for reader in self._readers])

    @property
    def unread(self) -> int:
        """How many lines could not be read."""
        return sum([reader.unread.count for reader in self._readers])

    @property
    def unread_first(self) -> list[UnreadLine]:
        """The first of them, of each file."""
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
            if not reading:  # nothing to merge with until the next file begins
                until = begins[waiting[-1]] if waiting else _NEVER
                for following in lines:
                    if following.at >= until:
                        heappush(reading, (following.at, place, following, lines))
                        break
                    yield following
            else:
                _go_on(reading, place, lines)

    def _begin(self, path: str) -> int:
        """Return the time of the first line. The standard input cannot be read twice: it begins at once."""
        if path == STDIN:
            return -_NEVER
        first = next(iter(self._reader(path)), None)
        return first.at if first is not None else _NEVER


def _go_on(reading: list[tuple[int, int, Entry, Iterator[Entry]]], place: int, lines: Iterator[Entry]) -> None:
    """Put the next line of a log among those that are merged."""
    entry = next(lines, None)
    if entry is not None:
        heappush(reading, (entry.at, place, entry, lines))

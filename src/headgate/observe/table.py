"""A table of counters in memory that other processes may read while one writes.

The memory is a mapping of a file, so that what was counted outlives the process that counted it, however that ends; a
successor goes on where it stopped. Nothing is locked. There is one writer; adding to a cell is one aligned store of 8
bytes, which no reader sees half done.

The layout, in cells of 8 bytes::

    head      what this is, how many series there are; and room for what finds no other
    values    each series has one cell or several, side by side
    names     a record for each series, in the same order

A record is two lengths of 2 bytes (the name in bytes, the cells) and the name, which is that of the metric, a zero
byte, and the labels. A new series is written behind all others, and then announced by the head: a reader, or a
successor, never looks beyond what was announced.
"""

from __future__ import annotations

from typing import NamedTuple

from headgate.core.errors import UsageError
from headgate.observe.families import FAMILIES, Family, Kind
from headgate.observe.labels import written

_MAGIC = 0x3130454741544148  # "HATAGE01"
_SERIES = 1
_HEAD = 64
_SCRATCH = 8
CELLS = 1 << 16
NAMES = 8 << 20
_NAMES_AT = (_HEAD + CELLS) * 8
SIZE = _NAMES_AT + NAMES
"""Bytes. Pages that are never touched cost nothing."""


class Series(NamedTuple):
    """A series as a reader sees it."""

    family: Family
    labels: str
    values: tuple[int, ...]


class Table:
    """The writer's end.

    Args:
        memory: `SIZE` bytes, writable. What a predecessor left there is kept, unless another version wrote it.

    Raises:
        UsageError: what is there was not written by a table.
    """

    __slots__ = ("_bytes", "_end", "_found", "_used", "cells")

    def __init__(self, memory: memoryview) -> None:
        self._bytes = memory
        self.cells = memory[:_NAMES_AT].cast("q")
        """Add to a cell with ``table.cells[place] += 1``, where `place` is what `place_of` returned."""
        self._found: dict[tuple[str, str], int] = {}
        if self.cells[0] != _MAGIC:
            for cell in range(_HEAD):
                self.cells[cell] = 0
            self.cells[0] = _MAGIC
        self._end, self._used = _NAMES_AT, _HEAD  # where the next record goes, and the next cell
        for _ in range(self.cells[_SERIES]):
            record = _record(memory, self._end, self._used)
            if record is None:
                raise UsageError("the counters of a predecessor are damaged: remove the file")
            if record.name not in FAMILIES or FAMILIES[record.name].cells == record.cells:
                self._found[record.name, record.labels] = self._used
            self._end, self._used = record.end, self._used + record.cells

    def __len__(self) -> int:
        return len(self._found)

    def place_of(self, family: Family, *values: str) -> int:
        """Return the first cell of a series, by the values of its labels. A new series begins with 0.

        When the table is full, that is a cell that nobody reads.
        """
        labels = written(family.labels, values)
        place = self._found.get((family.name, labels))
        return self._added(family, labels) if place is None else place

    def has(self, family: Family, *values: str) -> bool:
        """Say whether there is such a series."""
        return (family.name, written(family.labels, values)) in self._found

    def _added(self, family: Family, labels: str) -> int:
        cells, count, place = self.cells, family.cells, self._used
        name = f"{family.name}\0{labels}".encode()
        end = self._end + 4 + len(name)
        if place + count > _HEAD + CELLS or end > SIZE:
            return _SCRATCH
        for cell in range(place, place + count):  # a predecessor may have ended before it announced its series
            cells[cell] = 0
        self._bytes[self._end : end] = len(name).to_bytes(2, "little") + count.to_bytes(2, "little") + name
        cells[_SERIES] += 1  # last: now it can be seen
        self._end, self._used = end, place + count
        self._found[family.name, labels] = place
        return place

    def clear_gauges(self) -> None:
        """Forget what was true of a predecessor only."""
        for name, labels in self._found:
            family = FAMILIES.get(name)
            if family is not None and family.kind is Kind.GAUGE:
                self.cells[self._found[name, labels]] = 0

    def close(self) -> None:
        """Let go of the memory."""
        self.cells.release()
        self._bytes.release()


class Reader:
    """A reader's end. What was once found is not looked for again, so reading often costs little.

    Args:
        memory: that of a table, perhaps of another process.
    """

    def __init__(self, memory: memoryview) -> None:
        self._bytes = memory
        self._cells = memory[:_NAMES_AT].cast("q")
        self._found: list[tuple[Family, str, int, int]] = []
        self._seen, self._position, self._place = 0, _NAMES_AT, _HEAD

    def read(self) -> list[Series]:
        """Return all series that the writer has announced, but none of metrics that are not known here."""
        while self._seen < _announced(self._cells):
            record = _record(self._bytes, self._position, self._place)
            if record is None:
                break
            family = FAMILIES.get(record.name)
            if family is not None and family.cells == record.cells:
                self._found.append((family, record.labels, self._place, self._place + record.cells))
            self._seen, self._position, self._place = self._seen + 1, record.end, self._place + record.cells
        cells = self._cells
        return [Series(family, labels, tuple(cells[begin:end])) for family, labels, begin, end in self._found]

    def close(self) -> None:
        """Let go of the memory."""
        self._cells.release()
        self._bytes.release()


class _Record(NamedTuple):
    name: str
    labels: str
    cells: int
    end: int


def _announced(cells: memoryview) -> int:
    return int(cells[_SERIES]) if cells[0] == _MAGIC else 0


def _record(memory: memoryview, position: int, place: int) -> _Record | None:
    """Return the record at a position; None if what was announced is not there yet: the next reader finds it."""
    length = int.from_bytes(memory[position : position + 2], "little")
    cells = int.from_bytes(memory[position + 2 : position + 4], "little")
    end = position + 4 + length
    if not (length and cells) or place + cells > _HEAD + CELLS or end > SIZE:
        return None
    name, _, labels = bytes(memory[position + 4 : end]).decode(errors="replace").partition("\0")
    return _Record(name, labels, cells, end)

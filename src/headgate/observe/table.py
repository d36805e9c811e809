"""A table of counters in memory with one writer, which other processes may read.

The memory maps a file, so the counts survive a crash of the process, and a successor continues them. There are no
locks: adding to a cell is one aligned store of 8 bytes, which readers never see half done.

The layout, in cells of 8 bytes::

    head      magic number, number of series; a scratch cell for a full table
    values    each series has one or several adjacent cells
    names     a record for each series, in the same order

A record is two lengths of 2 bytes (the name in bytes, the cells) and the name: the metric, a zero byte, and the labels.
A new series is appended, and then announced in the head: readers and successors never look beyond it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headgate.core.errors import UsageError
from headgate.observe.metrics import METRICS, Metric, MetricKind

_MAGIC = 0x3130454741544148  # "HATAGE01"
_SERIES = 1
_HEAD = 64
_SCRATCH = 8
CELLS = 1 << 16
NAMES = 8 << 20
_NAMES_AT = (_HEAD + CELLS) * 8
SIZE = _NAMES_AT + NAMES
"""Bytes. Untouched pages cost nothing."""
LONGEST_VALUE = 200
"""Longest value of a label, in characters."""
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_LABEL = re.compile(r'[a-z_]+="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class Series(NamedTuple):
    metric: Metric
    labels: str
    values: tuple[int, ...]


class Place(NamedTuple):
    metric: Metric
    labels: str
    begin: int
    end: int


class CounterTable:
    """The writer of a table in `SIZE` writable bytes, which keeps a predecessor's counts of the same version.

    Raises UsageError if the memory has other content.
    """

    __slots__ = ("_bytes", "_end", "_found", "_used", "cells")

    def __init__(self, memory: memoryview) -> None:
        self._bytes = memory
        self.cells = memory[:_NAMES_AT].cast("q")
        """Add to a cell with ``table.cells[cell] += 1``, where `cell` is what `cell_of` returned."""
        self._found: dict[tuple[str, str], int] = {}
        if self.cells[0] != _MAGIC:
            for cell in range(_HEAD):
                self.cells[cell] = 0
            self.cells[0] = _MAGIC
        self._end, self._used = _NAMES_AT, _HEAD  # of the next record, and the next cell
        for _ in range(self.cells[_SERIES]):
            record = _record(memory, self._end, self._used)
            if record is None:
                raise UsageError("the counters of a predecessor are damaged: remove the file")
            name, labels, cells, self._end = record
            if name not in METRICS or METRICS[name].cells == cells:
                self._found[name, labels] = self._used
            self._used += cells

    def __len__(self) -> int:
        return len(self._found)

    def cell_of(self, metric: Metric, *values: str) -> int:
        """Return the first cell of a series by label values. A new series begins with 0.

        In a full table, it is a cell that is not read.
        """
        labels = labels_of(metric.labels, values)
        cell = self._found.get((metric.name, labels))
        return self._added(metric, labels) if cell is None else cell

    def has(self, metric: Metric, *values: str) -> bool:
        return (metric.name, labels_of(metric.labels, values)) in self._found

    def _added(self, metric: Metric, labels: str) -> int:
        cells, count, first = self.cells, metric.cells, self._used
        name = f"{metric.name}\0{labels}".encode()
        end = self._end + 4 + len(name)
        if first + count > _HEAD + CELLS or end > SIZE:
            return _SCRATCH
        for cell in range(first, first + count):  # a predecessor may have crashed before announcing them
            cells[cell] = 0
        self._bytes[self._end : end] = len(name).to_bytes(2, "little") + count.to_bytes(2, "little") + name
        cells[_SERIES] += 1  # announce it last
        self._end, self._used = end, first + count
        self._found[metric.name, labels] = first
        return first

    def clear_gauges(self) -> None:
        for name, labels in self._found:
            metric = METRICS.get(name)
            if metric is not None and metric.kind is MetricKind.GAUGE:
                self.cells[self._found[name, labels]] = 0

    def close(self) -> None:
        self.cells.release()
        self._bytes.release()


class Counts(Iterable[Series]):
    """All series of a table at one moment, in the order of creation."""

    __slots__ = ("cells", "places")

    def __init__(self, places: list[Place], cells: list[int]) -> None:
        self.places = places
        """The cells of each series."""
        self.cells = cells

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Series]:
        cells = self.cells
        return iter([Series(metric, labels, tuple(cells[begin:end])) for metric, labels, begin, end in self.places])

    def of(self, metric: Metric) -> Iterator[Series]:
        cells = self.cells
        return (
            Series(metric, place.labels, tuple(cells[place.begin : place.end]))
            for place in self.places
            if place.metric is metric
        )


class TableReader:
    """A reader of a table. It finds each series only once, so repeated reading is cheap."""

    def __init__(self, memory: memoryview) -> None:
        self._bytes = memory
        self._cells = memory[:_NAMES_AT].cast("q")
        self._found: list[Place] = []
        self._seen, self._position, self._cell = 0, _NAMES_AT, _HEAD

    def read(self) -> Counts:
        """Return all announced series of known metrics."""
        while self._cells[0] == _MAGIC and self._seen < self._cells[_SERIES]:
            record = _record(self._bytes, self._position, self._cell)
            if record is None:
                break
            name, labels, cells, self._position = record
            metric, end = METRICS.get(name), self._cell + cells
            if metric is not None and metric.cells == cells:
                self._found.append(Place(metric, labels, self._cell, end))
            self._seen, self._cell = self._seen + 1, end
        return Counts(self._found.copy(), self._cells[: self._cell].tolist())

    def close(self) -> None:
        self._cells.release()
        self._bytes.release()


def _record(memory: memoryview, position: int, cell: int) -> tuple[str, str, int, int] | None:
    """Return the name, labels and number of cells of the record at a position, and its end; None if not yet visible."""
    length = int.from_bytes(memory[position : position + 2], "little")
    cells = int.from_bytes(memory[position + 2 : position + 4], "little")
    end = position + 4 + length
    if not (length and cells) or cell + cells > _HEAD + CELLS or end > SIZE:
        return None
    name, _, labels = bytes(memory[position + 4 : end]).decode(errors="replace").partition("\0")
    return name, labels, cells, end


def labels_of(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Return labels as text, such as ``rule="orders",outcome="denied"``. Long values are cut.

    Trailing labels without values are omitted, which Prometheus treats as empty. Invalid UTF-8 and control characters
    are replaced, so no value can end a line or another label.
    """
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=False)])


def values_of(labels: str) -> tuple[str, ...]:
    """Return the values of labels written by `labels_of`, in order."""
    return tuple(
        _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], value) for value in _LABEL.findall(labels)
    )


def _escaped(value: str) -> str:
    if len(value) > LONGEST_VALUE:
        value = value[: LONGEST_VALUE - 3] + "..."
    if not (value.isascii() and value.isprintable()):
        value = value.encode(errors="replace").decode()
        value = "".join([each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in value])
    return value.translate(_ESCAPES)

"""The counters of all workers of a node, which any of them can export.

A directory has a file for each worker's slot. A worker locks its file until the process ends, so the lock also says
which workers are alive. A replacement worker gets the same slot and continues its counters.

Output is the text format of Prometheus (0.0.4), or OpenMetrics (1.0.0) on request.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from headgate.clock import BOUNDS_NS, BUCKETS
from headgate.core.errors import UsageError
from headgate.files import replace_file
from headgate.observe import metrics
from headgate.observe.hot_keys import HALF_LIFE, HotKey, HotList, merged_lists
from headgate.observe.metrics import METRICS, NANO, Metric, MetricKind
from headgate.observe.principal_use import WindowUse
from headgate.observe.refusals import Refusal
from headgate.observe.table import SIZE, CounterTable, Counts, Series, TableReader

PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
Merged: TypeAlias = Mapping[str, Mapping[str, tuple[int, ...]]]
"""Values of each series, by metric and labels."""
_LOG = logging.getLogger("headgate.observe")
_ENDING = ".metrics"
MOST_FILES = 100
"""Unread files of one worker; then no more are written."""
T = TypeVar("T", bound=msgspec.Struct)
_TRIES = 50
_PAUSE = 0.01
_BOUNDS = [repr(bound / NANO) for bound in BOUNDS_NS]
_decode = msgspec.json.Decoder(HotList).decode
_encode = msgspec.json.Encoder().encode


class HotReport(msgspec.Struct, frozen=True):
    """The response of ``/hotkeys``."""

    workers: int
    """Number of worker processes included."""
    half_life_seconds: int
    """Half-life of the rates."""
    hot: tuple[HotKey, ...]
    denied: tuple[HotKey, ...]
    would_refuse: tuple[HotKey, ...]


class NodeCounters:
    """The counters of this process and its siblings; without slots, it is alone and its counters end with it."""

    def __init__(self, slots: Slots | None, slot: int) -> None:
        self._slots = slots
        self._reading = threading.Lock()  # output is rendered in threads
        self._own = slots.open(slot) if slots else None
        if self._own:
            self.table = self._own.table
            """The counters of this process."""
        else:
            self._alone = mmap.mmap(-1, SIZE)
            self.table = CounterTable(memoryview(self._alone))
            self._reader = TableReader(memoryview(self._alone))
        self._shown = HotList()

    def metrics(self, accept: bytes | None) -> tuple[bytes, bytes]:
        """Return the content type and the text of all workers' metrics."""
        slices = self.slices()
        values = dict(merged((each.alive, each.series) for each in slices))
        values[metrics.WORKERS.name] = {"": (sum(each.alive for each in slices),)}
        openmetrics = wants_openmetrics(accept)
        return OPENMETRICS if openmetrics else PROMETHEUS, rendered(values, openmetrics=openmetrics)

    def slices(self) -> list[Slice]:
        """Return the counters of each worker; thread-safe."""
        with self._reading:
            return self._slots.read() if self._slots else [Slice(0, True, self._reader.read())]

    def show(self, hot: HotList) -> None:
        """Publish the hot keys of this process to its siblings."""
        if self._own and self._slots and hot != self._shown:
            self._shown = hot
            try:
                replace_file(_hot_file(self._slots, self._own.number), _encode(hot), durable=False)
            except OSError as error:  # a full disk must not stop other work
                _LOG.warning("cannot share the hot keys of this worker: %s", error)

    def hot_keys(self, own: HotList) -> bytes:
        """Return hot keys as JSON: the current ones of this process, the last published ones of others."""
        return _reported([own, *self._others()])

    @property
    def has_siblings(self) -> bool:
        """Whether this process is one of several, or supervised."""
        return self._own is not None

    def leave(self, uses: list[WindowUse]) -> None:
        """Hand over usage to the supervising process."""
        if self._own and self._slots:
            USES.leave(self._slots.directory, self._own.number, uses)

    def leave_refusals(self, refusals: list[Refusal]) -> None:
        """Hand over refusals to the supervising process."""
        if self._own and self._slots:
            REFUSALS.leave(self._slots.directory, self._own.number, refusals)

    def close(self) -> None:
        with self._reading:
            if self._own and self._slots:
                _hot_file(self._slots, self._own.number).unlink(missing_ok=True)
                self._own.close()
                self._slots.close()
            else:
                self._reader.close()
                self.table.close()
                self._alone.close()

    def _others(self) -> Iterable[HotList]:
        if not (self._slots and self._own):
            return
        with self._reading:
            slots = self._slots.alive()
        for slot in slots:
            if slot != self._own.number:
                yield _hot_list(self._slots, slot)


def _hot_file(slots: Slots, slot: int) -> Path:
    return slots.directory / f"{slot}.hot"


def _reported(lists: list[HotList]) -> bytes:
    hot = merged_lists(lists)
    return _encode(HotReport(len(lists), HALF_LIFE, hot.hot, hot.denied, hot.would_refuse))


def _hot_list(slots: Slots, slot: int) -> HotList:
    try:
        return _decode(_hot_file(slots, slot).read_bytes())
    except FileNotFoundError:  # nothing published yet
        return HotList()


class Spool(Generic[T]):
    """Files with which workers hand over records to the supervising process."""

    def __init__(self, ending: str, kind: type[T]) -> None:
        self._ending, self._encode = ending, msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[kind]).decode  # type: ignore[valid-type]

    def leave(self, folder: Path, slot: int, items: Sequence[T]) -> None:
        """Write a worker's records, unless too many files are unread."""
        if not items or len(list(folder.glob(f"{slot}-*{self._ending}"))) >= MOST_FILES:
            return
        try:
            replace_file(folder / f"{slot}-{time.time_ns()}{self._ending}", self._encode(items), durable=False)
        except OSError as error:  # a full disk must not stop other work
            _LOG.warning("cannot hand over a worker's records: %s", error)

    def left_in(self, folder: Path) -> Iterator[T]:
        """Read and remove all records. Raises OSError."""
        for path in sorted(folder.glob(f"*{self._ending}")):
            content = path.read_bytes()
            path.unlink()
            try:
                yield from self._decode(content)
            except msgspec.MsgspecError as error:
                _LOG.warning("cannot read %s: %s", path, error)


USES, REFUSALS = Spool(".use", WindowUse), Spool(".refusals", Refusal)


class Slice(NamedTuple):
    """The counters of one worker."""

    slot: int
    alive: bool
    series: Counts


class Slots:
    """A directory of files for the workers' counters, writable by this user only."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._read: dict[int, _Reading] = {}
        self._reading = threading.Lock()  # several threads of the admin plane read

    def open(self, slot: int) -> Slot:
        """Return the counters of a slot for its worker. Raises UsageError if another one is alive.

        A missing directory is created again: cleaners of temporary files may have removed it.
        """
        self.directory.mkdir(mode=0o700, exist_ok=True)
        return Slot(self.directory / f"{slot}{_ENDING}", slot)

    def read(self) -> list[Slice]:
        """Return the counters of all workers, including those that ended."""
        with self._reading:
            self._look()
            return [Slice(slot, each.is_locked(), each.reader.read()) for slot, each in sorted(self._read.items())]

    def alive(self) -> list[int]:
        """Return the slots of live workers."""
        with self._reading:
            self._look()
            return [slot for slot, each in sorted(self._read.items()) if each.is_locked()]

    def taken_use(self, *, everything: bool = False) -> list[WindowUse]:  # noqa: ARG002  workers hand over all at their end
        """Return and remove the usage that workers handed over. Raises OSError."""
        return list(USES.left_in(self.directory))

    def taken_refusals(self) -> list[Refusal]:
        """Return and remove the refusals that workers handed over. Raises OSError."""
        return list(REFUSALS.left_in(self.directory))

    def hot_keys(self) -> bytes:
        """Return the workers' last published hot keys as JSON."""
        return _reported([_hot_list(self, slot) for slot in self.alive()])

    def close(self) -> None:
        """Release the files of other workers."""
        with self._reading:
            for reading in self._read.values():
                reading.close()
            self._read.clear()

    def _look(self) -> None:
        for path in self.directory.glob(f"*{_ENDING}"):
            number = path.name.removesuffix(_ENDING)
            if number.isdecimal() and int(number) not in self._read and path.stat().st_size >= SIZE:
                self._read[int(number)] = _Reading(path)


class Slot:
    """The counters of one worker, in a file that outlives it."""

    def __init__(self, path: Path, number: int) -> None:
        self.number = number
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._file)
            _reserve(self._file, SIZE)
            self._map = mmap.mmap(self._file, SIZE)
        except BlockingIOError:
            os.close(self._file)
            raise UsageError(f"{path}: in use by another process; give each worker its own slot") from None
        except OSError as error:  # such as a full disk; add the path
            os.close(self._file)
            raise OSError(error.errno, error.strerror, str(path)) from None
        except BaseException:
            os.close(self._file)
            raise
        self.table = CounterTable(memoryview(self._map))
        self.table.clear_gauges()

    def close(self) -> None:
        """Release the file; the counts stay in it."""
        self.table.close()
        self._map.close()
        os.close(self._file)


class _Reading:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._map = mmap.mmap(self._file, SIZE, access=mmap.ACCESS_READ)
        self.reader = TableReader(memoryview(self._map))

    def is_locked(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        self.reader.close()
        self._map.close()
        os.close(self._file)


def _lock(file: int) -> None:
    """Lock a file; retry, since readers that test the lock hold it briefly."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE)
        else:
            return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _reserve(file: int, size: int) -> None:
    """Set the size of a file, and allocate its blocks where possible: a full disk would crash the process later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    elif os.fstat(file).st_size < size:
        os.ftruncate(file, size)


def merged(slices: Iterable[tuple[bool, Iterable[Series]]]) -> Merged:
    """Merge the values of all workers, each given with whether it is alive."""
    found: dict[str, dict[str, tuple[int, ...]]] = {name: {} for name in METRICS}
    for alive, series in slices:
        for metric, labels, values in series:
            if not alive and metric.kind is MetricKind.GAUGE:
                continue
            known = found[metric.name]
            if labels in known:
                values = tuple([metric.merged(a, b) for a, b in zip(known[labels], values, strict=True)])  # noqa: PLW2901
            known[labels] = values
    return found


def wants_openmetrics(accept: bytes | None) -> bool:
    """Return whether an Accept header asks for OpenMetrics, as Prometheus does."""
    return accept is not None and b"application/openmetrics-text" in accept.lower()


def rendered(values: Merged, *, openmetrics: bool = False) -> bytes:
    """Return the text format."""
    lines: list[str] = []
    for metric in METRICS.values():
        series = values.get(metric.name)
        if not series:
            continue
        name = metric.name if openmetrics else metric.shown_name
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        for labels, cells in sorted(series.items()):
            if metric.kind is MetricKind.HISTOGRAM:
                _histogram(lines, metric, labels, cells)
            else:
                lines.append(f"{metric.shown_name}{_braced(labels)} {_number(cells[0], metric.scale)}")
    if openmetrics:
        lines.append("# EOF")
    lines.append("")
    return "\n".join(lines).encode()


def _histogram(lines: list[str], metric: Metric, labels: str, cells: Sequence[int]) -> None:
    before = f"{labels}," if labels else ""
    count = 0
    for bound, bucket in zip(_BOUNDS, cells, strict=False):
        count += bucket
        lines.append(f'{metric.name}_bucket{{{before}le="{bound}"}} {count}')
    count = sum(cells[:BUCKETS])
    lines.append(f'{metric.name}_bucket{{{before}le="+Inf"}} {count}')
    lines.append(f"{metric.name}_count{_braced(labels)} {count}")
    lines.append(f"{metric.name}_sum{_braced(labels)} {_number(cells[-1], metric.scale)}")


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _number(cell: int, scale: int) -> str:
    return str(cell) if scale == 1 else repr(cell / scale)

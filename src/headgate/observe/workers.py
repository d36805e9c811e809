"""The counters of all workers of a node, which any of them can export.

A directory has a file for each worker. A worker locks its file until the process ends, so the lock also shows
which workers are alive. A replacement worker gets the same number and continues its counters.

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
from headgate.observe.hot_keys import HALF_LIFE, HotList, merged_lists
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


class NodeCounters:
    """The counters of this process and its siblings; without files, it is alone and its counters end with it."""

    def __init__(self, files: CounterFiles | None, worker: int) -> None:
        self._files = files
        self._reading = threading.Lock()  # output is rendered in threads
        self._own = files.open(worker) if files else None
        if self._own:
            self.table = self._own.table
            """The counters of this process."""
        else:
            self._alone = mmap.mmap(-1, SIZE)
            self.table = CounterTable(memoryview(self._alone))
            self._reader = TableReader(memoryview(self._alone))
        self._shown = HotList()

    def metrics(self, accept: bytes | None) -> tuple[bytes, bytes]:
        workers = self.worker_counts()
        values = dict(merge((each.alive, each.series) for each in workers))
        values[metrics.WORKERS.name] = {"": (sum(each.alive for each in workers),)}
        openmetrics = wants_openmetrics(accept)
        return OPENMETRICS if openmetrics else PROMETHEUS, render(values, openmetrics=openmetrics)

    def worker_counts(self) -> list[WorkerCounts]:
        """Return the counters of each worker; thread-safe."""
        with self._reading:
            return self._files.read() if self._files else [WorkerCounts(0, True, self._reader.read())]

    def show(self, hot: HotList) -> None:
        """Publish the hot keys of this process to its siblings."""
        if self._own and self._files and hot != self._shown:
            self._shown = hot
            _share("share the hot keys of this worker", self._files.hot_file(self._own.number), _encode(hot))

    def hot_keys(self, own: HotList) -> bytes:
        """Return hot keys as JSON: the current ones of this process, the last published ones of others."""
        if not (self._files and self._own):
            return _report([own])
        with self._reading:
            return _report([own, *self._files.hot_lists(but=self._own.number)])

    @property
    def has_siblings(self) -> bool:
        """Whether this process is one of several, or supervised."""
        return self._own is not None

    def hand_over(self, spool: Spool[T], records: Sequence[T]) -> None:
        """Hand over usage or refusals to the supervising process."""
        if self._own and self._files:
            spool.leave(self._files.directory, self._own.number, records)

    def close(self) -> None:
        with self._reading:
            if self._own and self._files:
                self._files.hot_file(self._own.number).unlink(missing_ok=True)
                self._own.close()
                self._files.close()
            else:
                self._reader.close()
                self.table.close()
                self._alone.close()


def _report(lists: list[HotList]) -> bytes:
    """Return the response of ``/hotkeys`` for the lists of some workers."""
    about = {"workers": len(lists), "half_life_seconds": HALF_LIFE}
    return _encode(about | msgspec.structs.asdict(merged_lists(lists)))


def _share(what: str, path: Path, content: bytes) -> None:
    """Write a file for other processes; a full disk must not stop other work."""
    try:
        replace_file(path, content, durable=False)
    except OSError as error:
        _LOG.warning("cannot %s: %s", what, error)


class Spool(Generic[T]):
    """Files with which workers hand over records to the supervising process."""

    def __init__(self, ending: str, kind: type[T]) -> None:
        self._ending, self._encode = ending, msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[kind]).decode  # type: ignore[valid-type]

    def leave(self, folder: Path, worker: int, items: Sequence[T]) -> None:
        """Write a worker's records, unless too many files are unread."""
        if items and len(list(folder.glob(f"{worker}-*{self._ending}"))) < MOST_FILES:
            path = folder / f"{worker}-{time.time_ns()}{self._ending}"
            _share("hand over a worker's records", path, self._encode(items))

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


class WorkerCounts(NamedTuple):
    number: int
    alive: bool
    series: Counts


class CounterFiles:
    """A directory of files for the workers' counters, writable by this user only."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._read: dict[int, _Reading] = {}
        self._reading = threading.Lock()  # several threads of the admin plane read

    def open(self, worker: int) -> CounterFile:
        """Return the counters of a worker, for that worker. Raises UsageError if another one is alive."""
        return CounterFile(self.directory / f"{worker}{_ENDING}", worker)

    def read(self) -> list[WorkerCounts]:
        """Return the counters of all workers, including those that ended."""
        with self._reading:
            self._look()
            return [
                WorkerCounts(worker, each.is_locked(), each.reader.read())
                for worker, each in sorted(self._read.items())
            ]

    def take_use(self, *, everything: bool = False) -> list[WindowUse]:  # noqa: ARG002  workers hand over all at their end
        return list(USES.left_in(self.directory))

    def take_refusals(self) -> list[Refusal]:
        return list(REFUSALS.left_in(self.directory))

    def hot_keys(self) -> bytes:
        """Return the workers' last published hot keys as JSON."""
        return _report(self.hot_lists())

    def hot_file(self, worker: int) -> Path:
        return self.directory / f"{worker}.hot"

    def hot_lists(self, *, but: int | None = None) -> list[HotList]:
        """Return the last published hot keys of each live worker but one."""
        with self._reading:
            self._look()
            alive = [worker for worker, each in sorted(self._read.items()) if worker != but and each.is_locked()]
        found: list[HotList] = []
        for worker in alive:
            try:
                found.append(_decode(self.hot_file(worker).read_bytes()))
            except FileNotFoundError:  # nothing published yet
                found.append(HotList())
        return found

    def close(self) -> None:
        """Release the files of other workers."""
        with self._reading:
            for reading in self._read.values():
                reading.close()
            self._read.clear()

    def _look(self) -> None:
        for path in self.directory.glob(f"*{_ENDING}"):
            number = path.name.removesuffix(_ENDING)
            if not number.isdecimal() or (found := path.stat()).st_size < SIZE:
                continue
            known = self._read.get(int(number))
            if known is None or not os.path.samestat(known.status, found):  # the directory may have been made again
                self._read[int(number)] = _Reading(path)
                if known is not None:
                    known.close()


class CounterFile:
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
            raise UsageError(f"{path}: in use by another process; give each worker its own number") from None
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
        self.status = os.fstat(self._file)
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


def merge(workers: Iterable[tuple[bool, Iterable[Series]]]) -> Merged:
    """Merge the values of all workers, each given with whether it is alive."""
    found: dict[str, dict[str, tuple[int, ...]]] = {name: {} for name in METRICS}
    for alive, series in workers:
        for metric, labels, values in series:
            if not alive and metric.kind is MetricKind.GAUGE:
                continue
            known = found[metric.name]
            if labels in known:
                values = tuple([metric.merge(a, b) for a, b in zip(known[labels], values, strict=True)])  # noqa: PLW2901
            known[labels] = values
    return found


def wants_openmetrics(accept: bytes | None) -> bool:
    """Return whether an Accept header asks for OpenMetrics, as Prometheus does."""
    return accept is not None and b"application/openmetrics-text" in accept.lower()


def render(values: Merged, *, openmetrics: bool = False) -> bytes:
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

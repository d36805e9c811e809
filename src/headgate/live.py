"""Reloadable configuration: rules, descriptors, identity, caller keys, certificates.

`Live` has the value in force and follows its source. Readers take `Live.value` once per request: it is an immutable
snapshot, and swapping it is one assignment, so no request sees half of a change.

::

    source ── read, changed ──> compile ──> value            swapped, counted, logged
                  │                │
                  └── an error ────┴──────> the value stays   counted, logged: what is wrong, and where

An invalid change never replaces a valid value: it is ignored until the source changes again. Files and folders are
sources (`FileSource`); others need a name and report changes. Reading may block: it runs in its own thread. A source
that is notified of changes calls `Live.refresh` immediately; polling is the fallback.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from headgate.core.errors import UsageError

EVERY = 0.5
"""Polling interval in seconds."""
_LOG = logging.getLogger("headgate.live")
_FOREVER = 300
T = TypeVar("T")
R = TypeVar("R")
Raw_co = TypeVar("Raw_co", covariant=True)


class Source(Protocol[Raw_co]):
    """Provides data that may change."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        ...

    def read(self) -> Raw_co:
        """Return the current data. Raises UsageError, or OSError if unavailable."""
        ...

    def changed(self) -> Raw_co | None:
        """Return the data if it has changed since the last reading, else None. Raises like `read`, once per change."""
        ...


@dataclass(frozen=True, slots=True)
class LoadStatistics:
    loads: int
    """Values that came into force, including the first."""
    failures: int
    """Changes that were invalid or unavailable."""
    loaded_at: float
    """When the current value came into force, in seconds since the epoch."""
    error: str
    """Why the last change was invalid; empty if it was valid."""


class Live(Generic[T]):
    """Keeps a value up to date. As a context manager, it polls in a thread until the block ends.

    Args:
        source: provides the data.
        compiled: makes the value from the data and its version: 1, 2, and so on.
        what: the plural noun for messages, such as "rules".
        every: polling interval in seconds.

    Raises:
        UsageError, OSError: the first value is invalid or unavailable.

    Polling continues in forked children. The thread ends soon after the object, closed or not.
    """

    def __init__(
        self, source: Source[R], compiled: Callable[[R, int], T], *, what: str = "rules", every: float = EVERY
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int | float) or not 0.01 <= every <= _FOREVER:
            raise UsageError(f"every must be a number of seconds from 0.01 to {_FOREVER}, not {every!r}")
        self.what = what
        self._source: Source[Any] = source
        self._compiled, self._every = compiled, every
        self._statistics = LoadStatistics(1, 0, time.time(), "")
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        # Not one of `headgate.locks`: sources may block, and forks must not wait for them.
        self._lock = threading.Lock()
        self.value: T = compiled(source.read(), 1)
        """The value in force."""
        _alive.add(self)

    def refresh(self) -> bool:
        """Check the source once; return whether a new value is in force."""
        return self._replace(self._source.changed)

    def reload(self) -> bool:
        """Read the source, changed or not; return whether its value is in force now."""
        return self._replace(self._source.read)

    @property
    def is_looking(self) -> bool:
        """Whether the source is being read, so that its data may not be in force yet."""
        return self._lock.locked()

    def statistics(self) -> LoadStatistics:
        """Return the numbers of loads and failures, and the last error."""
        return self._statistics

    def start(self) -> None:
        """Poll the source from a daemon thread."""
        if self._thread is None:
            stop = self._stop = threading.Event()
            watch = weakref.ref(self), stop, self._every  # the thread does not keep the object alive
            self._thread = threading.Thread(target=_watch, args=watch, name=f"headgate-{self.what}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop polling; the value stays in force."""
        thread, self._thread = self._thread, None
        if thread:
            self._stop.set()
            thread.join()

    def _replace(self, read: Callable[[], Any]) -> bool:
        with self._lock:  # concurrent readers could put the older value in force last
            try:
                raw = read()
                if raw is None:
                    return False
                version = self._statistics.loads + 1
                value = self._compiled(raw, version)
            except Exception as error:  # noqa: BLE001  the value in force must survive any error of a source
                self._failed(error)
                return False
            self.value = value
            self._statistics = replace(self._statistics, loads=version, loaded_at=time.time(), error="")
        _LOG.info("%s: version %d of the %s is in force", self._source.name, version, self.what)
        return True

    def _failed(self, error: Exception) -> None:
        wrong = str(error) or type(error).__name__
        trace = None if isinstance(error, UsageError | OSError) else error
        message = wrong.replace("\n", "; ")
        _LOG.error("%s: the previous %s stay in force: %s", self._source.name, self.what, message, exc_info=trace)
        # Last, so that a counted failure is in the log already.
        self._statistics = replace(self._statistics, failures=self._statistics.failures + 1, error=wrong)

    def _resume_in_child(self) -> None:
        """Resume polling in a forked child, without the parent's thread and lock."""
        watched, self._thread = self._thread, None
        self._lock = threading.Lock()
        if watched:
            self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _watch(watched: Callable[[], Live[Any] | None], stop: threading.Event, every: float) -> None:
    """Poll a source until stopped, or until the object is gone."""
    while not stop.wait(every):
        live = watched()
        if live is None:
            return
        live.refresh()
        del live


_alive: weakref.WeakSet[Live[Any]] = weakref.WeakSet()


def _resume_all_in_child() -> None:
    for live in tuple(_alive):
        live._resume_in_child()  # noqa: SLF001  registering a method would keep its object alive


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_resume_all_in_child)


class FileSource(Generic[R]):
    """Data from one or several files.

    A file may be replaced by renaming (as editors and deployment tools do), rewritten in place, or be behind a symbolic
    link that is swapped, as in a Kubernetes ConfigMap. A change counts once the files are the same in two polls, so
    incomplete files are left alone.

    Args:
        path: the file or folder: its name in messages, and the argument of `load`.
        load: reads it. Raises UsageError or OSError.
        files: returns its files, at every poll; default: the one at `path`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        load: Callable[[Path], R],
        files: Callable[[Path], Iterable[Path]] = lambda path: (path,),
    ) -> None:
        self._path, self._load, self._files = Path(path), load, files
        self._others: list[Path] = []
        self._seen: _Marks | None = None  # at the last reading, even a failed one
        self._noticed: _Marks | None = None  # at the last poll

    @property
    def name(self) -> str:
        return str(self._path)

    def read(self) -> R:
        return self._load_marked(self._marks())

    def changed(self) -> R | None:
        marks = self._marks()
        is_settled, self._noticed = marks == self._noticed, marks
        return self._load_marked(marks) if is_settled and marks != self._seen else None

    def also(self, path: Path) -> None:
        """Also watch another file, until the next load. `load` calls it before reading a file named in the first."""
        self._others.append(path)
        if self._seen is not None:
            self._seen[path] = mark_of(path)

    def _marks(self) -> _Marks:
        return {path: mark_of(path) for path in (*self._files(self._path), *self._others)}

    def _load_marked(self, marks: _Marks) -> R:
        is_first, self._seen = self._seen is None, marks
        for mark in marks.values():
            if not (is_first or mark is None or stat.S_ISREG(mark.mode) or stat.S_ISDIR(mark.mode)):
                raise OSError(f"{mark.path} is a pipe or a device, which could block: it should be a file")
        self._others.clear()
        self._seen = {path: marks[path] for path in self._files(self._path) if path in marks}
        return self._load(self._path)


class FileMark(NamedTuple):
    """Identifies the content of a file without reading it."""

    path: str
    mode: int
    size: int
    content: tuple[int, ...]
    """Device, inode, and times of modification and change."""


_Marks: TypeAlias = dict[Path, FileMark | None]


def mark_of(path: Path) -> FileMark | None:
    """Return the current mark of a file; None if it is missing or inaccessible."""
    try:
        real = path.resolve(strict=True)
        found = real.stat()
    except (OSError, RuntimeError, ValueError):  # missing, a loop of links, or an invalid path: the loader reports it
        return None
    content = found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns
    return FileMark(str(real), found.st_mode, found.st_size, content)


def yaml_files(folder: Path) -> list[Path]:
    """Return the YAML files of a folder by name, without hidden ones; none if it is missing."""
    try:
        found = [path for path in folder.iterdir() if path.suffix in {".yaml", ".yml"}]
    except OSError:
        return []
    return sorted(path for path in found if not path.name.startswith("."))

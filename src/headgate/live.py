"""What is read from elsewhere and may change while it is used: rules, descriptors, identity, caller keys, certificates.

`Live` has the value in force and follows its source. Readers take `Live.value` once per request: it is a whole,
immutable snapshot, and swapping it is one assignment, so no request ever sees half of a change.

::

    source ── read, changed ──> compile ──> value            swapped, counted, logged
                  │                │
                  └── an error ────┴──────> the value stays   counted, logged: what is wrong, and where

A bad change never replaces a good value: it is left alone until the source changes again. Files and folders are sources
(`FileSource`), and so is anything else that has a name and can say what is new. A source may block: it is asked from a
thread of its own. One that is told of changes calls `Live.refresh` at once; looking every now and then stands behind.
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
from types import TracebackType
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from headgate.core.errors import UsageError

EVERY = 0.5
"""Seconds between two looks at a source."""
_LOG = logging.getLogger("headgate.live")
_FOREVER = 300
T = TypeVar("T")
R = TypeVar("R")
Raw_co = TypeVar("Raw_co", covariant=True)


class Source(Protocol[Raw_co]):
    """Has something that may change."""

    @property
    def name(self) -> str:
        """What to call it in messages."""
        ...

    def read(self) -> Raw_co:
        """Return it as it is now. Raises UsageError, or OSError where it cannot be had."""
        ...

    def changed(self) -> Raw_co | None:
        """Return it if it is not what was read last, else None. Raises as `read` does, once for each change."""
        ...


@dataclass(frozen=True, slots=True)
class LoadStatistics:
    """How loading went so far."""

    loads: int
    """Values that came into force, the first one included."""
    failures: int
    """Changes that were not acceptable, or could not be had."""
    loaded_at: float
    """When the value in force came into force, in seconds since the epoch."""
    error: str
    """Why the last change was not acceptable; empty if it was."""


class Live(Generic[T]):
    """Keeps a value up to date. As a context manager it does so from a thread of its own until the block ends.

    Args:
        source: where it comes from.
        compiled: makes the value of what the source has, given also its version: 1, 2, and so on.
        what: the plural that messages have for it, such as "rules".
        every: seconds between two looks at the source.

    Raises:
        UsageError, OSError: the first value is not acceptable, or cannot be had: there is no good one to go on with.

    A process that forks goes on watching in the child as well. Its thread ends soon after the object, closed or not.
    """

    def __init__(
        self, source: Source[R], compiled: Callable[[R, int], T], *, what: str = "rules", every: float = EVERY
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int | float) or not 0.01 <= every <= _FOREVER:
            raise UsageError(f"every is a number of seconds from 0.01 to {_FOREVER}, not {every!r}")
        self.what = what
        self._source: Source[Any] = source
        self._compiled, self._every = compiled, every
        self._statistics = LoadStatistics(1, 0, time.time(), "")
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()  # not one of `headgate.locks`: a source may block, and no fork waits for it
        self.value: T = compiled(source.read(), 1)
        """What is in force."""
        _alive.add(self)

    def refresh(self) -> bool:
        """Look at the source once; says whether another value is in force now."""
        return self._replaced(self._source.changed)

    def reload(self) -> bool:
        """Read the source now, whether it has changed or not; says whether what it has is in force now."""
        return self._replaced(self._source.read)

    @property
    def is_looking(self) -> bool:
        """Whether the source is asked at the moment, so that what it has read may not be in force yet."""
        return self._lock.locked()

    def statistics(self) -> LoadStatistics:
        """Return how loading went, for metrics."""
        return self._statistics

    def start(self) -> None:
        """Look at the source every now and then, from a thread that ends with the process."""
        if self._thread is None:
            stop = self._stop = threading.Event()
            watch = weakref.ref(self), stop, self._every  # an object that nobody closes and nobody has is not kept
            self._thread = threading.Thread(target=_watch, args=watch, name=f"headgate-{self.what}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop looking; the value stays in force."""
        thread, self._thread = self._thread, None
        if thread:
            self._stop.set()
            thread.join()

    def _replaced(self, read: Callable[[], Any]) -> bool:
        with self._lock:  # two at once could put the older one in force last
            try:
                raw = read()
                if raw is None:
                    return False
                version = self._statistics.loads + 1
                value = self._compiled(raw, version)
            except Exception as error:  # noqa: BLE001  whatever a source may raise: what is in force does not depend on it
                self._failed(error)
                return False
            self.value = value
            self._statistics = replace(self._statistics, loads=version, loaded_at=time.time(), error="")
        _LOG.info("%s: version %d of the %s is in force", self._source.name, version, self.what)
        return True

    def _failed(self, error: Exception) -> None:
        wrong = str(error) or type(error).__name__
        trace = None if isinstance(error, UsageError | OSError) else error
        told = wrong.replace("\n", "; ")
        _LOG.error("%s: the %s in force stay: %s", self._source.name, self.what, told, exc_info=trace)
        # Last: who sees it counted finds in the log what was wrong.
        self._statistics = replace(self._statistics, failures=self._statistics.failures + 1, error=wrong)

    def _reborn(self) -> None:
        """Go on in a forked child, which has no thread of its parent, and must not wait for one."""
        watched, self._thread = self._thread, None
        self._lock = threading.Lock()
        if watched:
            self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _watch(watched: Callable[[], Live[Any] | None], stop: threading.Event, every: float) -> None:
    """Look at a source every now and then, until told to stop, or nobody has the value any more."""
    while not stop.wait(every):
        live = watched()
        if live is None:
            return
        live.refresh()
        del live


_alive: weakref.WeakSet[Live[Any]] = weakref.WeakSet()


def _go_on_in_child() -> None:
    for live in tuple(_alive):
        live._reborn()  # noqa: SLF001  as a method it would be registered for ever


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_go_on_in_child)


class FileSource(Generic[R]):
    """Something that is made of one file or of several.

    A file may be replaced (renamed over, as editors and deployment tools do), rewritten in place, or be behind a
    symbolic link that is swapped, as in a Kubernetes ConfigMap. A change counts when the files have stayed the same
    between two looks, so that a file that is still being written is left alone.

    Args:
        path: the file, or the folder: its name in messages, and what `load` is given.
        load: reads it. Raises UsageError or OSError.
        files: says which files it is made of, asked at every look; default: the one at `path`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        load: Callable[[Path], R],
        files: Callable[[Path], Iterable[Path]] = lambda path: (path,),
    ) -> None:
        self._path, self._load, self._files = Path(path), load, files
        self._others: list[Path] = []
        self._seen: _Marks | None = None  # what was read last, well or not
        self._noticed: _Marks | None = None  # what may have to be read next

    @property
    def name(self) -> str:
        return str(self._path)

    def read(self) -> R:
        return self._loaded(self._marks())

    def changed(self) -> R | None:
        marks = self._marks()
        is_settled, self._noticed = marks == self._noticed, marks
        return self._loaded(marks) if is_settled and marks != self._seen else None

    def also(self, path: Path) -> None:
        """Watch another file, too, until the next load. For `load`, before it reads a file that it found named."""
        self._others.append(path)
        if self._seen is not None:
            self._seen[path] = mark_of(path)

    def _marks(self) -> _Marks:
        return {path: mark_of(path) for path in (*self._files(self._path), *self._others)}

    def _loaded(self, marks: _Marks) -> R:
        is_first, self._seen = self._seen is None, marks
        for mark in marks.values():
            if not (is_first or mark is None or stat.S_ISREG(mark.mode) or stat.S_ISDIR(mark.mode)):
                raise OSError(f"{mark.path} is a pipe or a device, which could keep us waiting: it should be a file")
        self._others.clear()
        self._seen = {path: marks[path] for path in self._files(self._path) if path in marks}
        return self._load(self._path)


class FileMark(NamedTuple):
    """What tells one content of a file from another without reading it."""

    path: str
    device: int
    inode: int
    modified_ns: int
    changed_ns: int
    size: int
    mode: int


_Marks: TypeAlias = dict[Path, FileMark | None]


def mark_of(path: Path) -> FileMark | None:
    """Return what a file has now; None if it is gone, or cannot be looked at."""
    try:
        real = path.resolve(strict=True)
        found = real.stat()
    except (OSError, RuntimeError, ValueError):  # gone, a circle of links, or no path at all: the loader says which
        return None
    return FileMark(
        str(real), found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_mode
    )


def yaml_files(folder: Path) -> list[Path]:
    """Return the YAML files of a folder, in the order of their names, hidden ones left out; none if it is gone."""
    try:
        found = [path for path in folder.iterdir() if path.suffix in {".yaml", ".yml"}]
    except OSError:
        return []
    return sorted(path for path in found if not path.name.startswith("."))

"""Where the workers of a node keep their counters: a directory with a file for each slot.

A worker has its slot's file for itself, by a lock that ends with the process, however that ends; so the lock also says
who lives. A worker that is started in place of another gets the same slot, and goes on counting.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from pathlib import Path
from typing import NamedTuple

from headgate.core.errors import UsageError
from headgate.observe import table
from headgate.observe.table import Reader, Series, Table

_ENDING = ".metrics"
_TRIES = 50
_PAUSE = 0.01


class Slice(NamedTuple):
    """What one worker has counted."""

    slot: int
    alive: bool
    series: list[Series]


class Slots:
    """A directory of files for the workers' counters.

    Args:
        directory: writable by this user alone. Whoever made it removes it when no worker is left.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._read: dict[int, _Reading] = {}

    def open(self, slot: int) -> Slot:
        """Return the counters of a slot, for the one worker that has it. Raises UsageError if another one lives.

        The directory is made again if it is gone: what cleans up temporary files may take it for an old one.
        """
        self.directory.mkdir(mode=0o700, exist_ok=True)
        return Slot(self.directory / f"{slot}{_ENDING}", slot)

    def read(self) -> list[Slice]:
        """Return what all workers have counted, also those that ended."""
        self._look()
        return [Slice(slot, each.is_locked(), each.reader.read()) for slot, each in sorted(self._read.items())]

    def alive(self) -> list[int]:
        """Return the slots of the workers that live."""
        self._look()
        return [slot for slot, each in sorted(self._read.items()) if each.is_locked()]

    def close(self) -> None:
        """Let go of the files of others."""
        for reading in self._read.values():
            reading.close()
        self._read.clear()

    def _look(self) -> None:
        """Open the files that are new."""
        for path in self.directory.glob(f"*{_ENDING}"):
            number = path.name.removesuffix(_ENDING)
            if number.isdecimal() and int(number) not in self._read and path.stat().st_size >= table.SIZE:
                self._read[int(number)] = _Reading(path)


class Slot:
    """The counters of one worker, in a file that outlives it."""

    def __init__(self, path: Path, number: int) -> None:
        self.number = number
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._file)
            _reserve(self._file, table.SIZE)
            self._map = mmap.mmap(self._file, table.SIZE)
        except BlockingIOError:
            os.close(self._file)
            raise UsageError(f"{path}: another process counts here; give each worker a slot of its own") from None
        except OSError as error:  # such as a full disk; it does not say where
            os.close(self._file)
            raise OSError(error.errno, error.strerror, str(path)) from None
        except BaseException:
            os.close(self._file)
            raise
        self.table = Table(memoryview(self._map))
        self.table.clear_gauges()

    def close(self) -> None:
        """Let go of the file; what was counted stays in it."""
        self.table.close()
        self._map.close()
        os.close(self._file)


class _Reading:
    """The file of a worker, for reading."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._map = mmap.mmap(self._file, table.SIZE, access=mmap.ACCESS_READ)
        self.reader = Reader(memoryview(self._map))

    def is_locked(self) -> bool:
        """Does a worker have it?"""
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
    """Take the lock of a file. A reader that looks who lives has it for an instant: that much is waited."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE)
        else:
            return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _reserve(file: int, size: int) -> None:
    """Give a file its size. Where the system can, also its place on the disk: a full one would be a crash later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    elif os.fstat(file).st_size < size:
        os.ftruncate(file, size)

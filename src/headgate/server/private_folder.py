"""Private temporary folders, for sockets and for files that child processes follow or share.

A folder is removed at the end. One left by a killed process is removed by the next process: a folder is locked as long
as its process lives, in whichever container that runs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from headgate.core.errors import UsageError

_PREFIX = "headgate-run-"
_TRIES = 20
"""A process that starts at the same time may remove a new folder before it is locked."""


@contextmanager
def private_folder(parent: str | None = None) -> Iterator[Path]:
    """Make a folder for the duration of a with block, and remove those that killed processes of this user left behind.

    Its parent is by default the folder of temporary files. Raises UsageError if it cannot be made or locked.
    """
    for left in Path(parent or gettempdir()).glob(f"{_PREFIX}*"):
        if (lock := _lock(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
    folder, lock = _make(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make(parent: str | None) -> tuple[Path, int]:
    """Return a new folder, and the file descriptor that holds its lock. Raises UsageError."""
    for _ in range(_TRIES):
        try:
            folder = Path(mkdtemp(prefix=_PREFIX, dir=parent))
        except OSError as error:
            raise UsageError(f"cannot create a folder in {parent or gettempdir()}: {error.strerror}") from None
        if (lock := _lock(folder)) is not None:
            return folder, lock
    raise UsageError(f"cannot lock folders in {parent or gettempdir()}: set TMPDIR or XDG_RUNTIME_DIR to another one")


def _lock(folder: Path) -> int | None:
    """Lock a folder of this user. Returns the file descriptor; None if another process locked or removed the folder."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        flock(opened, LOCK_EX | LOCK_NB)
        found = os.fstat(opened)
        if found.st_uid == os.geteuid() and os.path.samestat(found, folder.lstat()):
            return opened
    except OSError:
        pass
    os.close(opened)
    return None

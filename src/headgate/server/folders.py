"""A folder of a process's own, among temporary files: for sockets, and for files that its children follow or share.

It is removed at the end. A process that is killed leaves it behind, and the next one removes it: the folder is locked
as long as its process lives, whatever the process is called in which container.
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
"""Another that starts at the same time may see a new folder before it is locked, and remove it."""


@contextmanager
def private_folder(parent: str | None = None) -> Iterator[Path]:
    """Make a folder for the length of a with block, and remove those that killed processes of this user have left.

    It is among temporary files unless there is a parent. Raises UsageError: it cannot be made, or not be locked.
    """
    for left in Path(parent or gettempdir()).glob(f"{_PREFIX}*"):
        if (lock := _locked(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
    folder, lock = _made(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _made(parent: str | None) -> tuple[Path, int]:
    """Return a new folder, and what to close for others to lock it. Raises UsageError."""
    for _ in range(_TRIES):
        try:
            folder = Path(mkdtemp(prefix=_PREFIX, dir=parent))
        except OSError as error:
            raise UsageError(f"no folder can be made in {parent or gettempdir()}: {error.strerror}") from None
        if (lock := _locked(folder)) is not None:
            return folder, lock
    raise UsageError(f"folders in {parent or gettempdir()} cannot be locked: let TMPDIR or XDG_RUNTIME_DIR be another")


def _locked(folder: Path) -> int | None:
    """Lock a folder of this user; returns what to close, None if another has locked or removed it."""
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

"""Private temporary folders, for sockets and for files that child processes follow or share.

A folder is removed at the end. One left by a killed process is removed by the next process: a folder is locked as long
as its process lives, in whichever container that runs.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from types import TracebackType
from typing import Self

from headgate.core.errors import UsageError

_PREFIX = "headgate-run-"
_TRIES = 20
"""A process that starts at the same time may remove a new folder before it is locked."""


class PrivateFolder:
    """A folder at `path` for the duration of a with block, by default among temporary files.

    Entering it also removes those that killed processes of this user left behind. Raises UsageError if no folder can be
    made or locked.
    """

    path: Path
    _lock: int

    def __init__(self, parent: str | os.PathLike[str] | None = None) -> None:
        self._parent = parent or gettempdir()

    def __enter__(self) -> Self:
        for left in Path(self._parent).glob(f"{_PREFIX}*"):
            if (lock := _lock(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)
        self.path, self._lock = _make(self._parent)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _is_at(self._lock, self.path):
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def restore(self) -> bool:
        """Make the folder again, and lock it, if it was removed. Returns whether it was. Raises OSError."""
        if _is_at(self._lock, self.path):
            return False
        for _ in range(_TRIES):
            with suppress(FileExistsError):
                self.path.mkdir(0o700)
            if (lock := _lock(self.path)) is not None:
                os.fchmod(lock, 0o700)
                os.close(self._lock)
                self._lock = lock
                return True
        raise PermissionError(f"{self.path} was removed and cannot be created again: another process uses it")


def _make(parent: str | os.PathLike[str]) -> tuple[Path, int]:
    """Return a new folder, and the file descriptor that holds its lock. Raises UsageError."""
    for _ in range(_TRIES):
        try:
            folder = Path(mkdtemp(prefix=_PREFIX, dir=parent))
        except OSError as error:
            raise UsageError(f"cannot create a folder in {parent}: {error.strerror}") from None
        if (lock := _lock(folder)) is not None:
            return folder, lock
    raise UsageError(f"cannot lock folders in {parent}: set TMPDIR or XDG_RUNTIME_DIR to another one")


def _lock(folder: Path) -> int | None:
    """Lock a folder of this user. Returns the file descriptor; None if another process locked or removed the folder."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        flock(opened, LOCK_EX | LOCK_NB)
    except OSError:
        is_ours = False
    else:
        is_ours = os.fstat(opened).st_uid == os.geteuid() and _is_at(opened, folder)
    if not is_ours:
        os.close(opened)
        return None
    return opened


def _is_at(opened: int, folder: Path) -> bool:
    """Return whether an open folder is still at its path."""
    try:
        return os.path.samestat(os.fstat(opened), folder.lstat())
    except OSError:  # such as a missing folder
        return False

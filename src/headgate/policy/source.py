"""Where rules come from: the contract of a source, and a file as one.

A source is asked again and again and says what is new. It may block: `headgate.policy.live` asks from a thread of its
own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from headgate.policy.loading import load_file
from headgate.policy.model import Ruleset


class RuleSource(Protocol):
    """Has rules, which may change."""

    @property
    def name(self) -> str:
        """What to call it in messages."""
        ...

    def read(self) -> Ruleset:
        """Return the rules as they are now. Raises InvalidRule, or OSError where they cannot be had."""
        ...

    def changed(self) -> Ruleset | None:
        """Return the rules if they are not those that were returned last, else None. Raises as `read` does, once."""
        ...


class _Mark(NamedTuple):
    """What tells one content of a file from another without reading it."""

    path: str
    device: int
    inode: int
    modified_ns: int
    changed_ns: int
    size: int


class FileSource:
    """Rules in a file.

    A file may be replaced (renamed over, as editors and deployment tools do), rewritten in place, or be behind a
    symbolic link that is swapped, as in a Kubernetes ConfigMap. A change counts when the file has stayed the same
    between two looks, so that a file that is still being written is left alone.

    Args:
        path: the file.
        load: reads it.
    """

    def __init__(self, path: str | os.PathLike[str], load: Callable[[Path], Ruleset] = load_file) -> None:
        self._path = Path(path)
        self._load = load
        self._seen: _Mark | None = None  # what was read last, well or not
        self._noticed: _Mark | None = None  # what may have to be read next

    @property
    def name(self) -> str:
        return str(self._path)

    def read(self) -> Ruleset:
        self._seen = self._noticed = self._mark()
        return self._load(self._path)

    def changed(self) -> Ruleset | None:
        mark = self._mark()
        settled, self._noticed = mark == self._noticed, mark
        if mark == self._seen or not settled:
            return None
        self._seen = mark
        if mark is None:
            raise FileNotFoundError(f"{self._path} is gone")
        return self._load(self._path)

    def _mark(self) -> _Mark | None:
        try:
            path = self._path.resolve(strict=True)
            found = path.stat()
        except FileNotFoundError:
            return None
        return _Mark(str(path), found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)

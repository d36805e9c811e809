"""Where rules come from: the contract of a source, and files as one.

A source is asked again and again and says what is new. It may block: `headgate.policy.live` asks from a thread of its
own.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from headgate.policy.loading import load_file, read_file
from headgate.policy.model import Ruleset

_LOG = logging.getLogger("headgate.policy")
T = TypeVar("T")
Written_co = TypeVar("Written_co", covariant=True)


class RuleSource(Protocol[Written_co]):
    """Has rules, which may change."""

    @property
    def name(self) -> str:
        """What to call it in messages."""
        ...

    def read(self) -> Written_co:
        """Return the rules as they are now. Raises InvalidRule, or OSError where they cannot be had."""
        ...

    def changed(self) -> Written_co | None:
        """Return the rules if they are not those that were read last, else None. Raises as `read` does, once."""
        ...


class _Mark(NamedTuple):
    """What tells one content of a file from another without reading it."""

    path: str
    device: int
    inode: int
    modified_ns: int
    changed_ns: int
    size: int
    mode: int


class _Watched(Generic[T]):
    """Rules in files.

    A file may be replaced (renamed over, as editors and deployment tools do), rewritten in place, or be behind a
    symbolic link that is swapped, as in a Kubernetes ConfigMap. A change counts when the files have stayed the same
    between two looks, so that a file that is still being written is left alone.
    """

    def __init__(self, path: str | os.PathLike[str], load: Callable[[Path], T]) -> None:
        self._path = Path(path)
        self._load = load
        self._seen: list[_Mark | None] = []  # what was read last, well or not
        self._noticed: list[_Mark | None] = []  # what may have to be read next

    @property
    def name(self) -> str:
        return str(self._path)

    def read(self) -> T:
        self._seen = self._noticed = self._marks()
        return self._load(self._path)

    def changed(self) -> T | None:
        marks = self._marks()
        settled, self._noticed = marks == self._noticed, marks
        if marks == self._seen or not settled:
            return None
        self._seen = marks
        for mark in marks:
            if mark is not None and not stat.S_ISREG(mark.mode) and not stat.S_ISDIR(mark.mode):
                raise OSError(f"{mark.path} is a pipe or a device, which could keep us waiting: it is to be a file")
        return self._load(self._path)

    def _marks(self) -> list[_Mark | None]:
        raise NotImplementedError


class FileSource(_Watched[T]):
    """Rules in one file; see `headgate.policy.loading` for its form."""

    def __init__(self, path: str | os.PathLike[str], load: Callable[[Path], T] = load_file) -> None:  # type: ignore[assignment]
        super().__init__(path, load)

    def _marks(self) -> list[_Mark | None]:
        return [_mark(self._path)]


class FolderSource(_Watched[T]):
    """Rules in all YAML files of a folder, such as those of envoyproxy/ratelimit."""

    def _marks(self) -> list[_Mark | None]:
        return [_mark(path) for path in yaml_files(self._path)]


class NoRules:
    """No rules, now and always: for a service that answers Envoy alone."""

    name = "no rules"

    def read(self) -> Ruleset:
        return Ruleset()

    def changed(self) -> Ruleset | None:
        return None


def yaml_files(folder: Path) -> list[Path]:
    """Return the YAML files of a folder, in the order of their names, hidden ones left out; none if it is gone."""
    try:
        found = [path for path in folder.iterdir() if path.suffix in {".yaml", ".yml"}]
    except OSError:
        return []
    return sorted(path for path in found if not path.name.startswith("."))


def rules_file(path: str | os.PathLike[str]) -> FileSource[Ruleset]:
    """Return a file of rules as a source; what is odd about it without being wrong goes to the log."""
    return FileSource(path, _told)


def _told(path: Path) -> Ruleset:
    loaded = read_file(path)
    for warning in loaded.warnings:
        _LOG.warning("%s", warning)
    return loaded.ruleset


def _mark(path: Path) -> _Mark | None:
    try:
        real = path.resolve(strict=True)
        found = real.stat()
    except (OSError, RuntimeError, ValueError):  # gone, a circle of links, or no path at all: the loader says which
        return None
    return _Mark(
        str(real), found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_mode
    )

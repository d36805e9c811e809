"""Rules in a file, copied from a database by one process and read by others.

One process of a service follows a database and keeps the file up to date. All workers read it, and do not connect to
the database. A service that starts while the database is down finds the last valid rules there.

The file has lines of JSON: a header, all rules at one revision, and then the changes of each later revision, so that a
change of one user among very many is one line to write and to read. When there are too many, the file is replaced. The
header names the *generation* of the file: readers that find another one read everything.

A damaged line counts as the end of the file, and readers report it. They go on when the file is replaced, which the
writer does as soon as it finds the file other than it left it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar

import msgspec

from headgate.core.errors import InvalidRule, UsageError
from headgate.files import replace_file
from headgate.live import FileMark, mark_of
from headgate.policy.changing import BodyChange, changed, put
from headgate.policy.loading import from_data
from headgate.policy.model import NO_RULES, Ruleset

RULES, FOLLOWING = "rules.jsonl", "following.json"
MOST_CHANGES = 4_194_304
"""Bytes of changes."""
T = TypeVar("T")
_FORM = 2
_PASSWORD = re.compile(r":[^:@/]*@")


class Whole(NamedTuple):
    """All rules at a revision."""

    revision: int
    document: dict[str, Any]


class Changes(NamedTuple):
    """The changes up to a revision."""

    revision: int
    changes: tuple[BodyChange, ...]


class _Header(msgspec.Struct, frozen=True):
    form: int
    generation: str
    revision: int
    source: str


_read_header = msgspec.json.Decoder(_Header).decode
_read_document = msgspec.json.Decoder(dict[str, Any]).decode
_read_changes = msgspec.json.Decoder(Changes).decode


class SnapshotWriter:
    """Keeps the file of a folder up to date; each folder has one writer.

    `source` is the origin of the rules, for messages, without passwords.
    """

    def __init__(self, folder: Path, source: str) -> None:
        self._folder, self._path, self._source = folder, folder / RULES, source
        self._begin = 0  # of the changes in the file
        self._mark: FileMark | None = None

    def resume(self) -> int:
        """Continue the file of an earlier writer; return its revision. Raises InvalidRule, OSError."""
        reader = SnapshotReader(self._folder)
        whole = reader.read()
        self._begin, self._mark = reader.begin, mark_of(self._path)
        if reader.damage or self._mark is None or self._mark.size != reader.end:
            self.write(whole)
        return reader.revision

    def is_intact(self) -> bool:
        """Whether the file is as this writer left it."""
        return self._mark is not None and mark_of(self._path) == self._mark

    def write(self, whole: Whole) -> None:
        """Replace the file. Raises OSError."""
        header = _Header(_FORM, token_hex(8), whole.revision, self._source)
        content = b"%b\n%b\n" % (msgspec.json.encode(header), msgspec.json.encode(whole.document))
        replace_file(self._path, content)
        self._begin, self._mark = len(content), mark_of(self._path)

    def append(self, changes: Changes) -> bool:
        """Add changes; return whether the file was intact: if not, write everything. Raises OSError."""
        if not self.is_intact():
            return False
        line = msgspec.json.encode(changes) + b"\n"
        if self._path.stat().st_size + len(line) > self._begin + MOST_CHANGES:
            whole = SnapshotReader(self._folder).read()
            put(whole.document, changes.changes)
            self.write(Whole(changes.revision, whole.document))
            return True
        self._mark = None  # if this fails, there may be half a line, and readers may have read it
        with self._path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._mark = mark_of(self._path)
        return True


class SnapshotReader:
    """Reads the file of a folder, and then its changes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RULES
        self.name = str(self._path)
        self._seen: FileMark | None = None
        self._generation, self.revision = "", 0
        self.begin, self.end = 0, 0
        """Where the changes in the file begin, and where they were read to."""
        self.damage, self._is_reported = "", False
        """The problem of the file, which is read only up to there; empty: none."""

    def read(self) -> Whole:
        """Return the rules as they are now, up to the damage if there is any. Raises InvalidRule."""
        seen = mark_of(self._path)
        header, document, lines, begin = read_json(self._path, _parts)
        if header.form != _FORM:
            raise InvalidRule(f"{self.name}: was written by another version of Headgate")
        self._seen, self._generation, self.revision = seen, header.generation, header.revision
        self.begin, self.end = begin, begin
        self.damage, self._is_reported = "", False
        put(document, self._changes(lines))
        return Whole(self.revision, document)

    def changed(self) -> Whole | Changes | None:
        """Return the changes since the last call, if any: all rules if the file was replaced.

        Raises InvalidRule, once for each damage.
        """
        mark = mark_of(self._path)
        if mark != self._seen:
            self._seen = mark  # an invalid file is not read again until it has changed
            lines = self._new_lines()
            if lines is None:
                return self.read()
            if changes := self._changes(lines):
                return Changes(self.revision, changes)
        if self.damage and not self._is_reported:
            self._is_reported = True
            raise InvalidRule(self.damage)
        return None

    def _new_lines(self) -> bytes | None:
        """Return the lines after the part that was read; None if the file was replaced."""
        try:
            with self._path.open("rb") as file:
                if _read_header(file.readline()).generation != self._generation:
                    return None
                file.seek(self.end)
                return b"" if self.damage else file.read()
        except (OSError, msgspec.MsgspecError):
            return None

    def _changes(self, lines: bytes) -> tuple[BodyChange, ...]:
        found: list[BodyChange] = []
        for line in lines.split(b"\n")[:-1]:  # a line without an end is being written
            try:
                read = _read_changes(line)
            except msgspec.MsgspecError as error:
                self.damage = f"{self.name}: is damaged after revision {self.revision}: {error}"
                break
            self.end += len(line) + 1
            if read.revision > self.revision:
                self.revision = read.revision
                found += read.changes
        return tuple(found)


def _parts(content: bytes) -> tuple[_Header, dict[str, Any], bytes, int]:
    """Return the header, the rules, the lines of changes, and where these begin."""
    header, _, rest = content.partition(b"\n")
    document, end, lines = rest.partition(b"\n")
    if not end:
        raise msgspec.DecodeError("it is incomplete")
    return _read_header(header), _read_document(document), lines, len(content) - len(lines)


class SnapshotSource:
    """The rules in a folder, as a source (`headgate.live.Source`)."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._reader = folder, SnapshotReader(folder)
        self.name = self._reader.name
        self._last = NO_RULES
        self._is_behind = False
        """Whether a change was invalid, so that later ones cannot build on it."""

    @property
    def revision(self) -> int:
        """The last revision that was read."""
        return self._reader.revision

    def following(self) -> Following:
        return read_following(self._folder)

    def read(self) -> Ruleset:
        """Return all rules. Raises InvalidRule."""
        return self._whole(self._reader.read())

    def changed(self) -> Ruleset | None:
        """Return the rules if they have changed; unchanged parts are the same objects. Raises InvalidRule."""
        news = self._reader.changed()
        if news is None:
            return None
        if isinstance(news, Whole) or self._is_behind:
            return self._whole(news if isinstance(news, Whole) else self._reader.read())
        self._is_behind = True  # until it succeeds
        self._last = changed(self._last, news.changes, name=self.name)
        self._is_behind = False
        return self._last

    def _whole(self, whole: Whole) -> Ruleset:
        self._is_behind = True
        self._last, self._is_behind = from_data(whole.document, name=self.name), False
        return self._last


class Following(msgspec.Struct, frozen=True):
    """The status of the writer of a folder."""

    contact: int = 0
    """The last response of the database, in microseconds since the epoch; 0: none since the start."""
    failures: int = 0
    error: str = ""
    """Why the folder may be out of date; empty if it is not, as far as is known."""


_read_following = msgspec.json.Decoder(Following).decode


def write_following(folder: Path, following: Following) -> None:
    """Write the status of the writer. Raises OSError."""
    replace_file(folder / FOLLOWING, msgspec.json.encode(following), durable=False)  # the next one comes soon


def read_following(folder: Path) -> Following:
    """Return the status of the writer; if there is none, an empty one."""
    try:
        return _read_following((folder / FOLLOWING).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return Following()


def read_json(path: Path, decode: Callable[[bytes], T]) -> T:
    """Return the content of a file. Raises InvalidRule."""
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise InvalidRule(f"{path}: {error.strerror or error}") from None
    except msgspec.MsgspecError as error:
        raise InvalidRule(f"{path}: is damaged: {error}") from None


def data_dir(given: str = "") -> Path:
    """Return the folder for data: by default ``$XDG_STATE_HOME/headgate``, or ``~/.local/state/headgate``."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return Path(given) if given else state / "headgate"


def snapshot_folder(source: str, given: str = "") -> Path:
    """Return the folder for the rules of the database with a URL, and create it if necessary. Raises UsageError.

    `given` is the folder for all databases; see `data_dir`. Another password of the URL makes no difference.
    """
    folder = data_dir(given) / sha256(_PASSWORD.sub("@", source).encode()).hexdigest()[:16]
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"cannot create {folder} for the last valid rules: {why}; set another --data-dir") from None
    if owner != os.geteuid():  # its owner could change the rules
        raise UsageError(f"{folder} for the last valid rules belongs to another user: set another --data-dir")
    return folder

"""Rules on this machine's disk, as one process follows them elsewhere and others read them here.

One process of a service, which follows a database, keeps a folder up to date; all workers read it, and do not connect
to the database themselves. Whoever starts while the database is away finds the last good rules there.

There are two files. ``rules.json`` has everything at one revision; ``rules.journal`` has what changed since, a line for
each revision, so that a change of one user among very many is a line, for those who write and those who read. When the
journal has grown, everything is written anew and a new journal begins. Both say which *generation* they belong to: a
journal of another generation says nothing that is not in ``rules.json`` already.

A journal that is damaged counts up to the damage: whoever reads it says so, and goes on when everything is written
anew, which the writer does as soon as it finds the files other than it left them.
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

WHOLE, JOURNAL, FOLLOWING = "rules.json", "rules.journal", "following.json"
LONGEST_JOURNAL = 4_194_304
"""Bytes."""
T = TypeVar("T")
_FORM = 1
_PASSWORD = re.compile(r":[^:@/]*@")


class Whole(NamedTuple):
    """Everything, at a revision."""

    revision: int
    document: dict[str, Any]
    """The data of a rules file."""


class Changes(NamedTuple):
    """What changed up to a revision."""

    revision: int
    changes: tuple[BodyChange, ...]


class _File(msgspec.Struct, frozen=True):
    form: int
    generation: str
    revision: int
    source: str
    document: dict[str, Any]


class _Header(msgspec.Struct, frozen=True):
    generation: str


_read_file = msgspec.json.Decoder(_File).decode
_read_header = msgspec.json.Decoder(_Header).decode
_read_changes = msgspec.json.Decoder(Changes).decode


class SnapshotWriter:
    """Keeps the folder up to date; there is one for a folder.

    Args:
        folder: where the files are; it exists, and is the service's own.
        source: what they are a copy of, for messages: no passwords.
    """

    def __init__(self, folder: Path, source: str) -> None:
        self._folder, self._source = folder, source
        self._generation, self._length = "", 0
        self._left: tuple[FileMark | None, ...] | None = None

    def resume(self) -> int:
        """Go on where another writer has ended; returns the revision of its files. Raises InvalidRule, OSError."""
        reader = SnapshotReader(self._folder)
        whole = reader.read()
        if reader.damage or not self._is_whole_journal(reader.generation):
            self.write(whole)
        else:
            self._generation, self._length = reader.generation, (self._folder / JOURNAL).stat().st_size
            self._left = self._marks()
        return reader.revision

    def is_intact(self) -> bool:
        """Whether the files are as this writer left them."""
        return bool(self._generation) and self._marks() == self._left

    def write(self, whole: Whole) -> None:
        """Write everything anew. Raises OSError."""
        generation = token_hex(8)
        file = _File(_FORM, generation, whole.revision, self._source, whole.document)
        replace_file(self._folder / WHOLE, msgspec.json.encode(file))
        header = msgspec.json.encode(_Header(generation)) + b"\n"
        replace_file(self._folder / JOURNAL, header)
        self._generation, self._length = generation, len(header)
        self._left = self._marks()

    def append(self, changes: Changes) -> bool:
        """Add a line to the journal; says whether that was possible: if not, write everything. Raises OSError."""
        line = msgspec.json.encode(changes) + b"\n"
        if not self.is_intact() or self._length + len(line) > LONGEST_JOURNAL:
            return False
        try:
            with (self._folder / JOURNAL).open("ab") as journal:
                journal.write(line)
                journal.flush()
                os.fsync(journal.fileno())
        except OSError:  # perhaps there is half a line now, and nobody knows who has read it
            self._generation = ""
            raise
        self._length += len(line)
        self._left = self._marks()
        return True

    def compact(self, changes: Changes) -> bool:
        """Write everything anew, by the files as they are and changes; says whether that was possible.

        Raises OSError.
        """
        if not self.is_intact():
            return False
        whole = SnapshotReader(self._folder).read()
        put(whole.document, changes.changes)
        self.write(Whole(changes.revision, whole.document))
        return True

    def _marks(self) -> tuple[FileMark | None, ...]:
        return mark_of(self._folder / WHOLE), mark_of(self._folder / JOURNAL)

    def _is_whole_journal(self, generation: str) -> bool:
        """Whether there is a journal of this generation that ends with a whole line, so that others can follow."""
        try:
            journal = (self._folder / JOURNAL).read_bytes()
            return journal.endswith(b"\n") and _read_header(journal.partition(b"\n")[0]).generation == generation
        except (OSError, msgspec.MsgspecError):
            return False


class SnapshotReader:
    """Reads the folder, again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.name = str(folder / WHOLE)
        self._seen: FileMark | None = None
        self._is_told = False
        self.generation, self._offset, self.revision = "", 0, 0
        self.damage = ""
        """What is wrong with the journal, of which only what comes before is read; empty if nothing is."""

    def read(self) -> Whole:
        """Return everything as it is now, up to the damage if there is one. Raises InvalidRule if it cannot be had."""
        seen = mark_of(self._folder / WHOLE)
        file = read_json(self._folder / WHOLE, _read_file)
        if file.form != _FORM:
            raise InvalidRule(f"{self.name}: was written by another version of Headgate")
        self._seen, self.generation, self._offset, self.revision = seen, file.generation, 0, file.revision
        self.damage, self._is_told = "", False
        document = file.document
        put(document, self._news())
        return Whole(self.revision, document)

    def changed(self) -> Whole | Changes | None:
        """Return what is new since the last time, if anything: everything where that cannot be told apart.

        Raises InvalidRule, once for each damage.
        """
        mark = mark_of(self._folder / WHOLE)
        if mark != self._seen:
            self._seen = mark  # what cannot be read is not tried again until it is another file
            return self.read()
        changes = () if self.damage else self._news()
        if changes:
            return Changes(self.revision, changes)
        if self.damage and not self._is_told:
            self._is_told = True
            raise InvalidRule(self.damage)
        return None

    def _news(self) -> tuple[BodyChange, ...]:
        """Return what the journal has beyond what was read of it."""
        try:
            with (self._folder / JOURNAL).open("rb") as journal:
                header = journal.readline()
                if not header.endswith(b"\n") or _read_header(header).generation != self.generation:
                    return ()
                journal.seek(max(self._offset, len(header)))
                lines = journal.read()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise InvalidRule(f"{self._folder / JOURNAL}: {error.strerror or error}") from None
        except msgspec.MsgspecError:
            return ()  # it is being begun
        self._offset = max(self._offset, len(header))
        news: list[BodyChange] = []
        for line in lines.split(b"\n")[:-1]:  # what has no end is being written
            try:
                read = _read_changes(line)
            except msgspec.MsgspecError as error:
                self.damage = f"{self._folder / JOURNAL}: is damaged after revision {self.revision}: {error}"
                break
            self._offset += len(line) + 1
            if read.revision > self.revision:
                self.revision = read.revision
                news += read.changes
        return tuple(news)


class SnapshotSource:
    """The rules in a folder, as a source that is followed (`headgate.live.Source`)."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._reader = folder, SnapshotReader(folder)
        self.name = self._reader.name
        self._last = NO_RULES
        self._is_behind = False
        """Whether a change could not be used, so that what comes next cannot stand on it."""

    @property
    def revision(self) -> int:
        """The revision that was read last."""
        return self._reader.revision

    def following(self) -> Following:
        """Return how whoever writes the folder gets on."""
        return read_following(self._folder)

    def read(self) -> Ruleset:
        """Return all rules. Raises InvalidRule."""
        return self._whole(self._reader.read())

    def changed(self) -> Ruleset | None:
        """Return the rules if they are not those that were read last; what has not changed is the same object.

        Raises InvalidRule.
        """
        news = self._reader.changed()
        if news is None:
            return None
        if isinstance(news, Whole) or self._is_behind:
            return self._whole(news if isinstance(news, Whole) else self._reader.read())
        self._is_behind = True  # unless it goes well
        self._last = changed(self._last, news.changes, name=self.name)
        self._is_behind = False
        return self._last

    def _whole(self, whole: Whole) -> Ruleset:
        self._is_behind = True
        self._last, self._is_behind = from_data(whole.document, name=self.name), False
        return self._last


class Following(msgspec.Struct, frozen=True):
    """How following goes, as those who read the folder are told."""

    contact: int = 0
    """When the database last said what is in force, in microseconds since the epoch; 0: not since the start."""
    failures: int = 0
    """How often following failed since the start."""
    error: str = ""
    """Why what is in the folder may be old; empty if it is not, as far as is known."""


_read_following = msgspec.json.Decoder(Following).decode


def write_following(folder: Path, following: Following) -> None:
    """Leave in a folder how following goes. Raises OSError."""
    content = msgspec.json.encode(following)
    replace_file(folder / FOLLOWING, content, durable=False)  # a power cut may take it: another comes in a moment


def read_following(folder: Path) -> Following:
    """Return how following goes; if nobody has said, nothing is known."""
    try:
        return _read_following((folder / FOLLOWING).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return Following()


def read_json(path: Path, decode: Callable[[bytes], T]) -> T:
    """Return what is in a file. Raises InvalidRule."""
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise InvalidRule(f"{path}: {error.strerror or error}") from None
    except msgspec.MsgspecError as error:
        raise InvalidRule(f"{path}: is damaged: {error}") from None


def data_dir(given: str = "") -> Path:
    """Return the folder for what is kept: ``$XDG_STATE_HOME/headgate``, or ``~/.local/state/headgate`` by default."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return Path(given) if given else state / "headgate"


def snapshot_folder(source: str, given: str = "") -> Path:
    """Return the folder for the rules that are followed elsewhere, which is made if need be. Raises UsageError.

    Args:
        source: the URL of what is followed: each has a folder of its own, whatever its password.
        given: the folder for all of them; see `data_dir`.
    """
    folder = data_dir(given) / sha256(_PASSWORD.sub("@", source).encode()).hexdigest()[:16]
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"{folder}, for the last good rules, cannot be made: {why}; see --data-dir") from None
    if owner != os.geteuid():  # whoever can write there decides who passes
        raise UsageError(f"{folder}, for the last good rules, belongs to another user: give another --data-dir")
    return folder

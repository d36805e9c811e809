"""Files of YAML as plain data (dict, list, str, int, float, bool, None), bounded and without surprises.

Scalars are read as YAML 1.2 does: ``NO``, ``on``, ``1:30``, ``010`` and dates are text, and keys are always text: the
user ``12345`` is "12345". Anchors, aliases and ``<<`` work. Refused, each with its place: duplicate keys, tags, a
second document, and what is too large, too deep, or would become so when aliases are written out.

The data comes from the stream of events: nothing recurses, and it is nine times as fast as PyYAML's nodes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite
from os import PathLike, fspath
from typing import Any, Final, NoReturn

from headgate.core.errors import not_installed
from headgate.core.numbers import short
from headgate.policy.problems import MOST, Finding, Findings, InvalidRules, Locator, Path, ProblemKind

MAX_BYTES: Final = 50_000_000
MAX_NODES: Final = 5_000_000
"""Values and keys of a file, with aliases written out; 100 000 rules have about 2 million."""
MAX_DEPTH: Final = 20
_SOURCE = 200
"""So many characters of a line are shown."""
_NOT_PRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INT = re.compile(r"0|-?[1-9][0-9]{0,39}")
_FLOAT = re.compile(r"-?(?=.{1,40}$)([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]{1,3})?")
_WORDS: dict[str, object] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_TEXT_TAGS = {"!", "tag:yaml.org,2002:str"}
_MERGE, _IGNORED = object(), object()
_ADVICE = {
    "mapping values are not allowed": "Is there a second ':' on the line? Then put the value in quotes.",
    "could not find expected ':'": "Is a ':' missing, or the space after it?",
    "expected <block end>": "Is the line indented like its neighbours?",
    "did not find expected key": "Is the line indented like its neighbours?",
    "did not find expected '-'": "Is the line indented like its neighbours?",
    "cannot start any token": "Put the value in quotes.",
    "while scanning a quoted scalar": "Is the closing quote missing?",
    "flow sequence": "Is a ']' or a ',' missing?",
    "flow mapping": "Is a '}' or a ',' missing?",
    "alphabetic or numeric character": "A value that begins with * or & needs quotes.",
}
_Places = dict[int, dict[str | int, tuple[int, int, int, int]]]
"""Of each collection, by its identity: line and column of each key, and of its value."""


class Document(Locator):
    """The data of a text, and where it is written. Raises InvalidRules if it has none.

    Args:
        text: YAML.
        name: of the file.
        what: messages say that it is.
        has_secrets: whether a line may have a key, or a password: what is wrong with the text is told without it then.
    """

    __slots__ = ("_has_secrets", "_lines", "_places", "_text", "_until", "_what", "data")

    def __init__(self, text: str, name: str, what: str = "a file of rules", *, has_secrets: bool = False) -> None:
        super().__init__(name)
        self._text, self._has_secrets = text, has_secrets
        self._what = what
        self._lines: list[str] | None = None
        self._places: _Places | None = None
        self._until: tuple[str | int, int] | None = None
        self._check_text()
        self.data: Any = self._build(None)
        """What the text means."""

    def expect(self, paths: Sequence[Path]) -> None:
        """Take note of the paths that are going to be asked about: in one list, the text is read again only so far."""
        is_in_list = len({path[:1] for path in paths}) == 1 and all(
            len(path) > 1 and isinstance(path[1], int) for path in paths
        )
        until = (paths[0][0], max(int(path[1]) for path in paths)) if is_in_list else None
        if until != self._until:
            self._until, self._places = until, None

    def locate(self, path: Path, *, at_key: bool) -> tuple[int, int]:
        """Return line and column of the value at `path`, or of its key; the text is read again to find out."""
        if self._places is None:
            places: _Places = {}
            known, self.problems = self.problems, []
            self.data, self.problems = self._build(places), known
            self._places = places
        node, place = self.data, (1, 1, 1, 1)
        for part in path:
            found = self._places.get(id(node), {}).get(part)
            if found is None:
                break
            node, place = node[part], found
        return place[:2] if at_key else place[2:]

    def source(self, line: int) -> str:
        """Return that line of the text, not more than will fit on a screen."""
        if self._lines is None:
            self._lines = re.split("\r\n|[\n\r\x85\u2028\u2029]", self._text)
        return self._lines[line - 1][:_SOURCE] if 0 < line <= len(self._lines) else ""

    def note(self, message: str, line: int, column: int, hint: str = "") -> None:
        """Note a problem of the text; line and column are counted from 0, as PyYAML does."""
        if len(self.problems) < MOST:
            source = "" if self._has_secrets else self.source(line + 1)
            self.problems.append(
                Finding(message, "", hint, "", self.name, line + 1, column + 1, source, ProblemKind.SYNTAX)
            )

    def stop(self, message: str, line: int, column: int, hint: str = "") -> NoReturn:
        """Note a problem that makes all that follows meaningless."""
        self.note(message, line, column, hint)
        raise InvalidRules(self.problems)

    def _check_text(self) -> None:
        bad = _NOT_PRINTABLE.search(self._text.removeprefix("\ufeff"))
        if bad:
            position = bad.start() + self._text.startswith("\ufeff")
            line = self._text.count("\n", 0, position) + 1
            column = position - self._text.rfind("\n", 0, position)
            self.stop(f"the character U+{ord(bad.group()):04X} cannot be in {self._what}", line - 1, column - 1)
        if len(self._text) > MAX_BYTES or len(self._text.encode()) > MAX_BYTES:
            self.stop(f"more than {MAX_BYTES:_} bytes: split the file", 0, 0)

    def _build(self, places: _Places | None) -> Any:
        yaml = yaml_module()
        try:
            return _Builder(self, self._what, places).built(self._text, self._until)
        except yaml.MarkedYAMLError as error:
            told = f"{error.context or ''} {error.problem}"
            hint = next((advice for sign, advice in _ADVICE.items() if sign in told), "")
            at_end = error.context_mark and "end of stream" in str(error.problem)
            mark = error.context_mark if at_end else error.problem_mark or error.context_mark
            line, column = (mark.line, mark.column) if mark else (0, 0)
            source = "" if self._has_secrets else self.source(line + 1)
            if "\t" in source[: len(source) - len(source.lstrip())]:
                hint = "A tab cannot indent: use spaces."
            self.stop(f"not YAML: {error.problem}", line, column, hint)
        except yaml.YAMLError as error:  # the reader's; the text was checked, so none is known
            self.stop(f"not YAML: {error}", 0, 0)


class _Frame:
    """A collection whose end has not come yet."""

    __slots__ = ("anchor", "count", "held", "key", "key_mark", "keyed", "lines", "merges", "start", "wants_key")

    def __init__(self, held: Any, anchor: str | None, count: int, start: Any) -> None:
        self.held = held
        self.anchor = anchor
        self.count = count
        """How many nodes came before it."""
        self.start = start
        self.keyed = self.wants_key = type(held) is dict
        self.key: Any = None
        self.key_mark: Any = None
        self.merges: list[tuple[Any, Any]] = []
        self.lines: dict[str, int] = {}


class _Builder:
    """Makes data of the events of a text; notes what is wrong in the document and, if asked to, where everything is."""

    __slots__ = ("_anchors", "_count", "_document", "_places", "_scalars", "_stack", "_top", "_what")

    def __init__(self, document: Document, what: str, places: _Places | None) -> None:
        self._document, self._what, self._places = document, what, places
        self._top = _Frame([], "", 0, None)
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        """By name: the value, and how many nodes it has."""
        self._scalars: dict[str, Any] = dict(_WORDS)
        """What scalars without quotes mean, as far as they were seen."""
        self._count = 0

    def built(self, text: str, until: tuple[str | int, int] | None = None) -> Any:
        """Return the data; perhaps only until the item of that number is in the list of that name."""
        yaml = yaml_module()
        events = yaml.events
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is in C, where there is a compiler
        scalar, read = events.ScalarEvent, self._scalar
        others = {
            events.MappingStartEvent: self._start_mapping,
            events.SequenceStartEvent: self._start_list,
            events.MappingEndEvent: self._end,
            events.SequenceEndEvent: self._end,
            events.AliasEvent: self._alias,
        }
        root, documents = self._top.held, 0
        for event in yaml.parse(text, loader):
            kind = type(event)
            if kind is scalar:
                read(event)
            elif kind in others:
                others[kind](event)
                if until is not None and self._has(*until):
                    break
            elif kind is events.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    self._document.stop(f"a second document: {self._what} is one", event.start_mark.line, 0)
        while self._stack:
            self._end(None)
        return root[0] if root else None

    def _has(self, name: str | int, index: int) -> bool:
        """Whether a list that is open, right below the top, has an item of that number."""
        is_below_top = len(self._stack) == 2 and not self._top.keyed
        return is_below_top and self._stack[-1].key == name and len(self._top.held) > index

    def _scalar(self, event: Any) -> None:
        self._count += 1
        top, value = self._top, event.value
        is_plain, tag = event.implicit[0], event.tag
        if tag is not None and tag not in _TEXT_TAGS:
            self._tagged(event)
        if top.wants_key:
            if event.anchor:
                self._anchors[event.anchor] = value, 1
            self._key(_MERGE if is_plain and value == "<<" else value, event)
            return
        if is_plain:
            try:
                value = self._scalars[value]
            except KeyError:
                value = self._scalars[event.value] = resolved(event.value)
        if event.anchor:
            self._anchors[event.anchor] = value, 1
        self._put(value, event)

    def _start_mapping(self, event: Any) -> None:
        self._start({}, event)

    def _start_list(self, event: Any) -> None:
        self._start([], event)

    def _start(self, held: Any, event: Any) -> None:
        self._count += 1
        if event.tag is not None:
            self._tagged(event)
        if len(self._stack) >= MAX_DEPTH:
            self._stop(f"nested more than {MAX_DEPTH} deep", event)
        if self._top.wants_key:
            self._stop("a key must be text", event)
        self._check_count(event)
        self._stack.append(self._top)
        self._top = _Frame(held, event.anchor, self._count, event)

    def _end(self, _event: Any) -> None:
        top = self._top
        if top.merges:
            self._merge(top)
        if top.anchor:
            self._anchors[top.anchor] = top.held, self._count - top.count + 1
        self._top = self._stack.pop()
        self._put(top.held, top.start)  # where the collection begins is where it is

    def _alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            message = f"*{event.anchor} stands for nothing: no &{event.anchor} is complete above it"
            near = Findings().near(event.anchor, self._anchors)
            self._stop(message, event, near or "A value that begins with * needs quotes.")
        value, size = self._anchors[event.anchor]
        self._count += size
        self._check_count(event)
        if not self._top.wants_key:
            self._put(value, event)
        elif isinstance(value, str):
            self._key(value, event)
        else:
            self._stop("a key must be text", event)

    def _key(self, key: Any, event: Any) -> None:
        frame, mark = self._top, event.start_mark
        if key is not _MERGE and key in frame.held:
            first = frame.lines.get(key)
            seen = f", first on line {first}" if first else ""
            self._document.note(f"the key {short(key)} is given twice{seen}", mark.line, mark.column)
            key = _IGNORED
        elif key is not _MERGE:
            frame.lines[key] = mark.line + 1
        frame.key, frame.key_mark, frame.wants_key = key, mark, False

    def _put(self, value: Any, event: Any) -> None:
        """Put a value into the collection that is open."""
        top, mark = self._top, event.start_mark
        held, places = top.held, self._places
        if top.keyed:
            key = top.key
            top.wants_key = True
            if key is _MERGE:
                top.merges.append((value, mark))
            elif key is not _IGNORED:
                held[key] = value
                if places is not None:
                    at = top.key_mark
                    places.setdefault(id(held), {})[key] = (at.line + 1, at.column + 1, mark.line + 1, mark.column + 1)
        else:
            if places is not None:
                places.setdefault(id(held), {})[len(held)] = (mark.line + 1, mark.column + 1) * 2
            held.append(value)
        if self._count > MAX_NODES:
            self._check_count(event)

    def _merge(self, frame: _Frame) -> None:
        """Add what ``<<`` brings: keys that are not there yet."""
        for value, mark in frame.merges:
            for source in value if isinstance(value, list) else [value]:
                if not isinstance(source, dict):
                    self._document.note("<< takes a mapping, such as *defaults", mark.line, mark.column)
                    break
                for key, inner in source.items():
                    if key not in frame.held:
                        frame.held[key] = inner
                        self._count += 1
                        if self._places is not None:
                            self._places.setdefault(id(frame.held), {})[key] = self._places[id(source)][key]

    def _tagged(self, event: Any) -> None:
        hint = "Remove it. A value that begins with ! needs quotes."
        message = f"tags, such as {short(event.tag)}, have no meaning here"
        self._document.note(message, event.start_mark.line, event.start_mark.column, hint)

    def _check_count(self, event: Any) -> None:
        if self._count > MAX_NODES:
            self._stop(f"more than {MAX_NODES:_} values, with aliases written out", event)

    def _stop(self, message: str, event: Any, hint: str = "") -> NoReturn:
        self._document.stop(message, event.start_mark.line, event.start_mark.column, hint)


def resolved(plain: str) -> object:
    """Return what a scalar without quotes means: a number if it is plainly one, else text."""
    if plain in _WORDS:
        return _WORDS[plain]
    if plain[0] not in "-.0123456789":
        return plain
    if _INT.fullmatch(plain):
        return int(plain)
    if _FLOAT.fullmatch(plain) and isfinite(number := float(plain)):
        return number
    return plain


def text_of(path: str | PathLike[str]) -> str:
    """Return the text of a file. Raises InvalidRules if it cannot be read, is too large, or is not UTF-8."""
    name = fspath(path)
    try:
        with open(path, "rb") as file:  # noqa: PTH123  any path-like
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRules([Finding(f"cannot be read: {reason}", file=name, kind=ProblemKind.FILE)]) from None
    if len(raw) > MAX_BYTES:
        message = f"more than {MAX_BYTES:_} bytes: split the file"
        raise InvalidRules([Finding(message, file=name, kind=ProblemKind.FILE)])
    return decoded(raw, name)


def decoded(raw: bytes, name: str) -> str:
    """Return the text of a file. Raises InvalidRules saying where it is not UTF-8."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode(errors="replace")) + 1
        hint = "It looks like UTF-16: s" if raw[:2] in {b"\xff\xfe", b"\xfe\xff"} else "S"
        message = f"the byte 0x{raw[error.start]:02x} is not UTF-8"
        advice = f"{hint}ave the file as UTF-8."
        raise InvalidRules(
            [Finding(message, hint=advice, file=name, line=line, column=column, kind=ProblemKind.SYNTAX)],
        ) from None


def yaml_module() -> Any:
    """Return PyYAML; only those who read YAML need it."""
    try:
        import yaml  # noqa: PLC0415
    except ImportError:
        raise ImportError(not_installed("yaml", "policy")) from None
    return yaml

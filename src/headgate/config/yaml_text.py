"""Files of YAML as plain data (dict, list, str, int, float, bool, None), bounded and without surprises.

Scalars are read as YAML 1.2 does: ``NO``, ``on``, ``1:30``, ``010`` and dates are text, and keys are always text: the
user ``12345`` is "12345". Anchors, aliases and ``<<`` work. Refused, each with its place: duplicate keys, tags, a
second document, and data that is too large or too deep, also with all aliases expanded.

The data comes from the stream of events: that is nine times as fast as PyYAML's nodes, and depth is checked on the way.
"""

from __future__ import annotations

import re
from math import isfinite
from os import PathLike, fspath
from typing import Any, Final, NoReturn

from headgate.config.problems import MOST, Finding, Findings, InvalidRules, Locator, Path, ProblemKind
from headgate.core.numbers import short
from headgate.files import FileTooLarge, UnreadableFile, content_of
from headgate.messages import not_installed

MAX_BYTES: Final = 50_000_000
MAX_NODES: Final = 5_000_000
"""Values and keys of a file, with all aliases expanded; 100 000 rules have about 2 million."""
MAX_DEPTH: Final = 20
_SOURCE = 200
_NOT_PRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INT = re.compile(r"0|-?[1-9][0-9]{0,39}")
_FLOAT = re.compile(r"-?(?=.{1,40}$)([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]{1,3})?")
_WORDS: dict[str, object] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_TEXT_TAGS = {"!", "tag:yaml.org,2002:str"}
_MERGE = object()
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
    """The data of a YAML text, with the places of its values. Raises InvalidRules if there is none.

    If its lines may have keys or passwords (`has_secrets`), problems of the text do not show them.
    """

    __slots__ = ("_has_secrets", "_lines", "_places", "_text", "_what", "data")

    def __init__(self, text: str, name: str, what: str = "a file of rules", *, has_secrets: bool = False) -> None:
        super().__init__(name)
        self._text, self._has_secrets = text, has_secrets
        self._what = what
        self._lines: list[str] | None = None
        self._places: _Places | None = None
        bad = _NOT_PRINTABLE.search(text.removeprefix("\ufeff"))
        if bad:
            position = bad.start() + text.startswith("\ufeff")
            line = text.count("\n", 0, position)
            column = position - text.rfind("\n", 0, position) - 1
            self.stop(f"{what} cannot contain the character U+{ord(bad.group()):04X}", line, column)
        if len(text) > MAX_BYTES or len(text.encode()) > MAX_BYTES:
            self.stop(f"more than {MAX_BYTES:_} bytes: split the file", 0, 0)
        self.data: Any = self._build(None)

    def locate(self, path: Path, *, at_key: bool) -> tuple[int, int]:
        """Return the line and column of a value, or of its key. The first call reads the text again."""
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
        """Return the beginning of that line of the text."""
        if self._lines is None:
            self._lines = re.split("\r\n|[\n\r\x85\u2028\u2029]", self._text)
        return self._lines[line - 1][:_SOURCE] if 0 < line <= len(self._lines) else ""

    def note(self, message: str, line: int, column: int, hint: str = "") -> None:
        """Add a problem of the text; line and column count from 0, as in PyYAML."""
        if len(self.problems) < MOST:
            source = "" if self._has_secrets else self.source(line + 1)
            self.problems.append(
                Finding(message, "", hint, "", self.name, line + 1, column + 1, source, ProblemKind.SYNTAX)
            )

    def stop(self, message: str, line: int, column: int, hint: str = "") -> NoReturn:
        """Raise a problem after which the rest has no meaning."""
        self.note(message, line, column, hint)
        raise InvalidRules(self.problems)

    def _build(self, places: _Places | None) -> Any:
        yaml = yaml_module()
        try:
            return _Builder(self, self._what, places).build(self._text)
        except yaml.MarkedYAMLError as error:
            message = f"{error.context or ''} {error.problem}"
            hint = next((advice for part, advice in _ADVICE.items() if part in message), "")
            at_end = error.context_mark and "end of stream" in str(error.problem)
            mark = error.context_mark if at_end else error.problem_mark or error.context_mark
            line, column = (mark.line, mark.column) if mark else (0, 0)
            written = self.source(line + 1)
            if "\t" in written[: len(written) - len(written.lstrip())] or written[column : column + 1] == "\t":
                hint = "A tab cannot indent: use spaces."
            self.stop(f"not YAML: {error.problem}", line, column, hint)
        except yaml.YAMLError as error:  # without a place: none is known, since the text was checked
            self.stop(f"not YAML: {error}", 0, 0)


class _Builder:
    """Builds data from the events of a text, and collects the places of all values, if `places` is given."""

    __slots__ = ("_anchors", "_count", "_document", "_events", "_kinds", "_places", "_what")

    def __init__(self, document: Document, what: str, places: _Places | None) -> None:
        self._document, self._what, self._places = document, what, places
        self._kinds = yaml_module().events
        self._events: Any = None
        self._anchors: dict[str, tuple[Any, int]] = {}
        """By name: the value, and its number of nodes."""
        self._count = 0

    def build(self, text: str) -> Any:
        """Return the data."""
        yaml, kinds = yaml_module(), self._kinds
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is in C, where there is a compiler
        around = {kinds.StreamStartEvent, kinds.StreamEndEvent, kinds.DocumentEndEvent}
        self._events = yaml.parse(text, loader)
        data, documents = None, 0
        for event in self._events:
            if type(event) is kinds.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    self._document.stop(
                        f"a second document: {self._what} must contain only one", event.start_mark.line, 0
                    )
            elif type(event) not in around:
                data = self._value(event, 0)
        return data

    def _value(self, event: Any, depth: int) -> Any:
        """Return the value that begins with an event."""
        kind, before = type(event), self._count
        if kind is self._kinds.AliasEvent:
            return self._alias(event)
        self._begin(event, depth)
        if kind is self._kinds.ScalarEvent:
            value = resolve_scalar(event.value) if event.implicit[0] else event.value
        elif kind is self._kinds.MappingStartEvent:
            value = self._mapping(event, depth + 1)
        else:
            value = self._list(depth + 1)
        if event.anchor:
            self._anchors[event.anchor] = value, self._count - before
        return value

    def _begin(self, event: Any, depth: int) -> None:
        """Count and check a scalar or a collection before it is read."""
        self._add(1, event)
        is_scalar = type(event) is self._kinds.ScalarEvent
        if event.tag is not None and not (is_scalar and event.tag in _TEXT_TAGS):
            hint = "Remove it. A value that begins with ! needs quotes."
            message = f"tags, such as {short(event.tag)}, have no meaning here"
            self._document.note(message, event.start_mark.line, event.start_mark.column, hint)
        if depth >= MAX_DEPTH and not is_scalar:
            self._stop(f"nested more than {MAX_DEPTH} levels deep", event)

    def _list(self, depth: int) -> list[Any]:
        held: list[Any] = []
        places = self._places_of(held)
        for event in self._events:
            if type(event) is self._kinds.SequenceEndEvent:
                break
            if places is not None:
                mark = event.start_mark
                places[len(held)] = (mark.line + 1, mark.column + 1) * 2
            held.append(self._value(event, depth))
        return held

    def _mapping(self, start: Any, depth: int) -> dict[str, Any]:
        held: dict[str, Any] = {}
        lines: dict[str, int] = {}
        merges: list[tuple[Any, Any]] = []
        places = self._places_of(held)
        for event in self._events:
            if type(event) is self._kinds.MappingEndEvent:
                break
            key, at = self._key(event, depth), event.start_mark
            is_again = key in lines
            if is_again:
                message = f"the key {short(key)} occurs twice, first on line {lines[key]}"
                self._document.note(message, at.line, at.column)
            inner = next(self._events)
            value, mark = self._value(inner, depth), inner.start_mark
            if key is _MERGE:
                merges.append((value, mark))
            elif not is_again:
                held[key], lines[key] = value, at.line + 1
                if places is not None:
                    places[key] = (at.line + 1, at.column + 1, mark.line + 1, mark.column + 1)
        if merges:
            self._merge(held, merges, places)
            self._add(0, start)
        return held

    def _places_of(self, held: object) -> dict[str | int, tuple[int, int, int, int]] | None:
        if self._places is None:
            return None
        places = self._places[id(held)] = {}
        return places

    def _key(self, event: Any, depth: int) -> Any:
        kind, key = type(event), None
        if kind is self._kinds.AliasEvent:
            key = self._alias(event)
        else:
            self._begin(event, depth)
            if kind is self._kinds.ScalarEvent:
                key = event.value
                if event.anchor:
                    self._anchors[event.anchor] = key, 1
                if key == "<<" and event.implicit[0]:
                    return _MERGE
        if not isinstance(key, str):
            self._stop("a key must be text", event)
        return key

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            message = f"*{event.anchor} is undefined: no &{event.anchor} is complete above it"
            near = Findings().near(event.anchor, self._anchors)
            self._stop(message, event, near or "A value that begins with * needs quotes.")
        value, size = self._anchors[event.anchor]
        self._add(size, event)
        return value

    def _merge(self, held: dict[str, Any], merges: list[tuple[Any, Any]], places: dict[Any, Any] | None) -> None:
        """Add the keys of ``<<`` that are not there yet."""
        for value, mark in merges:
            for source in value if isinstance(value, list) else [value]:
                if not isinstance(source, dict):
                    self._document.note(
                        "<< must be a mapping, such as *defaults, or a list of mappings", mark.line, mark.column
                    )
                    break
                for key, inner in source.items():
                    if key not in held:
                        held[key] = inner
                        self._count += 1
                        if places is not None and self._places is not None:
                            places[key] = self._places[id(source)][key]

    def _add(self, count: int, event: Any) -> None:
        self._count += count
        if self._count > MAX_NODES:
            self._stop(f"more than {MAX_NODES:_} values, with all aliases expanded", event)

    def _stop(self, message: str, event: Any, hint: str = "") -> NoReturn:
        self._document.stop(message, event.start_mark.line, event.start_mark.column, hint)


def resolve_scalar(plain: str) -> object:
    """Return the meaning of a scalar without quotes: a number if it is plainly one, else text."""
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
        return decode_text(content_of(path, MAX_BYTES), name)
    except UnreadableFile as error:
        message = f"{error}: split the file" if isinstance(error, FileTooLarge) else str(error)
        raise InvalidRules([Finding(message, file=name, kind=ProblemKind.FILE)]) from None


def decode_text(raw: bytes, name: str) -> str:
    """Return the text of a file. Raises InvalidRules with the place where it is not UTF-8."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode(errors="replace")) + 1
        hint = "It looks like UTF-16: s" if raw[:2] in {b"\xff\xfe", b"\xfe\xff"} else "S"
        message = f"the byte 0x{raw[error.start]:02x} is not UTF-8"
        advice = f"{hint}ave the file as UTF-8."
        problem = Finding(message, "", advice, "", name, line, column, kind=ProblemKind.SYNTAX)
        raise InvalidRules([problem]) from None


def yaml_module() -> Any:
    """Return PyYAML, which is optional."""
    try:
        import yaml  # noqa: PLC0415
    except ImportError:
        raise ImportError(not_installed("yaml", "policy")) from None
    return yaml

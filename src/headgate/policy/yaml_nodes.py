"""YAML as plain data (dict, list, str, int, float, bool, None), bounded and without surprises.

Scalars are read as YAML 1.2 does: ``NO``, ``on``, ``1:30``, ``010`` and dates are text, and keys are always text: the
user ``12345`` is "12345". Anchors, aliases and ``<<`` work. Refused, each with its place: duplicate keys, tags, a
second document, and what is too large, too deep, or would become so when aliases are written out.

The data comes from the stream of events: nothing recurses, and it is nine times as fast as PyYAML's nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from math import isfinite
from typing import Any, Final, NoReturn

from headgate.core.errors import not_installed
from headgate.policy.problems import MOST, InvalidRules, Kind, Locator, Path, Problem, nearest

MAX_BYTES: Final = 50_000_000
MAX_NODES: Final = 5_000_000
"""Values and keys of a file, with aliases written out; 100 000 rules have about 2 million."""
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


class Document(Locator):
    """The data of a text, and where it is written."""

    __slots__ = ("_lines", "_places", "_text", "_what", "data", "problems")

    def __init__(self, text: str, name: str, what: str = "a file of rules") -> None:
        super().__init__(name)
        self._text = text
        self._what = what
        self._lines: list[str] | None = None
        self._places: _Places | None = None
        self.problems: list[Problem] = []
        self.data: Any = None
        self._check_text()
        self.data = self._build(None)

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

    def _check_text(self) -> None:
        bad = _NOT_PRINTABLE.search(self._text.removeprefix("\ufeff"))
        if bad:
            position = bad.start() + self._text.startswith("\ufeff")
            line = self._text.count("\n", 0, position) + 1
            column = position - self._text.rfind("\n", 0, position)
            self._stop(f"the character U+{ord(bad.group()):04X} cannot be in {self._what}", line - 1, column - 1)
        if len(self._text) > MAX_BYTES or len(self._text.encode()) > MAX_BYTES:
            self._stop(f"more than {MAX_BYTES:_} bytes: split the file", 0, 0)

    def _stop(self, message: str, line: int, column: int, hint: str = "") -> NoReturn:
        self._note(message, line, column, hint)
        raise InvalidRules(self.problems)

    def _note(self, message: str, line: int, column: int, hint: str = "") -> None:
        if len(self.problems) >= MOST:
            return
        problem = Problem(message, hint=hint, file=self.name, line=line + 1, column=column + 1, kind=Kind.SYNTAX)
        self.problems.append(replace(problem, source=self.source(problem.line)))

    def _build(self, places: _Places | None) -> Any:
        yaml = yaml_module()
        try:
            return self._from_events(places)
        except yaml.MarkedYAMLError as error:
            told = f"{error.context or ''} {error.problem}"
            hint = next((advice for sign, advice in _ADVICE.items() if sign in told), "")
            at_end = error.context_mark and "end of stream" in str(error.problem)
            mark = error.context_mark if at_end else error.problem_mark or error.context_mark
            line, column = (mark.line, mark.column) if mark else (0, 0)
            source = self.source(line + 1)
            if "\t" in source[: len(source) - len(source.lstrip())]:
                hint = "A tab cannot indent: use spaces."
            self._stop(f"not YAML: {error.problem}", line, column, hint)
        except yaml.YAMLError as error:  # the reader's; the text was checked, so none is known
            self._stop(f"not YAML: {error}", 0, 0)

    def _from_events(self, places: _Places | None) -> Any:  # noqa: C901, PLR0912, PLR0915  one loop, and it is hot
        events, (document, scalar, mapping, sequence, ends, alias) = _events(self._text)
        root: list[Any] = []
        stack: list[_Frame] = []
        top = _Frame(root, "", 0, None)
        anchors: dict[str, tuple[Any, int]] = {}
        scalars: dict[str, Any] = dict(_WORDS)
        count = documents = 0
        for event in events:
            kind = type(event)
            if kind is scalar:
                count += 1
                value: Any = event.value
                plain, tag = event.implicit[0], event.tag
                if tag is not None and tag not in _TEXT_TAGS:
                    self._tagged(event)
                if top.wants_key:
                    if event.anchor:
                        anchors[event.anchor] = value, 1
                    self._key(top, _MERGE if plain and value == "<<" else value, event)
                    continue
                if plain:
                    try:
                        value = scalars[value]
                    except KeyError:
                        value = scalars[event.value] = resolved(event.value)
                if event.anchor:
                    anchors[event.anchor] = value, 1
            elif kind in ends:
                if top.merges:
                    count += self._merge(top, places)
                value = top.held
                if top.anchor:
                    anchors[top.anchor] = value, count - top.count + 1
                event = top.start  # noqa: PLW2901  where the collection begins is where it is
                top = stack.pop()
            elif kind is mapping or kind is sequence:
                count += 1
                if event.tag is not None:
                    self._tagged(event)
                if len(stack) >= MAX_DEPTH:
                    self._stop(f"nested more than {MAX_DEPTH} deep", event.start_mark.line, event.start_mark.column)
                if top.wants_key:
                    self._stop("a key must be text", event.start_mark.line, event.start_mark.column)
                if count > MAX_NODES:
                    self._too_many(event)
                stack.append(top)
                top = _Frame({} if kind is mapping else [], event.anchor, count, event)
                continue
            elif kind is alias:
                value, size = self._aliased(event, anchors)
                count += size
                if count > MAX_NODES:
                    self._too_many(event)
                if top.wants_key:
                    if not isinstance(value, str):
                        self._stop("a key must be text", event.start_mark.line, event.start_mark.column)
                    self._key(top, value, event)
                    continue
            else:
                documents += kind is document
                if documents > 1:
                    self._stop(f"a second document: {self._what} is one", event.start_mark.line, 0)
                continue
            held = top.held
            mark = event.start_mark
            if top.keyed:
                key = top.key
                top.wants_key = True
                if key is _MERGE or key is _IGNORED:
                    if key is _MERGE:
                        top.merges.append((value, mark))
                    continue
                held[key] = value
                if places is not None:
                    at = top.key_mark
                    places.setdefault(id(held), {})[key] = (at.line + 1, at.column + 1, mark.line + 1, mark.column + 1)
            else:
                if places is not None:
                    places.setdefault(id(held), {})[len(held)] = (mark.line + 1, mark.column + 1) * 2
                held.append(value)
            if count > MAX_NODES:
                self._too_many(event)
        return root[0] if root else None

    def _key(self, frame: _Frame, key: Any, event: Any) -> None:
        mark = event.start_mark
        if key is not _MERGE and key in frame.held:
            first = frame.lines.get(key)
            self._note(
                f"the key {_short(key)} is given twice" + (f", first on line {first}" if first else ""),
                mark.line,
                mark.column,
            )
            key = _IGNORED
        elif key is not _MERGE:
            frame.lines[key] = mark.line + 1
        frame.key, frame.key_mark, frame.wants_key = key, mark, False

    def _merge(self, frame: _Frame, places: _Places | None) -> int:
        """Add what ``<<`` brings: keys that are not there yet."""
        added = 0
        for value, mark in frame.merges:
            for source in value if isinstance(value, list) else [value]:
                if not isinstance(source, dict):
                    self._note("<< takes a mapping, such as *defaults", mark.line, mark.column)
                    break
                for key, inner in source.items():
                    if key not in frame.held:
                        frame.held[key] = inner
                        added += 1
                        if places is not None:
                            places.setdefault(id(frame.held), {})[key] = places[id(source)][key]
        return added

    def _aliased(self, event: Any, anchors: dict[str, tuple[Any, int]]) -> tuple[Any, int]:
        if event.anchor not in anchors:
            mark = event.start_mark
            self._stop(
                f"*{event.anchor} stands for nothing: no &{event.anchor} is complete above it",
                mark.line,
                mark.column,
                nearest(event.anchor, anchors) or "A value that begins with * needs quotes.",
            )
        return anchors[event.anchor]

    def _tagged(self, event: Any) -> None:
        mark = event.start_mark
        hint = "Remove it. A value that begins with ! needs quotes."
        self._note(f"tags, such as {_short(event.tag)}, have no meaning here", mark.line, mark.column, hint)

    def _too_many(self, event: Any) -> NoReturn:
        mark = event.start_mark
        self._stop(f"more than {MAX_NODES:_} values, with aliases written out", mark.line, mark.column)


class _Frame:
    """A collection whose end has not come yet."""

    __slots__ = ("anchor", "count", "held", "key", "key_mark", "keyed", "lines", "merges", "start", "wants_key")

    def __init__(self, held: Any, anchor: str | None, count: int, start: Any) -> None:
        self.held = held
        self.anchor = anchor
        self.count = count
        self.start = start
        self.keyed = self.wants_key = type(held) is dict
        self.key: Any = None
        self.key_mark: Any = None
        self.merges: list[tuple[Any, Any]] = []
        self.lines: dict[str, int] = {}


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
            [Problem(message, hint=advice, file=name, line=line, column=column, kind=Kind.SYNTAX)],
        ) from None


def yaml_module() -> Any:
    """Return PyYAML; only those who read YAML need it."""
    try:
        import yaml  # noqa: PLC0415
    except ImportError:
        raise ImportError(not_installed("yaml", "policy")) from None
    return yaml


def _events(text: str) -> tuple[Iterator[Any], tuple[Any, ...]]:
    yaml = yaml_module()
    events = yaml.events
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is in C, where there is a compiler
    kinds = (
        events.DocumentStartEvent,
        events.ScalarEvent,
        events.MappingStartEvent,
        events.SequenceStartEvent,
        {events.MappingEndEvent, events.SequenceEndEvent},
        events.AliasEvent,
    )
    return iter(yaml.parse(text, loader)), kinds


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:50]}...")

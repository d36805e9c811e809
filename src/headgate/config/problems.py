"""Problems of configuration, in a file or as data: each with its place and a correction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

from headgate.core.errors import InvalidRule, UsageError
from headgate.core.numbers import short
from headgate.messages import printable

T = TypeVar("T")
Path = tuple[str | int, ...]
"""The place of a value in data: ("rules", 2, "window")."""
MOST = 1000
"""Problems of one file, after which the rest is not read."""
PATIENCE = 100_000
"""Bound on the search for similar names in one file: letters of the word times the names."""
_LISTED = 20
_LONGEST_WORD = 100
_MOST_NAMES = 2000


class ProblemKind(StrEnum):
    """The check that found a problem."""

    FILE = "file"
    """The file cannot be read at all."""
    SYNTAX = "syntax"
    """It is not YAML, or not JSON."""
    FORM = "form"
    """A field is missing, unknown, or of the wrong type: the JSON Schema finds it, too."""
    MEANING = "meaning"
    """All fields are well formed, but together they make no sense."""
    UNREAD = "unread"
    """Not checked, because there were too many problems before it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to correct."""

    message: str
    """What was found, and why it is wrong."""
    accepted: str = ""
    """What would be right."""
    hint: str = ""
    """The nearest valid alternative, as a sentence."""
    path: str = ""
    """The field, such as ``rules[2].window``."""
    file: str = ""
    line: int = 0
    """From 1; 0 if it is not about one place."""
    column: int = 0
    """From 1."""
    source: str = ""
    """The line, as written."""
    kind: ProblemKind = ProblemKind.FORM

    @property
    def place(self) -> str:
        """``rules.yaml:12:5``, as far as it is known."""
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part)

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.place, self.path) if part)
        text = f"{where}: {self.message}" if where else self.message
        if self.accepted:
            text += f". Accepted: {self.accepted}"
        return f"{text}. {self.hint}" if self.hint else text


class InvalidRules(InvalidRule):
    """Rules, as a file or as data, have problems.

    Attributes:
        problems: all of them, in the order of the file.
    """

    def __init__(self, problems: Iterable[Finding]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        found = [problem for problem in self.problems if problem.kind is not ProblemKind.UNREAD]
        more = [f"... and {len(found) - _LISTED} more"] if len(found) > _LISTED else []
        unread = [problem for problem in self.problems if problem.kind is ProblemKind.UNREAD]
        return "\n".join([*map(str, found[:_LISTED]), *more, *map(str, unread[:_LISTED])])


class Locator:
    """Finds the positions of values. This class is for data without a text: it has only a name."""

    __slots__ = ("name", "problems")

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[Finding] = []
        """Problems of the text itself, after which reading could go on."""

    def locate(self, path: Path, *, at_key: bool) -> tuple[int, int]:  # noqa: ARG002  subclasses need them
        """Return the line and column of a value, or of its key, from 1; zeros if unknown."""
        return 0, 0

    def source(self, line: int) -> str:  # noqa: ARG002  subclasses need it
        return ""


class Findings:
    """Collects the problems and the warnings of one file, or of data without a text."""

    __slots__ = ("_found", "_odd", "_patience", "count", "where")

    def __init__(self, where: Locator | None = None) -> None:
        self.where = where or Locator("")
        self.count = 0
        self._found: list[tuple[Path, bool, Finding]] = []
        self._odd: list[tuple[Path, bool, Finding]] = []
        self._patience = PATIENCE

    def add(
        self,
        path: Path,
        message: str,
        accepted: str = "",
        hint: str = "",
        *,
        kind: ProblemKind = ProblemKind.FORM,
        at_key: bool = False,
    ) -> None:
        """Add a problem with the value at `path`, or with its key."""
        self.count += 1
        if self.count <= MOST:
            self._found.append((path, at_key, Finding(message, accepted, hint, render(path), kind=kind)))

    def reject(self, path: Path, message: str, hint: str = "", *, accepted: str = "", at_key: bool = False) -> None:
        """Add a problem with the meaning of a well-formed value at `path`, or of its key."""
        self.add(path, message, accepted, hint, kind=ProblemKind.MEANING, at_key=at_key)

    def attempt(self, path: Path, make: Callable[..., T], *parts: Any, **others: Any) -> T | None:
        """Return what `make` returns, or reject the value at `path` because of its UsageError."""
        try:
            return make(*parts, **others)
        except UsageError as error:
            self.reject(path, str(error))
            return None

    @property
    def is_full(self) -> bool:
        """Whether the maximum of problems is reached, so that the rest is not read."""
        return self.count >= MOST

    def pass_over(self, path: Path, count: int) -> None:
        """Note that the value at `path` and those after it, `count` in all, are not read."""
        message = f"not checked, after {self.count} problems: {count} from here on"
        self._found.append((path, False, Finding(message, path=render(path), kind=ProblemKind.UNREAD)))

    def warn(self, path: Path, message: str, accepted: str = "", hint: str = "", *, at_key: bool = False) -> None:
        """Add a warning: the value at `path`, or its key, is valid, but probably a mistake."""
        if len(self._odd) < MOST:
            self._odd.append((path, at_key, Finding(message, accepted, hint, render(path))))

    def near(self, word: object, names: Iterable[str]) -> str:
        """Return the question "Did you mean ...?" for a misspelt name, or an empty text."""
        near = self.near_name(word, names)
        return f"Did you mean {near!r}?" if near else ""

    def near_name(self, word: object, names: Iterable[str]) -> str:
        """Return the name most similar to a misspelt one, or an empty text.

        The search is slow, so it is bounded: in a file with a thousand wrong words, the later ones get no suggestion.
        """
        known = tuple(names)
        if not isinstance(word, str) or len(word) > _LONGEST_WORD or len(known) > _MOST_NAMES or self.is_full:
            return ""
        if self._patience <= 0:
            return ""
        self._patience -= len(word) * len(known)
        folded = {name.lower().replace("-", "_"): name for name in known}
        found = get_close_matches(word.lower().replace("-", "_"), folded, 1, cutoff=0.65)
        return folded[found[0]] if found else ""

    def problems(self) -> list[Finding]:
        """Return the problems of the data and of its text with their places, from the top of the file to its end."""
        found = in_order([*self.where.problems, *self._locate(self._found)])
        if self.count > MOST:
            message = f"{self.count - MOST} more problems are not listed"
            found.append(Finding(message, file=self.where.name, kind=ProblemKind.UNREAD))
        return found

    def warnings(self) -> list[Finding]:
        """Return the warnings with their places, likewise."""
        return in_order(self._locate(self._odd))

    def check(self) -> None:
        """Raise InvalidRules if there are problems, with the data or its text."""
        if self.count or self.where.problems:
            raise InvalidRules(self.problems())

    def _locate(self, found: Iterable[tuple[Path, bool, Finding]]) -> Iterable[Finding]:
        for path, at_key, problem in found:
            line, column = self.where.locate(path, at_key=at_key)
            yield replace(problem, file=self.where.name, line=line, column=column, source=self.where.source(line))


def in_order(problems: Iterable[Finding]) -> list[Finding]:
    """Return the problems from the top of the file to its end."""
    return sorted(problems, key=lambda problem: (problem.line, problem.column))


def render(path: Path) -> str:
    """Return a path as text: ``users["12345"].overrides.orders-user``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part and part.replace("-", "_").isidentifier():
            text += f".{part}" if text else part
        else:
            text += f'["{printable(part[:80])}"]'
    return text


def shown(value: object) -> str:
    """Return a value for a message, in the words of YAML rather than of Python."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case str() | int() | float():
            return short(value)
    return f"a {type(value).__name__}"


def unlike(value: object, what: str) -> str:
    """Return the message for a value that is wrong: ``unlike("x", "is not a list")``."""
    return "has no value" if value is None else f"{shown(value)} {what}"

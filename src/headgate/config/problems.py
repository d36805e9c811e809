"""What is wrong with rules, in a file or as data: every problem, where it is, and what would be right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum

from headgate.core.errors import InvalidRule
from headgate.core.numbers import printable, short

Path = tuple[str | int, ...]
"""Where a value is in the data: ("rules", 2, "window")."""
MOST = 1000
"""So many problems of one file are looked for."""
PATIENCE = 100_000
"""How much of one file is compared with names that it could have meant: letters of the word times the names."""
_LISTED = 20
_LONGEST_WORD = 100
_MOST_NAMES = 2000


class ProblemKind(StrEnum):
    """Who could have found it."""

    FILE = "file"
    """The file cannot be read at all."""
    SYNTAX = "syntax"
    """It is not YAML, or not JSON."""
    FORM = "form"
    """A field is missing, unknown, or of the wrong type: what the JSON Schema says, too."""
    MEANING = "meaning"
    """All fields are well formed, but together they make no sense."""
    UNREAD = "unread"
    """Nobody has looked: there were too many problems before it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to correct."""

    message: str
    """What was found, and why it is wrong."""
    accepted: str = ""
    """What would be right."""
    hint: str = ""
    """The nearest thing that would work, as a sentence."""
    path: str = ""
    """The field, such as ``rules[2].window``."""
    file: str = ""
    line: int = 0
    """Counted from 1; 0 if it is not about one place."""
    column: int = 0
    """Counted from 1."""
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
    """A file of rules, or the same as data, has problems; all of them are told at once.

    Attributes:
        problems: what to correct, in the order of the file.
    """

    def __init__(self, problems: Iterable[Finding]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        found = [problem for problem in self.problems if problem.kind is not ProblemKind.UNREAD]
        more = [f"... and {len(found) - _LISTED} more"] if len(found) > _LISTED else []
        unread = [problem for problem in self.problems if problem.kind is ProblemKind.UNREAD]
        return "\n".join([*map(str, found[:_LISTED]), *more, *map(str, unread[:_LISTED])])


class Findings:
    """The problems found so far, each at its place in the data, and what is odd without being wrong.

    Args:
        where: knows where the data is written; by default it came without a text.
    """

    __slots__ = ("_found", "_near", "_odd", "_patience", "count", "where")

    def __init__(self, where: Locator | None = None) -> None:
        self.where = where or Locator("")
        self.count = 0
        """How many problems there are."""
        self._found: list[tuple[Path, bool, Finding]] = []
        self._odd: list[tuple[Path, bool, Finding]] = []
        self._near: dict[tuple[str, tuple[str, ...]], str] = {}
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
        """Note a problem with the value at `path`, or with its key."""
        self.count += 1
        if self.count <= MOST:
            self._found.append((path, at_key, Finding(message, accepted, hint, render(path), kind=kind)))

    @property
    def is_full(self) -> bool:
        """Whether there are so many problems that no more are looked for."""
        return self.count >= MOST

    def pass_over(self, path: Path, count: int) -> None:
        """Note that the value at `path`, and those after it, so many in all, are not looked at."""
        message = f"not looked at, after {self.count} problems: {count} from here on"
        self._found.append((path, False, Finding(message, path=render(path), kind=ProblemKind.UNREAD)))

    def warn(self, path: Path, message: str, accepted: str = "", hint: str = "", *, at_key: bool = False) -> None:
        """Note that the value at `path`, or its key, probably does not have the effect that was meant."""
        if len(self._odd) < MOST:
            self._odd.append((path, at_key, Finding(message, accepted, hint, render(path))))

    def near(self, word: object, names: Iterable[str]) -> str:
        """Return the question "Did you mean ...?" for a misspelt name, or nothing."""
        near = self.near_name(word, names)
        return f"Did you mean {near!r}?" if near else ""

    def near_name(self, word: object, names: Iterable[str]) -> str:
        """Return the name that a misspelt one was probably meant to be, or nothing.

        Comparing takes time, so there is an end to it: in a file where a thousand words are wrong, the later ones go
        without a suggestion.
        """
        known = tuple(names)
        if not isinstance(word, str) or len(word) > _LONGEST_WORD or len(known) > _MOST_NAMES or self.is_full:
            return ""
        near = self._near.get((word, known))
        if near is None:
            if self._patience <= 0:
                return ""
            self._patience -= len(word) * len(known)
            folded = {name.lower().replace("-", "_"): name for name in known}
            found = get_close_matches(word.lower().replace("-", "_"), folded, 1, cutoff=0.65)
            near = self._near[word, known] = folded[found[0]] if found else ""
        return near

    def problems(self) -> list[Finding]:
        """Return the problems with their places in the file, and those of its text, from its top to its end."""
        found = in_order([*self.where.problems, *self._located(self._found)])
        if self.count > MOST:
            untold = f"{self.count - MOST} more problems are not listed"
            found.append(Finding(untold, file=self.where.name, kind=ProblemKind.UNREAD))
        return found

    def warnings(self) -> list[Finding]:
        """Return what is odd, likewise."""
        return self._located(self._odd)

    def check(self) -> None:
        """Raise InvalidRules if there are problems, with the data or its text."""
        if self.count or self.where.problems:
            raise InvalidRules(self.problems())

    def _located(self, found: Iterable[tuple[Path, bool, Finding]]) -> list[Finding]:
        where, problems = self.where, []
        where.expect([path for path, _, _ in found])
        for path, at_key, problem in found:
            line, column = where.locate(path, at_key=at_key)
            problems.append(replace(problem, file=where.name, line=line, column=column, source=where.source(line)))
        return in_order(problems)


class Locator:
    """Knows where values are written. This one has only the name: data that came without a text."""

    __slots__ = ("name", "problems")

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[Finding] = []
        """What is wrong with the text itself, where reading could go on."""

    def expect(self, paths: Sequence[Path]) -> None:
        """Take note of the paths that are going to be asked about, all at once."""

    def locate(self, path: Path, *, at_key: bool) -> tuple[int, int]:  # noqa: ARG002  others need them
        """Return line and column of what is at `path`, from 1, or zeros."""
        return 0, 0

    def source(self, line: int) -> str:  # noqa: ARG002  others need it
        """Return that line of the text."""
        return ""


def in_order(problems: Iterable[Finding]) -> list[Finding]:
    """Return the problems from the top of the file to its end."""
    return sorted(problems, key=lambda problem: (problem.line, problem.column))


def render(path: Path) -> str:
    """Write a path as people do: ``users["12345"].overrides.orders-user``."""
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
    """Say what was found, in the words of the file rather than those of Python."""
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
    """Say that what was found is not what was wanted: ``unlike("x", "is not a list")``."""
    return "has no value" if value is None else f"{shown(value)} {what}"

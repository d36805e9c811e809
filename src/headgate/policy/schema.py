"""What a form is made of: each kind of value is declared once, and says how it is read and what its JSON Schema is.

Values are plain data, as YAML and JSON give them: dict, list, str, int, float, bool, None. ``read`` returns what a
value means, or None after it has noted what is wrong. Reading goes on after a mistake, so that all are told at once.

::

    USER = Record("a user", {"tier": Field(Text("the name of a tier"), "The tier of the user.")})
    USER.read({"teir": "free"}, ("users", "ada"), findings)      # notes: a user has no 'teir'. Did you mean 'tier'?
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headgate.core.numbers import EXACT
from headgate.policy.problems import MOST, Findings, Path, ProblemKind, shown, unlike

Schema = dict[str, Any]
Values = dict[str, Any]
"""The fields of a record that were given and are right, by name."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"
NAME = r"[A-Za-z0-9_.:/-]{1,64}"
NAMED = "1 to 64 of A-Z a-z 0-9 _ . : / -"
_LONGEST_WHOLE = 10**18
_FEW = 12
"""So many fields are named to somebody who wrote something else than a mapping."""


class Form(Protocol):
    """What a value may be."""

    def read(self, value: object, path: Path, findings: Findings) -> Any: ...

    def schema(self) -> Schema: ...


@dataclass(frozen=True, slots=True)
class Text:
    """Text; whole numbers are taken as text, since YAML does not ask for quotes around a user's number."""

    accepted: str
    pattern: str = ""
    most: int = 200
    names: tuple[str, ...] = ()
    """Usual values, to find a misspelt one."""
    numbers: bool = True
    """Whether whole numbers are taken as text."""
    flags: bool = False
    """Whether true and false are taken as text too."""
    _fits: Callable[[str], object] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_fits", re.compile(self.pattern or r"[\s\S]*").fullmatch)

    def read(self, value: object, path: Path, findings: Findings) -> str | None:
        if type(value) is not str:
            if type(value) is int and self.numbers and abs(value) < _LONGEST_WHOLE:
                value = str(value)
            elif type(value) is bool and self.flags:
                value = "true" if value else "false"
            else:
                hint = "Put it in quotes." if isinstance(value, bool | int | float) else ""
                is_whole = type(value) is float and value.is_integer() and abs(value) < _LONGEST_WHOLE
                kind = _unless_schema_agrees(is_whole and self.numbers)
                findings.add(path, unlike(value, "is not text"), self.accepted, hint, kind=kind)
                return None
        if 0 < len(value) <= self.most and (not self.pattern or self._fits(value)):
            return value
        findings.add(path, f"{shown(value)} cannot be used here", self.accepted, findings.near(value, self.names))
        return None

    def schema(self) -> Schema:
        text: Schema = {"type": "string", "minLength": 1, "maxLength": self.most}
        if self.numbers:
            text["type"] = ["string", "integer", *(["boolean"] if self.flags else [])]
            text |= {"minimum": 1 - _LONGEST_WHOLE, "maximum": _LONGEST_WHOLE - 1}
        return text | ({"pattern": f"^(?:{self.pattern})$"} if self.pattern else {})


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number, both ends included."""

    low: int = 0
    high: int = EXACT

    def read(self, value: object, path: Path, findings: Findings) -> int | None:
        if type(value) is int and self.low <= value <= self.high:
            return value
        is_whole, hint = type(value) is float and value.is_integer() and self.low <= value <= self.high, ""
        if is_whole and isinstance(value, float):
            hint = f"Write {int(value)}."
        elif isinstance(value, str) and re.fullmatch(r"[0-9][0-9_,.' ]{0,30}", value):
            hint = f"Write {int(re.sub('[^0-9]', '', value))}, without quotes, signs and leading zeros."
        wrong = unlike(value, f"is not a whole number from {self.low} to {self.high}")
        findings.add(path, wrong, hint=hint, kind=_unless_schema_agrees(is_whole))
        return None

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false."""

    def read(self, value: object, path: Path, findings: Findings) -> bool | None:
        if type(value) is bool:
            return value
        meant = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
        word = value.lower() if isinstance(value, str) else ""
        word = word if word in {"true", "false"} else meant.get(word, "")
        findings.add(path, unlike(value, "is not true or false"), hint=f"Write {word}." if word else "")
        return None

    def schema(self) -> Schema:
        return {"type": "boolean"}


class Choice:
    """One of a few words.

    Args:
        words: the words, perhaps with what each means; by itself, a word means itself.
    """

    __slots__ = ("_words",)

    def __init__(self, words: Mapping[str, Any] | Iterable[str]) -> None:
        self._words = dict(words) if isinstance(words, Mapping) else {word: word for word in words}

    def read(self, value: object, path: Path, findings: Findings) -> Any:
        if isinstance(value, str) and value in self._words:
            return self._words[value]
        accepted = f"one of {', '.join(self._words)}"
        findings.add(path, unlike(value, "is unknown"), accepted, findings.near(value, self._words))
        return None

    def schema(self) -> Schema:
        return {"enum": [*self._words]}


@dataclass(frozen=True, slots=True)
class Constant:
    """The one number that is accepted."""

    value: int

    def read(self, value: object, path: Path, findings: Findings) -> int | None:
        if type(value) is int and value == self.value:
            return value
        hint = f"Write {self.value}, without quotes."
        kind = _unless_schema_agrees(isinstance(value, float) and value == self.value)
        findings.add(path, unlike(value, "is unknown here"), hint=hint, kind=kind)
        return None

    def schema(self) -> Schema:
        return {"const": self.value}


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list. What is wrong in it is read as None, so that the others keep their places."""

    of: Form
    accepted: str
    or_nothing: bool = False
    """Whether the key may stand there without a value, as when all lines under it are commented out."""

    def read(self, value: object, path: Path, findings: Findings) -> list[Any] | None:
        if value is None and self.or_nothing:
            return []
        if type(value) is not list:
            findings.add(path, unlike(value, "is not a list"), self.accepted)
            return None
        return [self.of.read(item, (*path, index), findings) for index, item in enumerate(value)]

    def schema(self) -> Schema:
        return {"type": ["array", "null"] if self.or_nothing else "array", "items": self.of.schema()}


@dataclass(frozen=True, slots=True)
class MapOf:
    """A mapping whose keys are the user's own. What is wrong in it is left out."""

    of: Form
    accepted: str
    keys: str = NAME
    """A pattern that the keys match."""
    exactly: int = 0
    """How many keys; 0: any number."""
    or_nothing: bool = False

    def read(self, value: object, path: Path, findings: Findings) -> Values | None:
        if value is None and self.or_nothing:
            return {}
        if type(value) is not dict or (self.exactly and len(value) != self.exactly):
            wrong = f"has {len(value)} keys" if type(value) is dict else unlike(value, "cannot be used here")
            findings.add(path, wrong, self.accepted)
            return None
        fits, read = re.compile(self.keys, re.DOTALL).fullmatch, {}
        for key, inner in value.items():
            if type(key) is not str or not fits(key):
                findings.add((*path, str(key)), f"{shown(key)} cannot be a key here", self.accepted, at_key=True)
            elif (got := self.of.read(inner, (*path, key), findings)) is not None:
                read[key] = got
        return read

    def schema(self) -> Schema:
        table: Schema = {"type": ["object", "null"] if self.or_nothing else "object"}
        table |= {"propertyNames": {"pattern": f"^(?:{self.keys})$"}, "additionalProperties": self.of.schema()}
        return table | ({"minProperties": self.exactly, "maxProperties": self.exactly} if self.exactly else {})


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record."""

    form: Form
    about: str
    """What it means; shown by editors."""
    required: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A mapping with known fields."""

    what: str
    """What it describes, with an article: "a rule"."""
    fields: Mapping[str, Field]
    extensions: bool = False
    """Whether keys that begin with x- are left alone, as a place for anchors."""
    spellings: Mapping[str, str] = field(default_factory=dict)
    """Other names of fields."""
    make: Callable[[Values, Path, Findings], Any] | None = None
    """Makes what the fields mean, or notes what is wrong with them together; by default they stay a dict."""
    unknown: Callable[[Record, str, Path, Findings], bool] | None = None
    """Is asked first about a key that is not known, with its path: whether it has said what is to be said."""

    required: list[str] = field(init=False)

    def __post_init__(self) -> None:
        needed = [name for name, known in self.fields.items() if known.required]
        object.__setattr__(self, "required", needed)  # the instance is frozen; this is part of its construction

    def read(self, value: object, path: Path, findings: Findings) -> Any:
        read = self.read_fields(value, path, findings)
        return read if read is None or self.make is None else self.make(read, path, findings)

    def read_fields(self, value: object, path: Path, findings: Findings) -> Values | None:
        """Return the fields that are given and right."""
        if type(value) is not dict:
            wrong = unlike(value, f"is not {self.what}") if path or value is not None else "there is nothing in it"
            some = f"fields such as {', '.join([*self.fields][:5])}" if len(self.fields) > _FEW else self.names
            findings.add(path, wrong, f"a mapping with {some}")
            return None
        read = {}
        for key, inner in value.items():
            name = self.spellings.get(key, key) if self.spellings else key
            known = self.fields.get(name)
            if known is None:
                self._unknown(key, path, findings)
            elif name is not key and name in value:
                findings.add((*path, key), f"{key!r} is another name of {name!r}: give one of them", at_key=True)
            elif (got := known.form.read(inner, (*path, key), findings)) is not None:
                read[name] = got
        for name in self.required:
            if name not in read and name not in self.named(value) and name not in self.misspelt(value, findings):
                findings.add(path, f"{self.what} needs {name!r}", hint=self.fields[name].about)
        return read

    @property
    def names(self) -> str:
        """The names of all fields, as text."""
        return ", ".join(self.fields)

    def named(self, value: Values) -> Values:
        """Return a mapping with the names that fields have here."""
        if not self.spellings or value.keys().isdisjoint(self.spellings):
            return value
        return {self.spellings.get(key, key): inner for key, inner in value.items()}

    def misspelt(self, value: Values, findings: Findings) -> set[str]:
        """Return the fields that unknown keys were probably meant for: that they are missing need not be said."""
        unknown = self.named(value).keys() - self.fields.keys()
        if not unknown or findings.count >= MOST:
            return set()
        return {findings.near_name(key, self.fields) for key in unknown}

    def _unknown(self, key: object, path: Path, findings: Findings) -> None:
        if self.extensions and isinstance(key, str) and key.startswith("x-"):
            return
        if self.unknown is not None and self.unknown(self, str(key), (*path, str(key)), findings):
            return
        hint = findings.near(key, self.fields)
        accepted = "" if hint else self.names
        findings.add((*path, str(key)), f"{self.what} has no {shown(key)}", accepted, hint, at_key=True)

    def schema(self) -> Schema:
        properties = {name: known.form.schema() | {"description": known.about} for name, known in self.fields.items()}
        for other, name in self.spellings.items():
            properties[other] = self.fields[name].form.schema() | {"description": f"Another name of `{name}`."}
        record: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if self.extensions:
            record["patternProperties"] = {"^x-": True}
        if self.spellings:
            either = {other: {"properties": {name: False}} for other, name in self.spellings.items()}
            record["dependentSchemas"] = either
        return record | self.needing(self.required)

    def needing(self, names: Sequence[str]) -> Schema:
        """Return the schema of a mapping that has these fields, by whichever name."""
        ways = [[name, *(other for other, meant in self.spellings.items() if meant == name)] for name in names]
        plain = [way[0] for way in ways if len(way) == 1]
        either = [{"anyOf": [{"required": [name]} for name in way]} for way in ways if len(way) > 1]
        return ({"required": plain} if plain else {}) | ({"allOf": either} if either else {})


def _unless_schema_agrees(agrees: bool) -> ProblemKind:  # noqa: FBT001  reads as a question where it is asked
    """Return the kind of a problem: for JSON Schema, 5.0 is an integer, so that it finds nothing wrong."""
    return ProblemKind.MEANING if agrees else ProblemKind.FORM

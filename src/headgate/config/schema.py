"""What a form is made of: each kind of value is declared once, and says how it is read and what its JSON Schema is.

Values are plain data, as YAML and JSON give them: dict, list, str, int, float, bool, None. ``read`` returns what a
value means, or None after it has noted what is wrong. Reading goes on after a mistake, so that all are told at once.

::

    USER = Record("a user", {"tier": Field(Scalar.text("the name of a tier"), "The tier of the user.")})
    USER.read({"teir": "free"}, ("users", "ada"), findings)      # notes: a user has no 'teir'. Did you mean 'tier'?
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import NoneType
from typing import Any, Protocol, Self

from headgate.config.problems import Findings, Path, ProblemKind, shown, unlike
from headgate.core.numbers import EXACT

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


class Meaningless(ValueError):
    """A value is well formed and makes no sense: why, what would be right, and the nearest thing that would work."""

    def __init__(self, message: str, accepted: str = "", hint: str = "") -> None:
        super().__init__(message, accepted, hint)
        self.message, self.accepted, self.hint = message, accepted, hint


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """A value without parts. Its JSON Schema is what is checked: type, enum, minimum and maximum, length, pattern."""

    json: Schema
    wrong: str | Callable[[object], str]
    """What is said of other values: "is not a rate"; perhaps it depends on the value."""
    accepted: str = ""
    """What would be right."""
    means: Callable[[Any], Any] | None = None
    """Returns what a value means, or raises `Meaningless`; by default it means itself."""
    hint: Callable[[object, Findings], str] | None = None
    """Returns the nearest thing that would work, as a sentence, or nothing."""
    is_secret: bool = False
    """Whether a wrong value is not repeated."""

    _types: frozenset[type] = field(init=False)
    _words: tuple[object, ...] = field(init=False)
    _low: float = field(init=False)
    _fits: Callable[[str], object] | None = field(init=False)

    def __post_init__(self) -> None:
        words = tuple(self.json.get("enum", ()))
        names = self.json.get("type", ())
        types = {_TYPES[name] for name in ([names] if isinstance(names, str) else names)} | {
            type(word) for word in words
        }
        pattern = self.json.get("pattern")
        derive = object.__setattr__  # the instance is frozen; these are parts of its construction
        derive(self, "_types", frozenset(types | {int} if float in types else types))
        derive(self, "_words", words)
        derive(self, "_low", self.json.get("minimum", self.json.get("exclusiveMinimum", -inf)))
        derive(self, "_fits", re.compile(pattern[1:-1]).fullmatch if pattern else None)

    @classmethod
    def text(
        cls,
        accepted: str,
        pattern: str = "",
        most: int = 200,
        names: Sequence[str] = (),
        *,
        numbers: bool = True,
        flags: bool = False,
    ) -> Self:
        """Text, not empty.

        Args:
            accepted: what would be right.
            pattern: that it matches.
            most: the most characters.
            names: usual values, to find a misspelt one.
            numbers: whether whole numbers are text, too: YAML does not ask for quotes around a user's number.
            flags: whether true and false are text, too.
        """
        json: Schema = {"type": "string", "minLength": 1, "maxLength": most}
        if numbers:
            json["type"] = ["string", "integer", *(["boolean"] if flags else [])]
            json |= {"minimum": 1 - _LONGEST_WHOLE, "maximum": _LONGEST_WHOLE - 1}
        json |= {"pattern": f"^(?:{pattern})$"} if pattern else {}

        def hint(value: object, findings: Findings) -> str:
            return "Put it in quotes." if isinstance(value, int | float) else findings.near(value, names)

        def wrong(value: object) -> str:
            return "cannot be used here" if type(value) is str else "is not text"

        return cls(json, wrong, accepted, _as_text if numbers else None, hint)

    @classmethod
    def whole(cls, low: int = 0, high: int = EXACT) -> Self:
        """A whole number, both ends included."""

        def hint(value: object, _: Findings) -> str:
            if type(value) is float and value.is_integer() and low <= value <= high:
                return f"Write {int(value)}."
            if isinstance(value, str) and re.fullmatch(r"[0-9][0-9_,.' ]{0,30}", value):
                return f"Write {int(re.sub('[^0-9]', '', value))}, without quotes, signs and leading zeros."
            return ""

        wrong = f"is not a whole number from {low} to {high}"
        return cls({"type": "integer", "minimum": low, "maximum": high}, wrong, hint=hint)

    @classmethod
    def flag(cls) -> Self:
        """Either true or false."""
        meant = {
            **dict.fromkeys(("true", "yes", "on", "y"), "Write true."),
            **dict.fromkeys(("false", "no", "off", "n"), "Write false."),
        }

        def hint(value: object, _: Findings) -> str:
            return meant.get(value.lower(), "") if isinstance(value, str) else ""

        return cls({"type": "boolean"}, "is not true or false", hint=hint)

    @classmethod
    def choice(cls, words: Mapping[str, Any] | Iterable[str]) -> Self:
        """One of a few words, each perhaps with what it means."""
        known = dict(words) if isinstance(words, Mapping) else {word: word for word in words}

        def hint(value: object, findings: Findings) -> str:
            return findings.near(value, known)

        return cls({"enum": [*known]}, "is unknown", f"one of {', '.join(known)}", known.get, hint)

    @classmethod
    def version(cls, number: int) -> Self:
        """The only version of a form that there is."""
        return cls({"enum": [number]}, "is unknown here", hint=lambda *_: f"Write {number}, without quotes.")

    def read(self, value: object, path: Path, findings: Findings) -> Any:
        if self._is_accepted(value):
            try:
                return value if self.means is None else self.means(value)
            except Meaningless as why:
                findings.add(path, why.message, why.accepted, why.hint, kind=ProblemKind.MEANING)
                return None
        wrong = self.wrong if isinstance(self.wrong, str) else self.wrong(value)
        hint = self.hint(value, findings) if self.hint is not None else ""
        is_integer = type(value) is float and value.is_integer() and self._is_accepted(int(value))
        kind = ProblemKind.MEANING if is_integer else ProblemKind.FORM  # for JSON Schema, 5.0 is an integer
        message = wrong if self.is_secret and value is not None else unlike(value, wrong)
        findings.add(path, message, self.accepted, hint, kind=kind)
        return None

    def schema(self) -> Schema:
        return dict(self.json)

    def _is_accepted(self, value: object) -> bool:
        if type(value) not in self._types:
            return False
        if self._words:
            return value in self._words
        if isinstance(value, str):
            is_long_enough = self.json.get("minLength", 0) <= len(value) <= self.json.get("maxLength", inf)
            return is_long_enough and (self._fits is None or self._fits(value) is not None)
        if isinstance(value, int | float) and type(value) is not bool:
            return self._low <= value <= self.json.get("maximum", inf) and value != self.json.get("exclusiveMinimum")
        return True


_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "null": NoneType, "object": dict}


def _as_text(value: object) -> str:
    return str(value).lower() if type(value) is bool else str(value)


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
        read: list[Any] = []
        for index, item in enumerate(value):
            if findings.is_full:
                findings.pass_over((*path, index), len(value) - index)
                break
            read.append(self.of.read(item, (*path, index), findings))
        return read

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
        for place, (key, inner) in enumerate(value.items()):
            if findings.is_full:
                findings.pass_over((*path, key), len(value) - place)
                break
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
        if not unknown or findings.is_full:
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

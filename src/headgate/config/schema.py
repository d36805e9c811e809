"""Forms: each kind of value is declared once, and its reading and its JSON Schema follow.

Values are plain data, as in YAML and JSON: dict, list, str, int, float, bool, None. ``read`` returns the meaning of a
value, or None after it has added a problem. Reading goes on after a problem, so that all are reported at once.

::

    USER = Record("a user", {"tier": Field(Scalar.text("the name of a tier"), "The tier of the user.")})
    USER.read({"teir": "free"}, ("users", "ada"), findings)      # adds: a user has no 'teir'. Did you mean 'tier'?
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
"""The valid fields of a record, by name."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"
NAME = r"[A-Za-z0-9_.:/-]{1,64}"
NAMED = "1 to 64 of A-Z a-z 0-9 _ . : / -"
_LONGEST_WHOLE = 10**18
_FEW = 12
"""Fields that are listed in full where a value is not a mapping."""


class Form(Protocol):
    """A form of values."""

    def read(self, value: object, path: Path, findings: Findings) -> Any: ...

    def schema(self) -> Schema:
        """Return its JSON Schema; by default that of any value."""
        return {}


class Meaningless(ValueError):
    """A well-formed value without a valid meaning: the reason, what is valid, and the nearest valid alternative."""

    def __init__(self, message: str, accepted: str = "", hint: str = "") -> None:
        super().__init__(message, accepted, hint)
        self.message, self.accepted, self.hint = message, accepted, hint


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """A value without parts. Its JSON Schema is checked: type, enum, minimum and maximum, length, pattern."""

    json: Schema
    wrong: str | Callable[[object], str]
    """The message for other values: "is not a rate"."""
    accepted: str = ""
    means: Callable[[Any], Any] | None = None
    """Returns the meaning of a value, or raises `Meaningless`; default: the value itself."""
    hint: Callable[[object, Findings], str] | None = None
    """Returns the nearest thing that would work, as a sentence, or an empty text."""
    is_secret: bool = False
    """Whether messages must not show the value."""

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
        """Text of 1 to `most` characters.

        By default, whole numbers are text, too: in YAML, a user's number needs no quotes. With `flags`, so are true and
        false. `names` are common values, for suggestions.
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

        def means(value: object) -> str:
            return str(value).lower() if type(value) is bool else str(value)

        return cls(json, wrong, accepted, means if numbers else None, hint)

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
        """One of a few words, or a mapping of words to their meanings."""
        known = dict(words) if isinstance(words, Mapping) else {word: word for word in words}

        def hint(value: object, findings: Findings) -> str:
            return findings.near(value, known)

        return cls({"enum": [*known]}, "is unknown", f"one of {', '.join(known)}", known.get, hint)

    @classmethod
    def version(cls, number: int) -> Self:
        """The version of a format."""
        return cls({"enum": [number]}, "is unknown here", hint=lambda *_: f"Write {number}, without quotes.")

    def read(self, value: object, path: Path, findings: Findings) -> Any:
        if self._is_accepted(value):
            try:
                return value if self.means is None else self.means(value)
            except Meaningless as why:
                findings.reject(path, why.message, why.hint, accepted=why.accepted)
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


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list. Invalid items are read as None, so that the others keep their places."""

    of: Form
    accepted: str
    or_nothing: bool = False
    """Whether the key may have no value, as when all lines under it are commented out."""
    empty: str = ""
    """The message for a list without items, such as "has no route"; by default, it is valid."""

    def read(self, value: object, path: Path, findings: Findings) -> list[Any] | None:
        if value is None and self.or_nothing:
            return []
        if type(value) is not list or (self.empty and not value):
            findings.add(path, self.empty if value == [] else unlike(value, "is not a list"), self.accepted)
            return None
        read: list[Any] = []
        for index, item in enumerate(value):
            if findings.is_full:
                findings.pass_over((*path, index), len(value) - index)
                break
            read.append(self.of.read(item, (*path, index), findings))
        return read

    def schema(self) -> Schema:
        least = {"minItems": 1} if self.empty else {}
        return {"type": ["array", "null"] if self.or_nothing else "array", "items": self.of.schema(), **least}


@dataclass(frozen=True, slots=True)
class MapOf:
    """A mapping whose keys the user chooses. Invalid items are omitted."""

    of: Form
    accepted: str
    keys: str = NAME
    exactly: int = 0
    """The number of keys; 0: any number."""
    or_nothing: bool = False
    make: Callable[[Values, Path, Findings], Any] | None = None
    """Makes the value of the items; by default they stay a dict."""

    def read(self, value: object, path: Path, findings: Findings) -> Any:
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
        return read if self.make is None else self.make(read, path, findings)

    def schema(self) -> Schema:
        table: Schema = {"type": ["object", "null"] if self.or_nothing else "object"}
        table |= {"propertyNames": {"pattern": f"^(?:{self.keys})$"}, "additionalProperties": self.of.schema()}
        return table | ({"minProperties": self.exactly, "maxProperties": self.exactly} if self.exactly else {})


@dataclass(frozen=True, slots=True)
class OrWord:
    """A word with a meaning, or a value of another form."""

    word: str
    meaning: Any
    of: Form

    def read(self, value: object, path: Path, findings: Findings) -> Any:
        return self.meaning if value == self.word else self.of.read(value, path, findings)

    def schema(self) -> Schema:
        return {"anyOf": [{"const": self.word}, self.of.schema()]}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record."""

    form: Form
    about: str
    """The description; editors show it."""
    required: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A mapping with known fields."""

    what: str
    """Its name in messages, with an article: "a rule"."""
    fields: Mapping[str, Field]
    extensions: bool = False
    """Whether keys that begin with x- are ignored, as a place for anchors."""
    spellings: Mapping[str, str] = field(default_factory=dict)
    make: Callable[[Values, Path, Findings], Any] | None = None
    """Makes the value of the fields if all required ones are valid, or adds problems of their combination; by default,
    they stay a dict."""
    unknown: Callable[[Record, str, Path, Findings], bool] | None = None
    """Called first for an unknown key, with its path; returns whether it has reported it."""

    required: list[str] = field(init=False)

    def __post_init__(self) -> None:
        needed = [name for name, known in self.fields.items() if known.required]
        object.__setattr__(self, "required", needed)  # the instance is frozen; this is part of its construction

    def read(self, value: object, path: Path, findings: Findings) -> Any:
        read = self.read_fields(value, path, findings)
        if read is None or self.make is None:
            return read
        return self.make(read, path, findings) if read.keys() >= {*self.required} else None

    def read_fields(self, value: object, path: Path, findings: Findings) -> Values | None:
        """Return the valid fields."""
        if type(value) is not dict:
            wrong = unlike(value, f"is not {self.what}") if path or value is not None else "is empty"
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
                findings.add((*path, key), f"{key!r} is another name of {name!r}: use one of them", at_key=True)
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
        """Return the fields that unknown keys probably mean, which are not reported as missing."""
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
        """Return the schema of a mapping that has these fields, under any of their names."""
        ways = [[name, *(other for other, meant in self.spellings.items() if meant == name)] for name in names]
        plain = [way[0] for way in ways if len(way) == 1]
        either = [{"anyOf": [{"required": [name]} for name in way]} for way in ways if len(way) > 1]
        return ({"required": plain} if plain else {}) | ({"allOf": either} if either else {})

"""The kinds of values that fields have: how each is read, what is accepted, and what its JSON Schema says.

`read` returns the value, or None after it has noted a problem.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

from headgate.core.numbers import EXACT
from headgate.policy.problems import Findings, Kind, Path, shown, unlike

Schema = dict[str, Any]
NAME = r"[A-Za-z0-9_.:/-]{1,64}"
_LONGEST_WHOLE = 10**18


class FieldKind(Protocol):
    """What a field may hold."""

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

    def read(self, value: object, path: Path, findings: Findings) -> str | None:
        if type(value) is not str:
            if type(value) is int and self.numbers and abs(value) < _LONGEST_WHOLE:
                value = str(value)
            elif type(value) is bool and self.flags:
                value = "true" if value else "false"
            else:
                hint = "Put it in quotes." if isinstance(value, bool | int | float) else ""
                whole = type(value) is float and value.is_integer() and abs(value) < _LONGEST_WHOLE
                kind = Kind.MEANING if whole and self.numbers else Kind.FORM  # for JSON Schema, 5.0 is an integer
                findings.add(path, unlike(value, "is not text"), self.accepted, hint, kind=kind)
                return None
        if 0 < len(value) <= self.most and (not self.pattern or re.fullmatch(self.pattern, value)):
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
        kind, hint = Kind.FORM, ""
        if type(value) is float and value.is_integer() and self.low <= value <= self.high:
            kind, hint = Kind.MEANING, f"Write {int(value)}."
        elif isinstance(value, str) and re.fullmatch(r"[0-9][0-9_,.' ]{0,30}", value):
            hint = f"Write {int(re.sub('[^0-9]', '', value))}, without quotes, signs and leading zeros."
        wanted = f"a whole number from {self.low} to {self.high}"
        findings.add(path, unlike(value, f"is not {wanted}"), hint=hint, kind=kind)
        return None

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second: a number, or text for a fraction. It is checked by the quota made of it."""

    def read(self, value: object, path: Path, findings: Findings) -> object:
        numeric = type(value) in {int, float} and isinstance(value, int | float) and value >= 0
        if numeric or (isinstance(value, str) and re.fullmatch("[0-9.]{1,40}(/[0-9]{1,40})?", value)):
            return value
        findings.add(path, unlike(value, "is not a rate"), "a number of tokens per second, such as 10, 0.5 or '1/3'")
        return None

    def schema(self) -> Schema:
        return {"type": ["number", "string"], "minimum": 0, "pattern": "^[0-9.]{1,40}(/[0-9]{1,40})?$"}


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false."""

    def read(self, value: object, path: Path, findings: Findings) -> bool | None:
        if type(value) is bool:
            return value
        meant = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
        word = str(value).lower() if isinstance(value, str) else ""
        word = word if word in {"true", "false"} else meant.get(word, "")
        findings.add(path, unlike(value, "is not true or false"), hint=f"Write {word}." if word else "")
        return None

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    names: tuple[str, ...]

    def read(self, value: object, path: Path, findings: Findings) -> str | None:
        if isinstance(value, str) and value in self.names:
            return value
        findings.add(
            path, unlike(value, "is unknown"), f"one of {', '.join(self.names)}", findings.near(value, self.names)
        )
        return None

    def schema(self) -> Schema:
        return {"enum": list(self.names)}


@dataclass(frozen=True, slots=True)
class Constant:
    """The one number that is accepted."""

    value: int

    def read(self, value: object, path: Path, findings: Findings) -> int | None:
        if type(value) is int and value == self.value:
            return value
        same = isinstance(value, float) and value == self.value
        kind = Kind.MEANING if same else Kind.FORM
        findings.add(path, unlike(value, "is unknown here"), hint=f"Write {self.value}, without quotes.", kind=kind)
        return None

    def schema(self) -> Schema:
        return {"const": self.value}


@dataclass(frozen=True, slots=True)
class Many:
    """A list."""

    of: FieldKind
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
class Table:
    """A mapping whose keys are the user's own."""

    of: FieldKind
    accepted: str
    keys: str = NAME
    """A pattern that the keys match."""
    exactly: int = 0
    """How many keys; 0: any number."""
    or_nothing: bool = False

    def read(self, value: object, path: Path, findings: Findings) -> dict[str, Any] | None:
        if value is None and self.or_nothing:
            return {}
        if type(value) is not dict or (self.exactly and len(value) != self.exactly):
            told = f"has {len(value)} keys" if type(value) is dict else unlike(value, "cannot be used here")
            findings.add(path, told, self.accepted)
            return None
        read = {}
        for key, inner in value.items():
            if type(key) is not str or not re.fullmatch(self.keys, key, re.DOTALL):
                findings.add((*path, str(key)), f"{shown(key)} cannot be a key here", self.accepted, at_key=True)
            else:
                before, found = findings.count, self.of.read(inner, (*path, key), findings)
                if found is not None or findings.count == before:  # what is wrong is told once
                    read[key] = found
        return read

    def schema(self) -> Schema:
        table: Schema = {"type": ["object", "null"] if self.or_nothing else "object"}
        table |= {"propertyNames": {"pattern": f"^(?:{self.keys})$"}, "additionalProperties": self.of.schema()}
        return table | ({"minProperties": self.exactly, "maxProperties": self.exactly} if self.exactly else {})

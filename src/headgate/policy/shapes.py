"""Mappings with known fields: what each field is, which are missing, and which are not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.policy.kinds import FieldKind, Schema
from headgate.policy.problems import MOST, Findings, Path, shown, unlike


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a shape."""

    kind: FieldKind
    about: str
    """What it means; shown by editors."""
    required: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """A mapping with known fields."""

    what: str
    """What it describes, with an article: "a rule"."""
    fields: Mapping[str, Field]
    extensions: bool = False
    """Whether keys that begin with x- are left alone, as a place for anchors."""
    spellings: Mapping[str, str] = field(default_factory=dict)
    """Other names of fields."""

    required: list[str] = field(init=False)

    def __post_init__(self) -> None:
        needed = [name for name, known in self.fields.items() if known.required]
        object.__setattr__(self, "required", needed)  # the instance is frozen; this is part of its construction

    def read(self, value: object, path: Path, findings: Findings) -> dict[str, Any] | None:
        """Return the fields that are given; if the count of findings has grown, not all of them are right."""
        if type(value) is not dict:
            some = ", ".join([*self.fields][:5])
            told = unlike(value, f"is not {self.what}") if path or value is not None else "there is nothing in it"
            findings.add(path, told, f"a mapping with fields such as {some}")
            return None
        read = {}
        for key, inner in value.items():
            name = self.spellings.get(key, key) if self.spellings else key
            known = self.fields.get(name)
            if known is not None:
                if name is not key and name in value:
                    findings.add((*path, key), f"{key!r} is another name of {name!r}: give one of them", at_key=True)
                elif (got := known.kind.read(inner, (*path, key), findings)) is not None:
                    read[name] = got
            elif not (self.extensions and isinstance(key, str) and key.startswith("x-")):
                self._unknown(key, path, findings)
        for name in self.required:
            if name not in self.named(value) and name not in self.misspelt(value, findings):
                findings.add(path, f"{self.what} needs {name!r}", hint=self.fields[name].about)
        return read

    def named(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return a mapping with the names that fields have here."""
        if value.keys().isdisjoint(self.spellings):
            return value
        return {self.spellings.get(key, key): inner for key, inner in value.items()}

    def misspelt(self, value: dict[str, Any], findings: Findings) -> set[str]:
        """Return the fields that unknown keys were probably meant for: that they are missing need not be said."""
        unknown = self.named(value).keys() - self.fields.keys()
        if not unknown or findings.count >= MOST:
            return set()
        return {findings.near_name(key, self.fields) for key in unknown}

    def _unknown(self, key: object, path: Path, findings: Findings) -> None:
        hint = findings.near(key, self.fields)
        accepted = "" if hint else ", ".join(self.fields)
        findings.add((*path, str(key)), f"{self.what} has no {shown(key)}", accepted, hint, at_key=True)

    def schema(self) -> Schema:
        properties = {name: known.kind.schema() | {"description": known.about} for name, known in self.fields.items()}
        for other, name in self.spellings.items():
            properties[other] = self.fields[name].kind.schema() | {"description": f"Another name of `{name}`."}
        shape: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if self.extensions:
            shape["patternProperties"] = {"^x-": True}
        if self.spellings:
            either = {other: {"properties": {name: False}} for other, name in self.spellings.items()}
            shape["dependentSchemas"] = either
        return shape | self.needing(self.required)

    def needing(self, names: Sequence[str]) -> Schema:
        """Return the schema of a mapping that has fields, by whichever name."""
        needed: Schema = {}
        others = {name: [other for other, meant in self.spellings.items() if meant == name] for name in names}
        plain = [name for name in names if not others[name]]
        if plain:
            needed["required"] = plain
        if len(plain) < len(names):
            needed["allOf"] = [
                {"anyOf": [{"required": [known]} for known in (name, *others[name])]} for name in names if others[name]
            ]
        return needed

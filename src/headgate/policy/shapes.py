"""Mappings with known fields: what each field is, which are missing, and which are not known."""

from __future__ import annotations

from collections.abc import Mapping
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
            known = self.fields.get(key)
            if known is not None:
                if (got := known.kind.read(inner, (*path, key), findings)) is not None:
                    read[key] = got
            elif not (self.extensions and isinstance(key, str) and key.startswith("x-")):
                self._unknown(key, path, findings)
        for name in self.required:
            if name not in value and name not in self.misspelt(value, findings):
                findings.add(path, f"{self.what} needs {name!r}", hint=self.fields[name].about)
        return read

    def misspelt(self, value: Mapping[str, object], findings: Findings) -> set[str]:
        """Return the fields that unknown keys were probably meant for: that they are missing need not be said."""
        if value.keys() <= self.fields.keys() or findings.count >= MOST:
            return set()
        return {findings.near_name(key, self.fields) for key in value if key not in self.fields}

    def _unknown(self, key: object, path: Path, findings: Findings) -> None:
        hint = findings.near(key, self.fields)
        accepted = "" if hint else ", ".join(self.fields)
        findings.add((*path, str(key)), f"{self.what} has no {shown(key)}", accepted, hint, at_key=True)

    def schema(self) -> Schema:
        properties = {name: known.kind.schema() | {"description": known.about} for name, known in self.fields.items()}
        shape: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if self.extensions:
            shape["patternProperties"] = {"^x-": True}
        return shape | ({"required": self.required} if self.required else {})

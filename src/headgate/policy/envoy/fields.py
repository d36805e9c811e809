"""The fields of a file: which there are, and how their values are read.

Values mean what they mean to envoyproxy/ratelimit, which is written in Go: nothing is the same as "" or 0 or false; any
word or whole number is text where text is expected; ``yes`` and ``on`` are true. A key that is known but has no effect
where it stands is let pass there; here too, with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headgate.core.algorithms import Algorithm
from headgate.policy.envoy.request import MAX_UINT32, Unit
from headgate.policy.problems import Findings, Path, nearest, shown
from headgate.policy.yaml_nodes import Document

FILE = ("domain", "descriptors")
DESCRIPTOR = (
    "key",
    "value",
    "rate_limit",
    "rate_limits",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
)
RATE_LIMIT = (
    "unit",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "unit_multiplier",
    "algorithm",
    "burst",
)
REPLACES = ("name",)
_PLACES = {"a file": FILE, "a descriptor": DESCRIPTOR, "a rate limit": RATE_LIMIT, "an entry of replaces": REPLACES}
_EXTENSIONS = {"rate_limits", "unit_multiplier", "algorithm", "burst"}
_FLAGS = {
    **dict.fromkeys(("y", "yes", "on", "true"), True),
    **dict.fromkeys(("n", "no", "off", "false", ""), False),
}
_UNITS = {unit.name.lower(): unit for unit in Unit}
_UNITS_IN_ORDER = tuple(sorted(_UNITS, key=lambda name: _UNITS[name].seconds))
_ALGORITHMS = (*(algorithm.value for algorithm in Algorithm), "sliding_window")
_COUNT = re.compile("(?=.{1,40}$)[1-9][0-9]*(_[0-9]+)+|0x[0-9A-Fa-f]{1,40}")


class Fields:
    """Reads the values of one file, and notes what is wrong."""

    __slots__ = ("_document", "findings", "warnings")

    def __init__(self, document: Document) -> None:
        self._document = document
        self.findings = Findings()
        self.warnings = Findings()

    def mapping(self, value: object, path: Path, what: str) -> dict[str, Any] | None:
        """Return what is known to have only keys that are known."""
        fields = _PLACES[what]
        if type(value) is not dict:
            self.findings.add(path, f"{shown(value)} is not {what}", f"a mapping with {', '.join(fields)}")
            return None
        for key in value:
            if key not in fields:
                self._misplaced(key, (*path, key), what)
        return value

    def items(self, value: object, path: Path, what: str) -> list[tuple[Path, dict[str, Any]]]:
        """Return the mappings of a list, and where they are."""
        if value is None:
            return []
        if type(value) is not list:
            self.findings.add(path, f"{shown(value)} is not a list", f"a list, each of its entries {what}")
            return []
        found = []
        for index, item in enumerate(value):
            place = (*path, index)
            fields = self.mapping(item, place, what)
            if fields is not None:
                found.append((place, fields))
        return found

    def text(self, holder: dict[str, Any], field: str, path: Path) -> str:
        """Return text as it is written, "" if there is none."""
        value = holder.get(field)
        if type(value) is str and is_unicode(value):
            return value
        if value is None:
            return ""
        if type(value) is int:
            return str(value)
        place = (*path, field)
        if type(value) is bool:
            line, column = self._document.locate(place, at_key=False)
            word = re.match("true|false", self._document.source(line)[column - 1 :], re.IGNORECASE)
            if word:
                return word.group()
        hint = "Put it in quotes." if isinstance(value, bool | float) else ""
        self.findings.add(place, f"{shown(value)} is not text", hint=hint)
        return ""

    def flag(self, holder: dict[str, Any], field: str, path: Path) -> bool:
        """Return whether the field is there and true."""
        value = holder.get(field)
        if type(value) is bool:
            return value
        word = "" if value is None else value.lower() if isinstance(value, str) else None
        if word not in _FLAGS:
            self.findings.add((*path, field), f"{shown(value)} is not true or false")
        return _FLAGS.get(word or "", False)

    def count(self, holder: dict[str, Any], field: str, path: Path, least: int = 0) -> int:
        """Return a whole number, `least` if there is none or it is wrong."""
        value = holder.get(field)
        if value is None:
            return least
        number = int(value, 0) if isinstance(value, str) and _COUNT.fullmatch(value) else value
        if type(number) is int and least <= number <= MAX_UINT32:
            return number
        self.findings.add((*path, field), f"{shown(value)} is not a whole number from {least} to {MAX_UINT32}")
        return least

    def unit(self, holder: dict[str, Any], path: Path) -> Unit | None:
        """Return the unit of time, None if it is missing or wrong."""
        word = self.text(holder, "unit", path)
        unit = _UNITS.get(word.lower())
        if unit is None:
            where, found = ((*path, "unit"), shown(word)) if "unit" in holder else (path, "nothing")
            accepted = f"one of {', '.join(_UNITS_IN_ORDER)}"
            message = f"{found} is not a unit" if word else "a rate limit needs a unit"
            self.findings.add(where, message, accepted, nearest(word, _UNITS_IN_ORDER))
        return unit

    def algorithm(self, holder: dict[str, Any], path: Path) -> Algorithm:
        """Return the algorithm, a fixed window if there is none or it is wrong."""
        word = self.text(holder, "algorithm", path)
        if word in _ALGORITHMS:
            return Algorithm.named(word)
        if word:
            accepted = f"one of {', '.join(Algorithm)}"
            self.findings.add((*path, "algorithm"), f"{shown(word)} is unknown", accepted, nearest(word, _ALGORITHMS))
        return Algorithm.FIXED_WINDOW

    def metadata(self, holder: dict[str, Any], path: Path) -> Mapping[str, Any]:
        """Return whatever the user wants to be told, made immutable."""
        value = holder.get("metadata")
        if value is not None and type(value) is not dict:
            self.findings.add((*path, "metadata"), f"{shown(value)} is not a mapping")
        return frozen_mapping(value if type(value) is dict else {})

    def _misplaced(self, key: str, path: Path, what: str) -> None:
        owner = next((owner for owner, fields in _PLACES.items() if key in fields), "")
        if owner and key not in _EXTENSIONS:
            self.warnings.add(path, f"{key!r} has no effect in {what}", hint=f"It belongs to {owner}.", at_key=True)
            return
        fields = _PLACES[what]
        hint = f"It belongs to {owner}." if owner else nearest(key, fields)
        self.findings.add(path, f"{what} has no {shown(key)}", "" if hint else ", ".join(fields), hint, at_key=True)


def is_unicode(text: str) -> bool:
    """Whether text has no lone surrogates, which an escape in quoted YAML can make."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def frozen_mapping(value: dict[str, Any]) -> Mapping[str, Any]:
    """Return data that cannot be changed any more."""
    return MappingProxyType({key: _frozen(inner) for key, inner in value.items()})


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return frozen_mapping(value)
    return tuple([_frozen(inner) for inner in value]) if isinstance(value, list) else value

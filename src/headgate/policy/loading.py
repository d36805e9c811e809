"""Rules from YAML, JSON or plain data. All problems of a file are told at once, each with its place.

::

    ruleset = load_file("rules.yaml")              # or load(text), loads_json(text), from_data(data)
    loaded = read_file("rules.yaml")               # the same, with what is odd but not wrong: loaded.warnings

Raises `InvalidRules`, with the list of problems; see `headgate.policy.problems`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, NoReturn

from headgate.policy import documents, ineffective
from headgate.policy.building import ruleset_of
from headgate.policy.forms import FILE
from headgate.policy.model import Ruleset
from headgate.policy.problems import MOST, Findings, InvalidRules, Kind, Locator, Problem, in_order
from headgate.policy.yaml_nodes import MAX_BYTES, Document, decoded

__all__ = [
    "InvalidRules",
    "Loaded",
    "Problem",
    "from_data",
    "load",
    "load_file",
    "loads_json",
    "read",
    "read_file",
    "text_of",
]
_ENVOY = "domain"
"""By this key a file of envoyproxy/ratelimit is known."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Rules, and what is odd about their file without being wrong."""

    ruleset: Ruleset
    warnings: tuple[Problem, ...] = ()


def load(text: str, *, name: str = "rules") -> Ruleset:
    """Read rules from YAML; `name` stands for the file in messages."""
    if isinstance(text, str) and "\n" not in text and text.endswith((".yaml", ".yml", ".json")):
        hint = f"Engine({text!r:.100}) reads it, and headgate.policy.loading.load_file."
        raise InvalidRules([Problem("this is the name of a file, not rules", hint=hint, file=name, kind=Kind.FILE)])
    return read(text, name=name).ruleset


def load_file(path: str | PathLike[str]) -> Ruleset:
    """Read rules from a YAML file."""
    return read_file(path).ruleset


def loads_json(text: str | bytes, *, name: str = "rules") -> Ruleset:
    """Read rules from JSON."""
    doubled: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            doubled.extend(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        return found

    def no_number(word: str) -> NoReturn:
        raise ValueError(f"{word} is not a number")

    try:
        data = json.loads(text, object_pairs_hook=unique, parse_constant=no_number)
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg}"
        problem = Problem(message, file=name, line=error.lineno, column=error.colno, kind=Kind.SYNTAX)
        raise InvalidRules([problem]) from None
    except (ValueError, RecursionError) as error:  # no UTF-8, a number of thousands of digits, thousands of brackets
        raise InvalidRules([Problem(f"not JSON: {error}", file=name, kind=Kind.SYNTAX)]) from None
    twice = [Problem(f"the key {key!r:.80} is given twice", file=name, kind=Kind.SYNTAX) for key in doubled[:MOST]]
    return _loaded(data, Locator(name), twice).ruleset


def from_data(data: object, *, name: str = "rules") -> Ruleset:
    """Read rules from what `json.loads` or YAML give: dict, list, str, int, float, bool, None."""
    return _loaded(data, Locator(name), []).ruleset


def read(text: str, *, name: str = "rules", now: int | None = None) -> Loaded:
    """Read rules from YAML, and keep the warnings; `now` (microseconds since the epoch) is for what has ended."""
    document = Document(text, name)
    return _loaded(document.data, document, document.problems, now)


def read_file(path: str | PathLike[str], *, now: int | None = None) -> Loaded:
    """Read rules from a YAML file, and keep the warnings. A file that cannot be read raises InvalidRules as well."""
    return read(text_of(path), name=fspath(path), now=now)


def text_of(path: str | PathLike[str]) -> str:
    """Return the text of a file. Raises InvalidRules if it cannot be read, is too large, or not UTF-8."""
    name = fspath(path)
    try:
        with open(path, "rb") as file:  # noqa: PTH123  any path-like
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRules([Problem(f"cannot be read: {reason}", file=name, kind=Kind.FILE)]) from None
    if len(raw) > MAX_BYTES:
        raise InvalidRules([Problem(f"more than {MAX_BYTES:_} bytes: split the file", file=name, kind=Kind.FILE)])
    return decoded(raw, name)


def _loaded(data: object, where: Locator, known: list[Problem], now: int | None = None) -> Loaded:
    findings, warnings = Findings(), Findings()
    ruleset: Ruleset | None = None
    if isinstance(data, dict) and _ENVOY in data and "version" not in data:
        message = "this is a file of envoyproxy/ratelimit, not one of rules"
        hint = "`headgate rules validate` reads it and, in Python, headgate.policy.envoy.load."
        findings.add((_ENVOY,), message, hint=hint, at_key=True)
    elif isinstance(data, dict) and documents.KEY in data:
        ruleset = documents.ruleset_of(data, findings, warnings)
    else:
        read = FILE.read(data, (), findings)
        ruleset = ruleset_of(read, data, findings)
        if ruleset is not None:
            ineffective.note(ruleset, int(time.time() * 1_000_000) if now is None else now, warnings)
    if findings.count or known or ruleset is None:
        raise InvalidRules(in_order([*known, *findings.located(where)]))
    return Loaded(ruleset, tuple(in_order(warnings.located(where))))

"""Rules from YAML, JSON or plain data. All problems are told at once, each with its place.

::

    ruleset = load_file("rules.yaml")              # or load(text), loads_json(text), from_data(data)
    loaded = read_file("rules.yaml")               # the same, with what is odd but not wrong: loaded.warnings
    rule = rule_from_data({"id": "a", "limit": 5, "window": "1m"})      # one rule, change, user or entry of a list

Raises `InvalidRules`, with the list of problems; see `headgate.config.problems`. Data has no lines: its problems are
told by their paths alone, such as ``rules[2].window``.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, NoReturn

from headgate.config.problems import MOST, Finding, Findings, InvalidRules, Locator, Path, ProblemKind
from headgate.config.schema import Form
from headgate.config.times import moment_text
from headgate.config.yaml_text import Document, text_of
from headgate.core.numbers import short
from headgate.policy import rate_limits
from headgate.policy.checks import Reference, check
from headgate.policy.forms import ALLOW, CHANGE, DEFAULT_ID, ENTRY, FILE, RULE, USER
from headgate.policy.model import DIMENSIONS, METHODS, NO_RULES, RULE_ID, Change, Entry, Rule, Ruleset, User
from headgate.policy.prepared import share_of
from headgate.policy.request import GLOBAL

__all__ = [
    "Finding",
    "InvalidRules",
    "Loaded",
    "change_from_data",
    "declared",
    "entry_from_data",
    "from_data",
    "load",
    "load_file",
    "loads_json",
    "read",
    "read_apart",
    "read_file",
    "rule_from_data",
    "text_of",
    "user_from_data",
]
_ENVOY = "domain"
"""By this key a file of envoyproxy/ratelimit is known."""
_LONG = 200_000
"""Characters of a text that takes longer to read than a process takes to start."""
_ODD = "surrogatepass"
_NOT_ATTRIBUTES = {"method": "methods", "methods": "methods", "tier": "tier"}
"""What people look for among the attributes, and the field of a rule that asks for it."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Rules, and what is odd about their file without being wrong."""

    ruleset: Ruleset
    warnings: tuple[Finding, ...] = ()
    sections: frozenset[str] = frozenset()
    """What the file has, such as rules and users, be it empty. What it does not have, an apply leaves alone."""


def load(text: str, *, name: str = "rules") -> Ruleset:
    """Read rules from YAML; `name` stands for the file in messages."""
    if isinstance(text, str) and "\n" not in text and text.endswith((".yaml", ".yml", ".json")):
        message = "this is the name of a file, not rules"
        hint = f"Engine({short(text)}) reads it, and headgate.policy.loading.load_file."
        raise InvalidRules([Finding(message, hint=hint, file=name, kind=ProblemKind.FILE)])
    return read(text, name=name).ruleset


def load_file(path: str | PathLike[str]) -> Ruleset:
    """Read rules from a YAML file."""
    return read_file(path).ruleset


def read(text: str, *, name: str = "rules", now: int | None = None) -> Loaded:
    """Read rules from YAML, and keep the warnings; `now` (microseconds since the epoch) is for what has ended."""
    document = Document(text, name)
    return _loaded(document.data, document, now)


def read_file(path: str | PathLike[str], *, now: int | None = None) -> Loaded:
    """Read rules from a YAML file, and keep the warnings. A file that cannot be read raises InvalidRules as well."""
    return read(text_of(path), name=fspath(path), now=now)


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
    except (ValueError, RecursionError) as error:  # not JSON, or UTF-8; a number of thousands of digits; many brackets
        at = (error.lineno, error.colno) if isinstance(error, json.JSONDecodeError) else (0, 0)
        message = f"not JSON: {error.msg if isinstance(error, json.JSONDecodeError) else error}"
        raise InvalidRules([Finding(message, "", "", "", name, *at, kind=ProblemKind.SYNTAX)]) from None
    where, told = Locator(name), "the key {} is given twice"
    where.problems += [Finding(told.format(short(key)), file=name, kind=ProblemKind.SYNTAX) for key in doubled[:MOST]]
    return _loaded(data, where).ruleset


def read_apart(text: str) -> Loaded:
    """Read rules from YAML as `read` does, but long ones in another process: reading them would hold up this one.

    PyYAML's C code reads a long scalar in one step, during which no other thread runs.
    """
    if len(text) < _LONG:
        return read(text)
    command = sys.executable, "-P", "-c", "from headgate.policy import loading; loading.read_for_another()"
    done = subprocess.run(command, input=text.encode(errors=_ODD), stdout=subprocess.PIPE, check=True)  # noqa: S603  ours
    found: Loaded | InvalidRules = pickle.loads(done.stdout)  # noqa: S301  of a process of our own
    if isinstance(found, InvalidRules):
        raise found
    return found


def read_for_another() -> None:
    """Read rules from the standard input, and write what `read` returns or raises for the process that started this."""
    found: Loaded | InvalidRules
    try:
        found = read(sys.stdin.buffer.read().decode(errors=_ODD))
    except InvalidRules as error:
        found = error
    sys.stdout.buffer.write(pickle.dumps(found))


def from_data(data: object, *, name: str = "rules", where: Locator | None = None) -> Ruleset:
    """Read rules from what `json.loads` or YAML give: dict, list, str, int, float, bool, None.

    `where` knows the lines of data that is a part of another file.
    """
    return _loaded(data, where or Locator(name)).ruleset


def rule_from_data(data: object) -> Rule:
    """Read one rule, as `from_data` reads all of them. Whether it goes with others is seen when a `Ruleset` is made."""
    rule: Rule = _from_data(RULE, data)
    return rule


def change_from_data(data: object) -> Change:
    """Read what a tier, or the override of a user, changes of a rule."""
    change: Change = _from_data(CHANGE, data)
    return change


def user_from_data(data: object) -> User:
    """Read what is special about one user."""
    user: User = _from_data(USER, data)
    return user


def entry_from_data(data: object) -> Entry:
    """Read one entry of an allow list or a deny list."""
    entry: Entry = _from_data(ENTRY, data)
    return entry


def _from_data(form: Form, data: object) -> Any:
    findings = Findings()
    value = form.read(data, (), findings)
    findings.check()
    return value


def _loaded(data: object, where: Locator, now: int | None = None) -> Loaded:
    findings = Findings(where)
    ruleset = NO_RULES
    if isinstance(data, dict) and _ENVOY in data and "version" not in data:
        message = "this is a file of envoyproxy/ratelimit, not one of rules"
        hint = "`headgate rules validate` reads it and, in Python, headgate.policy.envoy.load."
        findings.add((_ENVOY,), message, hint=hint, at_key=True)
    elif isinstance(data, dict) and rate_limits.KEY in data:
        ruleset = rate_limits.ruleset_of(data, findings)
    else:
        ruleset = _ruleset(data, findings)
        if not findings.count:
            _warn(ruleset, int(time.time() * 1_000_000) if now is None else now, findings)
    findings.check()
    sections = {name for name in FILE.fields if getattr(ruleset, name, None)}  # of other forms, what they make
    if isinstance(data, dict):
        sections |= {name for name, part in data.items() if part is not None}
    return Loaded(ruleset, tuple(findings.warnings()), frozenset(sections & FILE.fields.keys() - {"version"}))


def _ruleset(data: object, findings: Findings) -> Ruleset:
    """Return the rules of a file; if the count of findings has grown, those that are right."""
    read = FILE.read(data, (), findings)
    if read is None or not isinstance(data, dict):
        return NO_RULES
    read.pop("version", None)
    for name in ("rules", "allow", "deny"):
        read[name] = tuple([item for item in read.get(name, ()) if item is not None])
    ruleset = Ruleset.unchecked(**read)
    if not findings.is_full:
        check(ruleset, *declared(data), findings)
    return ruleset


def declared(data: Mapping[str, Any]) -> tuple[list[tuple[str, Path]], list[Reference]]:
    """Return the ids of all rules, right or wrong, with their paths, and which others they replace."""
    ids: list[tuple[str, Path]] = []
    references: list[Reference] = []
    ignored = Findings()
    written = data.get("rules")
    for index, rule in enumerate(written if isinstance(written, list) else ()):
        if isinstance(rule, dict):
            path: Path = ("rules", index)
            rule_id = RULE_ID.read(rule.get("id", rule.get("rule_id")), (), ignored)
            ids += [(rule_id, path)] if rule_id else []
            replaces = rule.get("replaces")
            for place, other in enumerate(replaces if isinstance(replaces, list) else ()):
                if (known := RULE_ID.read(other, (), ignored)) is not None:
                    references.append(((*path, "replaces", place), rule_id or "", known))
    default = data.get("default", ALLOW)
    if default not in (None, ALLOW):
        own = default.get("id", default.get("rule_id", DEFAULT_ID)) if isinstance(default, dict) else DEFAULT_ID
        rule_id = RULE_ID.read(own, (), ignored)
        ids += [(rule_id, ("default",))] if rule_id else []
    return ids, references


def _warn(ruleset: Ruleset, now: int, findings: Findings) -> None:
    """Warn of what has no effect on any request at `now` (microseconds since the epoch), or hardly what was meant."""
    places: list[tuple[Path, Rule]] = [(("rules", index), rule) for index, rule in enumerate(ruleset.rules)]
    if ruleset.default is not None:
        places.append((("default",), ruleset.default))
    for path, rule in places:
        _warn_of_rule(rule, path, findings)
    rules = {rule.id: rule for _, rule in places}
    _warn_of_tiers(ruleset, rules, findings)
    for path, tier, changes in _all_changes(ruleset):
        for rule_id, change in changes.items():
            _warn_of_change(rules[rule_id], tier, (*path, rule_id), findings)
            if change.until is not None and change.until <= now:
                ended = f"has no effect any more: it ended at {moment_text(change.until)}"
                findings.warn((*path, rule_id, "until"), ended)


def _warn_of_rule(rule: Rule, path: Path, findings: Findings) -> None:
    for method in sorted(rule.methods.difference(METHODS)):
        if hint := findings.near(method, METHODS):
            findings.warn((*path, "methods"), f"{method} is an unusual method", hint=hint)
    for name in rule.dimensions:
        if name not in DIMENSIONS and (hint := findings.near(name, DIMENSIONS)):
            what = f"counts by the attribute {name!r}"
            findings.warn((*path, "dimension"), what, f"one of {', '.join(DIMENSIONS)}, or any attribute", hint)
    for name in rule.when:
        if field := _NOT_ATTRIBUTES.get(name):
            what = f"compares an attribute {name!r} that callers give, and not the request's own {field.rstrip('s')}"
            findings.warn((*path, "when", name), what, hint=f"Write `{field}` as a field of the rule.", at_key=True)
    if rule.dimension == GLOBAL and 0 < rule.enforce_percent < 100:
        whom = "all" if share_of(rule.id, GLOBAL) < rule.enforce_percent else "none"
        what = f"a global rule counts all as one: at {rule.enforce_percent} percent it is enforced for {whom}"
        findings.warn((*path, "enforce_percent"), what, "0 or 100, or another dimension")


def _warn_of_tiers(ruleset: Ruleset, rules: Mapping[str, Rule], findings: Findings) -> None:
    known = {*ruleset.tiers, *(rule.tier for rule in rules.values() if rule.tier)}
    names = tuple(sorted(known))
    named: list[tuple[Path, str]] = [(("default_tier",), ruleset.default_tier)]
    named += [(("users", name, "tier"), user.tier) for name, user in ruleset.users.items() if user.tier not in known]
    for path, tier in named:
        if tier and tier not in known:
            hint = findings.near(tier, names)
            findings.warn(path, f"has no effect: there is no tier {tier!r}, and no rule for one", hint=hint)


def _all_changes(ruleset: Ruleset) -> Iterator[tuple[Path, str, Mapping[str, Change]]]:
    """Return all changes by rule, where they are, and the tier of those whom they are for; empty if it is not known."""
    for tier, changes in ruleset.tiers.items():
        yield ("tiers", tier), tier, changes
    for name, user in ruleset.users.items():
        if user.overrides:
            yield ("users", name, "overrides"), user.tier or ruleset.default_tier, user.overrides


def _warn_of_change(rule: Rule, tier: str, path: Path, findings: Findings) -> None:
    if rule.tier and tier and tier != rule.tier:
        whose = f", and the user is of tier {tier}" if path[0] == "users" else ""
        hint = f"Leave `tier: {rule.tier}` out of the rule if it is for others, too."
        findings.warn(path, f"has no effect: the rule is only for tier {rule.tier}{whose}", hint=hint, at_key=True)

"""Rules from YAML, JSON or plain data. All problems are reported at once, each with its place.

::

    ruleset = load_file("rules.yaml")              # or load(text), loads_json(text), from_data(data)
    loaded = read_file("rules.yaml")               # the same, with loaded.warnings
    rule = rule_from_data({"id": "a", "limit": 5, "window": "1m"})      # one rule, change or user

Raises `InvalidRules`, with the list of problems; see `headgate.config.problems`. Problems of data have paths, such as
``rules[2].window``, and no lines.
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
from typing import Any, NoReturn, cast

from headgate.config.problems import Finding, Findings, InvalidRules, Locator, Path, ProblemKind
from headgate.config.schema import Form
from headgate.config.times import moment_text
from headgate.config.yaml_text import Document, text_of
from headgate.core.numbers import short
from headgate.policy import rate_limits
from headgate.policy.checks import Reference, check
from headgate.policy.forms import ALLOW, CHANGE, DEFAULT_ID, FILE, RULE, USER
from headgate.policy.model import DIMENSIONS, METHODS, NO_RULES, RULE_ID, Change, Rule, Ruleset, User
from headgate.policy.prepared import share_of
from headgate.policy.request import GLOBAL

_ENVOY = "domain"
_LONG = 200_000
"""Characters above which reading takes longer than starting a process."""
_ODD = "surrogatepass"
_NOT_ATTRIBUTES = {"method": "methods", "methods": "methods", "tier": "tier"}
"""Names that are not attributes, and the field of a rule that matches them."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Rules, and the warnings about their file."""

    ruleset: Ruleset
    warnings: tuple[Finding, ...] = ()
    sections: frozenset[str] = frozenset()
    """The sections of the file, even empty ones. An apply leaves the others alone."""


def load(text: str, *, name: str = "rules") -> Ruleset:
    """Read rules from YAML; `name` is the file in messages."""
    if isinstance(text, str) and "\n" not in text and text.endswith((".yaml", ".yml", ".json")):
        message = "this is the name of a file, not rules"
        hint = f"Engine({short(text)}) reads it, and headgate.policy.loading.load_file."
        raise InvalidRules([Finding(message, hint=hint, file=name, kind=ProblemKind.FILE)])
    return read(text, name=name).ruleset


def load_file(path: str | PathLike[str]) -> Ruleset:
    return read_file(path).ruleset


def read(text: str, *, name: str = "rules", now: int | None = None) -> Loaded:
    """Read rules and warnings from YAML; `now`, in microseconds since the epoch, shows which changes have ended."""
    document = Document(text, name)
    return _load(document.data, document, now)


def read_file(path: str | PathLike[str], *, now: int | None = None) -> Loaded:
    """Read rules and warnings from a YAML file. An unreadable file raises InvalidRules as well."""
    return read(text_of(path), name=fspath(path), now=now)


def loads_json(text: str | bytes, *, name: str = "rules") -> Ruleset:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
            raise ValueError(f"the key {short(key)} occurs twice")
        return found

    def no_number(word: str) -> NoReturn:
        raise ValueError(f"{word} is not a number")

    try:
        data = json.loads(text, object_pairs_hook=unique, parse_constant=no_number)
    except (ValueError, RecursionError) as error:  # not JSON, or UTF-8; a number of thousands of digits; many brackets
        at = (error.lineno, error.colno) if isinstance(error, json.JSONDecodeError) else (0, 0)
        message = f"invalid JSON: {error.msg if isinstance(error, json.JSONDecodeError) else error}"
        raise InvalidRules([Finding(message, "", "", "", name, *at, kind=ProblemKind.SYNTAX)]) from None
    return from_data(data, name=name)


def read_apart(text: str) -> Loaded:
    """Read rules like `read`, but long texts in another process.

    PyYAML's C code reads a long scalar in one step, during which no other thread of this process runs.
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
    """Read rules from the standard input, and write the result or the error of `read` for `read_apart`."""
    found: Loaded | InvalidRules
    try:
        found = read(sys.stdin.buffer.read().decode(errors=_ODD))
    except InvalidRules as error:
        found = error
    sys.stdout.buffer.write(pickle.dumps(found))


def from_data(data: object, *, name: str = "rules", where: Locator | None = None) -> Ruleset:
    """Read rules from plain data: dict, list, str, int, float, bool, None.

    `where` finds the lines of data that is a part of another file.
    """
    return _load(data, where or Locator(name)).ruleset


def rule_from_data(data: object) -> Rule:
    """Read one rule from data. A `Ruleset` checks whether it goes with others."""
    return cast("Rule", _from_data(RULE, data))


def change_from_data(data: object) -> Change:
    return cast("Change", _from_data(CHANGE, data))


def user_from_data(data: object) -> User:
    return cast("User", _from_data(USER, data))


def _from_data(form: Form, data: object) -> Any:
    findings = Findings()
    value = form.read(data, (), findings)
    findings.check()
    return value


def _load(data: object, where: Locator, now: int | None = None) -> Loaded:
    findings = Findings(where)
    ruleset = NO_RULES
    if isinstance(data, dict) and _ENVOY in data and "version" not in data:
        message = "this is a file of envoyproxy/ratelimit, not one of rules"
        hint = "`headgate rules validate` reads it and, in Python, headgate.policy.envoy.load."
        findings.add((_ENVOY,), message, hint=hint, at_key=True)
    elif isinstance(data, dict) and rate_limits.KEY in data:
        ruleset = rate_limits.ruleset_of(data, findings)
    else:
        read = FILE.read(data, (), findings)
        if read is not None and isinstance(data, dict):
            read.pop("version", None)
            for name in ("rules", "allow", "deny"):
                read[name] = tuple([item for item in read.get(name, ()) if item is not None])
            ruleset = Ruleset.unchecked(**read)
            if not findings.is_full:
                check(ruleset, *_declarations(data), findings)
        if not findings.count:
            _warn(ruleset, int(time.time() * 1_000_000) if now is None else now, findings)
    findings.check()
    sections = {name for name in FILE.fields if getattr(ruleset, name, None)}  # also of files of another form
    if isinstance(data, dict):
        sections |= {name for name, part in data.items() if part is not None}
    return Loaded(ruleset, tuple(findings.warnings()), frozenset(sections & FILE.fields.keys() - {"version"}))


def _declarations(data: Mapping[str, Any]) -> tuple[list[tuple[str, Path]], list[Reference]]:
    """Return the ids of all rules, valid or not, with their paths, and the rules that they replace."""
    rules, default = data.get("rules"), data.get("default", ALLOW)
    written: list[tuple[Path, Any]] = [
        (("rules", index), rule) for index, rule in enumerate(rules if isinstance(rules, list) else ())
    ]
    if default not in (None, ALLOW):
        written.append(
            (("default",), {"id": DEFAULT_ID, **RULE.record.named(default if isinstance(default, dict) else {})})
        )
    ids: list[tuple[str, Path]] = []
    references: list[Reference] = []
    ignored = Findings()
    for path, rule in written:
        if isinstance(rule, dict):
            rule_id = RULE_ID.read(rule.get("id", rule.get("rule_id")), (), ignored)
            ids += [(rule_id, path)] if rule_id else []
            replaces = rule.get("replaces") if path != ("default",) else ()  # the default replaces nothing
            for place, other in enumerate(replaces if isinstance(replaces, list) else ()):
                if (known := RULE_ID.read(other, (), ignored)) is not None:
                    references.append(((*path, "replaces", place), rule_id or "", known))
    return ids, references


def _warn(ruleset: Ruleset, now: int, findings: Findings) -> None:
    """Warn of entries without effect at `now` (microseconds since the epoch), and of likely mistakes."""
    places: list[tuple[Path, Rule]] = [(("rules", index), rule) for index, rule in enumerate(ruleset.rules)]
    if ruleset.default is not None:
        places.append((("default",), ruleset.default))
    for path, rule in places:
        _warn_of_rule(rule, path, findings)
    rules = {rule.id: rule for _, rule in places}
    known = {*ruleset.tiers, *(rule.tier for rule in rules.values() if rule.tier)}
    names = tuple(sorted(known))
    named: list[tuple[Path, str]] = [(("default_tier",), ruleset.default_tier)]
    named += [(("users", name, "tier"), user.tier) for name, user in ruleset.users.items()]
    for path, tier in named:
        if tier and tier not in known:
            hint = findings.near(tier, names)
            findings.warn(path, f"has no effect: tier {tier!r} does not exist, and no rule names it", hint=hint)
    for path, tier, changes in _all_changes(ruleset):
        for rule_id, change in changes.items():
            only = rules[rule_id].tier
            if only and tier and tier != only:
                whose = f", and the user is of tier {tier}" if path[0] == "users" else ""
                message = f"has no effect: the rule is only for tier {only}{whose}"
                hint = f"Leave `tier: {only}` out of the rule if it is for others, too."
                findings.warn((*path, rule_id), message, hint=hint, at_key=True)
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
            what = f"compares the attribute {name!r} of the caller, not the request's own {field.rstrip('s')}"
            findings.warn((*path, "when", name), what, hint=f"Write `{field}` as a field of the rule.", at_key=True)
    if rule.dimension == GLOBAL and 0 < rule.enforce_percent < 100:
        part = "all" if share_of(rule.id, GLOBAL) < rule.enforce_percent else "none"
        what = f"a global rule counts all callers together: at {rule.enforce_percent} percent it is enforced for {part}"
        findings.warn((*path, "enforce_percent"), what, "0 or 100, or another dimension")


def _all_changes(ruleset: Ruleset) -> Iterator[tuple[Path, str, Mapping[str, Change]]]:
    """Return the path of all changes, the tier of their users (empty if unknown), and the changes by rule."""
    for tier, changes in ruleset.tiers.items():
        yield ("tiers", tier), tier, changes
    for name, user in ruleset.users.items():
        if user.overrides:
            yield ("users", name, "overrides"), user.tier or ruleset.default_tier, user.overrides

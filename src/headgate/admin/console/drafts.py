"""Rules in the editor, as fields of a form and as YAML, which are kept equal.

A form sends both, and `base`, the rule that they showed at first. Fields that differ from `base` were edited, and are
put into the YAML. So parts of a rule that only YAML can express are never lost, with or without the script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headgate.admin.console.forms import Form
from headgate.admin.routes.requests import parse_json
from headgate.config.problems import Finding, Findings, InvalidRules, ProblemKind
from headgate.config.yaml_text import Document, resolve_scalar
from headgate.core.algorithms import Algorithm
from headgate.core.errors import UsageError
from headgate.core.mode import Mode
from headgate.policy.dumping import data_to_yaml
from headgate.policy.forms import RULE
from headgate.policy.model import TOGETHER

_LONGEST, _MOST_VALUES = 100_000, 10_000
_OTHER_QUOTAS = ("limits", "quota", "refill_rate")
RARE = ("tier", "key_pattern", "when", "replaces", "calendar", "on_store_failure", "refusal_status", "refusal_message")
"""Fields that the form hides at first."""
_ORDER = {name: place for place, name in enumerate(RULE.record.fields)}


class FormField(NamedTuple):
    name: str
    label: str
    kind: str = "text"
    """How its text is parsed: text, number (if it is one), names, dimension, pairs or flag."""
    help: str = ""
    choices: Sequence[tuple[str, str]] = ()
    default: str = ""
    """The meaning of an empty field."""


_ALGORITHMS = [(str(each), str(each).replace("_", " ")) for each in Algorithm]
_MODES = [("", "service default"), *[(str(each), str(each)) for each in Mode]]
FIELDS: Mapping[str, FormField] = {
    each.name: each
    for each in (
        FormField("id", "ID", help="Cannot be changed later."),
        FormField("name", "Name"),
        FormField("endpoint", "Endpoint", help="* is one segment, ** the rest.", default="all paths"),
        FormField("methods", "Methods", "names", "Such as GET, POST.", default="all"),
        FormField(
            "dimension",
            "Counts by",
            "dimension",
            "user, ip, apikey, global, an attribute, or user + endpoint.",
            default="user",
        ),
        FormField("limit", "Limit", "number"),
        FormField("window", "Window", "number", "30s, 1m, 1h, 1d"),
        FormField("burst", "Burst", "number", "Extra requests at once.", default="0"),
        FormField("algorithm", "Algorithm", choices=[("", "token bucket"), *_ALGORITHMS[1:]]),
        FormField("shadow", "Mode", "flag", choices=[("", "enforce"), ("true", "shadow: count only")]),
        FormField("enforce_percent", "Enforced for (%)", "number", default="100"),
        FormField("enabled", "State", "flag", choices=[("", "on"), ("false", "off")]),
        FormField("tier", "Only for tier"),
        FormField("key_pattern", "Only for keys matching", help="* matches any characters."),
        FormField("when", "Only when", "pairs", "One attribute=value per line."),
        FormField("replaces", "Replaces", "names", "IDs of rules that do not apply when this one does."),
        FormField("calendar", "Calendar", "number", "A time zone, for days and months of its calendar."),
        FormField("on_store_failure", "When the store is down", choices=_MODES),
        FormField("refusal_status", "Status of refusals", "number", default="429"),
        FormField("refusal_message", "Message of refusals"),
    )
}


class Draft(NamedTuple):
    body: dict[str, Any]
    """The rule in both forms, valid or not; the last one if the YAML is no mapping."""
    text: str
    """The YAML."""
    fields: dict[str, str]
    """The fields of the form."""
    problems: tuple[Finding, ...] = ()

    @property
    def wrong(self) -> dict[str, str]:
        """The problems of fields, by name."""
        found: dict[str, str] = {}
        for each in self.problems:
            name = re.split(r"[.\[]", each.path)[0]
            found.setdefault(name, message_of(each))
        return found

    @property
    def has_quota_fields(self) -> bool:
        """Whether its limit can be edited in the form."""
        return self.body.keys().isdisjoint(_OTHER_QUOTAS)

    def with_problems(self, problems: Sequence[Finding]) -> Draft:
        """Add problems, each with its place in the YAML if known."""
        document = Document(self.text, "YAML", "a rule")
        located = []
        for each in problems:
            path = [int(part) if part.isdecimal() else part for part in re.split(r"[.\[\]]+", each.path) if part]
            line, column = document.locate(tuple(path), at_key=False)
            located.append(replace(each, line=line, column=column))
        return self._replace(problems=(*self.problems, *located))


def message_of(finding: Finding) -> str:
    """Return the message of a problem, without its place."""
    return str(replace(finding, path="", file="", line=0, column=0))


def draft_of(body: dict[str, Any]) -> Draft:
    return Draft(body, data_to_yaml(body), fields_of(body))


def read(form: Form, rule_id: str) -> Draft:
    """Return the draft in a form; `rule_id` is empty for a new rule. Raises UsageError."""
    base, text = parse_json(form.get("base", "").encode()), form.get("yaml", "")
    if not isinstance(base, dict):
        raise UsageError("the form lacks the original rule: reload the page")
    known = fields_of(base)
    typed = {name: form[f"f.{name}"] for name in FIELDS if f"f.{name}" in form}
    edits = {name: value for name, value in typed.items() if value != known[name]}
    try:
        document = _document(text)
    except InvalidRules as error:
        return Draft(base, text, known | typed, error.problems)
    body = document.data
    if not isinstance(body, dict):
        return Draft(base, text, known | typed, _problems(document, rule_id))
    if edits:  # empty fields are removed
        edited = {name: value for name, value in body.items() if name not in edits}
        edited |= {name: _meant(FIELDS[name].kind, typed) for name, typed in edits.items() if typed}
        edited = _in_order(edited)
        if edited != body:
            body, text = edited, data_to_yaml(edited)
            document = _document(text)
    return Draft(body, text, fields_of(body), _problems(document, rule_id))


def merge(old: Any, ours: Draft, theirs: Any, rule_id: str) -> Draft:
    """Merge a draft with a concurrent change of the rule; where both differ from `old`, the draft wins."""
    if any(each.kind is ProblemKind.SYNTAX for each in ours.problems):
        return ours
    body = dict(theirs)
    for name in {**old, **ours.body}:
        if old.get(name) != ours.body.get(name):
            body.pop(name, None)
            if name in ours.body:
                body[name] = ours.body[name]
    if body == ours.body:
        return ours
    draft = draft_of(_in_order(body))
    return draft._replace(problems=_problems(_document(draft.text), rule_id))


def id_of(body: Mapping[str, Any]) -> str:
    """Return the id in a body, valid or not; empty if there is none."""
    return str(body.get("id", body.get("rule_id", "")))


def base_of(draft: Draft) -> str:
    return json.dumps(draft.body, ensure_ascii=False)


def fields_of(body: Mapping[str, Any]) -> dict[str, str]:
    return {name: _shown(each.kind, body.get(name)) for name, each in FIELDS.items()}


def _shown(kind: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return (f" {TOGETHER} " if kind == "dimension" else ", ").join(map(str, value))
    if isinstance(value, dict):
        return "\n".join(f"{name}={_shown('', inner)}" for name, inner in value.items())
    return str(value)


def _in_order(body: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(body.items(), key=lambda each: _ORDER.get(each[0], len(_ORDER))))


def _meant(kind: str, text: str) -> Any:
    match kind:
        case "names":
            return [name for name in re.split(r"[,\s]+", text) if name]
        case "dimension":
            names = [name for name in re.split(r"[+,\s]+", text) if name]
            return names[0] if len(names) == 1 else names
        case "pairs":
            lines = [line.partition("=") for line in text.split("\n") if line.strip()]
            return {name.strip(): value.strip() if sign else None for name, sign, value in lines}
        case "number" | "flag":
            return resolve_scalar(text)
    return text


def _document(text: str) -> Document:
    """Parse the YAML of a rule, which must be small even with its aliases expanded. Raises InvalidRules."""
    if len(text) <= _LONGEST:
        document = Document(text, "YAML", "a rule")
        left, count = [document.data], 1
        while left and count <= _MOST_VALUES:
            part = left.pop()
            inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
            count += len(inner)
            left += inner
        if count <= _MOST_VALUES:
            return document
    message = f"a rule must have at most {_LONGEST:_} characters and {_MOST_VALUES:_} values"
    raise InvalidRules([Finding(message, line=1, column=1, kind=ProblemKind.SYNTAX)])


def _problems(document: Document, rule_id: str) -> tuple[Finding, ...]:
    findings = Findings(document)
    RULE.read(document.data, (), findings)
    if rule_id and isinstance(document.data, dict) and id_of(document.data) not in {"", rule_id}:
        findings.add(("id",), "the id of a rule cannot change", rule_id, "Create a new rule for another id.")
    return tuple(findings.problems())

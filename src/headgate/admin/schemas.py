"""What routes answer: an example of each answer, from which its schema in the OpenAPI document follows.

The examples are in ``answers.json``, by the name of the route. Text such as ``=api_key`` stands for the example of that
name, whose schema has a name of its own in the document.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import msgspec

from headgate.reference.decision_api import HOT_KEYS
from headgate.reference.schemas import (
    MOMENT,
    NUMBER,
    STATE,
    TEXT,
    WHOLE,
    YES_OR_NO,
    Described,
    Json,
    described,
    form,
    list_of,
    ref,
    some,
)

_ANY: Json = {"type": "object"}
_SECRET: Json = {**TEXT, "description": "It is shown here, and nowhere else."}
_TEXTS, _NO_MOMENT = list_of(TEXT), some(MOMENT)
_KNOWN: Json = {
    **dict.fromkeys(("expires_at", "last_used_at", "revoked_at", "store.since", "rule_versions.items.at"), _NO_MOMENT),
    **dict.fromkeys(("api_key.created_at", "new_key.created_at", "consumer.keys.created_at"), _NO_MOMENT),
    **dict.fromkeys(("skipped", "unmatched_principals"), _TEXTS),
    **dict.fromkeys(("counts", "facts", "circuits"), _ANY),
    **{name: {} for name in ("before", "after", "stored_setting.value")},
    **dict.fromkeys(("list_usage.items", "list_refusals.items"), list_of(_ANY)),
    **{f"list_{kind}s.items": list_of(ref(f"stored_{kind}")) for kind in ("rule", "tier", "setting")},
    **dict.fromkeys(("new_key.key", "new_consumer_key.key"), _SECRET),
    "total": {**WHOLE, "minimum": 0},
    "next": some(WHOLE),
    "overrides": ref("overrides"),
    "retry_after": some(NUMBER),
    "explain.rule_id": some(TEXT),
    "nodes.items.rates": some(_ANY),
    "stored_tier.value": ref("tier"),
    "rule_versions.items.body": some(ref("rule")),
    "limit_state.state": STATE,
    "consumer.state": {"enum": ["active", "ended"]},
    "nodes.items.state": {"enum": ["ok", "behind", "gone"]},
    "store.state": {"enum": ["up", "recovering", "down", "unknown"]},
    "difference.kind": {"enum": ["rule", "tier", "user", "setting", "order"]},
    "difference.action": {"enum": ["create", "update", "delete"]},
    "role": {"enum": ["check", "viewer", "editor", "admin"]},
    "scope": {"enum": ["fleet", "node"]},
    "severity": {"enum": ["critical", "warning", "info"]},
    "refused_share": {**NUMBER, "minimum": 0, "maximum": 1},
    "sampled": {**NUMBER, "exclusiveMinimum": 0, "maximum": 1},
}
"""What one example does not show, by the ends of paths."""
_HERE: list[tuple[str, Json, str]] = [
    *[
        (f"{part}.{name}", NUMBER, text)
        for part in ("live.rates", "rule_rates", "history.points")
        for name, text in (
            ("allowed", "Admissions per second."),
            ("refused", "Refusals per second."),
            ("degraded", "Decisions per second that the store did not make."),
        )
    ],
    ("live.rates.errors", NUMBER, "Errors per second."),
    ("hour.points.allowed", WHOLE, "Admissions in this minute."),
    ("hour.points.denied", WHOLE, "Refusals in this minute."),
    ("hour.points.degraded", WHOLE, "Decisions in this minute that the store did not make."),
    ("points.at", MOMENT, "The beginning of the step."),
    ("live.at", MOMENT, "The time of the figures."),
    ("nodes.total", _KNOWN["total"], "Number of nodes, also of those that do not report."),
    ("nodes.items.state", TEXT, "`behind`: it does not run the newest rules. `gone`: it has stopped reporting."),
    ("nodes.items.version", TEXT, "The version of Headgate."),
    ("nodes.items.workers", WHOLE, "Number of its worker processes."),
    ("store.state", TEXT, "The state of the store, as seen by the node."),
    ("consumer.state", TEXT, "`active` while one of its keys is accepted."),
    ("apply_file.total", _KNOWN["total"], "Number of changes, including those that are not listed."),
    ("undo_revision.total", _KNOWN["total"], "Number of changes, including those that are not listed."),
    ("list_revisions.items.changes", WHOLE, "Number of changes."),
    ("get_revision.changes", WHOLE, "Number of changes."),
    ("explain.degraded", TEXT, "Why the store did not decide; empty if it did."),
    ("user_limits.in_force", YES_OR_NO, "Whether the node that responds runs the last change of the user."),
    ("user_limits.rules.shadow", YES_OR_NO, "Whether the rule only counts."),
    ("what_if.in_force", WHOLE, "The limit in force to which the figures apply."),
    ("what_if.others.in_force", WHOLE, "Another limit in force, such as that of a tier."),
]
"""Members that mean something else here than elsewhere: the end of the path, the schema, and the meaning."""
_KNOWN |= {path: {**_KNOWN.get(path, schema), "description": text} for path, schema, text in _HERE}
_OPTIONAL: dict[str, Json] = {
    "limit_state": {"space": TEXT, "principal": TEXT},
    "what_if": {"not_counted": _TEXTS},
    "difference": {
        "last_day": {**_ANY, "additionalProperties": WHOLE},
        "not_counted": _TEXTS,
        "what_if": list_of(ref("what_if")),
    },
    "stored_tier": {"version": WHOLE},
    "stored_setting": {"version": WHOLE},
    "special_user": {"tier": TEXT, "overrides": ref("overrides"), "warnings": _TEXTS},
    "stored_rule": {"version": WHOLE, "created_at": MOMENT, "updated_at": MOMENT},
}
"""Members that are not always there."""
_EXAMPLES: Json = msgspec.json.decode((files(__package__) / "answers.json").read_bytes())


def _names_in(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.startswith("="):
        yield value[1:]
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _names_in(each)


_NAMED = dict.fromkeys([*_names_in(_EXAMPLES), "what_if"])
_DESCRIBED = {name: described(name, _EXAMPLES, _KNOWN, _OPTIONAL) for name in _EXAMPLES}
COMPONENTS: Json = {
    **{name: _DESCRIBED[name][0] for name in _NAMED},
    "stored_rule": form({"id": TEXT}, **_OPTIONAL["stored_rule"]),
    "overrides": {**_ANY, "additionalProperties": ref("change")},
}
"""Schemas with names of their own."""
ANSWERS: dict[str, Described] = {
    **{name: (ref(name) if name in _NAMED else schema, example) for name, (schema, example) in _DESCRIBED.items()},
    "export": ({"description": "A rules file."}, "version: 1\nrules:\n- {id: orders-user, limit: 100, window: 1m}\n"),
    "hot_keys": ({"properties": HOT_KEYS[0]["properties"]}, HOT_KEYS[1]),
}
"""The schema of the answer of each route, and an example of it."""

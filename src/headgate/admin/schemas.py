"""What routes answer, and an example of each: schemas of the OpenAPI document, by the name of the route."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
WHOLE: Json = {"type": "integer"}
YES_OR_NO: Json = {"type": "boolean"}
MOMENT: Json = {"type": "string", "format": "date-time"}
_RULE = {
    "id": "orders-user",
    "endpoint": "/api/v1/orders/**",
    "methods": ["POST"],
    "limit": 100,
    "window": "1m",
    "version": 3,
}
_KEY = {
    "id": "4f9a2c81d07b",
    "name": "deploy-bot",
    "role": "editor",
    "created_at": "2026-01-01T00:00:00Z",
    "created_by": "start-up",
    "expires_at": None,
    "last_used_at": None,
    "revoked_at": None,
}
_STATE = {
    "quota": "100/minute",
    "allowed": True,
    "limit": 100,
    "remaining": 99,
    "retry_after": 0.0,
    "reset_after": 0.6,
    "state": "normal",
}


def ref(name: str) -> Json:
    """Return the schema that stands under a name."""
    return {"$ref": f"#/components/schemas/{name}"}


def list_of(items: Json) -> Json:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def some(schema: Json) -> Json:
    """Return the schema of something that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def record(required: Json, **optional: Json) -> Json:
    """Return the schema of an object with these members; others may be added in a later release."""
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


def _page(item: Json) -> Json:
    return record({"items": list_of(item), "total": {**WHOLE, "minimum": 0}, "next": some(WHOLE)})


def _paged(*items: Json) -> Json:
    return {"items": list(items), "total": len(items), "next": None}


def _stored(value: Json) -> Json:
    return record({"id": TEXT, "value": value, "version": WHOLE})


_LIMIT = record(
    {
        "quota": TEXT,
        "allowed": YES_OR_NO,
        "limit": WHOLE,
        "remaining": WHOLE,
        "retry_after": some({"type": "number"}),
        "reset_after": {"type": "number"},
        "state": {"enum": ["normal", "warning", "throttled"]},
    },
    space=TEXT,
    principal=TEXT,
)
_API_KEY = {
    "id": TEXT,
    "name": TEXT,
    "role": {"enum": ["check", "viewer", "editor", "admin"]},
    "created_at": some(MOMENT),
    "created_by": TEXT,
    "expires_at": some(MOMENT),
    "last_used_at": some(MOMENT),
    "revoked_at": some(MOMENT),
}
_NEW_KEY = record({**_API_KEY, "key": {**TEXT, "description": "It is shown here, and nowhere else."}})
_CHANGED_USER = record({"id": TEXT}, tier=TEXT, overrides=ref("overrides"), warnings=list_of(TEXT))
_DIFFERENCE = record(
    {
        "kind": {"enum": ["rule", "tier", "user", "setting"]},
        "id": TEXT,
        "action": {"enum": ["create", "update", "delete"]},
        "before": {},
        "after": {},
    },
    last_day={"type": "object", "additionalProperties": WHOLE},
    not_counted=list_of(TEXT),
    what_if=list_of(ref("what_if")),
)
_WHAT_IF = {
    "rule_id": "orders-user",
    "limit": 60,
    "in_force": 100,
    "window_seconds": 60,
    "since": "2026-01-01T00:00:00Z",
    "until": "2026-01-08T00:00:00Z",
    "units": 400_000,
    "principals": 21_000,
    "refused": 12_400,
    "refused_at_least": 12_400,
    "refused_at_most": 12_400,
    "touched": 310,
    "standard_error": 0,
    "sampled": 1.0,
    "exact": True,
    "assumes": "clients ask as they did",
    "others": [{"in_force": 1000, "units": 52_000}],
    "hot_keys": ["#5f2b9e2a4c1d7f30"],
}

COMPONENTS: Json = {
    "stored_rule": {"type": "object", "required": ["id"], "properties": {"id": TEXT, "version": WHOLE}},
    "overrides": {"type": "object", "additionalProperties": ref("change")},
    "limit_state": _LIMIT,
    "what_if": record(
        {
            **dict.fromkeys(("limit", "in_force", "units", "principals", "refused"), WHOLE),
            **dict.fromkeys(("refused_at_least", "refused_at_most", "touched", "standard_error"), WHOLE),
            "rule_id": TEXT,
            "window_seconds": {"type": "number"},
            "since": MOMENT,
            "until": MOMENT,
            "sampled": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            "exact": YES_OR_NO,
            "assumes": TEXT,
            "others": list_of(record({"in_force": WHOLE, "units": WHOLE})),
            "hot_keys": list_of(TEXT),
        },
        not_counted=list_of(TEXT),
    ),
    "api_key": record(_API_KEY),
    "audit_entry": record(
        {
            "sequence": WHOLE,
            "at": MOMENT,
            "actor": TEXT,
            "action": TEXT,
            "kind": TEXT,
            "subject": TEXT,
            "before": {},
            "after": {},
            "request_id": TEXT,
            "reason": TEXT,
            "revision": WHOLE,
            "previous": TEXT,
            "digest": TEXT,
        }
    ),
}
"""Schemas with names of their own."""
_NEW_KEY_EXAMPLE = {**_KEY, "key": "hg_4f9a2c81d07b_..."}

ANSWERS: dict[str, tuple[Json, Any]] = {
    "list_rules": (_page(ref("stored_rule")), _paged({k: v for k, v in _RULE.items() if k != "version"})),
    "create_rule": (ref("stored_rule"), _RULE),
    "get_rule": (ref("stored_rule"), _RULE),
    "put_rule": (ref("stored_rule"), _RULE),
    "rule_versions": (
        record(
            {
                "items": list_of(
                    record(
                        {"version": WHOLE, "body": some(ref("rule")), "revision": WHOLE, "at": MOMENT, "actor": TEXT}
                    )
                )
            }
        ),
        {
            "items": [
                {
                    "version": 1,
                    "body": {"id": "orders-user", "limit": 100, "window": "1m"},
                    "revision": 1,
                    "at": "2026-01-01T00:00:00Z",
                    "actor": "deploy-bot (4f9a2c81d07b)",
                }
            ]
        },
    ),
    "roll_back_rule": (record({"revision": WHOLE, "changed": YES_OR_NO}), {"revision": 8, "changed": True}),
    "export": ({"description": "A rules file."}, "version: 1\nrules:\n- {id: orders-user, limit: 100, window: 1m}\n"),
    "apply_file": (
        record({"revision": WHOLE, "dry_run": YES_OR_NO, "changes": list_of(_DIFFERENCE)}),
        {"revision": 7, "dry_run": True, "changes": []},
    ),
    "list_tiers": (
        _page(record({"id": TEXT, "value": ref("tier")})),
        _paged({"id": "premium", "value": {"orders-user": {"limit": 1000}}}),
    ),
    "get_tier": (_stored(ref("tier")), {"id": "premium", "value": {"orders-user": {"limit": 1000}}, "version": 1}),
    "put_tier": (_stored(ref("tier")), {"id": "premium", "value": {"orders-user": {"limit": 1000}}, "version": 1}),
    "list_settings": (_page(record({"id": TEXT, "value": {}})), _paged({"id": "default_tier", "value": "premium"})),
    "get_setting": (_stored({}), {"id": "default_tier", "value": "premium", "version": 1}),
    "put_setting": (_stored({}), {"id": "default_tier", "value": "premium", "version": 1}),
    "list_users": (_page(_CHANGED_USER), _paged({"id": "42", "tier": "premium"})),
    "user_limits": (
        record(
            {
                "user_id": TEXT,
                "tier": TEXT,
                "overrides": ref("overrides"),
                "rules": list_of(
                    record(
                        {
                            "rule_id": TEXT,
                            "endpoint": TEXT,
                            "methods": list_of(TEXT),
                            "shadow": YES_OR_NO,
                            "source": TEXT,
                            "limits": list_of(ref("limit_state")),
                        }
                    )
                ),
            }
        ),
        {
            "user_id": "42",
            "tier": "premium",
            "overrides": {},
            "rules": [
                {
                    "rule_id": "orders-user",
                    "endpoint": "/api/v1/orders/**",
                    "methods": ["POST"],
                    "shadow": False,
                    "source": "the rule",
                    "limits": [_STATE],
                }
            ],
        },
    ),
    "set_tier": (_CHANGED_USER, {"id": "42", "tier": "premium"}),
    "set_override": (_CHANGED_USER, {"id": "42", "overrides": {"orders-user": {"limit": 5000}}}),
    "end_override": (_CHANGED_USER, {"id": "42", "tier": "premium"}),
    "reset_user": (
        record({"user_id": TEXT, "reset": list_of(TEXT), "skipped": list_of(TEXT)}),
        {"user_id": "42", "reset": ["orders-user"], "skipped": []},
    ),
    "explain": (
        record(
            {
                "allowed": YES_OR_NO,
                "verdict": TEXT,
                "rule_id": some(TEXT),
                "reason": TEXT,
                "degraded": TEXT,
                "unmatched_principals": list_of(TEXT),
                "facts": {"type": "object"},
                "tier": TEXT,
                "rules": list_of(
                    record(
                        {
                            "id": TEXT,
                            "applies": YES_OR_NO,
                            "reason": TEXT,
                            "enforced": YES_OR_NO,
                            "source": TEXT,
                            "limits": list_of(ref("limit_state")),
                        }
                    )
                ),
            }
        ),
        {
            "allowed": True,
            "verdict": "allowed",
            "rule_id": "orders-user",
            "reason": "",
            "degraded": "",
            "unmatched_principals": [],
            "facts": {"user": "42"},
            "tier": "premium",
            "rules": [],
        },
    ),
    "list_nodes": (
        record(
            {
                "revision": WHOLE,
                "items": list_of(record({"id": TEXT, "host": TEXT, "started_at": MOMENT, "seen_at": MOMENT})),
            }
        ),
        {
            "revision": 7,
            "items": [
                {
                    "id": "a1",
                    "host": "node-1",
                    "revision": 7,
                    "error": "",
                    "started_at": "2026-01-01T00:00:00Z",
                    "seen_at": "2026-01-01T00:00:00Z",
                }
            ],
        },
    ),
    "hot_keys": ({}, []),
    "list_usage": (_page({"type": "object"}), _paged()),
    "what_if": (ref("what_if"), _WHAT_IF),
    "list_keys": (record({"items": list_of(ref("api_key"))}), {"items": [_KEY]}),
    "create_key": (_NEW_KEY, _NEW_KEY_EXAMPLE),
    "rotate_key": (_NEW_KEY, _NEW_KEY_EXAMPLE),
    "list_audit": (
        _page(ref("audit_entry")),
        _paged(
            {
                "sequence": 7,
                "at": "2026-01-01T00:00:00Z",
                "actor": "deploy-bot (4f9a2c81d07b)",
                "action": "update",
                "kind": "rule",
                "subject": "orders-user",
                "before": {"limit": 50},
                "after": {"limit": 100},
                "request_id": "c0ffee",
                "reason": "summer sale",
                "revision": 7,
                "previous": "9f2c...",
                "digest": "51ab...",
            }
        ),
    ),
    "verify_audit": (
        record({"intact": YES_OR_NO, "entries": WHOLE, "last": TEXT, "fault": TEXT}),
        {"intact": True, "entries": 7, "last": "51ab...", "fault": ""},
    ),
}

"""What routes answer: schemas of the OpenAPI document, each with an example, by the name of the route."""

from __future__ import annotations

from typing import Any

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
    form,
    items,
    list_of,
    record,
    ref,
    some,
)

_NEW_YEAR = "2026-01-01T00:00:00Z"


def _page(schema: Json, *examples: Json) -> Described:
    """Return a page, with these items as examples."""
    total = {**WHOLE, "minimum": 0}, len(examples)
    return record({"items": (list_of(schema), list(examples)), "total": total, "next": (some(WHOLE), None)})


def _named(name: str) -> Described:
    """Return what has a schema with a name of its own."""
    return ref(name), _NAMED[name][1]


_RULE_BODY = {
    "id": "orders-user",
    "endpoint": "/api/v1/orders/**",
    "methods": ["POST"],
    "limit": 100,
    "window": "1m",
}
_RULE: Described = (
    ref("stored_rule"),
    {**_RULE_BODY, "created_at": _NEW_YEAR, "updated_at": _NEW_YEAR, "version": 3},
)
_KEY_MEMBERS: dict[str, Described] = {
    "id": (TEXT, "4f9a2c81d07b"),
    "name": (TEXT, "deploy-bot"),
    "role": ({"enum": ["check", "viewer", "editor", "admin"]}, "editor"),
    "created_at": (some(MOMENT), _NEW_YEAR),
    "created_by": (TEXT, "start-up"),
    "expires_at": (some(MOMENT), None),
    "last_used_at": (some(MOMENT), None),
    "revoked_at": (some(MOMENT), None),
}
_SECRET: Described = ({**TEXT, "description": "It is shown here, and nowhere else."}, "hg_4f9a2c81d07b_...")
_NEW_KEY = record({**_KEY_MEMBERS, "key": _SECRET})
_NEW_CONSUMER_KEY = record(
    {
        "id": (TEXT, "acme"),
        "tenant": (TEXT, ""),
        "expires_at": (some(MOMENT), None),
        "key_id": (TEXT, "4f9a2c81d07b"),
        "key": (_SECRET[0], "hgc_4f9a2c81d07b_..."),
    }
)
_NAMED: dict[str, Described] = {
    "limit_state": record(
        {
            "quota": (TEXT, "100/minute"),
            "allowed": (YES_OR_NO, True),
            "limit": (WHOLE, 100),
            "remaining": (WHOLE, 99),
            "retry_after": (some(NUMBER), 0.0),
            "reset_after": (NUMBER, 0.6),
            "state": (STATE, "normal"),
        },
        space=TEXT,
        principal=TEXT,
    ),
    "what_if": record(
        {
            "rule_id": (TEXT, "orders-user"),
            "limit": (WHOLE, 60),
            "in_force": (WHOLE, 100),
            "window_seconds": (NUMBER, 60),
            "since": (MOMENT, _NEW_YEAR),
            "until": (MOMENT, "2026-01-08T00:00:00Z"),
            "units": (WHOLE, 400_000),
            "principals": (WHOLE, 21_000),
            "refused": (WHOLE, 12_400),
            "refused_at_least": (WHOLE, 12_400),
            "refused_at_most": (WHOLE, 12_400),
            "touched": (WHOLE, 310),
            "standard_error": (WHOLE, 0),
            "sampled": ({**NUMBER, "exclusiveMinimum": 0, "maximum": 1}, 1.0),
            "exact": (YES_OR_NO, True),
            "assumes": (TEXT, "clients ask as they did"),
            "others": items(record({"in_force": (WHOLE, 1000), "units": (WHOLE, 52_000)})),
            "hot_keys": items(record({"key": (TEXT, "#5f2b9e2a4c1d7f30"), "per_second": (NUMBER, 31.5)})),
        },
        not_counted=list_of(TEXT),
    ),
    "api_key": record(_KEY_MEMBERS),
    "consumer": record(
        {
            "id": (TEXT, "acme"),
            "tenant": (TEXT, ""),
            "tier": (TEXT, "premium"),
            "state": ({"enum": ["active", "ended"]}, "active"),
            "keys": items(
                record(
                    {name: _KEY_MEMBERS[name] for name in _KEY_MEMBERS if name not in {"name", "role", "last_used_at"}}
                )
            ),
        }
    ),
    "audit_entry": record(
        {
            "sequence": (WHOLE, 7),
            "at": (MOMENT, _NEW_YEAR),
            "actor": (TEXT, "deploy-bot (4f9a2c81d07b)"),
            "action": (TEXT, "update"),
            "kind": (TEXT, "rule"),
            "subject": (TEXT, "orders-user"),
            "before": ({}, {"limit": 50}),
            "after": ({}, {"limit": 100}),
            "request_id": (TEXT, "c0ffee"),
            "reason": (TEXT, "summer sale"),
            "revision": (WHOLE, 7),
            "previous": (TEXT, "9f2c..."),
            "digest": (TEXT, "51ab..."),
        }
    ),
}
COMPONENTS: Json = {
    "stored_rule": form({"id": TEXT}, version=WHOLE, created_at=MOMENT, updated_at=MOMENT),
    "overrides": {"type": "object", "additionalProperties": ref("change")},
    **{name: schema for name, (schema, _) in _NAMED.items()},
}
"""Schemas with names of their own."""
_DIFFERENCE = form(
    {
        "kind": {"enum": ["rule", "tier", "user", "setting", "order"]},
        "id": TEXT,
        "action": {"enum": ["create", "update", "delete"]},
        "before": {},
        "after": {},
    },
    last_day={"type": "object", "additionalProperties": WHOLE},
    not_counted=list_of(TEXT),
    what_if=list_of(ref("what_if")),
)
_REVISION: dict[str, Described] = {
    "revision": (WHOLE, 7),
    "at": (MOMENT, _NEW_YEAR),
    "actor": (TEXT, "deploy-bot (4f9a2c81d07b)"),
    "request_id": (TEXT, "c0ffee"),
    "reason": (TEXT, "summer sale"),
    "changes": ({**WHOLE, "minimum": 1}, 1),
    "summary": (TEXT, "update rule orders-user"),
}
_UPDATE: Json = {"kind": "rule", "id": "orders-user", "action": "update", "before": {"limit": 50}}
_UPDATE |= {"after": {"limit": 100}}
_EXPLAINED_RULE = form(
    {
        "id": TEXT,
        "applies": YES_OR_NO,
        "reason": TEXT,
        "enforced": YES_OR_NO,
        "source": TEXT,
        "limits": list_of(ref("limit_state")),
    }
)
_USER = form({"id": TEXT}, tier=TEXT, overrides=ref("overrides"), warnings=list_of(TEXT))
_OF_TIER: Json = {"id": "42", "tier": "premium"}
_NODE_MEMBERS: dict[str, Described] = {
    "id": (TEXT, "a1"),
    "host": (TEXT, "node-1"),
    "started_at": (MOMENT, _NEW_YEAR),
    "seen_at": (MOMENT, _NEW_YEAR),
}
_NODE, _NODE_EXAMPLE = record(_NODE_MEMBERS)
_RATE: Described = (NUMBER, 12.5)
_RATES: dict[str, Described] = {
    **dict.fromkeys(("allowed", "refused", "degraded", "shadow_refused"), _RATE),
    "refused_share": ({**NUMBER, "minimum": 0, "maximum": 1}, 0.5),
}


def _objects(kind: str, name: str, schema: Json, value: Any) -> dict[str, Described]:
    """Return what the routes of tiers, or of settings, answer."""
    members = {"id": (TEXT, name), "value": (schema, value)}
    one = record({**members, "version": (WHOLE, 1)})
    return {f"list_{kind}s": _page(*record(members)), **{f"{verb}_{kind}": one for verb in ("get", "put", "patch")}}


_OF_RULE = {"rule_id": (TEXT, "orders-user"), **_RATES, "shadow_allowed": (NUMBER, 0.0)}
_OF_KEY = items(record({"rule_id": (TEXT, "orders-user"), "key": (TEXT, "#5f2b9e2a4c1d7f30"), "per_second": _RATE}))
_POINT = dict.fromkeys(("allowed", "refused", "degraded", "shadow_refused"), _RATE)
_LIVE = record(
    {
        "at": (MOMENT, _NEW_YEAR),
        "scope": ({"enum": ["fleet", "node"]}, "fleet"),
        "reason": (TEXT, ""),
        "rates": record({**_RATES, "errors": (NUMBER, 0.0), "shed": (NUMBER, 0.0)}),
        "history": record({"step_seconds": (WHOLE, 5), "points": items(record({"at": (MOMENT, _NEW_YEAR), **_POINT}))}),
        "hour": record(
            {
                "step_seconds": (WHOLE, 60),
                "points": items(
                    record(
                        {"at": (MOMENT, _NEW_YEAR), **dict.fromkeys(("allowed", "denied", "degraded"), (WHOLE, 750))}
                    )
                ),
            }
        ),
        **{f"{which}_rules": items(record(_OF_RULE)) for which in ("busiest", "refusing", "shadow")},
        "hot_keys": _OF_KEY,
        "refused_keys": _OF_KEY,
        "shadow_refused_keys": _OF_KEY,
        "attention": items(
            record(
                {
                    "severity": ({"enum": ["critical", "warning", "info"]}, "critical"),
                    "kind": (TEXT, "store"),
                    "what": (TEXT, "The store redis://redis-1:6379 is down for 1 of 2 nodes"),
                    "why": (TEXT, "120 decisions per second are made without it."),
                    "do": (TEXT, "Check that it runs and that nodes can reach it."),
                    "link": (TEXT, "/nodes"),
                }
            )
        ),
        "revision": (WHOLE, 7),
        "nodes": record(
            {
                "total": (WHOLE, 1),
                "reporting": (WHOLE, 1),
                "items": items(
                    record(
                        {
                            **_NODE_MEMBERS,
                            "process": (WHOLE, 4711),
                            "is_this": (YES_OR_NO, True),
                            "state": ({"enum": ["ok", "behind", "gone"]}, "ok"),
                            "revision": (WHOLE, 7),
                            "error": (TEXT, ""),
                            "version": (TEXT, "0.1.0"),
                            "workers": (WHOLE, 4),
                            "enforcing": (YES_OR_NO, True),
                            "store": record(
                                {
                                    "name": (TEXT, "redis://redis-1:6379"),
                                    "state": ({"enum": ["up", "recovering", "down", "unknown"]}, "up"),
                                    "circuits": ({"type": "object"}, {}),
                                    "since": (some(MOMENT), None),
                                }
                            ),
                            "rates": (some({"type": "object"}), None),
                        }
                    )
                ),
            }
        ),
    }
)
ANSWERS: dict[str, Described] = {
    "list_rules": _page(ref("stored_rule"), _RULE_BODY),
    "create_rule": _RULE,
    "get_rule": _RULE,
    "put_rule": _RULE,
    "patch_rule": _RULE,
    "patch_user": (_USER, _OF_TIER),
    "rule_versions": record(
        {
            "items": items(
                record(
                    {
                        "version": (WHOLE, 1),
                        "body": (some(ref("rule")), {"id": "orders-user", "limit": 100, "window": "1m"}),
                        "revision": (WHOLE, 1),
                        "at": (some(MOMENT), _NEW_YEAR),
                        "actor": (TEXT, "deploy-bot (4f9a2c81d07b)"),
                    }
                )
            )
        }
    ),
    "roll_back_rule": record({"revision": (WHOLE, 8), "changed": (YES_OR_NO, True)}),
    "export": ({"description": "A rules file."}, "version: 1\nrules:\n- {id: orders-user, limit: 100, window: 1m}\n"),
    "apply_file": record(
        {
            "revision": (WHOLE, 7),
            "dry_run": (YES_OR_NO, True),
            "total": (WHOLE, 1),
            "counts": ({"type": "object"}, {"update": {"rule": 1}}),
            "changes": (list_of(_DIFFERENCE), [_UPDATE]),
        }
    ),
    **_objects("tier", "premium", ref("tier"), {"orders-user": {"limit": 1000}}),
    **_objects("setting", "default_tier", {}, "premium"),
    "list_users": _page(_USER, _OF_TIER),
    "user_limits": record(
        {
            "user_id": (TEXT, "42"),
            "in_force": (YES_OR_NO, True),
            "tier": (TEXT, "premium"),
            "overrides": (ref("overrides"), {}),
            "rules": items(
                record(
                    {
                        "rule_id": (TEXT, "orders-user"),
                        "endpoint": (TEXT, "/api/v1/orders/**"),
                        "methods": items((TEXT, "POST")),
                        "shadow": (YES_OR_NO, False),
                        "source": (TEXT, "the rule"),
                        "limits": items(_named("limit_state")),
                    }
                )
            ),
        }
    ),
    "set_tier": (_USER, _OF_TIER),
    "set_override": (_USER, {"id": "42", "overrides": {"orders-user": {"limit": 5000}}}),
    "end_override": (_USER, _OF_TIER),
    "reset_user": record(
        {"user_id": (TEXT, "42"), "reset": items((TEXT, "orders-user")), "skipped": (list_of(TEXT), [])}
    ),
    "explain": record(
        {
            "allowed": (YES_OR_NO, True),
            "verdict": (TEXT, "allowed"),
            "rule_id": (some(TEXT), "orders-user"),
            "reason": (TEXT, ""),
            "degraded": (TEXT, ""),
            "unmatched_principals": (list_of(TEXT), []),
            "facts": ({"type": "object"}, {"user": "42"}),
            "tier": (TEXT, "premium"),
            "rules": (list_of(_EXPLAINED_RULE), []),
        }
    ),
    "list_nodes": record(
        {"revision": (WHOLE, 7), "items": items((_NODE, _NODE_EXAMPLE | {"revision": 7, "error": ""}))}
    ),
    "hot_keys": ({"properties": HOT_KEYS[0]["properties"]}, HOT_KEYS[1]),
    "live": _LIVE,
    "list_usage": _page({"type": "object"}),
    "list_refusals": _page({"type": "object"}),
    "what_if": _named("what_if"),
    "list_keys": record({"items": items(_named("api_key"))}),
    "create_key": _NEW_KEY,
    "rotate_key": _NEW_KEY,
    "list_consumers": _page(*_named("consumer")),
    "create_consumer": _NEW_CONSUMER_KEY,
    "get_consumer": _named("consumer"),
    "rotate_consumer": _NEW_CONSUMER_KEY,
    "list_revisions": _page(*record(_REVISION)),
    "get_revision": record(
        {
            **_REVISION,
            "items": (list_of(_DIFFERENCE), [_UPDATE]),
            "total": (WHOLE, 1),
            "next": (some(WHOLE), None),
        }
    ),
    "undo_revision": record(
        {
            "revision": (WHOLE, 8),
            "dry_run": (YES_OR_NO, False),
            "undone": (WHOLE, 7),
            "total": (WHOLE, 1),
            "counts": ({"type": "object"}, {"update": {"rule": 1}}),
            "changes": (list_of(_DIFFERENCE), [_UPDATE]),
        }
    ),
    "list_audit": _page(*_named("audit_entry")),
    "verify_audit": record(
        {
            "intact": (YES_OR_NO, True),
            "entries": (WHOLE, 7),
            "last": (TEXT, "51ab..."),
            "fault": (TEXT, ""),
            "removed": (WHOLE, 0),
        }
    ),
}

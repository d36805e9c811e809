"""What OpenAPI documents are made of: the schemas of values, each with an example of one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from types import NoneType
from typing import Any, TypeAlias

from headgate.web.problem import CONTENT_TYPE

Json = dict[str, Any]
Described: TypeAlias = tuple[Json, Any]
"""The schema of something, and an example of it."""

TEXT: Json = {"type": "string"}
WHOLE: Json = {"type": "integer"}
NUMBER: Json = {"type": "number"}
YES_OR_NO: Json = {"type": "boolean"}
MOMENT: Json = {"type": "string", "format": "date-time"}
STATE: Json = {"enum": ["normal", "warning", "throttled"]}
_TYPES: dict[type, Json] = {str: TEXT, int: WHOLE, float: NUMBER, bool: YES_OR_NO, NoneType: {"type": "null"}}
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]+Z")
_MEANINGS = {
    "action": "What was done.",
    "actor": "The key that made the change: its name and id.",
    "allowed": "Whether the request may pass.",
    "applies": "Whether the rule applies to the request.",
    "at": "When it was done.",
    "changes": "What changes, one by one.",
    "charge": "Names what was taken, for a refund. It is there if the request has `refundable`.",
    "created_at": "When it was created.",
    "created_by": "The key that created it.",
    "current_count": "What is taken of the limit now.",
    "degraded": "Whether the store did not decide this; `reason` says why.",
    "delay": "Seconds to wait before acting on an admission to a queue.",
    "denied": "The keys that are refused most.",
    "detail": "What is wrong, and what would be right.",
    "digest": "SHA-256 of this entry and the one before.",
    "dry_run": "Whether nothing was changed.",
    "enforcing": "Whether rules refuse; otherwise each is a shadow.",
    "errors": "Every field that is wrong.",
    "exact": "Whether the numbers are exact; otherwise they are estimates.",
    "expires_at": "When it stops being accepted; null for never.",
    "half_life_seconds": "After so many seconds a past request counts half.",
    "hot": "The keys that are asked for most.",
    "in_force": "What counts now.",
    "key_id": "The public part of the key.",
    "last_used_at": "When the key was used last; null for never.",
    "limit": "Units in one window, or the capacity of a bucket.",
    "limits": "Each limit that was looked at.",
    "matched": "Whether any rule matched. If none did, the request passes.",
    "next": "The `offset` of the next page; null on the last one.",
    "not_counted": "Why there are no figures for a rule.",
    "overrides": "Changes of rules for this user alone, by the id of the rule.",
    "per_second": "Requests per second.",
    "pointer": "Where the field is in the request, a JSON pointer.",
    "principals": "How many principals were counted.",
    "quota": "The limit in words.",
    "reason": "Why.",
    "remaining": "Units that are left.",
    "request_id": "The `X-Request-Id` of the request.",
    "reset_after": "Seconds until nothing counts as used.",
    "reset_at": "Unix time in seconds: when nothing counts as used any more.",
    "results": "A decision or an error for each request, in their order.",
    "retry_after": "Seconds until the same request would pass; 0 when allowed, null if waiting does not help.",
    "revision": "The revision of the rules; each change makes a new one.",
    "revoked_at": "When it was revoked; null if it is not.",
    "role": "What the key may do; each role includes those before it.",
    "rule_id": "The id of the rule.",
    "shadow": "What shadow rules would have decided; they refuse nothing.",
    "source": "What set the limit: the rule, a tier or an override.",
    "state": "`warning` from 80 % used until it is below 70 %, `throttled` on refusal.",
    "status": "The HTTP status of this answer, or the state of the service.",
    "tenant": "The tenant of the consumer; empty if it has none.",
    "tier": "The tier of the user or consumer.",
    "title": "The name of the status.",
    "total": "How many there are on all pages.",
    "unmatched_principals": "Names of principals that no rule and no list knows. Perhaps one is misspelt.",
    "updated_at": "When it was changed last.",
    "version": "It grows with every change.",
    "warnings": "What is odd about the change, which was made.",
    "would_refuse": "The keys that shadow rules would refuse most.",
    "workers": "How many processes were counted.",
}
"""Members that mean the same wherever they are."""


def ref(name: str) -> Json:
    """Return the schema that stands under a name."""
    return {"$ref": f"#/components/schemas/{name}"}


def list_of(items: Json) -> Json:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def some(schema: Json) -> Json:
    """Return the schema of something that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def form(required: Mapping[str, Json], **optional: Json) -> Json:
    """Return the schema of an object with these members; others may be added in a later release."""
    members = {
        name: {"description": _MEANINGS[name], **schema} if name in _MEANINGS else schema
        for name, schema in {**required, **optional}.items()
    }
    return {"type": "object", "required": list(required), "properties": members}


def record(members: Mapping[str, Described], **optional: Json) -> Described:
    """Return such an object, and an example of it without the optional members."""
    schemas = {name: schema for name, (schema, _) in members.items()}
    return form(schemas, **optional), {name: example for name, (_, example) in members.items()}


def items(of: Described) -> Described:
    """Return a list with one item."""
    schema, example = of
    return list_of(schema), [example]


def described(name: str, examples: Json, known: Json, optional: Mapping[str, Json]) -> Described:
    """Return the schema that follows from an example, and the example.

    Args:
        name: of the example; with dots, of a part of it.
        examples: all, by name. Text such as ``=NAME`` in one stands for another, whose schema has that name.
        known: schemas that one example does not show, by the ends of such names.
        optional: by name: members that are not always there.
    """

    def of(value: Any, at: str) -> Described:
        if isinstance(value, str) and value.startswith("="):
            return ref(value[1:]), of(examples[value[1:]], value[1:])[1]
        if isinstance(value, dict):
            found = {key: of(each, f"{at}.{key}") for key, each in value.items()}
            schemas, others = {key: schema for key, (schema, _) in found.items()}, optional.get(at, {})
            required = {key: schema for key, schema in schemas.items() if key not in others}
            schema, value = form(required, **others), {key: example for key, (_, example) in found.items()}
        elif isinstance(value, list):
            some = [of(each, at) for each in value]
            schema, value = list_of(some[0][0] if some else {}), [example for _, example in some]
        else:
            schema = MOMENT if isinstance(value, str) and _MOMENT.fullmatch(value) else _TYPES[type(value)]
        parts = at.split(".")
        ends = [".".join(parts[start:]) for start in range(len(parts))]
        return next((known[end] for end in ends if end in known), schema), value

    return of(examples[name], name)


def header(name: str, description: str, schema: Json = TEXT) -> Json:
    """Return a parameter that is a header."""
    return {"name": name, "in": "header", "description": description, "schema": schema}


PROBLEM = form(
    {"status": WHOLE, "title": TEXT},
    type=TEXT,
    detail=TEXT,
    errors=list_of(form({}, pointer=TEXT, detail=TEXT)),
    conflicts=list_of({"type": "object", "properties": {"kind": TEXT, "id": TEXT, "revision": WHOLE}}),
) | {"description": "A problem document (RFC 9457)."}


def problem_responses(problems: Mapping[int, tuple[str, str]]) -> Json:
    """Return components that are problem documents, by status: a description, and the detail of an example."""
    return {
        str(status): {
            "description": description,
            "content": {
                CONTENT_TYPE: {
                    "schema": ref("problem"),
                    "example": {"status": status, "title": HTTPStatus(status).phrase, "detail": detail},
                }
            },
        }
        for status, (description, detail) in problems.items()
    }


def problems(statuses: Iterable[int]) -> Json:
    """Return the responses that are these components."""
    return {str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)}


def tags(descriptions: Mapping[str, str]) -> list[Json]:
    """Return the groups of operations, in this order."""
    return [{"name": name, "description": description} for name, description in descriptions.items()]

"""Parts of OpenAPI documents: schemas, each with an example, and responses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from types import NoneType
from typing import Any, TypeAlias

from headgate.web.problem import CONTENT_TYPE

Json = dict[str, Any]
Described: TypeAlias = tuple[Json, Any]
"""A schema, and an example of it."""

TEXT: Json = {"type": "string"}
WHOLE: Json = {"type": "integer"}
NUMBER: Json = {"type": "number"}
YES_OR_NO: Json = {"type": "boolean"}
MOMENT: Json = {"type": "string", "format": "date-time"}
_TYPES: dict[type, Json] = {str: TEXT, int: WHOLE, float: NUMBER, bool: YES_OR_NO, NoneType: {"type": "null"}}
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]+Z")
STATE: Json = {"enum": ["normal", "warning", "throttled"]}
_MEANINGS = {
    "actor": "The key that made the change: its name and id.",
    "allowed": "Whether the request may pass.",
    "applies": "Whether the rule applies to the request.",
    "at": "The time of the change.",
    "changes": "The changed objects.",
    "charge": "The token of this charge, for a refund. Only if the request has `refundable`.",
    "current_count": "Units of the limit that are in use.",
    "degraded": "Whether the decision was made without the store; `reason` has the cause.",
    "delay": "Seconds to wait before acting on an admission to a queue.",
    "denied": "The most refused keys.",
    "detail": "The error, and the accepted values.",
    "digest": "SHA-256 of this entry and the one before.",
    "dry_run": "Whether nothing was changed.",
    "enforcing": "Whether rules refuse requests; otherwise all are shadows.",
    "errors": "All invalid fields.",
    "exact": "Whether the numbers are exact; otherwise they are estimates.",
    "expires_at": "When it stops being accepted; null for never.",
    "half_life_seconds": "The time in seconds after which a request counts half.",
    "hot": "The busiest keys.",
    "in_force": "The limit in force.",
    "key_id": "The public part of the key.",
    "last_used_at": "When the key was used last; null for never.",
    "limit": "Units in one window, or the capacity of a bucket.",
    "limits": "All limits of the request.",
    "matched": "Whether any rule matched. If none did, the request passes.",
    "next": "The `offset` of the next page; null on the last one.",
    "not_counted": "Quotas whose usage is not counted.",
    "overrides": "Changes of rules for this user alone, by the id of the rule.",
    "per_second": "Requests per second.",
    "pointer": "Where the field is in the request, a JSON pointer.",
    "principals": "The number of counted principals.",
    "quota": "The limit in words.",
    "reason": "Why.",
    "remaining": "Units that are left.",
    "request_id": "The `X-Request-Id` of the request.",
    "reset_after": "Seconds until the usage is zero.",
    "reset_at": "Unix time in seconds at which the usage is zero.",
    "retry_after": "Seconds until the same request passes; 0 if it is allowed, null if waiting does not help.",
    "revision": "The revision of the rules; each change makes a new one.",
    "revoked_at": "When it was revoked; null if it is not.",
    "role": "What the key may do; each role includes those before it.",
    "rule_id": "The id of the rule.",
    "shadow": "The decisions of shadow rules, which refuse nothing.",
    "source": "Where the limit comes from: the rule, a tier or an override.",
    "state": "`warning` from 80 % usage until it falls below 70 %; `throttled` after a refusal.",
    "status": "The HTTP status of this response, or the state of the service.",
    "tenant": "The tenant of the consumer; empty if it has none.",
    "tier": "The tier of the user or consumer.",
    "total": "The number of items on all pages.",
    "unmatched_principals": "Principals that no rule and no list uses. Perhaps one is misspelt.",
    "version": "Increases with every change.",
    "warnings": "Warnings about the change, which was made.",
    "would_refuse": "The keys that shadow rules would refuse most often.",
    "workers": "The number of worker processes.",
}
"""Members with the same meaning everywhere."""


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def list_of(items: Json) -> Json:
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


def described(examples: Json, known: Json, optional: Mapping[str, Json] | None = None) -> dict[str, Described]:
    """Return the schemas that follow from examples, by name, and the examples.

    A text such as ``=limit`` stands for the example of that name, whose schema is a component of the document. `known`
    has what one example does not show, by the ends of paths; `optional` the members that are not always there.
    """

    def of(value: Any, at: str) -> Described:
        if isinstance(value, str) and value.startswith("="):
            return ref(value[1:]), of(examples[value[1:]], value[1:])[1]
        if isinstance(value, dict):
            found = {key: of(each, f"{at}.{key}") for key, each in value.items()}
            others = (optional or {}).get(at, {})
            required = {key: schema for key, (schema, _) in found.items() if key not in others}
            schema, value = form(required, **others), {key: example for key, (_, example) in found.items()}
        elif isinstance(value, list):
            some = [of(each, at) for each in value]
            schema, value = list_of(some[0][0] if some else {}), [example for _, example in some]
        else:
            schema = MOMENT if isinstance(value, str) and _MOMENT.fullmatch(value) else _TYPES[type(value)]
        parts = at.split(".")
        ends = [".".join(parts[start:]) for start in range(len(parts))]
        return next((known[end] for end in ends if end in known), schema), value

    return {name: of(example, name) for name, example in examples.items()}


def header(name: str, description: str, schema: Json = TEXT) -> Json:
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

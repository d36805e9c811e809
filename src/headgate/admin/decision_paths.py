"""The decision plane's HTTP API for the OpenAPI document; docs/api.md says the same for people."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.admin.schemas import (
    NUMBER,
    STATE,
    TEXT,
    WHOLE,
    YES_OR_NO,
    Described,
    Json,
    form,
    header,
    items,
    list_of,
    problems,
    record,
    ref,
    some,
)

TAG = "decisions"
SERVERS = [{"url": "http://127.0.0.1:8080", "description": "The decision plane; it has a port of its own."}]

_QUESTION = {"principal": {"user": "u1", "ip": "203.0.113.9"}, "endpoint": "/api/v1/orders", "method": "POST"}
_LIMIT_MEMBERS: dict[str, Described] = {
    "allowed": (YES_OR_NO, True),
    "limit": (WHOLE, 100),
    "remaining": (WHOLE, 99),
    "reset_at": (WHOLE, 1750000020),
    "retry_after": (some(WHOLE), 0),
    "rule_id": (TEXT, "orders-user"),
    "state": (STATE, "normal"),
}
_LIMIT, _LIMIT_EXAMPLE = record(_LIMIT_MEMBERS)
_DECISION, _DECISION_EXAMPLE = record(
    {
        **_LIMIT_MEMBERS,
        "limit": (some(WHOLE), 100),
        "remaining": (some(WHOLE), 99),
        "reset_at": (some(WHOLE), 1750000020),
        "rule_id": (some(TEXT), "orders-user"),
        "current_count": (some(WHOLE), 1),
        "degraded": (YES_OR_NO, False),
        "matched": (YES_OR_NO, True),
        "reason": (TEXT, ""),
        "delay": (NUMBER, 0.0),
        "limits": (list_of(_LIMIT), [_LIMIT_EXAMPLE]),
        "shadow": (list_of(_LIMIT), []),
        "unmatched_principals": (list_of(TEXT), []),
    },
    charge=TEXT,
    refusal=form({"status": WHOLE, "message": TEXT}),
    exact=form({"allowed": YES_OR_NO, "verdict": TEXT, "version": WHOLE}),
)
_TEXTS = {"type": "object", "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 512}}
_CANONICAL: Json = {
    "principal": {**_TEXTS, "description": "Who asks, by dimension: only what you have verified."},
    "endpoint": {**TEXT, "default": "/", "description": "The path as it was sent."},
    "method": TEXT,
    "cost": {**WHOLE, "minimum": 0, "maximum": 100_000, "default": 1},
    "attributes": _TEXTS,
}
_SHARED: Json = {
    "consume": {**YES_OR_NO, "default": True, "description": "false takes nothing."},
    "idempotency_key": {"type": ["string", "null"], "minLength": 1, "maxLength": 512},
    "timestamp": {"type": ["number", "null"], "description": "Unix time of the client."},
    "tier": TEXT,
    "rule_id": TEXT,
    "refundable": YES_OR_NO,
    "exact": {**YES_OR_NO, "description": "true adds the ruling to the answer, to the microsecond."},
    "address": {**TEXT, "description": "The client's whole address, where `ip` is the network that it is counted by."},
}
_BY_RULE: Json = {
    "key_type": TEXT,
    "key_value": {"type": "string", "minLength": 1, "maxLength": 512},
    "request_count": {**WHOLE, "minimum": 0, "maximum": 100_000, "default": 1},
    "endpoint": TEXT,
}
_BY_NAME: Json = {
    "identifier": {"type": "string", "minLength": 1, "maxLength": 512},
    "dimension": TEXT,
    **{name: schema for name, schema in _CANONICAL.items() if name != "principal"},
}


def _form(members: Json, *required: str) -> Json:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**members, **_SHARED},
        "additionalProperties": False,
    }


_FORMS = [
    _form(_CANONICAL, "principal"),
    _form(_BY_RULE, "key_type", "key_value", "rule_id"),
    _form(_BY_NAME, "identifier", "dimension"),
    _form(_BY_NAME, "identifier", "rule_id"),
]
COMPONENTS: Json = {
    "question": {"anyOf": _FORMS},
    "decision": _DECISION,
    "batch": {
        "type": "object",
        "required": ["requests"],
        "properties": {"requests": {"type": "array", "minItems": 1, "maxItems": 1000, "items": ref("question")}},
        "additionalProperties": False,
    },
    "refund": {
        "anyOf": [
            {**form, "required": [*form["required"], "charge"], "properties": {**form["properties"], "charge": TEXT}}
            for form in _FORMS
        ]
    },
}
_PROBLEMS = {
    400: "The request cannot be understood.",
    401: "The service wants a key of callers, and this is not one.",
    403: "The client is on the deny list, or the proxy that asks is not trusted.",
    405: "The path is asked with another method.",
    413: "The body is too large.",
    429: "Its quota is exceeded.",
    503: "The node protects itself, or the store is away and this needs it.",
}
_OPEN = (405, 413)
"""What every path may answer."""
_KEPT = (*_OPEN, 401, 503)
"""What paths may answer that callers may need a key for."""
_ASKED = (*_KEPT, 400)


def _operation(
    name: str,
    summary: str,
    answers: dict[int, Json],
    refusals: Sequence[int] = _ASKED,
    *,
    body: Json | None = None,
    **more: object,
) -> Json:
    """Return what one path has: one method, POST if that has a body."""
    found: Json = {
        "operationId": name,
        "summary": summary,
        "tags": [TAG],
        "security": [{}, {"key": []}],
        "responses": problems({status: _PROBLEMS[status] for status in refusals})
        | {str(status): answer for status, answer in answers.items()},
        **more,
    }
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": body}}
    return {"get" if body is None else "post": found, "servers": SERVERS}


def _json(description: str, answer: Described) -> Json:
    schema, example = answer
    return {"description": description, "content": {"application/json": {"schema": schema, "example": example}}}


def _status(description: str, status: str) -> Json:
    return _json(description, record({"status": (TEXT, status)}, reason=TEXT, enforcement=TEXT))


def _limited(description: str, code: str) -> Json:
    return _json(description, record({"overallCode": (TEXT, code)}, statuses=list_of({"type": "object"})))


def _ready(name: str) -> Json:
    answers = {200: _status("It should.", "ready"), 503: _status("It drains.", "draining")}
    return _operation(name, "That it should be asked", answers, _OPEN)


_DECIDED = _json("What was decided; 200 for a refusal too.", (ref("decision"), _DECISION_EXAMPLE))
_RESULT: Described = ({"anyOf": [ref("decision"), form({"error": ref("problem")})]}, _DECISION_EXAMPLE)
_RESET = record(
    {
        "success": (YES_OR_NO, True),
        "rules": items((TEXT, "orders-user")),
        "shared": (list_of(TEXT), []),
        "reason": (TEXT, ""),
    }
)
_RULES = record(
    {
        "version": (WHOLE, 1),
        "enforcing": (YES_OR_NO, True),
        "rules": ({"type": "object"}, {"version": 1, "rules": []}),
    }
)
_HOT: Described = (list_of(form({"rule": TEXT, "key": TEXT, "per_second": NUMBER})), [])
_HOT_KEYS = record({"workers": (WHOLE, 1), "half_life_seconds": (WHOLE, 10), "hot": _HOT, "denied": _HOT})
_METRICS = {
    "text/plain": {"schema": TEXT, "example": "# EOF\n"},
    "application/openmetrics-text": {"schema": TEXT},
}
_DESCRIPTORS = {"domain": "edge", "descriptors": [{"entries": [{"key": "remote_address", "value": "192.0.2.7"}]}]}
_EXPLAINED = record({"descriptors": ({"type": "array", "items": {"type": "object"}}, [])})
_CHECK = "/api/v1/rate-limit"
PATHS: Json = {
    f"{_CHECK}/check": _operation(
        "check",
        "Whether a request may pass",
        {200: _DECIDED},
        body={"schema": ref("question"), "example": _QUESTION},
        parameters=[header("Idempotency-Key", "A request that is sent again with it is counted once.")],
    ),
    f"{_CHECK}/batch": _operation(
        "check_batch",
        "The same, many at once",
        {200: _json("An answer or a problem for each.", record({"results": items(_RESULT)}))},
        body={"schema": ref("batch"), "example": {"requests": [_QUESTION]}},
    ),
    f"{_CHECK}/refund": _operation(
        "refund",
        "Give back what a check took",
        {200: _DECIDED},
        body={
            "schema": ref("refund"),
            "example": {
                **_QUESTION,
                "charge": "AgAAAAAAAAAFoXKym_82vhthJFfRwbwFE1NEg94ABjedoFtgAAAGN52hjI0AO1E5JqWgSabZ7z1h",
            },
        },
    ),
    f"{_CHECK}/reset": _operation(
        "reset",
        "Forget what somebody used",
        {200: _json("What was reset.", _RESET)},
        body={"schema": ref("question"), "example": _QUESTION},
    ),
    f"{_CHECK}/rules": _operation(
        "rules_in_force",
        "The rules in force, for clients that decide by them",
        {
            200: _json("What a file of rules has, with an ETag.", _RULES),
            304: {"description": "They are those that the client has."},
        },
        _KEPT,
        parameters=[header("If-None-Match", "The ETag of those that the client has.")],
    ),
    "/api/v1/forward-auth": _operation(
        "forward_auth",
        "Whether a proxy may pass a request on",
        {200: {"description": "The request may pass."}},
        (400, 401, 403, 413, 429, 503),
        parameters=[
            header("X-Original-URI", "The path of the request; or X-Forwarded-Uri."),
            header("X-Original-Method", "The method of the request; or X-Forwarded-Method."),
            header("X-Forwarded-For", "The address of the client."),
        ],
    ),
    "/json": _operation(
        "envoy_json",
        "Envoy's rate limit service, as JSON",
        {200: _limited("Within all limits.", "OK"), 429: _limited("Over a limit.", "OVER_LIMIT")},
        body={"schema": {"type": "object"}, "example": _DESCRIPTORS},
    ),
    "/json/explain": _operation(
        "envoy_explain",
        "Which limits of Envoy's files apply to descriptors, and what is left of them; nothing is taken",
        {200: _json("One for each descriptor; none if there are no such files.", _EXPLAINED)},
        body={"schema": {"type": "object"}, "example": _DESCRIPTORS},
    ),
    "/rlconfig": _operation(
        "envoy_limits",
        "The limits of Envoy's files",
        {200: {"description": "One in a line.", "content": {"text/plain": {"schema": TEXT, "example": ""}}}},
        _KEPT,
    ),
    "/healthz": _operation("healthz", "That the process lives", {200: _status("It does.", "ok")}, _OPEN),
    "/readyz": _ready("readyz"),
    "/healthcheck": _ready("healthcheck"),
    "/hotkeys": _operation(
        "hotkeys", "The keys that are asked about and refused most", {200: _json("Of all workers.", _HOT_KEYS)}, _KEPT
    ),
    "/metrics": _operation(
        "metrics", "What it does, for Prometheus", {200: {"description": "Metrics.", "content": _METRICS}}, _OPEN
    ),
}

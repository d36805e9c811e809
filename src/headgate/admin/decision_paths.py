"""The decision plane's HTTP API for the OpenAPI document; docs/api.md says the same for people."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.admin.schemas import TEXT, WHOLE, YES_OR_NO, Json, list_of, record, ref, some

TAG = "decisions"
SERVERS = [{"url": "http://127.0.0.1:8080", "description": "The decision plane; it has a port of its own."}]

_QUESTION = {"principal": {"user": "u1", "ip": "203.0.113.9"}, "endpoint": "/api/v1/orders", "method": "POST"}
_STATE = {"enum": ["normal", "warning", "throttled"]}
_NUMBER_OR_NULL = some(WHOLE)
_LIMIT = {
    "rule_id": TEXT,
    "allowed": YES_OR_NO,
    "limit": WHOLE,
    "remaining": WHOLE,
    "reset_at": WHOLE,
    "retry_after": _NUMBER_OR_NULL,
    "state": _STATE,
}
_LIMIT_EXAMPLE = {
    "rule_id": "orders-user",
    "allowed": True,
    "limit": 100,
    "remaining": 99,
    "reset_at": 1750000020,
    "retry_after": 0,
    "state": "normal",
}
_DECISION_EXAMPLE = {
    "allowed": True,
    "limit": 100,
    "remaining": 99,
    "reset_at": 1750000020,
    "retry_after": 0,
    "current_count": 1,
    "rule_id": "orders-user",
    "state": "normal",
    "degraded": False,
    "matched": True,
    "reason": "",
    "delay": 0.0,
    "limits": [_LIMIT_EXAMPLE],
    "shadow": [],
    "unmatched_principals": [],
}
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
    "decision": record(
        {
            "allowed": YES_OR_NO,
            "limit": _NUMBER_OR_NULL,
            "remaining": _NUMBER_OR_NULL,
            "reset_at": _NUMBER_OR_NULL,
            "retry_after": _NUMBER_OR_NULL,
            "current_count": _NUMBER_OR_NULL,
            "rule_id": some(TEXT),
            "state": _STATE,
            "degraded": YES_OR_NO,
            "matched": YES_OR_NO,
            "reason": TEXT,
            "delay": {"type": "number"},
            "limits": list_of(record(_LIMIT)),
            "shadow": list_of(record(_LIMIT)),
            "unmatched_principals": list_of(TEXT),
        },
        charge=TEXT,
        exact=record({"allowed": YES_OR_NO, "verdict": TEXT, "version": WHOLE}),
    ),
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
    problem = {"application/problem+json": {"schema": ref("problem")}}
    problems = {str(status): {"description": _PROBLEMS[status], "content": problem} for status in refusals}
    found: Json = {
        "operationId": name,
        "summary": summary,
        "tags": [TAG],
        "security": [{}, {"key": []}],
        "responses": {**problems, **{str(status): answer for status, answer in answers.items()}},
        **more,
    }
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": body}}
    return found


def _json(description: str, schema: Json, example: object) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema, "example": example}}}


def _header(name: str, description: str) -> Json:
    return {"name": name, "in": "header", "description": description, "schema": TEXT}


def _ready(name: str) -> Json:
    ready = _json("It should.", _STATUS, {"status": "ready"})
    drains = _json("It drains.", _STATUS, {"status": "draining"})
    return _operation(name, "That it should be asked", {200: ready, 503: drains}, _OPEN)


_DECIDED = _json("What was decided; 200 for a refusal too.", ref("decision"), _DECISION_EXAMPLE)
_RESET = record({"success": YES_OR_NO, "rules": list_of(TEXT), "shared": list_of(TEXT), "reason": TEXT})
_STATUS = record({"status": TEXT}, reason=TEXT, enforcement=TEXT)
_EMPTY: Json = {"description": "The request may pass."}
_HOT = list_of(record({"rule": TEXT, "key": TEXT, "per_second": {"type": "number"}}))
_LIMITED = record({"overallCode": TEXT}, statuses=list_of({"type": "object"}))
_DESCRIPTORS = {"domain": "edge", "descriptors": [{"entries": [{"key": "remote_address", "value": "192.0.2.7"}]}]}
_FORWARD_AUTH = _operation(
    "forward_auth",
    "Whether a proxy may pass a request on",
    {200: _EMPTY},
    (400, 401, 403, 413, 429, 503),
    parameters=[
        _header("X-Original-URI", "The path of the request; or X-Forwarded-Uri."),
        _header("X-Original-Method", "The method of the request; or X-Forwarded-Method."),
        _header("X-Forwarded-For", "The address of the client."),
    ],
)
_CHECK = "/api/v1/rate-limit"
PATHS: Json = {
    f"{_CHECK}/check": {
        "post": _operation(
            "check",
            "Whether a request may pass",
            {200: _DECIDED},
            body={"schema": ref("question"), "example": _QUESTION},
            parameters=[_header("Idempotency-Key", "A request that is sent again with it is counted once.")],
        )
    },
    f"{_CHECK}/batch": {
        "post": _operation(
            "check_batch",
            "The same, many at once",
            {
                200: _json(
                    "An answer or a problem for each.",
                    record({"results": list_of({"anyOf": [ref("decision"), record({"error": ref("problem")})]})}),
                    {"results": [_DECISION_EXAMPLE]},
                )
            },
            body={"schema": ref("batch"), "example": {"requests": [_QUESTION]}},
        )
    },
    f"{_CHECK}/refund": {
        "post": _operation(
            "refund",
            "Give back what a check took",
            {200: _DECIDED},
            body={"schema": ref("refund"), "example": {**_QUESTION, "charge": "AQAAAAAAAAAF2UBhJgAGN52gW2AA"}},
        )
    },
    f"{_CHECK}/reset": {
        "post": _operation(
            "reset",
            "Forget what somebody used",
            {
                200: _json(
                    "What was reset.",
                    _RESET,
                    {"success": True, "rules": ["orders-user"], "shared": [], "reason": ""},
                )
            },
            body={"schema": ref("question"), "example": _QUESTION},
        )
    },
    f"{_CHECK}/rules": {
        "get": _operation(
            "rules_in_force",
            "The rules in force, for clients that decide by them",
            {
                200: _json(
                    "What a file of rules has, with an ETag.",
                    record({"version": WHOLE, "enforcing": YES_OR_NO, "rules": {"type": "object"}}),
                    {"version": 1, "enforcing": True, "rules": {"version": 1, "rules": []}},
                ),
                304: {"description": "They are those that the client has."},
            },
            _KEPT,
            parameters=[_header("If-None-Match", "The ETag of those that the client has.")],
        )
    },
    "/api/v1/forward-auth": {"get": _FORWARD_AUTH},
    "/json": {
        "post": _operation(
            "envoy_json",
            "Envoy's rate limit service, as JSON",
            {
                200: _json("Within all limits.", _LIMITED, {"overallCode": "OK"}),
                429: _json("Over a limit.", _LIMITED, {"overallCode": "OVER_LIMIT"}),
            },
            body={"schema": {"type": "object"}, "example": _DESCRIPTORS},
        )
    },
    "/rlconfig": {
        "get": _operation(
            "envoy_limits",
            "The limits of Envoy's files",
            {200: {"description": "One in a line.", "content": {"text/plain": {"schema": TEXT, "example": ""}}}},
            _KEPT,
        )
    },
    "/healthz": {
        "get": _operation(
            "healthz",
            "That the process lives",
            {200: _json("It does.", _STATUS, {"status": "ok"})},
            _OPEN,
        )
    },
    "/readyz": {"get": _ready("readyz")},
    "/healthcheck": {"get": _ready("healthcheck")},
    "/hotkeys": {
        "get": _operation(
            "hotkeys",
            "The keys that are asked about and refused most",
            {
                200: _json(
                    "Of all workers.",
                    record({"workers": WHOLE, "half_life_seconds": WHOLE, "hot": _HOT, "denied": _HOT}),
                    {"workers": 1, "half_life_seconds": 10, "hot": [], "denied": []},
                )
            },
            _KEPT,
        )
    },
    "/metrics": {
        "get": _operation(
            "metrics",
            "What it does, for Prometheus",
            {
                200: {
                    "description": "Metrics.",
                    "content": {
                        "text/plain": {"schema": TEXT, "example": "# EOF\n"},
                        "application/openmetrics-text": {"schema": TEXT},
                    },
                }
            },
            _OPEN,
        )
    },
}
for _item in PATHS.values():
    _item["servers"] = SERVERS

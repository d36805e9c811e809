"""The OpenAPI document of the decision plane's HTTP API; docs/api.md says the same for people."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version

import msgspec

from headgate.reference.schemas import (
    NUMBER,
    PROBLEM,
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
    problem_responses,
    problems,
    record,
    ref,
    some,
    tags,
)

_CHECKS, _PROXIES, _ENVOY, _WATCHING = "Checks", "Proxies", "Envoy", "Health and metrics"
_TAGS = {
    _CHECKS: "May this request pass? A check takes its cost from every limit that applies, or from none.",
    _PROXIES: "For nginx, Traefik, Caddy and others that ask before they pass a request on.",
    _ENVOY: "Envoy's rate limit service as JSON. Envoy itself uses gRPC.",
    _WATCHING: "For orchestrators, load balancers and Prometheus.",
}
_ABOUT = """\
May this request pass? Send what you know of it, its **principal** (user, address, API key), its path and its method,
and act on `allowed` in the answer.

- Where the service asks callers for a key (`--caller-keys`), choose **Authorize** first: the key stays in this page,
  and is gone when you close it. Health and metrics need none.
- Errors are problem documents (RFC 9457), with a pointer to every field that is wrong.

Rules, users and keys are changed by the admin API, which has a reference of its own: `/docs` on its port (8082 by
default).
"""
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
_VALUE = {"type": "string", "minLength": 1, "maxLength": 512}
_TEXTS = {"type": "object", "additionalProperties": _VALUE}
_COST = {**WHOLE, "minimum": 0, "maximum": 100_000, "default": 1, "description": "Units to take; 0 takes nothing."}
_CANONICAL: Json = {
    "principal": {
        **_TEXTS,
        "description": "Who sends the request, by dimension: `user`, `ip`, `apikey` or a name of your own. Only "
        "what you have verified; `{}` if nobody is known.",
    },
    "endpoint": {**TEXT, "default": "/", "description": "The path as it was sent, not decoded."},
    "method": {**TEXT, "description": "The HTTP method. Rules that name methods do not match without one."},
    "cost": _COST,
    "attributes": {**_TEXTS, "description": "What else rules match with `when`, or count by."},
}
_SHARED: Json = {
    "consume": {**YES_OR_NO, "default": True, "description": "false takes nothing."},
    "idempotency_key": {
        "type": ["string", "null"],
        "minLength": 1,
        "maxLength": 512,
        "description": "A request that is sent again with the same key within 5 minutes is counted once.",
    },
    "timestamp": {
        "type": ["number", "null"],
        "description": "Unix time of the client, in seconds or milliseconds. More than 60 s from the clock of the "
        "service is an error. It is never counted by.",
    },
    "tier": {**TEXT, "description": "The tier of the principal, if you vouch for it."},
    "rule_id": {**TEXT, "description": "Ask only this rule."},
    "refundable": {**YES_OR_NO, "description": "true adds the `charge`, for a refund."},
    "exact": {**YES_OR_NO, "description": "true adds the ruling to the answer, to the microsecond."},
    "address": {**TEXT, "description": "The client's whole address, where `ip` is the network that it is counted by."},
}
_BY_RULE: Json = {
    "key_type": {**TEXT, "description": "The dimension of the rule: `user`, `ip`, `api_key` ..."},
    "key_value": {**_VALUE, "description": "The principal."},
    "request_count": _COST,
    "endpoint": _CANONICAL["endpoint"],
}
_BY_NAME: Json = {
    "identifier": {**_VALUE, "description": "The principal."},
    "dimension": {**TEXT, "description": "`USER`, `IP`, `API_KEY` or another dimension."},
    **{name: schema for name, schema in _CANONICAL.items() if name != "principal"},
}


def _form(title: str, members: Json, *required: str) -> Json:
    return {
        "title": title,
        "type": "object",
        "required": list(required),
        "properties": {**members, **_SHARED},
        "additionalProperties": False,
    }


_FORMS = [
    _form("By principals", _CANONICAL, "principal"),
    _form("By rule", _BY_RULE, "key_type", "key_value", "rule_id"),
    _form("By name", _BY_NAME, "identifier", "dimension"),
    _form("By name, of one rule", _BY_NAME, "identifier", "rule_id"),
]
_CHARGE = {**TEXT, "description": "The `charge` of the check."}
COMPONENTS: Json = {
    "question": {"description": "A request, in one of these forms.", "anyOf": _FORMS},
    "decision": _DECISION | {"description": "Whether the request may pass, and how much is left."},
    "problem": PROBLEM,
    "batch": {
        "type": "object",
        "required": ["requests"],
        "properties": {"requests": {"type": "array", "minItems": 1, "maxItems": 1000, "items": ref("question")}},
        "additionalProperties": False,
    },
    "refund": {
        "anyOf": [
            {**form, "required": [*form["required"], "charge"], "properties": {**form["properties"], "charge": _CHARGE}}
            for form in _FORMS
        ]
    },
}
_PROBLEMS = {
    400: ("The request cannot be understood.", "the body has an unknown member 'endpont'"),
    401: (
        "The service asks callers for a key, and this is none of them.",
        "the caller is unknown: send Authorization: Bearer KEY, or X-Api-Key: KEY",
    ),
    403: ("The client is on the deny list, or the proxy is not trusted.", "This client is not admitted."),
    405: ("The path has another method.", "/api/v1/rate-limit/check accepts POST, not GET"),
    413: ("The body is too large.", "the body has more than 131072 bytes"),
    429: ("The quota is exceeded.", "orders-user allows 100/minute. Retry in 12 s."),
    503: (
        "The node protects itself, or the store is unavailable and this needs it.",
        "this node has too many requests in flight: try again, or use another node",
    ),
}
_OPEN = (405, 413)
"""What every path may answer."""
_KEPT = (*_OPEN, 401, 503)
"""What paths may answer that callers may need a key for."""
_ASKED = (*_KEPT, 400)


def _operation(
    tag: str,
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
        "tags": [tag],
        "security": [{}, {"key": []}, {"header": []}] if 401 in refusals else [],
        "responses": {str(status): answer for status, answer in answers.items()}
        | problems(set(refusals) - answers.keys()),
        **more,
    }
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": body}}
    return {"get" if body is None else "post": found}


def _json(description: str, answer: Described) -> Json:
    schema, example = answer
    return {"description": description, "content": {"application/json": {"schema": schema, "example": example}}}


def _status(description: str, status: str) -> Json:
    return _json(description, record({"status": (TEXT, status)}, reason=TEXT, enforcement=TEXT))


def _limited(description: str, code: str) -> Json:
    return _json(description, record({"overallCode": (TEXT, code)}, statuses=list_of({"type": "object"})))


def _ready(name: str) -> Json:
    answers = {200: _status("It accepts requests.", "ready"), 503: _status("It ends soon.", "draining")}
    return _operation(
        _WATCHING,
        name,
        "Readiness",
        answers,
        _OPEN,
        description="Whether this node should be sent requests. While the store is unavailable it should: the status "
        "is `degraded` then.",
    )


_DECIDED = _json("What was decided; a refusal has the status 200 too.", (ref("decision"), _DECISION_EXAMPLE))
_RESULT: Described = (
    {"anyOf": [ref("decision"), {"title": "An error", **form({"error": ref("problem")})}]},
    _DECISION_EXAMPLE,
)
_RESET = record(
    {
        "success": ({**YES_OR_NO, "description": "Whether anything was reset."}, True),
        "rules": ({**list_of(TEXT), "description": "The rules whose limits were reset."}, ["orders-user"]),
        "shared": ({**list_of(TEXT), "description": "Rules that were left alone, since they count others too."}, []),
        "reason": ({**TEXT, "description": "Why nothing was reset."}, ""),
    }
)
_RULES = record(
    {
        "version": (WHOLE, 1),
        "enforcing": (YES_OR_NO, True),
        "rules": ({"type": "object", "description": "What a rules file has."}, {"version": 1, "rules": []}),
    }
)
_HOT = items(record({"rule": (TEXT, "orders-user"), "key": (TEXT, "#5f2b9e2a4c1d7f30"), "per_second": (NUMBER, 41.5)}))
HOT_KEYS = record(
    {"workers": (WHOLE, 1), "half_life_seconds": (WHOLE, 10), "hot": _HOT, "denied": _HOT, "would_refuse": _HOT}
)
_METRICS = {
    "text/plain": {"schema": TEXT, "example": "# EOF\n"},
    "application/openmetrics-text": {"schema": TEXT},
}
_DESCRIPTORS = {"domain": "edge", "descriptors": [{"entries": [{"key": "remote_address", "value": "192.0.2.7"}]}]}
_ENVOY_BODY: Json = {
    "schema": {"type": "object", "description": "A RateLimitRequest of Envoy, as JSON."},
    "example": _DESCRIPTORS,
}
_EXPLAINED = record({"descriptors": ({"type": "array", "items": {"type": "object"}}, [])})
_CHECK = "/api/v1/rate-limit"
PATHS: Json = {
    f"{_CHECK}/check": _operation(
        _CHECKS,
        "check",
        "Check a request",
        {200: _DECIDED},
        description="Takes the cost from all limits that apply if all of them admit the request; otherwise nothing.",
        body={
            "schema": ref("question"),
            "examples": {
                "principals": {"summary": "By principals", "value": _QUESTION},
                "rule": {
                    "summary": "By rule",
                    "value": {"key_type": "user", "key_value": "u1", "rule_id": "orders-user", "request_count": 1},
                },
                "name": {
                    "summary": "By name",
                    "value": {"identifier": "203.0.113.9", "dimension": "IP", "endpoint": "/api/v1/login", "cost": 1},
                },
                "peek": {"summary": "Without taking anything", "value": _QUESTION | {"consume": False}},
            },
        },
        parameters=[
            header("Idempotency-Key", "A request that is sent again with the same key is counted once.", _VALUE)
        ],
    ),
    f"{_CHECK}/batch": _operation(
        _CHECKS,
        "check_batch",
        "Check several requests",
        {200: _json("A decision or an error for each.", record({"results": items(_RESULT)}))},
        description="Each is decided on its own; they are not all or nothing.",
        body={"schema": ref("batch"), "example": {"requests": [_QUESTION]}},
    ),
    f"{_CHECK}/refund": _operation(
        _CHECKS,
        "refund",
        "Refund a check",
        {200: _DECIDED},
        description="The body is that of the check, with the `charge` of its answer. A charge acts once.",
        body={
            "schema": ref("refund"),
            "example": {
                **_QUESTION,
                "charge": "AgAAAAAAAAAFoXKym_82vhthJFfRwbwFE1NEg94ABjedoFtgAAAGN52hjI0AO1E5JqWgSabZ7z1h",
            },
        },
    ),
    f"{_CHECK}/reset": _operation(
        _CHECKS,
        "reset",
        "Reset limits",
        {200: _json("What was reset.", _RESET)},
        description="Forgets what was used of the limits that apply to the request; without an `endpoint`, of all "
        "limits of its principals.",
        body={"schema": ref("question"), "example": _QUESTION},
    ),
    f"{_CHECK}/rules": _operation(
        _CHECKS,
        "rules_in_force",
        "Get the rules in force",
        {
            200: _json("The rules, with an ETag.", _RULES),
            304: {"description": "They are those that the client has."},
        },
        _KEPT,
        description="For clients that decide by them while the service is unavailable.",
        parameters=[header("If-None-Match", "The ETag of the rules that the client has.")],
    ),
    "/api/v1/forward-auth": _operation(
        _PROXIES,
        "forward_auth",
        "Authorize a request for its proxy",
        {200: {"description": "The request may pass."}},
        (400, 401, 403, 413, 429, 503),
        description="With any method. `--deny-status` sets another status of refusals, for nginx 403.",
        parameters=[
            header("X-Original-URI", "The path of the request; or X-Forwarded-Uri."),
            header("X-Original-Method", "The method of the request; or X-Forwarded-Method."),
            header("X-Forwarded-For", "The address of the client."),
        ],
    ),
    "/json": _operation(
        _ENVOY,
        "envoy_json",
        "Limit descriptors",
        {200: _limited("Within all limits.", "OK"), 429: _limited("Over a limit.", "OVER_LIMIT")},
        body=_ENVOY_BODY,
    ),
    "/json/explain": _operation(
        _ENVOY,
        "envoy_explain",
        "Explain descriptors",
        {200: _json("One for each descriptor; none if there are no such files.", _EXPLAINED)},
        description="Which limits of Envoy's files apply, and what is left of them. Takes nothing.",
        body=_ENVOY_BODY,
    ),
    "/rlconfig": _operation(
        _ENVOY,
        "envoy_limits",
        "List the limits of Envoy's files",
        {200: {"description": "One in a line.", "content": {"text/plain": {"schema": TEXT, "example": ""}}}},
        _KEPT,
    ),
    "/healthz": _operation(_WATCHING, "healthz", "Liveness", {200: _status("The process runs.", "alive")}, _OPEN),
    "/readyz": _ready("readyz"),
    "/healthcheck": _ready("healthcheck"),
    "/hotkeys": _operation(
        _WATCHING,
        "hotkeys",
        "Keys that are asked for and refused most",
        {200: _json("Of all workers.", HOT_KEYS)},
        _KEPT,
    ),
    "/metrics": _operation(
        _WATCHING, "metrics", "Metrics for Prometheus", {200: {"description": "Metrics.", "content": _METRICS}}, _OPEN
    ),
}


@cache
def document() -> bytes:
    """Return the OpenAPI document, as JSON."""
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Headgate: decision API",
                "version": version("headgate"),
                "description": _ABOUT,
            },
            "tags": tags(_TAGS),
            "paths": PATHS,
            "components": {
                "schemas": COMPONENTS,
                "responses": problem_responses(_PROBLEMS),
                "securitySchemes": {
                    "key": {"type": "http", "scheme": "bearer", "description": "A key of a caller."},
                    "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key", "description": "The same key."},
                },
            },
        }
    )

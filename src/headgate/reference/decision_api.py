"""The OpenAPI document of the decision plane's HTTP API, which docs/api.md describes as well."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files

import msgspec

from headgate.reference.schemas import (
    PROBLEM,
    STATE,
    TEXT,
    WHOLE,
    YES_OR_NO,
    Described,
    Json,
    described,
    form,
    header,
    list_of,
    problem_responses,
    problems,
    ref,
    some,
    tags,
)

_CHECKS, _PROXIES, _ENVOY, _WATCHING = "Checks", "Proxies", "Envoy", "Health and metrics"
_TAGS = {
    _CHECKS: "Decide whether a request may pass. A check takes its cost from every limit that applies, or from none.",
    _PROXIES: "For nginx, Traefik, Caddy and other proxies with forward authentication.",
    _ENVOY: "Envoy's rate limit service as JSON. Envoy itself uses gRPC.",
    _WATCHING: "For orchestrators, load balancers and Prometheus.",
}
_ABOUT = """\
To decide whether a request may pass, send its **principal** (user, address, API key), path and method, and act on
`allowed` in the response.

- If the service requires keys of its callers (`--caller-keys`), choose **Authorize** first. The key stays in this page
  until you close it. Health and metrics need no key.
- Errors are problem documents (RFC 9457), with a pointer to every invalid field.

The admin API changes rules, users and keys. Its reference is at `/docs` on its port, 8082 by default.
"""
_QUESTION = {"principal": {"user": "u1", "ip": "203.0.113.9"}, "endpoint": "/api/v1/orders", "method": "POST"}
_TEXTS, _SOME = list_of(TEXT), some(WHOLE)
_RESPONSES = described(
    msgspec.json.decode((files(__package__) / "responses.json").read_bytes()),
    {
        **dict.fromkeys(("retry_after", "current_count"), _SOME),
        **dict.fromkeys(("decision.limit", "decision.remaining", "decision.reset_at"), _SOME),
        "decision.rule_id": some(TEXT),
        "shadow": list_of(ref("limit")),
        "unmatched_principals": _TEXTS,
        "state": STATE,
        "success": {**YES_OR_NO, "description": "Whether limits were reset."},
        "reset.rules": {**_TEXTS, "description": "The rules whose limits were reset."},
        "shared": {**_TEXTS, "description": "The rules that were skipped, because they count other callers too."},
        "reset.reason": {**TEXT, "description": "The reason why nothing was reset."},
        "rules.rules": {"type": "object", "description": "The content of a rules file."},
        "descriptors.descriptors": list_of({"type": "object"}),
    },
    {
        "decision": {
            "charge": TEXT,
            "refusal": form({"status": WHOLE, "message": TEXT}),
            "exact": form({"allowed": YES_OR_NO, "verdict": TEXT, "version": WHOLE}),
        }
    },
)
_DECISION, _DECISION_EXAMPLE = _RESPONSES["decision"]
HOT_KEYS = _RESPONSES["hot_keys"]
_VALUE = {"type": "string", "minLength": 1, "maxLength": 512}
_BY_NAMES = {"type": "object", "additionalProperties": _VALUE}
_COST = {**WHOLE, "minimum": 0, "maximum": 100_000, "default": 1, "description": "Units to take; 0 takes nothing."}
_CANONICAL: Json = {
    "principal": {
        **_BY_NAMES,
        "description": "The caller, by dimension: `user`, `ip`, `apikey` or a name of your own. Include only verified "
        "values; `{}` for an unknown caller.",
    },
    "endpoint": {**TEXT, "default": "/", "description": "The path as it was sent, not decoded."},
    "method": {**TEXT, "description": "The HTTP method. Without it, rules with methods do not match."},
    "cost": _COST,
    "attributes": {**_BY_NAMES, "description": "Other facts that rules match with `when`, or count by."},
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
        "description": "The client's Unix time, in seconds or milliseconds. A difference of more than 60 s from the "
        "clock of the service is an error. It does not affect the decision.",
    },
    "tier": {**TEXT, "description": "The verified tier of the principal."},
    "rule_id": {**TEXT, "description": "Check only this rule."},
    "refundable": {**YES_OR_NO, "description": "true adds a `charge` to the response, for a refund."},
    "exact": {**YES_OR_NO, "description": "true adds exact values to the response, to the microsecond."},
    "address": {**TEXT, "description": "The client's whole address, for lists, if `ip` is a network."},
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
    "limit": _RESPONSES["limit"][0],
    "decision": _DECISION | {"description": "Whether the request may pass, and the remaining units."},
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
    400: ("The request is invalid.", "the body has an unknown member 'endpont'"),
    401: (
        "The service requires a key, and it is missing or invalid.",
        "the caller is unknown: send Authorization: Bearer KEY, or X-Api-Key: KEY",
    ),
    403: ("The client is on the deny list, or the proxy is not trusted.", "This client is not admitted."),
    405: ("The path does not accept this method.", "/api/v1/rate-limit/check accepts POST, not GET"),
    413: ("The body is too large.", "the body has more than 131072 bytes"),
    429: ("The quota is exceeded.", "orders-user allows 100/minute. Retry in 12 s."),
    503: (
        "The node is overloaded, or the store, which this operation needs, is unavailable.",
        "this node has too many requests in flight: try again, or use another node",
    ),
}
_OPEN = (405, 413)
"""The refusals of all paths."""
_KEPT = (*_OPEN, 401, 503)
"""The refusals of paths that may require a key."""
_ASKED = (*_KEPT, 400)


def _operation(
    tag: str,
    name: str,
    summary: str,
    responses: dict[int, Json],
    refusals: Sequence[int] = _ASKED,
    *,
    body: Json | None = None,
    **more: object,
) -> Json:
    """Return the item of a path with one method: POST if it has a body, else GET."""
    found: Json = {
        "operationId": name,
        "summary": summary,
        "tags": [tag],
        "security": [{}, {"key": []}, {"header": []}] if 401 in refusals else [],
        "responses": {str(status): response for status, response in responses.items()}
        | problems(set(refusals) - responses.keys()),
        **more,
    }
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": body}}
    return {"get" if body is None else "post": found}


def _json(description: str, response: Described) -> Json:
    schema, example = response
    return {"description": description, "content": {"application/json": {"schema": schema, "example": example}}}


def _status(description: str, status: str) -> Json:
    return _json(description, (form({"status": TEXT}, reason=TEXT, enforcement=TEXT), {"status": status}))


def _limited_json(description: str, code: str) -> Json:
    statuses = list_of({"type": "object"})
    return _json(description, (form({"overallCode": TEXT}, statuses=statuses), {"overallCode": code}))


def _ready(name: str) -> Json:
    responses = {200: _status("It accepts requests.", "ready"), 503: _status("It is shutting down.", "draining")}
    return _operation(
        _WATCHING,
        name,
        "Readiness",
        responses,
        _OPEN,
        description="Whether the node accepts requests. While the store is unavailable, it does, with the status "
        "`degraded`.",
    )


_DECIDED = _json("The decision. A refusal also has the status 200.", (ref("decision"), _DECISION_EXAMPLE))
_RESULT = {"anyOf": [ref("decision"), {"title": "An error", **form({"error": ref("problem")})}]}
_RESULTS: Described = form({"results": list_of(_RESULT)}), {"results": [_DECISION_EXAMPLE]}
_METRICS = {
    "text/plain": {"schema": TEXT, "example": "# EOF\n"},
    "application/openmetrics-text": {"schema": TEXT},
}
_DESCRIPTORS = {"domain": "edge", "descriptors": [{"entries": [{"key": "remote_address", "value": "192.0.2.7"}]}]}
_ENVOY_BODY: Json = {
    "schema": {"type": "object", "description": "A RateLimitRequest of Envoy, as JSON."},
    "example": _DESCRIPTORS,
}
_CHECK = "/api/v1/rate-limit"
PATHS: Json = {
    f"{_CHECK}/check": _operation(
        _CHECKS,
        "check",
        "Check a request",
        {200: _DECIDED},
        description="Takes the cost from all limits that apply if all of them admit the request; otherwise, takes "
        "nothing.",
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
                "peek": {"summary": "Without taking the cost", "value": _QUESTION | {"consume": False}},
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
        {200: _json("A decision or an error for each request.", _RESULTS)},
        description="The requests are independent: each may be admitted or refused.",
        body={"schema": ref("batch"), "example": {"requests": [_QUESTION]}},
    ),
    f"{_CHECK}/refund": _operation(
        _CHECKS,
        "refund",
        "Refund a check",
        {200: _DECIDED},
        description="The body is that of the check, with the `charge` of its response. A charge is refunded once.",
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
        {200: _json("The rules that were reset.", _RESPONSES["reset"])},
        description="Resets the usage of the limits that apply to the request; without an `endpoint`, of all limits of "
        "its principals.",
        body={"schema": ref("question"), "example": _QUESTION},
    ),
    f"{_CHECK}/rules": _operation(
        _CHECKS,
        "rules_in_force",
        "Get the rules in force",
        {
            200: _json("The rules, with an ETag.", _RESPONSES["rules"]),
            304: {"description": "The client has the current rules."},
        },
        _KEPT,
        description="For clients that decide locally while the service is unavailable.",
        parameters=[header("If-None-Match", "The ETag of the rules that the client has.")],
    ),
    "/api/v1/forward-auth": _operation(
        _PROXIES,
        "forward_auth",
        "Authorize a request for its proxy",
        {200: {"description": "The request may pass."}},
        (400, 401, 403, 413, 429, 503),
        description="Any method is accepted. `--deny-status` sets another status for refusals; nginx needs 401 or 403.",
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
        {200: _limited_json("Within all limits.", "OK"), 429: _limited_json("Over a limit.", "OVER_LIMIT")},
        body=_ENVOY_BODY,
    ),
    "/json/explain": _operation(
        _ENVOY,
        "envoy_explain",
        "Explain descriptors",
        {200: _json("One item for each descriptor; none without files of Envoy.", _RESPONSES["descriptors"])},
        description="Returns the limits of Envoy's files that apply, with the remaining hits. Takes nothing.",
        body=_ENVOY_BODY,
    ),
    "/rlconfig": _operation(
        _ENVOY,
        "envoy_limits",
        "List the limits of Envoy's files",
        {200: {"description": "One limit in each line.", "content": {"text/plain": {"schema": TEXT, "example": ""}}}},
        _KEPT,
    ),
    "/healthz": _operation(_WATCHING, "healthz", "Liveness", {200: _status("The process runs.", "alive")}, _OPEN),
    "/readyz": _ready("readyz"),
    "/healthcheck": _ready("healthcheck"),
    "/hotkeys": _operation(
        _WATCHING,
        "hotkeys",
        "List the busiest and the most refused keys",
        {200: _json("The keys of all workers.", HOT_KEYS)},
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
                    "key": {"type": "http", "scheme": "bearer", "description": "A caller key."},
                    "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key", "description": "The same key."},
                },
            },
        }
    )

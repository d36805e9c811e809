"""The OpenAPI document of the admin plane: built from Litestar's routes, the forms of rules, and examples.

The responses of routes are in ``responses.json``: an example by the name of each route, from which its schema follows.
A text such as ``=api_key`` stands for the example of that name, whose schema is a component of the document.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from importlib.resources import files

import msgspec
from litestar import Litestar

from headgate.admin.routes.requests import MERGE_PATCH
from headgate.policy.forms import rules_schema
from headgate.reference.decision_api import HOT_KEYS
from headgate.reference.schemas import (
    MOMENT,
    NUMBER,
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

_ABOUT = """\
Rules, tiers, users, keys and consumers, and the audit trail. Choose **Authorize** and enter an admin key. It stays in
this page until you close it.

- Errors are problem documents (RFC 9457), with a pointer to every invalid field.
- With `If-Match` and the version of an `ETag`, a change is refused with 412 if the object has changed since.
- `X-Reason` is the reason in the audit trail. Every change is a revision that can be undone.

The [console](./) has pages for the same tasks. The reference of the decision API is at `/docs` on the HTTP port, 8080
by default.
"""
_TAGS = {
    "Rules": "Limits: list, change and roll back single rules, or apply a whole rules file.",
    "Tiers": "Changes of rules for all users of a tier.",
    "Settings": "The other fields of a rules file.",
    "Users": "The tier, overrides, limits and usage of a user; explanations of decisions.",
    "Usage": "Decisions of rules over time, the last refusals, and what another limit would have refused.",
    "Consumers": "API keys for the callers of your own API.",
    "Keys": "API keys of this API and of callers of the decision API.",
    "Nodes": "The running services, with their rates, problems and revisions.",
    "Revisions": "All changes, which can be undone.",
    "Audit": "All changes with author, time and reason, as a chain of digests.",
}
_OTHER_TAGS = {
    "export": "Rules",
    "apply": "Rules",
    "explain": "Users",
    "what-if": "Usage",
    "refusals": "Usage",
    "hot-keys": "Nodes",
    "live": "Nodes",
}
"""By the last part of a path; other paths have the group of their first part."""
_ERRORS = {
    400: ("The request is invalid; nothing was changed.", "the request is invalid"),
    401: ("The key is missing or invalid.", "a key is required: send the header Authorization: Bearer KEY"),
    403: (
        "The role of the key does not allow this request.",
        "this key has the role viewer; the request needs the role editor",
    ),
    404: ("The object does not exist.", "rule 'orders-user' does not exist"),
    408: ("The body is incomplete.", "the body of a request must arrive within 30 s"),
    409: (
        "The object already exists, is in use, or was changed later, or the rules are in a file.",
        "rule 'new' already exists, at version 1",
    ),
    412: ("The object has another version.", "rule 'orders-user' is now at version 2, not 1: read it again"),
    413: ("The body is too large.", "the body of this request must have at most 10,485,760 bytes"),
    415: ("The body is compressed, or has another media type.", "bodies must not be compressed: omit Content-Encoding"),
    429: (
        "This key, or this address, sends too many requests.",
        "the limit of this key is 100/minute; try again in 9 s",
    ),
    503: ("The database is unavailable; decisions continue.", "the database cannot be reached"),
}
_SUCCESS = {"200": "Success.", "201": "The object was created.", "204": "Success, without a body."}
_READING, _CHANGING = (400, 401, 403, 404, 429, 503), (408, 409, 412, 413, 415)
"""The refusals of all routes, and further ones of routes that change something."""
_EXAMPLES: Json = {
    "rule": {"id": "orders-user", "endpoint": "/api/v1/orders/**", "methods": ["POST"], "limit": 100, "window": "1m"},
    "tier": {"orders-user": {"limit": 1000}},
    "setting": "premium",
    "override": {"rule_id": "orders-user", "limit": 5000, "until": "2030-01-01T00:00:00Z"},
    "file": "version: 1\nrules:\n  - {id: orders-user, limit: 100, window: 1m}\n",
}
_PATCHES: Json = {
    "rule": {"limit": 200, "burst": None},
    "tier": {"orders-user": {"limit": 2000}},
    "user": {"tier": "premium", "overrides": {"orders-user": None}},
}
_VERSIONED = ("/rules/", "/tiers/", "/settings/", "/users/", "/apply", "/revisions/")
"""Paths of objects with versions: changes may name the version that they replace."""
_HEADERS = [
    header("X-Reason", "The reason, for the audit trail.", {**TEXT, "maxLength": 1000}),
    header(
        "If-Match",
        'The version to replace, from an ETag: `"3"`; for a whole file, the revision.',
        {**TEXT, "pattern": '^("(0|[1-9][0-9]{0,8})"|\\*)$'},
    ),
    header("If-None-Match", "`*`: only if the object does not exist.", {"enum": ["*"]}),
]
_WAIT: Json = {
    "name": "wait",
    "in": "query",
    "schema": {**TEXT, "pattern": "^[0-9]+(ms|s|m)$", "description": "a duration up to 1 minute, such as 5s"},
    "example": "5s",
    "description": "Respond once all nodes run the change, or after this time. X-Revision is the revision in force; "
    "X-Nodes-Behind names the nodes that do not run it.",
}
_GIVEN: Json = {
    "roll_back_rule": {"version": 1},
    "set_tier": {"tier": "premium"},
    "reset_user": {"rules": ["orders-user"]},
    "explain": {"principal": {"user": "42"}, "endpoint": "/api/v1/orders", "method": "POST", "cost": 1},
    "create_key": {"name": "deploy-bot", "role": "editor", "expires_in": 7776000},
    "rotate_key": {"overlap": 3600},
    "create_consumer": {"name": "acme", "tier": "premium"},
    "rotate_consumer": {"overlap": 3600},
}
"""Examples of bodies, by the name of the route."""
_MEANINGS = {
    "action": "create, update or delete.",
    "actor": "The name or id of a key.",
    "attributes": "Other facts that rules match with `when`, or count by.",
    "cost": "The units that the request takes.",
    "dimension": "Only rules of this dimension.",
    "dry_run": "Change nothing, and return what would change.",
    "enabled": "Only enabled rules, or only disabled ones.",
    "endpoint": "The path of the request.",
    "force": "Also undo values that later revisions have changed.",
    "key_id": "The public part of a key: its `id` in the list.",
    "kind": "The kind of the object: rule, tier, user, setting, key ...",
    "method": "The HTTP method of the request.",
    "name": "The name.",
    "outcome": "Only this outcome.",
    "overrides": "`drop`: also delete the overrides of users and tiers.",
    "principal": "The caller, by dimension: `user`, `ip`, `apikey` or a name of your own.",
    "replace_users": "Also remove temporary overrides that are missing from the file.",
    "role": "The permissions of the key.",
    "rule_id": "The id of a rule.",
    "sort": "The order of the list.",
    "step": "The period of each item; `each` for single events.",
    "subject": "The id of the changed object.",
    "tier": "The name of a tier.",
    "version": "The version to restore.",
    "window_seconds": "The window, of a rule with several.",
}
"""Descriptions of parameters and members of bodies for which the route has none."""
_PARAMETERS = {
    "number": 7,
    "rule_id": "orders-user",
    "user_id": "42",
    "name": "premium",
    "key_id": "4f9a2c81d07b",
    "consumer_id": "acme",
}


def document_of(app: Litestar) -> Json:
    found = app.openapi_schema.to_schema()
    moved = msgspec.json.encode(rules_schema()).replace(b"#/$defs/", b"#/components/schemas/")
    rules = msgspec.json.decode(moved)
    definitions = rules.pop("$defs", {})
    rule = rules["properties"]["rules"]["items"]
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    for body in schemas.values():
        for name, member in body.get("properties", {}).items():
            _explain(name, member)
    schemas |= definitions | {
        "rule": rule,
        "tier": {"type": "object", "additionalProperties": ref("change")},
        "setting": {"description": "The value of a setting, as in a rules file."},
        "override": form({"rule_id": TEXT}, **definitions["change"].get("properties", {})),
        "file": {name: part for name, part in rules.items() if name not in {"$schema", "$id"}},
        "problem": PROBLEM,
    }
    schemas |= _COMPONENTS
    found["components"]["responses"] = problem_responses(_ERRORS)
    found["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key, such as `hg_4f9a2c81d07b_...`."}
    }
    found["security"] = [{"key": []}]
    bodies = {
        (method.lower(), route.path): handler.opt["body"]
        for route in app.routes
        for handler in getattr(route, "route_handlers", ())
        for method in handler.http_methods
        if "body" in handler.opt
    }
    for path, item in found["paths"].items():
        for method, operation in item.items():
            if method != "get" and path != "/api/v1/explain":
                versioned = any(part in path for part in _VERSIONED) and not path.endswith("/reset")
                given = operation.setdefault("parameters", [])
                given += _HEADERS if versioned else _HEADERS[:1]
                if versioned or path == "/api/v1/rules":
                    given.append(_WAIT)
            if method == "patch":
                patched = path.split("/")[3][:-1]
                content = {MERGE_PATCH: {"schema": {"type": "object"}, "example": _PATCHES[patched]}}
                operation["requestBody"] = {"required": True, "content": content}
            _document(operation, bodies.get((method, path.replace("}", ":str}")), ""), reads=method == "get")
            operation["tags"] = [tag_of(path)]
    found["info"] = {
        "title": "Headgate: admin API",
        "version": version("headgate"),
        "description": _ABOUT,
    }
    found["tags"] = tags(_TAGS)
    del found["servers"]  # it is served where it is
    return found


def tag_of(path: str) -> str:
    parts = path.split("/")
    return _OTHER_TAGS.get(parts[-1], parts[3].capitalize())


def _document(operation: Json, body: str, *, reads: bool) -> None:
    if body:
        kind = "application/yaml" if body == "file" else "application/json"
        content: Json = {kind: {"schema": ref(body), "example": _EXAMPLES[body]}}
        if body == "file":
            content[kind]["schema"] = TEXT
            content["application/json"] = {
                "schema": ref("file"),
                "example": {"version": 1, "rules": [_EXAMPLES["rule"]]},
            }
        operation["requestBody"] = {"required": True, "content": content}
    elif "requestBody" in operation and operation["operationId"] in _GIVEN:
        operation["requestBody"]["content"]["application/json"]["example"] = _GIVEN[operation["operationId"]]
    for parameter in operation.get("parameters", ()):
        known = _PARAMETERS.get(parameter["name"])
        if known is not None and parameter["in"] == "path":
            parameter["example"] = known
        _explain(parameter["name"], parameter)
        _narrow(parameter.get("schema", {}))
    operation["responses"] |= problems(_READING if reads else _READING + _CHANGING)
    schema, example = _RESPONSES.get(operation["operationId"], (None, None))
    for status in operation["responses"].keys() & _SUCCESS.keys():
        response = operation["responses"][status]
        response["description"] = _SUCCESS[status]
        for kind in response.get("content", {}).values() if schema is not None else ():
            kind |= {"schema": schema, "example": example}
    if body in {"rule", "tier", "setting"} and "200" in operation["responses"]:
        operation["responses"]["201"] = operation["responses"]["200"] | {"description": "The object was created."}


def _explain(name: str, described: Json) -> None:
    """Describe a parameter or a member that has no description."""
    if name in _MEANINGS and "$ref" not in described:
        described.setdefault("description", _MEANINGS[name])


def _narrow(schema: Json) -> None:
    """Remove null, which a URL cannot have, from the schema of an optional parameter, and make its bounds integers."""
    given = [each for each in schema.pop("oneOf", ()) if each.get("type") != "null"]
    if len(given) == 1:
        schema |= given[0]
    for name in ("minimum", "maximum"):
        if name in schema:
            schema[name] = int(schema[name])


# Responses

_ANY: Json = {"type": "object"}
_SECRET: Json = {**TEXT, "description": "The key, which is shown only once."}
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
"""Properties that one example does not show, by the ends of paths."""
_HERE: list[tuple[str, Json, str]] = [
    *[
        (f"{part}.{name}", NUMBER, text)
        for part in ("live.rates", "rule_rates", "history.points")
        for name, text in (
            ("allowed", "Admissions per second."),
            ("refused", "Refusals per second."),
            ("degraded", "Decisions per second without the store."),
        )
    ],
    ("live.rates.errors", NUMBER, "Errors per second."),
    ("hour.points.allowed", WHOLE, "Admissions in this minute."),
    ("hour.points.denied", WHOLE, "Refusals in this minute."),
    ("hour.points.degraded", WHOLE, "Decisions in this minute without the store."),
    ("points.at", MOMENT, "The beginning of the step."),
    ("live.at", MOMENT, "The time of the figures."),
    ("nodes.total", _KNOWN["total"], "Number of nodes, including those that do not report."),
    ("nodes.items.state", TEXT, "`behind`: without the newest rules. `gone`: no longer reporting."),
    ("nodes.items.version", TEXT, "The version of Headgate."),
    ("nodes.items.workers", WHOLE, "Number of its worker processes."),
    ("store.state", TEXT, "The state of the store, as seen by the node."),
    ("consumer.state", TEXT, "`active` while one of its keys is accepted."),
    ("apply_file.total", _KNOWN["total"], "Number of changes, including those that are not listed."),
    ("undo_revision.total", _KNOWN["total"], "Number of changes, including those that are not listed."),
    ("list_revisions.items.changes", WHOLE, "Number of changes."),
    ("get_revision.changes", WHOLE, "Number of changes."),
    ("explain.degraded", TEXT, "The reason for a decision without the store; otherwise empty."),
    ("user_limits.in_force", YES_OR_NO, "Whether this node has the last change of the user."),
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
_TEXT = (files(__package__) / "responses.json").read_text("utf-8")
_RESPONSE_EXAMPLES: Json = msgspec.json.decode(_TEXT)


_NAMED = dict.fromkeys([*re.findall('"=(.+?)"', _TEXT), "what_if"])
_DESCRIBED = described(_RESPONSE_EXAMPLES, _KNOWN, _OPTIONAL)
_COMPONENTS: Json = {
    **{name: _DESCRIBED[name][0] for name in _NAMED},
    "stored_rule": form({"id": TEXT}, **_OPTIONAL["stored_rule"]),
    "overrides": {**_ANY, "additionalProperties": ref("change")},
}
"""Schemas with names of their own."""
_RESPONSES: dict[str, Described] = {
    **{name: (ref(name) if name in _NAMED else schema, example) for name, (schema, example) in _DESCRIBED.items()},
    "export": ({"description": "A rules file."}, "version: 1\nrules:\n- {id: orders-user, limit: 100, window: 1m}\n"),
    "hot_keys": ({"properties": HOT_KEYS[0]["properties"]}, HOT_KEYS[1]),
}
"""The schema of the response of each route, and an example of it."""

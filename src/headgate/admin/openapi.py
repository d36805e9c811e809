"""The OpenAPI document of the admin plane: what Litestar knows of the routes, the forms of rules, and examples."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from litestar import Litestar

from headgate.admin.routes.asking import MERGE_PATCH
from headgate.admin.schemas import ANSWERS, COMPONENTS
from headgate.policy.forms import rules_schema
from headgate.reference.schemas import PROBLEM, TEXT, Json, form, header, problem_responses, problems, ref, tags

_ABOUT = """\
Rules, tiers, users, keys and consumers, and the trail of who changed what. Choose **Authorize** and enter an admin key:
it stays in this page, and is gone when you close it.

- Errors are problem documents (RFC 9457), with a pointer to every field that is wrong.
- With `If-Match` and the version of an `ETag`, a change is refused with 412 if another change was quicker.
- `X-Reason` says in the audit trail why, and every change is a revision that can be undone.

The [console](./) has pages for the same tasks. The decision API has a reference of its own: `/docs` on the HTTP port,
8080 by default.
"""
_TAGS = {
    "Rules": "What is limited, and how: list, change and roll back single rules, or apply a whole rules file.",
    "Tiers": "Changes of rules for all users of a tier.",
    "Settings": "The settings of a rules file.",
    "Users": "One user's limits with present use, tier and overrides; why a request would be allowed or refused.",
    "Usage": "How often rules decided what, the last refusals, and what another limit would have refused.",
    "Consumers": "API keys for the callers of your own API.",
    "Keys": "API keys of this API and of callers of the decision API.",
    "Nodes": "The running services: what they decide at present, what needs attention, the revision that each runs.",
    "Revisions": "Every change, as a whole: look at it, undo it.",
    "Audit": "Who changed what, when and why, in a chain of digests.",
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
"""By the end of a path; others are those of its first part."""
_ERRORS = {
    400: ("Something in the request is not acceptable; nothing was changed.", "the request is not acceptable"),
    401: ("There is no key, or it is not accepted.", "a key is required: send the header Authorization: Bearer KEY"),
    403: ("The role of the key is not enough.", "this key is a viewer's; that needs a key of the role editor"),
    404: ("It does not exist.", "there is no rule 'orders-user'"),
    408: ("The body does not come to its end.", "the body of a request must arrive within 30 s"),
    409: (
        "It exists already, is in use, was changed later, or the rules are in a file.",
        "there is a rule 'new' already",
    ),
    412: ("It has another version by now.", "rule 'orders-user' is of version 2 by now, not 1: read it again"),
    413: ("The body is too large.", "the body of this request has at most 10,485,760 bytes"),
    415: ("The body is compressed, or of another kind.", "bodies must not be compressed: omit Content-Encoding"),
    429: (
        "This key, or this address, sends too many requests.",
        "the limit of this key is 100/minute; try again in 9 s",
    ),
    503: ("The database is unavailable; decisions go on.", "the database does not answer"),
}
_SUCCESS = {"200": "It succeeded.", "201": "It was created.", "204": "It succeeded; there is no body."}
_READING, _CHANGING = (400, 401, 403, 404, 429, 503), (408, 409, 412, 413, 415)
"""What routes may refuse with; and those that are not only read."""
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
"""Paths of what has versions: changes may say which one they replace."""
_HEADERS = [
    header("X-Reason", "Why, for the audit trail.", {**TEXT, "maxLength": 1000}),
    header(
        "If-Match",
        'The version that this replaces, as an ETag says: `"3"`; of a whole file, the revision.',
        {**TEXT, "pattern": '^("(0|[1-9][0-9]{0,8})"|\\*)$'},
    ),
    header("If-None-Match", "`*`: only if it is new.", {"enum": ["*"]}),
]
_WAIT: Json = {
    "name": "wait",
    "in": "query",
    "schema": {**TEXT, "pattern": "^[0-9]+(ms|s|m)$", "description": "a length of time up to 1 minute, such as 5s"},
    "example": "5s",
    "description": "Answer once all nodes run the change, or after this time: X-Revision is the revision in force, and "
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
    "action": "What was done: create, update or delete.",
    "actor": "The name or id of a key.",
    "attributes": "What else rules match with `when`, or count by.",
    "cost": "Units that the request takes.",
    "dimension": "Rules that count by this.",
    "dry_run": "Change nothing, and answer what would change.",
    "enabled": "Rules that apply, or those that do not.",
    "endpoint": "The path of the request.",
    "force": "Take back later changes of the same objects too.",
    "key_id": "The public part of a key: its `id` in the list.",
    "kind": "What was changed: rule, tier, user, setting, key ...",
    "method": "The HTTP method of the request.",
    "name": "Its name.",
    "outcome": "Only of this outcome.",
    "overrides": "`drop`: delete what users and tiers change of it, too.",
    "principal": "Who sends the request, by dimension: `user`, `ip`, `apikey` or a name of your own.",
    "replace_users": "Users that the file does not have lose their tier and overrides.",
    "role": "What the key may do.",
    "rule_id": "The id of a rule.",
    "sort": "The order of the list.",
    "step": "What an item is of: a length of time, or each event.",
    "subject": "The id of what was changed.",
    "tier": "The name of a tier.",
    "version": "The version that is to be in force again.",
    "window_seconds": "Which window, of a rule that has several.",
}
"""What parameters and members of bodies mean where the route does not say."""
_PARAMETERS = {
    "number": 7,
    "rule_id": "orders-user",
    "user_id": "42",
    "name": "premium",
    "key_id": "4f9a2c81d07b",
    "consumer_id": "acme",
}


def document_of(app: Litestar) -> Json:
    """Return the OpenAPI document."""
    found = app.openapi_schema.to_schema()
    rules = rules_schema()
    definitions = {name: _moved(body) for name, body in rules.pop("$defs", {}).items()}
    rule = _moved(rules["properties"]["rules"]["items"])
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    for body in schemas.values():
        for name, member in body.get("properties", {}).items():
            _explain(name, member)
    schemas |= definitions | {
        "rule": rule,
        "tier": {"type": "object", "additionalProperties": ref("change")},
        "setting": {"description": "The value of a setting, as in a rules file."},
        "override": form({"rule_id": TEXT}, **definitions["change"].get("properties", {})),
        "file": _moved(rules),
        "problem": PROBLEM,
    }
    schemas |= COMPONENTS
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
    """Return the group of a path."""
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
    schema, example = ANSWERS.get(operation["operationId"], (None, None))
    for status in operation["responses"].keys() & _SUCCESS.keys():
        answer = operation["responses"][status]
        answer["description"] = _SUCCESS[status]
        for kind in answer.get("content", {}).values() if schema is not None else ():
            kind |= {"schema": schema, "example": example}
    if body in {"rule", "tier", "setting"} and "200" in operation["responses"]:
        operation["responses"]["201"] = operation["responses"]["200"] | {"description": "It is new."}


def _explain(name: str, described: Json) -> None:
    """Say what a parameter or a member means, if it does not say so."""
    if name in _MEANINGS and "$ref" not in described:
        described.setdefault("description", _MEANINGS[name])


def _narrow(schema: Json) -> None:
    """Say of a parameter that may be left out what it is: a URL has no null, and bounds are whole."""
    given = [each for each in schema.pop("oneOf", ()) if each.get("type") != "null"]
    if len(given) == 1:
        schema |= given[0]
    for name in ("minimum", "maximum"):
        if name in schema:
            schema[name] = int(schema[name])


def _moved(value: Any) -> Any:
    """Return a part of the JSON Schema of rules files as a part of this document."""
    if isinstance(value, dict):
        return {
            key: each.replace("#/$defs/", "#/components/schemas/") if key == "$ref" else _moved(each)
            for key, each in value.items()
            if key not in {"$schema", "$id"}
        }
    return [_moved(each) for each in value] if isinstance(value, list) else value

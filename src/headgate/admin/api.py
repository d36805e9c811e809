"""The REST API of the admin plane: each route in a few lines, over `headgate.admin.service`.

Bodies of rules, tiers, users and overrides are those of a rules file. What is in force has a version, which is its
ETag: a change that sends ``If-Match`` fails with 412 if somebody else was quicker. Whatever goes wrong is a problem
document (RFC 9457). docs/admin.md has an example of every task.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Annotated, Any, cast

import msgspec
from litestar import Litestar, MediaType, Request, Response, Router, delete, get, post, put
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.di import NamedDependency, Provide
from litestar.exceptions import HTTPException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.params import FromQuery, JSONBody, PathParameter, QueryParameter
from litestar.types import ASGIApp

from headgate.admin.audit import Actor
from headgate.admin.catalog import ObjectKind, UnknownObject, VersionConflict
from headgate.admin.database import DatabaseError
from headgate.admin.keys import ApiKey, Role
from headgate.admin.openapi import document_of
from headgate.admin.page import PAGE, SCRIPT, STYLE
from headgate.admin.security import READS, SLASH, WRITES, App, BodyTooLarge, Gatekeeper, actor_name
from headgate.admin.service import SORTS, AdminService, RulesInFile
from headgate.core.errors import HeadgateError, UsageError
from headgate.policy.dumping import to_yaml
from headgate.policy.loading import from_data
from headgate.policy.problems import InvalidRules
from headgate.policy.request import Request as Asked
from headgate.policy.times import moment_text
from headgate.web.problem import Problem, bad_request, of_status

API = "/api/v1"
_LOG = logging.getLogger("headgate.admin")
MOST = 1000
_LONGEST_REASON = 1000
"""Items of a page."""
Json = dict[str, Any]
Admin = NamedDependency[AdminService]
Offset = Annotated[int, QueryParameter(ge=0, le=10_000_000, description="Items to leave out.")]
Limit = Annotated[int, QueryParameter(ge=1, le=MOST, description="Items of a page, at most.")]
RuleId = Annotated[str, PathParameter(pattern=r"^[A-Za-z0-9_.:/-]{1,64}$", description="The id of a rule.")]
UserId = Annotated[str, PathParameter(min_length=1, max_length=512, description="The value of the principal `user`.")]
Name = Annotated[str, PathParameter(min_length=1, max_length=64)]


class TierBody(msgspec.Struct, forbid_unknown_fields=True):
    """The tier of a user."""

    tier: Annotated[str, msgspec.Meta(max_length=64, description="Empty: none.", examples=["premium"])]


class RollbackBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which version is to be in force again."""

    version: Annotated[int, msgspec.Meta(ge=1, le=2_147_483_647, examples=[1])]


class ResetBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which limits of a user are reset."""

    rules: Annotated[list[str], msgspec.Meta(max_length=1000, description="Ids; none: all that count users.")] = []


class KeyBody(msgspec.Struct, forbid_unknown_fields=True):
    """A key to be made."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128, examples=["deploy-bot"])]
    role: Role
    expires_in: Annotated[int, msgspec.Meta(ge=60, le=315_360_000, description="Seconds.")] | None = None


class RotateBody(msgspec.Struct, forbid_unknown_fields=True):
    """How a key is replaced."""

    overlap: Annotated[int, msgspec.Meta(ge=0, le=2_592_000, description="Seconds that the old key stays good.")] = 0


class ExplainBody(msgspec.Struct, forbid_unknown_fields=True):
    """A request to be explained, as for a check."""

    principal: dict[str, str] = {}
    endpoint: str = "/"
    method: str = "GET"
    attributes: dict[str, str] = {}
    cost: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 1
    tier: str = ""
    rule_id: str = ""


def role_guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuse keys whose role is not enough for a route."""
    needed = handler.opt.get("role")
    if needed is None:
        return
    key: ApiKey = connection.scope["state"]["key"]
    if not key.role.includes(needed):
        raise PermissionDeniedException(f"this key is a {key.role}'s; that needs a key of the role {needed}")


def _actor(request: Request[Any, Any, Any]) -> Actor:
    """Return who asks; the header X-Reason says why."""
    known, reason = request.scope["state"], request.headers.get("x-reason", "")
    if len(reason) > _LONGEST_REASON:
        raise UsageError(f"X-Reason has at most {_LONGEST_REASON} characters")
    return Actor(actor_name(known["key"]), known["request_id"], reason)


def _expected(request: Request[Any, Any, Any]) -> int | None:
    """Return the version that the header If-Match names; None for any."""
    if_match = request.headers.get("if-match", "*")
    if if_match.strip() == "*":
        return None
    text = if_match.strip().removeprefix("W/").strip('"')
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 2**31:
        raise UsageError(f'If-Match names a version, as the ETag of an answer does: "3", not {if_match!r:.40}')
    return int(text)


def _etag(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"'}


# Rules


@get("/rules", opt={"role": Role.VIEWER}, summary="List rules")
async def list_rules(
    admin: Admin,
    dimension: FromQuery[str | None] = None,
    tier: FromQuery[str | None] = None,
    enabled: FromQuery[bool | None] = None,
    search: Annotated[str | None, QueryParameter(max_length=200, description="Text in id, name or endpoint.")] = None,
    sort: Annotated[str, QueryParameter(pattern="^(" + "|".join(SORTS) + ")$")] = "position",
    offset: Offset = 0,
    limit: Limit = 100,
) -> Json:
    """List the rules in force."""
    given = {"dimension": dimension, "tier": tier, "enabled": enabled, "search": search}
    filters = {name: value for name, value in given.items() if value is not None}
    return (await admin.page(ObjectKind.RULE, filters, sort, offset, limit))._asdict()


@post("/rules", opt={"role": Role.EDITOR, "body": "rule"}, summary="Make a rule", status_code=201)
async def create_rule(admin: Admin, request: Request[Any, Any, State], data: JSONBody[Json]) -> Response[Json]:
    """Make a rule; 409 if there is one of its id."""
    name = data.get("id", data.get("rule_id"))
    if not isinstance(name, str):
        raise UsageError("a rule has an id: text of 1 to 64 of A-Z a-z 0-9 _ . : / -")
    stored, _ = await admin.put(ObjectKind.RULE, name, data, 0, _actor(request))
    return Response(_shown(stored.body, stored.version), headers=_etag(stored.version), status_code=201)


@get("/rules/{rule_id:str}", opt={"role": Role.VIEWER}, summary="Look at a rule")
async def get_rule(admin: Admin, rule_id: RuleId) -> Response[Json]:
    """Return a rule, with its version as ETag."""
    stored = await admin.get(ObjectKind.RULE, rule_id)
    return Response(_shown(stored.body, stored.version), headers=_etag(stored.version))


@put("/rules/{rule_id:str}", opt={"role": Role.EDITOR, "body": "rule"}, summary="Make or replace a rule")
async def put_rule(
    admin: Admin,
    request: Request[Any, Any, State],
    rule_id: RuleId,
    data: JSONBody[Json],
) -> Response[Json]:
    """Make a rule, or replace it as a whole."""
    named = data.get("id", data.get("rule_id", rule_id))
    if named != rule_id:
        raise UsageError(f"the rule says that its id is {named!r:.80}, and the path says {rule_id!r}")
    actor = _actor(request)
    stored, is_new = await admin.put(ObjectKind.RULE, rule_id, data, _expected(request), actor)
    status = 201 if is_new else 200
    return Response(_shown(stored.body, stored.version), headers=_etag(stored.version), status_code=status)


@delete("/rules/{rule_id:str}", opt={"role": Role.EDITOR}, summary="Delete a rule", status_code=204)
async def delete_rule(
    admin: Admin,
    request: Request[Any, Any, State],
    rule_id: RuleId,
) -> None:
    """Delete a rule. Its versions stay, and it can be rolled back."""
    await admin.delete(ObjectKind.RULE, rule_id, _expected(request), _actor(request))


@get("/rules/{rule_id:str}/versions", opt={"role": Role.VIEWER}, summary="List the versions of a rule")
async def rule_versions(admin: Admin, rule_id: RuleId) -> Json:
    """List all that a rule ever was, the newest first; a body of null says that it was deleted."""
    versions = await admin.rules.versions(ObjectKind.RULE, rule_id)
    if not versions:
        raise UnknownObject(f"there is no rule {rule_id!r}, and never was")
    return {"items": [{**each._asdict(), "at": moment_text(each.at)} for each in versions]}


@post("/rules/{rule_id:str}/rollback", opt={"role": Role.EDITOR}, summary="Roll a rule back", status_code=200)
async def roll_back_rule(
    admin: Admin, request: Request[Any, Any, State], rule_id: RuleId, data: JSONBody[RollbackBody]
) -> Json:
    """Let a rule be again what it was in an earlier version; that makes a new version."""
    changed = await admin.rules.roll_back(ObjectKind.RULE, rule_id, data.version, _actor(request))
    return {"revision": changed.revision, "changed": bool(changed.entries)}


# The whole


@get("/export", opt={"role": Role.VIEWER}, summary="Export all rules as a file", media_type="application/yaml")
async def export(admin: Admin) -> str:
    """Return all that is in force as a rules file."""
    _, document = await admin.rules.document()
    return to_yaml(from_data(document))


@post("/apply", opt={"role": Role.EDITOR, "body": "file"}, summary="Apply a whole rules file", status_code=200)
async def apply_file(admin: Admin, request: Request[Any, Any, State], dry_run: FromQuery[bool] = False) -> Json:
    """Let a rules file, as YAML or JSON, and nothing else be in force, in one transaction.

    With `dry_run` nothing is changed, and the answer says what would be.
    """
    raw = await request.body()
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise UsageError("a rules file is UTF-8 text") from None
    return await admin.apply(text, _actor(request), dry_run=dry_run)


# Tiers and settings


def _objects(kind: ObjectKind) -> Router:
    """Return the routes of tiers, or of settings."""
    body = what = str(kind)

    @get("/", opt={"role": Role.VIEWER}, summary=f"List {what}s", operation_id=f"list_{body}s")
    async def list_all(admin: Admin, offset: Offset = 0, limit: Limit = 100) -> Json:
        return (await admin.page(kind, {}, "id", offset, limit))._asdict()

    @get("/{name:str}", opt={"role": Role.VIEWER}, summary=f"Look at a {what}", operation_id=f"get_{body}")
    async def get_one(admin: Admin, name: Name) -> Response[Any]:
        stored = await admin.get(kind, name)
        return Response({"id": name, "value": stored.body, "version": stored.version}, headers=_etag(stored.version))

    @put(
        "/{name:str}",
        opt={"role": Role.EDITOR, "body": body},
        summary=f"Make or replace a {what}",
        operation_id=f"put_{body}",
    )
    async def put_one(
        admin: Admin,
        request: Request[Any, Any, State],
        name: Name,
    ) -> Response[Any]:
        data = _decoded(await request.body())
        stored, is_new = await admin.put(kind, name, data, _expected(request), _actor(request))
        shown = {"id": name, "value": stored.body, "version": stored.version}
        return Response(shown, headers=_etag(stored.version), status_code=201 if is_new else 200)

    @delete(
        "/{name:str}",
        opt={"role": Role.EDITOR},
        summary=f"Delete a {what}",
        operation_id=f"delete_{body}",
        status_code=204,
    )
    async def delete_one(
        admin: Admin,
        request: Request[Any, Any, State],
        name: Name,
    ) -> None:
        await admin.delete(kind, name, _expected(request), _actor(request))

    return Router(f"/{kind}s", route_handlers=[list_all, get_one, put_one, delete_one], tags=[f"{what}s"])


# Users


@get("/users", opt={"role": Role.VIEWER}, summary="List users about whom something is special")
async def list_users(admin: Admin, tier: FromQuery[str | None] = None, offset: Offset = 0, limit: Limit = 100) -> Json:
    """List users with a tier or an override."""
    filters = {} if tier is None else {"tier": tier}
    return (await admin.page(ObjectKind.USER, filters, "id", offset, limit))._asdict()


@get("/users/{user_id:str}/limits", opt={"role": Role.VIEWER}, summary="A user's limits and their present state")
async def user_limits(admin: Admin, user_id: UserId) -> Json:
    """Return the limits that count a user, what they are for that user, and their present state."""
    return await admin.user_limits(user_id)


@put("/users/{user_id:str}/tier", opt={"role": Role.EDITOR}, summary="Move a user to a tier")
async def set_tier(admin: Admin, request: Request[Any, Any, State], user_id: UserId, data: JSONBody[TierBody]) -> Json:
    """Move a user to a tier; an empty one is none."""
    return {"id": user_id, **await admin.set_tier(user_id, data.tier, _actor(request))}


@post(
    "/users/{user_id:str}/override",
    opt={"role": Role.EDITOR, "body": "override"},
    summary="Override a rule for a user",
    status_code=200,
)
async def set_override(admin: Admin, request: Request[Any, Any, State], user_id: UserId, data: JSONBody[Json]) -> Json:
    """Change a rule for one user, until a moment or for good."""
    rule_id = data.pop("rule_id", None)
    if not isinstance(rule_id, str):
        raise UsageError("an override names its rule: rule_id is text")
    return {"id": user_id, **await admin.set_override(user_id, rule_id, data, _actor(request))}


@delete("/users/{user_id:str}/override", opt={"role": Role.EDITOR}, summary="End overrides of a user", status_code=200)
async def end_override(
    admin: Admin,
    request: Request[Any, Any, State],
    user_id: UserId,
    rule_id: Annotated[str | None, QueryParameter(max_length=64, description="Of one rule; default: of all.")] = None,
) -> Json:
    """End the override of one rule, or of all."""
    return {"id": user_id, **await admin.end_override(user_id, rule_id or "", _actor(request))}


@post("/users/{user_id:str}/reset", opt={"role": Role.EDITOR}, summary="Reset a user's limits", status_code=200)
async def reset_user(
    admin: Admin,
    request: Request[Any, Any, State],
    user_id: UserId,
    data: JSONBody[ResetBody | None] = None,
) -> Json:
    """Forget what a user used. Limits that others share are left alone."""
    return await admin.reset_user(user_id, data.rules if data else (), _actor(request))


@delete("/users/{user_id:str}", opt={"role": Role.EDITOR}, summary="Forget what is special of a user", status_code=204)
async def delete_user(admin: Admin, request: Request[Any, Any, State], user_id: UserId) -> None:
    """Take a user's tier and overrides away."""
    await admin.delete(ObjectKind.USER, user_id, None, _actor(request))


# Looking


@post("/explain", opt={"role": Role.VIEWER}, summary="Explain what a request would get", status_code=200)
async def explain(admin: Admin, data: JSONBody[ExplainBody]) -> Json:
    """Say for every rule whether it applies and why, in what state it is, and what would be decided."""
    given = data.attributes
    return await admin.explain(
        Asked(data.principal, data.endpoint, data.method, given, cost=data.cost, tier=data.tier, rule_id=data.rule_id)
    )


@get("/nodes", opt={"role": Role.VIEWER}, summary="List nodes and the revision that each runs")
async def list_nodes(admin: Admin) -> Json:
    """List the services that follow the database."""
    return await admin.nodes()


@get("/hot-keys", opt={"role": Role.VIEWER}, summary="The keys that are asked about and refused most")
async def hot_keys(admin: Admin) -> Response[bytes]:
    """Return hot keys, as the decision plane's ``/hotkeys`` does."""
    return Response(admin.hot_keys(), media_type=MediaType.JSON)


# Keys


@get("/keys", opt={"role": Role.ADMIN}, summary="List API keys")
async def list_keys(admin: Admin) -> Json:
    """List what is known of keys; not the keys."""
    return {"items": [_key(key) for key in await admin.keys.all()]}


@post("/keys", opt={"role": Role.ADMIN}, summary="Make an API key", status_code=201)
async def create_key(admin: Admin, request: Request[Any, Any, State], data: JSONBody[KeyBody]) -> Json:
    """Make a key. The answer has its text, which is shown nowhere else."""
    expires = None if data.expires_in is None else time.time_ns() // 1000 + data.expires_in * 1_000_000
    made = await admin.keys.create(data.name, data.role, _actor(request), expires_at=expires)
    return {**_key(made.key), "key": made.text}


@post("/keys/{key_id:str}/rotate", opt={"role": Role.ADMIN}, summary="Replace an API key", status_code=201)
async def rotate_key(admin: Admin, request: Request[Any, Any, State], key_id: Name, data: JSONBody[RotateBody]) -> Json:
    """Replace a key by another of its name and role."""
    made = await admin.keys.rotate(key_id, _actor(request), overlap_us=data.overlap * 1_000_000)
    return {**_key(made.key), "key": made.text}


@delete("/keys/{key_id:str}", opt={"role": Role.ADMIN}, summary="Revoke an API key", status_code=204)
async def revoke_key(admin: Admin, request: Request[Any, Any, State], key_id: Name) -> None:
    """End a key at once."""
    await admin.keys.revoke(key_id, _actor(request))


# Audit


@get("/audit", opt={"role": Role.VIEWER}, summary="Who changed what")
async def list_audit(
    admin: Admin,
    actor: FromQuery[str | None] = None,
    action: FromQuery[str | None] = None,
    kind: FromQuery[str | None] = None,
    subject: FromQuery[str | None] = None,
    since: Annotated[int | None, QueryParameter(ge=0, le=2**53, description="Microseconds since the epoch.")] = None,
    until: Annotated[int | None, QueryParameter(ge=0, le=2**53, description="Microseconds since the epoch.")] = None,
    offset: Offset = 0,
    limit: Limit = 100,
) -> Json:
    """Return the audit trail, the newest first."""
    given = {"actor": actor, "action": action, "kind": kind, "subject": subject, "since": since, "until": until}
    filters = {name: value for name, value in given.items() if value is not None}
    return (await admin.audit(filters, offset, limit))._asdict()


@get("/audit/verify", opt={"role": Role.VIEWER}, summary="Verify the chain of the audit trail")
async def verify_audit(
    admin: Admin,
    contains: Annotated[str, QueryParameter(max_length=64, description="A digest that must be in the chain.")] = "",
) -> Json:
    """Go through the whole audit trail; says whether it was tampered with."""
    return await admin.verify_audit(contains)


# What is public


@get("/healthz", include_in_schema=False)
async def healthz() -> Json:
    """Say that the process answers."""
    return {"status": "ok"}


@get(["/", "/docs"], include_in_schema=False, media_type=MediaType.HTML)
async def docs() -> str:
    """Return a page to try the API on."""
    return PAGE


@get("/docs.css", include_in_schema=False, media_type=MediaType.CSS)
async def style() -> str:
    """Return the style of the page."""
    return STYLE


@get("/docs.js", include_in_schema=False, media_type="text/javascript")
async def script() -> str:
    """Return the script of the page."""
    return SCRIPT


@get("/openapi.json", include_in_schema=False)
async def openapi(state: State) -> Response[bytes]:
    """Return the OpenAPI document."""
    return Response(state.document, media_type=MediaType.JSON)


def _key(key: ApiKey) -> Json:
    times = ("created_at", "expires_at", "last_used_at", "revoked_at")
    shown = {name: moment_text(getattr(key, name)) if getattr(key, name) else None for name in times}
    return {**key._asdict(), "role": str(key.role), **shown}


def _shown(body: Json, version: int) -> Json:
    return {**body, "version": version}


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.MsgspecError as error:
        raise UsageError(f"the body is not JSON: {error}") from None


def pointer(path: str) -> str:
    """Return where a problem is as a JSON pointer: ``rules[2].window`` is ``/rules/2/window``."""
    parts = [quoted or number or name for quoted, number, name in _PART.findall(path)]
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


_PART = re.compile(r"""\["(.*?)"\]|\[([0-9]+)\]|([^.\[\]]+)""")


def problem_of(error: Exception) -> Problem:
    """Return the problem document of an error."""
    if isinstance(error, InvalidRules):
        faults = tuple(
            (pointer(each.path), ". ".join(part for part in (each.message, each.accepted, each.hint) if part))
            for each in error.problems[:100]
        )
        return bad_request("the rules would not be acceptable; nothing was changed", faults)
    if isinstance(error, VersionConflict):
        return of_status(412 if error.operation.expected else 409, str(error))
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return of_status(status, str(error))
    if isinstance(error, HTTPException):
        return of_status(error.status_code, error.detail)
    _LOG.error("an error of ours", exc_info=error)
    return of_status(500, "this is a defect of Headgate; its log has the details")


_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (BodyTooLarge, 413),
    (RecursionError, 400),
    (UnknownObject, 404),
    (RulesInFile, 409),
    (DatabaseError, 503),
    (UsageError, 400),
    (HeadgateError, 400),
)


def _explained(_request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    problem = problem_of(error)
    headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
    return Response(
        problem.encode(), status_code=problem.status, media_type="application/problem+json", headers=headers
    )


def _restored(app: ASGIApp) -> ASGIApp:
    """Give ids in paths their slashes back; see `headgate.admin.security.SLASH`."""

    async def restored(scope: Any, receive: Any, send: Any) -> None:
        given = scope.get("path_params", {})
        scope["path_params"] = {name: str(value).replace(SLASH, "/") for name, value in given.items()}
        await app(scope, receive, send)

    return restored


def application(admin: AdminService, *, reads: str = READS, writes: str = WRITES) -> App:
    """Return the ASGI application of an admin plane; each key may read, and write, so often."""
    routes = Router(
        API,
        route_handlers=[
            *(list_rules, create_rule, get_rule, put_rule, delete_rule, rule_versions, roll_back_rule),
            *(export, apply_file, _objects(ObjectKind.TIER), _objects(ObjectKind.SETTING)),
            *(list_users, user_limits, set_tier, set_override, end_override, reset_user, delete_user),
            *(explain, list_nodes, hot_keys),
            *(list_keys, create_key, rotate_key, revoke_key),
            *(list_audit, verify_audit),
        ],
        guards=[role_guard],
    )
    app = Litestar(
        [routes, healthz, docs, style, script, openapi],
        dependencies={"admin": Provide(lambda: admin, sync_to_thread=False)},
        exception_handlers={Exception: _explained},
        middleware=[_restored],
        openapi_config=OpenAPIConfig("Headgate", "1", path="/litestar", render_plugins=[JsonRenderPlugin()]),
        logging_config=None,
    )
    app.state.document = msgspec.json.encode(document_of(app))
    return Gatekeeper(cast("App", app), admin.keys, reads=reads, writes=writes)

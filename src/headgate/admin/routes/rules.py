"""Routes of rules, tiers, settings, and whole rules files."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, cast

import msgspec
from litestar import Response, Router, delete, get, patch, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromQuery, JSONBody, QueryParameter

from headgate.admin.catalog import Catalog, Edited
from headgate.admin.objects import ObjectKind, Stored, UnknownObject, bodies_of
from headgate.admin.routes.requests import (
    EDITOR,
    VIEWER,
    Admin,
    Json,
    JsonRequest,
    Limit,
    Name,
    Offset,
    RuleId,
    actor_of,
    change_of,
    etag,
    given,
    merge_patch_of,
    one_of,
    parse_json,
)
from headgate.admin.service import SORTS
from headgate.config.times import moment_text
from headgate.core.errors import UsageError
from headgate.policy.dumping import to_yaml
from headgate.policy.loading import from_data

Changes = Annotated[int | None, QueryParameter(ge=0, le=10_000_000, description="Changes to list, at most.")]
Dropped = Annotated[str | None, one_of(("drop",))]
"""Whether the uses of an object are deleted with it."""


class RollbackBody(msgspec.Struct, forbid_unknown_fields=True):
    """The version to be restored."""

    version: Annotated[int, msgspec.Meta(ge=1, le=2_147_483_647, examples=[1])]


@get("/rules", opt=VIEWER, summary="List rules")
async def list_rules(
    admin: Admin,
    dimension: FromQuery[str | None] = None,
    tier: FromQuery[str | None] = None,
    enabled: FromQuery[bool | None] = None,
    search: Annotated[str | None, QueryParameter(max_length=200, description="Text in id, name or endpoint.")] = None,
    sort: Annotated[str, one_of(SORTS)] = "position",
    offset: Offset = 0,
    limit: Limit = 100,
) -> Json:
    """List the rules in force."""
    filters = given(dimension=dimension, tier=tier, enabled=enabled, search=search)
    return (await admin.rules.page(ObjectKind.RULE, filters, sort, offset, limit))._asdict()


@post("/rules", opt=EDITOR | {"body": "rule"}, summary="Create a rule", status_code=201)
async def create_rule(admin: Admin, request: JsonRequest, data: JSONBody[Json]) -> Response[Json]:
    """Create a rule; 409 if there is one with its id."""
    name = data.get("id", data.get("rule_id"))
    if not isinstance(name, str):
        raise UsageError("a rule must have an id: 1 to 64 characters from A-Z a-z 0-9 _ . : / -")
    return _edited(await admin.rules.put(ObjectKind.RULE, name, data, actor_of(request), 0))


@get("/rules/{rule_id:str}", opt=VIEWER, summary="Get a rule")
async def get_rule(admin: Admin, rule_id: RuleId) -> Response[Json]:
    """Return a rule, with its version as ETag."""
    return _shown(await admin.get(ObjectKind.RULE, rule_id))


@put("/rules/{rule_id:str}", opt=EDITOR | {"body": "rule"}, summary="Create or replace a rule")
async def put_rule(admin: Admin, request: JsonRequest, rule_id: RuleId, data: JSONBody[Json]) -> Response[Json]:
    """Create a rule, or replace it as a whole."""
    named = data.get("id", data.get("rule_id", rule_id))
    if named != rule_id:
        raise UsageError(f"the id of the rule is {named!r:.80} in the body, and {rule_id!r} in the path")
    return _edited(await admin.rules.put(ObjectKind.RULE, rule_id, data, *change_of(request)))


@patch("/rules/{rule_id:str}", opt=EDITOR, summary="Change some fields of a rule")
async def patch_rule(admin: Admin, request: JsonRequest, rule_id: RuleId) -> Response[Json]:
    """Change the fields in a JSON merge patch (RFC 7396); null deletes one."""
    changed = await merge_patch_of(request)
    return _edited(await admin.rules.patch(ObjectKind.RULE, rule_id, changed, *change_of(request)))


@delete("/rules/{rule_id:str}", opt=EDITOR, summary="Delete a rule", status_code=204)
async def delete_rule(admin: Admin, request: JsonRequest, rule_id: RuleId, overrides: Dropped = None) -> None:
    """Delete a rule. Its versions stay, so that it can be restored.

    A rule that users, tiers or other rules use is not deleted (409). `overrides=drop` deletes it together with the
    overrides of users and tiers.
    """
    await admin.rules.delete(ObjectKind.RULE, rule_id, *change_of(request), drop=overrides is not None)


@get("/rules/{rule_id:str}/versions", opt=VIEWER, summary="List the versions of a rule")
async def rule_versions(admin: Admin, rule_id: RuleId) -> Json:
    """List all versions of a rule, the newest first; a deletion has the body null."""
    versions = await admin.rules.versions(ObjectKind.RULE, rule_id)
    if not versions:
        raise UnknownObject(f"there has never been a rule {rule_id!r}")
    return {"items": [{**each._asdict(), "at": moment_text(each.at) if each.at else None} for each in versions]}


@post("/rules/{rule_id:str}/rollback", opt=EDITOR, summary="Roll a rule back", status_code=200)
async def roll_back_rule(
    admin: Admin, request: JsonRequest, rule_id: RuleId, data: JSONBody[RollbackBody]
) -> Response[Json]:
    """Restore an earlier version of a rule, as a new version."""
    done = await admin.rules.roll_back(ObjectKind.RULE, rule_id, data.version, *change_of(request))
    shown = {"revision": done.revision, "changed": done.before != done.after}
    return Response(shown, headers=etag(done.after.version if done.after else 0))


# The whole


@get("/export", opt=VIEWER, summary="Export all rules as a file", media_type="application/yaml")
async def export(admin: Admin) -> Response[str]:
    """Return all objects in force as a rules file, with the revision as ETag."""
    revision, document = await admin.rules.document()
    if isinstance(admin.rules, Catalog):  # without its times
        document["rules"] = [*bodies_of(document, ObjectKind.RULE).values()]
    text = await asyncio.to_thread(lambda: to_yaml(from_data(document)))  # with 100,000 users, it takes a while
    return Response(text, headers=etag(revision))


@post("/apply", opt=EDITOR | {"body": "file"}, summary="Apply a whole rules file", status_code=200)
async def apply_file(
    admin: Admin,
    request: JsonRequest,
    dry_run: FromQuery[bool] = False,
    replace_users: FromQuery[bool] = False,
    changes: Changes = None,
) -> Json:
    """Put a rules file, as YAML or JSON, in force in one transaction.

    Sections that are missing from it stay unchanged. So do temporary overrides, unless with `replace_users`. The
    response counts all changes, and lists the first `changes` of them, by default all, with deletions first.

    With `dry_run`, nothing is changed, and the response has what would be. `If-Match` is the revision that is replaced.
    """
    raw = await request.body()
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise UsageError("a rules file must be UTF-8 text") from None
    return await admin.apply(text, *change_of(request), dry_run=dry_run, replace_users=replace_users, most=changes)


# Tiers and settings


def _objects(kind: ObjectKind, delete_one: HTTPRouteHandler) -> Router:
    @get("/", opt=VIEWER, summary=f"List {kind}s", operation_id=f"list_{kind}s")
    async def list_all(admin: Admin, offset: Offset = 0, limit: Limit = 100) -> Json:
        return (await admin.rules.page(kind, {}, "id", offset, limit))._asdict()

    @get("/{name:str}", opt=VIEWER, summary=f"Get a {kind}", operation_id=f"get_{kind}")
    async def get_one(admin: Admin, name: Name) -> Response[Any]:
        return _shown(await admin.get(kind, name))

    @put(
        "/{name:str}",
        opt=EDITOR | {"body": str(kind)},
        summary=f"Create or replace a {kind}",
        operation_id=f"put_{kind}",
    )
    async def put_one(admin: Admin, request: JsonRequest, name: Name) -> Response[Any]:
        data = parse_json(await request.body())
        return _edited(await admin.rules.put(kind, name, data, *change_of(request)))

    return Router(f"/{kind}s", route_handlers=[list_all, get_one, put_one, delete_one], tags=[f"{kind}s"])


@patch("/tiers/{name:str}", opt=EDITOR, summary="Change some rules of a tier", tags=["tiers"])
async def patch_tier(admin: Admin, request: JsonRequest, name: Name) -> Response[Any]:
    """Change the members in a JSON merge patch (RFC 7396); null deletes a rule."""
    changed = await merge_patch_of(request)
    return _edited(await admin.rules.patch(ObjectKind.TIER, name, changed, *change_of(request)))


@delete("/{name:str}", opt=EDITOR, summary="Delete a tier", status_code=204)
async def delete_tier(admin: Admin, request: JsonRequest, name: Name, overrides: Dropped = None) -> None:
    """Delete a tier.

    A tier with users is not deleted (409). `overrides=drop` deletes it, and leaves them without a tier.
    """
    await admin.rules.delete(ObjectKind.TIER, name, *change_of(request), drop=overrides is not None)


@delete("/{name:str}", opt=EDITOR, summary="Delete a setting", status_code=204)
async def delete_setting(admin: Admin, request: JsonRequest, name: Name) -> None:
    """Delete a setting, so that its default applies."""
    await admin.rules.delete(ObjectKind.SETTING, name, *change_of(request))


def _shown(stored: Stored, status: int = 200) -> Response[Any]:
    shown = {**stored.shown, "version": stored.version}
    return Response(shown, headers=etag(stored.version), status_code=status)


def _edited(done: Edited) -> Response[Any]:
    return _shown(cast("Stored", done.after), 200 if done.before else 201)


ROUTES = (
    *(list_rules, create_rule, get_rule, put_rule, patch_rule, patch_tier, delete_rule, rule_versions, roll_back_rule),
    *(export, apply_file, _objects(ObjectKind.TIER, delete_tier), _objects(ObjectKind.SETTING, delete_setting)),
)

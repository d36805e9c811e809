"""Routes of nodes, keys, revisions and the audit trail."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import MediaType, Response, delete, get, post
from litestar.exceptions import PermissionDeniedException
from litestar.params import FromQuery, JSONBody, PathParameter, QueryParameter

from headgate.admin.keys import ApiKey, KeyRole
from headgate.admin.routes.asking import (
    ADMIN,
    EDITOR,
    VIEWER,
    Admin,
    Json,
    JsonRequest,
    Limit,
    Moment,
    Name,
    Offset,
    actor_of,
    expected_version,
    given,
)
from headgate.admin.tables import epoch_us
from headgate.config.times import moment_text


class KeyBody(msgspec.Struct, forbid_unknown_fields=True):
    """A key to be created."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128, examples=["deploy-bot"])]
    role: KeyRole
    expires_in: Annotated[int, msgspec.Meta(ge=60, le=315_360_000, description="Seconds.")] | None = None


class RotateBody(msgspec.Struct, forbid_unknown_fields=True):
    """The replacement of a key."""

    overlap: Annotated[int, msgspec.Meta(ge=0, le=2_592_000, description="Seconds until the old key ends.")] = 0


@get("/nodes", opt=VIEWER, summary="List nodes and the revision that each runs")
async def list_nodes(admin: Admin) -> Json:
    """List the services that follow the database."""
    return await admin.reports.nodes()


@get("/hot-keys", opt=VIEWER, summary="Hot keys: the callers with most requests and refusals")
async def hot_keys(admin: Admin) -> Response[bytes]:
    """Return hot keys, as the decision plane's ``/hotkeys`` does."""
    return Response(admin.reports.hot_keys(), media_type=MediaType.JSON)


@get("/live", opt=VIEWER, summary="What all nodes decide at present, and what needs attention")
async def live(admin: Admin) -> Json:
    """Return requests per second of the fleet, their history of ten minutes, the busiest rules and keys, and all nodes.

    Rates are averages of the last five seconds, updated every 2.5. Without a database, or while it is unavailable, they
    are those of this node only: `scope` is then `node`, and `reason` says why.
    """
    return await admin.reports.live()


# Keys


@get("/keys", opt=ADMIN, summary="List API keys")
async def list_keys(admin: Admin) -> Json:
    """List keys, without their texts."""
    return {"items": [_key(key) for key in await admin.keys.all()]}


@post("/keys", opt=ADMIN, summary="Create an API key", status_code=201)
async def create_key(admin: Admin, request: JsonRequest, data: JSONBody[KeyBody]) -> Json:
    """Create a key. Only this response has its text."""
    expires = None if data.expires_in is None else epoch_us() + data.expires_in * 1_000_000
    made = await admin.keys.create(data.name, data.role, actor_of(request), expires_at=expires)
    return {**_key(made.key), "key": made.text}


@post("/keys/{key_id:str}/rotate", opt=ADMIN, summary="Replace an API key", status_code=201)
async def rotate_key(admin: Admin, request: JsonRequest, key_id: Name, data: JSONBody[RotateBody]) -> Json:
    """Replace a key by another with its name and role."""
    made = await admin.keys.rotate(key_id, actor_of(request), overlap_us=data.overlap * 1_000_000)
    return {**_key(made.key), "key": made.text}


@delete("/keys/{key_id:str}", opt=ADMIN, summary="Revoke an API key", status_code=204)
async def revoke_key(admin: Admin, request: JsonRequest, key_id: Name) -> None:
    """End a key at once."""
    await admin.keys.revoke(key_id, actor_of(request))


# Revisions


Number = Annotated[int, PathParameter(ge=1, le=2**53, description="The number of a revision.")]


@get("/revisions", opt=VIEWER, summary="List revisions: what was changed, when, by whom, and why")
async def list_revisions(admin: Admin, offset: Offset = 0, limit: Limit = 100) -> Json:
    """List all revisions in the audit trail, the newest first."""
    return (await admin.changes.revisions(offset, limit))._asdict()


@get("/revisions/{number:str}", opt=VIEWER, summary="Get what a revision changed")
async def get_revision(admin: Admin, number: Number, offset: Offset = 0, limit: Limit = 100) -> Json:
    """Return a revision with a page of its changes, each with the states before and after."""
    return await admin.changes.revision(number, offset, limit)


@post("/revisions/{number:str}/undo", opt=EDITOR, summary="Undo a revision", status_code=200)
async def undo_revision(
    admin: Admin,
    request: JsonRequest,
    number: Number,
    force: FromQuery[bool] = False,
    dry_run: FromQuery[bool] = False,
    limit: Limit = 100,
) -> Json:
    """Undo a revision by a new one, which can be undone too.

    Later changes of the same objects are conflicts (409), unless `force` undoes them as well. `limit` bounds the
    changes in the response. `If-Match` is the revision that must be in force.
    """
    actor, expected = actor_of(request), expected_version(request)
    return await admin.changes.undo(number, actor, expected, force=force, dry_run=dry_run, limit=limit)


# Audit


@get("/audit", opt=VIEWER, summary="Who changed what")
async def list_audit(
    admin: Admin,
    request: JsonRequest,
    actor: FromQuery[str | None] = None,
    action: FromQuery[str | None] = None,
    kind: FromQuery[str | None] = None,
    subject: FromQuery[str | None] = None,
    since: Moment = None,
    until: Moment = None,
    offset: Offset = 0,
    limit: Limit = 100,
) -> Json:
    """Return the audit trail, the newest entries first. Changes of keys are visible to the role admin."""
    without = None if request.scope["state"]["key"].role.includes(KeyRole.ADMIN) else "key"
    if kind == without == "key":
        raise PermissionDeniedException("changes of keys are visible only to keys of the role admin")
    filters = given(actor=actor, action=action, kind=kind, subject=subject, since=since, until=until, without=without)
    return (await admin.reports.audit(filters, offset, limit))._asdict()


@get("/audit/verify", opt=VIEWER, summary="Verify the chain of the audit trail")
async def verify_audit(
    admin: Admin,
    contains: Annotated[str, QueryParameter(max_length=64, description="A digest that must be in the chain.")] = "",
) -> Json:
    """Verify the whole audit trail, and report whether it was tampered with."""
    return await admin.reports.verify_audit(contains)


def _key(key: ApiKey) -> Json:
    times = ("created_at", "expires_at", "last_used_at", "revoked_at")
    shown = {name: moment_text(getattr(key, name)) if getattr(key, name) else None for name in times}
    return {**key._asdict(), "role": str(key.role), **shown}


ROUTES = (
    *(list_nodes, hot_keys, live, list_keys, create_key, rotate_key, revoke_key, list_audit, verify_audit),
    *(list_revisions, get_revision, undo_revision),
)

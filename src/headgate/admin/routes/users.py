"""Routes of users: tiers, overrides, limits, and explanations of requests."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Response, delete, get, patch, post, put
from litestar.params import FromQuery, JSONBody, QueryParameter

from headgate.admin.objects import ObjectKind, Stored
from headgate.admin.routes.requests import (
    EDITOR,
    VIEWER,
    Admin,
    Json,
    JsonRequest,
    Limit,
    Offset,
    UserId,
    actor_of,
    change_of,
    etag,
    given,
    merge_patch_of,
)
from headgate.admin.users import user_of
from headgate.core.errors import UsageError
from headgate.policy.request import Request as PolicyRequest


class TierBody(msgspec.Struct, forbid_unknown_fields=True):
    """The tier of a user."""

    tier: Annotated[str, msgspec.Meta(max_length=64, description="Empty: none.", examples=["premium"])]


class ResetBody(msgspec.Struct, forbid_unknown_fields=True):
    """The limits of a user to be reset."""

    rules: Annotated[list[str], msgspec.Meta(max_length=1000, description="Ids; none: all that count users.")] = []


class ExplainBody(msgspec.Struct, forbid_unknown_fields=True):
    """A request, as for a check."""

    principal: dict[str, str] = {}
    endpoint: str = "/"
    method: str = "GET"
    attributes: dict[str, str] = {}
    cost: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 1
    tier: str = ""
    rule_id: str = ""


@get("/users", opt=VIEWER, summary="List users with a tier or an override")
async def list_users(admin: Admin, tier: FromQuery[str | None] = None, offset: Offset = 0, limit: Limit = 100) -> Json:
    """List users with a tier or an override."""
    return (await admin.rules.page(ObjectKind.USER, given(tier=tier), "id", offset, limit))._asdict()


@get("/users/{user_id:str}/limits", opt=VIEWER, summary="A user's limits and their present state")
async def user_limits(admin: Admin, user_id: UserId) -> Response[Json]:
    """Return the limits of a user and their present state.

    The ETag is that of tier and overrides, `"0"` for a user without both.
    """
    found, version = await admin.users.limits(user_id)
    return Response(found, headers=etag(version))


@put("/users/{user_id:str}/tier", opt=EDITOR, summary="Set the tier of a user")
async def set_tier(admin: Admin, request: JsonRequest, user_id: UserId, data: JSONBody[TierBody]) -> Response[Json]:
    """Set the tier of a user; empty: none."""
    user = await admin.users.set_tier(user_id, data.tier, *change_of(request))
    return _special(user)


@post(
    "/users/{user_id:str}/override",
    opt=EDITOR | {"body": "override"},
    summary="Override a rule for a user",
    status_code=200,
)
async def set_override(admin: Admin, request: JsonRequest, user_id: UserId, data: JSONBody[Json]) -> Response[Json]:
    """Override a rule for one user, until a moment or permanently; `warnings` say why it has no effect at present."""
    rule_id = data.pop("rule_id", None)
    if not isinstance(rule_id, str):
        raise UsageError("rule_id must be text: the id of the rule to override")
    user = await admin.users.set_override(user_id, rule_id, data, *change_of(request))
    warnings = await admin.users.without_effect(user.body, rule_id)
    return _special(user, **({"warnings": warnings} if warnings else {}))


@delete("/users/{user_id:str}/override", opt=EDITOR, summary="End overrides of a user", status_code=200)
async def end_override(
    admin: Admin,
    request: JsonRequest,
    user_id: UserId,
    rule_id: Annotated[str | None, QueryParameter(max_length=64, description="Of one rule; default: of all.")] = None,
) -> Response[Json]:
    """End the override of one rule, or of all."""
    return _special(await admin.users.end_override(user_id, rule_id or "", *change_of(request)))


@post("/users/{user_id:str}/reset", opt=EDITOR, summary="Reset a user's limits", status_code=200)
async def reset_user(
    admin: Admin, request: JsonRequest, user_id: UserId, data: JSONBody[ResetBody | None] = None
) -> Json:
    """Reset the limits of a user, except those that it shares with others."""
    done = await admin.users.reset({"user": user_id}, data.rules if data else (), actor_of(request))
    return {"user_id": user_id, **done}


@patch("/users/{user_id:str}", opt=EDITOR, summary="Change tier and overrides of a user")
async def patch_user(admin: Admin, request: JsonRequest, user_id: UserId) -> Response[Json]:
    """Change the tier and the overrides in a JSON merge patch (RFC 7396); null deletes them."""
    changed = await merge_patch_of(request)
    done = await admin.rules.patch(ObjectKind.USER, user_id, changed, *change_of(request))
    return _special(user_of(user_id, done.after))


@delete("/users/{user_id:str}", opt=EDITOR, summary="Delete tier and overrides of a user", status_code=204)
async def delete_user(admin: Admin, request: JsonRequest, user_id: UserId) -> None:
    """Delete the tier and overrides of a user."""
    await admin.rules.delete(ObjectKind.USER, user_id, *change_of(request))


@post("/explain", opt=VIEWER, summary="Explain the decision on a request", status_code=200)
async def explain(admin: Admin, data: JSONBody[ExplainBody]) -> Json:
    """Return for every rule whether it applies and why, its state, and its decision."""
    return await admin.explain(PolicyRequest(**msgspec.structs.asdict(data)))


def _special(user: Stored, **more: Any) -> Response[Json]:
    return Response({**user.shown, **more}, headers=etag(user.version))


ROUTES = (
    *(list_users, user_limits, set_tier, set_override, end_override, reset_user, patch_user, delete_user),
    explain,
)

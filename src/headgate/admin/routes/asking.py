"""What routes have in common: parameters of paths and queries, who asks and why, and versions in headers."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.exceptions import PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.params import PathParameter, QueryParameter

from headgate.admin.audit import Actor
from headgate.admin.keys import ApiKey
from headgate.admin.security import actor_name
from headgate.admin.service import AdminService
from headgate.core.errors import UsageError

MOST = 1000
"""Items of a page."""
_LONGEST_REASON = 1000
Json = dict[str, Any]
Admin = NamedDependency[AdminService]
Offset = Annotated[int, QueryParameter(ge=0, le=10_000_000, description="Items to leave out.")]
Limit = Annotated[int, QueryParameter(ge=1, le=MOST, description="Items of a page, at most.")]
RuleId = Annotated[str, PathParameter(pattern=r"^[A-Za-z0-9_.:/-]{1,64}$", description="The id of a rule.")]
UserId = Annotated[str, PathParameter(min_length=1, max_length=512, description="The value of the principal `user`.")]
Name = Annotated[str, PathParameter(min_length=1, max_length=64)]


async def role_guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuse keys whose role is not enough for a route."""
    if connection.scope["method"] == "OPTIONS":  # which methods a path has, anybody with a key may know
        return
    needed = handler.opt["role"]  # a route that forgets to say which opens to nobody
    key: ApiKey = connection.scope["state"]["key"]
    if not key.role.includes(needed):
        raise PermissionDeniedException(f"this key is a {key.role}'s; that needs a key of the role {needed}")


def actor_of(request: Request[Any, Any, Any]) -> Actor:
    """Return who asks; the header X-Reason says why."""
    known, reason = request.scope["state"], request.headers.get("x-reason", "")
    if len(reason) > _LONGEST_REASON:
        raise UsageError(f"X-Reason has at most {_LONGEST_REASON} characters")
    return Actor(actor_name(known["key"]), known["request_id"], reason)


def expected_version(request: Request[Any, Any, Any]) -> int | None:
    """Return the version that the header If-Match names; None for any."""
    if_match = request.headers.get("if-match", "*")
    if if_match.strip() == "*":
        return None
    text = if_match.strip().removeprefix("W/").strip('"')
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 2**31:
        raise UsageError(f'If-Match names a version, as the ETag of an answer does: "3", not {if_match!r:.40}')
    return int(text)


def etag(version: int) -> dict[str, str]:
    """Return the header that says the version of something."""
    return {"ETag": f'"{version}"'}


def decoded(raw: bytes) -> Any:
    """Return the JSON of a body. Raises UsageError."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.MsgspecError as error:
        raise UsageError(f"the body is not JSON: {error}") from None

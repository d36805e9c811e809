"""Common parts of routes: parameters, roles, the author and reason of a change, versions in headers, JSON bodies."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.exceptions import ClientException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.params import PathParameter, QueryParameter

from headgate.admin.audit import Actor, texts_of
from headgate.admin.keys import ApiKey, KeyRole
from headgate.admin.objects import ANY_VERSION
from headgate.admin.security import BodyTooLarge, actor_name, visible
from headgate.admin.service import AdminService
from headgate.core.errors import UsageError

MOST = 1000
"""Maximum number of items of a page."""
MERGE_PATCH = "application/merge-patch+json"
LONGEST_JSON = 1_048_576
"""Maximum size of a body other than a rules file, in bytes."""
_LONGEST_REASON = 1000
_VERSION = re.compile(r'(?:W/)?"?(0|[1-9][0-9]{0,9})"?')
Json = dict[str, Any]
WebRequest = Request[Any, Any, Any]
VIEWER, EDITOR, ADMIN = ({"role": role} for role in (KeyRole.VIEWER, KeyRole.EDITOR, KeyRole.ADMIN))
"""Options of routes: the role that they need; see `role_guard`."""
Admin = NamedDependency[AdminService]
Offset = Annotated[int, QueryParameter(ge=0, le=10_000_000, description="Items to leave out.")]
Limit = Annotated[int, QueryParameter(ge=1, le=MOST, description="Items of a page, at most.")]
Moment = Annotated[int | None, QueryParameter(ge=0, le=2**53, description="Microseconds since the epoch.")]
RuleId = Annotated[
    str,
    PathParameter(
        pattern=r"^[A-Za-z0-9_.:/-]{1,64}$", description="The id of a rule, 1 to 64 of A-Z a-z 0-9 _ . : / -"
    ),
]
UserId = Annotated[str, PathParameter(min_length=1, max_length=512, description="The value of the principal `user`.")]
Name = Annotated[str, PathParameter(min_length=1, max_length=64)]


def one_of(names: Sequence[str]) -> QueryParameter:
    """Declare a query parameter with one of some values."""
    return QueryParameter(enum=names, pattern=f"^({'|'.join(names)})$")


async def role_guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Raise 403 for keys whose role does not include that of the route."""
    if connection.scope.get("method") == "OPTIONS":  # every key may list the methods of a path
        return
    needed = handler.opt["role"]  # a route without it fails
    key: ApiKey = connection.scope["state"]["key"]
    if not key.role.includes(needed):
        raise PermissionDeniedException(f"this key has the role {key.role}; the request needs the role {needed}")


def actor_of(request: WebRequest) -> Actor:
    """Return the author of a request, with the reason in X-Reason. Raises UsageError."""
    reason = request.headers.get("x-reason", "")
    with contextlib.suppress(UnicodeError):  # most clients send UTF-8
        reason = reason.encode("latin-1").decode()
    return actor_with(request, reason)


def actor_with(request: WebRequest, reason: str) -> Actor:
    """Return the author of a request, with a reason. Raises UsageError."""
    if len(reason) > _LONGEST_REASON:
        raise UsageError(f"a reason has at most {_LONGEST_REASON} characters")
    state = request.scope["state"]
    return Actor(actor_name(state["key"]), state["request_id"], visible(reason))


def expected_version(request: WebRequest) -> int | None:
    """Return the version that a change replaces, by its headers; see `Operation.expected`. Raises UsageError.

    It is in ``If-Match``, where ``*`` is any version; ``If-None-Match: *`` requires that the object does not exist.
    """
    if_match, if_none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if if_none_match is not None:
        if if_none_match.strip() != "*" or if_match is not None:
            raise UsageError("If-None-Match must be *, to create an object, and excludes If-Match")
        return 0
    if if_match is None:
        return None
    if_match = if_match.strip()  # an empty one is refused: its client has lost the version
    if if_match == "*":
        return ANY_VERSION
    found = _VERSION.fullmatch(if_match)
    if found is None:
        raise UsageError(f'If-Match must be a version, like the ETag of a response: "3", not {if_match!r:.40}')
    return int(found[1])


async def merge_patch_of(request: WebRequest) -> Json:
    """Return the JSON merge patch (RFC 7396) in a body. Raises UsageError, and 415 for other media types."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in {MERGE_PATCH, "application/json"}:
        raise ClientException(f"the media type of a patch must be {MERGE_PATCH}", status_code=415)
    patch = decoded(await request.body())
    if not isinstance(patch, dict):
        raise UsageError("a patch must be an object with the members to change; null deletes a member")
    return patch


def etag(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"'}


def given(**filters: Any) -> Json:
    """Return the filters that a request has."""
    return {name: value for name, value in filters.items() if value is not None}


class JsonRequest(Request[Any, Any, Any]):
    """A request with the strict JSON of `decoded`."""

    async def json(self) -> Any:
        return decoded(await self.body())


def decoded(raw: bytes) -> Any:
    """Parse JSON without duplicate members, NaN and invisible characters. Raises UsageError and BodyTooLarge."""
    if len(raw) > LONGEST_JSON:
        raise BodyTooLarge(LONGEST_JSON)
    try:
        found = json.loads(raw.decode(), object_pairs_hook=_object, parse_constant=_no_number)
        for text in texts_of(found):
            visible(text)
        return found
    except UnicodeDecodeError:
        raise UsageError("the body is not JSON: it is not UTF-8") from None
    except RecursionError:
        raise UsageError("the body is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"the body is not JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise UsageError(f"the body has {twice!r:.80} twice")
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number")

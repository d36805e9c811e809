"""What routes have in common: parameters of paths and queries, who asks and why, and versions in headers."""

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
"""Items of a page."""
MERGE_PATCH = "application/merge-patch+json"
LONGEST_JSON = 1_048_576
"""Bytes of a body that is not a rules file."""
_LONGEST_REASON = 1000
_VERSION = re.compile(r'(?:W/)?"?(0|[1-9][0-9]{0,9})"?')
Json = dict[str, Any]
VIEWER, EDITOR, ADMIN = ({"role": role} for role in (KeyRole.VIEWER, KeyRole.EDITOR, KeyRole.ADMIN))
"""Options of routes: which role they need; see `role_guard`."""
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
    """Declare a parameter of a query that is one of some words."""
    return QueryParameter(enum=names, pattern=f"^({'|'.join(names)})$")


async def role_guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuse keys whose role is not enough for a route."""
    if connection.scope.get("method") == "OPTIONS":  # which methods a path has, anybody with a key may know
        return
    needed = handler.opt["role"]  # a route that forgets to say which opens to nobody
    key: ApiKey = connection.scope["state"]["key"]
    if not key.role.includes(needed):
        raise PermissionDeniedException(f"this key is a {key.role}'s; that needs a key of the role {needed}")


def actor_of(request: Request[Any, Any, Any]) -> Actor:
    """Return who asks; the header X-Reason says why. Raises UsageError."""
    known, reason = request.scope["state"], request.headers.get("x-reason", "")
    with contextlib.suppress(UnicodeError):  # most clients send UTF-8, which no header promises
        reason = reason.encode("latin-1").decode()
    if len(reason) > _LONGEST_REASON:
        raise UsageError(f"X-Reason has at most {_LONGEST_REASON} characters")
    return Actor(actor_name(known["key"]), known["request_id"], visible(reason))


def expected_version(request: Request[Any, Any, Any]) -> int | None:
    """Return the version that a change replaces by its headers; see `Operation.expected`. Raises UsageError.

    ``If-Match`` names it, or with ``*`` says that there is one; ``If-None-Match: *`` says that there is none.
    """
    if_match, if_none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if if_none_match is not None:
        if if_none_match.strip() != "*" or if_match is not None:
            raise UsageError("If-None-Match is *, for something new, and then there is no If-Match")
        return 0
    if if_match is None:
        return None
    if_match = if_match.strip()  # an empty one is refused: whoever sends it has lost the version, and does not know
    if if_match == "*":
        return ANY_VERSION
    found = _VERSION.fullmatch(if_match)
    if found is None:
        raise UsageError(f'If-Match names a version, as the ETag of an answer does: "3", not {if_match!r:.40}')
    return int(found[1])


async def merge_patch_of(request: Request[Any, Any, Any]) -> Json:
    """Return the JSON merge patch (RFC 7396) in a body. Raises UsageError, and 415 for a patch of another kind."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in {MERGE_PATCH, "application/json"}:
        raise ClientException(f"a patch is a JSON merge patch: {MERGE_PATCH}", status_code=415)
    patch = decoded(await request.body())
    if not isinstance(patch, dict):
        raise UsageError("a patch is an object, with the members that change; null deletes one")
    return patch


def etag(version: int) -> dict[str, str]:
    """Return the header that says the version of something."""
    return {"ETag": f'"{version}"'}


class JsonRequest(Request[Any, Any, Any]):
    """A request whose body is JSON that everybody understands alike."""

    async def json(self) -> Any:
        """Return the JSON of the body. Raises UsageError."""
        return decoded(await self.body())


def decoded(raw: bytes) -> Any:
    """Return the JSON of a body, in which each member is there once. Raises UsageError and BodyTooLarge."""
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

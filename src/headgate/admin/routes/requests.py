"""What routes share: parameters, roles, authors and reasons, versions, JSON bodies, methods, and waiting for nodes.

The OpenAPI document declares the parameters of each route. Unknown ones are refused, with a suggestion: a misspelt
filter would list everything, and a misspelt `dry_run` would change the rules.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any

from litestar import Litestar, Request
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency, Provide
from litestar.exceptions import ClientException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.params import PathParameter, QueryParameter
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp

from headgate.admin.audit import Actor, texts_of
from headgate.admin.database import DatabaseError
from headgate.admin.keys import ApiKey, KeyRole
from headgate.admin.objects import ANY_VERSION
from headgate.admin.security import SLASH, actor_name, body_too_large, visible
from headgate.admin.service import AdminService
from headgate.config.times import length_of
from headgate.core.errors import UsageError
from headgate.web.problem import shown

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
        raise UsageError(f"a reason must have at most {_LONGEST_REASON} characters")
    state = request.scope["state"]
    return Actor(actor_name(state["key"]), state["request_id"], visible(reason))


def expected_version(request: WebRequest) -> int | None:
    """Return the version that a change replaces, by its headers; see `Operation.expected`. Raises UsageError.

    It is in ``If-Match``, where ``*`` is any version; ``If-None-Match: *`` requires that the object does not exist.
    """
    if_match, if_none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if if_none_match is not None:
        if if_none_match.strip() != "*" or if_match is not None:
            raise UsageError("If-None-Match must be *, to create an object, and cannot be combined with If-Match")
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


def change_of(request: WebRequest) -> tuple[Actor, int | None]:
    """Return the author of a change, and the version that it replaces. Raises UsageError."""
    return actor_of(request), expected_version(request)


async def merge_patch_of(request: WebRequest) -> Json:
    """Return the JSON merge patch (RFC 7396) in a body. Raises UsageError, and 415 for other media types."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in {MERGE_PATCH, "application/json"}:
        raise ClientException(f"the media type of a patch must be {MERGE_PATCH}", status_code=415)
    patch = parse_json(await request.body())
    if not isinstance(patch, dict):
        raise UsageError("a patch must be an object with the members to change; null deletes a member")
    return patch


def etag(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"'}


def given(**filters: Any) -> Json:
    return {name: value for name, value in filters.items() if value is not None}


class JsonRequest(Request[Any, Any, Any]):
    """A request with the strict JSON of `parse_json`."""

    async def json(self) -> Any:
        return parse_json(await self.body())


def parse_json(raw: bytes) -> Any:
    """Parse JSON without duplicate members, NaN and invisible characters. Raises UsageError and Refused."""
    if len(raw) > LONGEST_JSON:
        raise body_too_large(LONGEST_JSON)
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
        raise UsageError(f"the body has the member {twice!r:.80} twice")
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number")


# Parameters


Parameters = Mapping[tuple[str, str], Mapping[str, Any]]
"""The OpenAPI objects of parameters by name, by the method and path of a route."""
_LONGEST_NAME, _MOST_FAULTS = 64, 20
_LONGEST_WAIT = 60.0
"""The longest wait for nodes, in seconds."""


class InvalidParameters(UsageError):
    """Unknown, duplicate, missing or invalid parameters. `faults` are pairs (name, what is wrong)."""

    def __init__(self, faults: Sequence[tuple[str, str]]) -> None:
        names = ", ".join(shown(name) for name, _ in faults)
        super().__init__(f"not acceptable in the URL: {names}; nothing was changed")
        self.faults = faults


def parameters_of(document: Mapping[str, Any]) -> Parameters:
    return {
        (method.upper(), path): {
            each["name"]: each for each in operation.get("parameters", ()) if each["in"] in {"path", "query"}
        }
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }


def parameters_for(connection: ASGIConnection[Any, Any, Any, Any]) -> Mapping[str, Any]:
    known: Parameters = connection.app.state.parameters
    return known.get((str(connection.scope.get("method")), connection.scope["path_template"]), {})


async def query_guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Raise InvalidParameters unless each parameter of the query is one of the route, and occurs once."""
    if connection.scope.get("method") == "OPTIONS":
        return
    known = {name: each for name, each in parameters_for(connection).items() if each["in"] == "query"}
    given = connection.query_params.dict()
    unknown, twice = sorted(given.keys() - known), [name for name in known if len(given.get(name, ())) > 1]
    faults = [(name, _unknown(name, known)) for name in unknown[:_MOST_FAULTS]]
    faults += [(name, "occurs more than once") for name in twice]
    for name, each in known.items():
        if each["schema"].get("type") != "string" and any(value.lower() == "null" for value in given.get(name, ())):
            faults.append((name, f"is not {describe(each['schema'])}"))  # Litestar would read it as not given
        if each.get("required") and name not in given:
            faults.append((name, f"is missing; it is {describe(each['schema'])}"))
    if "wait" in known and (waits := given.get("wait")):
        try:
            connection.scope["state"]["wait"] = patience = length_of(waits[0]) / 1_000_000
        except ValueError:
            patience = _LONGEST_WAIT + 1
        if patience > _LONGEST_WAIT:
            faults.append(("wait", f"is not {describe(known['wait']['schema'])}"))
    if faults:
        raise InvalidParameters(faults)


def invalid_parameters(known: Mapping[str, Any], faults: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the invalid parameters among the faults that Litestar found, as pairs (name, what is accepted)."""
    names = [str(each.get("key", "")) for each in faults if each.get("source") in {"path", "query"}]
    return [(name, f"is not {describe(known[name]['schema'])}") for name in names if name in known]


def describe(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    if schema["type"] == "boolean":
        return "true or false"
    note = str(schema.get("description", "")).rstrip(".")
    note = note[:1].lower() + note[1:]
    if "pattern" in schema:
        return note
    most = schema.get("maxLength")
    kind = f"text of {schema.get('minLength', 0)} to {most} characters" if most else "text"
    if schema["type"] == "integer":
        kind = f"a whole number from {schema.get('minimum', 0)} to {schema['maximum']}"
    return f"{kind} ({note})" if note else kind


def _unknown(name: str, known: Mapping[str, Any]) -> str:
    if not known:
        return "is unknown; there are no parameters here"
    near = get_close_matches(name[:_LONGEST_NAME].lower().replace("-", "_"), known, 1)
    if near:
        return f"is unknown; did you mean {near[0]}? It must be {describe(known[near[0]]['schema'])}"
    return f"is unknown; the parameters are: {', '.join(known)}"


# Of all routes


def dependencies_of(**values: Any) -> dict[str, Provide]:
    """Return dependencies of routes, by the names of their parameters."""
    return {name: _constant(value) for name, value in values.items()}


def _constant(value: Any) -> Provide:
    return Provide(lambda: value, sync_to_thread=False)


def slashes_and_options(app: ASGIApp) -> ASGIApp:
    """Restore slashes in path parameters (`SLASH`), and answer OPTIONS.

    Litestar's response to OPTIONS lists only the methods of the first handler of a path.
    """

    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        given = scope.get("path_params", {})
        scope["path_params"] = {name: str(value).replace(SLASH, "/") for name, value in given.items()}
        if scope["method"] == "OPTIONS":
            allowed = allowed_methods(scope["litestar_app"], scope["path"])
            await send({"type": "http.response.start", "status": 204, "headers": [(b"allow", allowed.encode())]})
            await send({"type": "http.response.body"})
        else:
            await app(scope, receive, send)

    return middleware


async def wait_for_nodes(message: Any, scope: Any) -> None:
    """Delay the response to a change until all nodes run it, if the query has `wait`, and name those that do not."""
    patience = scope["state"].get("wait")
    if patience is None or message["type"] != "http.response.start" or message["status"] >= 300:
        return
    try:
        revision, late = await scope["litestar_app"].state.admin.behind(patience)
    except DatabaseError:  # the change is committed: an error response would deny that
        fields = {"x-nodes-behind": "unknown: the database is unavailable"}
    else:
        shown = ", ".join(f"{node.host}:{node.process} (revision {node.revision})" for node in late)
        fields = {"x-revision": str(revision)} | ({"x-nodes-behind": shown} if late else {})
    added = [(name.encode(), value.encode("latin-1", "replace")) for name, value in fields.items()]
    message["headers"] = [*message.get("headers", ()), *added]


def allowed_methods(app: Litestar, path: str) -> str:
    found = (methods for pattern, methods in app.state.methods if pattern.fullmatch(path.rstrip("/")))
    return ", ".join(sorted({method for methods in found for method in methods}))


def methods_of(routes: Iterable[HTTPRoute]) -> list[tuple[re.Pattern[str], set[str]]]:
    """Return pairs of a pattern for paths and its methods, with HEAD wherever there is GET."""
    return [
        (
            re.compile("/".join("[^/]+" if part[:1] == "{" else re.escape(part) for part in route.path.split("/"))),
            set(route.methods) | ({"HEAD"} if "GET" in route.methods else set()),
        )
        for route in routes
    ]

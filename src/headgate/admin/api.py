"""The REST API of the admin plane: thin routes over `headgate.admin.service`.

Rules, tiers, users and overrides have the form that they have in a rules file. The ETag of an object is its version: a
change with an ``If-Match`` that is out of date fails with 412. Errors are problem documents (RFC 9457). docs/admin.md
has an example of every task.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

import msgspec
from litestar import Litestar, Request, Response, Router, get
from litestar.di import Provide
from litestar.openapi.config import OpenAPIConfig
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp

from headgate.admin import console
from headgate.admin.database import DatabaseError
from headgate.admin.openapi import document_of
from headgate.admin.parameters import parameters_of, query_guard
from headgate.admin.problems import allowed_methods, methods_of, problem_response
from headgate.admin.routes import consumers, operations, rules, usage, users
from headgate.admin.routes.asking import Json, JsonRequest, role_guard
from headgate.admin.security import READS, SLASH, WRITES, App, Gatekeeper
from headgate.admin.service import AdminService
from headgate.admin.sessions import Sessions
from headgate.reference.pages import PATHS, ReferenceFile, reference_files
from headgate.stores.base import AsyncStore
from headgate.web.deprecation import Deprecations

API = "/api/v1"


@get("/healthz", include_in_schema=False)
async def healthz() -> Json:
    return {"status": "ok"}


@get(sorted(PATHS), include_in_schema=False)
async def reference(request: Request[Any, Any, Any]) -> Response[bytes]:
    file = _reference_files()[request.scope["path_template"]]
    status, body = file.answer(request.headers.get("if-none-match", ""))
    return Response(body, status_code=status, headers=dict(file.headers))


@cache
def _reference_files() -> Mapping[str, ReferenceFile]:
    return reference_files(document())


def _slashes_and_options(app: ASGIApp) -> ASGIApp:
    """Restore slashes in path parameters (`headgate.admin.security.SLASH`), and answer OPTIONS.

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


async def _wait_for_nodes(message: Any, scope: Any) -> None:
    """Delay the response to a change until all nodes run it, if the query has `wait`, and name those that do not."""
    patience = scope["state"].get("wait")
    if patience is None or message["type"] != "http.response.start" or message["status"] >= 300:
        return
    try:
        revision, late = await scope["litestar_app"].state.reports.behind(patience)
    except DatabaseError:  # the change is committed: an error response would deny that
        fields = {"x-nodes-behind": "unknown: the database is unavailable"}
    else:
        shown = ", ".join(f"{node.host}:{node.process} (revision {node.revision})" for node in late)
        fields = {"x-revision": str(revision)} | ({"x-nodes-behind": shown} if late else {})
    added = [(name.encode(), value.encode("latin-1", "replace")) for name, value in fields.items()]
    message["headers"] = [*message.get("headers", ()), *added]


def application(
    admin: AdminService,
    *,
    reads: str = READS,
    writes: str = WRITES,
    store: AsyncStore | str = "memory",
    deprecations: Deprecations | None = None,
    sessions: Sessions | None = None,
) -> App:
    """Return the ASGI application of an admin plane: the REST API and the console.

    `reads` and `writes` are the limits of each key, counted in `store`. Responses at deprecated paths say so.
    """
    sessions = sessions or Sessions(admin.keys, None)
    app = Litestar(
        [*_HANDLERS, *console.handlers()],
        dependencies={
            "admin": Provide(lambda: admin, sync_to_thread=False),
            "sessions": Provide(lambda: sessions, sync_to_thread=False),
        },
        exception_handlers={Exception: _error_response},
        middleware=[_slashes_and_options],
        before_send=[_wait_for_nodes],
        openapi_config=None,
        request_class=JsonRequest,
        request_max_body_size=None,  # Gatekeeper enforces the limit
        logging_config=None,
    )
    app.state.reports = admin.reports
    app.state.parameters = parameters_of(msgspec.json.decode(document()))
    app.state.methods = methods_of(route for route in app.routes if isinstance(route, HTTPRoute))
    limits: dict[str, Any] = {"reads": reads, "writes": writes, "store": store}
    return Gatekeeper(cast("App", app), admin.keys, sessions=sessions, deprecations=deprecations, **limits)


def _error_response(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Return a page for a browser with a session, and a problem document for other clients."""
    in_console = "session" in request.scope["state"]
    return console.error_page(request, error) if in_console else problem_response(request, error)


@cache
def document() -> bytes:
    """Return the OpenAPI document, as JSON."""
    config = OpenAPIConfig(
        "Headgate", "1", operation_id_creator=lambda handler, *_: handler.handler_name, use_handler_docstrings=True
    )
    unused = {"admin": Provide(lambda: None, sync_to_thread=False)}
    app = Litestar(
        _HANDLERS, dependencies=unused, openapi_config=config, request_class=JsonRequest, logging_config=None
    )
    return msgspec.json.encode(document_of(app))


_HANDLERS: list[Any] = [
    Router(
        API,
        route_handlers=[*rules.ROUTES, *users.ROUTES, *consumers.ROUTES, *operations.ROUTES, *usage.ROUTES],
        guards=[role_guard, query_guard],
    ),
    healthz,
    reference,
]

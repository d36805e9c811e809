"""The REST API of the admin plane: each route in a few lines, over `headgate.admin.service`.

Bodies of rules, tiers, users and overrides are those of a rules file. What is in force has a version, which is its
ETag: a change that sends ``If-Match`` fails with 412 if somebody else was quicker. Whatever goes wrong is a problem
document (RFC 9457). docs/admin.md has an example of every task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from headgate.admin.problems import allowed_methods, explained, methods_of
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
    """Say that the process answers."""
    return {"status": "ok"}


@get(sorted(PATHS), include_in_schema=False)
async def reference(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Return a file of the API reference."""
    file = _reference_files()[request.scope["path_template"]]
    status, body = file.answer(request.headers.get("if-none-match", ""))
    return Response(body, status_code=status, headers=dict(file.headers))


@cache
def _reference_files() -> Mapping[str, ReferenceFile]:
    return reference_files(document())


def _restored(app: ASGIApp) -> ASGIApp:
    """Give ids in paths their slashes back, see `headgate.admin.security.SLASH`, and answer OPTIONS.

    Litestar's own answer has only the methods of the first handler of a path.
    """

    async def restored(scope: Any, receive: Any, send: Any) -> None:
        given = scope.get("path_params", {})
        scope["path_params"] = {name: str(value).replace(SLASH, "/") for name, value in given.items()}
        if scope["method"] == "OPTIONS":
            allowed = allowed_methods(scope["litestar_app"], scope["path"])
            await send({"type": "http.response.start", "status": 204, "headers": [(b"allow", allowed.encode())]})
            await send({"type": "http.response.body"})
        else:
            await app(scope, receive, send)

    return restored


def _waiting(admin: AdminService) -> Callable[[ASGIApp], ASGIApp]:
    """Return what lets answers about changes wait for the nodes, if the query says so, and name those that lag."""

    def waiting(app: ASGIApp) -> ASGIApp:
        async def waited(scope: Any, receive: Any, send: Any) -> None:
            async def answered(message: Any) -> None:
                patience = scope["state"].get("wait")
                if patience is not None and message["type"] == "http.response.start" and message["status"] < 300:
                    try:
                        revision, late = await admin.reports.behind(patience)
                    except DatabaseError:  # the change is made; an error now would say that it is not
                        fields = {"x-nodes-behind": "unknown, since the database does not answer"}
                    else:
                        shown = ", ".join(f"{node.host}:{node.process} (revision {node.revision})" for node in late)
                        fields = {"x-revision": str(revision)} | ({"x-nodes-behind": shown} if late else {})
                    added = [(name.encode(), value.encode("latin-1", "replace")) for name, value in fields.items()]
                    message["headers"] = [*message.get("headers", ()), *added]
                await send(message)

            await app(scope, receive, answered)

        return waited

    return waiting


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

    Each key may read, and write, so often, as a store counts it. Answers at paths that are going to go say so.
    """
    sessions = sessions or Sessions(admin.keys, None)
    app = Litestar(
        [*_HANDLERS, *console.handlers()],
        dependencies={
            "admin": Provide(lambda: admin, sync_to_thread=False),
            "sessions": Provide(lambda: sessions, sync_to_thread=False),
        },
        exception_handlers={Exception: _answered},
        middleware=[_restored, _waiting(admin)],
        openapi_config=None,
        request_class=JsonRequest,
        request_max_body_size=None,  # the gatekeeper's bound is the one that counts
        logging_config=None,
    )
    app.state.parameters = parameters_of(msgspec.json.decode(document()))
    app.state.methods = methods_of(route for route in app.routes if isinstance(route, HTTPRoute))
    options: dict[str, Any] = {"sessions": sessions, "reads": reads, "writes": writes, "store": store}
    return Gatekeeper(cast("App", app), admin.keys, deprecations=deprecations, **options)


def _answered(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Answer an error, people with a page and programs with a problem document."""
    return console.shown(request, error) if "session" in request.scope["state"] else explained(request, error)


@cache
def document() -> bytes:
    """Return the OpenAPI document, as JSON."""
    described = OpenAPIConfig(
        "Headgate", "1", operation_id_creator=lambda handler, *_: handler.handler_name, use_handler_docstrings=True
    )
    nothing = {"admin": Provide(lambda: None, sync_to_thread=False)}
    app = Litestar(
        _HANDLERS, dependencies=nothing, openapi_config=described, request_class=JsonRequest, logging_config=None
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

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
from litestar.openapi.config import OpenAPIConfig
from litestar.routes import HTTPRoute

from headgate.admin import console
from headgate.admin.openapi import document_of
from headgate.admin.problems import problem_response
from headgate.admin.routes import keys, reports, rules, users
from headgate.admin.routes.requests import (
    Json,
    JsonRequest,
    dependencies_of,
    methods_of,
    parameters_of,
    query_guard,
    role_guard,
    slashes_and_options,
    wait_for_nodes,
)
from headgate.admin.security import READS, WRITES, App, Gatekeeper
from headgate.admin.service import AdminService
from headgate.admin.sessions import Sessions
from headgate.reference.pages import PATHS, ReferenceFile, reference_files
from headgate.stores.base import AsyncStore
from headgate.web.deprecation import Deprecations

API = "/api/v1"


@get("/healthz", include_in_schema=False)
async def healthz() -> Json:
    return {"status": "ok"}


@get(sorted(PATHS | console.STATIC.keys()), include_in_schema=False)
async def static_file(request: Request[Any, Any, Any]) -> Response[bytes]:
    file = _files()[request.scope["path_template"]]
    status, body = file.answer(request.headers.get("if-none-match", ""))
    return Response(body, status_code=status, headers=dict(file.headers))


@cache
def _files() -> Mapping[str, ReferenceFile]:
    return {**reference_files(document()), **console.static_files()}


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

    `reads` and `writes` are the limits of each key, counted in `store`. Responses at deprecated paths are marked.
    """
    sessions = sessions or Sessions(admin.keys, None)
    app = Litestar(
        [*_HANDLERS, *console.handlers()],
        dependencies=dependencies_of(admin=admin, sessions=sessions),
        exception_handlers={Exception: _error_response},
        middleware=[slashes_and_options],
        before_send=[wait_for_nodes],
        openapi_config=None,
        request_class=JsonRequest,
        request_max_body_size=None,  # Gatekeeper enforces the limit
        logging_config=None,
    )
    app.state.admin = admin
    app.state.parameters = parameters_of(msgspec.json.decode(document()))
    app.state.methods = methods_of(route for route in app.routes if isinstance(route, HTTPRoute))
    limits: dict[str, Any] = {"reads": reads, "writes": writes, "store": store}
    return Gatekeeper(cast("App", app), admin.keys, sessions=sessions, deprecations=deprecations, **limits)


def _error_response(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    in_console = "session" in request.scope["state"]
    return console.error_page(request, error) if in_console else problem_response(request, error)


@cache
def document() -> bytes:
    config = OpenAPIConfig(
        "Headgate", "1", operation_id_creator=lambda handler, *_: handler.handler_name, use_handler_docstrings=True
    )
    unused = dependencies_of(admin=None)
    app = Litestar(
        _HANDLERS, dependencies=unused, openapi_config=config, request_class=JsonRequest, logging_config=None
    )
    return msgspec.json.encode(document_of(app))


_HANDLERS: list[Any] = [
    Router(
        API,
        route_handlers=[*rules.ROUTES, *users.ROUTES, *keys.ROUTES, *reports.ROUTES],
        guards=[role_guard, query_guard],
    ),
    healthz,
    static_file,
]

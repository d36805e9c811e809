"""The console: web pages over the same service as the REST API.

::

    rendering    templates, with their common variables, and filters for numbers, times and charts
    forms        submitted forms, and their token against forms of other sites
    pages/       a module for each part of the navigation; a page is a function that calls the service and renders
    templates/   HTML; layout.html is the frame of all pages, parts.html has shared macros
    static/      one style sheet, one script, one icon

Pages work without the script. With it, elements with ``data-live`` are refreshed, and forms with ``data-preview`` show
their effects while they are being edited.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import msgspec
from litestar import Response, Router
from litestar.di import Provide

from headgate.admin.console.forms import csrf_guard, form_of
from headgate.admin.console.pages import access, callers, editor, history, keys, overview, rules, trying
from headgate.admin.console.rendering import page
from headgate.admin.problems import problem_of
from headgate.admin.routes.requests import WebRequest, role_guard
from headgate.reference.pages import ReferenceFile, served_file

STATIC = {
    "/console.css": "text/css; charset=utf-8",
    "/console.js": "text/javascript; charset=utf-8",
    "/favicon.svg": "image/svg+xml",
}
"""The paths of static files, and their types."""
_TITLES = {403: "Not allowed", 404: "Not found", 409: "Changed in the meantime"}


def handlers() -> list[Any]:
    modules = (overview, callers, trying, rules, editor, history, keys, access)
    guarded = [route for module in modules for route in module.ROUTES]
    pages = Router(
        "/",
        route_handlers=guarded,
        guards=[role_guard, csrf_guard],
        dependencies={"form": Provide(form_of)},
        include_in_schema=False,
    )
    return [pages, *access.PUBLIC_ROUTES]


def error_page(request: WebRequest, error: Exception) -> Response[str]:
    problem = problem_of(error)
    title, body = _TITLES.get(problem.status, "Something went wrong"), msgspec.json.decode(problem.encode())
    return page(
        request, "error.html", status=problem.status, title=title, detail=body["detail"], faults=body.get("errors", ())
    )


def static_files() -> dict[str, ReferenceFile]:
    folder = files("headgate.admin.console") / "static"
    return {path: served_file((folder / path[1:]).read_bytes(), kind) for path, kind in STATIC.items()}

"""The routes of the pages and their files, and the page of an error."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

import msgspec
from litestar import Response, Router, get
from litestar.handlers import HTTPRouteHandler

from headgate.admin.console.forms import csrf_guard
from headgate.admin.console.pages import access, editor, history, keys, overview, rules, trying, who
from headgate.admin.console.rendering import page
from headgate.admin.problems import problem_of
from headgate.admin.routes.asking import WebRequest, role_guard

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_TITLES = {403: "Not allowed", 404: "Not found", 409: "Changed in the meantime"}


def handlers() -> list[Any]:
    modules = (overview, who, trying, rules, editor, history, keys, access)
    guarded = [route for module in modules for route in module.ROUTES]
    routes: list[Any] = [Router("/", route_handlers=guarded, guards=[role_guard, csrf_guard], include_in_schema=False)]
    routes += [_file(each) for each in ("console.css", "console.js", "favicon.svg")]
    return [*routes, *access.PUBLIC_ROUTES]


def error_page(request: WebRequest, error: Exception) -> Response[str]:
    problem = problem_of(error)
    title, body = _TITLES.get(problem.status, "Something went wrong"), msgspec.json.decode(problem.encode())
    return page(
        request, "error.html", status=problem.status, title=title, detail=body["detail"], faults=body.get("errors", ())
    )


@cache
def _content(name: str) -> tuple[bytes, str]:
    content = (files("headgate.admin.console") / "static" / name).read_bytes()
    return content, f'"{sha256(content).hexdigest()[:16]}"'


def _file(name: str) -> HTTPRouteHandler:
    """Return the route of a file, which browsers cache by its ETag."""

    @get(f"/{name}", include_in_schema=False, media_type=_TYPES[name.rpartition(".")[2]])
    async def file(request: WebRequest) -> Response[bytes]:
        content, tag = _content(name)
        is_known = request.headers.get("if-none-match") == tag
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        return Response(b"" if is_known else content, status_code=304 if is_known else 200, headers=headers)

    return file

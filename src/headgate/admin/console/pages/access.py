"""Log-in, which exchanges a key for a session in a cookie; log-out; and the sessions of a key."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from litestar import Response, get, post
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.response import Redirect

from headgate.admin.console.forms import form_of
from headgate.admin.console.rendering import page
from headgate.admin.database import DatabaseError
from headgate.admin.keys import KeyRole
from headgate.admin.routes.asking import VIEWER, Admin, WebRequest
from headgate.admin.security import COOKIE, IDENTIFY
from headgate.admin.sessions import LONGEST_US, Sessions
from headgate.web.problem import ProblemDocument, of_status

SignedIn = NamedDependency[Sessions]
_OTHER_PLANE = "this key is for the decision plane; it is not accepted here"


@get("/login")
async def log_in_page(request: WebRequest, sessions: SignedIn) -> Response[Any]:
    place, token = _within(request.query_params.get("next", "")), request.cookies.get(COOKIE, "")
    with suppress(DatabaseError):  # which the log-in reports
        if token and await sessions.find(token) is not None:
            return Redirect(place, status_code=303)
    return page(request, "login.html", place=place, problem=None)


@post("/login", status_code=200)
async def log_in(request: WebRequest, sessions: SignedIn) -> Response[Any]:
    form = await form_of(request)
    place, text = _within(form.get("next", "")), form.get("key", "")
    found = await request.scope["state"][IDENTIFY](text)
    if not isinstance(found, ProblemDocument) and found.role is KeyRole.CHECK:
        found = of_status(403, _OTHER_PLANE)
    token = ""
    if not isinstance(found, ProblemDocument):
        try:
            token = await sessions.begin(found, text)
        except DatabaseError as error:
            found = of_status(503, f"sessions cannot be saved: {error.public}")
    if isinstance(found, ProblemDocument):
        return page(request, "login.html", status=found.status, place=place, problem=found)
    cookie = Cookie(
        COOKIE,
        value=token,
        httponly=True,
        samesite="strict",
        secure=_is_secure(request),
        max_age=LONGEST_US // 1_000_000,
    )
    return Redirect(place, status_code=303, cookies=[cookie])


@post("/logout", opt=VIEWER, status_code=303)
async def log_out(request: WebRequest, sessions: SignedIn) -> Redirect:
    """End this session, or all sessions of its key."""
    session = request.scope["state"].get("session")
    if session is not None and (await form_of(request)).get("everywhere"):
        await sessions.end_all(session.key_id)
    elif session is not None:
        await sessions.end(session)
    gone = Cookie(COOKIE, value="", httponly=True, samesite="strict", secure=_is_secure(request), max_age=0)
    return Redirect("/login", status_code=303, cookies=[gone])


@get("/about", opt=VIEWER)
async def about(request: WebRequest, admin: Admin, sessions: SignedIn) -> Response[str]:
    state = request.scope["state"]
    found = await sessions.of_key(state["key"].id)
    return page(request, "about.html", source=admin.rules.source, sessions=found, mine=state.get("session"))


def _within(place: str) -> str:
    """Return the page after the log-in, which must be one of the console."""
    is_ours = place[:1] == "/" and place[1:2] not in {"/", "\\"} and place.isprintable() and place != "/login"
    return place if is_ours else "/"


def _is_secure(request: WebRequest) -> bool:
    """Whether the browser came by TLS, which may end at a proxy before us."""
    return "https" in {request.scope["scheme"], urlsplit(request.headers.get("origin", "")).scheme}


PUBLIC_ROUTES = [log_in_page, log_in]
ROUTES = [log_out, about]

"""Login, which exchanges a key for a session in a cookie; logout; and the sessions of a key."""

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
from headgate.admin.routes.requests import VIEWER, Admin, WebRequest
from headgate.admin.security import COOKIE, IDENTIFY, Refused
from headgate.admin.sessions import LONGEST_US, Sessions
from headgate.web.problem import of_status

SignedIn = NamedDependency[Sessions]


@get("/login")
async def log_in_page(request: WebRequest, sessions: SignedIn) -> Response[Any]:
    place, token = _within(request.query_params.get("next", "")), request.cookies.get(COOKIE, "")
    with suppress(DatabaseError):  # which the login reports
        if token and await sessions.find(token) is not None:
            return Redirect(place, status_code=303)
    return page(request, "login.html", place=place, problem=None)


@post("/login", status_code=200)
async def log_in(request: WebRequest, sessions: SignedIn) -> Response[Any]:
    form = await form_of(request)
    place, text = _within(form.get("next", "")), form.get("key", "")
    try:
        token = await sessions.begin(await request.scope["state"][IDENTIFY](text), text)
    except DatabaseError as error:
        problem = of_status(503, f"sessions cannot be saved: {error.public}")
    except Refused as refused:
        problem = refused.problem
    else:
        return Redirect(place, status_code=303, cookies=[_cookie(request, token, LONGEST_US // 1_000_000)])
    return page(request, "login.html", status=problem.status, place=place, problem=problem)


@post("/logout", opt=VIEWER, status_code=303)
async def log_out(request: WebRequest, sessions: SignedIn) -> Redirect:
    """End this session, or all sessions of its key."""
    session = request.scope["state"].get("session")
    if session is not None and (await form_of(request)).get("everywhere"):
        await sessions.end_all(session.key_id)
    elif session is not None:
        await sessions.end(session)
    return Redirect("/login", status_code=303, cookies=[_cookie(request, "", 0)])


@get("/about", opt=VIEWER)
async def about(request: WebRequest, admin: Admin, sessions: SignedIn) -> Response[str]:
    state = request.scope["state"]
    found = await sessions.of_key(state["key"].id)
    return page(request, "about.html", source=admin.rules.source, sessions=found, mine=state.get("session"))


def _within(place: str) -> str:
    """Return the page after the login, which must be one of the console."""
    is_ours = place[:1] == "/" and place[1:2] not in {"/", "\\"} and place.isprintable() and place != "/login"
    return place if is_ours else "/"


def _cookie(request: WebRequest, token: str, max_age: int) -> Cookie:
    """Return the cookie of a session, for TLS only if the browser uses it, which may end at a proxy before us."""
    is_secure = "https" in {request.scope["scheme"], urlsplit(request.headers.get("origin", "")).scheme}
    return Cookie(COOKIE, value=token, httponly=True, samesite="strict", secure=is_secure, max_age=max_age)


PUBLIC_ROUTES = [log_in_page, log_in]
ROUTES = [log_out, about]

"""What runs here, and who is logged in where."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get

from headgate.admin.console.pages.access import SignedIn
from headgate.admin.console.rendering import page
from headgate.admin.routes.asking import VIEWER, Admin


@get("/about", opt=VIEWER)
async def about(request: Request[Any, Any, Any], admin: Admin, sessions: SignedIn) -> Response[str]:
    """Show what runs here, and the sessions of this key."""
    state = request.scope["state"]
    found = await sessions.of_key(state["key"].id)
    return page(request, "about.html", source=admin.rules.source, sessions=found, mine=state.get("session"))


ROUTES = [about]

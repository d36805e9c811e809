"""What was changed, by whom and why; and taking it back."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Response, get, post
from litestar.params import QueryParameter
from litestar.response import Redirect

from headgate.admin.console.forms import actor_of, form_of, number_of
from headgate.admin.console.rendering import link, page
from headgate.admin.objects import VersionConflict
from headgate.admin.revisions import Superseded
from headgate.admin.routes.asking import EDITOR, VIEWER, Admin, Offset
from headgate.core.errors import UsageError

Number = Annotated[int, QueryParameter(ge=1, le=2**53)]
_ROWS = 50


@get("/revisions", opt=VIEWER)
async def revisions(request: Request[Any, Any, Any], admin: Admin, offset: Offset = 0) -> Response[str]:
    """List changes, the newest first."""
    found = await admin.changes.revisions(offset, _ROWS)
    return page(request, "revisions.html", found=found, offset=offset, rows=_ROWS)


@get("/revision", opt=VIEWER)
async def revision(request: Request[Any, Any, Any], admin: Admin, n: Number, offset: Offset = 0) -> Response[str]:
    """Show what a revision changed."""
    found, (newest, late) = await admin.changes.revision(n, offset, _ROWS), await admin.reports.behind(0)
    known: dict[str, Any] = {"found": found, "newest": newest, "late": late, "offset": offset, "rows": _ROWS}
    return page(request, "revision.html", is_new="new" in request.query_params, **known)


@get("/undo", opt=EDITOR)
async def undo_page(request: Request[Any, Any, Any], admin: Admin, n: Number) -> Response[str]:
    """Show what an undo would change, and which later changes stand in its way."""
    return await _undo_page(request, admin, n, force="force" in request.query_params)


@post("/undo", opt=EDITOR, status_code=200)
async def undo(request: Request[Any, Any, Any], admin: Admin) -> Response[Any]:
    """Take a revision back."""
    form = await form_of(request)
    number, force, seen = number_of(form, "n"), "force" in form, number_of(form, "seen")
    try:
        done = await admin.changes.undo(number, actor_of(request, form), seen, force=force, dry_run=False, limit=1)
    except (Superseded, UsageError, VersionConflict) as error:
        return await _undo_page(request, admin, number, force=force, error=error)
    return Redirect(link("/revision", n=done["revision"], new=1), status_code=303)


async def _undo_page(
    request: Request[Any, Any, Any], admin: Admin, number: int, *, force: bool, error: Exception | None = None
) -> Response[str]:
    found, newest = await admin.changes.revision(number, 0, 1), await admin.rules.revision()
    known: dict[str, Any] = {
        "found": found,
        "newest": newest,
        "force": force,
        "error": error,
        "conflicts": (),
        "tried": None,
    }
    actor = actor_of(request, {})
    try:
        known["tried"] = await admin.changes.undo(number, actor, newest, force=force, dry_run=True, limit=_ROWS)
    except Superseded as stands:
        known["conflicts"] = stands.conflicts[:_ROWS]
    except UsageError as impossible:
        known["error"] = error or impossible
    return page(request, "undo.html", status=409 if error else 200, **known)


ROUTES = [revisions, revision, undo_page, undo]

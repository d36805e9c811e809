"""Revisions and their undo, and the audit trail."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, get, post
from litestar.params import QueryParameter
from litestar.response import Redirect

from headgate.admin.console.forms import FormFields, actor_of, number_of
from headgate.admin.console.rendering import link, page
from headgate.admin.keys import KeyRole
from headgate.admin.objects import VersionConflict
from headgate.admin.revisions import Superseded
from headgate.admin.routes.requests import EDITOR, VIEWER, Admin, Offset, WebRequest
from headgate.core.errors import UsageError

Number = Annotated[int, QueryParameter(ge=1, le=2**53)]
_ROWS = 50
_FILTERS = ("actor", "action", "kind", "subject")
_ACTIONS = ("create", "update", "delete", "revoke", "rotate", "reset", "cut")
_KINDS = ("rule", "tier", "user", "setting", "key", "consumer", "order", "audit")


@get("/revisions", opt=VIEWER)
async def revisions(request: WebRequest, admin: Admin, offset: Offset = 0) -> Response[str]:
    found = await admin.revisions(offset, _ROWS)
    return page(request, "revisions.html", found=found, offset=offset, rows=_ROWS)


@get("/revision", opt=VIEWER)
async def revision(request: WebRequest, admin: Admin, n: Number, offset: Offset = 0) -> Response[str]:
    found, (newest, late) = await admin.revision(n, offset, _ROWS), await admin.behind(0)
    known: dict[str, Any] = {"found": found, "newest": newest, "late": late, "offset": offset, "rows": _ROWS}
    return page(request, "revision.html", is_new="new" in request.query_params, **known)


@get("/undo", opt=EDITOR)
async def undo_page(request: WebRequest, admin: Admin, n: Number) -> Response[str]:
    """Show what an undo would change, and the later changes that prevent it."""
    return await _undo_page(request, admin, n, force="force" in request.query_params)


@post("/undo", opt=EDITOR, status_code=200)
async def undo(request: WebRequest, admin: Admin, form: FormFields) -> Response[Any]:
    number, force, seen = number_of(form, "n"), "force" in form, number_of(form, "seen")
    try:
        done = await admin.undo(number, actor_of(request, form), seen, force=force, dry_run=False, limit=1)
    except (Superseded, UsageError, VersionConflict) as error:
        return await _undo_page(request, admin, number, force=force, error=error)
    return Redirect(link("/revision", n=done["revision"], new=1), status_code=303)


async def _undo_page(
    request: WebRequest, admin: Admin, number: int, *, force: bool, error: Exception | None = None
) -> Response[str]:
    found, newest = await admin.revision(number, 0, 1), await admin.rules.revision()
    known: dict[str, Any] = {"found": found, "newest": newest, "force": force, "error": error}
    known |= {"conflicts": (), "tried": None}
    actor = actor_of(request, {})
    try:
        known["tried"] = await admin.undo(number, actor, newest, force=force, dry_run=True, limit=_ROWS)
    except Superseded as superseded:
        known["conflicts"] = superseded.conflicts[:_ROWS]
    except UsageError as invalid:
        known["error"] = error or invalid
    return page(request, "undo.html", status=409 if error else 200, **known)


@get("/audit", opt=VIEWER)
async def audit(request: WebRequest, admin: Admin, offset: Offset = 0) -> Response[str]:
    """Show the audit trail; changes of keys only to admins."""
    given = {name: request.query_params.get(name, "").strip() for name in _FILTERS}
    filters = {name: value for name, value in given.items() if value}
    if not request.scope["state"]["key"].role.includes(KeyRole.ADMIN):
        filters["without"] = "key"
    found = await admin.audit(filters, offset, _ROWS)
    chain = await admin.verify_audit() if "verify" in request.query_params else None
    known: dict[str, Any] = {"given": given, "found": found, "chain": chain, "offset": offset, "rows": _ROWS}
    return page(request, "audit.html", actions=_ACTIONS, kinds=_KINDS, **known)


ROUTES = [revisions, revision, undo_page, undo, audit]

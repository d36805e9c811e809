"""The audit trail: who did what, and whether anybody has tampered with it."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get

from headgate.admin.console.rendering import page
from headgate.admin.keys import KeyRole
from headgate.admin.routes.asking import VIEWER, Admin, Offset

_ROWS = 50
_FILTERS = ("actor", "action", "kind", "subject")
ACTIONS = ("create", "update", "delete", "revoke", "rotate", "reset", "cut")
KINDS = ("rule", "tier", "user", "setting", "key", "consumer", "order", "audit")


@get("/audit", opt=VIEWER)
async def audit(request: Request[Any, Any, Any], admin: Admin, offset: Offset = 0) -> Response[str]:
    """Show the audit trail; what it says about keys, to admins."""
    given = {name: request.query_params.get(name, "").strip() for name in _FILTERS}
    filters = {name: value for name, value in given.items() if value}
    if not request.scope["state"]["key"].role.includes(KeyRole.ADMIN):
        filters["without"] = "key"
    found = await admin.reports.audit(filters, offset, _ROWS)
    chain = await admin.reports.verify_audit() if "verify" in request.query_params else None
    known: dict[str, Any] = {"given": given, "found": found, "chain": chain, "offset": offset, "rows": _ROWS}
    return page(request, "audit.html", actions=ACTIONS, kinds=KINDS, **known)


ROUTES = [audit]

"""The table of rules."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get

from headgate.admin.console.rendering import page
from headgate.admin.objects import ObjectKind
from headgate.admin.routes.asking import VIEWER, Admin, Offset

_ROWS = 50


@get("/rules", opt=VIEWER)
async def rules(request: Request[Any, Any, Any], admin: Admin, offset: Offset = 0) -> Response[str]:
    """Show some rules."""
    found = await admin.page(ObjectKind.RULE, {}, "position", offset, _ROWS)
    return page(request, "rules.html", found=found, offset=offset, rows=_ROWS)


ROUTES = [rules]

"""The first page: what the fleet decides now, and what needs somebody."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get

from headgate.admin.console.rendering import page
from headgate.admin.routes.asking import VIEWER, Admin


@get("/", opt=VIEWER)
async def overview(request: Request[Any, Any, Any], admin: Admin) -> Response[str]:
    """Show what the fleet decides now."""
    nodes = await admin.reports.nodes()
    return page(request, "overview.html", nodes=nodes)


ROUTES = [overview]

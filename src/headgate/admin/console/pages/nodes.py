"""The services that share these rules."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get

from headgate.admin.console.rendering import page
from headgate.admin.routes.asking import VIEWER, Admin


@get("/nodes", opt=VIEWER)
async def nodes(request: Request[Any, Any, Any], admin: Admin) -> Response[str]:
    """Show the services that follow the database."""
    return page(request, "nodes.html", found=await admin.reports.nodes())


ROUTES = [nodes]

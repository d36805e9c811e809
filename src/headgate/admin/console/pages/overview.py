"""The overview of the fleet with its problems, and the list of nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from litestar import Response, get

from headgate.admin.console.charts import Chart, Series, stacked
from headgate.admin.console.rendering import page
from headgate.admin.routes.asking import VIEWER, Admin, WebRequest
from headgate.admin.tables import epoch_us
from headgate.observe.rates import STEP_SECONDS, STEPS

_ROWS = 8


@get("/", opt=VIEWER)
async def overview(request: WebRequest, admin: Admin) -> Response[str]:
    live = await admin.reports.live()
    return page(request, "overview.html", live=live, chart=_chart(live["history"]["points"]), rows=_ROWS)


@get("/nodes", opt=VIEWER)
async def nodes(request: WebRequest, admin: Admin) -> Response[str]:
    return page(request, "nodes.html", live=await admin.reports.live())


def _chart(points: list[dict[str, Any]]) -> Chart:
    """Return the chart of the last ten minutes, for a fleet that has just started too."""
    found = {int(datetime.fromisoformat(point["at"]).timestamp()): point for point in points}
    last = max(found, default=epoch_us() // 1_000_000)
    times = [last - STEP_SECONDS * back for back in reversed(range(STEPS))]
    kinds = (("allowed", "accent"), ("refused", "bad"))
    series = [
        Series(name.capitalize(), kind, [found[at][name] if at in found else 0 for at in times]) for name, kind in kinds
    ]
    return stacked([at * 1_000_000 for at in times], series)


ROUTES = [overview, nodes]

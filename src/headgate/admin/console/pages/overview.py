"""The overview of the fleet with its problems, and the list of nodes."""

from __future__ import annotations

from typing import Any

from litestar import Response, get

from headgate.admin.console.charts import Chart, Series, by_step, moment_of, stack
from headgate.admin.console.rendering import page
from headgate.admin.routes.requests import VIEWER, Admin, WebRequest
from headgate.admin.tables import epoch_us
from headgate.observe.rates import STEP_US, STEPS

_ROWS = 8


@get("/", opt=VIEWER)
async def overview(request: WebRequest, admin: Admin) -> Response[str]:
    live = await admin.live()
    return page(request, "overview.html", live=live, chart=_chart(live["history"]["points"]), rows=_ROWS)


@get("/nodes", opt=VIEWER)
async def nodes(request: WebRequest, admin: Admin) -> Response[str]:
    return page(request, "nodes.html", live=await admin.live())


def _chart(points: list[dict[str, Any]]) -> Chart:
    """Return the chart of the last ten minutes, for a fleet that has just started too."""
    last = max((moment_of(point["at"]) for point in points), default=epoch_us())
    times = [last - STEP_US * back for back in reversed(range(STEPS))]
    kinds = (("allowed", "accent"), ("refused", "bad"))
    return stack(times, [Series(name.capitalize(), kind, by_step(points, [name], times)) for name, kind in kinds])


ROUTES = [overview, nodes]

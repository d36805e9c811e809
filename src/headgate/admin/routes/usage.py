"""Routes of usage: what rules decided, for planning and for pictures."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.params import QueryParameter

from headgate.admin.keys import KeyRole
from headgate.admin.routes.asking import Admin, Json, Limit, Offset
from headgate.admin.usage import OUTCOMES, STEPS

Moment = Annotated[int | None, QueryParameter(ge=0, le=2**53, description="Microseconds since the epoch.")]
RuleName = Annotated[str | None, QueryParameter(pattern=r"^[^\x00]{1,200}$", description="The id of a rule.")]


@get("/usage", opt={"role": KeyRole.VIEWER}, summary="How often rules decided what")
async def list_usage(
    admin: Admin,
    rule_id: RuleName = None,
    outcome: Annotated[str | None, QueryParameter(pattern="^(" + "|".join(OUTCOMES) + ")$")] = None,
    since: Moment = None,
    until: Moment = None,
    step: Annotated[str, QueryParameter(pattern="^(" + "|".join(STEPS) + ")$")] = "minute",
    offset: Offset = 0,
    limit: Limit = 100,
) -> Json:
    """Return how often each rule decided what in each minute or hour that begins in a time, the newest first.

    Without `since`, that is the last day by minute, and the last 30 days by hour. Minutes are kept for 30 days, hours
    for a year.
    """
    given = {"rule_id": rule_id, "outcome": outcome, "since": since, "until": until}
    filters = {name: value for name, value in given.items() if value is not None}
    return (await admin.usage(filters, step, offset, limit))._asdict()


ROUTES = (list_usage,)

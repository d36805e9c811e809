"""Routes of usage, of estimates for other limits, and of the last refusals of callers."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.params import QueryParameter

from headgate.admin.objects import ObjectKind
from headgate.admin.refusals import STEPS as REFUSAL_STEPS
from headgate.admin.refusals import WHO
from headgate.admin.routes.asking import VIEWER, Admin, Json, Limit, Moment, Offset, RuleId, given, one_of
from headgate.admin.usage import OUTCOMES, STEPS
from headgate.observe.principal_use import LONGEST_WINDOW_US
from headgate.observe.refusals import shown_as
from headgate.policy.loading import rule_from_data

RuleName = Annotated[str | None, QueryParameter(pattern=r"^[^\x00]{1,200}$", description="The id of a rule.")]

Who = Annotated[str | None, QueryParameter(pattern=r"^[^\x00]{1,512}$", description="A caller, or its digest.")]


@get("/usage", opt=VIEWER, summary="Get the decisions of rules by minute or hour")
async def list_usage(
    admin: Admin,
    rule_id: RuleName = None,
    outcome: Annotated[str | None, one_of(OUTCOMES)] = None,
    since: Moment = None,
    until: Moment = None,
    step: Annotated[str, one_of(STEPS)] = "minute",
    offset: Offset = 0,
    limit: Limit = 100,
) -> Json:
    """Return the decisions of each rule, by outcome, in each minute or hour that begins in a period, the newest first.

    Without `since`, the period is the last day by minute, and the last 30 days by hour. Minutes are kept for 30 days,
    hours for a year.
    """
    filters = given(rule_id=rule_id, outcome=outcome, since=since, until=until)
    return (await admin.reports.usage(filters, step, offset, limit))._asdict()


@get("/rules/{rule_id:str}/what-if", opt=VIEWER, summary="Estimate what another limit would have refused")
async def what_if(
    admin: Admin,
    rule_id: RuleId,
    limit: Annotated[int, QueryParameter(ge=1, le=2**53 - 1, description="Units in a window.")],
    window_seconds: Annotated[int | None, QueryParameter(ge=1, le=LONGEST_WINDOW_US // 1_000_000)] = None,
    in_force: Annotated[int | None, QueryParameter(ge=1, le=2**53 - 1, description="Callers with this limit.")] = None,
    since: Moment = None,
    until: Moment = None,
) -> Json:
    """Estimate what another limit of a rule would have refused, from the use of each principal in its windows.

    The period is the last 7 days, unless `since` and `until` name another. The estimate is for principals with the
    rule's limit, or with the limit `in_force`, such as a tier's. `window_seconds` selects one of several windows.
    """
    window_us = None if window_seconds is None else window_seconds * 1_000_000
    rule = rule_from_data((await admin.get(ObjectKind.RULE, rule_id)).body)
    return await admin.changes.what_if(rule, limit, window_us=window_us, in_force=in_force, since=since, until=until)


@get("/refusals", opt=VIEWER, summary="List the last refusals of a user, a key or an address")
async def list_refusals(
    admin: Admin,
    user: Who = None,
    apikey: Who = None,
    ip: Who = None,
    principal: Who = None,
    rule_id: RuleName = None,
    since: Moment = None,
    until: Moment = None,
    step: Annotated[str, one_of(REFUSAL_STEPS)] = "each",
    offset: Offset = 0,
    limit: Limit = 100,
) -> Json:
    """Return the refusals of the last day, the newest first, or with `step=hour` their numbers by hour.

    Filter by the name of a caller, or by its digest in logs. `principal` is the one that the rule counts: a user, a
    key, an address, an attribute, or the entries of a descriptor.
    """
    filters = given(rule_id=rule_id, since=since, until=until)
    for name, value in zip(WHO, (user, apikey, ip, principal), strict=True):
        if value is not None:
            filters[name] = shown_as(name, value)
    return (await admin.reports.refusals(filters, step, offset, limit))._asdict()


ROUTES = (list_usage, what_if, list_refusals)

"""Routes of nodes, usage, estimates for other limits, refusals, revisions and the audit trail."""

from __future__ import annotations

from typing import Annotated

from litestar import MediaType, Response, get, post
from litestar.exceptions import PermissionDeniedException
from litestar.params import FromQuery, PathParameter, QueryParameter

from headgate.admin.keys import KeyRole
from headgate.admin.objects import ObjectKind
from headgate.admin.refusals import STEPS as REFUSAL_STEPS
from headgate.admin.refusals import WHO
from headgate.admin.routes.requests import (
    EDITOR,
    VIEWER,
    Admin,
    Json,
    JsonRequest,
    Limit,
    Moment,
    Offset,
    RuleId,
    change_of,
    given,
    one_of,
)
from headgate.admin.usage import OUTCOMES, STEPS
from headgate.admin.what_if import limit_change, not_counted
from headgate.observe.principal_use import LONGEST_WINDOW_US
from headgate.observe.refusals import shown_as
from headgate.policy.loading import rule_from_data


@get("/nodes", opt=VIEWER, summary="List nodes and the revision that each runs")
async def list_nodes(admin: Admin) -> Json:
    """List the services that follow the database."""
    return await admin.nodes()


@get("/hot-keys", opt=VIEWER, summary="Hot keys: the callers with most requests and refusals")
async def hot_keys(admin: Admin) -> Response[bytes]:
    """Return hot keys, as the decision plane's ``/hotkeys`` does."""
    return Response(admin.hot_keys(), media_type=MediaType.JSON)


@get("/live", opt=VIEWER, summary="Get the current decisions and problems of all nodes")
async def live(admin: Admin) -> Json:
    """Return requests per second of the fleet, their history of ten minutes, the busiest rules and keys, and all nodes.

    Rates are averages of the last five seconds, updated every 2.5. Without a database, or while it is unavailable, they
    are those of this node only: `scope` is then `node`, and `reason` has the cause.
    """
    return await admin.live()


# Usage


RuleName = Annotated[str | None, QueryParameter(pattern=r"^[^\x00]{1,200}$", description="The id of a rule.")]

Who = Annotated[str | None, QueryParameter(pattern=r"^[^\x00]{1,512}$", description="A caller, or its digest.")]


@get("/usage", opt=VIEWER, summary="Get decisions per rule, by minute or hour")
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
    return (await admin.usage(filters, step, offset, limit))._asdict()


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
    rule = rule_from_data((await admin.get(ObjectKind.RULE, rule_id)).body)
    window_us = None if window_seconds is None else window_seconds * 1_000_000
    estimate = await admin.what_if(limit_change(rule, limit, window_us, in_force), since, until)
    return {**estimate, "not_counted": not_counted(rule.quotas)}


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
    return (await admin.refusals(filters, step, offset, limit))._asdict()


# Revisions


Number = Annotated[int, PathParameter(ge=1, le=2**53, description="The number of a revision.")]


@get("/revisions", opt=VIEWER, summary="List revisions with their changes, authors and reasons")
async def list_revisions(admin: Admin, offset: Offset = 0, limit: Limit = 100) -> Json:
    """List all revisions in the audit trail, the newest first."""
    return (await admin.revisions(offset, limit))._asdict()


@get("/revisions/{number:str}", opt=VIEWER, summary="Get the changes of a revision")
async def get_revision(admin: Admin, number: Number, offset: Offset = 0, limit: Limit = 100) -> Json:
    """Return a revision with a page of its changes, each with the states before and after."""
    return await admin.revision(number, offset, limit)


@post("/revisions/{number:str}/undo", opt=EDITOR, summary="Undo a revision", status_code=200)
async def undo_revision(
    admin: Admin,
    request: JsonRequest,
    number: Number,
    force: FromQuery[bool] = False,
    dry_run: FromQuery[bool] = False,
    limit: Limit = 100,
) -> Json:
    """Undo a revision by a new one, which can be undone too.

    Later changes of the same objects are conflicts (409), unless `force` undoes them as well. `limit` bounds the
    changes in the response. `If-Match` is the revision that must be in force.
    """
    return await admin.undo(number, *change_of(request), force=force, dry_run=dry_run, limit=limit)


# Audit


@get("/audit", opt=VIEWER, summary="Who changed what")
async def list_audit(
    admin: Admin,
    request: JsonRequest,
    actor: FromQuery[str | None] = None,
    action: FromQuery[str | None] = None,
    kind: FromQuery[str | None] = None,
    subject: FromQuery[str | None] = None,
    since: Moment = None,
    until: Moment = None,
    offset: Offset = 0,
    limit: Limit = 100,
) -> Json:
    """Return the audit trail, the newest entries first. Changes of keys are visible to the role admin."""
    without = None if request.scope["state"]["key"].role.includes(KeyRole.ADMIN) else "key"
    if kind == without == "key":
        raise PermissionDeniedException("changes of keys are visible only to keys of the role admin")
    filters = given(actor=actor, action=action, kind=kind, subject=subject, since=since, until=until, without=without)
    return (await admin.audit(filters, offset, limit))._asdict()


@get("/audit/verify", opt=VIEWER, summary="Verify the chain of the audit trail")
async def verify_audit(
    admin: Admin,
    contains: Annotated[str, QueryParameter(max_length=64, description="A digest that must be in the chain.")] = "",
) -> Json:
    """Verify the whole audit trail, and report whether it was tampered with."""
    return await admin.verify_audit(contains)


ROUTES = (
    *(list_nodes, hot_keys, live, list_usage, what_if, list_refusals),
    *(list_revisions, get_revision, undo_revision, list_audit, verify_audit),
)

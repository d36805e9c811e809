"""The list of rules, and the page of a rule, with its decisions and versions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from litestar import Response, get, post
from litestar.params import FromQuery, QueryParameter
from litestar.response import Redirect

from headgate.admin.catalog import Edited, FileRules
from headgate.admin.console import charts
from headgate.admin.console.forms import Form, FormFields, actor_of, number_of
from headgate.admin.console.rendering import limits_text, link, page
from headgate.admin.objects import ObjectKind, Stored, UnknownObject, VersionConflict
from headgate.admin.routes.requests import EDITOR, VIEWER, Admin, Offset, WebRequest
from headgate.admin.service import AdminService
from headgate.admin.tables import epoch_us
from headgate.admin.usage import HOUR_US, MINUTE_US
from headgate.core.calendar import DAY_US
from headgate.core.errors import InvalidRule, UsageError
from headgate.observe.recorder import ALLOWED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED
from headgate.policy.loading import change_from_data, rule_from_data

RuleId = Annotated[str, QueryParameter(name="id", min_length=1, max_length=64, pattern=r"^[^\x00]*$")]
_Text = Annotated[str, QueryParameter(max_length=200, pattern=r"^[^\x00]*$")]
_SPARK_US = 5 * MINUTE_US
_DECIDED = (ALLOWED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED)
_ROWS, _NAMED, _LAST, _VERSIONS = 50, 8, 12, 10
STATES: Mapping[str, Mapping[str, bool]] = {
    "": {},
    "enforced": {"enabled": True, "shadow": False},
    "shadow": {"enabled": True, "shadow": True},
    "off": {"enabled": False},
}
_SPANS = {"hour": (HOUR_US, MINUTE_US), "day": (DAY_US, 15 * MINUTE_US), "week": (7 * DAY_US, 2 * HOUR_US)}
"""The periods of charts, and their steps."""
PERCENTS = (1, 5, 10, 25, 50, 100)
PATIENCE = 1.0
"""Seconds to wait for nodes after a change."""


@get("/rules", opt=VIEWER)
async def rules(
    request: WebRequest, admin: Admin, *, q: _Text = "", tier: _Text = "", only: FromQuery[str] = "", offset: Offset = 0
) -> Response[str]:
    filters: dict[str, Any] = {**STATES.get(only, {})}
    filters |= {"search": q} if q else {}
    filters |= {"tier": tier} if tier else {}
    found = await admin.rules.page(ObjectKind.RULE, filters, "position", offset, _ROWS)
    listed = [rule_from_data(body) for body in found.items]
    lately: dict[str, list[float]] = {}
    totals: dict[str, dict[str, int]] = {}
    if not isinstance(admin.rules, FileRules):
        series = await admin.series([each.id for each in listed], None, _SPARK_US // 1_000_000)
        times = range((epoch_us() - HOUR_US) // _SPARK_US * _SPARK_US, epoch_us(), _SPARK_US)
        for name, points in series["rules"].items():
            # the present step is incomplete, and would look like a fall
            *past, present = charts.by_step(points, _DECIDED, times)
            lately[name] = past if any(past) else [*past, present]
        totals = series["totals"]
    given = {"q": q, "tier": tier, "only": only if only in STATES else ""}
    known: dict[str, Any] = {"rules": listed, "total": found.total, "offset": offset, "rows": _ROWS}
    known |= {"lately": lately, "totals": totals}
    return page(request, "rules.html", given=given, is_file=isinstance(admin.rules, FileRules), **known)


@get("/rule", opt=VIEWER)
async def rule(
    request: WebRequest,
    admin: Admin,
    *,
    rule_id: RuleId,
    span: FromQuery[str] = "day",
    saved: Annotated[int, QueryParameter(ge=0, le=2**53)] = 0,
    offset: Offset = 0,
) -> Response[str]:
    return await rule_page(request, admin, rule_id, span=span, saved=saved, offset=offset)


async def rule_page(
    request: WebRequest,
    admin: AdminService,
    rule_id: str,
    *,
    span: str = "day",
    saved: int = 0,
    offset: int = 0,
    error: Exception | None = None,
) -> Response[str]:
    """Show a rule, which may be deleted, and the error of a change."""
    versions = await admin.rules.versions(ObjectKind.RULE, rule_id)
    if not versions:
        raise UnknownObject(f"rule {rule_id!r:.80} does not exist")
    stored = await admin.rules.get(ObjectKind.RULE, rule_id)
    earlier = [*[each.body for each in versions[1:]], None]
    known: dict[str, Any] = {
        "rule_id": rule_id,
        "stored": stored,
        "rule": rule_from_data(stored.body) if stored else None,
        "percents": PERCENTS,
        "uses": await admin.rules.uses(ObjectKind.RULE, rule_id) if stored else {},
        "is_file": isinstance(admin.rules, FileRules),
        "versions": list(zip(versions, earlier, strict=True))[offset : offset + _VERSIONS],
        "offset": offset,
        "rows": _VERSIONS,
        "total": len(versions),
        "saved": await _saved_revision(admin, saved, is_live="x-live" in request.headers)
        if saved in {each.revision for each in versions}
        else None,
        "error": error,
        "next_percent": _next_percent(stored),
        "span": span if span in _SPANS else "day",
    }
    known |= await _decisions(admin, rule_id, known["span"])
    known["tiers"] = await _in_tiers(admin, rule_id, known) if stored else []
    return page(request, "rule.html", status=409 if error else 200, **known)


def _next_percent(stored: Stored | None) -> int:
    """Return the next step from a shadow rule to one that is enforced for all callers."""
    body = stored.body if stored else {}
    present = 0 if body.get("shadow") else body.get("enforce_percent", 100)
    return next((each for each in PERCENTS if each > present), 100)


async def _decisions(admin: AdminService, rule_id: str, span: str) -> dict[str, Any]:
    now = epoch_us()
    refused = await admin.refusals({"rule_id": rule_id}, "each", 0, _LAST)
    found: dict[str, Any] = {
        "refusals": refused.items,
        "principals": await admin.principals(rule_id, _NAMED),
        "chart": None,
        "decided": None,
    }
    if not isinstance(admin.rules, FileRules):
        length, step = _SPANS[span]
        since = (now - length) // step * step + step
        series = await admin.series([rule_id], since, step // 1_000_000)
        found["decided"] = series["totals"][rule_id]
        found["chart"] = charts.of_series(series["rules"][rule_id], range(since, now, step))
    return found


async def _in_tiers(admin: AdminService, rule_id: str, known: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the tiers that override a rule, with its limits there in words."""
    found = []
    for tier in known["uses"].get("tiers", ())[:_NAMED]:
        stored = await admin.rules.get(ObjectKind.TIER, tier)
        if stored is not None and rule_id in stored.body:
            quotas = change_from_data(stored.body[rule_id]).apply(known["rule"].quotas)
            found.append((tier, limits_text(quotas)))
    return found


async def _saved_revision(admin: AdminService, number: int, *, is_live: bool) -> dict[str, Any] | None:
    """Return a new revision, with the nodes that do not run it yet; None if it does not exist."""
    with suppress(UnknownObject):
        found = await admin.revision(number, 0, 1)
        await admin.behind(0 if is_live else PATIENCE)
        nodes = (await admin.nodes())["items"]
        return {**found, "nodes": len(nodes), "late": [node for node in nodes if node["revision"] < number]}
    return None


@post("/rule/state", opt=EDITOR, status_code=200)
async def set_state(request: WebRequest, admin: Admin, form: FormFields, rule_id: RuleId) -> Response[Any]:
    """Enforce a rule, for all callers or a share, put it in shadow, or switch it on or off."""
    actor, version = actor_of(request, form), number_of(form, "version")
    try:
        done = await admin.rules.patch(ObjectKind.RULE, rule_id, _state_of(form), actor, version)
    except VersionConflict as error:
        return await rule_page(request, admin, rule_id, error=error)
    return redirect_to_rule(rule_id, done)


def _state_of(form: Form) -> dict[str, Any]:
    match form.get("do", ""):
        case "enforce":
            percent = number_of(form, "percent") if "percent" in form else 100
            return {"shadow": None, "enforce_percent": None if percent == 100 else percent}
        case "shadow":
            return {"shadow": True, "enforce_percent": None}
        case "enable":
            return {"enabled": None}
        case "disable":
            return {"enabled": False}
    raise UsageError("the form names no action: reload the page")


@post("/rule/rollback", opt=EDITOR, status_code=200)
async def roll_back(request: WebRequest, admin: Admin, form: FormFields, rule_id: RuleId) -> Response[Any]:
    version, seen = number_of(form, "target"), number_of(form, "version")
    actor = actor_of(request, form)
    try:
        done = await admin.rules.roll_back(ObjectKind.RULE, rule_id, version, actor, seen)
    except (VersionConflict, UsageError, InvalidRule) as error:
        return await rule_page(request, admin, rule_id, error=error)
    return redirect_to_rule(rule_id, done)


def redirect_to_rule(rule_id: str, done: Edited) -> Redirect:
    saved = done.revision if done.before != done.after else None
    return Redirect(link("/rule", id=rule_id, saved=saved), status_code=303)


ROUTES = [rules, rule, set_state, roll_back]

"""Callers: their search, their limits with the present state, and changes for one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from litestar import Response, get, post
from litestar.response import Redirect

from headgate.admin.catalog import FileRules
from headgate.admin.console.forms import Form, FormFields, actor_of, form_of, number_of
from headgate.admin.console.rendering import KINDS, link, page
from headgate.admin.database import DatabaseError
from headgate.admin.objects import ObjectKind, Stored, UnknownObject, VersionConflict
from headgate.admin.routes.requests import EDITOR, VIEWER, Admin, Offset, WebRequest
from headgate.admin.service import AdminService, consumer_data
from headgate.admin.tables import epoch_us
from headgate.admin.users import RuleUse, user_of
from headgate.config.times import moment_text
from headgate.core.errors import UsageError
from headgate.core.quota import Quota
from headgate.observe.refusals import shown_as
from headgate.policy.dumping import to_data
from headgate.policy.model import LONGEST_VALUE
from headgate.web.address import parse

_ROWS, _MOST, _SUMMED = 25, 20, 200
_HOUR_US, _DAY_US = 3_600_000_000, 86_400_000_000
_PRINCIPALS = {"user": ("user",), "consumer": ("user", "apikey"), "key": ("apikey",), "address": ("ip",)}
"""The dimensions of each kind of caller; the key of a consumer has the consumer's name."""
_PATIENCE = 2.0
"""Seconds to wait for nodes that do not run a change yet."""
_DIGEST = re.compile("#[0-9a-f]{16}")
_LASTING = {"1h": _HOUR_US, "1d": _DAY_US, "1w": 7 * _DAY_US}


class Caller(NamedTuple):
    kind: str
    name: str

    @property
    def principal(self) -> dict[str, str]:
        return dict.fromkeys(_PRINCIPALS[self.kind], self.name)

    @property
    def entry(self) -> dict[str, str]:
        return {next(iter(self.principal)): self.name}

    @property
    def is_user(self) -> bool:
        """Whether it can have a tier and overrides."""
        return "user" in self.principal

    @property
    def is_digest(self) -> bool:
        """Whether the name is a digest from logs."""
        return _DIGEST.fullmatch(self.name) is not None

    def place(self, **more: Any) -> str:
        return link("/who", **{self.kind: self.name}, **more)


@get("/who", opt=VIEWER)
async def who(request: WebRequest, admin: Admin, offset: Offset = 0) -> Response[Any]:
    caller, query = _caller_in(request), request.query_params
    if caller is None:
        return await _search(request, admin, _check_length(query.get("q", "").strip()))
    if caller.is_digest and caller.is_user and (name := await admin.users.find_by_digest(caller.name)):
        return Redirect(Caller(caller.kind, name).place(), status_code=303)
    if query.get("raise"):
        return await _show_form(request, admin, caller, query["raise"])
    return await _show(request, admin, caller, offset=offset)


def _caller_in(request: WebRequest) -> Caller | None:
    for kind in _PRINCIPALS:
        if name := request.query_params.get(kind, ""):
            return Caller(kind, _check_length(name))
    return None


def _check_length(name: str) -> str:
    if len(name) > LONGEST_VALUE:
        raise UsageError(f"the name of a caller must have at most {LONGEST_VALUE} characters")
    return name


# Finding


async def _search(request: WebRequest, admin: AdminService, text: str) -> Response[Any]:
    """Show callers whose names begin with a text, or redirect if there is only one."""
    if not text:
        refused = await _or(admin.most_refused(epoch_us() - _HOUR_US, _MOST), None)
        hot = (await admin.hot())[:_MOST]
        return page(request, "who.html", text="", most_refused=refused, hot=hot)
    users, consumers, *counts = await asyncio.gather(
        _or(admin.users.search(text, _MOST + 1), ()),
        _or(admin.consumers.search(text, _MOST), ()),
        *[_or(admin.refusals({name: shown_as(name, text)}, "each", 0, 1), None) for name in KINDS],
    )
    refused = {kind: count.total for kind, count in zip(KINDS.values(), counts, strict=True) if count}
    keys = [Caller("consumer", name) for name, key in consumers if key and (key == text or f"_{key}_" in text)]
    exact = {Caller("consumer", name) for name, key in consumers if name == text} | {*keys}
    exact |= {Caller(kind, text) for kind, count in refused.items() if count}
    exact |= {Caller("user", name) for name, _ in users if name == text}
    busy = [each["dimension"] for each in await admin.hot() if each["principal"] in shown_as("", text)]
    exact |= {Caller(KINDS[dimension], text) for dimension in busy if dimension in KINDS}
    if parse(text) is not None:
        exact.add(Caller("address", text))
    if Caller("consumer", text) in exact:  # whose user and key have the same name
        exact -= {Caller("user", text), Caller("key", text)}
    if len(exact) == 1:
        return Redirect(exact.pop().place(), status_code=303)
    candidates = [Caller(kind, text) for kind in ("user", "key")] if not _DIGEST.fullmatch(text) else []
    known = {"users": users, "consumers": consumers, "refused": refused, "most": _MOST}
    return page(request, "who.html", text=text, exact=sorted(exact), candidates=candidates, **known)


async def _or(query: Any, default: Any) -> Any:
    """Return the result of a query, or a default without an available database."""
    try:
        return await query
    except (DatabaseError, UnknownObject):
        return default


# A caller


async def _show(
    request: WebRequest, admin: AdminService, caller: Caller, *, offset: int = 0, error: Exception | None = None
) -> Response[str]:
    query = request.query_params
    saved, done = query.get("saved", ""), query.get("done", "")
    late = (await _or(admin.behind(_PATIENCE), (0, [])))[1] if saved or done else []
    special, is_unavailable = await _special(admin, caller)
    overrides, uses, total, problem = special.body.get("overrides", {}), list[RuleUse](), 0, ""
    named = {name: shown_as(name, caller.name) for name in caller.principal}
    shown = set[str]().union(*named.values())
    first = next(iter(named))
    refusals = await _or(admin.refusals({first: named[first]}, "each", 0, _SUMMED), None)
    listed = ""
    if not caller.is_digest or special.body:
        refusing = {each["rule_id"] for each in refusals.items} if refusals else set()
        try:
            listed = admin.users.list_entry(caller.principal)
            uses, total = await admin.users.uses(caller.principal, offset, _ROWS, {*overrides, *refusing})
        except UsageError as wrong:
            problem = str(wrong)
    consumer = await _or(admin.consumers.get(caller.name), None) if caller.kind == "consumer" else None
    fixed, policy = _why_fixed(admin, is_unavailable=is_unavailable), admin.users.policy
    has_warnings = saved in overrides and not fixed
    known = {
        "who": caller,
        "special": special,
        "uses": uses,
        "degraded": next((use.degraded for use in uses if use.degraded), ""),
        "total": total,
        "offset": offset,
        "rows": _ROWS,
        "refusals": refusals,
        "listed": listed,
        "lists": {name: (await _list(admin, caller, name))[0] for name in LISTS},
        "consumer": consumer_data(consumer) if consumer else None,
        "rate": max((each["per_second"] for each in await admin.hot() if each["principal"] in shown), default=0),
        "default": policy.ruleset.default.id if policy.ruleset.default else "",
        "tiers": admin.users.tiers(),
        "tier": policy.tier_of(caller.name) if caller.is_user else "",
        "fixed": fixed,
        "late": late,
        "saved": saved,
        "warnings": await admin.users.without_effect(special.body, saved) if has_warnings else [],
        "done": done,
        "error": _message(error),
        "problem": problem,
    }
    return page(request, "caller.html", status=_status(error), **known)


async def _special(admin: AdminService, caller: Caller) -> tuple[Stored, bool]:
    """Return tier and overrides of a caller, and whether the database is unavailable, so that they are this node's."""
    if not caller.is_user:
        return user_of(caller.name, None), False
    try:
        return (await admin.users.special(caller.name))[0], False
    except DatabaseError:
        return user_of(caller.name, None)._replace(body=admin.users.known(caller.name)), True


def _why_fixed(admin: AdminService, *, is_unavailable: bool = False) -> str:
    """Return why nothing can be changed: "file" or "database"; empty if it can."""
    return "file" if isinstance(admin.rules, FileRules) else "database" if is_unavailable else ""


def _message(error: Exception | None) -> str:
    if isinstance(error, VersionConflict):
        return "this user was changed in the meantime: check the current values, and save again to replace them"
    return str(error or "")


def _status(error: Exception | None) -> int:
    return 200 if error is None else 409 if isinstance(error, VersionConflict) else 400


# What is changed for one


async def _show_form(
    request: WebRequest, admin: AdminService, caller: Caller, rule_id: str, *, error: Exception | None = None
) -> Response[str]:
    """Show the form of an override, with the present limits."""
    if not caller.is_user:
        raise UsageError("overrides apply to users: for one key or address, add a rule with a key_pattern")
    (special, is_unavailable), use = await _special(admin, caller), await _use(admin, caller, rule_id)
    override = special.body.get("overrides", {}).get(rule_id)
    fields = [_fields(quota, is_raised=override is None) for quota in use.quotas]
    known = {"who": caller, "use": use, "override": override, "version": special.version, "error": _message(error)}
    known |= {
        "quotas": fields,
        "form": await form_of(request) if error else {},
        "fixed": _why_fixed(admin, is_unavailable=is_unavailable),
    }
    return page(request, "raise.html", status=_status(error), rule_id=rule_id, **known)


async def _use(admin: AdminService, caller: Caller, rule_id: str) -> RuleUse:
    uses, _ = await admin.users.uses(caller.principal, 0, 1, {rule_id})
    if not uses or uses[0].rule.id != rule_id or uses[0].missing:
        raise UnknownObject(f"no rule {rule_id!r:.80} counts {caller.kind} {caller.name!r:.80}")
    return uses[0]


def _fields(quota: Quota, *, is_raised: bool) -> dict[str, Any]:
    """Return the fields of a quota, doubled as a suggestion if `is_raised`."""
    body: dict[str, Any] = to_data(quota)
    suggested = {name: 2 * body[name] for name in ("limit", "burst", "capacity") if is_raised and body.get(name, 0) > 0}
    return {"burst": "", **body, **suggested}


@post("/who/override", opt=EDITOR)
async def override(request: WebRequest, admin: Admin, form: FormFields) -> Response[Any]:
    caller, rule_id = _caller_of(request), form.get("rule", "")
    try:
        change = _change(form, await _use(admin, caller, rule_id), admin.users.known(caller.name), rule_id)
        actor, expected = actor_of(request, form), number_of(form, "version")
        await admin.users.set_override(caller.name, rule_id, change, actor, expected)
    except (UsageError, VersionConflict) as error:
        return await _show_form(request, admin, caller, rule_id, error=error)
    return Redirect(caller.place(saved=rule_id), status_code=303)


def _change(form: Form, use: RuleUse, special: Mapping[str, Any], rule_id: str) -> dict[str, Any]:
    """Return the override in a form: its differences from the usual quotas. Raises UsageError."""
    usual = [to_data(quota) for quota in use.usual]
    wanted: list[dict[str, Any]] = []
    for place, quota in enumerate(usual):
        given = {name: form.get(f"{name}-{place}", "") for name in ("limit", "burst", "capacity", "window")}
        numbers = {name: _count(name, text) for name, text in given.items() if text and name != "window"}
        wanted.append({**quota, **numbers, **({"window": given["window"]} if given["window"] else {})})
    if len(usual) == 1:
        change = {name: value for name, value in wanted[0].items() if usual[0].get(name, 0) != value}
    else:
        change = {"limits": wanted} if wanted != usual else {}
    if not change:
        raise UsageError("this is the limit without an override: enter another limit, burst or window")
    until = _until(form, special.get("overrides", {}).get(rule_id, {}).get("until"))
    return {**change, "until": until} if until else change


def _count(name: str, text: str) -> int:
    digits = re.sub(r"[\s_,']", "", text)
    if not re.fullmatch("-?[0-9]{1,16}", digits):
        raise UsageError(f"{name} must be a whole number such as 500, not {text!r:.40}")
    return int(digits)


def _until(form: Form, present: str | None) -> str | None:
    """Return the end of an override; None: never. Raises UsageError."""
    lasting = form.get("lasting", "")
    if lasting in _LASTING:
        return moment_text((epoch_us() + _LASTING[lasting]) // 1_000_000 * 1_000_000)
    if lasting == "same":
        return present
    if lasting != "at":
        return None
    try:
        moment = datetime.fromisoformat(form.get("at", ""))
    except ValueError:
        raise UsageError("the end must be a time in UTC, such as 2026-12-01 18:00") from None
    return moment.replace(tzinfo=None).isoformat() + "Z"


@post("/who/end", opt=EDITOR)
async def end_override(request: WebRequest, admin: Admin, form: FormFields) -> Response[Any]:
    caller, actor = _caller_of(request), actor_of(request, form)
    await admin.users.end_override(caller.name, form.get("rule", ""), actor)
    return Redirect(caller.place(done="ended"), status_code=303)


@post("/who/tier", opt=EDITOR)
async def set_tier(request: WebRequest, admin: Admin, form: FormFields) -> Response[Any]:
    caller = _caller_of(request)
    try:
        expected = number_of(form, "version")
        await admin.users.set_tier(caller.name, form.get("tier", ""), actor_of(request, form), expected)
    except (UsageError, VersionConflict) as error:
        return await _show(request, admin, caller, error=error)
    return Redirect(caller.place(done="moved"), status_code=303)


@post("/who/reset", opt=EDITOR)
async def reset(request: WebRequest, admin: Admin, form: FormFields) -> Response[Any]:
    caller, rule_id = _caller_of(request), form.get("rule", "")
    await admin.users.reset(caller.principal, [rule_id] if rule_id else (), actor_of(request, form))
    return Redirect(caller.place(done="reset"), status_code=303)


LISTS = ("allow", "deny")


@post("/who/list", opt=EDITOR)
async def put_on_list(request: WebRequest, admin: Admin, form: FormFields) -> Response[Any]:
    """Add a caller to the list `allow` or `deny`, or remove it."""
    caller, name = _caller_of(request), form.get("list", "")
    if name not in LISTS or "*" in caller.name:
        raise UsageError(
            "list must be allow or deny, and the name must not have a *, which in a list stands for any characters"
        )
    is_listed, entries, version = await _list(admin, caller, name)
    if is_listed == bool(form.get("remove")):
        left = [each for each in entries if each != caller.entry]
        wanted = left if is_listed else [*entries, caller.entry]
        await admin.rules.put(ObjectKind.SETTING, name, wanted, actor_of(request, form), version)
    return Redirect(caller.place(done=name), status_code=303)


async def _list(admin: AdminService, caller: Caller, name: str) -> tuple[bool, list[dict[str, str]], int]:
    """Return whether a caller is on a list, the entries of the list, and its version."""
    stored = await _or(admin.get(ObjectKind.SETTING, name), None)
    entries = stored.body if stored else []
    return caller.entry in entries, entries, stored.version if stored else 0


def _caller_of(request: WebRequest) -> Caller:
    """Return the caller that a form changes, from the URL, which preserves spaces. Raises UsageError."""
    caller = _caller_in(request)
    if caller is None:
        raise UsageError("the form names no caller: reload the page")
    return caller


ROUTES = [who, override, end_override, set_tier, reset, put_on_list]

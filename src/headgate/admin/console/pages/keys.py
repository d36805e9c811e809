"""API keys, and consumers of the protected API."""

from __future__ import annotations

from typing import Any

from litestar import Response, get, post
from litestar.params import FromQuery
from litestar.response import Redirect

from headgate.admin.console.forms import Form, FormFields, actor_of
from headgate.admin.console.rendering import link, page
from headgate.admin.keys import ApiKey, KeyRole, NewKey
from headgate.admin.objects import UnknownObject
from headgate.admin.routes.requests import ADMIN, EDITOR, VIEWER, Admin, Offset, WebRequest
from headgate.admin.service import consumer_data
from headgate.admin.tables import epoch_us
from headgate.core.calendar import DAY_US
from headgate.core.errors import HeadgateError, UsageError

_ROWS = 50
LASTING = (("", "never"), ("1", "in a day"), ("7", "in a week"), ("30", "in 30 days"), ("365", "in a year"))
"""Choices for the expiry of a key, in days."""
OVERLAPS = (("0", "immediately"), ("1", "in an hour"), ("24", "in a day"), ("168", "in a week"))
"""Choices for the overlap of a replaced key, in hours."""


@get("/keys", opt=ADMIN)
async def keys(request: WebRequest, admin: Admin) -> Response[str]:
    return await _keys(request, admin)


@post("/keys", opt=ADMIN, status_code=200)
async def create_key(request: WebRequest, admin: Admin, form: FormFields) -> Response[str]:
    try:
        role, expires = KeyRole(form.get("role", "")), _expires(form)
        made = await admin.keys.create(form.get("name", ""), role, actor_of(request, form), expires_at=expires)
    except (HeadgateError, ValueError) as error:
        return await _keys(request, admin, error=error, form=form)
    return await _keys(request, admin, made)


@post("/keys/rotate", opt=ADMIN, status_code=200)
async def rotate_key(request: WebRequest, admin: Admin, form: FormFields) -> Response[str]:
    try:
        made = await admin.keys.rotate(form.get("id", ""), actor_of(request, form), overlap_us=_overlap(form))
    except UsageError as error:
        return await _keys(request, admin, error=error)
    return await _keys(request, admin, made)


@post("/keys/revoke", opt=ADMIN)
async def revoke_key(request: WebRequest, admin: Admin, form: FormFields) -> Redirect:
    await admin.keys.revoke(form.get("id", ""), actor_of(request, form))
    return Redirect("/keys", status_code=303)


async def _keys(
    request: WebRequest,
    admin: Admin,
    made: NewKey[ApiKey] | None = None,
    *,
    error: Exception | None = None,
    form: Form | None = None,
) -> Response[str]:
    now, is_all = epoch_us(), "all" in request.query_params
    try:
        found = await admin.keys.all()
    except UnknownObject as why:
        return page(request, "keys.html", found=None, why=str(why))
    shown = [key for key in reversed(found) if is_all or key.is_good(now)]
    known: dict[str, Any] = {"found": shown, "is_all": is_all, "made": made, "error": error, "form": form or {}}
    known |= {"roles": list(KeyRole), "lasting": LASTING, "overlaps": OVERLAPS, "now": now}
    ended = sum(not key.is_good(now) for key in found)
    return page(request, "keys.html", status=400 if error else 200, ended=ended, **known)


@get("/consumers", opt=VIEWER)
async def consumers(request: WebRequest, admin: Admin, offset: Offset = 0) -> Response[str]:
    return await _consumers(request, admin, offset)


@post("/consumers", opt=EDITOR, status_code=200)
async def create_consumer(request: WebRequest, admin: Admin, form: FormFields) -> Response[str]:
    name, tier, tenant = (form.get(field, "") for field in ("name", "tier", "tenant"))
    try:
        expires, actor = _expires(form), actor_of(request, form)
        made = await admin.create_consumer(name, tier, actor, tenant=tenant, expires_at=expires)
    except UsageError as error:
        return await _consumers(request, admin, 0, error=error, form=form)
    return await _consumer(request, admin, name, made=made.text)


async def _consumers(
    request: WebRequest, admin: Admin, offset: int, *, error: Exception | None = None, form: Form | None = None
) -> Response[str]:
    try:
        found = await admin.consumer_page(offset, _ROWS)
    except UnknownObject as why:
        return page(request, "consumers.html", found=None, why=str(why))
    known = {"found": found, "offset": offset, "rows": _ROWS, "error": error, "form": form or {}, "lasting": LASTING}
    return page(request, "consumers.html", status=400 if error else 200, **known)


@get("/consumer", opt=VIEWER)
async def consumer(request: WebRequest, admin: Admin, name: FromQuery[str]) -> Response[str]:
    return await _consumer(request, admin, name)


@post("/consumer/rotate", opt=EDITOR, status_code=200)
async def rotate_consumer(request: WebRequest, admin: Admin, form: FormFields) -> Response[str]:
    name = form.get("name", "")
    try:
        made = await admin.consumers.rotate(name, actor_of(request, form), overlap_us=_overlap(form))
    except UsageError as error:
        return await _consumer(request, admin, name, error=error)
    return await _consumer(request, admin, name, made=made.text)


@post("/consumer/revoke", opt=EDITOR)
async def revoke_consumer(request: WebRequest, admin: Admin, form: FormFields) -> Redirect:
    """End all keys of a consumer; its tier and overrides stay."""
    await admin.consumers.revoke(form.get("name", ""), actor_of(request, form))
    return Redirect(link("/consumer", name=form["name"]), status_code=303)


@post("/consumer/delete", opt=EDITOR)
async def delete_consumer(request: WebRequest, admin: Admin, form: FormFields) -> Redirect:
    """Delete a consumer with its keys, tier and overrides."""
    await admin.delete_consumer(form.get("name", ""), actor_of(request, form))
    return Redirect("/consumers", status_code=303)


async def _consumer(
    request: WebRequest, admin: Admin, name: str, *, made: str = "", error: Exception | None = None
) -> Response[str]:
    found = consumer_data(await admin.consumers.get(name))
    known = {"found": found, "made": made, "error": error, "overlaps": OVERLAPS}
    return page(request, "consumer.html", status=400 if error else 200, **known)


def _expires(form: Form) -> int | None:
    days = form.get("days", "")
    if days not in dict(LASTING):
        raise UsageError("choose the lifetime of the key from the list")
    return epoch_us() + int(days) * DAY_US if days else None


def _overlap(form: Form) -> int:
    """Return the overlap that a form selects, in microseconds. Raises UsageError."""
    hours = form.get("overlap", "")
    if hours not in dict(OVERLAPS):
        raise UsageError("choose from the list how long the old key stays valid")
    return int(hours) * 3_600_000_000


ROUTES = [
    *(keys, create_key, rotate_key, revoke_key),
    *(consumers, create_consumer, consumer, rotate_consumer, revoke_consumer, delete_consumer),
]

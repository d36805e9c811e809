"""What forms send: fields in the usual encoding, with a token that only a page of ours can have."""

from __future__ import annotations

import hmac
from typing import Any
from urllib.parse import parse_qsl

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.exceptions import ClientException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler

from headgate.admin.audit import Actor
from headgate.admin.routes.asking import LONGEST_JSON
from headgate.admin.security import BodyTooLarge, actor_name, visible
from headgate.core.errors import UsageError

Form = dict[str, str]
_ENCODING = "application/x-www-form-urlencoded"
_MOST_FIELDS = 1000
_LONGEST_REASON = 1000


async def form_of(request: Request[Any, Any, Any]) -> Form:
    """Return the fields of a form, as they were typed, but for spaces around them. Raises UsageError."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _ENCODING:
        raise ClientException(f"a form is sent as {_ENCODING}", status_code=415)
    body = await request.body()
    if len(body) > LONGEST_JSON:
        raise BodyTooLarge(LONGEST_JSON)
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError:
        raise UsageError("the form cannot be read: it is not in the usual encoding, or has too many fields") from None
    return {name: value.strip().replace("\r\n", "\n") for name, value in pairs}


async def csrf_guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Refuse what a page of somebody else made a browser send."""
    session = connection.scope["state"].get("session")
    if session is None or not isinstance(connection, Request) or connection.method in {"GET", "HEAD", "OPTIONS"}:
        return  # a key in a header is nothing that a browser adds on its own
    token = (await form_of(connection)).get("csrf", "")
    if not hmac.compare_digest(token.encode("utf-8", "surrogatepass"), session.csrf.encode()):
        raise PermissionDeniedException("this form is out of date: go back, reload the page and send it again")


def actor_of(request: Request[Any, Any, Any], form: Form) -> Actor:
    """Return who has sent a form; its field `reason` says why. Raises UsageError."""
    known, reason = request.scope["state"], form.get("reason", "")
    if len(reason) > _LONGEST_REASON:
        raise UsageError(f"a reason has at most {_LONGEST_REASON} characters")
    return Actor(actor_name(known["key"]), known["request_id"], visible(reason))


def number_of(form: Form, name: str) -> int:
    """Return a field that a page of ours has filled with a number. Raises UsageError."""
    text = form.get(name, "")
    if not text.isdecimal() or len(text) > 18:
        raise UsageError(f"the form has no number {name}: load the page again")
    return int(text)

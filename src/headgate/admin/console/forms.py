"""Submitted forms: their fields, and the token that proves that a page of the console sent them."""

from __future__ import annotations

import hmac
from typing import Any
from urllib.parse import parse_qsl

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.exceptions import ClientException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler

from headgate.admin.audit import Actor
from headgate.admin.routes.requests import LONGEST_JSON, WebRequest, actor_with
from headgate.admin.security import body_too_large
from headgate.core.errors import UsageError

Form = dict[str, str]
FormFields = NamedDependency[Form]
"""The fields of the submitted form, for routes."""
_ENCODING = "application/x-www-form-urlencoded"
_MOST_FIELDS = 1000


async def form_of(request: WebRequest) -> Form:
    """Return the fields of a form, without spaces around them. Raises UsageError."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _ENCODING:
        raise ClientException(f"the media type of a form must be {_ENCODING}", status_code=415)
    body = await request.body()
    if len(body) > LONGEST_JSON:
        raise body_too_large(LONGEST_JSON)
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError:
        raise UsageError(f"the form is invalid: it is not {_ENCODING}, or has too many fields") from None
    return {name: value.strip().replace("\r\n", "\n") for name, value in pairs}


async def csrf_guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Raise 403 for forms that another site made a browser send."""
    session = connection.scope["state"].get("session")
    if session is None or not isinstance(connection, Request) or connection.method in {"GET", "HEAD", "OPTIONS"}:
        return  # a browser does not send a key in a header automatically
    token = (await form_of(connection)).get("csrf", "")
    if not hmac.compare_digest(token.encode("utf-8", "surrogatepass"), session.csrf.encode()):
        raise PermissionDeniedException("this form is out of date: go back, reload the page and send it again")


def actor_of(request: WebRequest, form: Form) -> Actor:
    """Return the author of a form, with the reason in its field `reason`. Raises UsageError."""
    return actor_with(request, form.get("reason", ""))


def number_of(form: Form, name: str) -> int:
    text = form.get(name, "")
    if not text.isdecimal() or len(text) > 18:
        raise UsageError(f"the form has no number {name}: reload the page")
    return int(text)

"""One question to a running service, over HTTP, and what it answers."""

from __future__ import annotations

import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Annotated, Any

import msgspec

from headgate.cli.service_options import Target, Unreachable, caller_headers
from headgate.core.errors import HeadgateError

CHECK, RESET = "/api/v1/rate-limit/check", "/api/v1/rate-limit/reset"
_UNAUTHORIZED = 401
_MOST_BYTES = 1_048_576
_Time = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799)]
"""Unix time in seconds, up to the year 9999."""


class NoAnswer(HeadgateError):
    """The service did not decide."""


class Limit(msgspec.Struct, frozen=True):
    """What one limit says."""

    rule_id: str
    allowed: bool
    limit: int
    remaining: int
    reset_at: _Time
    retry_after: float
    state: str


class Answer(msgspec.Struct, frozen=True):
    """What the service decided; more members are welcome."""

    allowed: bool
    rule_id: str | None = None
    retry_after: float | None = None
    state: str = ""
    degraded: bool | str | None = None
    reason: str | None = None
    matched: bool = True
    delay: float = 0.0
    limits: tuple[Limit, ...] = ()
    shadow: tuple[Limit, ...] = ()
    unmatched_principals: tuple[str, ...] = ()


class _Wrong(msgspec.Struct, frozen=True):
    pointer: str = ""
    detail: str = ""


class Problem(msgspec.Struct, frozen=True):
    """Why the service did not decide: RFC 9457."""

    title: str = ""
    detail: str = ""
    errors: tuple[_Wrong, ...] = ()


def ask(
    target: Target,
    question: dict[str, Any],
    path: str = CHECK,
    *,
    tls: ssl.SSLContext | None = None,
    caller_key: str | None = None,
    timeout: float = 5.0,
) -> bytes:
    """Return the answer, as JSON.

    Args:
        target: the service.
        question: what the service is given.
        path: where.
        tls: how to speak TLS; None if it is not spoken.
        caller_key: who calls, where the service wants to know.
        timeout: seconds, to connect and for each part of the answer.

    Raises:
        Unreachable: there is no connection to it.
        NoAnswer: what listens there did not decide; it says why.
    """
    headers = {"content-type": "application/json", **caller_headers(caller_key)}
    if tls is None:
        connection = HTTPConnection(target.host, target.port, timeout=timeout)
    else:
        connection = HTTPSConnection(target.host, target.port, timeout=timeout, context=tls)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise Unreachable(target, error) from None
        connection.request("POST", path, msgspec.json.encode(question), headers)
        response = connection.getresponse()
        body = response.read(_MOST_BYTES)
        if response.length:
            raise NoAnswer(f"{target.place} hung up, or says more than an answer has")
    except TimeoutError:
        raise NoAnswer(f"{target.place} does not answer within {timeout:g} s") from None
    except (OSError, HTTPException) as error:
        hint = "" if tls else " (if it speaks TLS, use https://)"
        raise NoAnswer(f"{target.place} hung up, or does not speak HTTP{hint}: {error!r}") from None
    finally:
        connection.close()
    if response.status not in {200, 429}:
        raise NoAnswer(_told(target, response.status, body, response.headers.get("retry-after", "")))
    return body


def answer_of(target: Target, body: bytes) -> Answer:
    """Read a decision. Raises NoAnswer if it is none."""
    try:
        return msgspec.json.decode(body, type=Answer)
    except (ValueError, RecursionError) as error:
        raise NoAnswer(f"{target.place} answers, but not like Headgate: {error}") from None


def _told(target: Target, status: int, body: bytes, retry_after: str) -> str:
    """Say what a service told that did not decide."""
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except (ValueError, RecursionError):
        problem = Problem()
    told = f"{target.place} answers {status}"
    if text := problem.detail or problem.title:
        told += f": {text}"
    elif status == 404:
        told += ": is it Headgate?"
    if status == _UNAUTHORIZED:
        told += "\n  the key of a caller goes into HEADGATE_CALLER_KEY"
    for wrong in problem.errors:
        told += f"\n  {wrong.pointer or 'the request'} {wrong.detail}"
    return f"{told}\n  try again in {retry_after} s" if status == 503 and retry_after.isdigit() else told

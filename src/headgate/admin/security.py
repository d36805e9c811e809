"""Who may ask the admin plane for what: keys, roles, and how often.

Every request passes here before any route sees it. It gets an id, which is in the answer, the log and the audit trail;
its body has an end; and unless its path is public it has a key that is good. Keys that are not good cost their sender:
an address that has tried a few times has to wait. The limits are Headgate's own.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote

from headgate.admin.database import DatabaseError
from headgate.admin.keys import ApiKey, ApiKeys
from headgate.core.decision import Decision
from headgate.limiter import AsyncLimiter
from headgate.web.problem import Problem, of_status

READS, WRITES = "1000/minute", "100/minute"
"""Of one key."""
FAILURES = "10/minute"
"""Keys that are not good, from one address."""
MAX_BODY = 10_485_760
"""Bytes of a request."""
PUBLIC = frozenset({"/", "/healthz", "/openapi.json", "/docs", "/docs.css", "/docs.js"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_LOG = logging.getLogger("headgate.admin")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class BodyTooLarge(Exception):
    """A body goes on beyond what is accepted."""

    def __init__(self) -> None:
        super().__init__(f"a request has at most {MAX_BODY:,} bytes")


class Gatekeeper:
    """An ASGI application around another, which lets those in who may.

    Args:
        app: what answers them.
        keys: who may.
        reads: how often a key may read.
        writes: how often a key may change something.
    """

    def __init__(self, app: App, keys: ApiKeys, *, reads: str = READS, writes: str = WRITES) -> None:
        self._app, self._keys = app, keys
        self._reads, self._writes = AsyncLimiter(reads, name="reads"), AsyncLimiter(writes, name="writes")
        self._failures = AsyncLimiter(FAILURES, name="failures")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        answer = _Answer(send, request_id)
        scope["path"] = _path(scope)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            await answer.refuse(of_status(413, str(BodyTooLarge())))
            return
        if scope["path"] not in PUBLIC:
            refusal = await self._refusal(scope, headers, answer)
            if refusal is not None:
                await answer.refuse(refusal)
                return
        await self._app(scope, _bounded(receive), answer.send)

    async def _refusal(self, scope: Scope, headers: Mapping[str, str], answer: _Answer) -> Problem | None:
        """Return why a request is not let in; None if it is."""
        address = (scope.get("client") or ("unknown", 0))[0]
        tried = await self._failures.peek(address)
        if not tried.allowed:
            return answer.slow_down(tried, "too many requests with keys that are not good came from this address")
        scheme, _, text = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not text:
            answer.fields["www-authenticate"] = 'Bearer realm="headgate"'
            return of_status(401, "a key is needed: send the header Authorization: Bearer KEY")
        try:
            key = await self._keys.find(text.strip())
        except DatabaseError as error:
            return of_status(503, f"keys cannot be looked up: {error}")
        if key is None:
            await self._failures.check(address)
            _LOG.warning("a key that is not good, from %s, for %s %s", address, scope["method"], scope["path"])
            answer.fields["www-authenticate"] = 'Bearer realm="headgate", error="invalid_token"'
            return of_status(401, "this key is not good: unknown, expired or revoked")
        scope["state"]["key"] = key
        limiter = self._reads if scope["method"] in _READING else self._writes
        decision = await limiter.check(key.id)
        answer.note(decision)
        if not decision.allowed:
            return answer.slow_down(decision, f"this key may do that {decision.quota} times")
        return None


class _Answer:
    """An answer on its way out."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.fields = {
            "x-request-id": request_id,
            "x-content-type-options": "nosniff",
            "cache-control": "no-store",
            "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
            "img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
            "referrer-policy": "no-referrer",
        }

    def note(self, decision: Decision) -> None:
        """Say how much is left of a limit."""
        self.fields["x-ratelimit-limit"] = str(decision.limit)
        self.fields["x-ratelimit-remaining"] = str(decision.remaining)
        self.fields["x-ratelimit-reset"] = str(-(-decision.reset_after_us // 1_000_000))

    def slow_down(self, decision: Decision, why: str) -> Problem:
        """Return the refusal of somebody who asks too often."""
        seconds = max(1, -(-decision.retry_after_us // 1_000_000))
        self.fields["retry-after"] = str(seconds)
        return of_status(429, f"{why}; try again in {seconds} s")

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            mine = [(name.encode(), value.encode("latin-1")) for name, value in self.fields.items()]
            message["headers"] = [*message.get("headers", ()), *mine]
        await self._send(message)

    async def refuse(self, problem: Problem) -> None:
        body = problem.encode()
        headers = [(b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(body))]
        await self.send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


SLASH = "\ue000"
"""Stands in paths for a slash that is a part of an id, and was sent as %2F: it does not end a segment."""


def _path(scope: Scope) -> str:
    """Return the path of a request, in which slashes of ids are not those between segments."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    segments = raw.partition(b"?")[0].decode("latin-1").split("/")
    return "/".join([unquote(segment).replace("/", SLASH) for segment in segments])


def _bounded(receive: Receive) -> Receive:
    """Return what receives a body, but not without end."""
    size = 0

    async def bounded() -> Message:
        nonlocal size
        message = await receive()
        if message["type"] == "http.request":
            size += len(message.get("body", b""))
            if size > MAX_BODY:
                raise BodyTooLarge
        return message

    return bounded


def actor_name(key: ApiKey) -> str:
    """Return how a key is called in the audit trail."""
    return f"{key.name} ({key.id})" if key.name != key.id else key.name

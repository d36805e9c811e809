"""Authentication and rate limits of the admin plane, before any route runs.

Every request gets an id, which is in the response, the log and the audit trail. Its body is bounded in size and time.
Unless its path is public, it needs a valid key. An address that sends too many invalid keys must wait; keys that were
valid from that address before do not. The address is that of the connection, not of headers, and for IPv6 its /64.

The console accepts the cookie of a session (`headgate.admin.sessions`); the REST API does not.

Text that is not UTF-8, or has invisible characters (controls, zero, bidirectional overrides), is refused: ids, filters
and reasons are written to logs, terminals and the audit trail.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from hashlib import sha256
from html import escape
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from litestar.exceptions import HTTPException

from headgate.admin.database import DatabaseError
from headgate.admin.keys import AdminKeys, ApiKey, KeyRole
from headgate.admin.sessions import Sessions
from headgate.admin.tables import epoch_us
from headgate.core.decision import Decision
from headgate.core.errors import UsageError
from headgate.limiter import AsyncLimiter
from headgate.messages import printable
from headgate.networks import key_of
from headgate.reference.pages import PATHS as REFERENCE
from headgate.stores.base import AsyncStore
from headgate.web.address import parse
from headgate.web.deprecation import Deprecations
from headgate.web.problem import CONTENT_TYPE, ProblemDocument, of_status

READS, WRITES = "1000/minute", "100/minute"
"""Limits of one key, on all nodes together."""
FAILURES = "10/minute"
"""Limit of invalid keys from one address."""
ADMITTED = "admitted"
"""The name in a request's state of the callback for a valid key; see `headgate.admin.listener`."""
MAX_BODY = 10_485_760
"""Maximum size of a body, in bytes."""
BODY_WITHIN = 30.0
"""Seconds within which a body must arrive."""
REMEMBERED = 1000
"""Pairs of address and valid key that are remembered."""
_LONGEST_QUERY = 8192
_LONGEST_NAME = 100
_ONCE = frozenset({"authorization", "content-length", "content-type", "host", "if-match", "if-none-match", "x-reason"})
PUBLIC = REFERENCE | {"/console.css", "/console.js", "/favicon.svg", "/healthz", "/login"}
API = "/api/"
"""Prefix of the paths of the REST API, which does not accept cookies."""
COOKIE = "headgate_session"
IDENTIFY = "identify"
"""The name in a request's state of the function that looks up a key, for the login page."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_PREVIEW = "/rule/preview"
"""A page of the console that changes nothing, although it is requested with POST."""
_LOG = logging.getLogger("headgate.admin")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Refused(HTTPException):
    """A request that is refused regardless of its route."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail, status_code=status)

    @property
    def problem(self) -> ProblemDocument:
        return of_status(self.status_code, self.detail)


def body_too_large(most: int = MAX_BODY) -> Refused:
    return Refused(413, f"the body of this request must have at most {most:,} bytes")


class Gatekeeper:
    """ASGI middleware that admits only requests with a valid key, within its limits for `reads` and `writes`.

    While the store is down, each process counts alone. Responses at deprecated paths are marked.
    """

    def __init__(
        self,
        app: App,
        keys: AdminKeys,
        *,
        sessions: Sessions | None = None,
        reads: str = READS,
        writes: str = WRITES,
        store: AsyncStore | str = "memory",
        deprecations: Deprecations | None = None,
    ) -> None:
        self._app, self._keys, self._deprecations = app, keys, deprecations or Deprecations()
        self._sessions = sessions or Sessions(keys, None)
        self._reads, self._writes = (
            AsyncLimiter(quota, store=store, name=f"headgate-admin-{name}", on_store_failure="local")
            for quota, name in ((reads, "reads"), (writes, "writes"))
        )
        self._failures = AsyncLimiter(FAILURES, name="failures")
        self._seen: dict[bytes, None] = {}  # digests of an address and a key that was valid there, the latest last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # which closes a WebSocket
        fields = [(name.decode("latin-1").lower(), value) for name, value in scope["headers"]]
        headers = {name: value.decode("latin-1") for name, value in fields}
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        response = _Response(send, request_id)
        is_navigation = False
        try:
            _check(scope, [name for name, _ in fields], headers)
            inner = {**scope, "path": _path(scope), "state": {**scope.get("state", {}), "request_id": request_id}}
            inner["state"][IDENTIFY] = partial(self._identify_for_log_in, inner, response=response)
            if inner["path"] not in PUBLIC:
                is_navigation = "text/html" in headers.get("accept", "") and not inner["path"].startswith(API)
                announced = self._deprecations.fields(inner["path"])
                response.fields |= {name.decode(): value.decode() for name, value in announced}
                await self._admit(inner, headers, response)
            else:
                _check_site(inner, headers)
        except Refused as refused:
            if refused.status_code == 401 and is_navigation:
                await response.redirect_to_log_in(inner, headers)
            else:
                await response.refuse(refused.problem, as_page=is_navigation)
            return
        if scope["method"] == "HEAD":  # uvicorn omits the body
            inner["method"] = "GET"
        await self._app(inner, _bound(receive), response.send)

    async def _admit(self, scope: Scope, headers: Mapping[str, str], response: _Response) -> None:
        if "authorization" not in headers and not scope["path"].startswith(API):
            key = await self._key_of_session(scope, headers)
        else:
            scheme, _, text = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not text.strip():
                response.fields["www-authenticate"] = 'Bearer realm="headgate"'
                raise Refused(401, "a key is required: send the header Authorization: Bearer KEY")
            key = await self._identify(scope, text.strip(), response)
        await self._count(self._reads if _is_reading(scope) else self._writes, key, response)
        _check_plane(key)
        scope["state"]["key"] = key
        scope["state"].get(ADMITTED, bool)()

    async def _identify_for_log_in(self, scope: Scope, text: str, response: _Response) -> ApiKey:
        """Return the key of a login, which counts as a change, since it writes a session."""
        key = await self._identify(scope, text, response)
        await self._count(self._writes, key, response)
        _check_plane(key)
        return key

    @staticmethod
    async def _count(limiter: AsyncLimiter, key: ApiKey, response: _Response) -> None:
        decision = await limiter.check(key.id)
        response.note(decision)
        if not decision.allowed:
            raise response.slow_down(decision, f"the limit of this key is {decision.quota}")

    async def _key_of_session(self, scope: Scope, headers: Mapping[str, str]) -> ApiKey:
        token = _cookie(headers.get("cookie", ""))
        try:
            found = await self._sessions.find(token, is_active=_LIVE not in headers) if token else None
        except DatabaseError as error:
            raise Refused(503, f"sessions cannot be looked up: {error.public}") from error
        if found is None:
            raise Refused(401, "a key is required: log in at /login, or send the header Authorization: Bearer KEY")
        _check_site(scope, headers)
        scope["state"]["session"], key = found
        return key

    async def _identify(self, scope: Scope, text: str, response: _Response) -> ApiKey:
        address = address_of(scope.get("client"))
        seen = sha256(f"{address}\n{text}".encode("utf-8", "surrogatepass")).digest()
        tried = await self._failures.peek(address)
        if not tried.allowed and seen not in self._seen:
            raise response.slow_down(tried, "this address has sent too many invalid keys")
        try:
            key = await self._keys.find(text)
        except DatabaseError as error:
            raise Refused(503, f"keys cannot be looked up: {error.public}") from error
        self._seen.pop(seen, None)
        if key is None:
            await self._failures.check(address)
            path = printable(scope["path"])[:200]
            _LOG.warning("invalid key from %s for %s %s", address, scope["method"], path)
            response.fields["www-authenticate"] = 'Bearer realm="headgate", error="invalid_token"'
            raise Refused(401, "this key is invalid: unknown, expired or revoked")
        self._seen[seen] = None
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return key


class _Response:
    """Sends a response, with the headers that all responses have."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.fields = {
            "x-request-id": request_id,
            "x-content-type-options": "nosniff",
            "cache-control": "no-store",
            "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
            "img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
            "referrer-policy": "no-referrer",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
        }

    def note(self, decision: Decision) -> None:
        self.fields["x-ratelimit-limit"] = str(decision.limit)
        self.fields["x-ratelimit-remaining"] = str(decision.remaining)
        self.fields["x-ratelimit-reset"] = str(-(-(epoch_us() + decision.reset_after_us) // 1_000_000))

    def slow_down(self, decision: Decision, why: str) -> Refused:
        seconds = max(1, -(-decision.retry_after_us // 1_000_000))
        self.fields["retry-after"] = str(seconds)
        return Refused(429, f"{why}; try again in {seconds} s")

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            theirs = [*message.get("headers", ())]
            given = {name.lower() for name, _ in theirs}
            mine = [(name.encode(), value.encode("latin-1")) for name, value in self.fields.items()]
            message["headers"] = [*theirs, *[field for field in mine if field[0] not in given]]
        await self._send(message)

    async def refuse(self, problem: ProblemDocument, *, as_page: bool = False) -> None:
        """Send a problem, to a browser as a page."""
        if as_page:
            text = _PAGE.format(title=HTTPStatus(problem.status).phrase, detail=escape(problem.detail))
            await self._send_whole(problem.status, _HTML, text.encode())
        else:
            await self._send_whole(problem.status, (b"content-type", CONTENT_TYPE.encode()), problem.encode())

    async def redirect_to_log_in(self, scope: Scope, headers: Mapping[str, str]) -> None:
        """Redirect a browser to the login page, which redirects back.

        A link on another site sends no cookie, which is SameSite: a refresh requests the page again, from this site.
        """
        query: bytes = scope.get("query_string", b"")
        here = (scope.get("raw_path") or b"/") + (b"?" + query if query else b"")
        place = f"/login?next={quote(here, safe='')}" if _is_reading(scope) else "/login"
        if headers.get("sec-fetch-site") == "cross-site":
            page = f'<!doctype html><title>Headgate</title><meta http-equiv="refresh" content="0;url={place}">'
            await self._send_whole(200, _HTML, page.encode())
        else:
            await self._send_whole(303, (b"location", place.encode()), b"")

    async def _send_whole(self, status: int, field: tuple[bytes, bytes], body: bytes) -> None:
        headers = [field, (b"content-length", b"%d" % len(body))]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


_HTML = (b"content-type", b"text/html; charset=utf-8")
_PAGE = (
    '<!doctype html><html lang="en"><title>{title} · Headgate</title>'
    '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/console.css">'
    '<main><div class="panel login"><h1>{title}</h1><p>{detail}</p></div></main></html>'
)
_LIVE = "x-live"
"""The header of requests by which a page refreshes itself, which do not prolong a session."""


def _is_reading(scope: Scope) -> bool:
    return scope["method"] in _READING or scope["path"] == _PREVIEW


def _check_plane(key: ApiKey) -> None:
    if key.role is KeyRole.CHECK:
        raise Refused(403, "this key is for the decision plane; it is not accepted here")


def _check_site(scope: Scope, headers: Mapping[str, str]) -> None:
    """Refuse a change that a page of another site sent."""
    site, origin = headers.get("sec-fetch-site", "same-origin"), headers.get("origin")
    is_ours = origin is None or urlsplit(origin).netloc == headers.get("host", "")
    if not _is_reading(scope) and not (is_ours and site in {"same-origin", "none"}):
        raise Refused(403, "this request was sent from a page of another site; send it from the console")


def _cookie(header: str) -> str:
    for each in header.split(";"):
        name, _, value = each.strip().partition("=")
        if name == COOKIE:
            return value
    return ""


SLASH = "\ue000"
"""Replaces a slash that was sent as %2F, and so is part of an id, while a path is routed."""


def _path(scope: Scope) -> str:
    """Return the decoded path of a request, with `SLASH` for %2F. Raises UnicodeError and UsageError."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    segments = raw.partition(b"?")[0].decode("ascii").split("/")
    return "/".join([visible(unquote(segment, errors="strict")).replace("/", SLASH) for segment in segments])


def visible(text: str) -> str:
    """Return the text. Raises UsageError if it has invisible characters."""
    if not text.isprintable():
        odd = next(character for character in text if not character.isprintable())
        raise UsageError(f"the request contains an invisible or control character, U+{ord(odd):04X}")
    return text


def _check(scope: Scope, names: list[str], headers: Mapping[str, str]) -> None:
    """Refuse a malformed request."""
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > MAX_BODY:
        raise body_too_large()
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "bodies must not be compressed: omit Content-Encoding")
    twice = [name for name in _ONCE if names.count(name) > 1]
    if twice:
        raise Refused(400, f"the header {twice[0]} was sent more than once")
    query: bytes = scope.get("query_string", b"")
    if len(query) > _LONGEST_QUERY:
        raise Refused(400, f"a query must have at most {_LONGEST_QUERY} characters")
    try:
        _path(scope)
        visible(unquote(query.decode("ascii"), errors="strict"))
    except UsageError as error:
        raise Refused(400, str(error)) from None
    except UnicodeError:
        raise Refused(400, "paths and queries must be percent-encoded UTF-8") from None


def address_of(client: tuple[str, int] | None) -> str:
    """Return the address by which the failures of a connection are counted."""
    text = str((client or ("unknown", 0))[0])
    found = parse(text)
    return text if found is None else key_of(found)


def _bound(receive: Receive) -> Receive:
    """Bound the size of a body, and the time in which it arrives."""
    size, has_more = 0, True
    ends = asyncio.get_running_loop().time() + BODY_WITHIN

    async def bounded() -> Message:
        nonlocal size, has_more
        if not has_more:
            return await receive()
        try:
            async with asyncio.timeout_at(ends):
                message = await receive()
        except TimeoutError:
            raise Refused(408, f"the body of a request must arrive within {BODY_WITHIN:g} s") from None
        has_more = message.get("more_body", False)
        size += len(message.get("body", b""))
        if size > MAX_BODY:
            raise body_too_large()
        return message

    return bounded


def actor_name(key: ApiKey) -> str:
    return f"{key.name[:_LONGEST_NAME]} ({key.id})" if key.name != key.id else key.name

"""``GET /api/v1/rate-limit/rules``: the rules in force, for clients that decide by them while the service is down.

::

    {"version": 3, "enforcing": true, "rules": {"version": 1, "rules": [...], "users": {...}, ...}}

`rules` has the content of a rules file, as JSON. It is as private as that file: every caller that may send checks may
read it. The ETag is the same for all workers and nodes with the same rules, whatever their versions.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import NamedTuple

import msgspec

from headgate.engine import AsyncEngine
from headgate.policy.compiled import Policy
from headgate.policy.dumping import to_data
from headgate.server.wire.messages import Fields, HttpRequest, HttpResponse
from headgate.web.headers import matches

_JSON = (b"content-type", b"application/json")
_PRIVATE = (b"cache-control", b"private, no-cache")


class RulesDocument(NamedTuple):
    """Rules in the form in which they are sent."""

    etag: str
    """Includes the quotation marks."""
    body: bytes


class RulesPages:
    """Answers with the rules of an engine, serialized once per version."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._of: Policy | None = None
        self._writing: asyncio.Future[RulesDocument] | None = None

    async def document(self) -> RulesDocument:
        """Return the rules in force; a thread serializes them, since there may be many."""
        policy, writing = self._engine.policy, self._writing
        if writing is None or self._of is not policy or (writing.done() and writing.exception() is not None):
            loop = asyncio.get_running_loop()
            self._of, self._writing = policy, loop.run_in_executor(None, _document, policy)
            writing = self._writing
        return await asyncio.shield(writing)

    async def rules(self, request: HttpRequest) -> HttpResponse:
        """Answer with the rules, or with 304 if the client has them."""
        document = await self.document()
        fields: Fields = ((b"etag", document.etag.encode()), _PRIVATE)
        if matches((request.header(b"if-none-match") or b"").decode("latin-1"), document.etag):
            return HttpResponse(304, b"", fields)
        return HttpResponse(200, document.body, (_JSON, *fields))


def _document(policy: Policy) -> RulesDocument:
    rules = msgspec.json.encode({"enforcing": policy.enforcing, "rules": to_data(policy.ruleset)})
    etag = f'"{sha256(rules).hexdigest()[:32]}"'
    return RulesDocument(etag, b'{"version":%d,%b' % (policy.version, rules[1:]))

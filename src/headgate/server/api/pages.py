"""Pages about a node, for operators, load balancers, Prometheus and clients.

``/healthz`` reports that the process runs, ``/readyz`` (and ``/healthcheck``) that it accepts requests; ``/metrics``
and ``/hotkeys`` have its counters; ``/docs`` is the API reference, and ``/api/v1/rate-limit/rules`` has the rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from typing import NamedTuple, TypeAlias

import msgspec

from headgate.engine import AsyncEngine
from headgate.observe.recorder import Recorder
from headgate.observe.workers import wants_openmetrics
from headgate.policy.compiled import Policy
from headgate.policy.dumping import to_data
from headgate.reference.decision_api import document
from headgate.reference.pages import ReferenceFile, reference_files
from headgate.server.readiness import Readiness
from headgate.server.wire.messages import Fields, Handler, HttpRequest, HttpResponse
from headgate.web.headers import matches

_REST = 3.0
"""The pause after writing a page, as a multiple of the time it took: pages take at most a quarter of the time."""
_Page: TypeAlias = tuple[bytes, bytes]
"""Content type and body."""
_JSON = (b"content-type", b"application/json")
_FIELDS = (_JSON, (b"cache-control", b"no-store"))
_PRIVATE = (b"cache-control", b"private, no-cache")


class HealthPages:
    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness

    async def alive(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse(200, b'{"status":"alive"}', _FIELDS)

    async def ready(self, _: HttpRequest) -> HttpResponse:
        """Return 200 unless the node drains; the status is "ready", or "degraded" while the store is unavailable."""
        if self._readiness.is_draining:
            return HttpResponse(503, b'{"status":"draining"}', (*_FIELDS, (b"retry-after", b"1")))
        degraded = await self._readiness.degraded()
        body: dict[str, str | int] = {"status": "degraded", "reason": degraded} if degraded else {"status": "ready"}
        if nodes := self._readiness.nodes:
            body["nodes"] = nodes
        if not self._readiness.enforcing():
            body["enforcement"] = "off"
        if self._readiness.stale():
            body["rules"] = "last_good"
        return HttpResponse(200, msgspec.json.encode(body), _FIELDS)


class MetricsPages:
    """Metrics and hot keys. Anyone may request metrics, however often, so concurrent requests share a page."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._next: dict[bool, asyncio.Task[_Page]] = {}
        """Pages in either format that are not begun yet."""
        self._writing = asyncio.Lock()
        self._rest_until = 0.0

    async def metrics(self, request: HttpRequest) -> HttpResponse:
        """Return the metrics of all workers, in Prometheus's format."""
        accept = request.header(b"accept")
        wanted = wants_openmetrics(accept)
        page = self._next.get(wanted)
        if page is None:
            page = self._next[wanted] = asyncio.get_running_loop().create_task(self._write(accept, wanted))
        kind, body = await asyncio.shield(page)
        return HttpResponse(200, body, ((b"content-type", kind),))

    async def hot_keys(self, _: HttpRequest) -> HttpResponse:
        """Return the keys that have the most requests and refusals."""
        return HttpResponse(200, self._recorder.hot_keys(), (_JSON,))

    async def _write(self, accept: bytes | None, wanted: bool) -> _Page:  # noqa: FBT001  a key
        loop = asyncio.get_running_loop()
        async with self._writing:
            await asyncio.sleep(max(0.0, self._rest_until - loop.time()))
            del self._next[wanted]  # later requests get a later page
            began = loop.time()
            self._recorder.refresh()
            try:
                return await loop.run_in_executor(None, self._recorder.metrics, accept)
            finally:
                self._rest_until = loop.time() + _REST * (loop.time() - began)


def reference_pages() -> Mapping[bytes, Handler]:
    """Return the handlers of the API reference, by path; all files are read now."""
    return {
        path.encode(): partial(
            _reference, file, tuple((name.encode(), value.encode()) for name, value in file.headers.items())
        )
        for path, file in reference_files(document()).items()
    }


def _reference(file: ReferenceFile, fields: Fields, request: HttpRequest) -> HttpResponse:
    status, body = file.answer((request.header(b"if-none-match") or b"").decode("latin-1"))
    return HttpResponse(status, body, fields)


class RulesDocument(NamedTuple):
    """Rules as they are sent."""

    etag: str
    """Includes the quotation marks."""
    body: bytes


class RulesPages:
    """The rules in force, for clients that decide by them while the service is down; serialized once per version.

    ::

        {"version": 3, "enforcing": true, "rules": {"version": 1, "rules": [...], "users": {...}, ...}}

    `rules` has the content of a rules file, as JSON. It is as private as that file: every caller that may send checks
    may read it. The ETag is the same for all workers and nodes with the same rules, whatever their versions.
    """

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
        """Return the rules, or 304 if the client has them."""
        document = await self.document()
        fields: Fields = ((b"etag", document.etag.encode()), _PRIVATE)
        if matches((request.header(b"if-none-match") or b"").decode("latin-1"), document.etag):
            return HttpResponse(304, b"", fields)
        return HttpResponse(200, document.body, (_JSON, *fields))


def _document(policy: Policy) -> RulesDocument:
    rules = msgspec.json.encode({"enforcing": policy.enforcing, "rules": to_data(policy.ruleset)})
    etag = f'"{sha256(rules).hexdigest()[:32]}"'
    return RulesDocument(etag, b'{"version":%d,%b' % (policy.version, rules[1:]))

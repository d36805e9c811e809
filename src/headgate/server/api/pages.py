"""Pages about a node, for operators, load balancers and Prometheus.

``/healthz`` reports that the process runs, ``/readyz`` (and ``/healthcheck``) that it accepts requests; ``/metrics``
and ``/hotkeys`` report what it has counted; ``/docs`` is the API reference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TypeAlias

import msgspec

from headgate.observe.recorder import Recorder
from headgate.observe.workers import wants_openmetrics
from headgate.reference.decision_api import document
from headgate.reference.pages import ReferenceFile, reference_files
from headgate.server.readiness import Readiness
from headgate.server.wire.messages import Fields, Handler, HttpRequest, HttpResponse

_REST = 3.0
"""The pause after writing a page, as a multiple of the time it took: pages take at most a quarter of the time."""
_Page: TypeAlias = tuple[bytes, bytes]
"""Content type and body."""
_FIELDS = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))


class HealthPages:
    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness

    async def alive(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse(200, b'{"status":"alive"}', _FIELDS)

    async def ready(self, _: HttpRequest) -> HttpResponse:
        """Answer 200 unless the node drains; the status is "ready", or "degraded" while the store is unavailable."""
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
        """Answer with the metrics of all workers, in Prometheus's format."""
        accept = request.header(b"accept")
        wanted = wants_openmetrics(accept)
        page = self._next.get(wanted)
        if page is None:
            page = self._next[wanted] = asyncio.get_running_loop().create_task(self._write(accept, wanted))
        kind, body = await asyncio.shield(page)
        return HttpResponse(200, body, ((b"content-type", kind),))

    async def hot_keys(self, _: HttpRequest) -> HttpResponse:
        """Answer with the keys that have the most requests and refusals."""
        return HttpResponse(200, self._recorder.hot_keys(), ((b"content-type", b"application/json"),))

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

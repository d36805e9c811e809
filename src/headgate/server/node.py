"""One process of the decision service: its files, its store, its engines and its ports."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack
from socket import socket
from typing import Any

from headgate.core.errors import StoreError
from headgate.engine import AsyncEngine
from headgate.engine.descriptors import AsyncDescriptorEngine
from headgate.observe import metrics
from headgate.observe.logs import Principals
from headgate.observe.readings import of_callers, of_live, of_number, of_snapshot
from headgate.observe.recorder import Recorder
from headgate.observe.tracing import Tracing
from headgate.observe.workers import CounterFiles
from headgate.server import authz, rls, rpc
from headgate.server.admission import CALLER_HEADERS, AdmissionController
from headgate.server.api.bodies import Timestamps
from headgate.server.api.forward_auth import ForwardAuth
from headgate.server.api.pages import reference_pages
from headgate.server.api.routes import BATCH, CHECK, FORWARD_AUTH, REFUND, RESET, RULES, application, statuses_of
from headgate.server.configuration import Configuration
from headgate.server.decisions import Decisions
from headgate.server.deprecations import announcing
from headgate.server.ports import room_for, stop_accepting, stop_listening
from headgate.server.readiness import Readiness
from headgate.server.rls.json_form import JsonForm
from headgate.server.rpc import ratelimiter
from headgate.server.settings import Settings
from headgate.server.tracing import traced_handler, traced_methods
from headgate.server.wire.grpc.calls import Methods
from headgate.server.wire.limits import WireLimits
from headgate.server.wire.listener import Listener
from headgate.server.wire.messages import Handler
from headgate.web.headers import ResponseHeaders

_LOG = logging.getLogger("headgate.server")
_PUBLISH_EVERY = 1.0
COLLECTOR = (20_000, 2, 40)
"""Thresholds of the garbage collector; requests make no cycles, and each collection delays all requests. First: new
objects that start a young collection, more than all requests in flight have; a lower one takes up to a twentieth of a
request's time. Second: young collections per middle collection; with Python's own 10, these take tens of milliseconds
where keys are new to a memory store. Third: middle collections per full one, which are as rare as with Python's 10
and 10."""
_HANDSHAKES = 0.05
"""Seconds in which connections may still arrive that were being made when a node stopped listening."""
APIS: Mapping[bytes, str] = {
    CHECK: "check",
    REFUND: "refund",
    RESET: "reset",
    BATCH: "batch",
    RULES: "rules",
    FORWARD_AUTH: "forward_auth",
    b"/json": "json",
    rls.SHOULD_RATE_LIMIT: "rls",
    authz.CHECK: "ext_authz",
    **{f"/{ratelimiter.SERVICE}/{method}".encode(): api for method, api in ratelimiter.APIS.items()},
}
"""Names of APIs in metrics, by path."""


class Node:
    """Serves in the event loop in which it is created.

    It is one of several workers if it has a `folder`, where they share their measurements. Raises UsageError if a file,
    such as the rules or a certificate, is invalid.
    """

    def __init__(self, settings: Settings, *, worker: int = 0, folder: str = "") -> None:
        self._settings, self._timestamps = settings, Timestamps(ignored=settings.client_timestamps == "ignore")
        self._headers = ResponseHeaders(reset_format=settings.reset_format)
        files = self._files = Configuration(settings)
        self._tracing = Tracing() if settings.tracing else None
        options: dict[str, Any] = {
            "store": settings.store_address,
            "on_store_failure": settings.on_store_failure,
            "nodes": settings.shares,
            "is_cached": True,
            "store_options": settings.store_options,
        }
        self.engine = AsyncEngine(files.rules, **options)
        self._counters = CounterFiles(folder) if folder else None
        self.recorder = Recorder(
            self._counters,
            worker,
            principals=Principals(plain=settings.log_principals == "plain"),
            denials_per_second=settings.log_denials,
            access_log=settings.log_access,
            principal_use=bool(settings.database),
            refusals=bool(settings.database or (settings.rules and os.environ.get("HEADGATE_ADMIN_KEY"))),
        )
        callers = files.callers
        self._admission = AdmissionController(
            per_second=_share(settings.max_checks_per_second, settings.workers),
            in_flight=_share(settings.max_in_flight, settings.workers),
            keys=None if callers is None else lambda: callers.value,
            shed=lambda path: self.recorder.record_shed(APIS.get(path, "other")),
        )
        self._decisions = Decisions(self.engine, self.recorder).within(settings.api_seconds)
        snapshot = files.snapshot
        self._readiness = Readiness(
            self.engine,
            enforcing=lambda: files.rules.value.enforcing,
            stale=lambda: snapshot is not None and bool(snapshot.following().error),
        )
        self._trees: AsyncDescriptorEngine | None = None
        self._engines: list[AsyncEngine | AsyncDescriptorEngine] = [self.engine]
        if files.descriptors:
            self._trees = AsyncDescriptorEngine(
                files.descriptors,
                shadow_mode=settings.envoy_shadow,
                count_refused=settings.envoy_count_refused,
                **options,
            )
            self._trees.enforce(enforcing=settings.enforcement)
            self.recorder.watch(self._trees)
            self._engines.append(self._trees)
        self._envoy = self._envoy_service()
        limits = WireLimits(connections=room_for(_share(settings.max_connections, settings.workers)))
        self._listener = Listener(limits, self._admission.admission)
        self.recorder.add(of_number(metrics.CONNECTIONS, lambda: self._listener.connections))
        self.recorder.add(of_number(metrics.ENFORCEMENT, lambda: int(files.rules.value.enforcing)))
        self.recorder.add(of_live(files.lives))
        self.recorder.add(of_callers(self._admission.accepted_callers))
        if snapshot is not None:
            self.recorder.add(of_snapshot(snapshot, files.rules, counting=worker == 0))
        self._sockets: Mapping[str, socket] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def rules(self) -> int:
        return len(self._files.rules.value.rules)

    async def open(self, sockets: Mapping[str, socket]) -> None:
        """Serve on bound sockets, by protocol: "http" and "grpc". Everything slow happens before the first request."""
        meeting = asyncio.ensure_future(self._meet_stores())
        self._files.start()
        self._begin(self._publish())
        self._sockets = sockets
        handler = traced_handler(announcing(self._http(), self._files.deprecations), self._tracing)
        methods = traced_methods(self._grpc(), self._tracing)
        statuses = statuses_of(self._settings.deny_status)
        await meeting
        gc.collect()
        gc.freeze()  # what exists now stays: never examine it again
        gc.set_threshold(*COLLECTOR)
        await self._listener.serve_http(handler, sockets["http"], self._files.tls, statuses)
        await self._listener.serve_grpc(methods, sockets["grpc"], self._files.tls)

    def reload(self) -> None:
        _LOG.info("reloading rules, certificates, caller keys and identity")
        self._begin(asyncio.to_thread(self._files.reload))

    def enforce(self, *, enforcing: bool) -> None:
        """Turn enforcement on or off, from the next request on; off makes every rule a shadow."""
        self._files.rules.enforce(enforcing=enforcing)
        if self._trees:
            self._trees.enforce(enforcing=enforcing)

    def announce_end(self) -> None:
        """Let health checks fail from now on; requests are served as before."""
        self._readiness.drain()

    async def drain(self, seconds: float) -> None:
        """Stop accepting connections, finish the requests in progress, and close, within `seconds`."""
        self.announce_end()
        with ExitStack() as stack:
            accepting = [stack.enter_context(each.dup()) for each in self._sockets.values() if not stop_accepting(each)]
            await asyncio.sleep(min(_HANDSHAKES, seconds))
            draining = asyncio.ensure_future(self._listener.drain(seconds))
            await asyncio.sleep(0)  # accepts the connections in the queue; later ones would not be
            for each in accepting:
                stop_listening(each)
        if not await draining:
            _LOG.warning("some requests did not end within %g s and were aborted", seconds)

    async def close(self) -> None:
        """Close at once, whatever is in progress."""
        for task in self._tasks:
            task.cancel()
        await self._listener.close()
        self._files.close()
        for engine in self._engines:
            await engine.close()
        self.recorder.close()
        if self._tracing:
            await asyncio.to_thread(self._tracing.close)
        if self._counters:
            self._counters.close()

    def _envoy_service(self) -> rls.RateLimitService:
        """Return the service for Envoy: by rules, by trees, or by both."""
        settings, trees = self._settings, self._trees
        by_rules = bool(settings.rules or settings.database) or not settings.envoy_config
        return rls.RateLimitService(
            self.recorder,
            decisions=self._decisions.within(settings.rls_seconds) if by_rules else None,
            trees=trees.within(settings.rls_seconds) if trees and settings.rls_seconds else trees,
            headers=self._headers if settings.envoy_headers else None,
            trust_tier=settings.envoy_trust_tier,
            identifier=self._files.identifier,
            count_refused=settings.envoy_count_refused,
            admit_more=self._admission.admit_descriptors,
            metadata=settings.envoy_metadata,
        )

    def _http(self) -> Handler:
        settings, as_json = self._settings, JsonForm(self._envoy)
        return application(
            self._decisions,
            self._readiness,
            forward_auth=ForwardAuth(
                deny_status=settings.deny_status,
                kind=settings.proxy_headers,
                identifier=self._files.identifier,
                headers=self._headers,
                callers=CALLER_HEADERS if settings.caller_keys else frozenset(),
            ),
            reset_format=settings.reset_format,
            timestamps=self._timestamps,
            admit_more=self._admission.admit_more,
            others={b"/json": as_json, b"/json/explain": as_json.explain, b"/rlconfig": as_json.configuration},
            reference=reference_pages() if settings.http_docs else {},
        )

    def _grpc(self) -> Methods:
        ours = rpc.methods(
            self._decisions,
            self._readiness,
            timestamps=self._timestamps,
            reflection=self._settings.grpc_reflection,
            admit_more=self._admission.admit_more,
        )
        authorization = authz.AuthorizationService(self._decisions, self._files.identifier, self._headers)
        return ours | rls.methods(self._envoy) | authz.methods(authorization)

    async def _meet_stores(self) -> None:
        """Connect to the store before the first request. If it is down, the node serves without it."""
        seconds = self._settings.start_seconds
        met = await asyncio.gather(*(engine.meet(seconds) for engine in self._engines), return_exceptions=True)
        for error in met:
            if isinstance(error, StoreError):
                _LOG.error("the store is unavailable, so requests are decided without it until it recovers: %s", error)
                return
            if error is not None:
                raise error

    async def _publish(self) -> None:
        while True:
            for engine in self._engines:
                engine.beat()
            self.recorder.publish()
            await asyncio.sleep(_PUBLISH_EVERY - time.time() % _PUBLISH_EVERY)  # windows end with whole seconds

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _share(total: int, workers: int) -> int:
    return -(-total // workers)

"""One process of the decision service, put together: rules and store, what decides, what is asked, and the ports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack
from socket import socket
from typing import Any

from headgate.core.errors import StoreError, UsageError
from headgate.engine import AsyncEngine
from headgate.engine.descriptors import AsyncDescriptorEngine
from headgate.observe import families
from headgate.observe.copies import of_number
from headgate.observe.principals import Principals
from headgate.observe.recorder import Recorder
from headgate.observe.slots import Slots
from headgate.observe.tracing import Tracing
from headgate.policy.live import Live, LivePolicy
from headgate.server import surface
from headgate.server.decisions import Decisions
from headgate.server.guard import Guard
from headgate.server.identity.live import LiveIdentifier
from headgate.server.open_files import room_for
from headgate.server.ports import deafen, stand_aside
from headgate.server.preflight import callers_of, descriptors_of, identifier_of, rules_of, tls_of
from headgate.server.readiness import Readiness
from headgate.server.rls import Options, RateLimitService
from headgate.server.settings import Settings
from headgate.server.traced import traced_handler, traced_methods
from headgate.server.wire.limits import WireLimits
from headgate.server.wire.listener import Listener
from headgate.web.headers import ResponseHeaders

_LOG = logging.getLogger("headgate.server")
_PUBLISH_EVERY = 1.0
_STORE_PATIENCE = 0.25
"""Seconds that a node waits for its store before it serves."""
_HANDSHAKES = 0.05
"""Seconds for connections to come that are being made when a node stops listening."""


class Node:
    """Serves, in the loop that runs when it is made.

    Args:
        settings: of the service.
        slot: which of the workers this is, counted from 0.
        folder: where the workers share what they measure; empty if this process is alone.

    Raises:
        UsageError: rules, certificates or another file cannot be used.
    """

    def __init__(self, settings: Settings, *, slot: int = 0, folder: str = "") -> None:
        self._settings = settings
        self._tls = tls_of(settings)
        self._identifier = LiveIdentifier(lambda: identifier_of(settings))
        self._tracing = Tracing() if settings.tracing else None
        self._policy = LivePolicy(rules_of(settings), enforcing=settings.enforcement)
        self._descriptors = descriptors_of(settings)
        self._engine = AsyncEngine(
            self._policy,
            store=settings.store_address,
            on_store_failure=settings.on_store_failure,
            nodes=settings.shares,
        )
        self._slots = Slots(folder) if folder else None
        self._recorder = Recorder(
            self._slots,
            slot,
            principals=Principals(plain=settings.log_principals == "plain"),
            denials_per_second=settings.log_denials,
            access_log=settings.log_access,
        )
        self._guard = Guard(
            per_second=_share(settings.max_checks_per_second, settings.workers),
            in_flight=_share(settings.max_in_flight, settings.workers),
            keys=callers_of(settings),
            shed=self._shed,
        )
        self._decisions = Decisions(self._engine, self._recorder).within(settings.api_seconds)
        self._readiness = Readiness(self._engine, enforcing=lambda: self._policy.policy.enforcing)
        self._trees: AsyncDescriptorEngine | None = None
        if self._descriptors:
            self._trees = AsyncDescriptorEngine(
                self._descriptors,
                store=settings.store_address,
                on_store_failure=settings.on_store_failure,
                nodes=settings.shares,
                shadow_mode=settings.envoy_shadow,
                count_refused=settings.envoy_count_refused,
            )
            self._trees.enforce(enforcing=settings.enforcement)
            self._recorder.watch(self._trees)
        by_rules = bool(settings.rules) or not settings.envoy_config
        self._envoy = RateLimitService(
            self._recorder,
            decisions=self._decisions.within(settings.rls_seconds) if by_rules else None,
            trees=self._trees.within(settings.rls_seconds) if self._trees and settings.rls_seconds else self._trees,
            options=Options(
                headers=ResponseHeaders(reset_format=settings.reset_format) if settings.envoy_headers else None
            ),
            trust_tier=settings.envoy_trust_tier,
            count_refused=settings.envoy_count_refused,
            charge=self._guard.charge_descriptors,
        )
        limits = WireLimits(connections=room_for(_share(settings.max_connections, settings.workers)))
        self._listener = Listener(limits, self._guard.admission)
        self._recorder.add(of_number(families.CONNECTIONS, lambda: self._listener.connections))
        self._recorder.add(of_number(families.ENFORCEMENT, lambda: int(self._policy.policy.enforcing)))
        self._sockets: Mapping[str, socket] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def rules(self) -> int:
        """How many are in force."""
        return len(self._policy.policy.rules)

    async def open(self, sockets: Mapping[str, socket]) -> None:
        """Serve on sockets that are bound, by what is spoken there: "http" and "grpc"."""
        for live in self._lives():
            live.start()
        await self._meet_store()
        self._begin(self._publish())
        self._sockets = sockets
        parts = self._settings, self._decisions, self._readiness, self._envoy, self._guard
        handler = traced_handler(surface.http(*parts, identifier=self._identifier), self._tracing)
        methods = traced_methods(surface.grpc(*parts), self._tracing)
        await self._listener.serve_http(handler, sockets["http"], self._tls, surface.statuses(self._settings))
        await self._listener.serve_grpc(methods, sockets["grpc"], self._tls)

    def reload(self) -> None:
        """Look again at rules, certificates, keys and identity. What is wrong is logged, and what was there stays."""
        _LOG.info("looking again at rules, certificates, caller keys and identity")
        self._listener.refresh_certificates()
        try:
            self._guard.keys = callers_of(self._settings)
        except UsageError as error:
            _LOG.error("the caller keys in force stay: %s", error)
        self._begin(asyncio.to_thread(_read_again, self._identifier))
        for live in self._lives():
            self._begin(asyncio.to_thread(_refresh, live))

    def enforce(self, *, enforcing: bool) -> None:
        """Let limits refuse, or let every rule be a shadow, from the next request on."""
        self._policy.enforce(enforcing=enforcing)
        if self._trees:
            self._trees.enforce(enforcing=enforcing)

    async def drain(self, seconds: float) -> None:
        """Accept no more connections, answer what has been asked, and close all; in so many seconds at most."""
        self._readiness.drain()
        with ExitStack() as stack:
            hearing = [stack.enter_context(each.dup()) for each in self._sockets.values() if not deafen(each)]
            await asyncio.sleep(min(_HANDSHAKES, seconds))
            draining = asyncio.ensure_future(self._listener.drain(seconds))
            await asyncio.sleep(0)  # those who waited are accepted; who comes now would wait for nobody
            for each in hearing:
                stand_aside(each)
        if not await draining:
            _LOG.warning("some requests had not ended in %g s, and were cut off", seconds)

    async def close(self) -> None:
        """End at once, whatever is in progress."""
        for task in self._tasks:
            task.cancel()
        await self._listener.close()
        for live in self._lives():
            live.close()
        await self._engine.close()
        if self._trees:
            await self._trees.close()
        self._recorder.close()
        if self._tracing:
            await asyncio.to_thread(self._tracing.close)
        if self._slots:
            self._slots.close()

    async def _meet_store(self) -> None:
        """Connect to the store before the first request does. If it is away, requests are answered all the same."""
        try:
            async with asyncio.timeout(_STORE_PATIENCE):
                await self._engine.ready()
        except (StoreError, TimeoutError) as error:
            why = f"no answer in {_STORE_PATIENCE:g} s" if isinstance(error, TimeoutError) else error
            _LOG.error("the store cannot decide, so requests are decided without it until it can: %s", why)

    def _shed(self, path: bytes) -> None:
        self._recorder.shed(surface.APIS.get(path, "other"))

    async def _publish(self) -> None:
        while True:
            self._recorder.publish()
            await asyncio.sleep(_PUBLISH_EVERY)

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _lives(self) -> list[Live[Any, Any]]:
        return [self._policy, *([self._descriptors] if self._descriptors else [])]


def _share(total: int, workers: int) -> int:
    """Return the part of one worker; all of them together have at least the total."""
    return -(-total // workers)


def _refresh(live: Live[Any, Any]) -> None:
    """Look at a source now. It believes in a change that it has seen twice."""
    live.refresh()
    live.refresh()


def _read_again(identifier: LiveIdentifier) -> None:
    try:
        identifier.refresh()
    except UsageError as error:
        _LOG.error("the identity file in force stays: %s", error)

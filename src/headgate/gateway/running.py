"""A running gateway: the decision service and Envoy, both supervised, and its file, which is watched.

::

    gateway.yaml ── watched ──> checked, by Envoy too ──> files of a private folder, each replaced atomically
                                                             │                      │
                         rules.yaml, identity.yaml ◄─────────┘                      └──► clusters, secrets, listeners,
                         watched by the decision service ◄── Unix sockets ── Envoy ◄──   routes .json, watched by Envoy

Make before break: new clusters first, then listeners and routes. Old clusters are removed later, since a request that
waits for its decision already has its route. Changes of routes affect no connection; a changed listener keeps its port,
and its old connections are closed after their next response. An invalid file changes nothing.

A stop is announced first; then Envoy drains; then the decision service ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any, Protocol

import msgspec

from headgate.core.errors import UsageError
from headgate.files import renew_file
from headgate.gateway.bootstrap import (
    CLUSTERS,
    LISTENERS,
    ROUTES,
    SECRETS,
    Resources,
    decision_sockets,
    discovery,
    resources_of,
)
from headgate.gateway.envoy import Envoy, validate
from headgate.gateway.loading import load_gateway
from headgate.gateway.model import Gateway, GatewayListener
from headgate.gateway.pages import Pages
from headgate.gateway.routing import Json
from headgate.live import FileSource, Live
from headgate.policy.snapshot import snapshot_folder
from headgate.server.identity import OF_DATABASE
from headgate.server.ports import examine, listen_at
from headgate.server.private_folder import PrivateFolder
from headgate.server.process import Shutdown, handle_signals, log_announcement
from headgate.server.settings import Settings
from headgate.server.supervisor import Supervisor

_LOG = logging.getLogger("headgate.gateway")
_OLD_CLUSTERS_SECONDS = 10.0
"""How long a cluster without routes is kept, in addition to the longest time of a decision."""
_FIXED: Mapping[str, Callable[[Gateway], object]] = {
    "store": lambda gateway: gateway.decisions.store,
    "decisions.workers": lambda gateway: gateway.decisions.workers,
    "decisions.address": lambda gateway: gateway.decisions.remote is None,
    "on_store_failure": lambda gateway: gateway.decisions.on_store_failure,
    "admin": lambda gateway: gateway.admin,
    "threads": lambda gateway: gateway.threads,
    "identity.api_keys.consumers": lambda gateway: gateway.consumers,
    "limits.connections": lambda gateway: gateway.max_connections,
    "drain_delay": lambda gateway: gateway.drain_delay,
    "drain": lambda gateway: gateway.drain_seconds,
}


def settings_of(gateway: Gateway, folder: Path, log_format: str, log_level: str, consumers: str = "") -> Settings:
    """Return the settings of the decision service beside a gateway; `consumers` is the folder with their keys."""
    decisions = gateway.decisions
    return Settings(
        rules=f"{folder}/rules.yaml",
        identity=f"{folder}/identity.yaml",
        consumers=consumers,
        store=decisions.store,
        on_store_failure=decisions.on_store_failure,
        workers=decisions.workers,
        drain_delay=0,  # it ends when Envoy has
        drain_seconds=gateway.drain_seconds,
        envoy_trust_tier=True,
        envoy_count_refused=True,
        log_format=log_format,
        log_level=log_level,
    )


def identity_file(gateway: Gateway) -> Json:
    addresses = {"trusted": ["unix"], "ipv6_prefix": gateway.ipv6_prefix}
    file: Json = {"version": 1, "addresses": addresses}
    if gateway.api_keys is not None:
        keys = {**gateway.api_keys, "keys": gateway.api_keys.get("keys") or OF_DATABASE}
        file["api_keys"] = {name: value for name, value in keys.items() if name != "consumers"}
    if gateway.issuers:
        file["jwt_metadata"] = [
            {"key": each.name, "claims": each.claims} | ({"realm": each.realm} if each.realm else {})
            for each in gateway.issuers
        ]
    return file


class ConsumerKeys(Protocol):
    """Keeps the keys of consumers in a folder up to date."""

    async def begin(self) -> None:
        """Update them once, if the database is available."""

    async def run(self) -> None:
        """Keep them up to date until cancelled."""


class RunningGateway:
    """Runs the gateway of a file until a signal. Raises UsageError if the file is invalid.

    `following` returns a follower of the keys of consumers, given a database and a folder.
    """

    def __init__(
        self,
        path: str,
        *,
        store: str,
        log_format: str = "text",
        log_level: str = "info",
        following: Callable[[str, Path], ConsumerKeys] | None = None,
    ) -> None:
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(PrivateFolder(_runtime_folder())).path
        self._logs = log_format, log_level
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changes: asyncio.Queue[Resources] = asyncio.Queue()
        self._tasks = set[asyncio.Task[None]]()
        self._supervisor: Supervisor | None = None
        self._following = list[asyncio.Task[None]]()
        self._reading: asyncio.Task[bool] | None = None
        self._pages: Pages | None = None
        source = FileSource(path, lambda file: load_gateway(file, store=store, reading=source.also))
        try:
            self._live = Live(source, self._compile, what="gateway settings")
        except BaseException:
            self._stack.close()
            raise
        self._consumers: ConsumerKeys | None = None
        self._consumer_folder = ""
        if self.gateway.consumers and following:  # the folder persists: it starts without the database, too
            folder = snapshot_folder(f"{self.gateway.consumers} for {Path(path).absolute()}")
            self._consumers, self._consumer_folder = following(self.gateway.consumers, folder), str(folder)
        self._shutdown = Shutdown(self.gateway.drain_delay)
        self._envoy = Envoy(self.gateway, self._folder, log_format)

    @property
    def gateway(self) -> Gateway:
        return self._live.value.gateway

    async def run(self, serving: Callable[[], object]) -> None:
        """Serve until SIGTERM or SIGINT, then drain; call `serving` once it serves.

        Raises CannotStart, and UsageError if a port is taken.
        """
        self._loop = asyncio.get_running_loop()
        with self._stack:
            try:
                handle_signals(self._loop, self._stop, self._reload, self._enforce)
                if await self._start_all():
                    serving()
                    await self._until(self._shutdown.announced.wait())
                    if self._pages:
                        self._pages.is_draining = True
                    await self._envoy.announce_end()
                    if not self._shutdown.draining.is_set():
                        log_announcement(_LOG, self.gateway.drain_delay)
                    await self._shutdown.draining.wait()  # health checks fail, and requests are served
                seconds = self.gateway.drain_seconds
                _LOG.info("draining: requests in progress get up to %g s to end", seconds)
                await self._envoy.drain(seconds)
            finally:
                await self._close()

    async def _start_all(self) -> bool:
        """Start everything; return False if it was stopped before it served."""
        gateway, resources = self.gateway, self._live.value
        for listener in gateway.listeners:
            _check_port(listener)
        for kind in (CLUSTERS, SECRETS, ROUTES, LISTENERS):
            renew_file(self._file(kind), resources.file(kind), durable=False)
        if gateway.admin:
            sockets = decision_sockets(str(self._folder), gateway.decisions.workers, "http")
            decisions = [] if gateway.decisions.remote else sockets
            self._pages = Pages(gateway.admin, self._envoy, decisions, self._live)
        if not gateway.decisions.remote:
            self._write_decisions(gateway)
            if self._consumers:
                await self._consumers.begin()
                self._following.append(self._start(self._consumers.run()))
            decides = asyncio.Event()
            self._start(self._decide(gateway, decides))
            if not await self._until(decides.wait()):
                return False
        self._start(self._envoy.run())
        if not await self._until(self._envoy.serving.wait()):
            return False
        if self._pages:
            await self._pages.open()
        self._following.append(self._start(self._follow()))
        self._live.start()
        return True

    async def _decide(self, gateway: Gateway, decides: asyncio.Event) -> None:
        folder = str(self._folder)
        with ExitStack() as stack:
            ports = []
            for kind in ("http", "grpc"):
                port = listen_at(kind, decision_sockets(folder, gateway.decisions.workers, kind))
                stack.callback(port.close)
                ports.append(port)
            shared = stack.enter_context(PrivateFolder(folder))
            settings = settings_of(gateway, self._folder, *self._logs, self._consumer_folder)
            self._supervisor = Supervisor(settings, ports, shared, lambda _: decides.set())
            await self._supervisor.supervise()

    async def _follow(self) -> None:
        """Put changes in force in order; after the last one, remove unused clusters."""
        resources, pause = self._live.value, None
        while True:
            try:
                resources = await asyncio.wait_for(self._changes.get(), pause)
            except TimeoutError:
                await self._put(CLUSTERS, resources.file(CLUSTERS))
                pause = None
                continue
            gateway = resources.gateway
            pause = _OLD_CLUSTERS_SECONDS + gateway.decisions.timeout
            try:
                if not gateway.decisions.remote and self._write_decisions(gateway) and self._supervisor:
                    self._supervisor.reload()
                await self._replace(resources)
            except OSError:
                _LOG.exception("the change is not in force, or only in part")

    async def _replace(self, new: Resources) -> None:
        """Replace the resources of Envoy: additions before their users."""
        written = msgspec.json.decode(self._file(CLUSTERS).read_bytes())["resources"]
        old = [{name: value for name, value in each.items() if name != "@type"} for each in written]
        await self._put(CLUSTERS, discovery(CLUSTERS, new.with_clusters(old)))
        for kind in (SECRETS, LISTENERS, ROUTES):
            await self._put(kind, new.file(kind))

    async def _put(self, kind: str, content: bytes) -> None:
        if renew_file(self._file(kind), content, durable=False) and not await self._envoy.applies(kind, content):
            _LOG.error("Envoy rejected the new %s; the previous ones stay in force: see its log", kind)

    async def _close(self) -> None:
        await asyncio.to_thread(self._live.close)
        for task in self._following:
            task.cancel()
        self._envoy.end()
        if self._supervisor:
            self._supervisor.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._pages:
            await self._pages.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        return task

    async def _until(self, event: Coroutine[Any, Any, object]) -> bool:
        """Wait for an event; return False if a stop was requested before. Raises the errors of all tasks."""
        waits = {asyncio.ensure_future(event), asyncio.ensure_future(self._shutdown.announced.wait())}
        try:
            await asyncio.wait({*waits, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        for task in self._tasks:
            if task.done():
                task.result()
        return not self._shutdown.announced.is_set()

    def _stop(self, number: int = SIGTERM) -> None:
        self._shutdown.request(number)
        if self._shutdown.at_once.is_set():
            _LOG.warning("stopping immediately: requests in progress are aborted")
            self._envoy.end(SIGKILL)
            if self._supervisor:
                self._supervisor.stop()
                self._supervisor.stop()

    def _reload(self) -> None:
        self._reading = asyncio.ensure_future(asyncio.to_thread(self._live.reload))

    def _enforce(self, enforcing: bool) -> None:  # noqa: FBT001  a signal has one argument
        if self._supervisor:
            self._supervisor.enforce(enforcing)
        else:
            _LOG.warning("a remote service decides: turn enforcement off or on there")

    def _compile(self, gateway: Gateway, version: int) -> Resources:
        """Return Envoy's configuration of a gateway; called from a thread, except for the first one.

        Raises UsageError if Envoy rejects it.
        """
        if version > 1:
            changed = [name for name, of in _FIXED.items() if of(gateway) != of(self.gateway)]
            if changed:
                raise UsageError(f"{', '.join(changed)}: read only at startup; restart the gateway to apply the change")
            for listener in gateway.listeners:
                if listener.name not in {each.name for each in self.gateway.listeners}:
                    _check_port(listener)
        resources = resources_of(gateway, str(self._folder))
        if refusal := validate(resources.whole(secret=False), self._folder):
            raise UsageError(f"Envoy rejects the configuration: {refusal}")
        if version > 1 and self._loop:
            self._loop.call_soon_threadsafe(self._changes.put_nowait, resources)
        return resources

    def _write_decisions(self, gateway: Gateway) -> bool:
        """Write the files of the decision service; return whether any changed."""
        rules = renew_file(self._folder / "rules.yaml", gateway.decisions.rules.encode(), durable=False)
        identity = msgspec.json.encode(identity_file(gateway))
        return renew_file(self._folder / "identity.yaml", identity, durable=False) or rules

    def _file(self, kind: str) -> Path:
        return self._folder / f"{kind}.json"


def _runtime_folder() -> str | None:
    """Return the folder for files of running programs, if known: elsewhere, old files may be removed."""
    named = (os.environ.get(name, "").partition(":")[0] for name in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"))
    return next((folder for folder in named if folder and os.access(folder, os.W_OK)), None)


def _check_port(listener: GatewayListener) -> None:
    """Raise UsageError if a port is taken: Envoy would silently share it with another Envoy."""
    if not examine("clients", listener.address, listener.port):
        raise UsageError(f"{listener.name}: another program listens there; stop it, or choose another port")

"""A gateway that runs: the decision service and Envoy beside it, both supervised, and its file followed.

::

    gateway.yaml ── followed ──> checked, by Envoy too ──> files of a private folder, each replaced in one step
                                                             │                      │
                         rules.yaml, identity.yaml ◄─────────┘                      └──► clusters, secrets, listeners,
                         followed by the decision service ◄── Unix sockets ── Envoy ◄──  routes .json, followed by Envoy

A change is made before what it replaces is broken: new clusters first, then listeners and routes. Old clusters go some
time later: a request that waits for its decision has its route already. Routes change without touching a connection; a
listener that changes hands its port on, and its old connections are asked to leave as they answer. A file that is
wrong changes nothing.

Ending goes the other way round: the end is announced, then Envoy drains, and then what decides.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any, Protocol

import msgspec

from headgate.core.errors import UsageError
from headgate.files import renewed_file
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
from headgate.gateway.identity import identity_file
from headgate.gateway.loading import load_gateway
from headgate.gateway.model import Gateway, GatewayListener
from headgate.gateway.pages import Pages
from headgate.live import FileSource, Live
from headgate.policy.snapshot import snapshot_folder
from headgate.server.ports import examine, listen_at
from headgate.server.private_folder import private_folder
from headgate.server.process import Shutdown, handle_signals, log_announcement
from headgate.server.settings import Settings
from headgate.server.supervisor import Supervisor

_LOG = logging.getLogger("headgate.gateway")
_OLD_CLUSTERS_SECONDS = 10.0
"""How long a cluster stays when no route leads to it any more, besides the time that a decision may take."""
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
"""What is read at the start alone."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A gateway, and what Envoy is told about it."""

    gateway: Gateway
    resources: Resources


def planned(gateway: Gateway, folder: Path) -> Plan:
    """Return what is to be done about a gateway. Raises UsageError if Envoy would refuse it. It may block."""
    resources = resources_of(gateway, str(folder))
    if refusal := validate(resources.whole(gateway, secret=False), folder):
        raise UsageError(f"Envoy refuses what this makes: {refusal}")
    return Plan(gateway, resources)


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


class ConsumerKeys(Protocol):
    """Keeps the keys of consumers up to date in a folder."""

    async def begin(self) -> None:
        """Bring them up to date, if that is possible now."""
        ...

    async def run(self) -> None:
        """Go on with it, without end."""
        ...


class RunningGateway:
    """Runs the gateway of a file until a signal ends it.

    Args:
        path: of the file.
        store: where the file names none.
        log_format: of the decision service.
        log_level: the same.
        following: returns what keeps the keys of consumers of a database up to date, in a folder.

    Raises:
        UsageError: the file cannot be used.
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
        self._folder = self._stack.enter_context(private_folder(_runtime_folder()))
        self._logs = log_format, log_level
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changes: asyncio.Queue[Plan] = asyncio.Queue()
        self._tasks = set[asyncio.Task[None]]()
        self._supervisor: Supervisor | None = None
        self._following = list[asyncio.Task[None]]()
        self._reading: asyncio.Task[bool] | None = None
        self._pages: Pages | None = None
        source = FileSource(path, lambda file: load_gateway(file, store=store, reading=source.also))
        try:
            self._live = Live(source, self._compiled, what="gateway settings")
        except BaseException:
            self._stack.close()
            raise
        self._consumers: ConsumerKeys | None = None
        self._consumer_folder = ""
        if self.gateway.consumers and following:  # beside it, so that it may start while the database is unavailable
            folder = snapshot_folder(f"{self.gateway.consumers} for {Path(path).absolute()}")
            self._consumers, self._consumer_folder = following(self.gateway.consumers, folder), str(folder)
        self._shutdown = Shutdown(self.gateway.drain_delay)
        self._envoy = Envoy(self.gateway, self._folder, log_format)

    @property
    def gateway(self) -> Gateway:
        """What is in force."""
        return self._live.value.gateway

    async def run(self, serving: Callable[[], object]) -> None:
        """Serve until SIGTERM or SIGINT, then drain.

        Args:
            serving: called when it serves.

        Raises:
            CannotStart: Envoy, or the decision service, cannot.
            UsageError: a port is taken.
        """
        self._loop = asyncio.get_running_loop()
        with self._stack:
            try:
                handle_signals(self._loop, self._stop, self._reload, self._enforce)
                if await self._begun():
                    serving()
                    await self._until(self._shutdown.announced.wait())
                    await self._announce_end()
                await self._drain()
            finally:
                await self._close()

    async def _begun(self) -> bool:
        """Start all; says whether it serves, for it may be told to stop before."""
        plan = self._live.value
        gateway = plan.gateway
        for listener in gateway.listeners:
            _check_port(listener)
        for kind in (CLUSTERS, SECRETS, ROUTES, LISTENERS):
            renewed_file(self._file(kind), plan.resources.file(kind), durable=False)
        if gateway.admin:
            sockets = decision_sockets(str(self._folder), gateway.decisions.workers, "http")
            decisions = [] if gateway.decisions.remote else sockets
            self._pages = Pages(gateway.admin, self._envoy, decisions, self._live)
        if not gateway.decisions.remote:
            self._write_decisions(gateway)
            if self._consumers:
                await self._consumers.begin()
                self._following.append(self._begin(self._consumers.run()))
            decides = asyncio.Event()
            self._begin(self._decide(gateway, decides))
            if not await self._until(decides.wait()):
                return False
        self._begin(self._envoy.run())
        if not await self._until(self._envoy.served()):
            return False
        if self._pages:
            await self._pages.open()
        self._following.append(self._begin(self._follow()))
        self._live.start()
        return True

    async def _decide(self, gateway: Gateway, decides: asyncio.Event) -> None:
        """Run the decision service."""
        folder = str(self._folder)
        with ExitStack() as stack:
            ports = []
            for kind in ("http", "grpc"):
                port = listen_at(kind, decision_sockets(folder, gateway.decisions.workers, kind))
                stack.callback(port.close)
                ports.append(port)
            shared = self._folder / "shared"
            shared.mkdir()
            settings = settings_of(gateway, self._folder, *self._logs, self._consumer_folder)
            self._supervisor = Supervisor(settings, ports, str(shared), lambda _: decides.set())
            await self._supervisor.supervise()

    async def _follow(self) -> None:
        """Put changes in force, one after the other; when none has come for a while, remove what none uses any more."""
        resources, pause = self._live.value.resources, None
        while True:
            try:
                async with asyncio.timeout(pause):
                    plan = await self._changes.get()
                    resources, pause = plan.resources, _OLD_CLUSTERS_SECONDS + plan.gateway.decisions.timeout
            except TimeoutError:
                await self._put(CLUSTERS, resources.file(CLUSTERS))
                pause = None
                continue
            try:
                if not plan.gateway.decisions.remote and self._write_decisions(plan.gateway) and self._supervisor:
                    self._supervisor.reload()
                await self._replace(resources)
            except OSError:
                _LOG.exception("the change is not in force, or a part of it is not")

    async def _replace(self, new: Resources) -> None:
        """Let Envoy have other resources: what is new before what uses it."""
        there = msgspec.json.decode(self._file(CLUSTERS).read_bytes())["resources"]
        old = [{name: value for name, value in each.items() if name != "@type"} for each in there]
        await self._put(CLUSTERS, discovery(CLUSTERS, new.with_clusters(old)))
        for kind in (SECRETS, LISTENERS, ROUTES):
            await self._put(kind, new.file(kind))

    async def _put(self, kind: str, content: bytes) -> None:
        """Let Envoy have other resources of one kind."""
        if renewed_file(self._file(kind), content, durable=False) and not await self._envoy.applied(kind, content):
            _LOG.error("Envoy has not taken the new %s; what it had stays in force. Its own log says why", kind)

    async def _announce_end(self) -> None:
        """Let health checks fail, and go on serving for a while."""
        if self._pages:
            self._pages.is_draining = True
        await self._envoy.announce_end()
        if not self._shutdown.draining.is_set():
            log_announcement(_LOG, self.gateway.drain_delay)
        await self._shutdown.draining.wait()

    async def _drain(self) -> None:
        """Let Envoy end first, which asks until its last request is answered, and then what it asks."""
        seconds = self.gateway.drain_seconds
        _LOG.info("draining: requests in progress get up to %g s to end", seconds)
        await self._envoy.drain(seconds)

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

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        return task

    async def _until(self, event: Coroutine[Any, Any, object]) -> bool:
        """Wait for an event; says whether it came before the end was asked for. Raises what any part of it raises."""
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
        """Begin to end, or hasten the end."""
        self._shutdown.request(number)
        if self._shutdown.at_once.is_set():
            _LOG.warning("stopped at once: requests in progress are cut off")
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
            _LOG.warning("the decision service is elsewhere: turn enforcement off or on there")

    def _compiled(self, gateway: Gateway, version: int) -> Plan:
        """Return the plan of a file that was read; called from a thread for all but the first."""
        if version > 1:
            changed = [name for name, of in _FIXED.items() if of(gateway) != of(self.gateway)]
            if changed:
                raise UsageError(f"{', '.join(changed)}: read at the start alone, so restart the gateway to change it")
            for listener in gateway.listeners:
                if listener.name not in {each.name for each in self.gateway.listeners}:
                    _check_port(listener)
        plan = planned(gateway, self._folder)
        if version > 1 and self._loop:
            self._loop.call_soon_threadsafe(self._changes.put_nowait, plan)
        return plan

    def _write_decisions(self, gateway: Gateway) -> bool:
        """Write the files of the decision service; says whether anything is new."""
        rules = renewed_file(self._folder / "rules.yaml", gateway.decisions.rules.encode(), durable=False)
        identity = msgspec.json.encode(identity_file(gateway))
        return renewed_file(self._folder / "identity.yaml", identity, durable=False) or rules

    def _file(self, kind: str) -> Path:
        return self._folder / f"{kind}.json"


def _runtime_folder() -> str | None:
    """Return where files of programs that run belong, if that is known: elsewhere old ones may be cleared away."""
    named = (os.environ.get(name, "").partition(":")[0] for name in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"))
    return next((folder for folder in named if folder and os.access(folder, os.W_OK)), None)


def _check_port(listener: GatewayListener) -> None:
    """Raise UsageError if a port cannot be listened on: Envoy would share it with another Envoy without a word."""
    if not examine("clients", listener.address, listener.port):
        raise UsageError(f"{listener.name}: another program listens there; stop it, or choose another port")

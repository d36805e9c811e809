"""The admin plane of one service: its database, the REST API on a port of its own, and following the rules.

::

    begin            before the service starts: the tables, the first rules, the first key, the files of the rules
    serving          while it runs: the REST API, and one task that follows the database
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from socket import socket
from typing import NamedTuple

import uvicorn

from headgate.admin import audit, usage
from headgate.admin.api import application
from headgate.admin.audit import Actor
from headgate.admin.catalog import Catalog
from headgate.admin.database import Database, DatabaseError, SchemaMismatch
from headgate.admin.follower import Follower
from headgate.admin.keys import AdminKeys
from headgate.admin.service import AdminService, FileRules
from headgate.admin.usage import UsageWriter
from headgate.core.errors import InvalidRule
from headgate.engine import AsyncEngine
from headgate.observe.workers import Slice
from headgate.policy.dumping import to_data
from headgate.policy.loading import from_data
from headgate.policy.model import Ruleset
from headgate.policy.snapshot import WHOLE

_HOURLY = 3600.0
_PAUSE = 1.0
_LOG = logging.getLogger("headgate.admin")


class Begun(NamedTuple):
    """What there is to say about an admin plane that has just begun."""

    first_key: str
    """The key that was made since there was none; it is shown once. Empty: there were keys."""
    error: str
    """Why the rules may be old: the database is away. Empty: it is not."""


class Examined(NamedTuple):
    """What was found in a database."""

    rules: int
    is_empty: bool
    """Whether it never had any rules, or does not even exist yet."""


class AdminPlane:
    """The admin plane of one service.

    Args:
        url: of the database; empty: the rules are in a file.
        folder: where the rules of the database are kept for the workers; see `snapshot_folder`.
        key: the operator's own, from ``HEADGATE_ADMIN_KEY``; empty for none.
        rules_file: where the rules are, without a database.
        tls: certificate and key of the REST API, as files; empty for none.
        audit_days: how long the audit trail is kept.
    """

    def __init__(
        self,
        url: str = "",
        *,
        folder: Path | None = None,
        key: str = "",
        rules_file: str = "",
        tls: tuple[str, str] = ("", ""),
        audit_days: int = audit.RETENTION_DAYS,
    ) -> None:
        self._url, self._folder, self._key = url, folder, key
        self._rules_file, self._tls, self._audit_days = rules_file, tls, audit_days

    def begin(self, examples: Callable[[], Ruleset] | None = None) -> Begun:
        """Make ready what workers need; `examples` are the rules of a database that never had any, if given.

        Raises UsageError, DatabaseError, InvalidRule, OSError.
        """
        return asyncio.run(self._begin(examples))

    async def _begin(self, examples: Callable[[], Ruleset] | None) -> Begun:
        if not self._url or self._folder is None:
            return Begun("", "")
        database = Database(self._url)
        database.make_private()
        catalog, first = Catalog(database), ""
        follower = Follower(catalog, self._folder)
        try:
            try:
                if await database.schema() is None:
                    await database.upgrade()
                await database.check_schema()
                if examples is not None and await catalog.revision() == 0:
                    first_rules = Actor("start-up", reason="the example rules")
                    await catalog.apply(to_data(examples()), first_rules, only_first=True)
                made = await AdminKeys(database, self._key).first()
                first = made.text if made else ""
            except SchemaMismatch as error:  # while a fleet is upgraded, those that are started must serve as well
                if not (self._folder / WHOLE).exists():
                    raise
                follower.resume()
                return Begun("", str(error))
            except DatabaseError as error:
                _LOG.debug("the database is not ready: %s", error)
            await follower.begin()
            return Begun(first, follower.error)
        finally:
            await database.close()

    def examine(self) -> Examined:
        """Look at the database as `begin` would, and change nothing. Raises UsageError, DatabaseError, InvalidRule."""
        return asyncio.run(self._examine())

    async def _examine(self) -> Examined:
        database = Database(self._url)
        try:
            if not database.exists:
                return Examined(0, is_empty=True)
            if await database.schema() is None:
                return Examined(0, is_empty=True)
            await database.check_schema()
            whole = await Catalog(database).document()
            return Examined(len(from_data(whole.document, name=database.name).rules), is_empty=not whole.revision)
        finally:
            await database.close()

    @asynccontextmanager
    async def serving(
        self,
        listening: socket,
        engine: AsyncEngine,
        hot_keys: Callable[[], bytes] = lambda: b"[]",
        counted: Callable[[], Iterable[Slice]] = lambda: (),
    ) -> AsyncIterator[None]:
        """Answer on a socket, follow the database, and write usage, for as long as the block lasts.

        Args:
            listening: where to answer.
            engine: what decides.
            hot_keys: returns the keys that are asked about most, as JSON.
            counted: returns what the workers of this service have counted; asked in a thread.
        """
        database = Database(self._url) if self._url else None
        tasks: list[asyncio.Task[None]] = []
        writer: UsageWriter | None = None
        if database is not None and self._folder is not None:
            catalog = Catalog(database)
            follower = Follower(catalog, self._folder)
            try:
                follower.resume()
            except (InvalidRule, OSError) as error:  # it reads everything
                _LOG.warning("the last good rules cannot be read any more: %s", error)
            writer = UsageWriter(database, counted)
            tasks = [
                asyncio.create_task(follower.run()),
                asyncio.create_task(writer.run()),
                asyncio.create_task(self._keep_house(database)),
            ]
            keys = AdminKeys(database, self._key)
            admin = AdminService(catalog, engine, keys, database=database, hot_keys=hot_keys)
        else:
            rules = FileRules(self._rules_file, lambda: engine.policy.ruleset, lambda: engine.policy.version)
            admin = AdminService(rules, engine, AdminKeys(None, self._key), hot_keys=hot_keys)
        answering = _Answering(listening, lambda: self._config(admin))
        serving = asyncio.create_task(answering.run())
        try:
            yield
        finally:
            answering.end()
            await asyncio.wait({serving})
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            if writer is not None:
                await writer.finish()
            if database is not None:
                await database.close()

    def _config(self, admin: AdminService) -> uvicorn.Config:
        certificate, key = self._tls
        return uvicorn.Config(
            application(admin),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=65_536,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=5,
            limit_concurrency=200,
            ssl_certfile=certificate or None,
            ssl_keyfile=key or None,
        )

    async def _keep_house(self, database: Database) -> None:
        """Remove what is kept no longer, now and every hour."""
        while True:
            try:
                async with database.exclusively() as connection:
                    now = time.time_ns() // 1000
                    removed = await audit.prune(connection, now, self._audit_days)
                    await usage.roll_up(connection, now)
                if removed:
                    _LOG.info("%d entries of the audit trail were older than %d days", removed, self._audit_days)
            except DatabaseError as error:
                _LOG.debug("nothing was tidied up: %s", error)
            except Exception:  # noqa: BLE001  there is a next time
                _LOG.exception("nothing was tidied up")
            await asyncio.sleep(_HOURLY)


class _Answering:
    """The REST API on a socket, begun again should it fail: decisions do not depend on it, and nobody else would."""

    def __init__(self, listening: socket, config: Callable[[], uvicorn.Config]) -> None:
        self._listening, self._config = listening, config
        self._ended = asyncio.Event()
        self._server: _Server | None = None

    async def run(self) -> None:
        while not self._ended.is_set():
            try:
                self._server = _Server(self._config())
                await self._server.serve([self._listening.dup()])  # it closes what it gets
            except (Exception, SystemExit):  # noqa: BLE001  by the latter, uvicorn says that it cannot begin
                _LOG.exception("the admin plane has failed: it begins again in %g s", _PAUSE)
            else:
                if not self._ended.is_set():
                    _LOG.error("the admin plane has ended: it begins again in %g s", _PAUSE)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE):
                    await self._ended.wait()

    def end(self) -> None:
        self._ended.set()
        if self._server is not None:
            self._server.should_exit = True


class _Server(uvicorn.Server):
    """A server beside others in one process: signals are not its business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

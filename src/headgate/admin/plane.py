"""The admin plane of one service: its database, the REST API on a port of its own, and following the rules.

::

    begin            before the service starts: the tables, the first rules, the first key, the files of the rules
    serving          while it runs: the REST API, and one task that follows the database
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any, NamedTuple

from headgate.admin import audit, refusals, sessions, usage, what_if
from headgate.admin.api import application
from headgate.admin.audit import Actor
from headgate.admin.catalog import Catalog
from headgate.admin.database import Database, DatabaseError, SchemaMismatch
from headgate.admin.follower import Follower
from headgate.admin.keys import AdminKeys
from headgate.admin.listener import AdminListener
from headgate.admin.live import LiveFigures
from headgate.admin.refusals import RefusalLog
from headgate.admin.rule_catalogs import FileRules
from headgate.admin.security import READS, WRITES
from headgate.admin.service import AdminService
from headgate.admin.sessions import Sessions
from headgate.admin.tables import epoch_us
from headgate.admin.usage import UsageWriter
from headgate.core.errors import InvalidRule
from headgate.engine import AsyncEngine
from headgate.observe.principal_use import WindowUse
from headgate.observe.refusals import Refusal
from headgate.observe.workers import Slice
from headgate.policy.loading import from_data
from headgate.policy.model import Ruleset
from headgate.policy.snapshot import WHOLE
from headgate.web.deprecation import Deprecations

_HOUSEKEEPING, _ENDED = 600.0, 2.0
"""Seconds between two looks at what is old, and at overrides that may have ended."""
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
        limits: how often a key may read, and how often it may change something.
        deprecations: paths of the REST API that are going to go.
        store: what the store is called, for those who look.

    Raises UsageError for a key that cannot be one.
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
        limits: tuple[str, str] = (READS, WRITES),
        deprecations: Deprecations | None = None,
        store: str = "memory",
    ) -> None:
        self._deprecations, self._store = deprecations, store
        self._url, self._folder, self._key = url, folder, key
        self._rules_file, self._tls, self._audit_days = rules_file, tls, audit_days
        self._reads, self._writes = limits
        AdminKeys(None, key)  # a key that cannot be one is an error before anything is begun

    def begin(self, examples: Callable[[], Ruleset] | None = None) -> Begun:
        """Make ready what workers need; `examples` are the rules of a database that never had any, if given.

        Raises UsageError, DatabaseError, InvalidRule, OSError.
        """
        return asyncio.run(self._begin(examples))

    async def _begin(self, examples: Callable[[], Ruleset] | None) -> Begun:
        if not self._url or self._folder is None:
            return Begun("", "")
        database = Database(self._url)
        catalog, first = Catalog(database), ""
        follower = Follower(catalog, self._folder)
        try:
            try:
                await database.prepare()
                if examples is not None and await catalog.revision() == 0:
                    first_rules = Actor("start-up", reason="the example rules")
                    await catalog.apply(examples(), first_rules, only_first=True)
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
            if not database.exists or await database.schema() is None:
                return Examined(0, is_empty=True)
            await database.check_schema()
            whole = await Catalog(database).document()
            return Examined(len(from_data(whole.document, name=database.name).rules), is_empty=not whole.revision)
        finally:
            await database.close()

    @asynccontextmanager
    async def serving(  # noqa: PLR0917  what a node has to show
        self,
        listening: socket,
        engine: AsyncEngine,
        hot_keys: Callable[[], bytes] = lambda: b"{}",
        counted: Callable[[], Iterable[Slice]] = lambda: (),
        used: Callable[..., list[WindowUse]] = lambda **_: [],
        refused: Callable[[], list[Refusal]] = list,
    ) -> AsyncIterator[None]:
        """Answer on a socket, follow the database, and write usage, for as long as the block lasts.

        Args:
            listening: where to answer.
            engine: what decides.
            hot_keys: returns the keys that are asked about most, as JSON.
            counted: returns what the workers of this service have counted; asked in a thread.
            used: returns what principals asked for since the last time; see `UsageWriter`.
            refused: returns the last refusals since the last time; see `RefusalLog`.
        """
        database = Database(self._url) if self._url else None
        log = RefusalLog(database, refused)
        tasks = [asyncio.create_task(log.run())]
        writer: UsageWriter | None = None
        follower: Follower | None = None
        if database is not None and self._folder is not None:
            catalog = Catalog(database)
            follower = Follower(catalog, self._folder, counted)
            try:
                follower.resume()
            except (InvalidRule, OSError) as error:  # it reads everything
                _LOG.warning("the last good rules cannot be read any more: %s", error)
            writer = UsageWriter(database, counted, used=used)
            tasks += [
                asyncio.create_task(follower.run()),
                asyncio.create_task(writer.run()),
                asyncio.create_task(_every(_HOUSEKEEPING, lambda: self._keep_house(database))),
                asyncio.create_task(_every(_ENDED, catalog.end_overrides)),
            ]
            keys = AdminKeys(database, self._key)
            about: dict[str, Any] = {"rules": lambda: engine.policy.ruleset.rules, "store": self._store}
            live = LiveFigures(database, counted, hot_keys, follower.status, **about)
            kept: dict[str, Any] = {"hot_keys": hot_keys, "refusals": log, "live": live}
            admin = AdminService(catalog, engine, keys, database=database, **kept)
        else:
            rules = FileRules(self._rules_file, lambda: engine.policy.ruleset, lambda: engine.policy.version)
            live = LiveFigures(None, counted, hot_keys, store=self._store)
            admin = AdminService(rules, engine, AdminKeys(None, self._key), hot_keys=hot_keys, refusals=log, live=live)
        tasks.append(asyncio.create_task(live.run()))
        signed_in = Sessions(admin.keys, database)
        options: dict[str, Any] = {
            "sessions": signed_in,
            "reads": self._reads,
            "writes": self._writes,
            "store": engine.store,
        }
        made = partial(application, admin, deprecations=self._deprecations, **options)
        answering = AdminListener(listening, made, self._tls)
        serving = asyncio.create_task(answering.run())
        try:
            yield
        finally:
            answering.end()
            await asyncio.wait({serving})
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await live.finish()
            await log.finish()
            if follower is not None:
                await follower.finish()
            if writer is not None:
                await writer.finish()
            if database is not None:
                await database.close()

    async def _keep_house(self, database: Database) -> None:
        """Remove what is kept no longer, and fold what is over."""
        async with database.exclusively() as connection:
            now = epoch_us()
            removed = await audit.prune(connection, now, self._audit_days)
            await usage.roll_up(connection, now)
            await what_if.fold(connection, now)
            await refusals.prune(connection, now, self._audit_days)
            await sessions.prune(connection, now)
        if removed:
            _LOG.info("%d entries of the audit trail were older than %d days", removed, self._audit_days)


async def _every(seconds: float, tidy: Callable[[], Awaitable[None]]) -> None:
    """Tidy up now and again, without end, whatever happens."""
    while True:
        try:
            await tidy()
        except DatabaseError as error:
            _LOG.debug("nothing was tidied up: %s", error)
        except Exception:  # noqa: BLE001  there is a next time
            _LOG.exception("nothing was tidied up")
        await asyncio.sleep(seconds)

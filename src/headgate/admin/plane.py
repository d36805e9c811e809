"""The admin plane of one service.

::

    begin            before the service starts: creates the tables, the first rules, the first key, the files of rules
    serving          while it runs: the REST API and the console, and tasks that read and write the database
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from socket import socket
from typing import NamedTuple

from headgate.admin import audit, refusals, sessions, usage, what_if
from headgate.admin.api import application
from headgate.admin.audit import Actor
from headgate.admin.catalog import Catalog, FileRules, RuleCatalog
from headgate.admin.database import Database, DatabaseError, SchemaMismatch
from headgate.admin.follower import Follower
from headgate.admin.keys import AdminKeys
from headgate.admin.listener import AdminListener
from headgate.admin.live import LiveFigures
from headgate.admin.refusals import RefusalLog
from headgate.admin.security import READS, WRITES
from headgate.admin.service import AdminService
from headgate.admin.sessions import Sessions
from headgate.admin.tables import epoch_us
from headgate.admin.usage import UsageWriter
from headgate.core.errors import InvalidRule
from headgate.engine import AsyncEngine
from headgate.observe.principal_use import WindowUse
from headgate.observe.refusals import Refusal
from headgate.observe.workers import WorkerCounts
from headgate.policy.loading import from_data
from headgate.policy.model import Ruleset
from headgate.policy.snapshot import RULES
from headgate.web.deprecation import Deprecations

_HOUSEKEEPING, _ENDED = 600.0, 2.0
"""Seconds between two removals of old rows, and of overrides that have ended."""
_LOG = logging.getLogger("headgate.admin")


class Begun(NamedTuple):
    """What `AdminPlane.begin` has done."""

    first_key: str
    """The key that it created, since there was none; to be shown once. Empty: there were keys."""
    error: str
    """Why the database is unavailable, so that the rules may be out of date; empty if it is available."""


class Examined(NamedTuple):
    rules: int
    is_empty: bool
    """Whether it never had any rules, or does not exist yet."""


@dataclass(frozen=True, slots=True, repr=False)  # it has secrets
class AdminPlane:
    """The admin plane of one service. Raises UsageError for an invalid key."""

    url: str = ""
    """Of the database; empty: the rules are in a file."""
    _: KW_ONLY
    folder: Path | None = None
    """For the workers' copy of the rules in the database; see `snapshot_folder`."""
    key: str = ""
    """From ``HEADGATE_ADMIN_KEY``; empty for none."""
    rules_file: str = ""
    tls: tuple[str, str] = ("", "")
    """Files of the certificate and the key of the REST API; empty for none."""
    audit_days: int = audit.RETENTION_DAYS
    limits: tuple[str, str] = (READS, WRITES)
    """Limits of each key, for reads and for changes."""
    deprecations: Deprecations | None = None
    store: str = "memory"
    """The name of the store."""

    def __post_init__(self) -> None:
        AdminKeys(None, self.key)  # reports an invalid key before anything is started

    def begin(self, examples: Callable[[], Ruleset] | None = None) -> Begun:
        """Prepare the database, and the files that workers read; `examples` are the first rules of a new database.

        Raises UsageError, DatabaseError, InvalidRule, OSError.
        """
        return asyncio.run(self._begin(examples))

    async def _begin(self, examples: Callable[[], Ruleset] | None) -> Begun:
        if not self.url or self.folder is None:
            return Begun("", "")
        database = Database(self.url)
        catalog, first = Catalog(database), ""
        follower = Follower(catalog, self.folder)
        try:
            try:
                await database.prepare()
                if examples is not None and await catalog.revision() == 0:
                    first_rules = Actor("start-up", reason="the example rules")
                    await catalog.apply(examples(), first_rules, only_first=True)
                made = await AdminKeys(database, self.key).first()
                first = made.text if made else ""
            except SchemaMismatch as error:  # during an upgrade of a fleet, a node that restarts must serve
                if not (self.folder / RULES).exists():
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
        """Read the rules as `begin` would, without changes. Raises UsageError, DatabaseError, InvalidRule."""
        return asyncio.run(self._examine())

    async def _examine(self) -> Examined:
        database = Database(self.url)
        try:
            if not database.exists or await database.schema() is None:
                return Examined(0, is_empty=True)
            await database.check_schema()
            whole = await Catalog(database).document()
            return Examined(len(from_data(whole.document, name=database.name).rules), is_empty=not whole.revision)
        finally:
            await database.close()

    @asynccontextmanager
    async def serving(  # noqa: PLR0917  all that a node reports
        self,
        listening: socket,
        engine: AsyncEngine,
        hot_keys: Callable[[], bytes] = lambda: b"{}",
        counted: Callable[[], Iterable[WorkerCounts]] = lambda: (),
        used: Callable[..., list[WindowUse]] = lambda **_: [],
        refused: Callable[[], list[Refusal]] = list,
    ) -> AsyncIterator[None]:
        """Serve on a socket, follow the database, and write usage and refusals, until the block ends.

        `hot_keys` returns JSON; `counted` returns the counters of all workers, in a thread; see `UsageWriter` for
        `used`, and `RefusalLog` for `refused`.
        """
        database = Database(self.url) if self.url else None
        log = RefusalLog(database, refused)
        tasks = [asyncio.create_task(log.run())]
        writer: UsageWriter | None = None
        follower: Follower | None = None
        if database is not None and self.folder is not None:
            catalog = Catalog(database)
            follower = Follower(catalog, self.folder, counted)
            try:
                follower.resume()
            except (InvalidRule, OSError) as error:  # the follower reads everything again
                _LOG.warning("the last valid rules cannot be read: %s", error)
            writer = UsageWriter(database, counted, used=used)
            tasks += [
                asyncio.create_task(follower.run()),
                asyncio.create_task(writer.run()),
                asyncio.create_task(_every(_HOUSEKEEPING, lambda: self._clean_up(database))),
                asyncio.create_task(_every(_ENDED, catalog.end_overrides)),
            ]
            rules: RuleCatalog = catalog
        else:
            rules = FileRules(self.rules_file, lambda: engine.policy.ruleset, lambda: engine.policy.version)
        live = LiveFigures(
            database,
            counted,
            hot_keys,
            follower.status if follower is not None else None,
            rules=lambda: engine.policy.ruleset.rules,
            store=self.store,
        )
        tasks.append(asyncio.create_task(live.run()))
        keys = AdminKeys(database, self.key)
        admin = AdminService(rules, engine, keys, database=database, hot_keys=hot_keys, refusals=log, live=live)
        app = partial(
            application,
            admin,
            reads=self.limits[0],
            writes=self.limits[1],
            store=engine.store,
            deprecations=self.deprecations,
            sessions=Sessions(keys, database),
        )
        listener = AdminListener(listening, app, self.tls)
        serving = asyncio.create_task(listener.run())
        try:
            yield
        finally:
            listener.end()
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

    async def _clean_up(self, database: Database) -> None:
        """Aggregate what has ended, and remove what is past its retention."""
        async with database.exclusively() as connection:
            now = epoch_us()
            removed = await audit.prune(connection, now, self.audit_days)
            await usage.roll_up(connection, now)
            await what_if.fold(connection, now)
            await refusals.prune(connection, now, self.audit_days)
            await sessions.prune(connection, now)
        if removed:
            _LOG.info("removed %d entries of the audit trail, older than %d days", removed, self.audit_days)


async def _every(seconds: float, clean_up: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await clean_up()
        except DatabaseError as error:
            _LOG.debug("clean-up failed: %s", error)
        except Exception:  # noqa: BLE001  there is a next time
            _LOG.exception("clean-up failed")
        await asyncio.sleep(seconds)

"""Follows a database: copies its rules and keys to the files that the workers of this service read.

One process of a service does this for all workers. PostgreSQL sends a notification for each change; SQLite has a
counter of changes. The revision is also polled every few seconds, in case a notification is lost.

While the database is unavailable, the files stay in force, and the service reports it. The same holds while the rules
in the database are invalid, for example because a row was edited by hand.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import msgspec
from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin.catalog import Catalog
from headgate.admin.database import PATIENCE, Database, DatabaseError, DatabaseUnavailable
from headgate.admin.keys import check_keys
from headgate.admin.objects import CHANNEL
from headgate.admin.tables import audit as trail
from headgate.admin.tables import consumer_keys, epoch_us, nodes
from headgate.core.errors import InvalidRule
from headgate.observe import metrics
from headgate.observe.workers import WorkerCounts
from headgate.policy.changing import from_part
from headgate.policy.key_file import CONSUMERS, KEYS, SharedKey, write_keys
from headgate.policy.snapshot import RULES, Following, SnapshotWriter, Whole, read_following, write_following

LOOK_EVERY = 2.0
"""Seconds between two polls of the revision."""
COUNTER_EVERY = 0.1
"""Seconds between two polls of SQLite's counter of changes."""
REPORT_EVERY = 5.0
"""Seconds between two reports of a node."""
LOADING_EVERY = 0.2
"""Seconds between two polls of the revisions of workers, while one is behind."""
ARRIVAL_EVERY = 0.02
"""Seconds between two polls by requests that wait for a change to arrive."""
GONE_AFTER_US = 60_000_000
"""Time without a report after which a node is no longer listed."""
FORGOTTEN_AFTER_US = 3_600_000_000
"""Time without a report after which a node is deleted."""
_MOST_NAMES = 1000
"""Changed consumers from which on all consumers are read again."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_UNREACHABLE_PAUSE = 0.5
"""The longest pause while the database is unreachable: another attempt costs only a refused connection."""
_LOG = logging.getLogger("headgate.admin")


class NodeStatus(NamedTuple):
    id: str
    host: str
    process: int
    started_at: int
    seen_at: int
    revision: int
    error: str
    """Why it does not run the newest revision; empty if it does."""


def this_node() -> NodeStatus:
    """Return the status of this process, with a new id."""
    return NodeStatus(secrets.token_hex(8), socket.gethostname()[:255], os.getpid(), epoch_us(), epoch_us(), 0, "")


class Follower:
    """Keeps the files of a folder (`headgate.policy.snapshot`) up to date with a database.

    `counted` returns the counters of this service's workers, with the revision of each.
    """

    def __init__(
        self, catalog: Catalog, folder: Path, counted: Callable[[], Iterable[WorkerCounts]] = lambda: ()
    ) -> None:
        self._counted = counted
        self._catalog, self._database, self._folder = catalog, catalog.database, folder
        self._writer = SnapshotWriter(folder, self._database.name)
        self._has_followed = False
        self._keys: tuple[SharedKey, ...] | None = None
        self._consumers = PublishedKeys(self._database)
        self._has_news = asyncio.Event()
        before = read_following(folder)
        self._followed = Following(before.contact, 0, before.error)
        self._status = this_node()

    def status(self) -> NodeStatus:
        return self._status._replace(seen_at=epoch_us())

    @property
    def revision(self) -> int:
        return self._status.revision

    @property
    def error(self) -> str:
        """Why that is not the newest one; empty if it is."""
        return self._status.error

    async def begin(self) -> None:
        """Bring the files up to date; if the database is unavailable or invalid, resume with the present ones.

        Raises DatabaseError and InvalidRule if there are no files.
        """
        try:
            await self._update_keys()
            await self._update(await self._catalog.document())
        except (DatabaseError, InvalidRule, OSError) as error:
            if not (self._folder / RULES).exists():
                raise
            self.resume()
            self._failed(error)

    def resume(self) -> None:
        """Start from the files. Raises InvalidRule, OSError."""
        self._status = self._status._replace(revision=self._writer.resume())

    async def run(self) -> None:
        """Follow until cancelled, after errors too."""
        reporting = asyncio.ensure_future(self._report())
        try:
            pause = _FIRST_PAUSE
            while True:
                try:
                    await _follow(self._database, self._catch_up)
                except Exception as error:  # noqa: BLE001  the task must not end
                    self._failed(error)
                    longest = _UNREACHABLE_PAUSE if isinstance(error, DatabaseUnavailable) else _LONGEST_PAUSE
                    pause = _FIRST_PAUSE if self._has_followed else min(2 * pause, longest)
                    self._has_followed = False
                    await asyncio.sleep(pause)
        finally:
            reporting.cancel()  # and wait until it has closed its connection, which the end of the loop would not do
            await asyncio.wait({reporting}, timeout=PATIENCE)

    async def finish(self) -> None:
        """Delete this node from the list: it has ended, and is not gone."""
        with suppress(DatabaseError, TimeoutError):
            async with asyncio.timeout(PATIENCE), self._database.writing() as connection:
                await connection.execute(delete(nodes).where(nodes.c.id == self._status.id))

    async def _catch_up(self) -> None:
        """Update the files. Raises DatabaseError, InvalidRule, OSError."""
        await self._update_keys()  # first: invalid rules must not delay the revocation of a key
        changes = await self._catalog.changed_since(self.revision)
        if changes is None or not self._writer.is_intact():
            await self._update(await self._catalog.document())
            return
        if changes.revision != self.revision:
            if not self._catalog.has_checked(self.revision, changes.revision):
                await self._check(changes.revision, await self._catalog.about(changes))
            if not await asyncio.to_thread(self._writer.append, changes):
                await self._update(await self._catalog.document())
                return
        self._succeeded(changes.revision)

    async def _update_keys(self) -> None:
        """Write the accepted keys, if they have changed. Raises DatabaseError, OSError."""
        keys = await check_keys(self._database)
        if keys != self._keys or not (self._folder / KEYS).exists():
            await asyncio.to_thread(write_keys, self._folder, keys)
            self._keys = keys
        if not (self._folder / CONSUMERS).exists():
            self._consumers.forget()
        if (consumers := await self._consumers.changed()) is not None:
            await asyncio.to_thread(write_keys, self._folder, consumers, CONSUMERS)

    async def _update(self, whole: Whole) -> None:
        await self._check(whole.revision, whole.document)
        await asyncio.to_thread(self._writer.write, whole)
        self._succeeded(whole.revision)

    async def _check(self, revision: int, document: dict[str, Any]) -> None:
        await asyncio.to_thread(from_part, document, name=f"{self._database.name}, revision {revision}")

    def _succeeded(self, revision: int) -> None:
        if revision != self.revision or self.error:
            _LOG.info("%s: revision %d is in force", self._database.name, revision)
        self._has_followed = True
        if (revision, "") != (self.revision, self.error):
            self._has_news.set()
        self._status = self._status._replace(revision=revision, error="")
        self._note(contact=epoch_us())

    def _failed(self, error: Exception) -> None:
        self._consumers.forget()
        message = str(error).replace("\n", "; ") or type(error).__name__
        if isinstance(error, OSError):
            message = f"{self._folder}: {message}"
        if message != self.error:
            trace = None if isinstance(error, DatabaseError | InvalidRule | OSError) else error
            _LOG.error("revision %d stays in force: %s", self.revision, message, exc_info=trace)
            self._has_news.set()
        self._status = self._status._replace(error=message)
        self._note(failures=self._followed.failures + 1)

    def _note(self, **news: int) -> None:
        self._followed = msgspec.structs.replace(self._followed, error=self.error, **news)
        with suppress(OSError):  # a full disk has been reported already
            write_following(self._folder, self._followed)

    async def _report(self) -> None:
        """Report the revision that all workers of this service run, when it changes, and every few seconds."""
        reported, at = -1, 0.0
        while True:
            self._has_news.clear()
            running = await asyncio.to_thread(self._running)
            if running != reported or time.monotonic() - at >= REPORT_EVERY or running == self.revision:
                with suppress(DatabaseError):  # the follower reports it
                    await _register(self._database, self._status._replace(seen_at=epoch_us(), revision=running))
                reported, at = running, time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOADING_EVERY if running < self.revision else REPORT_EVERY):
                    await self._has_news.wait()

    def _running(self) -> int:
        """Return the revision that all workers have loaded; that of the files if none reports one."""
        found = [
            series.values[0]
            for worker in self._counted()
            if worker.alive
            for series in worker.series.of(metrics.RULES_REVISION)
        ]
        return min([self.revision, *found])


class PublishedKeys:
    """The keys of consumers that were not revoked, as workers read them.

    All are read once, then those of the consumers that the newer entries of the audit trail name.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys: dict[str, list[SharedKey]] = {}
        self._seen: int | None = None
        """The last entry that was read; None: all keys must be read."""

    def forget(self) -> None:
        """Read all keys the next time: entries may be removed while the database is unavailable."""
        self._seen = None

    async def changed(self) -> list[SharedKey] | None:
        """Return all keys if one has changed since the last call, else None. Raises DatabaseError."""
        async with self._database.reading() as connection:
            newest: int = (await connection.execute(select(func.coalesce(func.max(trail.c.sequence), 0)))).scalar_one()
            if newest == self._seen:
                return None
            names: list[str] | None = None
            if self._seen is not None:
                entries = trail.c.sequence > self._seen, trail.c.kind == "consumer"
                found = await connection.execute(select(trail.c.subject).where(*entries).distinct().limit(_MOST_NAMES))
                names = list(found.scalars())
            if names is None or len(names) == _MOST_NAMES:
                names, self._keys = None, {}
            if names != []:
                await self._read(connection, names)
        self._seen = newest
        return None if names == [] else [key for keys in self._keys.values() for key in keys]

    async def _read(self, connection: AsyncConnection, names: list[str] | None) -> None:
        keys = consumer_keys.c
        columns = keys.id, keys.digest, keys.expires_at, keys.consumer, keys.tenant
        found = select(*columns).where(keys.revoked_at.is_(None)).order_by(keys.consumer, keys.id)
        for name in names or ():
            self._keys.pop(name, None)
        for row in await connection.execute(found if names is None else found.where(keys.consumer.in_(names))):
            self._keys.setdefault(row.consumer, []).append(SharedKey(*row))


class ConsumerFollower:
    """Keeps the keys of consumers in a folder up to date with a database, for services with other rules.

    While the database is unavailable, the last keys are accepted.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._database, self._folder = Database(url), folder
        self._published, self._error = PublishedKeys(self._database), ""

    async def begin(self) -> None:
        """Bring the keys up to date, if the database is available."""
        try:
            await self._update()
        except (DatabaseError, OSError) as error:
            self._failed(error)

    async def run(self) -> None:
        """Follow until cancelled, after errors too."""
        try:
            while True:
                try:
                    await _follow(self._database, self._update)
                except Exception as error:  # noqa: BLE001  the task must not end
                    self._failed(error)
                    await asyncio.sleep(_UNREACHABLE_PAUSE)
        finally:
            await self._database.close()

    async def _update(self) -> None:
        if self._error or not (self._folder / CONSUMERS).exists():
            await self._database.prepare()
            self._published.forget()
        if (keys := await self._published.changed()) is not None:
            await asyncio.to_thread(write_keys, self._folder, keys, CONSUMERS)
        self._error = ""

    def _failed(self, error: Exception) -> None:
        self._published.forget()
        if str(error) != self._error:
            _LOG.error("keys of consumers cannot be updated; the last ones stay in force: %s", error)
        self._error = str(error)


async def nodes_of(database: Database, now: int) -> list[NodeStatus]:
    lately = select(nodes).where(nodes.c.seen_at > now - GONE_AFTER_US).order_by(nodes.c.host, nodes.c.started_at)
    async with database.reading() as connection:
        return [NodeStatus(**row) for row in (await connection.execute(lately)).mappings()]


async def _register(database: Database, status: NodeStatus) -> None:
    values = status._asdict()
    async with database.writing() as connection:
        known = await connection.execute(update(nodes).where(nodes.c.id == status.id).values(**values))
        if not known.rowcount:
            await connection.execute(insert(nodes).values(**values))
            await connection.execute(delete(nodes).where(nodes.c.seen_at < status.seen_at - FORGOTTEN_AFTER_US))


async def _follow(database: Database, catch_up: Callable[[], Awaitable[None]]) -> None:
    """Catch up after each change, and every few seconds, until the connection ends. Raises DatabaseError."""
    await (_count if database.is_sqlite else _listen)(database, catch_up)


async def _count(database: Database, catch_up: Callable[[], Awaitable[None]]) -> None:
    last: Any = None
    at = 0.0
    async with database.connected() as connection:
        while True:
            seen = (await connection.execute(text("PRAGMA data_version"))).scalar()
            await connection.rollback()
            if seen != last or time.monotonic() >= at:
                last, at = seen, time.monotonic() + LOOK_EVERY
                await catch_up()
            await asyncio.sleep(COUNTER_EVERY)


async def _listen(database: Database, catch_up: Callable[[], Awaitable[None]]) -> None:
    try:
        connection = await asyncpg.connect(database.dsn, timeout=PATIENCE, command_timeout=PATIENCE)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise DatabaseUnavailable(
            f"{database.name}: cannot be reached: {str(error) or 'no response in time'}"
        ) from error
    news = asyncio.Event()
    try:
        connection.add_termination_listener(lambda *_: news.set())
        await connection.add_listener(CHANNEL, lambda *_: news.set())
        while not connection.is_closed():
            news.clear()
            await catch_up()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await news.wait()
    finally:
        with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await connection.close(timeout=1)

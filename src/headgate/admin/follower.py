"""Following a database: what changes there reaches the workers of this service, by the files that they read.

One process of a service follows, whatever the number of its workers. PostgreSQL says when something has changed;
SQLite has a counter that tells. Behind both, the revision is looked at every few seconds, so that a lost word costs
seconds, not a change.

While the database is away, what is in the files stays in force, and the service says so. What is in the database but
cannot be used, such as a row that somebody wrote by hand, changes nothing either.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import msgspec
from sqlalchemy import delete, insert, select, text, update

from headgate.admin.catalog import Catalog
from headgate.admin.consumers import PublishedKeys
from headgate.admin.database import PATIENCE, Database, DatabaseError, DatabaseUnavailable
from headgate.admin.keys import check_keys
from headgate.admin.objects import CHANNEL
from headgate.admin.tables import epoch_us, nodes
from headgate.core.errors import InvalidRule
from headgate.observe import metrics
from headgate.observe.workers import Slice
from headgate.policy.changing import from_part
from headgate.policy.key_file import CONSUMERS, KEYS, SharedKey, write_keys
from headgate.policy.snapshot import WHOLE, Following, SnapshotWriter, Whole, read_following, write_following

LOOK_EVERY = 2.0
"""Seconds between two looks at the revision of a database that tells by itself."""
COUNTER_EVERY = 0.1
"""Seconds between two looks at SQLite's counter of changes."""
REPORT_EVERY = 5.0
"""Seconds between two reports of a node."""
LOADING_EVERY = 0.2
"""Seconds between two looks at what workers have loaded, while they have not loaded everything."""
ARRIVAL_EVERY = 0.02
"""Seconds between two looks whether a change has arrived, where that is waited for."""
GONE_AFTER_US = 60_000_000
"""A node that has not reported for so long is not shown any more; an hour later it is forgotten."""
FORGOTTEN_AFTER_US = 3_600_000_000
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_AWAY_PAUSE = 0.5
"""The longest pause while the database cannot be reached: looking for it costs one connection that is refused."""
_LOG = logging.getLogger("headgate.admin")


class NodeStatus(NamedTuple):
    """A service that follows the database."""

    id: str
    host: str
    process: int
    started_at: int
    seen_at: int
    revision: int
    error: str
    """Why it does not run a newer revision; empty if it runs the newest one it knows."""


def this_node() -> NodeStatus:
    """Return what this process is, with an id of its own."""
    return NodeStatus(secrets.token_hex(8), socket.gethostname()[:255], os.getpid(), epoch_us(), epoch_us(), 0, "")


class Follower:
    """Keeps a folder as the database is.

    Args:
        catalog: of the database.
        folder: where the files are; see `headgate.policy.snapshot`.
        counted: returns what the workers of this service have counted: their least revision is what the service runs.
    """

    def __init__(self, catalog: Catalog, folder: Path, counted: Callable[[], Iterable[Slice]] = lambda: ()) -> None:
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
        """Return what there is to report of this service."""
        return self._status._replace(seen_at=epoch_us())

    @property
    def revision(self) -> int:
        """The revision that is in the files."""
        return self._status.revision

    @property
    def error(self) -> str:
        """Why that is not the newest one; empty if it is, as far as is known."""
        return self._status.error

    async def begin(self) -> None:
        """Bring the files up to date, or, if the database is away, find them as they were left.

        Raises:
            DatabaseError: the database is away, and there are no files.
            InvalidRule: what it has cannot be used, and there are no files.
        """
        try:
            await self._take_keys()
            await self._take(await self._catalog.document())
        except (DatabaseError, InvalidRule, OSError) as error:
            if not (self._folder / WHOLE).exists():
                raise
            self.resume()
            self._failed(error)

    def resume(self) -> None:
        """Go on with the files as they are. Raises InvalidRule, OSError."""
        self._status = self._status._replace(revision=self._writer.resume())

    async def run(self) -> None:
        """Follow, without end, whatever happens."""
        reporting = asyncio.ensure_future(self._report())
        try:
            pause = _FIRST_PAUSE
            while True:
                try:
                    async with _feed(self._database) as feed:
                        await _follow(feed, self._catch_up)
                except Exception as error:  # noqa: BLE001  a follower that ended would never say so
                    self._failed(error)
                    longest = _AWAY_PAUSE if isinstance(error, DatabaseUnavailable) else _LONGEST_PAUSE
                    pause = _FIRST_PAUSE if self._has_followed else min(2 * pause, longest)
                    self._has_followed = False
                    await asyncio.sleep(pause)
        finally:
            reporting.cancel()
            # Its connection is closed by then: a loop that ends would not wait for it. A database that hangs holds up
            # nobody for longer than it would a statement.
            await asyncio.wait({reporting}, timeout=PATIENCE)

    async def finish(self) -> None:
        """Report no more: a node that ends is not one that is gone."""
        with suppress(DatabaseError, TimeoutError):
            async with asyncio.timeout(PATIENCE), self._database.writing() as connection:
                await connection.execute(delete(nodes).where(nodes.c.id == self._status.id))

    async def _catch_up(self) -> None:
        """Take what is new. Raises DatabaseError, InvalidRule, OSError."""
        await self._take_keys()  # first: a key that is revoked does not wait for rules that are wrong
        changes = await self._catalog.changed_since(self.revision)
        if changes is None or not self._writer.is_intact():
            await self._take(await self._catalog.document())
            return
        if changes.revision != self.revision:
            if not self._catalog.has_checked(self.revision, changes.revision):
                await self._check(changes.revision, await self._catalog.about(changes))
            if not await asyncio.to_thread(lambda: self._writer.append(changes) or self._writer.compact(changes)):
                await self._take(await self._catalog.document())
                return
        self._succeeded(changes.revision)

    async def _take_keys(self) -> None:
        """Let workers know which keys are accepted, if these are others. Raises DatabaseError, OSError."""
        keys = await check_keys(self._database)
        if keys != self._keys or not (self._folder / KEYS).exists():
            await asyncio.to_thread(write_keys, self._folder, keys)
            self._keys = keys
        if not (self._folder / CONSUMERS).exists():
            self._consumers.forget()
        if (consumers := await self._consumers.changed()) is not None:
            await asyncio.to_thread(write_keys, self._folder, consumers, CONSUMERS)

    async def _take(self, whole: Whole) -> None:
        await self._check(whole.revision, whole.document)
        await asyncio.to_thread(self._writer.write, whole)
        self._succeeded(whole.revision)

    async def _check(self, revision: int, document: dict[str, Any]) -> None:
        """Raise InvalidRule unless the rules can be used."""
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
        said = str(error).replace("\n", "; ") or type(error).__name__
        if isinstance(error, OSError):
            said = f"{self._folder}: {said}"
        if said != self.error:
            trace = None if isinstance(error, DatabaseError | InvalidRule | OSError) else error
            _LOG.error("revision %d stays in force: %s", self.revision, said, exc_info=trace)
            self._has_news.set()
        self._status = self._status._replace(error=said)
        self._note(failures=self._followed.failures + 1)

    def _note(self, **news: int) -> None:
        """Let the workers know how following goes."""
        self._followed = msgspec.structs.replace(self._followed, error=self.error, **news)
        with suppress(OSError):  # that the disk is full is said already
            write_following(self._folder, self._followed)

    async def _report(self) -> None:
        """Report which revision all workers of this service run: when that changes, and now and then."""
        reported, at = -1, 0.0
        while True:
            self._has_news.clear()
            running = await asyncio.to_thread(self._running)
            if running != reported or time.monotonic() - at >= REPORT_EVERY or running == self.revision:
                with suppress(DatabaseError):  # it is said elsewhere that the database is away
                    await _register(self._database, self._status._replace(seen_at=epoch_us(), revision=running))
                reported, at = running, time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOADING_EVERY if running < self.revision else REPORT_EVERY):
                    await self._has_news.wait()

    def _running(self) -> int:
        """Return the revision that all workers have loaded; that of the files where none says so."""
        found = [
            series.values[0]
            for worker in self._counted()
            if worker.alive
            for series in worker.series.of(metrics.RULES_REVISION)
        ]
        return min([self.revision, *found])


class ConsumerFollower:
    """Keeps the keys of consumers in a folder as a database has them, for what has rules of its own.

    While the database cannot be used, the keys of before are accepted.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._database, self._folder = Database(url), folder
        self._published, self._error = PublishedKeys(self._database), ""

    async def begin(self) -> None:
        """Bring the keys up to date, if the database can be used."""
        try:
            await self._take()
        except (DatabaseError, OSError) as error:
            self._failed(error)

    async def run(self) -> None:
        """Follow, without end."""
        try:
            while True:
                try:
                    async with _feed(self._database) as feed:
                        await _follow(feed, self._take)
                except Exception as error:  # noqa: BLE001  as above
                    self._failed(error)
                    await asyncio.sleep(_AWAY_PAUSE)
        finally:
            await self._database.close()

    async def _take(self) -> None:
        if self._error or not (self._folder / CONSUMERS).exists():
            await self._database.prepare()
            self._published.forget()
        if (keys := await self._published.changed()) is not None:
            await asyncio.to_thread(write_keys, self._folder, keys, CONSUMERS)
        self._error = ""

    def _failed(self, error: Exception) -> None:
        self._published.forget()
        if str(error) != self._error:
            _LOG.error("keys of consumers stay as they were: %s", error)
        self._error = str(error)


async def nodes_of(database: Database, now: int) -> list[NodeStatus]:
    """Return the services that follow a database. Raises DatabaseError."""
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


class _Feed:
    """Tells that something has changed."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.ended = False
        """Whether it tells nothing any more."""

    def end(self, *_: object) -> None:
        """Tell the last news: that it has ended."""
        self.ended = True
        self.news.set()


async def _follow(feed: _Feed, catch_up: Callable[[], Awaitable[None]]) -> None:
    """Catch up whenever there is news, and now and then, until the feed ends."""
    while not feed.ended:
        feed.news.clear()
        await catch_up()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY):
                await feed.news.wait()


@asynccontextmanager
async def _feed(database: Database) -> AsyncIterator[_Feed]:
    """Tell of changes for as long as the block lasts. Raises DatabaseError."""
    feed = _Feed()
    async with _counting(database, feed) if database.is_sqlite else _listening(database, feed):
        yield feed


@asynccontextmanager
async def _counting(database: Database, feed: _Feed) -> AsyncIterator[None]:
    counting = asyncio.ensure_future(_count(database, feed))
    counting.add_done_callback(feed.end)
    try:
        yield
    finally:
        counting.cancel()
        with suppress(asyncio.CancelledError, DatabaseError):
            await counting


async def _count(database: Database, feed: _Feed) -> None:
    """Look at the counter that SQLite keeps of what other connections have changed."""
    last: Any = None
    async with database.connected() as connection:
        while True:
            seen = (await connection.execute(text("PRAGMA data_version"))).scalar()
            await connection.rollback()
            if seen != last:
                last = seen
                feed.news.set()
            await asyncio.sleep(COUNTER_EVERY)


@asynccontextmanager
async def _listening(database: Database, feed: _Feed) -> AsyncIterator[None]:
    try:
        connection = await asyncpg.connect(database.dsn, timeout=PATIENCE, command_timeout=PATIENCE)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise DatabaseUnavailable(f"{database.name}: cannot be reached: {str(error) or 'no answer in time'}") from error
    try:
        connection.add_termination_listener(feed.end)
        await connection.add_listener(CHANNEL, lambda *_: feed.news.set())
        yield
    finally:
        with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await connection.close(timeout=1)

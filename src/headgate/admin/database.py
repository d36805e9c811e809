"""The admin database: connections, its schema, and its errors.

SQLite is a file on this machine; PostgreSQL is a server that a fleet shares. Both have the same tables
(`headgate.admin.tables`) and the same guarantees: transactions are atomic, and those that change rules are serialized.

::

    DatabaseError            a failed query or change; the message has the remedy
    |- DatabaseUnavailable   it cannot be reached, or is too slow; a retry may succeed
    |- DatabaseReadOnly      it accepts no changes: read-only, a standby, or a full disk
    '- SchemaMismatch        its tables are those of another version: upgrade the tables or Headgate
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from importlib.resources import files
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any, Self
from weakref import WeakSet

import aiosqlite
import msgspec
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, event, func, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from headgate.admin.tables import metadata, revision
from headgate.core.errors import HeadgateError, UsageError

PATIENCE = 5.0
"""Timeout of connections, locks and responses, in seconds."""
_FORMS = "sqlite:///headgate.db, or postgresql://user:password@host/database"
_WRITING = "headgate_writing"
_MIGRATING = 0x4865_6164_6761_7465
"""The advisory lock of migrations in PostgreSQL."""


class DatabaseError(HeadgateError):
    public = "the database failed; the log of the service has the details"
    """The text for responses: the message itself has the name of the database and the text of its driver."""


class DatabaseUnavailable(DatabaseError):
    public = "the database cannot be reached"


class DatabaseReadOnly(DatabaseError):
    public = "the database accepts no changes"


class SchemaMismatch(DatabaseError):
    public = "the tables of the database are those of another version of Headgate"


class Database:
    """An admin database, by its URL: ``sqlite:///PATH`` or ``postgresql://USER:PASSWORD@HOST/DATABASE``.

    It does not connect; `open` does, and creates the tables of an empty database. Raises UsageError for other URLs.
    """

    def __init__(self, url: str) -> None:
        self._url = _url(url)
        self.name = self._url.render_as_string(hide_password=True)
        """The URL without its password, for messages."""
        self.is_sqlite = self._url.get_backend_name() == "sqlite"
        options: dict[str, Any] = {
            "pool_pre_ping": not self.is_sqlite,
            "json_serializer": lambda value: msgspec.json.encode(value).decode(),
            "json_deserializer": msgspec.json.decode,
        }
        if self.is_sqlite:
            self._url = self._url.set(drivername="sqlite+aiosqlite")
            options |= {
                "poolclass": NullPool,
                "connect_args": {"timeout": PATIENCE, "async_creator_fn": self._sqlite_connection},
            }
        else:
            self._url = self._url.set(drivername="postgresql+asyncpg")
            options |= {
                "pool_size": 5,
                "pool_timeout": PATIENCE,
                "connect_args": {"timeout": PATIENCE, "command_timeout": 2 * PATIENCE},
            }
        self._engine = create_async_engine(self._url, **options)
        self._threads = WeakSet[Thread]()  # of connections to a file
        # SQLite waits for a file's lock by polling; writers of one process queue here instead
        self._turn: AbstractAsyncContextManager[object] = asyncio.Lock() if self.is_sqlite else nullcontext()
        if self.is_sqlite:
            event.listen(self._engine.sync_engine, "connect", _prepare_sqlite)
            event.listen(self._engine.sync_engine, "begin", _begin_sqlite)

    @classmethod
    async def open(cls, url: str) -> Self:
        """Return a database with the tables of this version, which are created if it is empty.

        Raises SchemaMismatch for another version's tables, and DatabaseError.
        """
        database = cls(url)
        try:
            await database.prepare()
        except BaseException:
            await database.close()
            raise
        return database

    async def prepare(self) -> None:
        """Create the tables of an empty database. Raises as `open` does."""
        if await self.schema() is None:
            await self.upgrade()
        await self.check_schema()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """Read in one transaction, from one snapshot. Raises DatabaseError."""
        async with self._begun(self._engine.connect()) as connection:
            yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """Write in one transaction, which is rolled back if the block raises. Raises DatabaseError."""
        async with self._turn, self._begun(self._engine.connect(), writing=True) as connection:
            yield connection

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[AsyncConnection]:
        """Open a connection without a transaction. Raises DatabaseError."""
        with _translate_errors(self.name):
            self._make_file()
            async with self._engine.connect() as connection:
                yield connection

    @property
    def exists(self) -> bool:
        """Whether a file exists, which a connection would create; true for a server."""
        return not self.is_sqlite or Path(self._url.database or "").exists()

    @property
    def dsn(self) -> str:
        """The URL with its password, for the driver of PostgreSQL."""
        return self._url.set(drivername="postgresql").render_as_string(hide_password=False)

    @asynccontextmanager
    async def exclusively(self, *, dry_run: bool = False) -> AsyncIterator[AsyncConnection]:
        """Write in one transaction that excludes all others; with `dry_run`, roll it back at the end."""
        async with self.writing() as connection:
            if not self.is_sqlite:  # whose writing transactions are exclusive anyway
                await connection.execute(select(revision.c.number).with_for_update())
            yield connection
            if dry_run:
                await connection.rollback()

    @asynccontextmanager
    async def _begun(self, connecting: AsyncConnection, *, writing: bool = False) -> AsyncIterator[AsyncConnection]:
        with _translate_errors(self.name):
            self._make_file()
            async with connecting as connection:
                is_snapshot = not writing and not self.is_sqlite  # whose transactions read from a snapshot anyway
                isolated = {"isolation_level": "REPEATABLE READ"} if is_snapshot else {}
                await connection.execution_options(**{_WRITING: writing}, **isolated)
                async with connection.begin():
                    yield connection

    def _make_file(self) -> None:
        """Create a missing file that only its owner can read: it has digests of keys. Raises OSError."""
        if not self.exists and self._url.database != ":memory:":
            os.close(os.open(self._url.database or "", os.O_RDWR | os.O_CREAT, 0o600))

    async def schema(self) -> str | None:
        """Return the version of the tables; None for an empty database."""
        async with self.reading() as connection:
            return await connection.run_sync(lambda sync: MigrationContext.configure(sync).get_current_revision())

    async def check_schema(self) -> None:
        """Raise SchemaMismatch unless the tables are those of this version."""
        found, known = await self.schema(), _scripts()
        self._check_known(found, known)
        if found != known.get_current_head():
            raise SchemaMismatch(f"{self.name}: its tables are of an older version: run headgate database upgrade")

    def _check_known(self, found: str | None, known: ScriptDirectory) -> None:
        if found is not None and found not in {script.revision for script in known.walk_revisions()}:
            raise SchemaMismatch(
                f"{self.name}: its tables are of version {found}, which this Headgate does not know: upgrade Headgate, "
                "or, if an unreleased version created them, export the rules with that and apply them to a new database"
            )

    async def upgrade(self) -> None:
        """Migrate the tables to this version, atomically. Raises SchemaMismatch for tables of an unknown version."""
        scripts = _scripts()

        def steps(found: Any, _: object) -> Any:
            self._check_known(found[0] if found else None, scripts)
            return scripts._upgrade_revs("head", found)  # noqa: SLF001  as Alembic's own command does

        def migrate(connection: Connection) -> None:
            context = EnvironmentContext(Config(), scripts, fn=steps)
            with context:
                context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
                context.run_migrations()

        async with self.writing() as connection:
            if not self.is_sqlite:  # of two services that start at once, the second finds nothing left to do
                await connection.execute(select(func.pg_advisory_xact_lock(_MIGRATING)))
            await connection.run_sync(migrate)

    async def close(self) -> None:
        """Close all connections, and wait for their threads, of which those to a file have one each.

        The thread of a cancelled call may still run, and would log a traceback if it ended after the event loop.
        """
        await self._engine.dispose()
        if self._threads:
            await asyncio.to_thread(_join, tuple(self._threads))

    def _sqlite_connection(self, *arguments: Any, **options: Any) -> aiosqlite.Connection:
        connection = aiosqlite.connect(*arguments, **options)
        thread: Thread = connection if isinstance(connection, Thread) else connection._thread  # noqa: SLF001  since 0.22
        thread.daemon = True
        self._threads.add(thread)
        return connection


def _join(threads: Iterable[Thread]) -> None:
    end = monotonic() + PATIENCE
    for thread in threads:
        if thread.is_alive():
            thread.join(max(0.0, end - monotonic()))


def _url(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise UsageError(f"not the URL of a database: expected {_FORMS}") from None
    if url.drivername in {"postgres", "postgresql", "postgresql+asyncpg"} and url.database:
        return url.set(drivername="postgresql")
    if url.drivername == "sqlite" and url.database:
        if url.database != ":memory:" and not Path(url.database).absolute().parent.is_dir():
            raise UsageError(f"{text}: the folder {Path(url.database).parent} does not exist")
        return url
    raise UsageError(f"{url.render_as_string(hide_password=True)} is not the URL of a database: expected {_FORMS}")


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(files("headgate.admin") / "migrations"))


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin explicitly, and include the creation of tables
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "foreign_keys=ON", f"busy_timeout={int(PATIENCE * 1000)}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """Begin a transaction; one that writes locks at once, since a lock that is taken later may fail."""
    writing = connection.get_execution_options().get(_WRITING)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise _error(name, error) from error
    except OSError as error:  # such as TimeoutError
        raise DatabaseUnavailable(f"{name}: cannot be reached: {str(error) or 'no response in time'}") from error
    except msgspec.DecodeError as error:
        raise DatabaseError(f"{name}: a row is damaged: {error}") from error
    except SQLAlchemyError as error:
        raise DatabaseUnavailable(f"{name}: {_first_line(error)}") from error


_READ_ONLY = ("readonly", "read-only", "disk is full", "disk full", "could not extend", "no space left")
_UNAVAILABLE = ("unable to open", "locked", "connect", "shutting down", "starting up", "timeout", "closed", "terminat")


def _error(name: str, error: DBAPIError) -> DatabaseError:
    text = _first_line(error.orig or error)
    low = text.lower()
    if any(word in low for word in _READ_ONLY):
        return DatabaseReadOnly(f"{name}: accepts no changes: {text}")
    if error.connection_invalidated or any(word in low for word in _UNAVAILABLE):
        return DatabaseUnavailable(f"{name}: cannot be reached: {text}")
    return DatabaseError(f"{name}: {text}")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

"""Opening a database, its schema, and what its errors say."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text

from headgate.admin.audit import Actor
from headgate.admin.catalog import Catalog
from headgate.admin.database import Database, DatabaseError, DatabaseReadOnly, DatabaseUnavailable, SchemaMismatch
from headgate.admin.objects import ObjectKind, Operation
from headgate.admin.tables import metadata
from headgate.core.errors import UsageError
from tests.admin.planes import on_sqlite, opened
from tests.postgres import PostgresServer
from tests.servers import free_port


class TestOpening:
    async def test_an_empty_database_gets_its_tables(self, empty_url: str) -> None:
        for _ in range(2):  # opened again, it has them
            async with opened(empty_url) as database:
                assert await database.schema() == "0.1.0"

    async def test_a_new_file_is_for_its_owner_alone(self, tmp_path: Path) -> None:
        async with opened(f"sqlite:///{tmp_path}/headgate.db"):
            pass
        assert (tmp_path / "headgate.db").stat().st_mode & 0o777 == 0o600

    async def test_the_migrations_make_the_tables_that_the_code_knows(self, database: Database) -> None:
        async with database.reading() as connection:
            differences = await connection.run_sync(
                lambda sync: compare_metadata(MigrationContext.configure(sync), metadata)
            )
        assert differences == []

    def test_another_url_is_refused_with_the_right_ones(self) -> None:
        for url, said in (
            ("mysql://host/db", "expected sqlite:///headgate.db, or postgresql://"),
            ("headgate.db", "expected sqlite:///headgate.db, or postgresql://"),
            ("", "expected sqlite:///headgate.db"),
            ("postgresql://host", "expected sqlite:///headgate.db"),
            ("sqlite:////nowhere/at/all/headgate.db", "the folder /nowhere/at/all does not exist"),
        ):
            with pytest.raises(UsageError, match=said):
                Database(url)

    async def test_a_password_is_in_no_message(self) -> None:
        with pytest.raises(DatabaseUnavailable) as caught:
            await Database.open(f"postgresql://me:hidden-word@127.0.0.1:{free_port()}/db")
        assert "hidden-word" not in str(caught.value)
        assert "cannot be reached" in str(caught.value)
        with pytest.raises(UsageError) as refused:
            Database("mysql://me:hidden-word@host/db")
        assert "hidden-word" not in str(refused.value)

    def test_a_file_that_is_no_database_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "x.db").write_bytes(b"something else entirely" * 100)
        with pytest.raises(DatabaseError, match="not a database"):
            asyncio.run(Database.open(f"sqlite:///{tmp_path}/x.db"))


class TestMigrations:
    async def test_one_that_fails_half_way_changes_nothing(
        self, monkeypatch: pytest.MonkeyPatch, empty_url: str
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("half-way")

        database = Database(empty_url)
        with monkeypatch.context() as patch:
            patch.setattr("alembic.op.execute", fail)  # after the tables were created
            with pytest.raises(RuntimeError, match="half-way"):
                await database.upgrade()
        assert await database.schema() is None
        await database.prepare()
        assert (await Catalog(database).document()).document["rules"] == []
        await database.close()

    @pytest.mark.parametrize("version", ["9999", "0008"])
    async def test_tables_of_an_unknown_version_are_left_alone(
        self, url: str, database: Database, version: str
    ) -> None:
        """Those of a later version, and of a snapshot before the first release."""
        await Catalog(database).change([Operation(ObjectKind.RULE, "a", {"quota": "1/s"})], Actor("me"))
        async with database.writing() as connection:
            await connection.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})
        said = f"its tables are of version {version}, which this Headgate does not know: upgrade Headgate, or"
        with pytest.raises(SchemaMismatch, match=said):
            await Database.open(url)
        with pytest.raises(SchemaMismatch, match=said):
            await database.upgrade()
        assert await database.schema() == version
        assert [rule["id"] for rule in (await Catalog(database).document()).document["rules"]] == ["a"]


class TestTransactions:
    async def test_a_transaction_that_raises_is_rolled_back(self, database: Database) -> None:
        async def fail() -> None:
            async with database.writing() as connection:
                await connection.execute(text("UPDATE revision SET number = 7"))
                raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            await fail()
        assert await Catalog(database).revision() == 0

    @on_sqlite
    async def test_a_read_only_database_is_reported(self, database: Database) -> None:
        async def change() -> None:
            async with database.writing() as connection:
                await connection.execute(text("PRAGMA query_only = ON"))
                await connection.execute(text("UPDATE revision SET number = 7"))

        with pytest.raises(DatabaseReadOnly, match="accepts no changes"):
            await change()

    @on_sqlite
    async def test_a_locked_database_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
    ) -> None:
        monkeypatch.setattr("headgate.admin.database.PATIENCE", 0.05)
        async with opened(url):
            pass
        other = sqlite3.connect(tmp_path / "headgate.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        async with opened(url) as database:
            with pytest.raises(DatabaseUnavailable, match="locked"):
                async with database.writing():
                    pass
            async with database.reading():  # readers do not mind
                pass
        other.close()

    async def test_an_unavailable_server_is_reported(self, postgres: PostgresServer) -> None:
        database = await Database.open(postgres.database())
        postgres.stop()
        try:
            with pytest.raises(DatabaseUnavailable, match="cannot be reached"):
                async with database.reading():
                    pass
        finally:
            postgres.start()
        async with database.reading():  # and when it is back, all is well
            pass
        await database.close()

    def test_a_server_that_does_not_respond_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headgate.admin.database.PATIENCE", 0.2)

        async def main(port: int) -> None:
            database = Database(f"postgresql://somebody@127.0.0.1:{port}/any")
            with pytest.raises(DatabaseUnavailable, match="no response in time"):
                async with database.reading():
                    pass
            await database.close()

        with socket.create_server(("127.0.0.1", 0)) as silent:
            asyncio.run(main(silent.getsockname()[1]))


async def test_close_waits_for_the_threads_of_cancelled_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that ends after its loop would log a traceback."""
    before, connecting, connect = set(threading.enumerate()), threading.Event(), sqlite3.connect

    def slowly(*arguments: Any, **options: Any) -> Any:
        connecting.set()
        time.sleep(0.2)
        return connect(*arguments, **options)

    database = await Database.open(f"sqlite:///{tmp_path}/admin.db")
    monkeypatch.setattr(sqlite3, "connect", slowly)

    async def ask() -> None:
        async with database.reading():
            pass

    asking = asyncio.ensure_future(ask())
    assert await asyncio.to_thread(connecting.wait, 60)
    asking.cancel()
    await asyncio.wait({asking})
    await database.close()
    assert [each for each in threading.enumerate() if each not in before and "_connection_" in each.name] == []

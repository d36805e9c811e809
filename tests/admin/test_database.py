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

from headgate.admin import usage
from headgate.admin.audit import Actor
from headgate.admin.catalog import Catalog
from headgate.admin.database import Database, DatabaseError, DatabaseReadOnly, DatabaseUnavailable, SchemaMismatch
from headgate.admin.objects import ObjectKind, Operation
from headgate.admin.tables import metadata
from headgate.core.errors import UsageError
from headgate.observe.principal_use import WindowUse
from tests.admin.planes import on_sqlite, opened
from tests.servers import free_port


class TestOpening:
    async def test_an_empty_database_gets_its_tables(self, url: str) -> None:
        for _ in range(2):  # opened again, it has them
            async with opened(url) as database:
                assert await database.schema() == "0008"

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

    @pytest.mark.parametrize(
        ("url", "said"),
        [
            ("mysql://host/db", "expected sqlite:///headgate.db, or postgresql://"),
            ("headgate.db", "expected sqlite:///headgate.db, or postgresql://"),
            ("", "expected sqlite:///headgate.db"),
            ("postgresql://host", "expected sqlite:///headgate.db"),
            ("sqlite:////nowhere/at/all/headgate.db", "the folder /nowhere/at/all does not exist"),
        ],
    )
    def test_another_url_is_refused_with_the_right_ones(self, url: str, said: str) -> None:
        with pytest.raises(UsageError, match="(?s)" + said.replace("/", "/")):
            Database(url)

    async def test_a_password_is_in_no_message(self) -> None:
        with pytest.raises(DatabaseUnavailable) as caught:
            await Database.open(f"postgresql://me:hidden-word@127.0.0.1:{free_port()}/db")
        assert "hidden-word" not in str(caught.value)
        assert "cannot be reached" in str(caught.value)
        with pytest.raises(UsageError) as refused:
            Database("mysql://me:hidden-word@host/db")
        assert "hidden-word" not in str(refused.value)

    def test_a_file_that_is_not_a_database_is_said_to_be_none(self, tmp_path: Path) -> None:
        (tmp_path / "x.db").write_bytes(b"something else entirely" * 100)
        with pytest.raises(DatabaseError, match="not a database"):
            asyncio.run(Database.open(f"sqlite:///{tmp_path}/x.db"))


class TestMigrations:
    async def test_they_go_down_and_up_again(self, database: Database) -> None:
        await Catalog(database).change([Operation(ObjectKind.RULE, "a", {"quota": "1/s"})], Actor("me"))
        await database.downgrade("base")
        assert await database.schema() is None
        await database.upgrade()
        assert (await Catalog(database).document()).document["rules"] == []

    async def test_the_tables_of_usage_come_and_go_with_rules_in_place(self, database: Database) -> None:
        await Catalog(database).change([Operation(ObjectKind.RULE, "a", {"quota": "1/s"})], Actor("me"))
        use = WindowUse("a", 60_000_000, 5, 0, 0, {7: 1})
        batch = usage.UsageBatch(1, 0, {("a", "allowed"): 1}, [use])
        await usage.add(database, "me", [batch], 0)
        for version, missing in (("0002", "use_windows"), ("0001", "usage_")):
            await database.downgrade(version)
            with pytest.raises(DatabaseError, match=missing):
                await usage.add(database, f"after {version}", [batch], 0)
            await database.upgrade()
            await usage.add(database, f"after {version}", [batch], 0)
        assert [rule["id"] for rule in (await Catalog(database).document()).document["rules"]] == ["a"]

    async def test_one_that_fails_half_way_changes_nothing(
        self, monkeypatch: pytest.MonkeyPatch, database: Database
    ) -> None:
        await Catalog(database).change([Operation(ObjectKind.RULE, "a", {"quota": "1/s"})], Actor("me"))
        from alembic import op  # noqa: PLC0415  the name that the migration uses

        dropped: list[str] = []

        def drop(name: str) -> None:
            if len(dropped) == 3:
                raise RuntimeError("half-way")
            dropped.append(name)
            op.execute(f"DROP TABLE {name}")

        monkeypatch.setattr(op, "drop_table", drop)
        with pytest.raises(RuntimeError, match="half-way"):
            await database.downgrade("base")
        assert len(dropped) == 3
        assert await database.schema() == "0008"
        assert [rule["id"] for rule in (await Catalog(database).document()).document["rules"]] == ["a"]

    async def test_tables_of_a_newer_version_are_left_alone(self, url: str, database: Database) -> None:
        async with database.writing() as connection:
            await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        with pytest.raises(SchemaMismatch, match="newer version of Headgate: upgrade Headgate"):
            await Database.open(url)


class TestTransactions:
    async def test_what_raises_is_undone(self, database: Database) -> None:
        async def fail() -> None:
            async with database.writing() as connection:
                await connection.execute(text("UPDATE revision SET number = 7"))
                raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            await fail()
        assert await Catalog(database).revision() == 0

    @on_sqlite
    async def test_a_read_only_database_says_so(self, database: Database) -> None:
        async def change() -> None:
            async with database.writing() as connection:
                await connection.execute(text("PRAGMA query_only = ON"))
                await connection.execute(text("UPDATE revision SET number = 7"))

        with pytest.raises(DatabaseReadOnly, match="accepts no changes"):
            await change()

    @on_sqlite
    async def test_one_that_somebody_else_keeps_locked_says_so(
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

    async def test_a_server_that_goes_away_says_so(self, postgres: object) -> None:
        from tests.postgres import PostgresServer  # noqa: PLC0415  for its type

        assert isinstance(postgres, PostgresServer)
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

    def test_a_server_that_does_not_answer_is_said_to_be_slow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headgate.admin.database.PATIENCE", 0.2)

        async def main(port: int) -> None:
            database = Database(f"postgresql://somebody@127.0.0.1:{port}/any")
            with pytest.raises(DatabaseUnavailable, match="no answer in time"):
                async with database.reading():
                    pass
            await database.close()

        with socket.create_server(("127.0.0.1", 0)) as silent:
            asyncio.run(main(silent.getsockname()[1]))


async def test_of_what_was_cancelled_nothing_is_at_work_once_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that ends after its loop would tell it so in vain, with a traceback."""
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

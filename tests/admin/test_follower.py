"""Following a database: its changes reach the files, after failures too."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from headgate.admin import follower as following
from headgate.admin.audit import Actor
from headgate.admin.catalog import Catalog
from headgate.admin.database import Database
from headgate.admin.follower import Follower, nodes_of
from headgate.admin.objects import ObjectKind, Operation
from headgate.policy.snapshot import Changes, SnapshotReader
from tests.postgres import PostgresServer

ME = Actor("me")
DOCUMENT: dict[str, Any] = {"version": 1, "rules": [{"id": "a", "limit": 5, "window": "1m"}]}


@asynccontextmanager
async def followed(url: str, folder: Path) -> AsyncIterator[tuple[Catalog, Follower]]:
    database = await Database.open(url)
    catalog = Catalog(database)
    follower = Follower(catalog, folder)
    await follower.begin()
    following = asyncio.ensure_future(follower.run())
    try:
        yield catalog, follower
    finally:
        following.cancel()
        await asyncio.wait({following})
        await database.close()


async def until(seen: Callable[[], object]) -> None:
    """Wait until something is seen."""
    async with asyncio.timeout(120):
        while not seen():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def comes(folder: Path, revision: int) -> dict[str, Any]:
    """Wait until the files are at a revision."""
    await until(lambda: SnapshotReader(folder).read().revision >= revision)
    return SnapshotReader(folder).read().document


async def test_changes_reach_the_files(url: str, tmp_path: Path) -> None:
    async with followed(url, tmp_path) as (catalog, _):
        other = Catalog(await Database.open(url))  # as on another machine
        await other.apply(DOCUMENT, ME)
        assert (await comes(tmp_path, 1))["rules"][0]["limit"] == 5
        await other.change([Operation(ObjectKind.USER, "u", {"tier": "gold"})], ME)
        assert (await comes(tmp_path, 2))["users"] == {"u": {"tier": "gold"}}
        await other.change([Operation(ObjectKind.RULE, "a", {"quota": "9/m"})], ME)
        assert (await comes(tmp_path, 3))["rules"][0]["limit"] == 9
        await other.change([Operation(ObjectKind.RULE, "a", None)], ME)
        assert (await comes(tmp_path, 4))["rules"] == []
        await other.database.close()
        (node,) = await nodes_of(catalog.database, time.time_ns() // 1000)
        assert node.error == ""


def test_a_change_is_checked_once_in_the_service_that_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    about = Catalog.about

    async def noted(self: Catalog, given: Changes) -> dict[str, Any]:
        asked.append(given.revision)
        return await about(self, given)

    async def main() -> None:
        url = f"sqlite:///{tmp_path}/headgate.db"
        async with followed(url, tmp_path) as (catalog, _):
            other = Catalog(await Database.open(url))
            await catalog.apply(DOCUMENT, ME)
            await comes(tmp_path, 1)
            for revision, (by, quota) in enumerate([(catalog, "9/m"), (other, "8/m"), (catalog, "7/m")], 2):
                await by.change([Operation(ObjectKind.RULE, "a", {"quota": quota})], ME)
                await comes(tmp_path, revision)
            assert asked == [3]
            await other.database.close()

    monkeypatch.setattr(Catalog, "about", noted)
    asyncio.run(main())


async def test_a_follower_too_far_behind_reads_everything(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.admin.transaction.KEPT_CHANGES", 1)
    async with followed(url, tmp_path):
        pass
    database = await Database.open(url)
    await Catalog(database).apply(DOCUMENT, ME)
    for number in range(3):
        await Catalog(database).change([Operation(ObjectKind.USER, f"u{number}", {"tier": "gold"})], ME)
    await database.close()
    async with followed(url, tmp_path):
        assert len((await comes(tmp_path, 4))["users"]) == 3


async def test_an_invalid_row_is_reported_and_changes_nothing(url: str, tmp_path: Path) -> None:
    async with followed(url, tmp_path) as (catalog, follower):
        await catalog.apply(DOCUMENT, ME)
        await comes(tmp_path, 1)
        async with catalog.database.writing() as connection:
            await connection.execute(text('UPDATE rules SET body = \'{"id": "a", "limit": "many"}\''))
            await connection.execute(text("UPDATE revision SET number = 2"))
            await connection.execute(text("INSERT INTO changes VALUES (2, 'rule', 'a')"))
        await until(lambda: follower.error)
        assert "many" in follower.error
        assert SnapshotReader(tmp_path).read().revision == 1
        await catalog.change([Operation(ObjectKind.RULE, "a", {"quota": "9/m"})], ME)
        assert (await comes(tmp_path, 3))["rules"][0]["limit"] == 9
        await until(lambda: not follower.error)


async def test_files_that_cannot_be_written_end_nothing(url: str, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "rules", tmp_path / "elsewhere"
    folder.mkdir()
    async with followed(url, folder) as (catalog, follower):
        await catalog.apply(DOCUMENT, ME)
        await until(lambda: follower.revision == 1)
        folder.rename(elsewhere)
        await catalog.change([Operation(ObjectKind.RULE, "a", {"quota": "9/m"})], ME)
        await until(lambda: "No such file" in follower.error)
        assert follower.revision == 1
        elsewhere.rename(folder)
        assert (await comes(folder, 2))["rules"][0]["limit"] == 9
        await until(lambda: not follower.error)


async def test_an_unavailable_database_is_retried_within_a_second(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it has been away: what is written when it is back acts as soon as ever."""
    sleep, pauses = asyncio.sleep, list[float]()

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async with followed(postgres.database(), tmp_path) as (_, follower):
        postgres.stop(signal.SIGQUIT)
        try:
            await until(lambda: follower.error)
            monkeypatch.setattr(following, "REPORT_EVERY", 0)
            monkeypatch.setattr(asyncio, "sleep", noted)
            looked = follower._followed.failures
            while follower._followed.failures < looked + 10:
                await sleep(0.01)
        finally:
            monkeypatch.undo()
            postgres.start()
    assert max(pauses) < 1


async def test_lost_words_cost_a_moment_not_a_change(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "CHANNEL", "another-channel")
    async with followed(postgres.database(), tmp_path) as (catalog, _):
        await catalog.apply(DOCUMENT, ME)
        await comes(tmp_path, 1)

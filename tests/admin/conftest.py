"""Databases for the tests of the admin plane: each test runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headgate.admin.catalog import Catalog
from headgate.admin.database import Database
from tests.admin.planes import Admin, opened, plane
from tests.postgres import PostgresServer, postgres_server

PATIENCE = {f"headgate.admin.{module}.PATIENCE": 60.0 for module in ("database", "follower", "usage")}
"""A database may take its time on a busy machine; where that is what a test is about, it says how much."""


@pytest.fixture(scope="session", autouse=True)
def _patience() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in PATIENCE.items():
            patch.setattr(name, seconds)
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A test that stops it starts it again."""
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new, empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/headgate.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the tables, which tests copy: to create the tables takes longer."""
    path = tmp_path_factory.mktemp("template") / "headgate.db"
    asyncio.run(_create_tables(f"sqlite:///{path}"))
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    url = postgres.database()
    asyncio.run(_create_tables(url))
    return url


async def _create_tables(url: str) -> None:
    async with opened(url):
        pass


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new database with the tables."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("template"), tmp_path / "headgate.db")
        return f"sqlite:///{tmp_path}/headgate.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database(request.getfixturevalue("postgres_template"))


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    async with opened(url) as database:
        yield database


class Clock:
    """A clock that tests set, in microseconds since the epoch."""

    now = 86_400_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def catalog(database: Database) -> Catalog:
    return Catalog(database)


@pytest.fixture
async def admin(url: str) -> AsyncIterator[Admin]:
    """A client of a plane on that database."""
    async with plane(url) as admin:
        yield admin

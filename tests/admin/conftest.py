"""Databases for the tests of the admin plane: each test runs on SQLite and on PostgreSQL."""

from __future__ import annotations

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
    """Who stops it starts it again."""
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new, empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/headgate.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    async with opened(url) as database:
        yield database


@pytest.fixture
def catalog(database: Database) -> Catalog:
    return Catalog(database)


@pytest.fixture
async def admin(url: str) -> AsyncIterator[Admin]:
    """A client of a plane on that database."""
    async with plane(url) as admin:
        yield admin

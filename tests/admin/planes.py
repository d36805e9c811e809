"""A plane with rules in a database, and a client of it with keys of all roles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from headgate.admin.api import application
from headgate.admin.audit import Actor
from headgate.admin.catalog import Catalog, FileRules
from headgate.admin.database import Database
from headgate.admin.keys import AdminKeys, KeyRole
from headgate.admin.live import LiveFigures
from headgate.admin.service import AdminService
from headgate.engine import AsyncEngine
from headgate.policy.loading import from_data
from headgate.testing import ManualClock

on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
"""Run a test on SQLite alone, where the database does not matter."""

DOCUMENT: dict[str, Any] = {
    "version": 1,
    "rules": [
        {"id": "orders-user", "limit": 5, "window": "1m", "endpoint": "/orders"},
        {"id": "all-ip", "dimension": "ip", "limit": 50, "window": "1s"},
        {"id": "team/a", "limit": 9, "window": "1h", "tier": "gold"},
    ],
    "tiers": {"gold": {"orders-user": {"limit": 50}}},
}


class Admin:
    """A client with keys of all roles."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        keys: dict[str, str],
        catalog: Catalog,
        engine: AsyncEngine,
        service: AdminService,
    ) -> None:
        self.client, self.keys, self.catalog, self.engine, self.service = client, keys, catalog, engine, service

    async def ask(
        self, method: str, path: str, body: Any = None, *, role: str = "admin", **headers: str
    ) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if role:
            sent["authorization"] = f"Bearer {self.keys[role]}"
        url = path if not path.startswith("api/") else f"/{path}"
        return await self.client.request(method, url, json=body, headers=sent)

    async def follow(self) -> None:
        """Let the engine have the rules of the database, as a follower would."""
        await self.engine.close()
        rules = from_data((await self.catalog.document()).document)
        self.engine.__init__(rules, clock=ManualClock())  # type: ignore[misc]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    database = await Database.open(url)
    try:
        yield database
    finally:
        await database.close()


def in_file(engine: AsyncEngine, key: str) -> Any:
    """Return the application of a plane whose rules are in a file."""
    rules = FileRules("rules.yaml", lambda: engine.policy.ruleset, lambda: 1)
    return application(AdminService(rules, engine, AdminKeys(None, key)))


@asynccontextmanager
async def plane(url: str, reads: str = "100000/day", writes: str = "100000/day") -> AsyncIterator[Admin]:
    database = await Database.open(url)
    catalog, keys = Catalog(database), AdminKeys(database)
    await catalog.apply(DOCUMENT, Actor("start-up"))
    texts = {str(role): (await keys.create(str(role), role, Actor("start-up"))).text for role in KeyRole}
    engine = AsyncEngine(from_data(DOCUMENT), clock=ManualClock())
    live = LiveFigures(database)
    service = AdminService(catalog, engine, keys, database=database, live=live)
    app = application(service, reads=reads, writes=writes)
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            yield Admin(client, texts, catalog, engine, service)
    finally:
        await live.finish()
        await engine.close()
        await database.close()

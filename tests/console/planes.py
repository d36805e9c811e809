"""A service for tests of the console."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from headgate.admin import usage
from headgate.admin.database import Database
from headgate.admin.tables import epoch_us
from headgate.admin.usage import UsageBatch
from headgate.observe.principal_use import MINUTE_US, WindowUse
from tests.admin.conftest import PATIENCE
from tests.server.process.service import SECONDS, Service, altered

T = TypeVar("T")
ADMIN_KEY = "hg_an-operators-own-key-of-some-length"
BOUNDLESS = ("--admin-reads", "1000000/minute", "--admin-writes", "1000000/minute")
CONSTANTS: Mapping[str, object] = {**PATIENCE, "headgate.admin.security.FAILURES": "1000000/minute"}
"""Limits that tests sharing one service would reach."""


class Plane(Service):
    """A service with a database, once `started`; its rules, users and keys are made over the REST API."""

    def __init__(self, folder: Path, *options: str, constants: Mapping[str, object] | None = None) -> None:
        self.file = folder / "headgate.db"
        """The database, unless options name another."""
        database = () if {"--database", "--rules"} & {*options} else ("--database", f"sqlite:///{self.file}")
        common = (*database, "--data-dir", str(folder / "data"), "--workers", "1", *BOUNDLESS)
        program = altered({**CONSTANTS, **(constants or {})})
        super().__init__(folder, *common, *options, environment={"HEADGATE_ADMIN_KEY": ADMIN_KEY}, program=program)
        self.folder = folder
        self.sessions: dict[str, list[Any]] = {}
        """The cookies of a session of each role, made when first needed; for `browsing.Browsing`."""
        self._keys: dict[str, str] = {"admin": ADMIN_KEY}
        self._numbers = count(1)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    def key(self, role: str) -> str:
        """Return a key of a role, which no test revokes."""
        if role not in self._keys:
            self._keys[role] = self.new_key(role)["key"]
        return self._keys[role]

    def new_key(self, role: str, **fields: object) -> dict[str, Any]:
        """Create a key; return its `id`, and its text as `key`."""
        made: dict[str, Any] = self.ask("POST", "/keys", {"name": self.unique(role), "role": role, **fields}).json()
        return made

    def unique(self, name: str) -> str:
        """Return a name that no other test of this service uses."""
        return f"{name}-{next(self._numbers)}"

    def ask(
        self, method: str, path: str, body: object = None, *, role: str = "admin", **headers: str
    ) -> httpx.Response:
        """Send a request to the REST API, which must succeed."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent["authorization"] = f"Bearer {self.key(role)}"
        answer = httpx.request(method, f"{self.address}/api/v1{path}", json=body, headers=sent, timeout=SECONDS)
        assert answer.is_success, (method, path, answer.text)
        return answer

    def rule(self, rule_id: str = "", **fields: object) -> str:
        """Create a rule, wait until it is enforced, and return its id."""
        rule_id = rule_id or self.unique("rule")
        body = {"limit": 5, "window": "1h", "endpoint": f"/{rule_id}", **fields}
        self.ask("PUT", f"/rules/{quote(rule_id, safe='')}?wait=1m", body)
        return rule_id

    def decided(self, rule: str, limit: int, principals: Mapping[int, int], **counts: int) -> None:
        """Note what a rule decided in a minute that is over, and what principals requested, as a service does."""

        async def note() -> None:
            database = await Database.open(f"sqlite:///{self.folder}/headgate.db")
            try:
                now = epoch_us()
                at = now // MINUTE_US * MINUTE_US - MINUTE_US
                use = WindowUse(rule, MINUTE_US, limit, at, 0, dict(principals))
                by_outcome = {(rule, outcome): count for outcome, count in counts.items()}
                await usage.add(database, f"test of {rule}", [UsageBatch(1, at, by_outcome, [use])], now)
            finally:
                await database.close()

        ran(note())


def ran(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in another thread: the loop of this one is Playwright's."""
    with ThreadPoolExecutor(1) as other:
        return other.submit(asyncio.run, work).result()


@contextmanager
def running_plane(*options: str, constants: Mapping[str, object] | None = None) -> Iterator[Plane]:
    """A service of its own for the length of a with block."""
    with TemporaryDirectory(prefix="headgate-console-") as folder:
        plane = Plane(Path(folder), *options, constants=constants)
        try:
            plane.started()
            yield plane
        finally:
            plane.stop()

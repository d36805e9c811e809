"""Many users and rules in a database: the start of a service, its memory, and the cost of changes and pages.

::

    python -m benchmarks.admin [USERS]

Times are of the processor, in this process alone: the part that follows the database, then the part of one worker.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from sqlalchemy import insert

from headgate.admin import usage
from headgate.admin.api import application
from headgate.admin.audit import Actor
from headgate.admin.catalog import Catalog
from headgate.admin.database import Database
from headgate.admin.follower import Follower
from headgate.admin.keys import AdminKeys, KeyRole
from headgate.admin.live import LiveFigures
from headgate.admin.objects import ObjectKind, Operation
from headgate.admin.service import AdminService
from headgate.admin.tables import epoch_us, overrides, users
from headgate.admin.usage import MINUTE_US, UsageBatch
from headgate.engine import AsyncEngine
from headgate.observe.recorder import ALLOWED, Recorder
from headgate.policy.live import LivePolicy
from headgate.policy.snapshot import SnapshotSource

ME = Actor("benchmark")
RULES: dict[str, Any] = {
    "version": 1,
    "rules": [
        {"id": f"rule{number}", "limit": 100, "window": "1m", "endpoint": f"/r{number}"} for number in range(10_000)
    ],
    "tiers": {"gold": {"rule0": {"limit": 500}}, "free": {"rule0": {"limit": 10}}},
}


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _timed(what: str, work: Callable[[], object]) -> None:
    begun, used = time.perf_counter(), time.process_time()
    work()
    print(f"{what:<58} {1000 * (time.process_time() - used):9.1f} ms  {1000 * (time.perf_counter() - begun):9.1f} ms")


async def _awaited(what: str, work: Callable[[], Awaitable[object]]) -> None:
    begun, used = time.perf_counter(), time.process_time()
    await work()
    print(f"{what:<58} {1000 * (time.process_time() - used):9.1f} ms  {1000 * (time.perf_counter() - begun):9.1f} ms")


async def _filled(url: str, number: int) -> Database:
    """Return a database of users, half of them with an override."""
    database = await Database.open(url)
    await Catalog(database).apply(RULES, ME)
    names = [f"user-{index:06}" for index in range(number)]
    bodies = [
        {"tier": "gold" if index % 2 else "free"}
        | ({"overrides": {"rule1": {"limit": 50 + index % 1000}}} if index % 2 else {})
        for index in range(number)
    ]
    stamps = {"version": 1, "created_at": 0, "updated_at": 0}
    rows = [
        {"id": name, "body": body, "tier": body["tier"], **stamps} for name, body in zip(names, bodies, strict=True)
    ]
    given = [{"user_id": name, "rule_id": "rule1", "until": None} for name in names[1::2]]
    async with database.writing() as connection:
        await connection.execute(insert(users), rows)
        await connection.execute(insert(overrides), given)
    return database


async def _measured(folder: Path, number: int) -> None:
    database = await _filled(f"sqlite:///{folder}/headgate.db", number)
    catalog, rules = Catalog(database), folder / "rules"
    rules.mkdir()
    follower = Follower(catalog, rules)
    print(
        f"{len(RULES['rules'])} rules, {number} users, half of them with an override; "
        "processor time, and time by the clock"
    )
    await _awaited("begin: read the database, check, write the files", follower.begin)
    size = (rules / "rules.jsonl").stat().st_size / 2**20
    gc.collect()
    before = _resident()
    live: list[LivePolicy] = []
    _timed(
        f"a worker reads the files ({size:.1f} MB) and compiles them",
        lambda: live.append(LivePolicy(SnapshotSource(rules))),
    )
    gc.collect()
    print(f"{'the worker then holds':<58} {(_resident() - before) / 2**20:9.1f} MB more")
    await _awaited("resume: find the files as they were left", lambda: asyncio.to_thread(follower.resume))
    changes = {
        "one user": Operation(ObjectKind.USER, "user-000007", {"tier": "gold", "overrides": {"rule1": {"limit": 7}}}),
        "another user": Operation(ObjectKind.USER, "user-000008", {"tier": "gold"}),
        "one rule that has overrides": Operation(ObjectKind.RULE, "rule1", {**RULES["rules"][1], "limit": 200}),
        "one rule that has none": Operation(ObjectKind.RULE, "rule2", {**RULES["rules"][2], "limit": 200}),
    }
    for what, operation in changes.items():
        await _awaited(f"{what}: changed in the database", lambda operation=operation: catalog.change([operation], ME))  # type: ignore[misc]
        await _awaited(f"{what}: followed", follower._catch_up)  # noqa: SLF001  one step of its loop
        _timed(f"{what}: in force in a worker", live[0].refresh)
        if error := live[0].statistics().error:
            raise SystemExit(error)
    figures = await _figures(database)
    await _pages(database, live[0], figures)
    await figures.finish()
    await database.close()


async def _figures(database: Database) -> LiveFigures:
    """Measure the live figures of a node, every rule of which decides in each 2.5 seconds, and return them."""
    recorder, rules = Recorder(), [rule["id"] for rule in RULES["rules"]]
    figures = LiveFigures(database, recorder.worker_counts, recorder.hot_keys)

    def decide() -> None:
        for rule in rules:
            recorder._series.count(rule, ALLOWED)  # noqa: SLF001  as `record_ruling` does

    for _ in range(3):
        decide()
        await figures.look()
    decide()
    await _awaited("live figures: look at what every rule has decided", figures.look)
    await _awaited("live figures: see that nobody watches", lambda: figures.write(database))
    await _awaited("live figures: read those of all nodes", figures.fleet)
    if figures._finding is not None:  # noqa: SLF001  begun by reading
        await _awaited("live figures: find what else needs attention, once a minute", lambda: figures._finding)  # type: ignore[arg-type,return-value]  # noqa: SLF001
    await _awaited("live figures: write those of this node", lambda: figures.write(database))
    return figures


PAGES = {
    "overview": "/",
    "rules": "/rules",
    "rules, found by a part of a name": "/rules?q=rule99",
    "rules, the last ones": "/rules?offset=9990",
    "a rule": "/rule?id=rule1",
    "a rule, its last week": "/rule?id=rule1&span=week",
    "editor": "/rule/edit?id=rule1",
    "who": "/who",
    "who, the beginning of a name": "/who?q=user-0",
    "a user with an override": "/who?user=user-000007",
    "a request that is tried": "/try?method=GET&path=/r1&user=user-000007",
    "revisions": "/revisions",
    "a revision of 110,000 changes": "/revision?n=1",
    "nodes": "/nodes",
    "audit trail": "/audit",
}
_LOOKS = 20


async def _pages(database: Database, policy: LivePolicy, figures: LiveFigures) -> None:
    """Measure the pages of the console: the median of some requests, without the first."""
    now = epoch_us()
    for minute in range(1, 11):
        counts = {(rule["id"], outcome): 50 for rule in RULES["rules"] for outcome in ("allowed", "denied")}
        at = now // MINUTE_US * MINUTE_US - minute * MINUTE_US
        await usage.add(database, f"minute {minute}", [UsageBatch(1, at, counts, [])], now)
    keys, engine = AdminKeys(database), AsyncEngine(policy)
    admin = AdminService(Catalog(database), engine, keys, database=database, live=figures)
    key = (await keys.create("benchmark", KeyRole.ADMIN, ME)).text
    transport = httpx.ASGITransport(application(admin, reads="1000000/minute"))
    headers = {"authorization": f"Bearer {key}", "accept": "text/html"}
    async with httpx.AsyncClient(transport=transport, base_url="http://admin", headers=headers) as client:
        for name, path in PAGES.items():
            took = []
            for _ in range(_LOOKS + 1):
                begun, used = time.perf_counter(), time.process_time()
                answer = await client.get(path)
                took.append((time.process_time() - used, time.perf_counter() - begun))
                if answer.status_code != 200:
                    raise SystemExit(f"{path}: {answer.text}")
            used, begun = (1000 * median(each) for each in zip(*took[1:], strict=True))
            print(f"{'page: ' + name:<58} {used:9.1f} ms  {begun:9.1f} ms  {len(answer.content) / 1024:6.0f} KiB")
    await engine.close()


def main() -> None:
    """Measure, and print the result."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with TemporaryDirectory(prefix="headgate-users-") as folder:
        asyncio.run(_measured(Path(folder), number))


if __name__ == "__main__":
    main()

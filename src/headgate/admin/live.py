"""Current rates of a fleet: each service writes one bounded row to the database, and can sum the rows of all.

Decisions and their store are not involved, so there are figures also while the store is down, or is in memory. A
service reads its own counters continuously, and keeps ten minutes of history. It writes only while the overview is
being viewed on any node, which a row of the same table records.

Without a database, or while it is unavailable, a service reports only its own rates, with the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import monotonic

import msgspec
from sqlalchemy import delete, select

from headgate.admin import findings, usage
from headgate.admin.database import PATIENCE, Database, DatabaseError
from headgate.admin.follower import FORGOTTEN_AFTER_US, NodeStatus, this_node
from headgate.admin.overview import NO_DATABASE, Attention, Fleet, NodeFigures
from headgate.admin.tables import WATCHED, epoch_us, figures, nodes, revision, upsert
from headgate.admin.usage import HOUR_US, MINUTE_US, REQUESTS
from headgate.observe.rates import LOOK_US, STEP_US, STEPS, Figures, RateWatch
from headgate.observe.workers import WorkerCounts
from headgate.policy.model import Rule

WATCHED_US = 20_000_000
"""Time for which services write after a view."""
HISTORY_US = STEPS * STEP_US
CACHED = 1.0
"""Seconds for which all views share one reading."""
FOUND, VERIFIED = 60.0, 3600.0
"""Seconds between two searches for problems, and between two verifications of the audit trail, during views."""
SLOW = 2.0
"""Seconds after which the database counts as unavailable for a view."""
MOST_NODES = 500
_LOG = logging.getLogger("headgate.admin")
_decode, _encode = msgspec.json.Decoder(Figures).decode, msgspec.json.Encoder().encode


class LiveFigures:
    """Measures the rates of a service, writes them during views, and sums those of all services.

    `counted` returns the counters of this service's workers, in a thread; `hot_keys` returns JSON; `status` returns the
    status of this node; `store` is the name of its store; `clock` returns microseconds since the epoch.
    """

    def __init__(
        self,
        database: Database | None,
        counted: Callable[[], Iterable[WorkerCounts]] = lambda: (),
        hot_keys: Callable[[], bytes] = lambda: b"{}",
        status: Callable[[], NodeStatus] | None = None,
        *,
        rules: Callable[[], Sequence[Rule]] = lambda: (),
        store: str = "memory",
        clock: Callable[[], int] = epoch_us,
    ) -> None:
        self._database, self._now = database, clock
        self._rules = rules
        self._watch = RateWatch(counted, hot_keys, store, clock)
        me = this_node()
        self._status = status or (lambda: me)
        self._own = Figures()
        self._news = asyncio.Event()
        self._fleet: Fleet | None = None
        self._read_at = 0.0
        self._findings: tuple[Attention, ...] = ()
        self._audit: list[Attention] = []
        self._found_at = self._verified_at = -VERIFIED
        self._finding: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[Fleet] | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self._database is not None:
                group.create_task(self._write(self._database))
            while True:
                await asyncio.sleep((LOOK_US - self._now() % LOOK_US) / 1_000_000)
                await self.look()

    async def look(self) -> None:
        try:
            self._own = await asyncio.to_thread(self._watch.look)
        except Exception:  # noqa: BLE001  such as too many open files; there is a next time
            _LOG.exception("the counters of the workers cannot be read")
        self._news.set()

    async def _write(self, database: Database) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            with suppress(DatabaseError):  # views report it
                await self.write(database)

    async def write(self, database: Database) -> None:
        """Write the figures during views. Raises DatabaseError."""
        async with database.reading() as connection:
            watched = select(figures.c.at).where(figures.c.id == WATCHED)
            if ((await connection.execute(watched)).scalar() or 0) < self._now():
                return
        row = {"id": self._status().id, "at": self._own.at, "body": _encode(self._own).decode()}
        async with database.writing() as connection:
            await connection.execute(upsert(connection, figures, replace=("at", "body")), row)

    async def fleet(self) -> Fleet:
        """Return all nodes; only this one if the database does not respond in time."""
        if self._fleet is not None and monotonic() - self._read_at < CACHED:
            return self._fleet
        reading = self._reading
        if reading is None or reading.done():
            reading = self._reading = asyncio.create_task(self._read())
        done, _ = await asyncio.wait({reading}, timeout=SLOW)
        return reading.result() if done else self._alone("the database does not respond in time")

    async def finish(self) -> None:
        tasks = {task for task in (self._reading, self._finding) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE)

    async def _read(self) -> Fleet:
        try:
            self._fleet = await self._found(self._database) if self._database else self._alone(NO_DATABASE)
        except DatabaseError as error:
            self._fleet = self._alone(error.public)
        self._read_at = monotonic()
        return self._fleet

    def _alone(self, reason: str) -> Fleet:
        status = self._status()._replace(seen_at=self._now())
        return Fleet(self._now(), status.id, [NodeFigures(status, self._own)], status.revision, 0, reason)

    async def _found(self, database: Database) -> Fleet:
        """Read the figures of all nodes, and record the view. Raises DatabaseError."""
        now, own = self._now(), self._status()
        lately = select(nodes).where(nodes.c.seen_at > now - FORGOTTEN_AFTER_US)
        present = lately.order_by(nodes.c.seen_at.desc()).limit(MOST_NODES)
        written = select(figures).where(figures.c.at > now - HISTORY_US).order_by(figures.c.at.desc()).limit(MOST_NODES)
        async with database.reading() as connection:
            number, changed_at = (await connection.execute(select(revision.c.number, revision.c.changed_at))).one()
            statuses = [NodeStatus(**row) for row in (await connection.execute(present)).mappings()]
            rows = {row.id: row for row in await connection.execute(written)}
            hour = (await usage.series(connection, [REQUESTS], now - HOUR_US, MINUTE_US))[REQUESTS]
        watched = rows.pop(WATCHED, None)
        if watched is None or watched.at < now + WATCHED_US // 2:
            async with database.writing() as connection:
                mark = {"id": WATCHED, "at": now + WATCHED_US, "body": ""}
                await connection.execute(upsert(connection, figures, replace=("at", "body")), mark)
                await connection.execute(delete(figures).where(figures.c.at < now - HISTORY_US))
        seen = {name: _figures(row.body) for name, row in rows.items()} | {own.id: self._own}
        if own.id not in {status.id for status in statuses}:
            statuses.append(own._replace(seen_at=now))
        found = [NodeFigures(status, seen.pop(status.id, None)) for status in statuses]
        found.sort(key=lambda node: (node.status.host, node.status.started_at))
        fleet = Fleet(now, own.id, found, number, changed_at, "", self._findings, tuple(hour), tuple(seen.values()))
        if monotonic() - self._found_at > FOUND and (self._finding is None or self._finding.done()):
            self._finding = asyncio.create_task(self._find(database, fleet))
        return fleet

    async def _find(self, database: Database, fleet: Fleet) -> None:
        """Search the database for problems, in the background: a later view shows them."""
        refusing = dict.fromkeys(rule.rule_id for each in fleet.fresh for rule in each.rules if rule.refused)
        try:
            async with database.reading() as connection:
                found = await findings.find_problems(connection, self._rules(), refusing, self._now())
            if monotonic() - self._verified_at > VERIFIED:
                async with database.reading() as connection:
                    self._audit = await findings.audit_fault(connection)
                self._verified_at = monotonic()
            self._findings = (*found, *self._audit)
        except DatabaseError as error:
            _LOG.debug("the search for problems failed: %s", error)
        self._found_at = monotonic()


def _figures(body: str) -> Figures:
    try:
        return _decode(body)
    except msgspec.DecodeError:  # perhaps of another version
        return Figures()

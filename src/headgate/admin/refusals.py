"""The last refusals of all nodes that share a database; without a database, of this node.

Workers keep a few refusals of each caller in memory; see `headgate.observe.refusals`. These are written here in
batches, every few seconds, and kept for a day. Their number by caller, rule and hour is kept as long as the audit
trail. Both are bounded: above the bound, callers with the most refusals lose theirs first, then the oldest are deleted.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import Table, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin.database import PATIENCE, Database, DatabaseError
from headgate.admin.tables import (
    epoch_us,
    last_batch,
    note_batch,
    page_of,
    period,
    refusal_hours,
    refusals,
    sum_of,
    upsert,
)
from headgate.core.calendar import DAY_US
from headgate.observe.refusals import TAKEN_EVERY, Refusal

MOST_ROWS = 100_000
"""Bound of refusals, and of sums by hour; each service may exceed it by `PRUNED_AFTER` for a while."""
PRUNED_AFTER = 20_000
"""Refusals that a service writes between two enforcements of the bound."""
MOST_WAITING = 10_000
"""Refusals that wait for the database, or are kept without one."""
STEPS = ("each", "hour")
WHO = ("user", "apikey", "ip", "principal")
"""The fields of callers by which refusals can be filtered."""
_AT_ONCE = 1000
_EACH = (256, 64, 16, 4, 1)
"""Refusals that each caller keeps by a rule, above the bound; tried in turn until the bound is met."""
_HOUR_US = 3_600_000_000
_LOG = logging.getLogger("headgate.admin")
Filters: TypeAlias = Mapping[str, Any]
"""`rule_id`; `since` and `until`, in microseconds since the epoch; and for each of `WHO` the accepted values."""


class RefusalLog:
    """Keeps the last refusals of a service's workers; without a database, in memory.

    `taken` returns the refusals since its last call; `clock` returns microseconds since the epoch.
    """

    def __init__(
        self, database: Database | None, taken: Callable[[], list[Refusal]], clock: Callable[[], int] = epoch_us
    ) -> None:
        self._database, self._taken, self._now = database, taken, clock
        self._waiting: deque[Refusal] = deque(maxlen=MOST_WAITING)
        self._batch: list[Refusal] = []  # sent, and perhaps written: it is sent again unchanged until that is certain
        self._id, self._sequence = secrets.token_hex(8), 0
        self._until_pruned = PRUNED_AFTER
        self._is_unavailable = False

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TAKEN_EVERY)
            await self.collect()

    async def finish(self) -> None:
        """Write the remaining refusals, if the database answers within a few seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self.collect()

    async def collect(self) -> None:
        """Take the refusals of the workers, and write them if there is a database."""
        try:
            new = self._taken()
        except OSError as error:
            _LOG.warning("the refusals of the workers cannot be read: %s", error)
            new = []
        lost = len(self._waiting) + len(new) - MOST_WAITING
        if lost > 0 and self._database is not None:
            _LOG.warning("%d refusals were lost: the database was unavailable for too long", lost)
        self._waiting.extend(new)
        if self._database is None:
            return
        try:
            await self._write(self._database)
        except DatabaseError as error:
            if not self._is_unavailable:
                _LOG.warning("refusals cannot be written to the database yet: %s", error)
            self._is_unavailable = True
        else:
            self._is_unavailable = False

    async def _write(self, database: Database) -> None:
        while self._batch or self._waiting:
            if not self._batch:
                self._batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _AT_ONCE))]
                self._sequence += 1
            await add(database, self._id, self._sequence, self._batch, self._now())
            self._until_pruned -= len(self._batch)
            self._batch = []
        if self._until_pruned <= 0:
            self._until_pruned = PRUNED_AFTER
            async with database.exclusively() as connection:
                await bound(connection)

    async def page(self, filters: Filters, step: str, offset: int, limit: int) -> tuple[list[dict[str, Any]], int]:
        """Return refusals, or sums by hour, the newest first, and their total number. Raises DatabaseError."""
        if self._database is not None:
            async with self._database.reading() as connection:
                return await page(connection, filters, step, offset, limit)
        self._waiting.extend(self._taken())
        since = max(filters.get("since", 0), self._now() - DAY_US)
        until, rule = filters.get("until", 1 << 62), filters.get("rule_id")
        found = [
            each
            for each in reversed(self._waiting)
            if since <= each.at < until
            and rule in {None, each.rule_id}
            and all(getattr(each, _column(name, step)) in filters[name] for name in WHO if name in filters)
        ]
        if step == "hour":
            rows = _by_hour(found)[::-1]
        else:
            rows = [msgspec.structs.asdict(each) for each in sorted(found, key=lambda each: -each.at)]
        return rows[offset : offset + limit], len(rows)

    async def most_refused(self, since: int, most: int, rule_id: str | None = None) -> list[dict[str, Any]]:
        """Return the principals refused most, by any rule or one, since an hour. Raises DatabaseError."""
        first = since - since % _HOUR_US
        if self._database is None:
            self._waiting.extend(self._taken())
            sums: Counter[tuple[str, str]] = Counter()
            for each in self._waiting:
                if each.at >= first and rule_id in {None, each.rule_id}:
                    sums[each.rule_id, each.principal] += each.count
            rows = sums.most_common(most)
            return [{"rule_id": rule, "principal": principal, "count": count} for (rule, principal), count in rows]
        hours = refusal_hours.c
        total = sum_of(hours["count"]).label("count")
        found = select(hours.rule_id, hours.principal, total).where(hours.at >= first, hours.principal != "")
        found = found if rule_id is None else found.where(hours.rule_id == rule_id)
        ranked = found.group_by(hours.rule_id, hours.principal).order_by(total.desc(), hours.principal).limit(most)
        async with self._database.reading() as connection:
            return [dict(row) for row in (await connection.execute(ranked)).mappings()]


def _column(name: str, step: str) -> str:
    """Return the column of a field of `WHO`: sums by hour only have the principal of the rule."""
    return "principal" if step == "hour" else name


def _by_hour(some: Collection[Refusal]) -> list[dict[str, Any]]:
    """Return the sums by hour, rule and principal, sorted by these."""
    sums: Counter[tuple[int, str, str]] = Counter()
    for each in some:
        sums[each.at - each.at % _HOUR_US, each.rule_id, each.principal] += each.count
    names = ("at", "rule_id", "principal", "count")
    return [dict(zip(names, (*key, count), strict=True)) for key, count in sorted(sums.items())]


async def add(database: Database, writer: str, sequence: int, batch: Collection[Refusal], now: int) -> None:
    """Add a batch, unless it was added before. Raises DatabaseError."""
    async with database.writing() as connection:
        if await last_batch(connection, writer) >= sequence:
            return
        await connection.execute(refusals.insert(), [msgspec.structs.asdict(each) for each in batch])
        hours = _by_hour(batch)  # sorted, so that two writers cannot deadlock
        await connection.execute(upsert(connection, refusal_hours, add=["count"]), hours)
        await note_batch(connection, writer, sequence, now)


async def prune(connection: AsyncConnection, now: int, days: int) -> None:
    """Delete refusals older than a day, and sums by hour older than the audit trail, and enforce the bounds."""
    await connection.execute(delete(refusals).where(refusals.c.at < now - DAY_US))
    await connection.execute(delete(refusal_hours).where(refusal_hours.c.at < now - days * DAY_US))
    await bound(connection)


async def bound(connection: AsyncConnection) -> None:
    """Delete what exceeds `MOST_ROWS`, first of the callers with the most refusals."""
    kept = refusals.c
    for each in _EACH:
        if await _total(connection, refusals) <= MOST_ROWS:
            break
        place = func.row_number().over(partition_by=(kept.rule_id, kept.principal), order_by=kept.id.desc())
        ranked = select(kept.id, place.label("place")).subquery()
        await connection.execute(delete(refusals).where(kept.id.in_(select(ranked.c.id).where(ranked.c.place > each))))
    for table, order in ((refusals, kept.id), (refusal_hours, refusal_hours.c.at)):
        if await _total(connection, table) > MOST_ROWS:
            first = select(order).order_by(order.desc()).offset(MOST_ROWS - 1).limit(1).scalar_subquery()
            await connection.execute(delete(table).where(order < first))


async def _total(connection: AsyncConnection, table: Table) -> int:
    return (await connection.execute(select(func.count()).select_from(table))).scalar_one()


async def page(
    connection: AsyncConnection, filters: Filters, step: str, offset: int, limit: int
) -> tuple[list[dict[str, Any]], int]:
    table = refusal_hours if step == "hour" else refusals
    conditions: list[Any] = [table.c.rule_id == filters["rule_id"]] if "rule_id" in filters else []
    conditions += [table.c[_column(name, step)].in_(filters[name]) for name in WHO if name in filters]
    if step == "hour" and "since" in filters:  # with the whole first hour
        filters = {**filters, "since": filters["since"] - filters["since"] % _HOUR_US}
    conditions += period(table.c.at, filters)
    last = table.c.principal if step == "hour" else table.c.id.desc()
    order = table.c.at.desc(), table.c.rule_id, last
    return await page_of(connection, select(table).where(*conditions), order, offset, limit)

"""Usage: the decisions of each rule by minute, summed over all services that share a database.

Once a minute, a service reads the counters of its workers and adds the differences to the database, which keeps them by
minute for `MINUTES_DAYS`, then by hour until `HOURS_DAYS`. The use of single principals is written together with them:
see `headgate.admin.what_if`.

While the database is unavailable, batches wait, up to a bound; what exceeds it is lost, and logged. A batch that was
sent but not acknowledged is not added twice: the database has the sequence of the last batch of each service.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Table, case, delete, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin import what_if
from headgate.admin.database import PATIENCE, Database, DatabaseError
from headgate.admin.keys import note_uses
from headgate.admin.tables import (
    AT_ONCE,
    among,
    constant,
    epoch_us,
    last_batch,
    note_batch,
    page_of,
    period,
    slices,
    sum_of,
    upsert,
    usage_hours,
    usage_minutes,
    usage_writers,
)
from headgate.config.times import moment_text
from headgate.core.calendar import DAY_US
from headgate.core.errors import UsageError
from headgate.observe import metrics
from headgate.observe.principal_use import WindowUse
from headgate.observe.rates import CounterTotals, by_outcome, requests_of
from headgate.observe.recorder import ALLOWED, DEGRADED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED
from headgate.observe.table import values_of
from headgate.observe.workers import WorkerCounts

MINUTES_DAYS = 30
"""Days that usage is kept by minute."""
HOURS_DAYS = 365
"""Days that usage is kept at all."""
MOST_BATCHES = 1440
"""Batches that may wait for the database: those of a day."""
MOST_WAITING = 500_000
"""Rows of all batches that may wait for the database."""
REQUESTS = ""
"""Stands for a rule in the counts of whole requests."""
MOST_SERIES = 50
"""Rules in one query for series."""
STEPS = ("minute", "hour")
OUTCOMES = (ALLOWED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED, DEGRADED)
"""Outcomes of decisions; degraded ones, without the store, also count under their other outcome."""
MINUTE_US, HOUR_US = 60_000_000, 3_600_000_000
_WRITERS_DAYS = 2
_LOG = logging.getLogger("headgate.admin")
Counts: TypeAlias = Mapping[tuple[str, str], int]
"""Decisions by rule and outcome; those of whole requests under the rule `REQUESTS`."""
_Seen: TypeAlias = dict[int, list[int]]
"""The totals of each worker's counters."""


class UsageBatch(NamedTuple):
    """The decisions of one minute, or of a longer time after a pause."""

    sequence: int
    at: int
    counts: Counts
    uses: Sequence[WindowUse] = ()
    """The use of principals; see `headgate.admin.what_if`."""

    @property
    def decisions(self) -> int:
        return sum(count for (rule, _), count in self.counts.items() if rule != REQUESTS)

    @property
    def size(self) -> int:
        return len(self.counts) + sum(1 + len(use.principals) for use in self.uses)


class UsageWriter:
    """Writes the decisions of a service's workers.

    `counted` returns their counters, in a thread; `used` returns the use of principals since its last call, and with
    `everything` also of open windows; `clock` returns microseconds since the epoch.
    """

    def __init__(
        self,
        database: Database,
        counted: Callable[[], Iterable[WorkerCounts]],
        clock: Callable[[], int] = epoch_us,
        *,
        used: Callable[..., list[WindowUse]] = lambda **_: [],
        most: int = MOST_WAITING,
    ) -> None:
        self._database, self._counted, self._used, self._most = database, counted, used, most
        self._now = clock
        self._id, self._sequence = secrets.token_hex(8), 0
        self._since = self._now()
        self._totals, self._seen = CounterTotals(), _Seen()
        self._reading = Lock()  # the thread of a cancelled sample may still read
        self._waiting: deque[UsageBatch] = deque()
        self._callers: dict[str, int] = {}  # when their keys were last used, in microseconds since the epoch
        self._noted: dict[str, int] = {}  # the same, as written
        self._is_unavailable = False

    @property
    def waiting(self) -> int:
        return sum(batch.decisions for batch in self._waiting)

    async def run(self) -> None:
        while True:
            await asyncio.sleep((MINUTE_US - self._now() % MINUTE_US) / 1_000_000)
            await self.sample()
            await self.write()

    async def finish(self) -> None:
        """Write the remaining decisions, if the database answers within a few seconds, and log what is lost."""
        await self.sample(is_last=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self.write()
        if self._waiting:
            first = moment_text(self._waiting[0].at)
            _LOG.warning("usage was lost: %d decisions since %s could not be written", self.waiting, first)

    async def sample(self, *, is_last: bool = False) -> None:
        """Make a batch of what was counted since the last one, for the minute in which that was made."""
        try:
            difference = asyncio.to_thread(self._difference)  # with many rules it takes a while
            seen, counts = await difference
            uses = self._used(everything=is_last)
        except OSError as error:  # the next sample includes all of it
            _LOG.warning("the counters of the workers cannot be read: %s", error)
            return
        self._seen = seen  # only now: a cancelled sample must not lose counts
        at, self._since = self._since - self._since % MINUTE_US, self._now()
        if counts or uses:
            self._sequence += 1
            self._waiting.append(UsageBatch(self._sequence, at, counts, uses))
            self._bound()

    def _difference(self) -> tuple[_Seen, Counts]:
        """Return all counters, and the new decisions and requests. Raises OSError."""
        workers = [*self._counted()]
        with self._reading:
            seen = {each.number: self._totals.sums([each]) for each in workers}
        for metric, labels, at in self._totals.gauges(workers):
            if metric is metrics.CALLER_ASKED_AT and at:
                (caller,) = values_of(labels)
                self._callers[caller] = max(self._callers.get(caller, 0), at // 1000)
        new = self._totals.sums([])
        for number, totals in seen.items():
            for place, (total, before) in enumerate(zip_longest(totals, self._seen.get(number, ()), fillvalue=0)):
                new[place] += total - before if total >= before else total  # less than before: the worker restarted
        rules = self._totals.rules
        counts = {
            (rule, outcome): count
            for outcome, column in by_outcome(new).items()
            for rule, count in zip(rules, column, strict=True)
            if count
        }
        allowed, refused, degraded, shadow_refused = requests_of(new)
        requests = {ALLOWED: allowed, DENIED: refused, DEGRADED: degraded, SHADOW_DENIED: shadow_refused}
        return seen, counts | {(REQUESTS, outcome): count for outcome, count in requests.items() if count}

    def _bound(self) -> None:
        size = sum(batch.size for batch in self._waiting)
        while len(self._waiting) > MOST_BATCHES or (size > self._most and len(self._waiting) > 1):
            batch = self._waiting.popleft()
            size -= batch.size
            _LOG.warning("usage was lost: %d decisions of %s waited too long", batch.decisions, moment_text(batch.at))

    async def write(self) -> None:
        """Write waiting batches, the oldest first, until the database fails."""
        used = {caller: at for caller, at in self._callers.items() if at > self._noted.get(caller, 0)}
        if used:
            with suppress(DatabaseError):  # logged below, and tried again in a minute
                await note_uses(self._database, used)
                self._noted |= used
        while self._waiting:
            some = self._next()
            try:
                await add(self._database, self._id, some, self._now())
            except DatabaseError as error:
                if not self._is_unavailable:
                    _LOG.warning("usage cannot be written to the database yet: %s", error)
                self._is_unavailable = True
                return
            self._is_unavailable = False
            for _ in some:
                self._waiting.popleft()

    def _next(self) -> list[UsageBatch]:
        """Return the batches of the next transaction, which is bounded."""
        some: list[UsageBatch] = []
        size = 0
        for batch in self._waiting:
            if some and size + batch.size > AT_ONCE:
                break
            some.append(batch)
            size += batch.size
        return some


async def add(database: Database, writer: str, batches: Iterable[UsageBatch], now: int) -> None:
    """Add batches of a writer, except those that were added before. Raises DatabaseError."""
    async with database.writing() as connection:
        last = await last_batch(connection, writer)
        sums: Counter[tuple[int, str, str]] = Counter()
        uses: list[WindowUse] = []
        for batch in batches:
            if batch.sequence > last:
                last = batch.sequence
                uses += batch.uses
                for (rule, outcome), count in batch.counts.items():
                    sums[batch.at, rule, outcome] += count
        if not sums and not uses:
            return
        await what_if.add(connection, uses, now)
        rows = [  # sorted, so that two writers cannot deadlock
            {"at": at, "rule_id": rule, "outcome": outcome, "count": count}
            for (at, rule, outcome), count in sorted(sums.items())
        ]
        for some in slices(rows):
            await connection.execute(upsert(connection, usage_minutes, add=["count"]), some)
        await note_batch(connection, writer, last, now)


async def roll_up(connection: AsyncConnection, now: int) -> int:
    """Sum old usage by minute up to usage by hour, in one transaction, and delete what is past its retention.

    Returns the number of rows that were summed up.
    """
    minutes, hours = usage_minutes.c, usage_hours.c
    old = minutes.at < (now - MINUTES_DAYS * DAY_US) // HOUR_US * HOUR_US
    await connection.execute(upsert(connection, usage_hours, add=["count"], rows=_by_hour().where(old)))
    moved = await connection.execute(delete(usage_minutes).where(old))
    await connection.execute(delete(usage_hours).where(hours.at < now - HOURS_DAYS * DAY_US))
    await connection.execute(delete(usage_writers).where(usage_writers.c.seen_at < now - _WRITERS_DAYS * DAY_US))
    return moved.rowcount


async def page(
    connection: AsyncConnection, filters: Mapping[str, Any], step: str, offset: int, limit: int
) -> tuple[list[dict[str, Any]], int]:
    """Return some usage, the newest first, and the total number of rows.

    `filters` are values of rule_id and outcome, and `since` and `until`, in microseconds since the epoch, for the
    beginning of a minute or an hour.
    """
    if step == "hour":
        by_minute, by_hour = _conditions(usage_minutes, filters, HOUR_US), _conditions(usage_hours, filters, HOUR_US)
        both = union_all(_by_hour().where(*by_minute), select(usage_hours).where(*by_hour)).subquery()
        columns = both.c.at, both.c.rule_id, both.c.outcome
        found = select(*columns, sum_of(both.c.count).label("count")).group_by(*columns)
    else:
        found = select(usage_minutes).where(*_conditions(usage_minutes, filters, MINUTE_US))
    source = found.subquery()
    order = source.c.at.desc(), source.c.rule_id, source.c.outcome
    return await page_of(connection, select(source), order, offset, limit)


async def totals(connection: AsyncConnection, rules: Collection[str], since: int) -> dict[str, dict[str, int]]:
    """Return the decisions of some rules since a moment, by rule and outcome."""
    minutes, named = usage_minutes.c, sorted(rules)
    found: dict[str, dict[str, int]] = {rule: {} for rule in named}
    query = select(minutes.rule_id, minutes.outcome, sum_of(minutes.count)).where(
        among(connection, usage_minutes.c.rule_id, named), minutes.at >= since
    )
    for rule, outcome, count in await connection.execute(query.group_by(minutes.rule_id, minutes.outcome)):
        found[rule][outcome] = count
    return found


class UsagePoint(NamedTuple):
    at: int
    allowed: int
    denied: int
    shadow_allowed: int
    shadow_denied: int
    degraded: int


async def series(
    connection: AsyncConnection, rules: Collection[str], since: int, step_us: int, until: int | None = None
) -> dict[str, list[UsagePoint]]:
    """Return the decisions of some rules in each step since a moment, without steps that have none.

    Steps are multiples of a minute. `REQUESTS` stands for whole requests. Raises UsageError for too many rules.
    """
    if len(rules) > MOST_SERIES:
        raise UsageError(f"series can be requested for at most {MOST_SERIES} rules, not {len(rules)}")
    step = constant(step_us // MINUTE_US * MINUTE_US)
    minutes, named = usage_minutes.c, sorted(rules)
    at = (minutes.at - minutes.at % step).label("at")
    counts = [sum_of(case((minutes.outcome == outcome, minutes.count), else_=0)) for outcome in UsagePoint._fields[1:]]
    conditions = [among(connection, minutes.rule_id, named), minutes.at >= since - since % step_us]
    if until is not None:
        conditions.append(minutes.at < until)
    query = select(minutes.rule_id, at, *counts).where(*conditions)
    found: dict[str, list[UsagePoint]] = {rule: [] for rule in named}
    for rule, *point in await connection.execute(query.group_by(minutes.rule_id, at).order_by(at)):
        found[rule].append(UsagePoint(*point))
    return found


def _conditions(table: Table, filters: Mapping[str, Any], step_us: int) -> list[Any]:
    conditions = [table.c[name] == filters[name] for name in ("rule_id", "outcome") if name in filters]
    whole = {name: -(-filters[name] // step_us) * step_us for name in ("since", "until") if name in filters}
    return [*conditions, table.c.rule_id != REQUESTS, *period(table.c.at, whole)]


def _by_hour() -> Any:
    minutes = usage_minutes.c
    hour = minutes.at - minutes.at % constant(HOUR_US)
    return select(hour.label("at"), minutes.rule_id, minutes.outcome, sum_of(minutes.count).label("count")).group_by(
        hour, minutes.rule_id, minutes.outcome
    )

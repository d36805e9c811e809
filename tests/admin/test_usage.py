"""Usage: the counts of all workers of several services add up in the database, after failures too."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from sqlalchemy import select

from headgate.admin import refusals, usage
from headgate.admin.audit import Actor
from headgate.admin.database import Database
from headgate.admin.keys import AdminKeys, KeyRole
from headgate.admin.tables import AT_ONCE, epoch_us, usage_hours, usage_minutes
from headgate.admin.usage import HOUR_US, MINUTE_US, UsageBatch, UsageWriter
from headgate.config.times import moment_text
from headgate.core.calendar import DAY_US
from headgate.core.errors import UsageError
from headgate.observe.metrics import CALLER_ASKED_AT, DECISION_DURATION, PEEKS, UNLIMITED
from headgate.observe.recorder import ALLOWED, DEGRADED, DENIED, SHADOW_DENIED, RuleSeries
from headgate.observe.workers import CounterFiles
from tests.admin.planes import Admin, on_sqlite, opened
from tests.admin.test_refusals import refusal
from tests.postgres import PostgresServer

NOON = 1_800_000_000_000_000 // DAY_US * DAY_US + 12 * HOUR_US


class Service:
    """The workers of a service with their counters, and the writer of usage."""

    def __init__(self, database: Database, folder: Path, workers: int = 1, **options: Any) -> None:
        self.now = NOON
        folder.mkdir(exist_ok=True)
        self._files = CounterFiles(folder)
        self._workers = [self._files.open(number) for number in range(workers)]
        self._reading = CounterFiles(folder)
        self.writer = UsageWriter(database, self._reading.read, lambda: self.now, **options)

    def decide(self, rule: str, outcome: str, times: int = 1, *, worker: int = 0) -> None:
        series = RuleSeries(self._workers[worker].table)
        for _ in range(times):
            series.count(rule, outcome)

    def restart(self, worker: int, *, anew: bool = False) -> None:
        """Let another worker take its place, and continue its counters or begin anew."""
        file = self._workers[worker]
        if anew:
            for cell in range(len(file.table.cells)):
                file.table.cells[cell] = 0
        file.close()
        self._workers[worker] = self._files.open(worker)

    def note_request(self, caller: str, at: int, *, worker: int = 0) -> None:
        """Record a request of a caller with a key, at a time in microseconds since the epoch."""
        table = self._workers[worker].table
        table.cells[table.cell_of(CALLER_ASKED_AT, caller)] = at * 1000

    async def minute(self) -> None:
        """Let a minute end."""
        self.now += MINUTE_US
        await self.writer.sample()
        await self.writer.write()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._reading.close()


async def found(database: Database, step: str = "minute", **filters: Any) -> list[tuple[Any, ...]]:
    """Return usage as (minutes since noon, rule, outcome, count)."""
    async with database.reading() as connection:
        rows, total = await usage.page(connection, filters, step, 0, 1000)
    assert total == len(rows)
    return [((row["at"] - NOON) // MINUTE_US, row["rule_id"], row["outcome"], row["count"]) for row in rows]


class TestKeys:
    async def test_the_last_use_of_check_keys_is_noted_by_the_minute(self, tmp_path: Path, database: Database) -> None:
        """The latest one, whichever worker and service saw it; what was noted later stays."""
        keys = AdminKeys(database, clock=lambda: NOON)
        names = [(await keys.create(str(role), role, Actor("me"))).key.id for role in KeyRole]
        check, viewer, *_ = names
        one, two = Service(database, tmp_path / "one", 2), Service(database, tmp_path / "two")
        with closing(one), closing(two):
            one.note_request(check, NOON + 5, worker=0)
            one.note_request(check, NOON + 9, worker=1)
            one.note_request(viewer, NOON + 9)
            one.note_request("of a file", NOON + 9)
            two.note_request(check, NOON + 7)
            await asyncio.gather(one.minute(), two.minute())
            await two.minute()
            used = {key.id: key.last_used_at for key in await keys.all()}
            assert used == dict.fromkeys(names) | {check: NOON + 9}
            two.note_request(check, NOON + 11)
            await two.minute()
            assert {key.id: key.last_used_at for key in await keys.all()}[check] == NOON + 11


class TestWriting:
    async def test_decisions_of_two_services_add_up_by_minute(self, tmp_path: Path, database: Database) -> None:
        one, two = Service(database, tmp_path / "one", 2), Service(database, tmp_path / "two")
        with closing(one), closing(two):
            one.decide("orders", ALLOWED, 3, worker=0)
            one.decide("orders", ALLOWED, 4, worker=1)
            two.decide("orders", ALLOWED, 5)
            two.decide("orders", DENIED)
            two.decide("orders", DEGRADED)
            await asyncio.gather(one.minute(), two.minute())
            one.decide("orders", ALLOWED, 2, worker=1)
            one.decide('a "rule", of\\Envoy\n', SHADOW_DENIED)
            await asyncio.gather(one.minute(), two.minute())
            await asyncio.gather(one.minute(), two.minute())  # in which nothing happened
        assert await found(database) == [
            (1, 'a "rule", of\\Envoy\n', "shadow_denied", 1),
            (1, "orders", "allowed", 2),
            (0, "orders", "allowed", 12),
            (0, "orders", "degraded", 1),
            (0, "orders", "denied", 1),
        ]

    @pytest.mark.parametrize("anew", [False, True])
    async def test_a_worker_that_is_replaced_is_counted_once(
        self, tmp_path: Path, database: Database, *, anew: bool
    ) -> None:
        with closing(Service(database, tmp_path / "one", 2)) as service:
            service.decide("orders", ALLOWED, 10)
            await service.minute()
            service.restart(0, anew=anew)
            service.decide("orders", ALLOWED, 3)
            service.decide("orders", ALLOWED, 1, worker=1)
            await service.minute()
        assert await found(database) == [(1, "orders", "allowed", 4), (0, "orders", "allowed", 10)]

    async def test_decisions_during_an_outage_are_written_afterwards(
        self, postgres: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened(postgres.database()) as database:
            with closing(Service(database, tmp_path / "one")) as service:
                service.decide("orders", ALLOWED, 1)
                await service.minute()
                postgres.stop()
                try:
                    for times in (2, 3):
                        service.decide("orders", ALLOWED, times)
                        await service.minute()
                    assert service.writer.waiting == 5
                finally:
                    postgres.start()
                service.decide("orders", ALLOWED, 4)
                await service.minute()
                assert service.writer.waiting == 0
            counts = [(minute, count) for minute, _, _, count in await found(database)]
            assert counts == [(3, 4), (2, 3), (1, 2), (0, 1)]
        assert (
            len([each for each in caplog.messages if each.startswith("usage cannot be written to the database yet")])
            == 1
        )

    async def test_waiting_batches_are_bounded_and_losses_are_logged(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        database = Database(f"sqlite:///{tmp_path}/headgate.db")  # without tables: nothing can be written
        with closing(Service(database, tmp_path / "one", most=6)) as service:
            for times in range(1, 4):
                service.decide("orders", ALLOWED, times)
                service.decide("items", DENIED, times)
                await service.minute()
            assert service.writer.waiting == 10
            await service.writer.finish()  # which logs what would be lost at its end
            await database.upgrade()
            await service.minute()
            assert service.writer.waiting == 0
        assert sum(row[-1] for row in await found(database)) == 10
        await database.close()
        assert "usage was lost: 2 decisions of 2027-01-15T12:00:00Z waited too long" in caplog.messages
        assert "usage was lost: 10 decisions since 2027-01-15T12:01:00Z could not be written" in caplog.messages

    async def test_a_look_that_is_cancelled_takes_nothing(self, tmp_path: Path) -> None:
        async with opened(f"sqlite:///{tmp_path}/headgate.db") as database:
            with closing(Service(database, tmp_path / "one")) as service:
                service.decide("orders", ALLOWED, 3)
                looking = asyncio.ensure_future(service.writer.sample())
                await asyncio.sleep(0)  # it has begun, in its thread
                looking.cancel()
                await asyncio.wait({looking})
                assert looking.cancelled()
                await service.writer.finish()
            assert await found(database) == [(0, "orders", "allowed", 3)]

    async def test_a_batch_that_is_sent_again_is_not_added_again(self, database: Database) -> None:
        batches = [UsageBatch(1, NOON, {("orders", ALLOWED): 5})]
        await usage.add(database, "me", batches, NOON)
        await usage.add(database, "me", batches, NOON)  # the acknowledgement was lost
        batches.append(UsageBatch(2, NOON, {("orders", ALLOWED): 2}))
        await usage.add(database, "me", batches, NOON)
        await usage.add(database, "another", batches[:1], NOON)
        assert await found(database) == [(0, "orders", "allowed", 12)]

    async def test_services_that_write_the_same_rows_at_once_lose_nothing(self, database: Database) -> None:
        counts = {(f"rule{number}", ALLOWED): 1 for number in range(50)}
        for sequence in range(1, 4):
            batch = UsageBatch(sequence, NOON, dict(reversed(counts.items()) if sequence % 2 else counts))
            await asyncio.gather(*(usage.add(database, f"w{each}", [batch], NOON) for each in range(4)))
        assert [row[-1] for row in await found(database)] == [12] * 50


class TestSeries:
    async def test_requests_count_once_however_many_rules_they_met(self, tmp_path: Path, database: Database) -> None:
        with closing(Service(database, tmp_path / "one", 2)) as service:
            table = service._workers[0].table
            table.cells[table.cell_of(DECISION_DURATION, "orders") + 3] += 10
            table.cells[table.cell_of(PEEKS)] += 2
            table.cells[table.cell_of(UNLIMITED, "denied")] += 1
            service.decide("orders", ALLOWED, 6)
            service.decide("items", ALLOWED, 6)
            service.decide("orders", DENIED, 2, worker=1)
            await service.minute()
        async with database.reading() as connection:
            found = await usage.series(connection, [usage.REQUESTS, "orders"], NOON, MINUTE_US)
        assert found[usage.REQUESTS] == [(NOON, 5, 3, 0, 0, 0)]
        assert found["orders"] == [(NOON, 6, 2, 0, 0, 0)]

    async def test_steps_sum_minutes_up_to_a_moment(self, database: Database) -> None:
        counts = {("orders", ALLOWED): 1, ("orders", SHADOW_DENIED): 2}
        batches = [UsageBatch(1 + minute, NOON + minute * MINUTE_US, counts) for minute in range(10)]
        await usage.add(database, "me", batches, NOON)
        async with database.reading() as connection:
            found = await usage.series(connection, ["orders", "items"], NOON, 5 * MINUTE_US)
            assert found == {
                "orders": [(NOON, 5, 0, 0, 10, 0), (NOON + 5 * MINUTE_US, 5, 0, 0, 10, 0)],
                "items": [],
            }
            end = NOON + 5 * MINUTE_US
            found = await usage.series(connection, ["orders"], NOON, 5 * MINUTE_US, end)
            assert found == {"orders": [(NOON, 5, 0, 0, 10, 0)]}
            with pytest.raises(UsageError, match="at most 50 rules, not 51"):
                await usage.series(connection, [str(number) for number in range(51)], NOON, MINUTE_US)

    async def test_the_console_gets_series_sums_and_refused_callers(self, admin: Admin, database: Database) -> None:
        now = epoch_us()
        counts = {("orders-user", ALLOWED): 30, ("orders-user", DENIED): 10}
        await usage.add(database, "me", [UsageBatch(1, now - now % MINUTE_US, counts)], now)
        await refusals.add(database, "me too", 1, [refusal("42", now, rule="orders-user", count=7)], now)
        await refusals.add(database, "me too", 2, [refusal("43", now, rule="orders-user")], now)
        await refusals.add(database, "me too", 3, [refusal("44", now, rule="all-ip", count=9)], now)
        reports = admin.service
        found = await reports.series(["orders-user", "all-ip"])
        (point,) = found["rules"]["orders-user"]
        assert (point["at"], point["allowed"], point["denied"]) == (moment_text(now - now % MINUTE_US), 30, 10)
        assert found["totals"]["orders-user"]["refused_share"] == 0.25
        assert (found["rules"]["all-ip"], found["totals"]["all-ip"]["allowed"]) == ([], 0)
        refused = (await reports.principals("orders-user"))["refused_last_day"]
        assert [each["count"] for each in refused] == [7, 1]


class TestRollingUp:
    async def test_minutes_become_hours_after_30_days_and_hours_go_after_a_year(self, database: Database) -> None:
        counts = {("orders", ALLOWED): 1, ("orders", DENIED): 2}
        batches = [UsageBatch(1 + minute, NOON + minute * MINUTE_US, counts) for minute in range(90)]
        await usage.add(database, "me", batches, NOON)

        async def roll_up(now: int) -> tuple[int, int]:
            """Roll up twice, as two services may; return the numbers of minutes and hours."""
            for _ in range(2):
                async with database.exclusively() as connection:
                    await usage.roll_up(connection, now)
            async with database.reading() as connection:
                of_rules = usage_minutes.c.rule_id != usage.REQUESTS, usage_hours.c.rule_id != usage.REQUESTS
                minutes = (await connection.execute(select(usage_minutes).where(of_rules[0]))).all()
                hours = (await connection.execute(select(usage_hours).where(of_rules[1]))).all()
            return len(minutes), len(hours)

        by_hour = [
            (60, "orders", "allowed", 30),
            (60, "orders", "denied", 60),
            (0, "orders", "allowed", 60),
            (0, "orders", "denied", 120),
        ]
        assert await found(database, "hour") == by_hour
        assert await roll_up(NOON + 30 * DAY_US) == (180, 0)
        assert await roll_up(NOON + 30 * DAY_US + HOUR_US) == (60, 2)
        assert await found(database, "hour") == by_hour
        assert await roll_up(NOON + 30 * DAY_US + 2 * HOUR_US) == (0, 4)
        assert await found(database, "hour") == by_hour
        late = UsageBatch(91, NOON, counts)  # it comes when its hour is rolled up already
        await usage.add(database, "me", [late], NOON)
        assert await roll_up(NOON + 31 * DAY_US) == (0, 4)
        assert (await found(database, "hour"))[2:] == [
            (0, "orders", "allowed", 61),
            (0, "orders", "denied", 122),
        ]
        assert await roll_up(NOON + 365 * DAY_US) == (0, 4)
        assert await roll_up(NOON + 365 * DAY_US + 1) == (0, 2)
        assert await roll_up(NOON + 366 * DAY_US) == (0, 0)


class TestAsking:
    async def test_by_rule_outcome_and_time_in_pages(self, database: Database) -> None:
        counts = {("orders", ALLOWED): 1, ("orders", DENIED): 2, ("items", ALLOWED): 3}
        batches = [UsageBatch(1 + hour, NOON + hour * HOUR_US, counts) for hour in range(3)]
        await usage.add(database, "me", batches, NOON)
        assert await found(database, rule_id="items", outcome="denied") == []
        assert await found(database, rule_id="items", since=NOON + 1, until=NOON + 2 * HOUR_US) == [
            (60, "items", "allowed", 3)
        ]
        assert await found(database, "hour", outcome="denied", since=NOON + HOUR_US) == [
            (120, "orders", "denied", 2),
            (60, "orders", "denied", 2),
        ]
        async with database.reading() as connection:
            rows, total = await usage.page(connection, {}, "hour", 4, 2)
        assert total == 9
        assert [(row["rule_id"], row["outcome"]) for row in rows] == [
            ("orders", "allowed"),
            ("orders", "denied"),
        ]

    @on_sqlite
    async def test_viewers_read_it_over_http(self, admin: Admin, database: Database) -> None:
        now = time.time_ns() // 1000
        minute = now - now % MINUTE_US - 5 * MINUTE_US
        batches = [UsageBatch(1 + each, minute - each * DAY_US, {("team/a", ALLOWED): 7}) for each in range(3)]
        await usage.add(database, "me", batches, now)

        async def ask(**query: Any) -> Any:
            return await admin.ask("GET", f"/api/v1/usage?{urlencode(query)}", role="viewer")

        item = {"at": moment_text(minute), "rule_id": "team/a", "outcome": "allowed", "count": 7}
        assert (await ask()).json() == {"items": [item], "total": 1, "next": None}  # of the last day
        assert (await ask(rule_id="team/a", outcome="allowed")).json()["items"] == [item]
        assert (await ask(step="hour")).json()["total"] == 3
        paged = (await ask(step="hour", limit=2, until=now + HOUR_US)).json()
        assert (len(paged["items"]), paged["next"]) == (2, 2)
        for wrong in ({"step": "day"}, {"outcome": "maybe"}, {"since": "yesterday"}, {"rule_id": "\0"}):
            answer = await ask(**wrong)
            assert answer.status_code == 400, wrong
            assert answer.headers["content-type"] == "application/problem+json"

    async def test_a_dry_run_of_a_file_has_the_usage_of_the_rules_it_would_change(
        self, admin: Admin, database: Database
    ) -> None:
        now = time.time_ns() // 1000
        counts = {("orders-user", ALLOWED): 7, ("orders-user", DENIED): 2, ("all-ip", ALLOWED): 1}
        batches = [UsageBatch(1 + each, now - each * HOUR_US * 10, counts) for each in range(4)]
        await usage.add(database, "me", batches, now)
        rules = [{"id": "orders-user", "limit": 1, "window": "1m"}, {"id": "new", "limit": 1, "window": "1m"}]
        document = {"version": 1, "tiers": {}, "rules": rules}
        for query, said in (("?dry_run=true", {"allowed": 21, "denied": 6}), ("", None)):
            answer = await admin.ask("POST", f"/api/v1/apply{query}", document)
            changes = {(each["kind"], each["id"]): each.get("last_day") for each in answer.json()["changes"]}
            assert changes["rule", "orders-user"] == said
            assert changes["rule", "new"] == (None if said is None else {})
            assert changes["tier", "gold"] is None

    async def test_more_than_fits_into_a_transaction_is_written_in_several(
        self, tmp_path: Path, database: Database
    ) -> None:
        with closing(Service(database, tmp_path / "one")) as service:
            for number in range(3):
                service.writer._waiting.append(
                    UsageBatch(
                        1 + number,
                        NOON + number * MINUTE_US,
                        {(f"rule{each}", ALLOWED): 1 for each in range(AT_ONCE // 2 + 1)},
                    )
                )
            await service.writer.write()
            assert service.writer.waiting == 0
        async with database.reading() as connection:
            _, total = await usage.page(connection, {}, "minute", 0, 1)
        assert total == 3 * (AT_ONCE // 2 + 1)

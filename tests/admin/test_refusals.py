"""The log of refusals, on both databases and in memory: found by any name of a caller, bounded, and fair."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from headgate.admin import refusals
from headgate.admin.database import Database
from headgate.admin.refusals import RefusalLog, prune
from headgate.core.calendar import DAY_US
from headgate.observe.logs import Principals
from headgate.observe.refusals import Refusal, shown_as

HOUR_US = 3_600_000_000
NOW = 100 * DAY_US + HOUR_US
shown = Principals().shown


def refusal(user: str, at: int = NOW, *, rule: str = "orders", count: int = 1, ip: str = "") -> Refusal:
    who = shown(user)
    return Refusal(at, rule, who, who, "", ip and shown(ip), "/orders/**", "GET", "check", 5, 5, 1_500_000, "", count)


class Node:
    """A service that has refused something."""

    def __init__(self, database: Database | None) -> None:
        self.new: list[Refusal] = []
        self.log = RefusalLog(database, self._taken, lambda: NOW)

    def _taken(self) -> list[Refusal]:
        new, self.new = self.new, []
        return new

    async def writes(self, *new: Refusal) -> None:
        self.new += new
        await self.log.collect()

    async def has(self, *, step: str = "each", rule: str = "", **who: str) -> list[dict[str, Any]]:
        filters: dict[str, Any] = {name: shown_as(name, value) for name, value in who.items()}
        if rule:
            filters["rule_id"] = rule
        return (await self.log.page(filters, step, 0, 1000))[0]


def counts(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["rule_id"], row["count"]) for row in rows]


async def test_nodes_write_and_any_of_them_finds_a_caller_by_name_or_digest(database: Database) -> None:
    one, other = Node(database), Node(database)
    await one.writes(refusal("42", count=7), refusal("7", ip="192.0.2.1"))
    await other.writes(refusal("42", NOW + 1, rule="search"))
    await other.writes(refusal("42", NOW + 2, ip="2001:db8::/64"))
    for node in (one, other):
        assert counts(await node.has(user="42")) == [("orders", 1), ("search", 1), ("orders", 7)]
        assert counts(await node.has(user=shown("42"), rule="orders")) == [("orders", 1), ("orders", 7)]
        assert counts(await node.has(principal="7")) == [("orders", 1)]
        assert counts(await node.has(ip="2001:db8::9")) == [("orders", 1)]
        assert counts(await node.has(step="hour", user="42")) == [("orders", 8), ("search", 1)]
        assert await node.has(user="nobody") == []


async def test_without_a_database_the_node_keeps_its_own() -> None:
    node = Node(None)
    await node.writes(*(refusal(str(number), NOW + number) for number in range(refusals.MOST_WAITING + 9)))
    node.new.append(refusal("42", NOW + DAY_US, count=3))
    node.new.append(refusal("42", NOW - DAY_US - 1))
    assert counts(await node.has(user="42")) == [("orders", 3), ("orders", 1)]
    assert counts(await node.has(user="42", rule="search")) == []
    assert sum(count for _, count in counts(await node.has(step="hour", user="42"))) == 4
    assert await node.has(user="0") == []


async def test_what_waits_for_the_database_is_bounded_and_written_once(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(database)
    async with database.writing() as connection:  # nothing can be written
        await connection.execute(text("ALTER TABLE refusals RENAME TO others"))
    await node.writes(*(refusal(str(number)) for number in range(1000)))
    await node.writes(*(refusal(str(number)) for number in range(refusals.MOST_WAITING + 5)))
    async with database.writing() as connection:
        await connection.execute(text("ALTER TABLE others RENAME TO refusals"))
    await node.writes()
    await node.writes()
    rows, total = await node.log.page({}, "each", 0, 1)
    assert (len(rows), total) == (1, refusals.MOST_WAITING + 1000)
    assert [line for line in caplog.messages if "refusals" in line and "lost" in line] == [
        "5 refusals were lost: the database was unavailable for too long"
    ]


async def test_retention_is_a_day_and_sums_stay_as_long_as_the_audit_trail(database: Database) -> None:
    node = Node(database)
    await node.writes(refusal("old", NOW - DAY_US - 1), refusal("older", NOW - 90 * DAY_US - HOUR_US), refusal("42"))
    async with database.exclusively() as connection:
        await prune(connection, NOW, 90)
    assert len(await node.has()) == 1
    assert len(await node.has(step="hour")) == 2
    assert len(await node.has(step="hour", user="old")) == 1


async def test_above_the_bound_those_with_most_refusals_lose_them_first(
    monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    monkeypatch.setattr(refusals, "MOST_ROWS", 100)
    monkeypatch.setattr(refusals, "PRUNED_AFTER", 400)
    node = Node(database)
    await node.writes(refusal("42"))
    await node.writes(*(refusal("flood", NOW + number) for number in range(900)))
    assert len(await node.has(user="42")) == 1
    assert [row["at"] for row in await node.has(user="flood")] == [NOW + 899 - each for each in range(64)]
    assert counts(await node.has(step="hour", user="flood")) == [("orders", 900)]
    await node.writes(*(refusal(f"each {number}", NOW + HOUR_US * number) for number in range(900)))
    assert len(await node.has()) == 100
    assert len(await node.has(step="hour")) == 100


async def test_a_page_has_the_total(database: Database) -> None:
    node = Node(database)
    await node.writes(*(refusal("42", NOW + number) for number in range(5)))
    rows, total = await node.log.page({"since": NOW + 1, "until": NOW + 4}, "each", 1, 1)
    assert ([row["at"] for row in rows], total) == ([NOW + 2], 3)

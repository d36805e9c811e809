"""Problems that the database shows, on both databases."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from headgate.admin import findings, usage
from headgate.admin.audit import Actor
from headgate.admin.catalog import Catalog
from headgate.admin.database import Database
from headgate.admin.keys import AdminKeys, KeyRole
from headgate.admin.overview import Attention
from headgate.admin.tables import audit
from headgate.admin.usage import MINUTE_US, UsageBatch
from headgate.config.times import moment_text
from headgate.core.calendar import DAY_US
from headgate.observe.recorder import ALLOWED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED
from headgate.policy.loading import from_data

ME = Actor("me")
NOW = 1_800_000_000_000_000 // DAY_US * DAY_US + DAY_US // 2
RULE = {"endpoint": "/orders", "limit": 5, "window": "1m"}


class Known:
    """A database with usage, and the problems in it."""

    def __init__(self, database: Database) -> None:
        self.database, self.catalog = database, Catalog(database, clock=lambda: NOW - 8 * DAY_US)
        self._sequence = 0

    async def has_rules(self, *rules: dict[str, Any], **more: Any) -> None:
        await self.catalog.apply(from_data({"version": 1, "rules": list(rules), **more}), ME)

    async def decided(self, rule: str, ago_us: int, **outcomes: int) -> None:
        self._sequence += 1
        counts = {(name, outcome): count for outcome, count in outcomes.items() for name in (rule, usage.REQUESTS)}
        batch = UsageBatch(self._sequence, (NOW - ago_us) // MINUTE_US * MINUTE_US, counts)
        await usage.add(self.database, "me", [batch], NOW)

    async def find_problems(self, *refusing: str) -> dict[str, Attention]:
        """Return the problems by kind."""
        rules = from_data((await self.catalog.document()).document).rules
        async with self.database.reading() as connection:
            found = await findings.find_problems(connection, rules, refusing, NOW)
        assert all(each.what and each.why and each.do and each.link.startswith("/") for each in found)
        return {each.kind + (f" {each.link}" if each.kind == "refusals_risen" else ""): each for each in found}


@pytest.fixture
def known(database: Database) -> Known:
    return Known(database)


async def test_refusals_that_have_risen_since_yesterday_are_named_with_their_rule(known: Known) -> None:
    await known.has_rules({"id": "orders", **RULE}, {"id": "steady", **RULE})
    for rule, now, before in (("orders", 60, 5), ("steady", 30, 29)):
        await known.decided(rule, 5 * MINUTE_US, **{ALLOWED: 100 - now, DENIED: now})
        await known.decided(rule, DAY_US + 5 * MINUTE_US, **{ALLOWED: 100 - before, DENIED: before})
    found = await known.find_problems("orders", "steady")
    assert found.keys() == {"refusals_risen /", "refusals_risen /rule?id=orders"}
    assert found["refusals_risen /rule?id=orders"].what == (
        "Rule orders refuses 60.0% of requests, up from 5.0% at this time yesterday"
    )


async def test_shadows_are_ready_or_harsh_by_what_they_met_in_a_day(known: Known) -> None:
    names = ("ready", "harsh", "mild", "rare")
    await known.has_rules(*({"id": name, **RULE, "shadow": True} for name in names))
    for name, denied, allowed in (("ready", 0, 100), ("harsh", 30, 70), ("mild", 2, 98), ("rare", 0, 9)):
        await known.decided(name, 60 * MINUTE_US, **{SHADOW_ALLOWED: allowed, SHADOW_DENIED: denied})
    found = await known.find_problems()
    assert found["shadow_ready"].what == "Shadow rule ready would refuse nothing"
    assert found["shadow_harsh"].what == "Shadow rule harsh would refuse 30% of its requests"
    assert found["shadow_harsh"].link == "/rule?id=harsh"


async def test_rules_that_meet_no_request_are_unused_once_a_week_is_known(known: Known) -> None:
    await known.has_rules(*({"id": name, **RULE, "enabled": name != "off"} for name in ("used", "dead", "off")))
    await known.decided("used", DAY_US, **{ALLOWED: 1})
    assert "unused_rules" not in await known.find_problems(), "only a day is known"
    await known.decided("used", 8 * DAY_US, **{ALLOWED: 1})
    assert (await known.find_problems())["unused_rules"].what == "Rule dead matched no request for 7 days"


async def test_overrides_and_keys_that_end_soon_are_named_and_counted(known: Known) -> None:
    users = {
        name: {"overrides": {"orders": {"limit": 9, "until": moment_text(NOW + ends)}}}
        for name, ends in (("ann", DAY_US // 2), ("bob", DAY_US // 3), ("eve", 2 * DAY_US))
    }
    await known.has_rules({"id": "orders", **RULE}, users=users)
    keys = AdminKeys(known.database, clock=lambda: NOW)
    for name, ends in (("rotated", DAY_US), ("bot", 2 * DAY_US), ("late", 30 * DAY_US)):
        await keys.create(name, KeyRole.VIEWER, ME, expires_at=NOW + ends)
    await keys.create("rotated", KeyRole.VIEWER, ME)
    found = await known.find_problems()
    assert found["overrides_ending"].what.startswith("The override of bob for rule orders ends at ")
    assert found["overrides_ending"].what.endswith(", and 1 more within a day")
    assert found["overrides_ending"].link == "/who?q=bob"
    assert found["keys_expiring"].what.startswith("The API key bot (")
    assert "more" not in found["keys_expiring"].what


async def test_an_audit_trail_that_was_changed_from_outside_is_critical(known: Known) -> None:
    await known.has_rules({"id": "orders", **RULE})
    async with known.database.reading() as connection:
        assert await findings.audit_fault(connection) == []
    async with known.database.writing() as connection:
        await connection.execute(update(audit).values(actor="somebody else"))
    async with known.database.reading() as connection:
        (fault,) = await findings.audit_fault(connection)
    assert (fault.severity, fault.kind) == ("critical", "audit")


async def test_nothing_is_wrong_with_an_empty_database(known: Known) -> None:
    assert await known.find_problems("gone") == {}

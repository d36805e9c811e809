"""Reports for operators: nodes, the audit trail, usage, refusals, hot keys, and explanations of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

from headgate.admin import audit, usage
from headgate.admin.database import Database
from headgate.admin.follower import ARRIVAL_EVERY, NodeStatus, nodes_of
from headgate.admin.live import LiveFigures
from headgate.admin.objects import ResultPage, UnknownObject
from headgate.admin.overview import overview, usage_point, usage_total
from headgate.admin.refusals import RefusalLog
from headgate.admin.rule_catalogs import RuleCatalog
from headgate.admin.tables import epoch_us
from headgate.config.times import moment_text
from headgate.core.calendar import DAY_US
from headgate.engine import AsyncEngine
from headgate.engine.ruling import explained_data
from headgate.policy.request import Request


class Reports:
    """Reports from a database and an engine, as JSON. `hot_keys` returns the hot keys."""

    def __init__(
        self,
        rules: RuleCatalog,
        engine: AsyncEngine,
        database: Database | None,
        hot_keys: Callable[[], bytes],
        *,
        refusals: RefusalLog,
        live: LiveFigures,
    ) -> None:
        self._rules, self._engine, self._database = rules, engine, database
        self._refusals, self.hot_keys, self._live = refusals, hot_keys, live

    async def nodes(self) -> dict[str, Any]:
        """Return the services that follow the database, and the revision that each runs."""
        found = [] if self._database is None else await nodes_of(self._database, epoch_us())
        shown = [
            {**node._asdict(), "started_at": moment_text(node.started_at), "seen_at": moment_text(node.seen_at)}
            for node in found
        ]
        return {"revision": await self._rules.revision(), "items": shown}

    async def live(self) -> dict[str, Any]:
        return overview(await self._live.fleet())

    async def behind(self, patience: float) -> tuple[int, list[NodeStatus]]:
        """Return the revision in force, and the nodes that do not run it after `patience` seconds."""
        revision, deadline = await self._rules.revision(), asyncio.get_running_loop().time() + patience
        while True:
            found = [] if self._database is None else await nodes_of(self._database, epoch_us())
            late = [node for node in found if node.revision < revision]
            if not late or asyncio.get_running_loop().time() >= deadline:
                return revision, late
            await asyncio.sleep(ARRIVAL_EVERY)

    async def audit(self, filters: Mapping[str, Any], offset: int, limit: int) -> ResultPage:
        """Return entries of the audit trail, the newest first."""
        async with kept(self._database).reading() as connection:
            rows, total = await audit.page(connection, filters, offset, limit)
        return ResultPage.of([{**row, "at": moment_text(row["at"])} for row in rows], total, offset + limit)

    async def verify_audit(self, contains: str = "") -> dict[str, Any]:
        async with kept(self._database).reading() as connection:
            chain = await audit.verify(connection, contains)
        return {"intact": not chain.fault, **chain._asdict()}

    async def usage(self, filters: Mapping[str, Any], step: str, offset: int, limit: int) -> ResultPage:
        """Return decisions by rule and outcome in each minute or hour, the newest first.

        Without `since` in `filters`: of the last day by minute, or the last 30 days by hour.
        """
        lately = epoch_us() - (1 if step == "minute" else usage.MINUTES_DAYS) * DAY_US
        async with kept(self._database).reading() as connection:
            rows, total = await usage.page(connection, {"since": lately, **filters}, step, offset, limit)
        return ResultPage.of([{**row, "at": moment_text(row["at"])} for row in rows], total, offset + limit)

    async def series(self, rules: Collection[str], since: int | None = None, step_seconds: int = 60) -> dict[str, Any]:
        """Return decisions of some rules in each step since a moment, by default in the last hour, and their sums.

        Steps are whole minutes. Steps without decisions are omitted.
        """
        since = epoch_us() - usage.HOUR_US if since is None else since
        async with kept(self._database).reading() as connection:
            found = await usage.series(connection, rules, since, step_seconds * 1_000_000)
        return {
            "step_seconds": step_seconds,
            "since": moment_text(since),
            "rules": {rule: [usage_point(each) for each in points] for rule, points in found.items()},
            "totals": {rule: usage_total(points) for rule, points in found.items()},
        }

    async def principals(self, rule: str, limit: int = 10) -> dict[str, Any]:
        """Return a rule's hot keys at present, those that it would refuse, and those refused most in the last day."""
        fleet = overview(await self._live.fleet())
        return {
            "hot": [each for each in fleet["hot_keys"] if each["rule_id"] == rule][:limit],
            "would_refuse": [each for each in fleet["shadow_refused_keys"] if each["rule_id"] == rule][:limit],
            "refused_last_day": await self._refusals.most_refused(epoch_us() - DAY_US, limit, rule),
        }

    async def refusals(self, filters: Mapping[str, Any], step: str, offset: int, limit: int) -> ResultPage:
        """Return the last refusals, or their number in each hour, the newest first."""
        rows, total = await self._refusals.page(filters, step, offset, limit)
        items = []
        for row in rows:
            item = {name: value for name, value in row.items() if name not in {"id", "retry_after_us"}}
            if step == "each":
                retry_after_us = row["retry_after_us"]
                item["retry_after"] = None if retry_after_us is None else retry_after_us / 1_000_000
            items.append({**item, "at": moment_text(row["at"])})
        return ResultPage.of(items, total, offset + limit)

    async def most_refused(self, since: int, most: int) -> list[dict[str, Any]]:
        """Return the principals refused most since an hour, with the rule, its dimension and the count."""
        return [self._with_dimension(each) for each in await self._refusals.most_refused(since, most)]

    async def hot(self) -> list[dict[str, Any]]:
        """Return the hot keys at present, with the rule, its dimension and the rate."""
        return [self._with_dimension({**each, "principal": each["key"]}) for each in (await self.live())["hot_keys"]]

    def _with_dimension(self, row: dict[str, Any]) -> dict[str, Any]:
        rule = self._engine.policy.rules.get(row["rule_id"])
        return {**row, "dimension": rule.dimension if rule else ""}

    async def explain(self, request: Request) -> dict[str, Any]:
        """Return for every rule whether it applies and why, its state, and its decision."""
        return explained_data(await self._engine.explain(request))


def kept(database: Database | None) -> Database:
    """Return the database. Raises UnknownObject if there is none."""
    if database is None:
        raise UnknownObject("the audit trail and usage need a database, and the rules come from a file")
    return database

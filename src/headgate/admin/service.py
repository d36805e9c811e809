"""The operations of the admin plane, shared by the REST API and the console.

Rules in a database can be changed. Rules in a file are read-only: a change fails with an error that names the file.
"""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from headgate.admin import audit, revisions, usage, what_if
from headgate.admin.audit import Actor
from headgate.admin.catalog import RuleCatalog, paths_in_body
from headgate.admin.database import Database
from headgate.admin.follower import ARRIVAL_EVERY, NodeStatus, nodes_of
from headgate.admin.keys import AdminKeys, ApiKey, Consumer, ConsumerKey, Consumers, NewKey
from headgate.admin.live import LiveFigures
from headgate.admin.objects import (
    ObjectKind,
    Operation,
    ResultPage,
    Stored,
    UnknownObject,
    revision_number,
)
from headgate.admin.overview import overview, usage_point, usage_total
from headgate.admin.refusals import RefusalLog
from headgate.admin.tables import epoch_us
from headgate.admin.users import Users
from headgate.config.times import moment_text
from headgate.core.calendar import DAY_US
from headgate.engine import AsyncEngine
from headgate.engine.ruling import explanation_data
from headgate.observe.principal_use import measured_window
from headgate.policy.diff import compare
from headgate.policy.dumping import to_data
from headgate.policy.loading import from_data, read_apart
from headgate.policy.model import Ruleset
from headgate.policy.request import Request

_WEEK_US = 7 * DAY_US
_MOST_TIERS = 1000
_DRY_RUN = Actor("")
SORTS = ("position", "id", "updated_at", "-id", "-updated_at")


class AdminService:
    """Operations on whole files and revisions, estimates and reports; `rules`, `users` and others have the rest.

    `engine` reads and resets limits. Without a `database`, the rules are in a file. `hot_keys` returns JSON.
    """

    def __init__(
        self,
        rules: RuleCatalog,
        engine: AsyncEngine,
        keys: AdminKeys,
        *,
        database: Database | None = None,
        hot_keys: Callable[[], bytes] = lambda: b"[]",
        refusals: RefusalLog | None = None,
        live: LiveFigures | None = None,
    ) -> None:
        self.rules, self.keys, self.consumers = rules, keys, Consumers(database)
        self.users = Users(rules, engine, database)
        self._engine, self._database, self.hot_keys = engine, database, hot_keys
        self._refusals, self._live = refusals or RefusalLog(database, list), live or LiveFigures(database)

    async def get(self, kind: ObjectKind, name: str) -> Stored:
        stored = await self.rules.get(kind, name)
        if stored is None:
            raise UnknownObject(f"{kind} {name!r:.200} does not exist")
        return stored

    # Many rules at once, and previews

    async def apply(
        self,
        text: str,
        actor: Actor,
        expected: int | None = None,
        *,
        dry_run: bool,
        replace_users: bool = False,
        most: int | None = None,
    ) -> dict[str, Any]:
        """Put a rules file in force; return the changes, and with `dry_run` the usage that they affect.

        See `Catalog.apply` for what remains unchanged, and `Changed.to_data` for `most`.
        """
        with _without_garbage_collection():
            loaded = await asyncio.to_thread(read_apart, text)
            wanted, sections = loaded.ruleset, loaded.sections
            present = (await self.rules.document()).document if dry_run else {}
            changed = await self.rules.apply(
                wanted, actor, dry_run=dry_run, expected=expected, sections=sections, replace_users=replace_users
            )
            result = changed.to_data(dry_run=dry_run, most=most)
            if dry_run and self._database is not None:
                kept = {name: present[name] for name in present.keys() - sections - {"version", "users"}}
                data = {**to_data(wanted), "users": {}, **kept}
                wanted = await asyncio.to_thread(from_data, data)
                rules = {each.subject for each in changed.entries if each.kind == ObjectKind.RULE}
                await self._add_effects(self._database, result["changes"], rules, present, wanted)
        return result

    async def revisions(self, offset: int, limit: int) -> ResultPage:
        """Return the revisions that the audit trail still has, the newest first."""
        async with _kept(self._database).reading() as connection:
            newest = await revision_number(connection)
            found, total = await revisions.revisions_of(connection, newest, offset, limit)
        return ResultPage.of(found, total, offset + limit)

    async def revision(self, number: int, offset: int, limit: int) -> dict[str, Any]:
        """Return a revision with some of its changes. Raises UnknownObject."""
        async with _kept(self._database).reading() as connection:
            found = await revisions.revision_of(connection, number, await revision_number(connection))
            items = await revisions.changes_of(connection, number, offset, limit)
        return {**found, **ResultPage.of(items, found["changes"], offset + limit)._asdict()}

    async def undo(
        self, number: int, actor: Actor, expected: int | None, *, force: bool, dry_run: bool, limit: int
    ) -> dict[str, Any]:
        """Undo a revision; return the first `limit` changes. Raises as `Catalog.undo` does."""
        with _without_garbage_collection():
            done = await self.rules.undo(number, actor, expected, force=force, dry_run=dry_run)
        return {"undone": number, **done.to_data(dry_run=dry_run, most=limit)}

    async def _add_effects(
        self,
        database: Database,
        differences: list[dict[str, Any]],
        changed: set[str],
        present: dict[str, Any],
        wanted: Ruleset,
    ) -> None:
        """Add to changes of rules and tiers their usage, and what the new limits would have refused.

        Limits in tiers of a rule that is `changed` itself are reported with the rule.
        """
        before = await asyncio.to_thread(from_data, {**present, "users": {}})
        limits: defaultdict[tuple[str, str], list[what_if.LimitChange]] = defaultdict(list)
        for (tier, rule), found in what_if.changes_between(before, wanted).items():
            limits[ObjectKind.RULE, rule] += found
            if rule not in changed:
                limits[ObjectKind.TIER, tier] += found
        quotas = {rule.id: rule.quotas for rule in wanted.rules}
        now = epoch_us()
        async with database.reading() as connection:
            rules = {each["id"] for each in differences if each["kind"] == ObjectKind.RULE}
            used = await usage.totals(connection, rules, now - DAY_US)
            for each in differences:
                if each["kind"] == ObjectKind.RULE:
                    each["last_day"] = used[each["id"]]
                    each["not_counted"] = what_if.not_counted(quotas.get(each["id"], ()))
                if each["kind"] in {ObjectKind.RULE, ObjectKind.TIER}:
                    each["what_if"] = [
                        self._with_hot_keys(await change.estimate(connection, now - _WEEK_US, now))
                        for change in dict.fromkeys(limits[each["kind"], each["id"]])
                    ]

    async def try_rule(self, name: str, body: Any) -> dict[str, Any]:
        """Return what a rule with this body would change, and would have refused in the last day and week.

        Raises as `Catalog.change` does.
        """
        with paths_in_body(ObjectKind.RULE, name):
            done = await self.rules.change([Operation(ObjectKind.RULE, name, body)], _DRY_RUN, dry_run=True)
        entry = next((each for each in done.entries if (each.kind, each.subject) == (ObjectKind.RULE, name)), None)
        if entry is None:
            return {"before": body, "after": body}
        result: dict[str, Any] = {"before": entry.before, "after": entry.after}
        if entry.before is None or entry.after is None or self._database is None:
            return result
        found = (await self.rules.page(ObjectKind.TIER, {}, "id", 0, _MOST_TIERS)).items
        tiers = {tier["id"]: {name: tier["value"][name]} for tier in found if name in tier["value"]}
        old, new = [
            from_data({"version": 1, "rules": [{**each, "replaces": []}], "tiers": tiers})
            for each in (entry.before, entry.after)
        ]
        changed = next(iter(compare(old, new).changed), None)
        result |= {"state": str(changed.state), "because": changed.because} if changed else {}
        known = {measured_window(quota) for quota in old.rules[0].quotas} - {0}
        quotas = [quota for quota in new.rules[0].quotas if measured_window(quota) not in known]
        result["not_comparable"] = [str(quota) for quota in quotas if quota not in old.rules[0].quotas]
        limits = [(tier, each) for (tier, _), some in what_if.changes_between(old, new).items() for each in some]
        now, spans = epoch_us(), {"day": DAY_US, "week": _WEEK_US}
        async with self._database.reading() as connection:
            for name_of_span, length in spans.items():
                used = await usage.totals(connection, [name], now - length)
                result[name_of_span] = {outcome: used[name].get(outcome, 0) for outcome in usage.OUTCOMES}
            result["what_if"] = [
                {
                    "tier": tier,
                    **{span: await each.estimate(connection, now - length, now) for span, length in spans.items()},
                }
                for tier, each in limits
            ]
        return result

    async def what_if(self, change: what_if.LimitChange, since: int | None, until: int | None) -> dict[str, Any]:
        """Return what another limit of a rule would have refused, by default in the last 7 days."""
        until = epoch_us() if until is None else until
        since = until - _WEEK_US if since is None else since
        async with _kept(self._database).reading() as connection:
            result = await change.estimate(connection, since, until)
        return self._with_hot_keys(result)

    def _with_hot_keys(self, result: dict[str, Any]) -> dict[str, Any]:
        """Add the hot keys of this service that the limit would refuse at present, with their rates."""
        report = msgspec.json.decode(self.hot_keys())
        hot = report.get("hot", []) if isinstance(report, dict) else []
        above = [
            {"key": each["key"], "per_second": each["per_second"]}
            for each in hot
            if each["rule"] == result["rule_id"] and each["per_second"] * result["window_seconds"] > result["limit"]
        ]
        return {**result, "hot_keys": above}

    # Reports

    async def nodes(self) -> dict[str, Any]:
        found = [] if self._database is None else await nodes_of(self._database, epoch_us())
        shown = [
            {**node._asdict(), "started_at": moment_text(node.started_at), "seen_at": moment_text(node.seen_at)}
            for node in found
        ]
        return {"revision": await self.rules.revision(), "items": shown}

    async def live(self) -> dict[str, Any]:
        return overview(await self._live.fleet())

    async def behind(self, patience: float) -> tuple[int, list[NodeStatus]]:
        """Return the revision in force, and the nodes that do not run it after `patience` seconds."""
        revision, deadline = await self.rules.revision(), asyncio.get_running_loop().time() + patience
        while True:
            found = [] if self._database is None else await nodes_of(self._database, epoch_us())
            late = [node for node in found if node.revision < revision]
            if not late or asyncio.get_running_loop().time() >= deadline:
                return revision, late
            await asyncio.sleep(ARRIVAL_EVERY)

    async def audit(self, filters: Mapping[str, Any], offset: int, limit: int) -> ResultPage:
        """Return entries of the audit trail, the newest first."""
        async with _kept(self._database).reading() as connection:
            rows, total = await audit.page(connection, filters, offset, limit)
        return ResultPage.of([{**row, "at": moment_text(row["at"])} for row in rows], total, offset + limit)

    async def verify_audit(self, contains: str = "") -> dict[str, Any]:
        async with _kept(self._database).reading() as connection:
            chain = await audit.verify(connection, contains)
        return {"intact": not chain.fault, **chain._asdict()}

    async def usage(self, filters: Mapping[str, Any], step: str, offset: int, limit: int) -> ResultPage:
        """Return decisions by rule and outcome in each minute or hour, the newest first.

        Without `since` in `filters`: of the last day by minute, or the last 30 days by hour.
        """
        lately = epoch_us() - (1 if step == "minute" else usage.MINUTES_DAYS) * DAY_US
        async with _kept(self._database).reading() as connection:
            rows, total = await usage.page(connection, {"since": lately, **filters}, step, offset, limit)
        return ResultPage.of([{**row, "at": moment_text(row["at"])} for row in rows], total, offset + limit)

    async def series(self, rules: Collection[str], since: int | None = None, step_seconds: int = 60) -> dict[str, Any]:
        """Return decisions of some rules in each step since a moment, by default in the last hour, and their sums.

        Steps are whole minutes. Steps without decisions are omitted.
        """
        since = epoch_us() - usage.HOUR_US if since is None else since
        async with _kept(self._database).reading() as connection:
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
        return explanation_data(await self._engine.explain(request))

    # Consumers

    async def create_consumer(
        self, name: str, tier: str, actor: Actor, *, tenant: str = "", expires_at: int | None = None
    ) -> NewKey[ConsumerKey]:
        """Create a consumer with a key, and set the tier of its user if one is given. Raises UsageError."""
        await self.rules.check_tier(tier)
        made = await self.consumers.create(name, actor, tenant=tenant, expires_at=expires_at)
        if tier:
            await self.users.set_tier(name, tier, actor)
        return made

    async def consumer_page(self, offset: int, limit: int) -> ResultPage:
        found, total = await self.consumers.page(offset, limit)
        return ResultPage.of([consumer_data(each) for each in found], total, offset + limit)

    async def delete_consumer(self, name: str, actor: Actor) -> None:
        """Delete a consumer with its keys, and the tier and overrides of its user. Raises UnknownObject."""
        await self.consumers.delete(name, actor)
        if await self.rules.get(ObjectKind.USER, name) is not None:
            await self.rules.delete(ObjectKind.USER, name, actor)


def consumer_data(consumer: Consumer) -> dict[str, Any]:
    """Return a consumer as JSON; `state` is active, or ended if none of its keys is accepted."""
    now, newest = epoch_us(), consumer.keys[-1]
    keys = [key_data(key) for key in consumer.keys]
    for key in keys:
        del key["consumer"], key["tenant"]
    state = "active" if any(key.is_good(now) for key in consumer.keys) else "ended"
    return {"id": newest.consumer, "tenant": newest.tenant, "tier": consumer.tier, "state": state, "keys": keys}


def key_data(key: ApiKey | ConsumerKey) -> dict[str, Any]:
    """Return a key as JSON, with its times as text."""
    moments = {name: moment_text(at) if at else None for name, at in key._asdict().items() if name.endswith("_at")}
    return {**key._asdict(), **moments}


def _kept(database: Database | None) -> Database:
    if database is None:
        raise UnknownObject("the audit trail and usage need a database, and the rules come from a file")
    return database


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the collector: with 100,000 users, each collection stops all threads for a second, and frees nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

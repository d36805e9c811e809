"""Changes of many rules at once, and their previews: apply a file, undo a revision, try a rule or a limit."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from headgate.admin import revisions, usage, what_if
from headgate.admin.audit import Actor
from headgate.admin.database import Database
from headgate.admin.objects import ObjectKind, Operation, ResultPage, revision_number
from headgate.admin.reports import Reports, kept
from headgate.admin.rule_catalogs import RuleCatalog
from headgate.admin.tables import epoch_us
from headgate.config.times import moment_text
from headgate.core.calendar import DAY_US
from headgate.observe.principal_use import measured_window
from headgate.policy.diff import compare
from headgate.policy.dumping import to_data
from headgate.policy.loading import from_data, read_apart
from headgate.policy.model import Rule, Ruleset

_WEEK_US = 7 * DAY_US
_MOST_TIERS = 1000
_DRY_RUN = Actor("")


class RuleChanges:
    """Past revisions of a catalog, and what a new one would change."""

    def __init__(self, rules: RuleCatalog, database: Database | None, reports: Reports) -> None:
        self._rules, self._database, self._reports = rules, database, reports

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
            present = (await self._rules.document()).document if dry_run else {}
            changed = await self._rules.apply(
                wanted, actor, dry_run=dry_run, expected=expected, sections=sections, replace_users=replace_users
            )
            answer = changed.to_data(dry_run=dry_run, most=most)
            if dry_run and self._database is not None:
                kept = {name: present[name] for name in present.keys() - sections - {"version", "users"}}
                data = {**to_data(wanted), "users": {}, **kept}
                wanted = await asyncio.to_thread(from_data, data)
                rules = {each.subject for each in changed.entries if each.kind == ObjectKind.RULE}
                await self._add_effects(self._database, answer["changes"], rules, present, wanted)
        return answer

    async def revisions(self, offset: int, limit: int) -> ResultPage:
        """Return the revisions that the audit trail still has, the newest first."""
        async with kept(self._database).reading() as connection:
            newest = await revision_number(connection)
            found, total = await revisions.revisions_of(connection, newest, offset, limit)
        return ResultPage.of([_revision(each) for each in found], total, offset + limit)

    async def revision(self, number: int, offset: int, limit: int) -> dict[str, Any]:
        """Return a revision with some of its changes. Raises UnknownObject."""
        async with kept(self._database).reading() as connection:
            found = await revisions.revision_of(connection, number, await revision_number(connection))
            items = await revisions.changes_of(connection, number, offset, limit)
        page = ResultPage.of(items, found.changes, offset + limit)
        return {**_revision(found), **page._asdict()}

    async def undo(
        self, number: int, actor: Actor, expected: int | None, *, force: bool, dry_run: bool, limit: int
    ) -> dict[str, Any]:
        """Undo a revision; return the first `limit` changes. Raises as `Catalog.undo` does."""
        with _without_garbage_collection():
            done = await self._rules.undo(number, actor, expected, force=force, dry_run=dry_run)
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
        limits = what_if.changes_between(before, wanted)
        of_rule: dict[str, list[what_if.LimitChange]] = {}
        of_tier: dict[str, list[what_if.LimitChange]] = {}
        for (tier, rule), found in limits.items():
            of_rule.setdefault(rule, []).extend(found)
            if rule not in changed:
                of_tier.setdefault(tier, []).extend(found)
        quotas = {rule.id: rule.quotas for rule in wanted.rules}
        now = epoch_us()
        async with database.reading() as connection:
            rules = {each["id"] for each in differences if each["kind"] == ObjectKind.RULE}
            used = await usage.totals(connection, rules, now - DAY_US)
            for each in differences:
                if each["kind"] == ObjectKind.RULE:
                    each["last_day"] = used[each["id"]]
                    each["not_counted"] = what_if.not_counted(quotas.get(each["id"], ()))
                    moved = of_rule.get(each["id"], ())
                elif each["kind"] == ObjectKind.TIER:
                    moved = of_tier.get(each["id"], ())
                else:
                    continue
                once = {(change.rule, change.in_force, change.quota): change for change in moved}
                each["what_if"] = [
                    self._with_hot_keys(await change.answer(connection, now - _WEEK_US, now))
                    for change in once.values()
                ]

    async def try_rule(self, name: str, body: Any) -> dict[str, Any]:
        """Return what a rule with this body would change, and would have refused in the last day and week.

        Raises as `Catalog.change` does.
        """
        done = await self._rules.change([Operation(ObjectKind.RULE, name, body)], _DRY_RUN, dry_run=True)
        entry = next((each for each in done.entries if (each.kind, each.subject) == (ObjectKind.RULE, name)), None)
        if entry is None:
            return {"before": body, "after": body}
        answer: dict[str, Any] = {"before": entry.before, "after": entry.after}
        if entry.before is None or entry.after is None or self._database is None:
            return answer
        found, _ = await self._rules.page(ObjectKind.TIER, {}, "id", 0, _MOST_TIERS)
        tiers = {tier.id: {name: tier.body[name]} for tier in found if name in tier.body}
        old, new = [
            from_data({"version": 1, "rules": [{**each, "replaces": []}], "tiers": tiers})
            for each in (entry.before, entry.after)
        ]
        changed = next(iter(compare(old, new).changed), None)
        answer |= {"state": str(changed.state), "because": changed.because} if changed else {}
        known = {measured_window(quota) for quota in old.rules[0].quotas} - {0}
        quotas = [quota for quota in new.rules[0].quotas if measured_window(quota) not in known]
        answer["not_comparable"] = [str(quota) for quota in quotas if quota not in old.rules[0].quotas]
        limits = [(tier, each) for (tier, _), some in what_if.changes_between(old, new).items() for each in some]
        now, spans = epoch_us(), {"day": DAY_US, "week": _WEEK_US}
        async with self._database.reading() as connection:
            for name_of_span, length in spans.items():
                used = await usage.totals(connection, [name], now - length)
                answer[name_of_span] = {outcome: used[name].get(outcome, 0) for outcome in usage.OUTCOMES}
            answer["what_if"] = [
                {
                    "tier": tier,
                    **{span: await each.answer(connection, now - length, now) for span, length in spans.items()},
                }
                for tier, each in limits
            ]
        return answer

    async def what_if(
        self,
        rule: Rule,
        limit: int,
        *,
        window_us: int | None,
        in_force: int | None,
        since: int | None,
        until: int | None,
    ) -> dict[str, Any]:
        """Return what another limit of a rule would have refused, by default in the last 7 days.

        Raises UsageError for an invalid limit or window.
        """
        change = what_if.limit_change(rule, limit, window_us, in_force)
        until = epoch_us() if until is None else until
        since = until - _WEEK_US if since is None else since
        async with kept(self._database).reading() as connection:
            answer = await change.answer(connection, since, until)
        return {**self._with_hot_keys(answer), "not_counted": what_if.not_counted(rule.quotas)}

    def _with_hot_keys(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Add the hot keys of this service that the limit would refuse at present, with their rates."""
        report = msgspec.json.decode(self._reports.hot_keys())
        hot = report.get("hot", []) if isinstance(report, dict) else []
        above = [
            {"key": each["key"], "per_second": each["per_second"]}
            for each in hot
            if each["rule"] == answer["rule_id"] and each["per_second"] * answer["window_seconds"] > answer["limit"]
        ]
        return {**answer, "hot_keys": above}


def _revision(found: revisions.Revision) -> dict[str, Any]:
    return {**found._asdict(), "at": moment_text(found.at)}


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

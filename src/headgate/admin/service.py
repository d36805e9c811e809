"""What the admin plane does, whoever asks: in the words of operators, over a catalog, keys and an engine.

Rules come from a database, where they are changed, or from a file, where they are only looked at: then everything
that would change them is refused, and the refusal names the file.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NamedTuple, Self, cast

import msgspec

from headgate.admin import audit, revisions, usage, what_if
from headgate.admin.audit import Actor
from headgate.admin.consumers import Consumer, Consumers, NewConsumerKey
from headgate.admin.database import Database
from headgate.admin.follower import NodeStatus, nodes_of
from headgate.admin.keys import AdminKeys
from headgate.admin.objects import STAMPS, ObjectKind, Operation, Stored, UnknownObject, check_stamps, revision_number
from headgate.admin.refusals import RefusalLog
from headgate.admin.rule_catalogs import RuleCatalog
from headgate.admin.tables import epoch_us
from headgate.core.calendar import DAY_US
from headgate.core.errors import UsageError
from headgate.engine import AsyncEngine
from headgate.engine.ruling import explained_data, state_data
from headgate.policy.dumping import to_data
from headgate.policy.loading import change_from_data, from_data, read_apart, rule_from_data, user_from_data
from headgate.policy.model import Change, Ruleset, User
from headgate.policy.problems import InvalidRules, render
from headgate.policy.request import Request
from headgate.policy.times import moment_text

_DEFAULT_TIER = "default_tier"
_WEEK_US = 7 * DAY_US
_MOST_TIERS = 100
_FOLLOWS_WITHIN, _LOOK_EVERY = 2.0, 0.02
"""Seconds that a change may take to reach this node, and between two looks whether it has."""
_NOTHING_SPECIAL: tuple[tuple[str, Any], ...] = (("tier", ""), ("overrides", {}))
_NAMED = 5
"""Principals that an answer names."""
SORTS = ("position", "id", "updated_at", "-id", "-updated_at")


class ResultPage(NamedTuple):
    """Some of many."""

    items: list[dict[str, Any]]
    total: int
    """How many there are altogether, as far as the filters let them through."""
    next: int | None
    """The offset of the next page; None if this is the last."""

    @classmethod
    def of(cls, items: list[dict[str, Any]], total: int, end: int) -> Self:
        """Return the page that ends at an offset."""
        return cls(items, total, end if end < total else None)


class SpecialUser(NamedTuple):
    """What is special about a user, which may be nothing."""

    body: dict[str, Any]
    version: int
    """Of the body; 0: nothing is special."""

    @classmethod
    def of(cls, stored: Stored | None) -> Self:
        """Return what is stored of a user."""
        return cls(dict(stored.body), stored.version) if stored else cls({}, 0)


class AdminService:
    """Everything that operators do with rules, tiers and users.

    Args:
        rules: where the rules are.
        engine: what decides by them, to look at limits and to reset them.
        keys: who may ask.
        database: where everything else is kept; None: nowhere, since the rules are in a file.
        hot_keys: returns the keys that are asked about most, as JSON.
        refusals: keeps the last refusals; default: what the database has.
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
    ) -> None:
        self._refusals = refusals or RefusalLog(database, list)
        self.rules, self.keys, self.hot_keys = rules, keys, hot_keys
        self._engine, self._database = engine, database
        self.consumers = Consumers(database)

    # Rules, tiers, settings

    async def page(
        self, kind: ObjectKind, filters: Mapping[str, Any], sort: str, offset: int, limit: int
    ) -> ResultPage:
        """Return some of what is in force, as far as every filter is equal to a field."""
        found, total = await self.rules.page(kind, filters, sort, offset, limit)
        has_fields = kind in {ObjectKind.RULE, ObjectKind.USER}
        items = [{"id": each.id, **(each.written if has_fields else {"value": each.body})} for each in found]
        return ResultPage.of(items, total, offset + limit)

    async def get(self, kind: ObjectKind, name: str) -> Stored:
        """Return something in force. Raises UnknownObject."""
        stored = await self.rules.get(kind, name)
        if stored is None:
            raise UnknownObject(f"there is no {kind} {name!r:.200}")
        return stored

    async def put(
        self, kind: ObjectKind, name: str, body: Any, expected: int | None, actor: Actor
    ) -> tuple[Stored, bool]:
        """Make or replace something; says also whether it is new. Raises as `Catalog.change` does."""
        if kind is ObjectKind.RULE:
            named = isinstance(body, dict) and not {"id", "rule_id"} & body.keys()
            body = {"id": name, **body} if named else body
            rule_from_data(body)
        if body is None:
            raise UsageError(f"null is not a {kind}; DELETE is what deletes one")
        if kind is ObjectKind.SETTING and name == _DEFAULT_TIER and isinstance(body, str):
            await self._check_tier(body)

        def replaced(stored: Stored | None) -> Any:
            if kind is ObjectKind.RULE:
                check_stamps(body, stored.written if stored else {})
            return body

        with _paths_in_body(kind, name):
            done = await self.rules.edit(kind, name, replaced, actor, expected)
        return cast("Stored", done.after), done.before is None

    async def patch(
        self, kind: ObjectKind, name: str, given: dict[str, Any], expected: int | None, actor: Actor
    ) -> Stored | None:
        """Change some members of something (RFC 7396). Raises as `Catalog.change` does, and UnknownObject.

        Something may become special about any user, so that there is one; of what exists, null deletes members.
        """
        tier, changed = given.get("tier"), given.get("overrides")
        if kind is ObjectKind.USER and isinstance(tier, str | int | float):  # a number is read as text
            await self._check_tier(str(tier))

        def patched(stored: Stored | None) -> Any:
            if stored is None and kind is not ObjectKind.USER:
                raise UnknownObject(f"there is no {kind} {name!r:.200}")
            body = merge_patch(stored.body if stored else {}, given)
            if kind is ObjectKind.RULE:
                if body.get("id") != name or "rule_id" in given:
                    raise UsageError("the id of a rule stays as it is: leave it out of the patch")
                check_stamps(given, stored.written if stored else {})
                body = {field: value for field, value in body.items() if field not in STAMPS}
                rule_from_data(body)
            if kind is ObjectKind.USER:
                body = {name: value for name, value in body.items() if (name, value) not in _NOTHING_SPECIAL} or None
                overrides = user_from_data(body or {}).overrides
                for rule in overrides.keys() & (changed or {}):
                    _check_override(overrides[rule])
            return body

        with _paths_in_body(kind, name):
            return (await self.rules.edit(kind, name, patched, actor, expected)).after

    async def delete(
        self, kind: ObjectKind, name: str, expected: int | None, actor: Actor, *, drop: bool = False
    ) -> None:
        """Delete something, and with `drop` what is special because of it. Raises as `Catalog.delete` does."""
        if kind in {ObjectKind.RULE, ObjectKind.TIER}:
            await self.rules.delete(kind, name, actor, expected, drop=drop)
        else:
            await self.rules.change([Operation(kind, name, None, expected)], actor)

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
        """Let what a rules file has be in force; says what that changes, and, if it is tried, how much that is used.

        See `Catalog.apply` for what stays as it is, and `Changed.to_data` for `most`.
        """
        with _without_collections():
            loaded = await asyncio.to_thread(read_apart, text)
            wanted, sections = loaded.ruleset, loaded.sections
            present = (await self.rules.document()).document if dry_run else {}
            changed = await self.rules.apply(
                wanted, actor, dry_run=dry_run, expected=expected, sections=sections, replace_users=replace_users
            )
            answer = changed.to_data(dry_run=dry_run, most=most)
            if dry_run and self._database is not None:
                kept = {name: present[name] for name in present.keys() - sections - {"version", "users"}}
                data = {**to_data(wanted), "users": {}, **kept}
                wanted = await asyncio.to_thread(from_data, data)
                rules = {each.subject for each in changed.entries if each.kind == ObjectKind.RULE}
                await self._say_whom_it_touches(self._database, answer["changes"], rules, present, wanted)
        return answer

    # Revisions

    async def revisions(self, offset: int, limit: int) -> ResultPage:
        """Return what was changed, the newest first, as far as the audit trail goes back."""
        async with self._kept().reading() as connection:
            newest = await revision_number(connection)
            found, total = await revisions.revisions_of(connection, newest, offset, limit)
        return ResultPage.of([_revision(each) for each in found], total, offset + limit)

    async def revision(self, number: int, offset: int, limit: int) -> dict[str, Any]:
        """Return a revision, and some of what it changed. Raises UnknownObject."""
        async with self._kept().reading() as connection:
            found = await revisions.revision_of(connection, number, await revision_number(connection))
            items = await revisions.changes_of(connection, number, offset, limit)
        page = ResultPage.of(items, found.changes, offset + limit)
        return {**_revision(found), **page._asdict()}

    async def undo(
        self, number: int, actor: Actor, expected: int | None, *, force: bool, dry_run: bool, limit: int
    ) -> dict[str, Any]:
        """Take back what a revision did; says what that changes, up to a limit. Raises as `Catalog.undo` does."""
        with _without_collections():
            done = await self.rules.undo(number, actor, expected, force=force, dry_run=dry_run)
        return {"undone": number, "total": len(done.entries), **done.to_data(dry_run=dry_run, most=limit)}

    async def _say_whom_it_touches(
        self,
        database: Database,
        differences: list[dict[str, Any]],
        changed: set[str],
        present: dict[str, Any],
        wanted: Ruleset,
    ) -> None:
        """Add to changes of rules and tiers how often they decide, and what their other limits would have refused.

        What happens to limits of the rules that are `changed` is said of the rules, not of tiers.
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

    async def what_if(
        self,
        name: str,
        limit: int,
        *,
        window_us: int | None,
        in_force: int | None,
        since: int | None,
        until: int | None,
    ) -> dict[str, Any]:
        """Say what another limit of a rule would have refused, in the last 7 days if nothing else is said.

        Raises UnknownObject, and UsageError for a limit or a window that makes no sense.
        """
        rule = rule_from_data((await self.get(ObjectKind.RULE, name)).body)
        change = what_if.limit_change(rule, limit, window_us, in_force)
        until = epoch_us() if until is None else until
        since = until - _WEEK_US if since is None else since
        async with self._kept().reading() as connection:
            answer = await change.answer(connection, since, until)
        return {**self._with_hot_keys(answer), "not_counted": what_if.not_counted(rule.quotas)}

    def _with_hot_keys(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Name principals that the limit would refuse now, of those that are asked about most at this service."""
        report = msgspec.json.decode(self.hot_keys())
        asked = report.get("hot", []) if isinstance(report, dict) else []
        hot = [
            each["key"]
            for each in asked
            if each["rule"] == answer["rule_id"] and each["per_second"] * answer["window_seconds"] > answer["limit"]
        ]
        return {**answer, "hot_keys": hot[:_NAMED]}

    # Users

    async def set_tier(self, name: str, tier: str, actor: Actor, expected: int | None = None) -> SpecialUser:
        """Move a user to a tier; empty: to none. Raises UsageError for one that no rule and no tier has."""
        await self._check_tier(tier)

        def moved(user: dict[str, Any]) -> None:
            user.pop("tier", None)
            if tier:
                user["tier"] = tier

        return await self._edit_user(name, moved, actor, expected)

    async def _check_tier(self, tier: str) -> None:
        """Raise UsageError unless a tier of this name, or a rule for it, is there: it would mean nothing."""
        if not tier or self._database is None or await self.rules.get(ObjectKind.TIER, tier) is not None:
            return
        if (await self.page(ObjectKind.RULE, {"tier": tier}, "position", 0, 1)).total:
            return
        known = [item["id"] for item in (await self.page(ObjectKind.TIER, {}, "id", 0, _MOST_TIERS)).items]
        near = get_close_matches(tier, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known) or 'no tiers yet'}"
        raise UsageError(f"there is no tier {tier!r:.80}, and no rule for one: {hint}")

    async def set_override(
        self, name: str, rule_id: str, change: Any, actor: Actor, expected: int | None = None
    ) -> SpecialUser:
        """Change a rule for one user, perhaps only for a time. Raises UsageError for what can have no effect."""
        _check_override(change_from_data(change))

        def overridden(user: dict[str, Any]) -> None:
            user["overrides"] = {**user.get("overrides", {}), rule_id: change}

        return await self._edit_user(name, overridden, actor, expected)

    async def without_effect(self, user: Mapping[str, Any], rule_id: str) -> list[str]:
        """Return why the override of a rule has no effect at present, if that is so; it may have one later."""
        stored = await self.rules.get(ObjectKind.RULE, rule_id)
        if stored is None:  # that of the default
            return []
        rule, usual = rule_from_data(stored.body), await self.rules.get(ObjectKind.SETTING, _DEFAULT_TIER)
        tier: str = user.get("tier") or (usual.body if usual else "")
        whose = f"the user is of tier {tier}" if tier else "the user is of no tier"
        if not rule.enabled:
            return [f"it has no effect at present: rule {rule_id} is not enabled"]
        if rule.tier and rule.tier != tier:
            return [f"it has no effect at present: rule {rule_id} is only for tier {rule.tier}, and {whose}"]
        of_tier = await self.rules.get(ObjectKind.TIER, tier) if tier else None
        changed = change_from_data(of_tier.body.get(rule_id, {}) if of_tier else {}).apply(rule.quotas)
        if change_from_data(user["overrides"][rule_id]).apply(changed) != changed:
            return []
        same = "; ".join(map(str, changed))
        return [f"it has no effect at present: rule {rule_id} is {same} for this user anyway"]

    async def end_override(self, name: str, rule_id: str, actor: Actor, expected: int | None = None) -> SpecialUser:
        """End the override of one rule, or, if none is named, of all. Raises UnknownObject if there is none."""

        def ended(user: dict[str, Any]) -> None:
            overrides = user.pop("overrides", {})
            if not overrides or (rule_id and rule_id not in overrides):
                what = f"no override of rule {rule_id!r}" if rule_id else "no override"
                raise UnknownObject(f"user {name!r:.200} has {what}")
            left = {rule: change for rule, change in overrides.items() if rule_id and rule != rule_id}
            if left:
                user["overrides"] = left

        return await self._edit_user(name, ended, actor, expected)

    async def _edit_user(
        self, name: str, edit: Callable[[dict[str, Any]], None], actor: Actor, expected: int | None
    ) -> SpecialUser:
        """Change what is special about a user, whom the database forgets if nothing is any more."""

        def revised(stored: Stored | None) -> dict[str, Any] | None:
            user = dict(stored.body) if stored else {}
            edit(user)
            return user or None

        return SpecialUser.of((await self.rules.edit(ObjectKind.USER, name, revised, actor, expected)).after)

    async def user_limits(self, name: str) -> tuple[dict[str, Any], int]:
        """Return the limits that count a user, and their present state; and the version of what is special.

        What was just changed is waited for, so that limits and overrides go together; `in_force` is false if this
        node did not run it in time.
        """
        give_up = asyncio.get_running_loop().time() + _FOLLOWS_WITHIN
        while True:
            special, version = SpecialUser.of(await self.rules.get(ObjectKind.USER, name))
            policy = self._engine.policy
            in_force = to_data(policy.ruleset.users.get(name, User())) == special
            if in_force or asyncio.get_running_loop().time() > give_up:
                break
            await asyncio.sleep(_LOOK_EVERY)
        tier = policy.tier_of(name)
        limits = []
        for rule in policy.rules.values():
            if not rule.rule.enabled or rule.rule.dimensions != ("user",):
                continue
            if rule.rule.tier and rule.rule.tier != tier:
                continue
            explained = await self._engine.explain(Request({"user": name}, rule_id=rule.id))
            states = explained.states.get(rule.id, ())
            source = next((each.source for each in explained.explanation.rules if each.rule == rule.id), "")
            limits.append(
                {
                    "rule_id": rule.id,
                    "endpoint": rule.rule.endpoint,
                    "methods": sorted(rule.rule.methods),
                    "shadow": rule.rule.shadow,
                    "source": source,
                    "limits": [state_data(state) for state in states],
                }
            )
        stored = {"tier": special.get("tier") or policy.ruleset.default_tier, "overrides": special.get("overrides", {})}
        return {"user_id": name, "in_force": in_force, **stored, "rules": limits}, version

    async def reset_user(self, name: str, rules: Sequence[str], actor: Actor) -> dict[str, Any]:
        """Forget what a user used of the limits that count users, or of the rules that are named."""
        policy = self._engine.policy
        known = [rule.id for rule in policy.rules.values() if "user" in rule.rule.dimensions]
        done: list[str] = []
        for rule_id in rules or known:
            rule = policy.rules.get(rule_id)
            if rule is None:
                raise UnknownObject(f"there is no rule {rule_id!r:.80}")
            if rules and "user" not in rule.rule.dimensions:
                raise UsageError(f"rule {rule_id} counts by {rule.rule.dimension}: it has nothing of one user to reset")
            if rule.rule.dimensions == ("user",):
                reset = await self._engine.reset(Request({"user": name}, rule_id=rule_id))
                done += reset.rules
        if done and self._database is not None:
            async with self._database.exclusively() as connection:
                entry = audit.AuditEntry("reset", "user", name, None, {"rules": done})
                await audit.append(connection, [entry], actor, await revision_number(connection), epoch_us())
        return {"user_id": name, "reset": done, "skipped": [each for each in rules or known if each not in done]}

    # Consumers

    async def create_consumer(
        self, name: str, tier: str, actor: Actor, *, tenant: str = "", expires_at: int | None = None
    ) -> NewConsumerKey:
        """Make a key for a consumer, and move the user of its name to a tier, if one is given. Raises UsageError."""
        await self._check_tier(tier)
        made = await self.consumers.create(name, actor, tenant=tenant, expires_at=expires_at)
        if tier:
            await self.set_tier(name, tier, actor)
        return made

    async def consumer_page(self, offset: int, limit: int) -> ResultPage:
        """Return some consumers, by name."""
        found, total = await self.consumers.page(offset, limit)
        return ResultPage.of([consumer_data(each) for each in found], total, offset + limit)

    async def delete_consumer(self, name: str, actor: Actor) -> None:
        """End all keys of a consumer, and forget what is special of the user of its name. Raises UnknownObject."""
        await self.consumers.delete(name, actor)
        if await self.rules.get(ObjectKind.USER, name) is not None:
            await self.delete(ObjectKind.USER, name, None, actor)

    # Looking

    async def nodes(self) -> dict[str, Any]:
        """Return the services that follow the database, and the revision that each runs."""
        found = [] if self._database is None else await nodes_of(self._database, epoch_us())
        shown = [
            {**node._asdict(), "started_at": moment_text(node.started_at), "seen_at": moment_text(node.seen_at)}
            for node in found
        ]
        return {"revision": await self.rules.revision(), "items": shown}

    async def behind(self, patience: float) -> tuple[int, list[NodeStatus]]:
        """Return the revision in force, and the nodes that do not run it once so many seconds have passed."""
        revision, give_up = await self.rules.revision(), asyncio.get_running_loop().time() + patience
        while True:
            found = [] if self._database is None else await nodes_of(self._database, epoch_us())
            late = [node for node in found if node.revision < revision]
            if not late or asyncio.get_running_loop().time() >= give_up:
                return revision, late
            await asyncio.sleep(_LOOK_EVERY)

    async def audit(self, filters: Mapping[str, Any], offset: int, limit: int) -> ResultPage:
        """Return some of the audit trail, the newest first."""
        async with self._kept().reading() as connection:
            rows, total = await audit.page(connection, filters, offset, limit)
        return ResultPage.of([{**row, "at": moment_text(row["at"])} for row in rows], total, offset + limit)

    async def verify_audit(self, contains: str = "") -> dict[str, Any]:
        """Go through the whole audit trail; says whether it was tampered with."""
        async with self._kept().reading() as connection:
            chain = await audit.verify(connection, contains)
        return {"intact": not chain.fault, **chain._asdict()}

    async def usage(self, filters: Mapping[str, Any], step: str, offset: int, limit: int) -> ResultPage:
        """Return how often rules decided what, in each minute or hour, the newest first.

        Where `filters` have no `since`: of the last day by minute, or the last 30 days by hour.
        """
        lately = epoch_us() - (1 if step == "minute" else usage.MINUTES_DAYS) * DAY_US
        async with self._kept().reading() as connection:
            rows, total = await usage.page(connection, {"since": lately, **filters}, step, offset, limit)
        return ResultPage.of([{**row, "at": moment_text(row["at"])} for row in rows], total, offset + limit)

    async def refusals(self, filters: Mapping[str, Any], step: str, offset: int, limit: int) -> ResultPage:
        """Return the last refusals, or how many there were in each hour, the newest first."""
        rows, total = await self._refusals.page(filters, step, offset, limit)
        items = []
        for row in rows:
            item = {name: value for name, value in row.items() if name not in {"id", "retry_after_us"}}
            if step == "each":
                retry_after_us = row["retry_after_us"]
                item["retry_after"] = None if retry_after_us is None else retry_after_us / 1_000_000
            items.append({**item, "at": moment_text(row["at"])})
        return ResultPage.of(items, total, offset + limit)

    def _kept(self) -> Database:
        if self._database is None:
            raise UnknownObject("the rules come from a file, so that no audit trail and no usage is kept")
        return self._database

    async def explain(self, request: Request) -> dict[str, Any]:
        """Say for every rule whether it applies and why, in what state it is, and what would be decided."""
        return explained_data(await self._engine.explain(request))


def consumer_data(consumer: Consumer) -> dict[str, Any]:
    """Return what is shown of a consumer; `state` is active, or ended if no key of it is accepted."""
    now = epoch_us()
    keys = [
        {
            "id": key.id,
            "created_at": moment_text(key.created_at),
            "created_by": key.created_by,
            "expires_at": None if key.expires_at is None else moment_text(key.expires_at),
            "revoked_at": None if key.revoked_at is None else moment_text(key.revoked_at),
        }
        for key in consumer.keys
    ]
    newest, state = consumer.keys[-1], "active" if any(key.is_good(now) for key in consumer.keys) else "ended"
    return {"id": newest.consumer, "tenant": newest.tenant, "tier": consumer.tier, "state": state, "keys": keys}


def _check_override(change: Change) -> None:
    """Raise UsageError for an override that can have no effect."""
    if change.until is not None and change.until <= epoch_us():
        raise UsageError("an override that has ended already changes nothing: until is in the past")
    if change == Change(until=change.until):
        raise UsageError(
            "this override changes nothing: give a limit, burst, capacity, window, algorithm or limits; "
            "to end one that is there, DELETE it"
        )


def merge_patch(target: Any, patch: Any) -> Any:
    """Return what a JSON merge patch (RFC 7396) makes of something; the patch has been read, and is not too deep."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def _revision(found: revisions.Revision) -> dict[str, Any]:
    return {**found._asdict(), "at": moment_text(found.at)}


@contextmanager
def _paths_in_body(kind: ObjectKind, name: str) -> Iterator[None]:
    """Let problems of something be said with their places in its own body, which is what the client sent."""
    try:
        yield
    except InvalidRules as error:
        prefix = render((f"{kind}s", name))
        raise InvalidRules(
            replace(each, path=each.path.removeprefix(f"{prefix}.")) for each in error.problems
        ) from None


@contextmanager
def _without_collections() -> Iterator[None]:
    """Look for no garbage: of 100,000 users, each look stops all threads for a second, and there is none to find."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

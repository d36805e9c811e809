"""Tiers and overrides of users, and the limits of callers with their state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import select

from headgate.admin import audit
from headgate.admin.audit import Actor
from headgate.admin.catalog import DEFAULT_TIER, RuleCatalog, check_override
from headgate.admin.database import Database
from headgate.admin.follower import ARRIVAL_EVERY
from headgate.admin.objects import ObjectKind, Stored, UnknownObject, existing, revision_number
from headgate.admin.tables import begins, epoch_us, slices, users
from headgate.core.decision import Decision
from headgate.core.errors import UsageError
from headgate.core.quota import Quota
from headgate.engine import AsyncEngine
from headgate.engine.ruling import state_data
from headgate.observe.logs import Principals
from headgate.policy.compiled import Policy
from headgate.policy.dumping import to_data
from headgate.policy.explain import explain_rule
from headgate.policy.loading import change_from_data, rule_from_data
from headgate.policy.model import Rule, User
from headgate.policy.prepared import PreparedRule
from headgate.policy.request import ENDPOINT, GLOBAL, Request
from headgate.policy.request_facts import address_given, facts_of

_FOLLOWS_WITHIN = 2.0
"""Seconds to wait for a change to reach this node."""


class RuleUse(NamedTuple):
    rule: Rule
    usual: tuple[Quota, ...]
    """The quotas without an override."""
    quotas: tuple[Quota, ...] = ()
    """The quotas in force; empty if there are `missing` dimensions."""
    source: str = ""
    """Where they come from; see `headgate.policy.explain.Considered`."""
    is_enforced: bool = False
    states: tuple[Decision, ...] = ()
    """The state of each quota; empty for callers on a list, who are not counted."""
    degraded: str = ""
    """Why the state does not come from the store; empty if it does."""
    missing: tuple[str, ...] = ()
    """Further dimensions of the rule, without which its state is unknown."""


class Users:
    def __init__(self, rules: RuleCatalog, engine: AsyncEngine, database: Database | None) -> None:
        self._rules, self._engine, self._database = rules, engine, database

    async def set_tier(self, name: str, tier: str, actor: Actor, expected: int | None = None) -> Stored:
        """Set the tier of a user; empty: none. Raises as `Catalog.patch` does."""
        done = await self._rules.patch(ObjectKind.USER, name, {"tier": tier or None}, actor, expected)
        return user_of(name, done.after)

    async def set_override(
        self, name: str, rule_id: str, change: Any, actor: Actor, expected: int | None = None
    ) -> Stored:
        """Override a rule for a user. Raises UsageError as `check_override` does."""
        check_override(change_from_data(change))

        def overridden(user: dict[str, Any]) -> None:
            user["overrides"] = {**user.get("overrides", {}), rule_id: change}

        return await self._edit_user(name, overridden, actor, expected)

    async def without_effect(self, user: Mapping[str, Any], rule_id: str) -> list[str]:
        """Return why the override of a rule has no effect at present, if it has none; it may have one later."""
        stored = await self._rules.get(ObjectKind.RULE, rule_id)
        if stored is None:  # the default rule
            return []
        rule, usual = rule_from_data(stored.body), await self._rules.get(ObjectKind.SETTING, DEFAULT_TIER)
        tier: str = user.get("tier") or (usual.body if usual else "")
        whose = f"the user is of tier {tier}" if tier else "the user has no tier"
        if not rule.enabled:
            return [f"it currently has no effect: rule {rule_id} is not enabled"]
        if rule.tier and rule.tier != tier:
            return [f"it currently has no effect: rule {rule_id} is only for tier {rule.tier}, and {whose}"]
        of_tier = await self._rules.get(ObjectKind.TIER, tier) if tier else None
        changed = change_from_data(of_tier.body.get(rule_id, {}) if of_tier else {}).apply(rule.quotas)
        if change_from_data(user["overrides"][rule_id]).apply(changed) != changed:
            return []
        same = "; ".join(map(str, changed))
        return [f"it currently has no effect: rule {rule_id} is {same} for this user anyway"]

    async def end_override(self, name: str, rule_id: str, actor: Actor, expected: int | None = None) -> Stored:
        """End the override of a rule, or all if `rule_id` is empty. Raises UnknownObject if there is none."""

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
    ) -> Stored:
        """Edit the body of a user, which is deleted if it becomes empty."""

        def revised(stored: Stored | None) -> dict[str, Any] | None:
            user = dict(stored.body) if stored else {}
            edit(user)
            return user or None

        return user_of(name, (await self._rules.edit(ObjectKind.USER, name, revised, actor, expected)).after)

    async def limits(self, name: str) -> tuple[dict[str, Any], int]:
        """Return the limits of a user with their state, and the version of tier and overrides.

        It waits until this node runs the last change of the user; `in_force` is false if it does not in time.
        """
        special, in_force = await self.special(name)
        policy = self.policy
        uses, _ = await self.uses({"user": name})
        limits = [
            {
                "rule_id": each.rule.id,
                "endpoint": each.rule.endpoint,
                "methods": sorted(each.rule.methods),
                "shadow": each.rule.shadow,
                "source": each.source,
                "limits": [state_data(state) for state in each.states],
            }
            for each in uses
            if each.rule.dimensions == ("user",)
        ]
        tier, overrides = special.body.get("tier") or policy.ruleset.default_tier, special.body.get("overrides", {})
        found = {"user_id": name, "in_force": in_force, "tier": tier, "overrides": overrides, "rules": limits}
        return found, special.version

    async def special(self, name: str) -> tuple[Stored, bool]:
        """Return tier and overrides of a user, and whether this node runs them, which it waits for."""
        deadline = asyncio.get_running_loop().time() + _FOLLOWS_WITHIN
        while True:
            special = user_of(name, await self._rules.get(ObjectKind.USER, name))
            in_force = self.known(name) == special.body
            if in_force or asyncio.get_running_loop().time() > deadline:
                return special, in_force
            await asyncio.sleep(ARRIVAL_EVERY)

    def known(self, name: str) -> dict[str, Any]:
        """Return tier and overrides of a user in the rules that this node runs."""
        body: dict[str, Any] = to_data(self.policy.ruleset.users.get(name, User()))
        return body

    async def search(self, text: str, most: int) -> list[tuple[str, str]]:
        """Return users with a tier or overrides whose names begin with a text, and their tiers."""
        if self._database is None:
            known = self.policy.ruleset.users
            return sorted((name, user.tier) for name, user in known.items() if name.startswith(text))[:most]
        async with self._database.reading() as connection:
            found = select(users.c.id, users.c.tier).where(begins(connection, users.c.id, text))
            return [(row.id, row.tier) for row in await connection.execute(found.order_by(users.c.id).limit(most))]

    async def find_by_digest(self, digest: str) -> str:
        """Return the user with a tier or overrides who has a digest in logs; empty if there is none."""
        names, shown = self.policy.ruleset.users, Principals().shown
        return await asyncio.to_thread(lambda: next((name for name in names if shown(name) == digest), ""))

    @property
    def policy(self) -> Policy:
        return self._engine.policy

    def tiers(self) -> list[str]:
        policy = self.policy
        named = {rule.rule.tier for rule in policy.rules.values()} | {
            *policy.ruleset.tiers,
            policy.ruleset.default_tier,
        }
        return sorted(named - {""})

    def list_entry(self, principal: Mapping[str, str]) -> str:
        """Return why a caller is admitted or refused without regard to limits; empty if limits decide."""
        reason = self.policy.select(Request(dict(principal)), self._engine.clock.now()).reason
        return "" if reason.startswith(f"{ENDPOINT} ") else reason  # of the path, which is unknown here

    async def uses(
        self, principal: Mapping[str, str], offset: int = 0, most: int | None = None, first: Collection[str] = ()
    ) -> tuple[list[RuleUse], int]:
        """Return the rules that count a caller, with their state, and their total number. Raises InvalidRequest.

        `principal` is by dimension, as in a request; `most` is None for all; the rules in `first` precede others.
        """
        policy, now = self.policy, self._engine.clock.now()
        facts, whole = facts_of(Request(dict(principal))), address_given(Request(dict(principal)))
        tier = policy.tier_of(principal.get("user", ""))
        found = [
            each
            for each in policy.rules.values()
            if each.rule.enabled
            and not principal.keys().isdisjoint(each.dimensions)
            and each.rule.tier in {"", tier}
            and (each.only is None or each.only.find(facts, whole) is not None)
        ]
        found.sort(key=lambda each: each.id not in first)
        chosen = found[offset : None if most is None else offset + most]
        uses: list[RuleUse] = []
        for some in slices(chosen):
            uses += await asyncio.gather(*[self._use(each, principal, tier, now) for each in some])
        return uses, len(found)

    async def _use(self, prepared: PreparedRule, principal: Mapping[str, str], tier: str, now: int) -> RuleUse:
        rule, policy = prepared.rule, self.policy
        of_tier = policy.ruleset.tiers.get(tier, {}).get(rule.id)
        is_changed = of_tier is not None and (of_tier.until is None or now < of_tier.until)
        usual = of_tier.apply(rule.quotas) if of_tier is not None and is_changed else rule.quotas
        request, missing = _request_of(rule, principal)
        if missing:
            return RuleUse(rule, usual, missing=missing)
        considered = explain_rule(policy, request, now)
        ruling = await self._engine.peek(request)
        states = tuple([each.decision for each in (*ruling.limits, *ruling.shadow)])
        return RuleUse(
            rule, usual, considered.quotas, considered.source, considered.is_enforced, states, ruling.degraded
        )

    async def reset(self, principal: Mapping[str, str], rules: Sequence[str], actor: Actor) -> dict[str, Any]:
        """Reset the limits of a principal that it shares with no other, or those of the named rules."""
        policy = self.policy
        enabled = [rule for rule in policy.rules.values() if rule.rule.enabled]
        known = [rule.id for rule in enabled if not principal.keys().isdisjoint(rule.dimensions)]
        done: list[str] = []
        for rule_id in rules or known:
            rule = existing(policy.rules.get(rule_id), f"rule {rule_id!r:.80} does not exist")
            if principal.keys().isdisjoint(rule.dimensions):
                named = " or ".join(principal)
                raise UsageError(
                    f"rule {rule_id} counts by {rule.rule.dimension}: it has no separate usage of one {named} to reset"
                )
            request, missing = _request_of(rule.rule, principal)
            if not missing:
                done += (await self._engine.reset(request)).rules
        if done and self._database is not None:
            ((kind, name), *_) = principal.items()
            async with self._database.exclusively() as connection:
                entry = audit.AuditEntry("reset", kind, name, None, {"rules": done})
                await audit.append(connection, [entry], actor, await revision_number(connection), epoch_us())
        return {"reset": done, "skipped": [each for each in rules or known if each not in done]}


def _request_of(rule: Rule, principal: Mapping[str, str]) -> tuple[Request, tuple[str, ...]]:
    """Return a request for a rule, and the dimensions that it lacks."""
    is_one_path = not {"*", "{"} & {*rule.endpoint}
    known = {*principal, GLOBAL, *([ENDPOINT] if is_one_path else ())}
    request = Request(dict(principal), rule.endpoint if is_one_path else "/", rule_id=rule.id)
    return request, tuple([name for name in rule.dimensions if name not in known])


def user_of(name: str, stored: Stored | None) -> Stored:
    """Return a user, which need not exist: one without tier and overrides is of version 0."""
    return stored or Stored(ObjectKind.USER, name, {}, 0, 0, 0)

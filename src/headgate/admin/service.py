"""The operations of the admin plane, shared by the REST API and the console.

Rules in a database can be changed. Rules in a file are read-only: a change fails with an error that names the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from headgate.admin.audit import Actor
from headgate.admin.changes import RuleChanges
from headgate.admin.consumers import Consumer, Consumers, NewConsumerKey
from headgate.admin.database import Database
from headgate.admin.keys import AdminKeys
from headgate.admin.live import LiveFigures
from headgate.admin.objects import STAMPS, ObjectKind, Operation, ResultPage, Stored, UnknownObject, check_stamps
from headgate.admin.refusals import RefusalLog
from headgate.admin.reports import Reports
from headgate.admin.rule_catalogs import RuleCatalog
from headgate.admin.tables import epoch_us
from headgate.admin.users import DEFAULT_TIER, Users, check_override
from headgate.config.problems import InvalidRules, render
from headgate.config.times import moment_text
from headgate.core.errors import UsageError
from headgate.engine import AsyncEngine
from headgate.policy.loading import user_from_data

_EMPTY: tuple[tuple[str, Any], ...] = (("tier", ""), ("overrides", {}))
SORTS = ("position", "id", "updated_at", "-id", "-updated_at")


class AdminService:
    """Operations on single rules, tiers and consumers; its attributes have the others.

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
        refusals, live = refusals or RefusalLog(database, list), live or LiveFigures(database)
        self.reports = Reports(rules, engine, database, hot_keys, refusals=refusals, live=live)
        self.changes = RuleChanges(rules, database, self.reports)

    # Rules, tiers, settings

    async def page(
        self, kind: ObjectKind, filters: Mapping[str, Any], sort: str, offset: int, limit: int
    ) -> ResultPage:
        """Return objects in force whose fields equal all filters."""
        found, total = await self.rules.page(kind, filters, sort, offset, limit)
        has_fields = kind in {ObjectKind.RULE, ObjectKind.USER}
        items = [{"id": each.id, **(each.written if has_fields else {"value": each.body})} for each in found]
        return ResultPage.of(items, total, offset + limit)

    async def get(self, kind: ObjectKind, name: str) -> Stored:
        """Return an object in force. Raises UnknownObject."""
        stored = await self.rules.get(kind, name)
        if stored is None:
            raise UnknownObject(f"there is no {kind} {name!r:.200}")
        return stored

    async def put(
        self, kind: ObjectKind, name: str, body: Any, expected: int | None, actor: Actor
    ) -> tuple[Stored, bool]:
        """Create or replace an object; return it, and whether it is new. Raises as `Catalog.change` does."""
        if body is None:
            raise UsageError(f"null is not a {kind}; to delete a {kind}, use DELETE")
        if kind is ObjectKind.SETTING and name == DEFAULT_TIER and isinstance(body, str):
            await self.users.check_tier(body)

        def replaced(stored: Stored | None) -> Any:
            if kind is ObjectKind.RULE:
                check_stamps(body, stored.written if stored else {})
            return body

        with _paths_in_body(kind, name):
            done = await self.rules.edit(kind, name, replaced, actor, expected)
        return cast("Stored", done.after), done.before is None

    async def try_rule(self, name: str, body: Any) -> dict[str, Any]:
        with _paths_in_body(ObjectKind.RULE, name):
            return await self.changes.try_rule(name, body)

    async def patch(
        self, kind: ObjectKind, name: str, given: dict[str, Any], expected: int | None, actor: Actor
    ) -> Stored | None:
        """Apply a JSON merge patch (RFC 7396) to an object; a user need not exist. Raises as `Catalog.change` does."""
        tier, changed = given.get("tier"), given.get("overrides")
        if kind is ObjectKind.USER and isinstance(tier, str | int | float):  # a number is read as text
            await self.users.check_tier(str(tier))

        def patched(stored: Stored | None) -> Any:
            if stored is None and kind is not ObjectKind.USER:
                raise UnknownObject(f"there is no {kind} {name!r:.200}")
            body = merge_patch(stored.body if stored else {}, given)
            if kind is ObjectKind.RULE:
                if body.get("id") != name or "rule_id" in given:
                    raise UsageError("the id of a rule cannot change: leave it out of the patch")
                check_stamps(given, stored.written if stored else {})
                body = {field: value for field, value in body.items() if field not in STAMPS}
            if kind is ObjectKind.USER:
                body = {name: value for name, value in body.items() if (name, value) not in _EMPTY} or None
                overrides = user_from_data(body or {}).overrides
                for rule in overrides.keys() & (changed or {}):
                    check_override(overrides[rule])
            return body

        with _paths_in_body(kind, name):
            return (await self.rules.edit(kind, name, patched, actor, expected)).after

    async def delete(
        self, kind: ObjectKind, name: str, expected: int | None, actor: Actor, *, drop: bool = False
    ) -> None:
        """Delete an object; with `drop` also the overrides of a rule, and the tier of its users.

        Raises as `Catalog.delete` does.
        """
        if kind in {ObjectKind.RULE, ObjectKind.TIER}:
            await self.rules.delete(kind, name, actor, expected, drop=drop)
        else:
            await self.rules.change([Operation(kind, name, None, expected)], actor)

    # Consumers

    async def create_consumer(
        self, name: str, tier: str, actor: Actor, *, tenant: str = "", expires_at: int | None = None
    ) -> NewConsumerKey:
        """Create a consumer with a key, and set the tier of its user if one is given. Raises UsageError."""
        await self.users.check_tier(tier)
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
            await self.delete(ObjectKind.USER, name, None, actor)


def consumer_data(consumer: Consumer) -> dict[str, Any]:
    """Return a consumer as JSON; `state` is active, or ended if none of its keys is accepted."""
    now = epoch_us()
    keys = [
        {
            "id": key.id,
            "created_at": moment_text(key.created_at),
            "created_by": key.created_by,
            "expires_at": moment_or_none(key.expires_at),
            "revoked_at": moment_or_none(key.revoked_at),
        }
        for key in consumer.keys
    ]
    newest, state = consumer.keys[-1], "active" if any(key.is_good(now) for key in consumer.keys) else "ended"
    return {"id": newest.consumer, "tenant": newest.tenant, "tier": consumer.tier, "state": state, "keys": keys}


def moment_or_none(at_us: int | None) -> str | None:
    return None if at_us is None else moment_text(at_us)


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396). It recurses: `decoded` has bounded the depth of the patch."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


@contextmanager
def _paths_in_body(kind: ObjectKind, name: str) -> Iterator[None]:
    """Report problems of an object with paths in its own body, which is what the client sent."""
    try:
        yield
    except InvalidRules as error:
        place = re.compile(re.escape(render((f"{kind}s", name))) + r"(?:\.|(?=\[)|$)")
        raise InvalidRules(
            replace(each, path=place.sub("", each.path, 1) if place.match(each.path) else each.path)
            for each in error.problems
        ) from None

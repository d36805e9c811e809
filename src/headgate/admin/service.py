"""What the admin plane does, whoever asks: in the words of operators, over a catalog, keys and an engine.

Rules come from a database, where they are changed, or from a file, where they are only looked at: then everything
that would change them is refused, and the refusal names the file.
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

_NOTHING_SPECIAL: tuple[tuple[str, Any], ...] = (("tier", ""), ("overrides", {}))
SORTS = ("position", "id", "updated_at", "-id", "-updated_at")


class AdminService:
    """Everything that operators do: here with single rules, tiers and consumers, and in parts with the rest.

    `rules` is the catalog, `keys` and `consumers` have keys, `users` tiers and overrides, `changes` revisions, and
    `reports` what there is to look at.

    Args:
        rules: where the rules are.
        engine: what decides by them, to look at limits and to reset them.
        keys: who may ask.
        database: where everything else is kept; None: nowhere, since the rules are in a file.
        hot_keys: returns the keys that are asked about most, as JSON.
        refusals: keeps the last refusals; default: what the database has.
        live: what nodes decide at present; default: what the database has.
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
        kept: dict[str, Any] = {
            "refusals": refusals or RefusalLog(database, list),
            "live": live or LiveFigures(database),
        }
        self.reports = Reports(rules, engine, database, hot_keys, **kept)
        self.changes = RuleChanges(rules, database, self.reports)

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
        if body is None:
            raise UsageError(f"null is not a {kind}; DELETE is what deletes one")
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
        """Say what a `put` of a rule would change; see `RuleChanges.try_rule`."""
        with _paths_in_body(ObjectKind.RULE, name):
            return await self.changes.try_rule(name, body)

    async def patch(
        self, kind: ObjectKind, name: str, given: dict[str, Any], expected: int | None, actor: Actor
    ) -> Stored | None:
        """Change some members of something (RFC 7396). Raises as `Catalog.change` does, and UnknownObject.

        Something may become special about any user, so that there is one; of what exists, null deletes members.
        """
        tier, changed = given.get("tier"), given.get("overrides")
        if kind is ObjectKind.USER and isinstance(tier, str | int | float):  # a number is read as text
            await self.users.check_tier(str(tier))

        def patched(stored: Stored | None) -> Any:
            if stored is None and kind is not ObjectKind.USER:
                raise UnknownObject(f"there is no {kind} {name!r:.200}")
            body = merge_patch(stored.body if stored else {}, given)
            if kind is ObjectKind.RULE:
                if body.get("id") != name or "rule_id" in given:
                    raise UsageError("the id of a rule stays as it is: leave it out of the patch")
                check_stamps(given, stored.written if stored else {})
                body = {field: value for field, value in body.items() if field not in STAMPS}
            if kind is ObjectKind.USER:
                body = {name: value for name, value in body.items() if (name, value) not in _NOTHING_SPECIAL} or None
                overrides = user_from_data(body or {}).overrides
                for rule in overrides.keys() & (changed or {}):
                    check_override(overrides[rule])
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

    # Consumers

    async def create_consumer(
        self, name: str, tier: str, actor: Actor, *, tenant: str = "", expires_at: int | None = None
    ) -> NewConsumerKey:
        """Make a key for a consumer, and move the user of its name to a tier, if one is given. Raises UsageError."""
        await self.users.check_tier(tier)
        made = await self.consumers.create(name, actor, tenant=tenant, expires_at=expires_at)
        if tier:
            await self.users.set_tier(name, tier, actor)
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


@contextmanager
def _paths_in_body(kind: ObjectKind, name: str) -> Iterator[None]:
    """Let problems of something be said with their places in its own body, which is what the client sent."""
    try:
        yield
    except InvalidRules as error:
        place = re.compile(re.escape(render((f"{kind}s", name))) + r"(?:\.|(?=\[)|$)")
        raise InvalidRules(
            replace(each, path=place.sub("", each.path, 1) if place.match(each.path) else each.path)
            for each in error.problems
        ) from None

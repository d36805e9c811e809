"""One change: its operations are validated, written, recorded in the audit trail and announced."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Table, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin import audit
from headgate.admin.audit import Actor, texts_of
from headgate.admin.objects import (
    SETTINGS,
    STAMPS,
    TABLES,
    Body,
    ObjectKind,
    Operation,
    Stored,
    UnknownObject,
    announce,
    bodies_in,
    check_version,
    order_of,
    revision_number,
    stored_of,
    without_overrides,
)
from headgate.admin.tables import (
    among,
    changes,
    member,
    overrides,
    revision,
    rules,
    settings,
    tiers,
    users,
    versions,
    write_rows,
)
from headgate.config.problems import Finding, InvalidRules
from headgate.policy.changing import BodyChange, from_part, put
from headgate.policy.dumping import to_data
from headgate.policy.forms import ALLOW, DEFAULT_ID
from headgate.policy.model import NO_RULES, Ruleset

KEPT_CHANGES = 10_000
"""Revisions whose changed objects are kept. Nodes that are further behind read everything."""
USERS, TIERS = "users", "tiers"
"""Kinds of objects that use a rule or a tier, and can be changed with its deletion."""
ORDER = "order"
"""The kind of a change of the order of rules."""


class Changed(NamedTuple):
    revision: int
    """The revision in force."""
    entries: tuple[audit.AuditEntry, ...]
    """The changed objects; empty if nothing changed."""

    def to_data(self, *, dry_run: bool, most: int | None = None) -> dict[str, Any]:
        """Return it as JSON: the numbers of created, updated and deleted objects, and the first `most` changes.

        Overrides that users lose are counted too. Deletions come first, then updates of users who lose overrides.
        """
        counts: dict[str, dict[str, int]] = {}
        lost = [len(lost_overrides(each)) for each in self.entries]
        for each in self.entries:
            of_kind = counts.setdefault(each.action, {})
            of_kind[str(each.kind)] = of_kind.get(str(each.kind), 0) + 1
        if any(lost):
            counts.setdefault("delete", {})["override"] = sum(lost)
        ranks = [(entry.action != "delete", not count) for entry, count in zip(self.entries, lost, strict=True)]
        listed = [self.entries[index] for index in sorted(range(len(ranks)), key=ranks.__getitem__)[:most]]
        changes = [
            {"kind": kind, "id": name, "action": action, "before": before, "after": after}
            for action, kind, name, before, after in listed
        ]
        total = len(self.entries)
        return {"revision": self.revision, "dry_run": dry_run, "total": total, "counts": counts, "changes": changes}


def lost_overrides(entry: audit.AuditEntry) -> set[str]:
    """Return the ids of rules whose overrides a user loses."""
    if entry.kind != ObjectKind.USER or not entry.before:
        return set()
    return set(entry.before.get("overrides", {})) - set((entry.after or {}).get("overrides", {}))


_Found = dict[tuple[ObjectKind, str], Stored]


class _Write(NamedTuple):
    kind: ObjectKind
    id: str
    body: Any | None
    before: Stored | None

    @property
    def entry(self) -> audit.AuditEntry:
        action = "delete" if self.body is None else "create" if self.before is None else "update"
        return audit.AuditEntry(action, self.kind, self.id, self.before.body if self.before else None, self.body)


class Transaction:
    """One change; with `dry_run`, nothing is written."""

    def __init__(self, connection: AsyncConnection, actor: Actor, now: int, *, dry_run: bool = False) -> None:
        self._connection, self._actor, self._now, self._dry_run = connection, actor, now, dry_run
        self.made = 0
        """The revision that it made; 0: none."""

    async def run(
        self, operations: Sequence[Operation], order: Sequence[str] = (), ruleset: Ruleset | None = None
    ) -> Changed:
        """Run operations.

        `order` is the new order of all rules, by id, if it may change; `ruleset` is the validated result, if there is
        one.
        """
        if ruleset is None:  # overrides that have ended must not prevent a change
            touched = {each.id for each in operations if each.kind is ObjectKind.RULE}
            ended = await ended_overrides(self._connection, self._now, touched)
            named = {each.id for each in operations if each.kind is ObjectKind.USER}
            operations = [*operations, *[each for each in ended if each.id not in named]]
        await asyncio.to_thread(_check_ids, operations)
        found: _Found = {}
        for kind in {each.kind for each in operations}:
            ids = [each.id for each in operations if each.kind is kind]
            found |= {(kind, name): each for name, each in (await stored_of(self._connection, kind, ids)).items()}
        wanted = await asyncio.to_thread(_effective, operations, found)
        number = await revision_number(self._connection) + 1
        if ruleset is None:
            ruleset = NO_RULES
            if wanted:
                ruleset = await asyncio.to_thread(from_part, await document_about(self._connection, wanted), name="")
        writes = await asyncio.to_thread(_writes, wanted, found, ruleset)
        is_rule_deleted = any(each.body is None for each in writes if each.kind is ObjectKind.RULE)
        present = await order_of(self._connection) if order or is_rule_deleted else []
        moves = _moves(order, present, writes) if order else []
        entries = await asyncio.to_thread(lambda: [*[each.entry for each in writes], *moves])
        if not entries:
            return Changed(number - 1, ())
        if self._dry_run:
            return Changed(number, tuple(entries))
        await self._write(writes, number, {name: place for place, name in enumerate(present)})
        await self._note_overrides(writes, ruleset)
        if moves:
            moved = update(rules).where(rules.c.id == bindparam("moved")).values(position=bindparam("to"))
            await self._connection.execute(moved, [{"moved": name, "to": place} for place, name in enumerate(order)])
            await self._connection.execute(insert(changes).values(revision=number, kind=ORDER, subject="rules"))
        await self._connection.execute(update(revision).values(number=number, changed_at=self._now))
        await audit.append(self._connection, entries, self._actor, number, self._now)
        await self._connection.execute(delete(changes).where(changes.c.revision <= number - KEPT_CHANGES))
        await announce(self._connection, number)
        self.made = number
        return Changed(number, tuple(entries))

    async def _write(self, writes: Sequence[_Write], number: int, places: Mapping[str, int]) -> None:
        """Write rows, versions and changes, in a bounded number of statements."""
        last: dict[tuple[ObjectKind, str], int] = {}
        for kind in ObjectKind:
            some = [each for each in writes if each.kind is kind]
            if not some:
                continue
            known = select(versions.c.id, func.max(versions.c.version)).group_by(versions.c.id)
            named = among(self._connection, versions.c.id, [each.id for each in some])
            for name, version in await self._connection.execute(known.where(versions.c.kind == kind, named)):
                last[kind, name] = version
            await self._write_rows(TABLES[kind], some, last)
        common = {"revision": number, "at": self._now, "actor": self._actor.name}

        def version_of(each: _Write) -> Body:
            version = last.get((each.kind, each.id), 0) + 1
            is_gone = each.kind is ObjectKind.RULE and each.body is None
            row = {**common, "kind": each.kind, "id": each.id, "version": version, "body": each.body}
            return row | {"place": places[each.id] if is_gone else None}

        def change_of(each: _Write) -> Body:
            return {"revision": number, "kind": each.kind, "subject": each.id}

        await write_rows(self._connection, insert(versions), writes, version_of)
        await write_rows(self._connection, insert(changes), writes, change_of)

    async def _write_rows(
        self, table: Table, writes: Sequence[_Write], last: Mapping[tuple[ObjectKind, str], int]
    ) -> None:
        if gone := [each.id for each in writes if each.body is None]:
            await self._connection.execute(delete(table).where(among(self._connection, table.c.id, gone)))
        made = [each for each in writes if each.before is None and each.body is not None]
        changed = [each for each in writes if each.before is not None and each.body is not None]
        places: dict[str, int] = {}
        if made and table is rules:
            bottom = (await self._connection.execute(select(func.max(rules.c.position)))).scalar()
            places = {each.id: place for place, each in enumerate(made, 0 if bottom is None else bottom + 1)}

        def row_of(each: _Write) -> Body:
            version = last.get((each.kind, each.id), 0) + 1
            row = {"id": each.id, "body": each.body, "version": version, "updated_at": self._now}
            if each.kind is ObjectKind.USER:
                row["tier"] = each.body.get("tier", "") if each.body else ""
            return row

        def new_row_of(each: _Write) -> Body:
            return {"created_at": self._now, "position": places.get(each.id), **row_of(each)}

        def replaced_row_of(each: _Write) -> Body:
            return {f"new_{name}": value for name, value in row_of(each).items()}

        await write_rows(self._connection, insert(table), made, new_row_of)
        if changed:
            columns = {name: bindparam(f"new_{name}", type_=table.c[name].type) for name in row_of(changed[0])}
            replaced = update(table).where(table.c.id == columns.pop("id")).values(**columns)
            await write_rows(self._connection, replaced, changed, replaced_row_of)

    async def _note_overrides(self, writes: Sequence[_Write], ruleset: Ruleset) -> None:
        of_users = [each.id for each in writes if each.kind is ObjectKind.USER and each.body is not None]
        if of_users:
            named = among(self._connection, overrides.c.user_id, of_users)
            await self._connection.execute(delete(overrides).where(named))
        rows = [
            {"user_id": user, "rule_id": rule, "until": change.until}
            for user in of_users
            for rule, change in ruleset.users[user].overrides.items()
        ]
        await write_rows(self._connection, insert(overrides), rows, dict)


async def ended_overrides(
    connection: AsyncConnection, now: int, of_rules: Collection[str] | None = None
) -> list[Operation]:
    """Return the operations that delete ended overrides, of some rules or all."""
    ended = select(overrides.c.user_id, overrides.c.rule_id).where(overrides.c.until <= now)
    if of_rules is not None:
        ended = ended.where(among(connection, overrides.c.rule_id, of_rules))
    rules_of: dict[str, set[str]] = {}
    for user, rule in await connection.execute(ended):
        rules_of.setdefault(user, set()).add(rule)
    stored = await stored_of(connection, ObjectKind.USER, rules_of)
    return [Operation(ObjectKind.USER, name, without_overrides(stored[name].body, rules_of[name])) for name in stored]


async def uses_of(
    connection: AsyncConnection, kind: ObjectKind, names: Collection[str], now: int
) -> dict[str, list[str]]:
    """Return the ids of objects that use some rules or tiers, by kind."""
    if not names:
        return {}
    if kind is ObjectKind.TIER:
        default = (await bodies_in(connection, settings)).get("default_tier")
        of_tier = select(users.c.id).where(among(connection, users.c.tier, names)).order_by(users.c.id)
        found = {
            USERS: list((await connection.execute(of_tier)).scalars()),
            "settings": ["default_tier"] * (default in names),
        }
    else:
        lasts = or_(overrides.c.until.is_(None), overrides.c.until > now)
        of_rules = among(connection, overrides.c.rule_id, names)
        overriding = select(overrides.c.user_id).where(of_rules, lasts).distinct().order_by(overrides.c.user_id)
        found = {
            USERS: list((await connection.execute(overriding)).scalars()),
            TIERS: [tier for tier, body in (await bodies_in(connection, tiers)).items() if body.keys() & set(names)],
            "rules": list(await _replacing(connection, set(names))),
        }
    return {how: names for how, names in found.items() if names}


async def without_uses(
    connection: AsyncConnection,
    users: Collection[str],
    tiers: Collection[str],
    *,
    rules: Collection[str] = (),
    of_tiers: Collection[str] = (),
) -> list[Operation]:
    """Return the operations that remove some rules from users and tiers, and some tiers from users."""
    operations = []
    for user, stored in (await stored_of(connection, ObjectKind.USER, users)).items():
        body = without_overrides(stored.body, rules) or {}
        left = {field: value for field, value in body.items() if field != "tier" or value not in of_tiers}
        operations.append(Operation(ObjectKind.USER, user, left or None))
    for tier, stored in (await stored_of(connection, ObjectKind.TIER, tiers)).items():
        changed = {rule: change for rule, change in stored.body.items() if rule not in rules}
        operations.append(Operation(ObjectKind.TIER, tier, changed))
    return operations


async def document_about(connection: AsyncConnection, operations: Sequence[Operation]) -> Body:
    """Return the result of operations, without the parts that they cannot affect; see `Catalog.about`.

    Of the users of a rule or a tier, it has one for each different override.
    """
    touched = {kind: {each.id: each.body for each in operations if each.kind is kind} for kind in ObjectKind}
    in_force = await bodies_in(connection, settings)
    document: Body = {name: in_force[name] for name in ("default_tier", "default") if name in in_force}
    document |= {"version": 1, "tiers": await bodies_in(connection, tiers), "users": {}}
    put(document, [BodyChange(kind, name, body) for kind, name, body, _ in operations if kind is not ObjectKind.RULE])
    edited = set(touched[ObjectKind.RULE])
    gone = {name for name, body in touched[ObjectKind.RULE].items() if body is None}
    if "default" in touched[ObjectKind.SETTING]:
        before, after = _default_id(in_force.get("default")), _default_id(document.get("default"))
        edited |= {before, after}
        gone |= {before} - {after}
    retiered: list[Any] = [*touched[ObjectKind.TIER]]
    if "default_tier" in touched[ObjectKind.SETTING]:
        retiered.append(document.get("default_tier"))
    concerned = edited.union(*[_names_in(_part(document["tiers"], tier)) for tier in retiered])
    named = concerned.union(*[_names_in(_part(body, "overrides")) for body in document["users"].values()])
    document["tiers"] = {
        tier: {rule: body for rule, body in given.items() if rule in named} if isinstance(given, dict) else given
        for tier, given in document["tiers"].items()
    }
    document["rules"] = await _rules_about(connection, touched[ObjectKind.RULE], named, gone)
    put(document, [BodyChange(kind, name, body) for kind, name, body, _ in operations if kind is ObjectKind.RULE])
    if concerned:
        await _add_users(connection, concerned, document["users"], touched[ObjectKind.USER])
    return document


async def _rules_about(
    connection: AsyncConnection, touched: Mapping[str, Any], named: set[str], gone: set[str]
) -> list[Body]:
    """Return the named rules, those that touched rules replace, and those that replace deleted rules."""
    found: dict[str, Body] = {}
    for name, stored in (await stored_of(connection, ObjectKind.RULE, named)).items():
        found[name] = {**stored.body, "replaces": []}
    seen: set[str] = set()
    following = {name for body in touched.values() for name in _names_in(_part(body, "replaces"))}
    while following := following - seen:  # transitively, since replacements may form a cycle
        seen |= following
        some = await stored_of(connection, ObjectKind.RULE, following)
        found |= {name: stored.body for name, stored in some.items()}
        following = {name for stored in some.values() for name in _names_in(_part(stored.body, "replaces"))}
    replacing = await _replacing(connection, gone) if gone else {}
    for name, stored in (await stored_of(connection, ObjectKind.RULE, replacing.keys() - touched.keys())).items():
        found[name] = {**stored.body, "replaces": replacing[name]}
    return list(found.values())


async def _replacing(connection: AsyncConnection, names: set[str]) -> dict[str, list[str]]:
    """Return the rules that replace some of these, each with the ids that it replaces."""
    replaces = rules.c.body["replaces"].as_string()
    listed = select(rules.c.id, replaces).where(replaces.is_not(None)).order_by(rules.c.id)
    read = {rule: _names_in(msgspec.json.decode(text)) for rule, text in await connection.execute(listed)}
    return {rule: sorted(names.intersection(replaced)) for rule, replaced in read.items() if names & {*replaced}}


async def _add_users(connection: AsyncConnection, concerned: set[str], given: Body, touched: Mapping[str, Any]) -> None:
    """Add one user for each different pair of an override and a tier; `touched` users are there already."""
    change = member(connection, users.c.body, "overrides", overrides.c.rule_id)
    kinds = overrides.c.rule_id, users.c.tier, change
    some = (
        select(func.min(overrides.c.user_id), *kinds)
        .join(users, users.c.id == overrides.c.user_id)
        .where(among(connection, overrides.c.rule_id, concerned), ~among(connection, overrides.c.user_id, touched))
        .group_by(*kinds)
    )
    for name, rule, tier, text in await connection.execute(some):
        user = given.setdefault(name, {"overrides": {}} | ({"tier": tier} if tier else {}))
        user["overrides"][rule] = msgspec.json.decode(text or "null")


def _moves(order: Sequence[str], present: Sequence[str], writes: Sequence[_Write]) -> list[audit.AuditEntry]:
    """Return the audit entry of a new order of rules, if the order after all writes is another."""
    of_rules = [each for each in writes if each.kind is ObjectKind.RULE]
    gone = {each.id for each in of_rules if each.body is None}
    written = [name for name in present if name not in gone] + [each.id for each in of_rules if each.before is None]
    if written == list(order):
        return []
    return [audit.AuditEntry("update", ORDER, "rules", {"rules": list(present)}, {"rules": list(order)})]


def _default_id(default: Any) -> str:
    own = default.get("id", default.get("rule_id", DEFAULT_ID)) if isinstance(default, dict) else DEFAULT_ID
    return own if default not in (None, ALLOW) and isinstance(own, str) else ""


def _part(body: Any, name: Any) -> Any:
    """Return a member of data that is not validated yet; None if there is none."""
    return body.get(name) if isinstance(body, dict) and isinstance(name, str) else None


def _names_in(part: Any) -> list[str]:
    return [name for name in part if isinstance(name, str)] if isinstance(part, dict | list) else []


def _effective(operations: Sequence[Operation], found: _Found) -> list[Operation]:
    """Return operations that have an effect. Raises VersionConflict and UnknownObject."""
    wanted = []
    for each in operations:
        stored = found.get((each.kind, each.id))
        if each.expected is not None:
            check_version(f"{each.kind} {each.id!r:.200}", each.expected, stored.version if stored else 0)
        if each.body is None and stored is None:
            raise UnknownObject(f"{each.kind} {each.id!r} does not exist")
        if stored is None or each.body is None or each.body != stored.body:
            wanted.append(each)
    return wanted


def _writes(operations: Sequence[Operation], found: _Found, ruleset: Ruleset) -> list[_Write]:
    """Return the effects of operations, with bodies in the normal form of a rules file."""
    by_id = {rule.id: rule for rule in ruleset.rules}
    writes = []
    for kind, name, body, _ in operations:
        written, before = body, found.get((kind, name))
        if body is not None and kind is ObjectKind.RULE:
            written = {key: value for key, value in to_data(by_id[name]).items() if key not in STAMPS}
        elif body is not None and kind is not ObjectKind.SETTING:
            written = to_data(ruleset.tiers[name] if kind is ObjectKind.TIER else ruleset.users[name])
        if before is None or written != before.body:
            writes.append(_Write(kind, name, written, before))
    return writes


def _check_ids(operations: Sequence[Operation]) -> None:
    """Raise InvalidRules for ids that a database cannot store; other checks are those of rules files."""
    for kind, name, body, _ in operations:
        longest = 512 if kind is ObjectKind.USER else 64
        if not 0 < len(name) <= longest or "\0" in name or not name.isprintable():
            wanted = f"1 to {longest} printable characters"
            raise InvalidRules([Finding(f"{name!r:.80} is not the id of a {kind}", accepted=wanted)])
        if not all(text.isprintable() for text in texts_of(body)):
            raise InvalidRules([Finding(f"{kind} {name!r:.80} has text with characters that cannot be shown")])
        if kind is ObjectKind.SETTING and name not in SETTINGS:
            raise InvalidRules([Finding(f"{name!r:.80} is not a setting", accepted=f"one of {', '.join(SETTINGS)}")])

"""The rules, tiers, users and settings in a database: what is in force, what was, and how it changes.

A change is a list of operations that happen together or not at all. Whatever is asked for is first validated with
everything that it touches, by the declaration that also reads rules files, and is kept in the form that it would have
in such a file. Every change moves the revision, leaves the version that was before, and is recorded in the audit trail,
all in one transaction; changes happen one after the other.

Whoever changes what somebody else has changed meanwhile can be told so rather than overwrite it: an operation may name
the version that it is to replace.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import Table, delete, func, insert, literal, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin import audit
from headgate.admin.audit import Actor, texts_of
from headgate.admin.database import Database
from headgate.admin.tables import changes, overrides, revision, rules, settings, tiers, users, versions
from headgate.core.errors import HeadgateError
from headgate.policy.dumping import to_data
from headgate.policy.loading import from_data
from headgate.policy.model import Change, Ruleset
from headgate.policy.problems import InvalidRules, Problem
from headgate.policy.snapshot import BodyChange, Changes, Whole, put
from headgate.policy.times import moment_text

CHANNEL = "headgate"
"""The channel of PostgreSQL on which every new revision is announced."""
SETTINGS = ("default_tier", "allow", "deny", "default", "ignore_case", "unknown_rule")
"""What a rules file has besides rules, tiers and users."""
KEPT_CHANGES = 10_000
"""Revisions of which it is known what they touched. Nodes that are further behind read everything."""
_IN_ONE_QUERY = 500
_STAMPS = ("created_at", "updated_at")
_ORDER = "order"
"""The kind of a change that rules follow each other in another order."""

Body = dict[str, Any]


class ObjectKind(StrEnum):
    """What an operation is about."""

    RULE = "rule"
    TIER = "tier"
    USER = "user"
    SETTING = "setting"


_TABLES: Mapping[ObjectKind, Table] = {
    ObjectKind.RULE: rules,
    ObjectKind.TIER: tiers,
    ObjectKind.USER: users,
    ObjectKind.SETTING: settings,
}


class Operation(NamedTuple):
    """One thing to change."""

    kind: ObjectKind
    id: str
    body: Any | None
    """What it is to be, in the form of a rules file; None: it is to be deleted."""
    expected: int | None = None
    """The version that this replaces: 0 for something new, None for whatever there is."""


class Stored(NamedTuple):
    """Something in force."""

    kind: ObjectKind
    id: str
    body: Any
    version: int
    created_at: int
    updated_at: int


class ObjectVersion(NamedTuple):
    """What something was once."""

    version: int
    body: Any | None
    """None: it was deleted then."""
    revision: int
    at: int
    actor: str


class Changed(NamedTuple):
    """What a change has done."""

    revision: int
    """The revision that is in force now."""
    entries: tuple[audit.AuditEntry, ...]
    """What it changed; empty if everything was so already."""


class VersionConflict(HeadgateError):
    """Something is not of the version that was to be replaced: somebody else was quicker."""

    def __init__(self, operation: Operation, found: int) -> None:
        self.operation, self.found = operation, found
        what = f"{operation.kind} {operation.id!r}"
        if not operation.expected:
            super().__init__(f"{what} exists already, in version {found}")
        elif not found:
            super().__init__(f"{what} does not exist any more; version {operation.expected} was to be replaced")
        else:
            super().__init__(f"{what} is of version {found} by now, not {operation.expected}: read it again")


class UnknownObject(HeadgateError):
    """Something that was to be deleted, or whose version was asked for, does not exist."""


class Catalog:
    """What a database says is in force.

    Args:
        database: where it is kept.
        clock: what time it is, in microseconds since the epoch; for tests.
    """

    def __init__(self, database: Database, clock: Callable[[], int] | None = None) -> None:
        self.database = database
        self._now = clock or (lambda: time.time_ns() // 1000)

    async def revision(self) -> int:
        """Return the revision that is in force."""
        async with self.database.reading() as connection:
            return await _number(connection)

    async def document(self) -> Whole:
        """Return the revision that is in force, and all of it as the data of a rules file."""
        async with self.database.reading() as connection:
            return Whole(await _number(connection), await _document(connection))

    async def get(self, kind: ObjectKind, name: str) -> Stored | None:
        """Return something in force; None if it does not exist."""
        async with self.database.reading() as connection:
            return (await _stored(connection, kind, [name])).get(name)

    async def page(self, kind: ObjectKind, *, after: str = "", most: int = 1000) -> list[Stored]:
        """Return what is in force of one kind, in the order of ids, beginning after one."""
        table = _TABLES[kind]
        page = select(table).where(table.c.id > after).order_by(table.c.id).limit(most)
        async with self.database.reading() as connection:
            return [_of_row(kind, row) for row in (await connection.execute(page)).mappings()]

    async def versions(self, kind: ObjectKind, name: str) -> list[ObjectVersion]:
        """Return all that something ever was, the newest first."""
        of_it = select(versions).where(versions.c.kind == kind, versions.c.id == name)
        async with self.database.reading() as connection:
            found = (await connection.execute(of_it.order_by(versions.c.version.desc()))).mappings()
            return [ObjectVersion(*[row[field] for field in ObjectVersion._fields]) for row in found]

    async def changed_since(self, number: int) -> Changes | None:
        """Return what differs from an earlier revision; None if that is too long ago, or never was."""
        async with self.database.reading() as connection:
            now = await _number(connection)
            oldest = (await connection.execute(select(func.min(changes.c.revision)))).scalar()
            if number > now or (number < now and (oldest is None or oldest > number + 1)):
                return None
            touched = select(changes.c.kind, changes.c.subject).distinct().where(changes.c.revision > number)
            names: dict[ObjectKind, list[str]] = {}
            for kind, subject in await connection.execute(touched):
                if kind == _ORDER:  # of which single rules say nothing
                    return None
                names.setdefault(ObjectKind(kind), []).append(subject)
            bodies: list[BodyChange] = []
            for kind, ids in names.items():
                stored = await _stored(connection, kind, ids)
                in_order = dict.fromkeys([*stored, *ids])  # new rules follow each other as they do there
                bodies += [
                    BodyChange(kind, name, _written(stored[name]) if name in stored else None) for name in in_order
                ]
            return Changes(now, tuple(bodies))

    async def about(self, given: Changes) -> Body:
        """Return what changes have to go with, themselves included, as the data of a rules file.

        Users whom they cannot concern are left out and, if only users change, rules as well.
        """
        touched = {kind: {each.id for each in given.changes if each.kind == kind} for kind in ObjectKind}
        async with self.database.reading() as connection:
            transaction = _Transaction(connection, Actor(""), self._now())
            if all(each.kind == ObjectKind.USER for each in given.changes):
                wanted = [Operation(ObjectKind.USER, each.id, each.body) for each in given.changes]
                document = await transaction.document_for_users(wanted)
            else:
                document = await _document(connection, with_users=await transaction.users_concerned(touched))
        for each in given.changes:
            put(document, each)
        return document

    async def change(self, operations: Sequence[Operation], actor: Actor, *, dry_run: bool = False) -> Changed:
        """Do all of `operations`, or none.

        Args:
            operations: what to do; no two about the same thing.
            actor: who wants it, and why.
            dry_run: only say what would be changed.

        Raises:
            InvalidRules: what there would be then cannot be used; it says all that is wrong.
            VersionConflict: somebody else was quicker.
            UnknownObject: what is to be deleted does not exist.
            DatabaseError: the database could not do it. Nothing is changed then.
        """
        async with self.database.exclusively(dry_run=dry_run) as connection:
            return await _Transaction(connection, actor, self._now()).run(operations)

    async def apply(self, document: Body, actor: Actor, *, dry_run: bool = False, only_first: bool = False) -> Changed:
        """Let what a rules file says, and nothing else, be in force; see `change`.

        With `only_first` nothing happens where anything was ever changed.
        """
        await asyncio.to_thread(from_data, document)
        async with self.database.exclusively(dry_run=dry_run) as connection:
            number = await _number(connection)
            if only_first and number:
                return Changed(number, ())
            present = await _document(connection)
            operations, order = (
                await asyncio.to_thread(operations_between, present, document),
                list(_rules_of(document)),
            )
            return await _Transaction(connection, actor, self._now()).run(operations, order)

    async def roll_back(self, kind: ObjectKind, name: str, version: int, actor: Actor) -> Changed:
        """Let something be again what it was in a version; that makes a new version."""
        for found in await self.versions(kind, name):
            if found.version == version:
                return await self.change([Operation(kind, name, found.body)], actor)
        raise UnknownObject(f"{kind} {name!r} has no version {version}")


class _Transaction:
    """The making of one change."""

    def __init__(self, connection: AsyncConnection, actor: Actor, now: int) -> None:
        self._connection, self._actor, self._now = connection, actor, now

    async def run(self, operations: Sequence[Operation], order: Sequence[str] = ()) -> Changed:
        """Do what is to be done; `order` are the ids of all rules as they are to follow each other, if that matters."""
        found = await self._found(operations)
        wanted = [each for each in operations if self._is_new(each, found.get((each.kind, each.id)))]
        entries, number = list[audit.AuditEntry](), await _number(self._connection) + 1
        ruleset = await self._ruleset(wanted) if wanted else Ruleset()
        written = await asyncio.to_thread(_canonical, wanted, ruleset)
        for operation, body in zip(wanted, written, strict=True):
            before = found.get((operation.kind, operation.id))
            if before is not None and body == before.body:
                continue
            entries.append(await self._write(operation, body, before, number))
            if operation.kind is ObjectKind.USER and body is not None:
                await self._note_overrides(operation.id, ruleset.users[operation.id].overrides)
        if order:
            entries += await self._put_in_order(order, number)
        if not entries:
            return Changed(number - 1, ())
        await self._connection.execute(update(revision).values(number=number, changed_at=self._now))
        await audit.append(self._connection, entries, self._actor, number, self._now)
        await self._connection.execute(delete(changes).where(changes.c.revision <= number - KEPT_CHANGES))
        if self._connection.dialect.name == "postgresql":
            await self._connection.execute(select(func.pg_notify(CHANNEL, str(number))))
        return Changed(number, tuple(entries))

    async def _put_in_order(self, order: Sequence[str], number: int) -> list[audit.AuditEntry]:
        """Let rules follow each other in an order; returns what there is to record of it."""
        in_order = select(rules.c.id).order_by(rules.c.position, rules.c.id)
        present = list((await self._connection.execute(in_order)).scalars())
        if present == list(order):
            return []
        for position, name in enumerate(order):
            await self._connection.execute(update(rules).where(rules.c.id == name).values(position=position))
        await self._connection.execute(insert(changes).values(revision=number, kind=_ORDER, subject="rules"))
        return [audit.AuditEntry("update", _ORDER, "rules", {"rules": present}, {"rules": list(order)})]

    async def _found(self, operations: Sequence[Operation]) -> dict[tuple[ObjectKind, str], Stored]:
        names: dict[ObjectKind, list[str]] = {}
        for operation in operations:
            _check_id(operation)
            names.setdefault(operation.kind, []).append(operation.id)
        found = {}
        for kind, ids in names.items():
            for name, stored in (await _stored(self._connection, kind, ids)).items():
                found[kind, name] = stored
        return found

    @staticmethod
    def _is_new(operation: Operation, found: Stored | None) -> bool:
        """Whether there is anything to do; raises where it is not what was expected."""
        version = found.version if found else 0
        if operation.expected is not None and operation.expected != version:
            raise VersionConflict(operation, version)
        if operation.body is None and found is None:
            raise UnknownObject(f"{operation.kind} {operation.id!r} does not exist")
        return found is None or operation.body is None or operation.body != found.body

    async def _ruleset(self, operations: Sequence[Operation]) -> Ruleset:
        """Return the rules as they would be, as far as these operations can make a difference. Raises InvalidRules."""
        touched = {kind: {each.id for each in operations if each.kind is kind} for kind in ObjectKind}
        only_users = not (touched[ObjectKind.RULE] or touched[ObjectKind.TIER] or touched[ObjectKind.SETTING])
        if only_users:
            document = await self.document_for_users(operations)
        else:
            concerned = await self.users_concerned(touched)
            document = await _document(self._connection, with_users=concerned)
        for operation in operations:
            put(document, BodyChange(operation.kind, operation.id, operation.body))
        return await asyncio.to_thread(from_data, document)

    async def document_for_users(self, operations: Sequence[Operation]) -> Body:
        """Return the rules that the overrides of users name, and what tiers change of them."""
        bodies = [each.body for each in operations if isinstance(each.body, dict)]
        given = [body.get("overrides") for body in bodies]
        named = sorted({name for table in given if isinstance(table, dict) for name in table if isinstance(name, str)})
        document: Body = {"version": 1, "rules": [], "tiers": {}, "users": {}}
        if not named:
            return document
        for stored in (await _stored(self._connection, ObjectKind.RULE, named)).values():
            document["rules"].append({key: value for key, value in stored.body.items() if key != "replaces"})
        known = {rule["id"] for rule in document["rules"]}
        for row in await self._connection.execute(select(tiers.c.id, tiers.c.body)):
            document["tiers"][row.id] = {rule: body for rule, body in row.body.items() if rule in known}
        for row in await self._connection.execute(select(settings.c.id, settings.c.body)):
            if row.id in {"default_tier", "default"}:
                document[row.id] = row.body
        return document

    async def users_concerned(self, touched: Mapping[ObjectKind, set[str]]) -> set[str]:
        """Return the users whose overrides are about rules, or on top of tiers, that these operations touch."""
        concerned = set()
        for names in _slices(sorted(touched[ObjectKind.RULE])):
            of_rules = select(overrides.c.user_id).distinct().where(overrides.c.rule_id.in_(names))
            concerned |= set((await self._connection.execute(of_rules)).scalars())
        of_tiers = select(overrides.c.user_id).distinct().join(users, users.c.id == overrides.c.user_id)
        if "default_tier" in touched[ObjectKind.SETTING]:
            named = or_(users.c.tier.in_(sorted(touched[ObjectKind.TIER])), users.c.tier == "")
        else:
            named = users.c.tier.in_(sorted(touched[ObjectKind.TIER]))
        return concerned | set((await self._connection.execute(of_tiers.where(named))).scalars())

    async def _write(self, operation: Operation, body: Any, before: Stored | None, number: int) -> audit.AuditEntry:
        kind, name, table = operation.kind, operation.id, _TABLES[operation.kind]
        last = select(func.max(versions.c.version)).where(versions.c.kind == kind, versions.c.id == name)
        version = ((await self._connection.execute(last)).scalar() or 0) + 1
        if body is None:
            await self._connection.execute(delete(table).where(table.c.id == name))
        else:
            await self._put_row(operation, body, before, version)
        row = {"kind": kind, "id": name, "version": version, "body": body, "revision": number}
        await self._connection.execute(insert(versions).values(**row, at=self._now, actor=self._actor.name))
        await self._connection.execute(insert(changes).values(revision=number, kind=kind, subject=name))
        action = "delete" if body is None else "create" if before is None else "update"
        return audit.AuditEntry(action, kind, name, before.body if before else None, body)

    async def _put_row(self, operation: Operation, body: Any, before: Stored | None, version: int) -> None:
        kind, name, table = operation.kind, operation.id, _TABLES[operation.kind]
        values: Body = {"body": body, "version": version, "updated_at": self._now}
        if kind is ObjectKind.USER:
            values["tier"] = body.get("tier", "")
        if kind is ObjectKind.RULE and before is None:
            values["position"] = select(func.coalesce(func.max(rules.c.position), literal(-1)) + 1).scalar_subquery()
        if before is None:
            await self._connection.execute(insert(table).values(id=name, created_at=self._now, **values))
        else:
            await self._connection.execute(update(table).where(table.c.id == name).values(**values))

    async def _note_overrides(self, user: str, overridden: Mapping[str, Change]) -> None:
        await self._connection.execute(delete(overrides).where(overrides.c.user_id == user))
        rows = [{"user_id": user, "rule_id": rule, "until": change.until} for rule, change in overridden.items()]
        if rows:
            await self._connection.execute(insert(overrides), rows)


def operations_between(present: Body, wanted: Body) -> list[Operation]:
    """Return what makes of the data of one rules file that of another."""
    operations = []
    for kind, before, after in (
        (ObjectKind.SETTING, _settings_of(present), _settings_of(wanted)),
        (ObjectKind.RULE, _rules_of(present), _rules_of(wanted)),
        (ObjectKind.TIER, present.get("tiers") or {}, wanted.get("tiers") or {}),
        (ObjectKind.USER, present.get("users") or {}, wanted.get("users") or {}),
    ):
        operations += [Operation(kind, name, None) for name in before if name not in after]
        for name, body in after.items():
            if name not in before or before[name] != body:
                operations.append(Operation(kind, name, body if body is not None else {}))
    return operations


def _rules_of(document: Body) -> dict[str, Any]:
    found = {}
    for rule in document.get("rules") or ():
        body = {"id" if key == "rule_id" else key: value for key, value in rule.items() if key not in _STAMPS}
        found[body["id"]] = body
    return found


def _settings_of(document: Body) -> dict[str, Any]:
    return {name: document[name] for name in SETTINGS if document.get(name) is not None}


def _canonical(operations: Sequence[Operation], ruleset: Ruleset) -> list[Any]:
    """Return the body of each operation as a rules file would have it."""
    by_id = {rule.id: rule for rule in ruleset.rules}
    written: list[Any] = []
    for kind, name, body, *_ in operations:
        if body is None or kind is ObjectKind.SETTING:
            written.append(body)
        elif kind is ObjectKind.RULE:
            written.append({key: value for key, value in to_data(by_id[name]).items() if key not in _STAMPS})
        elif kind is ObjectKind.TIER:
            written.append(to_data(ruleset.tiers[name]))
        else:
            written.append(to_data(ruleset.users[name]))
    return written


def _check_id(operation: Operation) -> None:
    """Refuse ids that a database cannot have; what else is wrong with them, the rules say."""
    longest = 512 if operation.kind is ObjectKind.USER else 64
    name = operation.id
    if not 0 < len(name) <= longest or "\0" in name or not name.isprintable():
        wanted = f"1 to {longest} printable characters"
        raise InvalidRules([Problem(f"{name!r:.80} is not the id of a {operation.kind}", accepted=wanted)])
    if not all(text.isprintable() for text in texts_of(operation.body)):
        raise InvalidRules([Problem(f"{operation.kind} {name!r:.80} has text with characters that cannot be shown")])
    if operation.kind is ObjectKind.SETTING and name not in SETTINGS:
        raise InvalidRules([Problem(f"{name!r:.80} is not a setting", accepted=f"one of {', '.join(SETTINGS)}")])


async def _number(connection: AsyncConnection) -> int:
    number: int = (await connection.execute(select(revision.c.number))).scalar_one()
    return number


async def _document(connection: AsyncConnection, with_users: set[str] | None = None) -> Body:
    """Return all that is in force as the data of a rules file; of users only some, if they are given."""
    document: Body = {"version": 1}
    in_order = select(rules).order_by(rules.c.position, rules.c.id)
    stored = [_of_row(ObjectKind.RULE, row) for row in (await connection.execute(in_order)).mappings()]
    document["rules"] = [_written(each) for each in stored]
    document["tiers"] = {row.id: row.body for row in await connection.execute(select(tiers.c.id, tiers.c.body))}
    if with_users is None:
        document["users"] = {row.id: row.body for row in await connection.execute(select(users.c.id, users.c.body))}
    else:
        found = await _stored(connection, ObjectKind.USER, sorted(with_users))
        document["users"] = {name: each.body for name, each in found.items()}
    for row in await connection.execute(select(settings.c.id, settings.c.body)):
        document[row.id] = row.body
    return document


async def _stored(connection: AsyncConnection, kind: ObjectKind, names: Sequence[str]) -> dict[str, Stored]:
    table, found = _TABLES[kind], {}
    for some in _slices(names):
        in_order = (rules.c.position, rules.c.id) if table is rules else (table.c.id,)
        wanted = select(table).where(table.c.id.in_(some)).order_by(*in_order)
        for row in (await connection.execute(wanted)).mappings():
            found[row["id"]] = _of_row(kind, row)
    return found


def _of_row(kind: ObjectKind, row: Mapping[Any, Any]) -> Stored:
    return Stored(kind, row["id"], row["body"], row["version"], row["created_at"], row["updated_at"])


def _written(stored: Stored) -> Any:
    """Return a body with what the database knows besides: of a rule, when it was made and changed."""
    if stored.kind is not ObjectKind.RULE:
        return stored.body
    return {**stored.body, "created_at": moment_text(stored.created_at), "updated_at": moment_text(stored.updated_at)}


def _slices(names: Sequence[str]) -> Iterable[Sequence[str]]:
    """Return a few names at a time: a query has only so many parameters."""
    return (names[at : at + _IN_ONE_QUERY] for at in range(0, len(names), _IN_ONE_QUERY))

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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Table, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin import audit
from headgate.admin.audit import Actor, texts_of
from headgate.admin.database import Database
from headgate.admin.objects import (
    ANY_VERSION,
    SETTINGS,
    STAMPS,
    TABLES,
    Body,
    ObjectKind,
    ObjectVersion,
    Operation,
    Stored,
    among,
    condition,
    document_of,
    operations_between,
    revision_number,
    rules_of,
    stored_columns,
    stored_of,
    write_rows,
)
from headgate.admin.tables import changes, overrides, revision, rules, settings, tiers, users, versions
from headgate.core.errors import HeadgateError
from headgate.policy.dumping import to_data
from headgate.policy.loading import from_data
from headgate.policy.model import Ruleset
from headgate.policy.problems import Finding, InvalidRules
from headgate.policy.snapshot import BodyChange, Changes, Whole, put

CHANNEL = "headgate"
"""The channel of PostgreSQL on which every new revision is announced."""
KEPT_CHANGES = 10_000
"""Revisions of which it is known what they touched. Nodes that are further behind read everything."""
_ORDER = "order"
"""The kind of a change that rules follow each other in another order."""


class Changed(NamedTuple):
    """What a change has done."""

    revision: int
    """The revision that is in force now."""
    entries: tuple[audit.AuditEntry, ...]
    """What it changed; empty if everything was so already."""


class Edited(NamedTuple):
    """What something was, and what it is after an edit; None where it did not, or does not, exist."""

    before: Stored | None
    after: Stored | None
    revision: int
    """The revision that is in force now."""


class VersionConflict(HeadgateError):
    """Something is not of the version that was to be replaced: somebody else was quicker."""

    def __init__(self, what: str, expected: int, found: int) -> None:
        self.expected = expected
        if not expected:
            super().__init__(f"{what} exists already, in version {found}")
        elif expected == ANY_VERSION:
            super().__init__(f"{what} does not exist, and If-Match asks for one that does")
        elif not found:
            super().__init__(f"{what} does not exist any more; version {expected} was to be replaced")
        else:
            super().__init__(f"{what} is of version {found} by now, not {expected}: read it again")


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
            return await revision_number(connection)

    async def document(self) -> Whole:
        """Return the revision that is in force, and all of it as the data of a rules file."""
        async with self.database.reading() as connection:
            return Whole(await revision_number(connection), await document_of(connection))

    async def get(self, kind: ObjectKind, name: str) -> Stored | None:
        """Return something in force; None if it does not exist."""
        async with self.database.reading() as connection:
            return (await stored_of(connection, kind, [name])).get(name)

    async def page(
        self, kind: ObjectKind, filters: Mapping[str, Any], sort: str, offset: int, limit: int
    ) -> tuple[list[Stored], int]:
        """Return some of what is in force of one kind, and how many pass the filters; see `RULE_DEFAULTS`."""
        table = TABLES[kind]
        column, conditions = table.c[sort.lstrip("-")], [condition(table, *each) for each in filters.items()]
        in_order = (column.desc() if sort.startswith("-") else column, table.c.id)
        some = select(*stored_columns(table)).where(*conditions).order_by(*in_order).offset(offset).limit(limit)
        async with self.database.reading() as connection:
            total = (await connection.execute(select(func.count()).select_from(table).where(*conditions))).scalar_one()
            return [Stored(kind, *row) for row in await connection.execute(some)], total

    async def versions(self, kind: ObjectKind, name: str) -> list[ObjectVersion]:
        """Return all that something ever was, the newest first."""
        of_it = select(versions).where(versions.c.kind == kind, versions.c.id == name)
        async with self.database.reading() as connection:
            found = (await connection.execute(of_it.order_by(versions.c.version.desc()))).mappings()
            return [ObjectVersion(*[row[field] for field in ObjectVersion._fields]) for row in found]

    async def changed_since(self, number: int) -> Changes | None:
        """Return what differs from an earlier revision; None if that is too long ago, or never was."""
        async with self.database.reading() as connection:
            now = await revision_number(connection)
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
                stored = await stored_of(connection, kind, ids)
                in_order = dict.fromkeys([*stored, *ids])  # new rules follow each other as they do there
                bodies += [
                    BodyChange(kind, name, stored[name].written if name in stored else None) for name in in_order
                ]
            return Changes(now, tuple(bodies))

    async def about(self, given: Changes) -> Body:
        """Return what changes have to go with, themselves included, as the data of a rules file.

        Users whom they cannot concern are left out and, if only users change, rules as well.
        """
        operations = [Operation(ObjectKind(each.kind), each.id, each.body) for each in given.changes]
        async with self.database.reading() as connection:
            return await _Transaction(connection, Actor(""), self._now()).document_about(operations)

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
            return await _Transaction(connection, actor, self._now(), dry_run=dry_run).run(operations)

    async def edit(
        self,
        kind: ObjectKind,
        name: str,
        revised: Callable[[Stored | None], Any | None],
        actor: Actor,
        expected: int | None = None,
    ) -> Edited:
        """Let something be what `revised` makes of what it is, which nobody else changes meanwhile.

        `revised` gets and returns None for what does not exist; `expected` and errors are those of `change`.
        """
        async with self.database.exclusively() as connection:
            before = (await stored_of(connection, kind, [name])).get(name)
            _check_version(f"{kind} {name!r:.200}", expected, before.version if before else 0)
            body = revised(before)
            if body is not None or before is not None:
                transaction = _Transaction(connection, actor, self._now())
                await transaction.run([Operation(kind, name, body)])
            after = (await stored_of(connection, kind, [name])).get(name)
            return Edited(before, after, await revision_number(connection))

    async def apply(
        self,
        wanted: Body | Ruleset,
        actor: Actor,
        *,
        dry_run: bool = False,
        only_first: bool = False,
        expected: int | None = None,
    ) -> Changed:
        """Let these rules, or those that the data of a rules file says, and nothing else be in force; see `change`.

        With `only_first` nothing happens where anything was ever changed. `expected` is the revision that is replaced.
        """
        ruleset = wanted if isinstance(wanted, Ruleset) else await asyncio.to_thread(from_data, wanted)
        document = await asyncio.to_thread(to_data, ruleset)
        async with self.database.exclusively(dry_run=dry_run) as connection:
            number = await revision_number(connection)
            if only_first and number:
                return Changed(number, ())
            _check_version("what is in force", expected, number)
            present = await document_of(connection)
            operations = await asyncio.to_thread(operations_between, present, document)
            transaction = _Transaction(connection, actor, self._now(), dry_run=dry_run)
            return await transaction.run(operations, list(rules_of(document)), ruleset)

    async def roll_back(
        self, kind: ObjectKind, name: str, version: int, actor: Actor, expected: int | None = None
    ) -> Edited:
        """Let something be again what it was in a version; that makes a new version. See `edit`."""
        bodies = {each.version: each.body for each in await self.versions(kind, name)}
        if version not in bodies:
            raise UnknownObject(f"{kind} {name!r} has no version {version}")
        return await self.edit(kind, name, lambda _: bodies[version], actor, expected)


_Found = dict[tuple[ObjectKind, str], Stored]


class _Write(NamedTuple):
    """What an operation really changes."""

    kind: ObjectKind
    id: str
    body: Any | None
    before: Stored | None

    @property
    def entry(self) -> audit.AuditEntry:
        action = "delete" if self.body is None else "create" if self.before is None else "update"
        return audit.AuditEntry(action, self.kind, self.id, self.before.body if self.before else None, self.body)


class _Transaction:
    """The making of one change; if it is only tried, nothing is written."""

    def __init__(self, connection: AsyncConnection, actor: Actor, now: int, *, dry_run: bool = False) -> None:
        self._connection, self._actor, self._now, self._dry_run = connection, actor, now, dry_run

    async def run(
        self, operations: Sequence[Operation], order: Sequence[str] = (), ruleset: Ruleset | None = None
    ) -> Changed:
        """Do what is to be done.

        `order` are the ids of all rules as they are to follow each other, if that matters; `ruleset` is all that there
        is to be then, if that is known.
        """
        found = await self._found(operations)
        wanted = await asyncio.to_thread(_wanted, operations, found)
        number = await revision_number(self._connection) + 1
        if ruleset is None:
            ruleset = Ruleset()
            if wanted:
                ruleset = await asyncio.to_thread(from_data, await self.document_about(wanted))
        writes = await asyncio.to_thread(_writes, wanted, found, ruleset)
        moves = await self._moves(order, writes) if order else []
        entries = await asyncio.to_thread(lambda: [*[each.entry for each in writes], *moves])
        if not entries:
            return Changed(number - 1, ())
        if self._dry_run:
            return Changed(number, tuple(entries))
        await self._write(writes, number)
        await self._note_overrides(writes, ruleset)
        if moves:
            await self._put_in_order(order, number)
        await self._connection.execute(update(revision).values(number=number, changed_at=self._now))
        await audit.append(self._connection, entries, self._actor, number, self._now)
        await self._connection.execute(delete(changes).where(changes.c.revision <= number - KEPT_CHANGES))
        if self._connection.dialect.name == "postgresql":
            await self._connection.execute(select(func.pg_notify(CHANNEL, str(number))))
        return Changed(number, tuple(entries))

    async def _moves(self, order: Sequence[str], writes: Sequence[_Write]) -> list[audit.AuditEntry]:
        """Return what there is to record if rules, once all is written, do not follow each other in an order."""
        in_order = select(rules.c.id).order_by(rules.c.position, rules.c.id)
        present = list((await self._connection.execute(in_order)).scalars())
        of_rules = [each for each in writes if each.kind is ObjectKind.RULE]
        gone = {each.id for each in of_rules if each.body is None}
        then = [name for name in present if name not in gone] + [each.id for each in of_rules if each.before is None]
        if then == list(order):
            return []
        return [audit.AuditEntry("update", _ORDER, "rules", {"rules": then}, {"rules": list(order)})]

    async def _put_in_order(self, order: Sequence[str], number: int) -> None:
        moved = update(rules).where(rules.c.id == bindparam("moved")).values(position=bindparam("to"))
        await self._connection.execute(moved, [{"moved": name, "to": place} for place, name in enumerate(order)])
        await self._connection.execute(insert(changes).values(revision=number, kind=_ORDER, subject="rules"))

    async def _found(self, operations: Sequence[Operation]) -> _Found:
        found: _Found = {}
        for kind, ids in (await asyncio.to_thread(_checked_ids, operations)).items():
            stored = await stored_of(self._connection, kind, ids)
            found |= {(kind, name): each for name, each in stored.items()}
        return found

    async def document_about(self, operations: Sequence[Operation]) -> Body:
        """Return what there would be, as far as these operations can make a difference; see `Catalog.about`."""
        touched = {kind: {each.id for each in operations if each.kind is kind} for kind in ObjectKind}
        if touched[ObjectKind.RULE] or touched[ObjectKind.TIER] or touched[ObjectKind.SETTING]:
            document = await document_of(self._connection, with_users=await self._users_concerned(touched))
        else:
            document = await self._document_for_users(operations)
        put(document, [BodyChange(kind, name, body) for kind, name, body, _ in operations])
        return document

    async def _document_for_users(self, operations: Sequence[Operation]) -> Body:
        """Return the rules that the overrides of users name, and what tiers change of them."""
        bodies = [each.body for each in operations if isinstance(each.body, dict)]
        given = [body.get("overrides") for body in bodies]
        named = sorted({name for table in given if isinstance(table, dict) for name in table if isinstance(name, str)})
        document: Body = {"version": 1, "rules": [], "tiers": {}, "users": {}}
        if not named:
            return document
        for stored in (await stored_of(self._connection, ObjectKind.RULE, named)).values():
            document["rules"].append({key: value for key, value in stored.body.items() if key != "replaces"})
        known = {rule["id"] for rule in document["rules"]}
        for row in await self._connection.execute(select(tiers.c.id, tiers.c.body)):
            document["tiers"][row.id] = {rule: body for rule, body in row.body.items() if rule in known}
        for row in await self._connection.execute(select(settings.c.id, settings.c.body)):
            if row.id in {"default_tier", "default"}:
                document[row.id] = row.body
        return document

    async def _users_concerned(self, touched: Mapping[ObjectKind, set[str]]) -> set[str]:
        """Return the users whose overrides are about rules, or on top of tiers, that these operations touch."""
        no_tier = {""} if "default_tier" in touched[ObjectKind.SETTING] else set()
        concerns = or_(
            among(self._connection, overrides.c.rule_id, touched[ObjectKind.RULE]),
            among(self._connection, users.c.tier, touched[ObjectKind.TIER] | no_tier),
        )
        found = select(overrides.c.user_id).distinct().join(users, users.c.id == overrides.c.user_id).where(concerns)
        return set((await self._connection.execute(found)).scalars())

    async def _write(self, writes: Sequence[_Write], number: int) -> None:
        """Write rows, versions and what nodes look for, in few statements however many there are."""
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
            return {**common, "kind": each.kind, "id": each.id, "version": version, "body": each.body}

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


def _wanted(operations: Sequence[Operation], found: _Found) -> list[Operation]:
    """Return operations that do anything. Raises VersionConflict and UnknownObject."""
    wanted = []
    for each in operations:
        stored = found.get((each.kind, each.id))
        if each.expected is not None:
            _check_version(f"{each.kind} {each.id!r:.200}", each.expected, stored.version if stored else 0)
        if each.body is None and stored is None:
            raise UnknownObject(f"{each.kind} {each.id!r} does not exist")
        if stored is None or each.body is None or each.body != stored.body:
            wanted.append(each)
    return wanted


def _writes(operations: Sequence[Operation], found: _Found, ruleset: Ruleset) -> list[_Write]:
    """Return what operations change, once bodies are written as a rules file would have them."""
    given = [
        _Write(kind, name, body, found.get((kind, name)))
        for (kind, name, *_), body in zip(operations, _canonical(operations, ruleset), strict=True)
    ]
    return [each for each in given if each.before is None or each.body != each.before.body]


def _canonical(operations: Sequence[Operation], ruleset: Ruleset) -> list[Any]:
    """Return the body of each operation as a rules file would have it."""
    by_id = {rule.id: rule for rule in ruleset.rules}
    written: list[Any] = []
    for kind, name, body, *_ in operations:
        if body is None or kind is ObjectKind.SETTING:
            written.append(body)
        elif kind is ObjectKind.RULE:
            written.append({key: value for key, value in to_data(by_id[name]).items() if key not in STAMPS})
        elif kind is ObjectKind.TIER:
            written.append(to_data(ruleset.tiers[name]))
        else:
            written.append(to_data(ruleset.users[name]))
    return written


def _check_version(what: str, expected: int | None, found: int) -> None:
    """Raise VersionConflict unless something is of the version that is expected; see `Operation.expected`."""
    is_expected = found > 0 if expected == ANY_VERSION else expected in {None, found}
    if expected is not None and not is_expected:
        raise VersionConflict(what, expected, found)


def _checked_ids(operations: Sequence[Operation]) -> dict[ObjectKind, list[str]]:
    names: dict[ObjectKind, list[str]] = {}
    for operation in operations:
        _check_id(operation)
        names.setdefault(operation.kind, []).append(operation.id)
    return names


def _check_id(operation: Operation) -> None:
    """Refuse ids that a database cannot have; what else is wrong with them, the rules say."""
    longest = 512 if operation.kind is ObjectKind.USER else 64
    name = operation.id
    if not 0 < len(name) <= longest or "\0" in name or not name.isprintable():
        wanted = f"1 to {longest} printable characters"
        raise InvalidRules([Finding(f"{name!r:.80} is not the id of a {operation.kind}", accepted=wanted)])
    if not all(text.isprintable() for text in texts_of(operation.body)):
        raise InvalidRules([Finding(f"{operation.kind} {name!r:.80} has text with characters that cannot be shown")])
    if operation.kind is ObjectKind.SETTING and name not in SETTINGS:
        raise InvalidRules([Finding(f"{name!r:.80} is not a setting", accepted=f"one of {', '.join(SETTINGS)}")])

"""The rules, tiers, users and settings in a database: the objects in force, their past versions, and changes.

A change is a list of operations that succeed or fail together. It is validated with everything that it affects, by the
declaration that also reads rules files, and stored in the form of such a file. In one transaction, it increments the
revision, adds versions, and is recorded in the audit trail. Changes are serialized.

An operation may name the version that it replaces, so that it fails instead of overwriting a concurrent change.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin.audit import Actor
from headgate.admin.database import Database
from headgate.admin.objects import (
    TABLES,
    Body,
    InUse,
    ObjectKind,
    ObjectVersion,
    Operation,
    Stored,
    UnknownObject,
    bodies_of,
    check_stamps,
    check_version,
    condition,
    document_of,
    operations_between,
    revision_number,
    stored_columns,
    stored_of,
)
from headgate.admin.revisions import undoing
from headgate.admin.tables import changes, epoch_us, overrides, versions
from headgate.admin.transaction import (
    ORDER,
    TIERS,
    USERS,
    Changed,
    Transaction,
    document_about,
    ended_overrides,
    uses_of,
    without_uses,
)
from headgate.policy.changing import BodyChange, merged
from headgate.policy.dumping import to_data
from headgate.policy.loading import from_data
from headgate.policy.model import Ruleset
from headgate.policy.snapshot import Changes, Whole

_CLEAN_UP = Actor("clean-up", reason="the override has ended")


class Edited(NamedTuple):
    """An object before and after an edit; None if it did not, or does not, exist."""

    before: Stored | None
    after: Stored | None
    revision: int
    """The revision in force."""


class Catalog:
    """The objects in force in a database. `clock` returns microseconds since the epoch."""

    def __init__(self, database: Database, clock: Callable[[], int] = epoch_us) -> None:
        self.database, self._now = database, clock
        self._checked = 0, 0
        """The last consecutive revisions that this catalog made: after the first number, up to the second."""

    @property
    def source(self) -> str:
        """Where the rules are, for messages."""
        return f"a {'SQLite' if self.database.is_sqlite else 'PostgreSQL'} database"

    async def revision(self) -> int:
        """Return the number of the revision in force."""
        async with self.database.reading() as connection:
            return await revision_number(connection)

    async def document(self) -> Whole:
        """Return the revision in force, as the data of a rules file."""
        async with self.database.reading() as connection:
            return Whole(await revision_number(connection), await document_of(connection))

    async def get(self, kind: ObjectKind, name: str) -> Stored | None:
        """Return an object in force; None if it does not exist."""
        async with self.database.reading() as connection:
            return (await stored_of(connection, kind, [name])).get(name)

    async def page(
        self, kind: ObjectKind, filters: Mapping[str, Any], sort: str, offset: int, limit: int
    ) -> tuple[list[Stored], int]:
        """Return objects of one kind that pass the filters, and their total number; see `RULE_DEFAULTS`."""
        table = TABLES[kind]
        column, conditions = table.c[sort.lstrip("-")], [condition(table, *each) for each in filters.items()]
        in_order = (column.desc() if sort.startswith("-") else column, table.c.id)
        some = select(*stored_columns(table)).where(*conditions).order_by(*in_order).offset(offset).limit(limit)
        async with self.database.reading() as connection:
            total = (await connection.execute(select(func.count()).select_from(table).where(*conditions))).scalar_one()
            return [Stored(kind, *row) for row in await connection.execute(some)], total

    async def versions(self, kind: ObjectKind, name: str) -> list[ObjectVersion]:
        """Return all versions of an object, the newest first."""
        mine = select(versions).where(versions.c.kind == kind, versions.c.id == name)
        async with self.database.reading() as connection:
            found = (await connection.execute(mine.order_by(versions.c.version.desc()))).mappings()
            return [ObjectVersion(*[row[field] for field in ObjectVersion._fields]) for row in found]

    async def changed_since(self, number: int) -> Changes | None:
        """Return the changes since a revision; None if it is too old, or does not exist."""
        async with self.database.reading() as connection:
            now = await revision_number(connection)
            oldest = (await connection.execute(select(func.min(changes.c.revision)))).scalar()
            if number > now or (number < now and (oldest is None or oldest > number + 1)):
                return None
            touched = select(changes.c.kind, changes.c.subject).distinct().where(changes.c.revision > number)
            names: dict[ObjectKind, list[str]] = {}
            for kind, subject in await connection.execute(touched):
                if kind == ORDER:  # which changes of single rules cannot express
                    return None
                names.setdefault(ObjectKind(kind), []).append(subject)
            over = versions.c.kind == ObjectKind.RULE, versions.c.revision > number, versions.c.body.is_(None)
            moved = set((await connection.execute(select(versions.c.id).where(*over))).scalars())
            bodies = [BodyChange(ObjectKind.RULE, name, None) for name in moved]  # a rule that came back is now last
            for kind, ids in names.items():
                stored = await stored_of(connection, kind, ids)
                in_order = dict.fromkeys([*stored, *ids])  # new rules keep their order
                bodies += [
                    BodyChange(kind, name, stored[name].written if name in stored else None)
                    for name in in_order
                    if name in stored or kind is not ObjectKind.RULE or name not in moved
                ]
            return Changes(now, tuple(bodies))

    async def about(self, given: Changes) -> Body:
        """Return the part of the rules that changes affect, with the changes, as the data of a rules file.

        Of users with the same override, it has one.
        """
        operations = [Operation(ObjectKind(each.kind), each.id, each.body) for each in given.changes]
        async with self.database.reading() as connection:
            return await document_about(connection, operations)

    async def uses(self, kind: ObjectKind, name: str) -> dict[str, list[str]]:
        """Return the ids of objects that use a rule or a tier, by kind: users, tiers, rules and settings."""
        async with self.database.reading() as connection:
            return await uses_of(connection, kind, {name}, self._now())

    def has_checked(self, after: int, until: int) -> bool:
        """Whether all changes from one revision to another were made, and so validated, here."""
        first, last = self._checked
        return first <= after and until == last

    @asynccontextmanager
    async def _changing(
        self, actor: Actor, *, dry_run: bool = False
    ) -> AsyncIterator[tuple[AsyncConnection, Transaction]]:
        async with self.database.exclusively(dry_run=dry_run) as connection:
            transaction = Transaction(connection, actor, self._now(), dry_run=dry_run)
            yield connection, transaction
        if made := transaction.made:
            first, last = self._checked
            self._checked = (first if made == last + 1 else made - 1), made

    async def change(self, operations: Sequence[Operation], actor: Actor, *, dry_run: bool = False) -> Changed:
        """Run all of `operations`, each on another object, or none; with `dry_run`, only return the changes.

        Raises:
            InvalidRules: the result would be invalid; it has all problems.
            VersionConflict: an object has another version than the expected one.
            UnknownObject: an object to be deleted does not exist.
            DatabaseError: the database failed.
        """
        async with self._changing(actor, dry_run=dry_run) as (_, transaction):
            return await transaction.run(operations)

    async def delete(
        self, kind: ObjectKind, name: str, actor: Actor, expected: int | None = None, *, drop: bool = False
    ) -> Changed:
        """Delete a rule or a tier; with `drop` also the overrides of a rule, and the tier of its users.

        Raises InUse if another object uses it, and as `change` does.
        """
        async with self._changing(actor) as (connection, transaction):
            found = (await stored_of(connection, kind, [name])).get(name)
            check_version(f"{kind} {name!r:.200}", expected, found.version if found else 0)
            uses = await uses_of(connection, kind, {name}, self._now())
            dropped = {how: uses.pop(how) for how in (USERS, TIERS) if drop and how in uses}
            if uses:
                hint = "change these first" if drop else "change these first, or with overrides=drop users and tiers"
                raise InUse(f"{kind} {name!r:.200}", uses, hint)
            gone = {"rules" if kind is ObjectKind.RULE else "of_tiers": {name}}
            used = await without_uses(connection, dropped.get(USERS, ()), dropped.get(TIERS, ()), **gone)
            return await transaction.run([Operation(kind, name, None), *used])

    async def end_overrides(self) -> None:
        """Delete overrides that have ended. Raises as `change` does."""
        ended = select(overrides.c.user_id).where(overrides.c.until <= self._now()).limit(1)
        async with self.database.reading() as connection:
            if (await connection.execute(ended)).first() is None:
                return
        async with self._changing(_CLEAN_UP) as (connection, transaction):
            await transaction.run(await ended_overrides(connection, self._now()))

    async def edit(
        self,
        kind: ObjectKind,
        name: str,
        revised: Callable[[Stored | None], Any | None],
        actor: Actor,
        expected: int | None = None,
    ) -> Edited:
        """Replace an object by the result of `revised`, atomically. Raises as `change` does.

        None is an object that does not exist, as the argument and as the result of `revised`.
        """
        async with self._changing(actor) as (connection, transaction):
            before = (await stored_of(connection, kind, [name])).get(name)
            check_version(f"{kind} {name!r:.200}", expected, before.version if before else 0)
            body = revised(before)
            if body is not None or before is not None:
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
        sections: Collection[str] | None = None,
        replace_users: bool = False,
    ) -> Changed:
        """Put a set of rules, or the data of a rules file, in force; see `change`.

        With `only_first`, it does nothing if there is any revision. `expected` is the revision that is replaced.
        Without `sections`, it replaces all objects; with them, objects of other sections stay: see
        `headgate.policy.changing.merged`.
        """
        ruleset: Ruleset | None
        ruleset = wanted if isinstance(wanted, Ruleset) else await asyncio.to_thread(from_data, wanted)
        document = await asyncio.to_thread(to_data, ruleset)
        async with self._changing(actor, dry_run=dry_run) as (connection, transaction):
            number = await revision_number(connection)
            if only_first and number:
                return Changed(number, ())
            check_version("what is in force", expected, number)
            present = await document_of(connection)
            known = {rule["id"]: rule for rule in present["rules"]}
            for place, rule in enumerate(document["rules"]):
                check_stamps(rule, known.get(rule["id"], {}), f"rules[{place}].")
            if sections is not None:
                whole = await asyncio.to_thread(merged, document, present, sections, replace_users=replace_users)
                ruleset = ruleset if whole == document else None  # else the combination must be validated
                document = whole
            operations = await asyncio.to_thread(operations_between, present, document)
            return await transaction.run(operations, list(bodies_of(document, ObjectKind.RULE)), ruleset)

    async def roll_back(
        self, kind: ObjectKind, name: str, version: int, actor: Actor, expected: int | None = None
    ) -> Edited:
        """Restore an earlier version of an object, as a new version. See `edit`."""
        bodies = {each.version: each.body for each in await self.versions(kind, name)}
        if version not in bodies:
            raise UnknownObject(f"{kind} {name!r} has no version {version}")
        return await self.edit(kind, name, lambda _: bodies[version], actor, expected)

    async def undo(
        self, number: int, actor: Actor, expected: int | None = None, *, force: bool = False, dry_run: bool = False
    ) -> Changed:
        """Undo a revision by a new one, which can be undone too; with `force`, also what later changes replaced.

        `expected` is the revision that must be in force; None: any. Raises as `headgate.admin.revisions.undoing` and
        `change` do.
        """
        reason = f"undo of revision {number}" + (f": {actor.reason}" if actor.reason else "")
        async with self._changing(actor._replace(reason=reason), dry_run=dry_run) as (connection, transaction):
            check_version("what is in force", expected, await revision_number(connection))
            operations, order = await undoing(connection, number, self._now(), force=force)
            return await transaction.run(operations, order)

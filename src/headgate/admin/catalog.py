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
    """What something was, and what it is after an edit; None where it did not, or does not, exist."""

    before: Stored | None
    after: Stored | None
    revision: int
    """The revision that is in force now."""


class Catalog:
    """What a database says is in force.

    Args:
        database: where it is kept.
        clock: what time it is, in microseconds since the epoch; for tests.
    """

    def __init__(self, database: Database, clock: Callable[[], int] = epoch_us) -> None:
        self.database, self._now = database, clock
        self._checked = 0, 0
        """Revisions that this catalog made, one after the other: those after the first, up to the second."""

    @property
    def source(self) -> str:
        """Where the rules are, for people."""
        return f"a {'SQLite' if self.database.is_sqlite else 'PostgreSQL'} database"

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
                if kind == ORDER:  # of which single rules say nothing
                    return None
                names.setdefault(ObjectKind(kind), []).append(subject)
            over = versions.c.kind == ObjectKind.RULE, versions.c.revision > number, versions.c.body.is_(None)
            moved = set((await connection.execute(select(versions.c.id).where(*over))).scalars())
            bodies = [BodyChange(ObjectKind.RULE, name, None) for name in moved]  # what came back is the last one
            for kind, ids in names.items():
                stored = await stored_of(connection, kind, ids)
                in_order = dict.fromkeys([*stored, *ids])  # new rules follow each other as they do there
                bodies += [
                    BodyChange(kind, name, stored[name].written if name in stored else None)
                    for name in in_order
                    if name in stored or kind is not ObjectKind.RULE or name not in moved
                ]
            return Changes(now, tuple(bodies))

    async def about(self, given: Changes) -> Body:
        """Return what changes have to go with, themselves included, as the data of a rules file.

        What they cannot concern is left out; of users with the same override there is one.
        """
        operations = [Operation(ObjectKind(each.kind), each.id, each.body) for each in given.changes]
        async with self.database.reading() as connection:
            return await document_about(connection, operations)

    async def uses(self, kind: ObjectKind, name: str) -> dict[str, list[str]]:
        """Return the ids of what uses a rule or a tier, by their kind: users, tiers, rules and settings."""
        async with self.database.reading() as connection:
            return await uses_of(connection, kind, {name}, self._now())

    def has_checked(self, after: int, until: int) -> bool:
        """Whether all changes from one revision to another were made here, so that they have been checked."""
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
        async with self._changing(actor, dry_run=dry_run) as (_, transaction):
            return await transaction.run(operations)

    async def delete(
        self, kind: ObjectKind, name: str, actor: Actor, expected: int | None = None, *, drop: bool = False
    ) -> Changed:
        """Delete a rule or a tier; with `drop` also the overrides of a rule, and the tier of its users.

        Raises InUse if something else uses it; else as `change` does.
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
        """Take away overrides that have ended. Raises as `change` does."""
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
        """Let something be what `revised` makes of what it is, which nobody else changes meanwhile.

        `revised` gets and returns None for what does not exist; `expected` and errors are those of `change`.
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
        """Let these rules, or those that the data of a rules file says, be in force; see `change`.

        With `dry_run` it is only said what would be changed; with `only_first` nothing happens where anything was ever
        changed. `expected` is the revision that is replaced. If `sections` are given, what is not in them stays as it
        is, see `headgate.policy.changing.merged`; else nothing else is in force.
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
                ruleset = ruleset if whole == document else None  # else it is not known whether all goes together
                document = whole
            operations = await asyncio.to_thread(operations_between, present, document)
            return await transaction.run(operations, list(bodies_of(document, ObjectKind.RULE)), ruleset)

    async def roll_back(
        self, kind: ObjectKind, name: str, version: int, actor: Actor, expected: int | None = None
    ) -> Edited:
        """Let something be again what it was in a version; that makes a new version. See `edit`."""
        bodies = {each.version: each.body for each in await self.versions(kind, name)}
        if version not in bodies:
            raise UnknownObject(f"{kind} {name!r} has no version {version}")
        return await self.edit(kind, name, lambda _: bodies[version], actor, expected)

    async def undo(
        self, number: int, actor: Actor, expected: int | None = None, *, force: bool = False, dry_run: bool = False
    ) -> Changed:
        """Take back what a revision did; that makes a new one, which can be undone, too.

        Args:
            number: of the revision.
            actor: who wants it, and why.
            expected: the revision that has to be in force; None: any.
            force: take back also what was changed again later.
            dry_run: only say what would be changed.

        Raises as `headgate.admin.revisions.undoing` and `change` do.
        """
        reason = f"undo of revision {number}" + (f": {actor.reason}" if actor.reason else "")
        async with self._changing(actor._replace(reason=reason), dry_run=dry_run) as (connection, transaction):
            check_version("what is in force", expected, await revision_number(connection))
            operations, order = await undoing(connection, number, self._now(), force=force)
            return await transaction.run(operations, order)

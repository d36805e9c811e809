"""The rules, tiers, users and settings in a database: the objects in force, their past versions, and changes.

A change is a list of operations that succeed or fail together. It is validated with everything that it affects, by the
declaration that also reads rules files, and stored in the form of such a file. In one transaction, it increments the
revision, adds versions, and is recorded in the audit trail. Changes are serialized.

An operation may name the version that it replaces, so that it fails instead of overwriting a concurrent change.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NamedTuple, NoReturn, TypeAlias

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin.audit import Actor
from headgate.admin.database import Database
from headgate.admin.objects import (
    RULE_DEFAULTS,
    STAMPS,
    TABLES,
    Body,
    InUse,
    ObjectKind,
    ObjectVersion,
    Operation,
    ResultPage,
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
from headgate.admin.revisions import undo_operations
from headgate.admin.tables import changes, epoch_us, overrides, page_of, versions
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
from headgate.config.problems import InvalidRules, render
from headgate.core.errors import HeadgateError, UsageError
from headgate.policy.changing import BodyChange, merged
from headgate.policy.dumping import to_data
from headgate.policy.loading import from_data, user_from_data
from headgate.policy.model import Change, Ruleset
from headgate.policy.snapshot import Changes, Whole

DEFAULT_TIER = "default_tier"
"""The setting with the tier of users without one."""
_MOST_TIERS = 100
_EMPTY: tuple[tuple[str, Any], ...] = (("tier", ""), ("overrides", {}))
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
        async with self.database.reading() as connection:
            return await revision_number(connection)

    async def document(self) -> Whole:
        async with self.database.reading() as connection:
            return Whole(await revision_number(connection), await document_of(connection))

    async def get(self, kind: ObjectKind, name: str) -> Stored | None:
        async with self.database.reading() as connection:
            return (await stored_of(connection, kind, [name])).get(name)

    async def page(
        self, kind: ObjectKind, filters: Mapping[str, Any], sort: str, offset: int, limit: int
    ) -> ResultPage:
        """Return objects of one kind whose fields equal all filters; see `RULE_DEFAULTS`."""
        table = TABLES[kind]
        column, conditions = table.c[sort.lstrip("-")], [condition(table, *each) for each in filters.items()]
        order = column.desc() if sort.startswith("-") else column, table.c.id
        query = select(*stored_columns(table)).where(*conditions)
        async with self.database.reading() as connection:
            rows, total = await page_of(connection, query, order, offset, limit)
        return ResultPage.of([Stored(kind, **row).shown for row in rows], total, offset + limit)

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

    async def put(self, kind: ObjectKind, name: str, body: Any, actor: Actor, expected: int | None = None) -> Edited:
        """Create or replace an object. Raises as `change` does."""
        if body is None:
            raise UsageError(f"null is not a {kind}; to delete a {kind}, use DELETE")
        if kind is ObjectKind.SETTING and name == DEFAULT_TIER and isinstance(body, str):
            await self.check_tier(body)

        def replaced(stored: Stored | None) -> Any:
            if kind is ObjectKind.RULE:
                check_stamps(body, stored.written if stored else {})
            return body

        with paths_in_body(kind, name):
            return await self.edit(kind, name, replaced, actor, expected)

    async def patch(
        self, kind: ObjectKind, name: str, given: Body, actor: Actor, expected: int | None = None
    ) -> Edited:
        """Apply a JSON merge patch (RFC 7396) to an object; a user need not exist. Raises as `change` does."""
        tier, changed = given.get("tier"), given.get("overrides")
        if kind is ObjectKind.USER and isinstance(tier, str | int | float):  # a number is read as text
            await self.check_tier(str(tier))

        def patched(stored: Stored | None) -> Any:
            if stored is None and kind is not ObjectKind.USER:
                raise UnknownObject(f"{kind} {name!r:.200} does not exist")
            body = merge_patch(stored.body if stored else {}, given)
            if kind is ObjectKind.RULE:
                if body.get("id") != name or "rule_id" in given:
                    raise UsageError("the id of a rule cannot change: leave it out of the patch")
                check_stamps(given, stored.written if stored else {})
                body = {field: value for field, value in body.items() if field not in STAMPS}
            if kind is ObjectKind.USER:
                body = {field: value for field, value in body.items() if (field, value) not in _EMPTY} or None
                overrides = user_from_data(body or {}).overrides
                for rule in overrides.keys() & (changed or {}):
                    check_override(overrides[rule])
            return body

        with paths_in_body(kind, name):
            return await self.edit(kind, name, patched, actor, expected)

    async def delete(
        self, kind: ObjectKind, name: str, actor: Actor, expected: int | None = None, *, drop: bool = False
    ) -> Changed:
        """Delete an object; with `drop` also the overrides of a rule, and the tier of its users.

        Raises InUse if another object uses it, and as `change` does.
        """
        async with self._changing(actor) as (connection, transaction):
            if kind in {ObjectKind.USER, ObjectKind.SETTING}:
                return await transaction.run([Operation(kind, name, None, expected)])
            found = (await stored_of(connection, kind, [name])).get(name)
            check_version(f"{kind} {name!r:.200}", expected, found.version if found else 0)
            uses = await uses_of(connection, kind, {name}, self._now())
            dropped = {how: uses.pop(how) for how in (USERS, TIERS) if drop and how in uses}
            if uses:
                hint = (
                    "change these first"
                    if drop
                    else "change these first, or drop those of users and tiers (overrides=drop)"
                )
                raise InUse(f"{kind} {name!r:.200}", uses, hint)
            gone = {"rules" if kind is ObjectKind.RULE else "of_tiers": {name}}
            used = await without_uses(connection, dropped.get(USERS, ()), dropped.get(TIERS, ()), **gone)
            return await transaction.run([Operation(kind, name, None), *used])

    async def check_tier(self, tier: str) -> None:
        """Raise UsageError unless there is a tier of this name, or a rule for it: it would have no effect."""
        if not tier or await self.get(ObjectKind.TIER, tier) is not None:
            return
        if (await self.page(ObjectKind.RULE, {"tier": tier}, "position", 0, 1)).total:
            return
        known = [each["id"] for each in (await self.page(ObjectKind.TIER, {}, "id", 0, _MOST_TIERS)).items]
        near = get_close_matches(tier, known, 1)
        tiers = f"the tiers are: {', '.join(known)}" if known else "there are no tiers yet"
        hint = f"did you mean {near[0]!r}?" if near else tiers
        raise UsageError(f"tier {tier!r:.80} does not exist, and no rule names it: {hint}")

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

        `expected` is the revision that must be in force; None: any. Raises as
        `headgate.admin.revisions.undo_operations` and `change` do.
        """
        reason = f"undo of revision {number}" + (f": {actor.reason}" if actor.reason else "")
        async with self._changing(actor._replace(reason=reason), dry_run=dry_run) as (connection, transaction):
            check_version("what is in force", expected, await revision_number(connection))
            operations, order = await undo_operations(connection, number, self._now(), force=force)
            return await transaction.run(operations, order)


class RulesInFile(HeadgateError):
    def __init__(self, path: str) -> None:
        super().__init__(
            f"the rules come from the file {path}, so they are changed there; to change them here, serve from a "
            f"database: headgate rules apply {path} --database URL, then headgate serve --database URL"
        )


class FileRules:
    """Read-only rules of a file, with the methods of `Catalog`; `version` returns the number of loads."""

    def __init__(self, path: str, ruleset: Callable[[], Ruleset], version: Callable[[], int]) -> None:
        self._path, self._ruleset, self._version = path, ruleset, version

    @property
    def source(self) -> str:
        return f"the file {self._path}"

    async def revision(self) -> int:
        return self._version()

    async def document(self) -> Whole:
        return Whole(self._version(), to_data(self._ruleset()))

    async def get(self, kind: ObjectKind, name: str) -> Stored | None:
        body = self._bodies(kind).get(name)
        return None if body is None else Stored(kind, name, body, self._version(), 0, 0)

    async def page(
        self, kind: ObjectKind, filters: Mapping[str, Any], sort: str, offset: int, limit: int
    ) -> ResultPage:
        bodies = self._bodies(kind)
        found = [name for name, body in bodies.items() if _passes(name, body, filters)]
        if sort.lstrip("-") != "position":
            found.sort(reverse=sort.startswith("-"))
        some = [Stored(kind, name, bodies[name], self._version(), 0, 0) for name in found[offset : offset + limit]]
        return ResultPage.of([each.shown for each in some], len(found), offset + limit)

    async def check_tier(self, tier: str) -> None:
        """Accept any tier: the change itself fails."""

    async def versions(self, kind: ObjectKind, name: str) -> list[ObjectVersion]:
        """Return the present version: earlier ones are not known."""
        stored = await self.get(kind, name)
        return [] if stored is None else [ObjectVersion(stored.version, stored.body, stored.version, 0, self._path)]

    async def uses(self, kind: ObjectKind, name: str) -> dict[str, list[str]]:
        ruleset = self._ruleset()
        found = {
            "users": [each for each, user in ruleset.users.items() if name in user.overrides],
            "tiers": [each for each, changes in ruleset.tiers.items() if name in changes],
            "rules": [rule.id for rule in ruleset.rules if name in rule.replaces],
        }
        return {how: names for how, names in found.items() if names and kind is ObjectKind.RULE}

    async def change(self, *_: object, **__: object) -> NoReturn:
        raise RulesInFile(self._path)

    put = patch = delete = edit = apply = roll_back = undo = change

    def _bodies(self, kind: ObjectKind) -> dict[str, Any]:
        document = to_data(self._ruleset())
        if kind is ObjectKind.RULE:  # with the times in the file
            return {rule["id"]: rule for rule in document.get("rules", ())}
        return bodies_of(document, kind)


RuleCatalog: TypeAlias = Catalog | FileRules


def _passes(name: str, body: Any, filters: Mapping[str, Any]) -> bool:
    for field, wanted in filters.items():
        if field == "search":
            texts = (name, body.get("name", ""), body.get("endpoint", ""))
            if not any(wanted.lower() in text.lower() for text in texts):
                return False
        elif body.get(field, RULE_DEFAULTS.get(field, "")) != wanted:
            return False
    return True


def check_override(change: Change) -> None:
    """Raise UsageError for an override that has ended, or changes nothing."""
    if change.until is not None and change.until <= epoch_us():
        raise UsageError("until must be in the future: this override would have ended already")
    if change == Change(until=change.until):
        raise UsageError(
            "this override changes nothing: set a limit, burst, capacity, window, algorithm or limits; "
            "to end an override, use DELETE"
        )


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396). It recurses: `parse_json` has bounded the depth of the patch."""
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
def paths_in_body(kind: ObjectKind, name: str) -> Iterator[None]:
    """Report problems of an object with paths in its own body, which is what the client sent."""
    try:
        yield
    except InvalidRules as error:
        place = re.compile(re.escape(render((f"{kind}s", name))) + r"(?:\.|(?=\[)|$)")
        raise InvalidRules(
            replace(each, path=place.sub("", each.path, 1) if place.match(each.path) else each.path)
            for each in error.problems
        ) from None

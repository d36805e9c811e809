"""Rules, tiers, users and settings as rows of a database, each with a body in the form of a rules file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from enum import StrEnum
from typing import Any, NamedTuple, Self, TypeVar

from sqlalchemy import Column, ColumnElement, Table, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin.tables import among, in_slices, revision, rules, settings, slices, tiers, users
from headgate.config.problems import Finding, InvalidRules
from headgate.config.times import moment_text
from headgate.core.errors import HeadgateError
from headgate.policy.forms import FILE
from headgate.policy.model import Rule

RULE_DEFAULTS: Mapping[str, Any] = {each.name: each.default for each in fields(Rule) if each.default is not MISSING} | {
    "algorithm": "token_bucket"
}
"""Defaults of a rule's fields, for filters too; other fields default to an empty text."""
SETTINGS = tuple([name for name in FILE.fields if name not in {"version", "rules", "tiers", "users"}])
"""The members of a rules file besides rules, tiers and users."""
STAMPS = ("created_at", "updated_at")
"""Fields of a rule that the database sets."""
CHANNEL = "headgate"
"""The channel of PostgreSQL on which every new revision is announced."""
ANY_VERSION = -1
"""The expected version of an object that must exist, in any version."""
_NAMED = 10
"""Ids of one kind in a message."""

Body = dict[str, Any]
T = TypeVar("T")


class ObjectKind(StrEnum):
    RULE = "rule"
    TIER = "tier"
    USER = "user"
    SETTING = "setting"


TABLES: Mapping[ObjectKind, Table] = {
    ObjectKind.RULE: rules,
    ObjectKind.TIER: tiers,
    ObjectKind.USER: users,
    ObjectKind.SETTING: settings,
}


class Operation(NamedTuple):
    """A change of one object."""

    kind: ObjectKind
    id: str
    body: Any | None
    """The new state, in the form of a rules file; None: delete it."""
    expected: int | None = None
    """The version to be replaced: 0 if it must not exist, `ANY_VERSION` if it must exist, None for any."""


class Stored(NamedTuple):
    """An object in force."""

    kind: ObjectKind
    id: str
    body: Any
    version: int
    created_at: int
    """0: unknown, since the rules are in a file."""
    updated_at: int

    @property
    def written(self) -> Any:
        """The body; of a rule, with the times of its creation and last change."""
        if self.kind is not ObjectKind.RULE or not self.created_at:
            return self.body
        return {**self.body, "created_at": moment_text(self.created_at), "updated_at": moment_text(self.updated_at)}

    @property
    def shown(self) -> Body:
        """The object as the API shows it."""
        has_fields = self.kind in {ObjectKind.RULE, ObjectKind.USER}
        return {"id": self.id, **(self.written if has_fields else {"value": self.body})}


class ObjectVersion(NamedTuple):
    """A past or present version of an object."""

    version: int
    body: Any | None
    """None: it was deleted."""
    revision: int
    at: int
    actor: str


class ResultPage(NamedTuple):
    """A part of a list."""

    items: list[dict[str, Any]]
    total: int
    """The number of items on all pages."""
    next: int | None
    """The offset of the next page; None if this is the last."""

    @classmethod
    def of(cls, items: list[dict[str, Any]], total: int, end: int) -> Self:
        return cls(items, total, end if end < total else None)


class VersionConflict(HeadgateError):
    """An object has another version than the expected one: someone else has changed it."""

    def __init__(self, what: str, expected: int, found: int) -> None:
        self.expected = expected
        if not expected:
            super().__init__(f"{what} already exists, at version {found}")
        elif expected == ANY_VERSION:
            super().__init__(f"{what} does not exist, but If-Match requires it to exist")
        elif not found:
            super().__init__(f"{what} no longer exists, so version {expected} cannot be replaced")
        else:
            super().__init__(f"{what} is now at version {found}, not {expected}: read it again")


class InUse(HeadgateError):
    """An object that is to be deleted is in use. `uses` are the ids of the objects that use it, by kind."""

    def __init__(self, what: str, uses: Mapping[str, Sequence[str]], hint: str) -> None:
        parts = []
        for kind, names in uses.items():
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            parts.append(f"{len(names)} {kind if len(names) > 1 else kind[:-1]} ({', '.join(names[:_NAMED])}{more})")
        super().__init__(f"{what} is used by {', '.join(parts)}; {hint}")


class UnknownObject(HeadgateError):
    """An object that does not exist."""


def existing(found: T | None, why: str) -> T:
    """Return an object, or raise UnknownObject with the reason."""
    if found is None:
        raise UnknownObject(why)
    return found


def check_version(what: str, expected: int | None, found: int) -> None:
    """Raise VersionConflict unless the version is the expected one; see `Operation.expected`."""
    is_expected = found > 0 if expected == ANY_VERSION else expected in {None, found}
    if expected is not None and not is_expected:
        raise VersionConflict(what, expected, found)


def check_stamps(given: Body, known: Body, where: str = "") -> None:
    """Raise InvalidRules for a rule with other times than those in the database."""
    other = [name for name in STAMPS if given.get(name, known.get(name)) != known.get(name)]
    if other:
        message, hint = "the database sets the times of rules", "Leave it out"
        raise InvalidRules([Finding(message, hint=hint, path=f"{where}{name}") for name in other])


def without_overrides(user: Body, rules: Collection[str]) -> Body | None:
    """Return the body of a user without the overrides of some rules; None if it becomes empty."""
    left = {rule: change for rule, change in user.get("overrides", {}).items() if rule not in rules}
    others = {name: value for name, value in user.items() if name != "overrides"}
    return {**others, **({"overrides": left} if left else {})} or None


def operations_between(present: Body, wanted: Body) -> list[Operation]:
    """Return the operations that turn the data of one rules file into that of another."""
    operations = []
    for kind in (ObjectKind.SETTING, ObjectKind.RULE, ObjectKind.TIER, ObjectKind.USER):
        before, after = bodies_of(present, kind), bodies_of(wanted, kind)
        operations += [Operation(kind, name, None) for name in before if name not in after]
        for name, body in after.items():
            if name not in before or before[name] != body:
                operations.append(Operation(kind, name, body if body is not None else {}))
    return operations


def bodies_of(document: Mapping[str, Any], kind: ObjectKind) -> dict[str, Any]:
    """Return the bodies of one kind in the data of a rules file, by id; rules without `STAMPS`."""
    if kind is ObjectKind.SETTING:
        return {name: document[name] for name in SETTINGS if document.get(name) is not None}
    if kind is not ObjectKind.RULE:
        return document.get(f"{kind}s") or {}
    found = {}
    for rule in document.get("rules") or ():
        body = {"id" if key == "rule_id" else key: value for key, value in rule.items() if key not in STAMPS}
        found[body["id"]] = body
    return found


async def revision_number(connection: AsyncConnection) -> int:
    number: int = (await connection.execute(select(revision.c.number))).scalar_one()
    return number


async def order_of(connection: AsyncConnection) -> list[str]:
    """Return the ids of all rules in their order."""
    return list((await connection.execute(select(rules.c.id).order_by(rules.c.position, rules.c.id))).scalars())


async def announce(connection: AsyncConnection, number: int) -> None:
    """Notify the followers of the database of a revision; on SQLite, they poll."""
    if connection.dialect.name == "postgresql":
        await connection.execute(select(func.pg_notify(CHANNEL, str(number))))


async def document_of(connection: AsyncConnection) -> Body:
    """Return all objects in force as the data of a rules file."""
    in_order = select(*stored_columns(rules)).order_by(rules.c.position, rules.c.id)
    written = [Stored(ObjectKind.RULE, *row).written for row in await connection.execute(in_order)]
    document = {"version": 1, "rules": written, "tiers": await bodies_in(connection, tiers)}
    return document | {"users": await bodies_in(connection, users), **await bodies_in(connection, settings)}


async def bodies_in(connection: AsyncConnection, table: Table) -> dict[str, Any]:
    """Return all bodies, sorted by id, so that equal rules have equal texts."""
    found = dict[str, Any]()
    async for rows in in_slices(connection, select(table.c.id, table.c.body), table.c.id):
        found |= {row.id: row.body for row in rows}
    return found


async def stored_of(connection: AsyncConnection, kind: ObjectKind, names: Iterable[str]) -> dict[str, Stored]:
    """Return the named objects of one kind by id, rules in their order."""
    table = TABLES[kind]
    in_order = (rules.c.position, rules.c.id) if table is rules else (table.c.id,)
    found, columns = dict[str, Stored](), stored_columns(table)
    for some in [list(names)] if table is rules else slices(list(names)):  # the order is that of all rules
        wanted = select(*columns).where(among(connection, table.c.id, some)).order_by(*in_order)
        found |= {row[0]: Stored(kind, *row) for row in await connection.execute(wanted)}
    return found


def condition(table: Table, name: str, wanted: Any) -> ColumnElement[bool]:
    """Return the condition that a field is equal to a value or, for ``search``, that a text of the row contains it."""
    if name == "search":
        texts = [table.c.id, *[func.coalesce(table.c.body[field].as_string(), "") for field in ("name", "endpoint")]]
        return or_(*[func.lower(text).contains(wanted.lower(), autoescape=True) for text in texts])
    present: ColumnElement[Any]
    if name in table.c:
        present = table.c[name]
    else:
        field = table.c.body[name]
        text = field.as_boolean() if isinstance(wanted, bool) else field.as_string()
        present = func.coalesce(text, RULE_DEFAULTS.get(name, ""))
    equal: ColumnElement[bool] = present == wanted
    return equal


def stored_columns(table: Table) -> list[Column[Any]]:
    return [table.c[name] for name in Stored._fields if name != "kind"]

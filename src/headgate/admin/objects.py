"""What a database keeps of rules, tiers, users and settings: rows, each with a body in the form of a rules file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Self

from sqlalchemy import Column, ColumnElement, Table, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin.statements import AT_ONCE, among, slices
from headgate.admin.tables import revision, rules, settings, tiers, users
from headgate.config.problems import Finding, InvalidRules
from headgate.config.times import moment_text
from headgate.core.errors import HeadgateError
from headgate.policy.dumping import DEFAULTS
from headgate.policy.forms import FILE

RULE_DEFAULTS: Mapping[str, Any] = DEFAULTS | {"algorithm": "token_bucket"}
"""What a rule has where it does not say, also for filters. Fields that are not named here are empty then."""
SETTINGS = tuple([name for name in FILE.fields if name not in {"version", "rules", "tiers", "users"}])
"""What a rules file has besides rules, tiers and users."""
STAMPS = ("created_at", "updated_at")
"""What a rule has that only the database knows."""
CHANNEL = "headgate"
"""The channel of PostgreSQL on which every new revision is announced."""
ANY_VERSION = -1
"""Stands for the version of something that has to exist, whatever its version is."""

_NAMED = 10
"""Ids that a message has, of those of one kind."""

Body = dict[str, Any]


class ObjectKind(StrEnum):
    """What an operation is about."""

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
    """One thing to change."""

    kind: ObjectKind
    id: str
    body: Any | None
    """What it is to be, in the form of a rules file; None: it is to be deleted."""
    expected: int | None = None
    """The version that this replaces: 0 for something new, `ANY_VERSION` for what exists, None for anything."""


class Stored(NamedTuple):
    """Something in force."""

    kind: ObjectKind
    id: str
    body: Any
    version: int
    created_at: int
    """0: not known, since the rules are in a file."""
    updated_at: int

    @property
    def written(self) -> Any:
        """The body with what the database knows besides: of a rule, when it was made and changed."""
        if self.kind is not ObjectKind.RULE or not self.created_at:
            return self.body
        return {**self.body, "created_at": moment_text(self.created_at), "updated_at": moment_text(self.updated_at)}


class ObjectVersion(NamedTuple):
    """What something was once."""

    version: int
    body: Any | None
    """None: it was deleted then."""
    revision: int
    at: int
    actor: str


class ResultPage(NamedTuple):
    """Some of many."""

    items: list[dict[str, Any]]
    total: int
    """How many there are altogether, as far as the filters let them through."""
    next: int | None
    """The offset of the next page; None if this is the last."""

    @classmethod
    def of(cls, items: list[dict[str, Any]], total: int, end: int) -> Self:
        """Return the page that ends at an offset."""
        return cls(items, total, end if end < total else None)


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


class InUse(HeadgateError):
    """What is to be deleted is used by something else.

    Args:
        what: is to be deleted.
        users: ids of what uses it, by their kind.
        hint: what would help.
    """

    def __init__(self, what: str, users: Mapping[str, Sequence[str]], hint: str) -> None:
        said = []
        for kind, names in users.items():
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            said.append(f"{len(names)} {kind if len(names) > 1 else kind[:-1]} ({', '.join(names[:_NAMED])}{more})")
        super().__init__(f"{what} is used by {', '.join(said)}; {hint}")


class UnknownObject(HeadgateError):
    """Something that was to be deleted, or whose version was asked for, does not exist."""


def check_version(what: str, expected: int | None, found: int) -> None:
    """Raise VersionConflict unless something is of the version that is expected; see `Operation.expected`."""
    is_expected = found > 0 if expected == ANY_VERSION else expected in {None, found}
    if expected is not None and not is_expected:
        raise VersionConflict(what, expected, found)


def check_stamps(given: Body, known: Body, where: str = "") -> None:
    """Raise InvalidRules if a rule that is to be written has other times than the database keeps of it."""
    other = [name for name in STAMPS if given.get(name, known.get(name)) != known.get(name)]
    if other:
        message, hint = "the database itself keeps the times of rules", "Leave it out"
        raise InvalidRules([Finding(message, hint=hint, path=f"{where}{name}") for name in other])


def without_overrides(user: Body, rules: Collection[str]) -> Body | None:
    """Return the body of a user without the overrides of some rules; None if nothing is special then."""
    left = {rule: change for rule, change in user.get("overrides", {}).items() if rule not in rules}
    others = {name: value for name, value in user.items() if name != "overrides"}
    return {**others, **({"overrides": left} if left else {})} or None


def operations_between(present: Body, wanted: Body) -> list[Operation]:
    """Return what makes of the data of one rules file that of another."""
    operations = []
    for kind in (ObjectKind.SETTING, ObjectKind.RULE, ObjectKind.TIER, ObjectKind.USER):
        before, after = bodies_of(present, kind), bodies_of(wanted, kind)
        operations += [Operation(kind, name, None) for name in before if name not in after]
        for name, body in after.items():
            if name not in before or before[name] != body:
                operations.append(Operation(kind, name, body if body is not None else {}))
    return operations


def bodies_of(document: Mapping[str, Any], kind: ObjectKind) -> dict[str, Any]:
    """Return what the data of a rules file has of one kind, by id; rules without what only the database knows."""
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
    """Return the revision that is in force."""
    number: int = (await connection.execute(select(revision.c.number))).scalar_one()
    return number


async def order_of(connection: AsyncConnection) -> list[str]:
    """Return the ids of all rules as they follow each other."""
    return list((await connection.execute(select(rules.c.id).order_by(rules.c.position, rules.c.id))).scalars())


async def announce(connection: AsyncConnection, number: int) -> None:
    """Tell all who follow the database that there is something new, as of a revision; on SQLite, they look."""
    if connection.dialect.name == "postgresql":
        await connection.execute(select(func.pg_notify(CHANNEL, str(number))))


async def document_of(connection: AsyncConnection) -> Body:
    """Return all that is in force as the data of a rules file."""
    in_order = select(*stored_columns(rules)).order_by(rules.c.position, rules.c.id)
    written = [Stored(ObjectKind.RULE, *row).written for row in await connection.execute(in_order)]
    document = {"version": 1, "rules": written, "tiers": await bodies_in(connection, tiers)}
    return document | {"users": await bodies_in(connection, users), **await bodies_in(connection, settings)}


async def bodies_in(connection: AsyncConnection, table: Table) -> dict[str, Any]:
    """Return all bodies by id, in the order of ids, so that the same rules are the same text."""
    found, some = dict[str, Any](), select(table.c.id, table.c.body).order_by(table.c.id).limit(AT_ONCE)
    rows = (await connection.execute(some)).all()
    while rows:
        found |= {row.id: row.body for row in rows}
        rows = (await connection.execute(some.where(table.c.id > rows[-1].id))).all() if len(rows) == AT_ONCE else ()
    return found


async def stored_of(connection: AsyncConnection, kind: ObjectKind, names: Iterable[str]) -> dict[str, Stored]:
    """Return what is in force of one kind, by id, as far as it is named; rules in their order."""
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
    given: ColumnElement[Any]
    if name in table.c:
        given = table.c[name]
    else:
        field = table.c.body[name]
        said = field.as_boolean() if isinstance(wanted, bool) else field.as_string()
        given = func.coalesce(said, RULE_DEFAULTS.get(name, ""))
    equal: ColumnElement[bool] = given == wanted
    return equal


def stored_columns(table: Table) -> list[Column[Any]]:
    """Return the columns that a `Stored` has besides its kind."""
    return [table.c[name] for name in Stored._fields if name != "kind"]

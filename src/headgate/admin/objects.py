"""What a database keeps of rules, tiers, users and settings: rows, each with a body in the form of a rules file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import msgspec
from sqlalchemy import JSON, Column, ColumnElement, Insert, Table, Text, Update, func, literal, or_, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin.tables import revision, rules, settings, tiers, users
from headgate.policy.times import moment_text

RULE_DEFAULTS = {"dimension": "user", "endpoint": "**", "algorithm": "token_bucket", "enabled": True}
"""What a rule has that does not say; filters look at it so. Fields not named here are empty then."""
SETTINGS = ("default_tier", "allow", "deny", "default", "ignore_case", "unknown_rule")
"""What a rules file has besides rules, tiers and users."""
STAMPS = ("created_at", "updated_at")
"""What a rule has that only the database knows."""
AT_ONCE = 5000
"""Rows of one statement: whoever serves decisions in the same process waits for no more."""
ANY_VERSION = -1
"""Stands for the version of something that has to exist, whatever its version is."""

Body = dict[str, Any]
T = TypeVar("T")


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
    updated_at: int

    @property
    def written(self) -> Any:
        """The body with what the database knows besides: of a rule, when it was made and changed."""
        if self.kind is not ObjectKind.RULE:
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


def operations_between(present: Body, wanted: Body) -> list[Operation]:
    """Return what makes of the data of one rules file that of another."""
    operations = []
    for kind, before, after in (
        (ObjectKind.SETTING, _settings_of(present), _settings_of(wanted)),
        (ObjectKind.RULE, rules_of(present), rules_of(wanted)),
        (ObjectKind.TIER, present.get("tiers") or {}, wanted.get("tiers") or {}),
        (ObjectKind.USER, present.get("users") or {}, wanted.get("users") or {}),
    ):
        operations += [Operation(kind, name, None) for name in before if name not in after]
        for name, body in after.items():
            if name not in before or before[name] != body:
                operations.append(Operation(kind, name, body if body is not None else {}))
    return operations


def rules_of(document: Body) -> dict[str, Any]:
    """Return the rules that the data of a rules file has, by id, without what the database knows besides."""
    found = {}
    for rule in document.get("rules") or ():
        body = {"id" if key == "rule_id" else key: value for key, value in rule.items() if key not in STAMPS}
        found[body["id"]] = body
    return found


def _settings_of(document: Body) -> dict[str, Any]:
    return {name: document[name] for name in SETTINGS if document.get(name) is not None}


async def revision_number(connection: AsyncConnection) -> int:
    """Return the revision that is in force."""
    number: int = (await connection.execute(select(revision.c.number))).scalar_one()
    return number


async def document_of(connection: AsyncConnection, with_users: set[str] | None = None) -> Body:
    """Return all that is in force as the data of a rules file; of users only some, if they are given."""
    document: Body = {"version": 1}
    in_order = select(*stored_columns(rules)).order_by(rules.c.position, rules.c.id)
    document["rules"] = [Stored(ObjectKind.RULE, *row).written for row in await connection.execute(in_order)]
    document["tiers"] = await _bodies_of(connection, tiers)
    if with_users is None:
        document["users"] = await _bodies_of(connection, users)
    else:
        found = await stored_of(connection, ObjectKind.USER, with_users)
        document["users"] = {name: each.body for name, each in found.items()}
    return document | await _bodies_of(connection, settings)


async def _bodies_of(connection: AsyncConnection, table: Table) -> dict[str, Any]:
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
    """Return what holds for rows whose field is equal to a value or, as ``search``, for those in whose text it is."""
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


def slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Return a few at a time: what is done with thousands must let others do something in between."""
    return (items[at : at + AT_ONCE] for at in range(0, len(items), AT_ONCE))


async def write_rows(
    connection: AsyncConnection, statement: Insert | Update, items: Sequence[T], row_of: Callable[[T], Body]
) -> None:
    """Run a statement for each of many items; `row_of` returns the parameters of one, by their names.

    Rows are made in a thread, in the form that the driver takes: SQLAlchemy would look at each value of each row once
    more, in the event loop, where others wait meanwhile.
    """
    if not items:
        return
    compiled = statement.compile(dialect=connection.dialect)
    columns = [(name, isinstance(compiled.binds[name].type, JSON)) for name in compiled.positiontup or ()]

    def made(some: Sequence[T]) -> list[tuple[Any, ...]]:
        return [
            tuple([_json(row[name]) if is_json else row[name] for name, is_json in columns])
            for row in [row_of(item) for item in some]
        ]

    for some in slices(items):
        await connection.exec_driver_sql(str(compiled), await asyncio.to_thread(made, some))


def _json(value: Any) -> str | None:
    return None if value is None else _ENCODER.encode(value).decode()


_ENCODER = msgspec.json.Encoder()


def among(connection: AsyncConnection, column: Column[str], names: Iterable[str]) -> ColumnElement[bool]:
    """Return what holds for rows whose column is one of `names`, however many, which are one parameter.

    A parameter each would be too many for the drivers, and PostgreSQL compares every row with every one of them.
    """
    if connection.dialect.name == "postgresql":
        return column.in_(select(func.unnest(literal(list(names), ARRAY(Text))).column_valued()))
    listed = func.json_each(json.dumps(list(names), ensure_ascii=False)).table_valued("value")
    return column.in_(select(listed.c.value))

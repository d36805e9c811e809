"""The tables of the admin database, and SQL for its two kinds, SQLite and PostgreSQL.

Times are microseconds since the epoch. Bodies are JSON in the form of a rules file, which the file, the API and the
database share; other columns repeat parts of a body for searches.

::

    revision                        one row: the number of the last change; every change locks it first
    rules, tiers, users, settings   objects in force: the body of each, and its version
    overrides                       users, the rules that they override, and until when
    versions                        all versions of all bodies
    changes                         the objects that each revision changed, for nodes that catch up
    audit, audit_start              the audit trail, a chain of digests; and where the chain starts
    api_keys, consumer_keys         digests of keys, never keys
    sessions                        digests of the tokens of browsers that are logged in to the console
    nodes                           services, and the revision that each runs
    figures                         present rates of each node, during views of the overview
    usage_minutes, usage_hours      decisions of rules, lately by minute, before that by hour
    use_windows, use_principals     use of principals of a sample in open windows
    use_histograms                  numbers of principals by their use, for all windows that began in an hour
    refusals, refusal_hours         the last refusals of callers, for a day; and their numbers by hour
    usage_writers                   the last batch of each service, so that none is added twice
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from time import time_ns
from typing import Any, TypeVar

import msgspec
from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    ForeignKey,
    Index,
    Insert,
    Integer,
    MetaData,
    Row,
    Select,
    SmallInteger,
    String,
    Table,
    Text,
    Update,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection


def epoch_us() -> int:
    """Return the present time, in microseconds since the epoch."""
    return time_ns() // 1000


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
Json = JSON(none_as_null=True)
RULE_ID, TIER, USER_ID = 64, 64, 512
STAT = 200  # the name of a rule in counters: Envoy's descriptors have longer names than rules


def _key(name: str, longest: int) -> Column[Any]:
    """Return a part of the primary key that is text."""
    return Column(name, String(longest), primary_key=True)


def _key_number(name: str, kind: Any = BigInteger) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _text(name: str, longest: int | None = None, *, index: bool = False) -> Column[Any]:
    return Column(name, String(longest) if longest else Text(), nullable=False, index=index)


def _number(name: str, kind: Any = BigInteger, *, index: bool = False) -> Column[Any]:
    return Column(name, kind, nullable=False, index=index)


def _only_row() -> Column[Any]:
    one = CheckConstraint("id = 1", name="only")
    return Column("id", SmallInteger, one, primary_key=True, autoincrement=False)


revision = Table("revision", metadata, _only_row(), _number("number"), _number("changed_at"))


def _bodies(name: str, longest_id: int, *columns: Column[Any]) -> Table:
    return Table(
        name,
        metadata,
        _key("id", longest_id),
        *columns,
        Column("body", Json, nullable=False),
        _number("version", Integer),
        _number("created_at"),
        _number("updated_at", index=True),
    )


rules = _bodies("rules", RULE_ID, _number("position", Integer, index=True))
tiers = _bodies("tiers", TIER)
users = _bodies("users", USER_ID, _text("tier", TIER, index=True))
settings = _bodies("settings", RULE_ID)
overrides = Table(  # repeated from the bodies of users, for searches by rule and by time
    "overrides",
    metadata,
    Column("user_id", String(USER_ID), ForeignKey("users.id", ondelete="CASCADE"), primary_key=True),
    Column("rule_id", String(RULE_ID), primary_key=True, index=True),
    Column("until", BigInteger, index=True),
)
versions = Table(
    "versions",
    metadata,
    _key("kind", 16),
    _key("id", USER_ID),
    _key_number("version", Integer),
    Column("body", Json),  # null: it was deleted
    Column("place", Integer),  # of a deleted rule: the number of rules before it
    _number("revision"),
    _number("at"),
    _text("actor", 128),
)
changes = Table("changes", metadata, _key_number("revision"), _key("kind", 16), _key("subject", USER_ID))
audit = Table(
    "audit",
    metadata,
    _key_number("sequence"),
    _number("at", index=True),
    _text("actor", 128, index=True),
    _text("action", 32, index=True),
    _text("kind", 16),
    _text("subject", USER_ID, index=True),
    Column("before", Json),
    Column("after", Json),
    _text("request_id", 128),
    _text("reason"),
    _number("revision", index=True),
    _text("previous", 64),
    _text("digest", 64),
    Index("ix_audit_kind_subject", "kind", "subject"),
)
audit_start = Table("audit_start", metadata, _only_row(), _number("sequence"), _text("digest", 64))


def _keys(name: str, *columns: Column[Any]) -> Table:
    """Return a table of digests of keys; times are null for keys that do not expire, or were not revoked."""
    issued = _text("digest", 64), _number("created_at"), _text("created_by", 128)
    ended = [Column(each, BigInteger) for each in ("expires_at", "revoked_at")]
    return Table(name, metadata, _key("id", 32), *columns, *issued, *ended)


api_keys = _keys("api_keys", _text("name", 128), _text("role", 16), Column("last_used_at", BigInteger))
consumer_keys = _keys("consumer_keys", _text("consumer", USER_ID, index=True), _text("tenant", USER_ID))
sessions = Table(
    "sessions",
    metadata,
    _key("id", 64),
    _text("key_id", 64, index=True),
    _text("key_digest", 64),
    _number("created_at"),
    _number("seen_at"),
    _text("csrf", 64),
)
nodes = Table(
    "nodes",
    metadata,
    _key("id", 64),
    _text("host", 255),
    _number("process", Integer),
    _number("started_at"),
    _number("seen_at", index=True),
    _number("revision"),
    _text("error"),
)
WATCHED = "watched"
"""The id of the row of `figures` whose time is the end of views; ids of others are those of nodes."""
figures = Table("figures", metadata, _key("id", 64), _number("at"), _text("body"))


def _usage(name: str) -> Table:
    columns = _key_number("at"), _key("rule_id", STAT), _key("outcome", 16), _number("count")  # at: its beginning
    return Table(name, metadata, *columns, Index(f"ix_{name}_rule_id_at", "rule_id", "at"))


usage_minutes, usage_hours = _usage("usage_minutes"), _usage("usage_hours")


def _use(name: str, *columns: Column[Any]) -> Table:
    """Return a table by rule, window and limit at that time, and the beginning of the window, or of the first."""
    keys = _key("rule_id", RULE_ID), *[_key_number(each) for each in ("window_us", "in_force", "at")]
    return Table(name, metadata, *keys, *columns, Index(f"ix_{name}_at", "at"))


use_windows = _use("use_windows", _number("level", Integer))  # the sample: one of 2 ** level
use_principals = _use("use_principals", _key_number("principal"), _number("units"))  # principal: a digest
use_histograms = _use(  # low: the least units of a bucket
    "use_histograms", _key_number("level", Integer), _key_number("low"), _number("principals"), _number("units")
)
_SHOWN = 512  # the longest principal in the form of logs
_CALLERS = ("principal", "user", "apikey", "ip")
refusals = Table(
    "refusals",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    _number("at", index=True),
    _text("rule_id", STAT),
    *[_text(name, _SHOWN) for name in _CALLERS],
    _text("endpoint", 200),
    *[_text(name, 64) for name in ("method", "api", "reason")],
    *[Column(name, BigInteger) for name in ("used", "limit", "retry_after_us")],
    _number("count"),
    *[Index(f"ix_refusals_{name}_at", name, "at") for name in _CALLERS],
)
refusal_hours = Table(
    "refusal_hours",
    metadata,
    _key_number("at"),
    _key("rule_id", STAT),
    _key("principal", _SHOWN),
    _number("count"),
    Index("ix_refusal_hours_principal_at", "principal", "at"),
)
usage_writers = Table("usage_writers", metadata, _key("id", 64), _number("sequence"), _number("seen_at"))


# Statements of thousands of rows, and expressions in which the two differ


AT_ONCE = 5000
"""Rows of one statement: decisions in the same process wait no longer than for these."""
_ENCODER = msgspec.json.Encoder()
T = TypeVar("T")


def slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split items, so that other tasks run between the parts."""
    return (items[at : at + AT_ONCE] for at in range(0, len(items), AT_ONCE))


async def write_rows(
    connection: AsyncConnection, statement: Insert | Update, items: Sequence[T], row_of: Callable[[T], dict[str, Any]]
) -> None:
    """Run a statement for each of many items; `row_of` returns the parameters of one, by their names.

    Rows are made in a thread, in the form of the driver: SQLAlchemy would convert each value in the event loop.
    """
    if not items:
        return
    compiled = statement.compile(dialect=connection.dialect)
    columns = [(name, isinstance(compiled.binds[name].type, JSON)) for name in compiled.positiontup or ()]

    def made(some: Sequence[T]) -> list[tuple[Any, ...]]:
        return [
            tuple(
                [
                    row[name] if row[name] is None or not is_json else _ENCODER.encode(row[name]).decode()
                    for name, is_json in columns
                ]
            )
            for row in [row_of(item) for item in some]
        ]

    for some in slices(items):
        await connection.exec_driver_sql(str(compiled), await asyncio.to_thread(made, some))


async def in_slices(
    connection: AsyncConnection, query: Select[Any], column: Column[Any], most: int | None = None
) -> AsyncIterator[Sequence[Row[Any]]]:
    """Yield the rows of a query, sorted by a column of it, so that other tasks run between the parts."""
    most = most or AT_ONCE
    some = query.order_by(column).limit(most)
    rows = (await connection.execute(some)).all()
    while rows:
        yield rows
        following = some.where(column > getattr(rows[-1], column.name))
        rows = (await connection.execute(following)).all() if len(rows) == most else ()


def among(connection: AsyncConnection, column: Column[str], names: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that a column is one of `names`, with one parameter for all of them.

    Drivers bound the number of parameters, and PostgreSQL would compare every row with each.
    """
    if connection.dialect.name == "postgresql":
        return column.in_(select(func.unnest(literal(list(names), postgresql.ARRAY(Text))).column_valued()))
    listed = func.json_each(json.dumps(list(names), ensure_ascii=False)).table_valued("value")
    return column.in_(select(listed.c.value))


def begins(connection: AsyncConnection, column: Column[str], beginning: str) -> ColumnElement[bool]:
    """Return the condition that a column begins with a text; on SQLite, it uses the column's index."""
    if connection.dialect.name == "postgresql":  # whose index is sorted by the database's locale
        return func.starts_with(column, beginning)
    return and_(column >= beginning, column < beginning + chr(0x10FFFF))


def member(connection: AsyncConnection, column: Column[Any], table: str, name: Column[str]) -> ColumnElement[str]:
    """Return a member of a table in a JSON value, as text; without parameters, see `constant`."""
    if connection.dialect.name == "postgresql":
        return func.json_extract_path_text(column, literal_column(f"'{table}'", Text), name, type_=Text)
    path = literal_column(f"""'$.{table}."'""", Text) + name + literal_column("""'"'""", Text)
    return func.json_extract(column, path, type_=Text)


def upsert(
    connection: AsyncConnection,
    table: Table,
    *,
    add: Sequence[str] = (),
    replace: Sequence[str] = (),
    largest: Sequence[str] = (),
    rows: Any = None,
) -> Any:
    """Return an insertion, of a query's `rows` if given, that updates the row with the same key if there is one.

    In that row, it adds to the columns `add`, overwrites `replace`, and keeps the larger value of `largest`.
    """
    insertion = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)
    if rows is not None:
        insertion = insertion.from_select([column.name for column in rows.selected_columns], rows)
    new = insertion.excluded
    changes = {name: table.c[name] + new[name] for name in add} | {name: new[name] for name in replace}
    changes |= {name: case((table.c[name] < new[name], new[name]), else_=table.c[name]) for name in largest}
    return insertion.on_conflict_do_update(index_elements=[*table.primary_key], set_=changes)


async def last_batch(connection: AsyncConnection, writer: str) -> int:
    """Return the sequence of the last batch that a service has written; 0 if there is none."""
    sequence = select(usage_writers.c.sequence).where(usage_writers.c.id == writer)
    return (await connection.execute(sequence)).scalar() or 0


async def note_batch(connection: AsyncConnection, writer: str, sequence: int, now: int) -> None:
    """Record that a batch of a service is written, in its transaction, so that it is never added twice."""
    noted = upsert(connection, usage_writers, replace=("sequence", "seen_at"))
    await connection.execute(noted, {"id": writer, "sequence": sequence, "seen_at": now})


async def page_of(
    connection: AsyncConnection, query: Select[Any], order: Sequence[Any], offset: int, limit: int
) -> tuple[list[dict[str, Any]], int]:
    """Return some rows of a query in an order, and the total number of its rows."""
    total = (await connection.execute(select(func.count()).select_from(query.subquery()))).scalar_one()
    some = await connection.execute(query.order_by(*order).offset(offset).limit(limit))
    return [dict(row) for row in some.mappings()], total


def period(at: Column[Any], filters: Mapping[str, Any]) -> list[ColumnElement[bool]]:
    """Return the conditions for `since` and `until` among filters, if given: from the first to before the second."""
    conditions = [at >= filters["since"]] if "since" in filters else []
    return conditions + ([at < filters["until"]] if "until" in filters else [])


def sum_of(column: Any) -> Any:
    """Return the sum of integers as an integer: in PostgreSQL it would be a decimal."""
    return cast(func.sum(column), BigInteger)


def constant(number: int) -> Any:
    """Return a number as a literal: PostgreSQL regards two parameters in a GROUP BY as different."""
    return literal_column(str(number), BigInteger)

"""SQL for SQLite and PostgreSQL: statements of thousands of rows, and expressions in which the two differ."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    Insert,
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

from headgate.admin.tables import usage_writers

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
            tuple([_json(row[name]) if is_json else row[name] for name, is_json in columns])
            for row in [row_of(item) for item in some]
        ]

    for some in slices(items):
        await connection.exec_driver_sql(str(compiled), await asyncio.to_thread(made, some))


def _json(value: Any) -> str | None:
    return None if value is None else _ENCODER.encode(value).decode()


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


def sum_of(column: Any) -> Any:
    """Return the sum of integers as an integer: in PostgreSQL it would be a decimal."""
    return cast(func.sum(column), BigInteger)


def constant(number: int) -> Any:
    """Return a number as a literal: PostgreSQL regards two parameters in a GROUP BY as different."""
    return literal_column(str(number), BigInteger)

"""Statements for SQLite and PostgreSQL alike: of thousands of rows, and where the two spell things differently."""

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
    cast,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

AT_ONCE = 5000
"""Rows of one statement: whoever serves decisions in the same process waits for no more."""
_ENCODER = msgspec.json.Encoder()
T = TypeVar("T")


def slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Return a few at a time: what is done with thousands must let others do something in between."""
    return (items[at : at + AT_ONCE] for at in range(0, len(items), AT_ONCE))


async def write_rows(
    connection: AsyncConnection, statement: Insert | Update, items: Sequence[T], row_of: Callable[[T], dict[str, Any]]
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


def among(connection: AsyncConnection, column: Column[str], names: Iterable[str]) -> ColumnElement[bool]:
    """Return what holds for rows whose column is one of `names`, however many, which are one parameter.

    A parameter each would be too many for the drivers, and PostgreSQL compares every row with every one of them.
    """
    if connection.dialect.name == "postgresql":
        return column.in_(select(func.unnest(literal(list(names), postgresql.ARRAY(Text))).column_valued()))
    listed = func.json_each(json.dumps(list(names), ensure_ascii=False)).table_valued("value")
    return column.in_(select(listed.c.value))


def begins(connection: AsyncConnection, column: Column[str], beginning: str) -> ColumnElement[bool]:
    """Return what holds for rows whose column begins with a text; SQLite finds them by the column's index."""
    if connection.dialect.name == "postgresql":  # whose index follows the database's language, not its characters
        return func.starts_with(column, beginning)
    return and_(column >= beginning, column < beginning + chr(0x10FFFF))


def member(connection: AsyncConnection, column: Column[Any], table: str, name: Column[str]) -> ColumnElement[str]:
    """Return a member of a table in a JSON value, as text; without parameters, see `constant`."""
    if connection.dialect.name == "postgresql":
        return func.json_extract_path_text(column, literal_column(f"'{table}'", Text), name, type_=Text)
    path = literal_column(f"""'$.{table}."'""", Text) + name + literal_column("""'"'""", Text)
    return func.json_extract(column, path, type_=Text)


def upsert(connection: AsyncConnection, table: Table) -> Any:
    """Return an insertion that can say what happens to rows that are there already."""
    return (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)


def sum_of(column: Any) -> Any:
    """Return the sum of whole numbers as one: PostgreSQL would make it a decimal number."""
    return cast(func.sum(column), BigInteger)


def constant(number: int) -> Any:
    """Return a number as a part of the text: a parameter would not be the same one when it groups."""
    return literal_column(str(number), BigInteger)

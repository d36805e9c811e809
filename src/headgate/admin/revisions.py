"""Revisions, read from the audit trail, and the operations that undo one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, and_, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin.objects import (
    InUse,
    ObjectKind,
    Operation,
    Stored,
    UnknownObject,
    order_of,
    revision_number,
    stored_of,
    without_overrides,
)
from headgate.admin.tables import among, audit, in_slices, versions
from headgate.admin.transaction import ORDER, TIERS, USERS, uses_of, without_uses
from headgate.config.times import moment_text
from headgate.core.errors import HeadgateError
from headgate.policy.loading import change_from_data

_NAMED = 10
"""Conflicts in a message."""
_IS_CHANGE: ColumnElement[bool] = and_(
    audit.c.kind.in_([*ObjectKind, ORDER]), audit.c.action.in_(["create", "update", "delete"])
)
_COMMON = ("at", "actor", "request_id", "reason")
"""Fields that all entries of a revision share."""
_KEPT_IN = {"rules": ObjectKind.RULE, TIERS: ObjectKind.TIER, USERS: ObjectKind.USER, "settings": ObjectKind.SETTING}


class Conflict(NamedTuple):
    kind: str
    id: str
    revision: int

    def __str__(self) -> str:
        return f"{self.kind} {self.id!r:.200} (revision {self.revision})"


class Superseded(HeadgateError):
    """An undo that later changes prevent."""

    def __init__(self, number: int, conflicts: Sequence[Conflict]) -> None:
        self.conflicts = conflicts
        named = ", ".join(map(str, conflicts[:_NAMED]))
        more = f" and {len(conflicts) - _NAMED} more" if len(conflicts) > _NAMED else ""
        super().__init__(
            f"revision {number} cannot be undone, because of later changes: {named}{more}; undo those first, or "
            "override them with force"
        )


async def revisions_of(
    connection: AsyncConnection, newest: int, offset: int, limit: int
) -> tuple[list[dict[str, Any]], int]:
    """Return some revisions, the newest first, and their total number; `newest` is the one in force.

    Every revision has entries, so a page is a range of numbers.
    """
    oldest = (await connection.execute(select(func.min(audit.c.revision)).where(_IS_CHANGE))).scalar()
    if oldest is None:
        return [], 0
    last = newest - offset
    return await _between(connection, max(oldest, last - limit + 1), last), newest - oldest + 1


async def revision_of(connection: AsyncConnection, number: int, newest: int) -> dict[str, Any]:
    """Return a revision, with the number of its changes, and with all of them in one line. Raises UnknownObject."""
    found = await _between(connection, number, number)
    if not found:
        why = "is no longer in the audit trail" if 0 < number <= newest else "does not exist"
        raise UnknownObject(f"revision {number} {why}")
    return found[0]


async def changes_of(connection: AsyncConnection, number: int, offset: int, limit: int) -> list[dict[str, Any]]:
    columns = audit.c.kind, audit.c.subject.label("id"), audit.c.action, audit.c.before, audit.c.after
    some = select(*columns).where(audit.c.revision == number, _IS_CHANGE).order_by(audit.c.sequence)
    return [dict(row) for row in (await connection.execute(some.offset(offset).limit(limit))).mappings()]


async def _between(connection: AsyncConnection, first: int, last: int) -> list[dict[str, Any]]:
    common = [func.min(audit.c[name]).label(name) for name in (*_COMMON, "subject")]
    counts = select(audit.c.revision, audit.c.action, audit.c.kind, func.count().label("total"), *common)
    counts = counts.where(_IS_CHANGE, audit.c.revision.between(first, last)).group_by(*counts.selected_columns[:3])
    found: dict[int, list[Row[Any]]] = {}
    for row in await connection.execute(counts.order_by(audit.c.revision.desc(), audit.c.kind, audit.c.action)):
        found.setdefault(row.revision, []).append(row)
    return [
        {
            "revision": number,
            **{name: getattr(rows[0], name) for name in _COMMON},
            "at": moment_text(rows[0].at),
            "changes": sum(row.total for row in rows),
            "summary": ", ".join(map(_summary, rows)),
        }
        for number, rows in found.items()
    ]


def _summary(row: Row[Any]) -> str:
    changed = f"{row.kind} {row.subject}" if row.total == 1 else f"{row.total} {row.kind}s"
    return f"{row.action} {changed}"


async def undo_operations(
    connection: AsyncConnection, number: int, now: int, *, force: bool
) -> tuple[list[Operation], Sequence[str]]:
    """Return the operations that undo a revision, and the new order of all rules, by id; empty if it does not change.

    With `force`, they undo later changes too.

    Overrides that have ended are ignored: they are not restored, and cause no conflict.

    Raises:
        UnknownObject: the audit trail does not have that revision.
        Superseded: later changes prevent it.
        InUse: an object to be deleted is used by one that even `force` does not change.
    """
    await revision_of(connection, number, await revision_number(connection))
    operations, changed, moved = list[Operation](), list[tuple[str, str]](), None
    present: dict[ObjectKind, dict[str, Stored]] = {kind: {} for kind in ObjectKind}
    columns = audit.c.sequence, audit.c.kind, audit.c.subject, audit.c.before, audit.c.after
    entries = select(*columns).where(audit.c.revision == number, _IS_CHANGE)
    async for some in in_slices(connection, entries, audit.c.sequence):
        for kind in ObjectKind:
            named = [row.subject for row in some if row.kind == kind]
            present[kind] |= await stored_of(connection, kind, named) if named else {}

        def compared(rows: Sequence[Row[Any]] = some) -> None:
            for row in rows:
                if row.kind == ORDER:
                    continue
                stored = present[ObjectKind(row.kind)].get(row.subject)
                bodies = stored.body if stored else None, row.before, row.after
                now_is, was, became = (
                    [_without_ended(each, now) for each in bodies] if row.kind == ObjectKind.USER else bodies
                )
                if now_is != was:
                    operations.append(Operation(ObjectKind(row.kind), row.subject, was))
                    changed.extend([(row.kind, row.subject)] * (now_is != became))

        await asyncio.to_thread(compared)
        moved = next((row for row in some if row.kind == ORDER), moved)
    in_order = await order_of(connection)
    uses = await _changed_later(connection, number, await _uses(connection, operations, now))
    if not force:
        needed = await _missing(connection, operations)
        conflicts = [*uses, *await _changed_later(connection, number, [*changed, *needed])]
        common = {*in_order} & {*(moved.after["rules"] if moved is not None else ())}
        if moved is not None and [each for each in in_order if each in common] != [
            each for each in moved.after["rules"] if each in common
        ]:
            last = select(func.max(audit.c.revision)).where(audit.c.kind == ORDER)
            conflicts.append(Conflict(ORDER, "rules", (await connection.execute(last)).scalar_one()))
        if conflicts:
            conflicts = [*dict.fromkeys(conflicts)]
            raise Superseded(number, sorted(conflicts, key=lambda each: each.revision, reverse=True))
    operations += await _without(connection, operations, uses)
    return operations, await _wanted_order(connection, operations, in_order, moved, number)


def _without_ended(body: Any, now: int) -> Any:
    """Return the body of a user without ended overrides; None if it becomes empty."""
    overrides = body.get("overrides", {}) if body else {}
    ends = {rule: change_from_data(each).until for rule, each in overrides.items() if "until" in each}
    ended = [rule for rule, until in ends.items() if until is not None and until <= now]
    return without_overrides(body, ended) if ended else body


async def _changed_later(connection: AsyncConnection, number: int, named: Sequence[tuple[str, str]]) -> list[Conflict]:
    """Return the last changes of objects that changed after a revision, of those that are named."""
    found = []
    for kind in ObjectKind:
        ids = [name for each, name in named if each == kind]
        if ids:
            latest = select(versions.c.id, func.max(versions.c.revision)).group_by(versions.c.id)
            latest = latest.where(versions.c.kind == kind, among(connection, versions.c.id, ids))
            latest = latest.having(func.max(versions.c.revision) > number).order_by(versions.c.id)
            rows = await connection.execute(latest)
            found += [Conflict(kind, name, revision) for name, revision in rows]
    return found


async def _missing(connection: AsyncConnection, operations: Sequence[Operation]) -> list[tuple[str, str]]:
    """Return rules and tiers that restored objects need, and that do not exist."""
    needed: dict[ObjectKind, set[str]] = {ObjectKind.RULE: set(), ObjectKind.TIER: set()}
    for kind, name, body, _ in operations:
        if kind is ObjectKind.TIER and body:
            needed[ObjectKind.RULE].update(body)
        elif kind is ObjectKind.RULE and body:
            needed[ObjectKind.RULE].update(body.get("replaces", ()))
        elif kind is ObjectKind.USER and body:
            needed[ObjectKind.RULE].update(body.get("overrides", ()))
            needed[ObjectKind.TIER].update({body.get("tier", "")})
        elif name == "default_tier" and isinstance(body, str):
            needed[ObjectKind.TIER].add(body)
    found: list[tuple[str, str]] = []
    for kind, names in needed.items():
        absent = names - (await stored_of(connection, kind, names)).keys() if names else set[str]()
        absent -= {each.id for each in operations if each.kind is kind and each.body is not None}
        found += [(kind, name) for name in absent]
    return found


async def _uses(connection: AsyncConnection, operations: Sequence[Operation], now: int) -> list[tuple[ObjectKind, str]]:
    """Return the other objects that use rules and tiers to be deleted."""
    done, found = {(each.kind, each.id) for each in operations}, dict[tuple[ObjectKind, str], None]()
    for kind in (ObjectKind.RULE, ObjectKind.TIER):
        uses = await uses_of(connection, kind, _gone(operations, kind), now)
        found |= dict.fromkeys((_KEPT_IN[how], name) for how, names in uses.items() for name in names)
    return [each for each in found if each not in done]


async def _without(
    connection: AsyncConnection, operations: Sequence[Operation], uses: Sequence[Conflict]
) -> list[Operation]:
    """Return the operations that remove the uses of objects to be deleted. Raises InUse."""
    named = {how: [each.id for each in uses if each.kind == kind] for how, kind in _KEPT_IN.items()}
    rules, tiers = _gone(operations, ObjectKind.RULE), _gone(operations, ObjectKind.TIER)
    others = {how: names for how, names in named.items() if names and how not in {USERS, TIERS}}
    if others:
        raise InUse(
            f"what the undo would delete ({', '.join(sorted(rules | tiers)[:_NAMED])})", others, "change these first"
        )
    return await without_uses(connection, named[USERS], named[TIERS], rules=rules, of_tiers=tiers)


def _gone(operations: Sequence[Operation], kind: ObjectKind) -> set[str]:
    return {each.id for each in operations if each.kind is kind and each.body is None}


async def _wanted_order(
    connection: AsyncConnection, operations: Sequence[Operation], present: Sequence[str], moved: Any, number: int
) -> Sequence[str]:
    """Return the new order of rules; empty if it does not change, except for deleted rules."""
    of_rules = {each.id: each.body for each in operations if each.kind is ObjectKind.RULE}
    left = [name for name in present if of_rules.get(name, 0) is not None]
    known = {*present}
    back = [name for name, body in of_rules.items() if body is not None and name not in known]
    if moved is not None:
        before = {name: place for place, name in enumerate(moved.before["rules"])}
        return sorted([*left, *back], key=lambda name: before.get(name, len(before)))
    if not back:
        return ()
    was = select(versions.c.place, versions.c.id).where(
        versions.c.kind == ObjectKind.RULE, versions.c.revision == number, versions.c.place.is_not(None)
    )
    places = await connection.execute(was.where(among(connection, versions.c.id, back)).order_by(versions.c.place))
    for place, name in places:
        left.insert(place, name)
        known.add(name)
    return [*left, *[name for name in back if name not in known]]

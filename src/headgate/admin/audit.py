"""The audit trail: who changed what, when, why, and the states before and after.

Entries are only appended, and each has the digest of the one before it. An entry that is changed, removed or inserted
later breaks this chain. The retention removes the oldest entries: the chain then starts with the last digest removed,
and an entry at its end, a cut, records the removal. If no cut names the start of the chain, the retention did not move
it; then the retention removes nothing more.

With write access to the database, an attacker can also compute a new chain, append a cut, or delete the newest entries.
To detect that, keep digests elsewhere: `verify` returns the last one, and checks that a given one is in the chain,
where every digest younger than the retention must be.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin.tables import audit, audit_start, in_slices, page_of, period, slices, write_rows
from headgate.core.calendar import DAY_US

RETENTION_DAYS = 90
_PAGE = 1000
_CUT = "cut"
"""The action of the retention."""
_NOTHING = "0" * 64
"""The digest before the very first entry."""
_LOG = logging.getLogger("headgate.admin")


class Actor(NamedTuple):
    """The author of a change, with its reason."""

    name: str
    """The name of the key, or of the user who ran the command."""
    request_id: str = ""
    reason: str = ""


class AuditEntry(NamedTuple):
    action: str
    """create, update or delete; of keys also revoke, of limits reset, and of the trail itself cut."""
    kind: str
    subject: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


class AuditChain(NamedTuple):
    entries: int
    last: str
    """The digest of the last entry; keep it elsewhere to detect later that entries at the end are missing."""
    fault: str = ""
    """Where the chain is broken; empty if it is intact."""
    removed: int = 0
    """The number of older entries that the retention has removed."""


async def append(connection: AsyncConnection, entries: list[AuditEntry], actor: Actor, revision: int, now: int) -> None:
    """Add entries in the transaction of the change, which must exclude other writers."""
    sequence, previous = await _end(connection)
    common = {"at": now, "actor": actor.name, "request_id": actor.request_id, "reason": actor.reason}
    for some in slices(entries):
        rows = await asyncio.to_thread(_chain, some, {**common, "revision": revision}, sequence, previous)
        await write_rows(connection, insert(audit), rows, dict)
        sequence, previous = rows[-1]["sequence"], rows[-1]["digest"]


def _chain(entries: Sequence[AuditEntry], common: dict[str, Any], sequence: int, previous: str) -> list[dict[str, Any]]:
    """Return the rows of entries, each with the digest of the one before it."""
    rows = []
    for number, entry in enumerate(entries, sequence + 1):
        row = {**common, "sequence": number, **entry._asdict(), "previous": previous}
        previous = row["digest"] = digest_of(row)
        rows.append(row)
    return rows


async def verify(connection: AsyncConnection, contains: str = "") -> AuditChain:
    """Verify the whole chain; `contains` is a digest that must be in it, if given."""
    start, cut = await _start(connection), None
    sequence, previous, count = start["sequence"], start["digest"], 0
    if not start["digest"]:
        return AuditChain(0, "", "the record of where the trail begins was deleted")
    missing = bool(contains) and contains != previous
    async for row in _rows(connection):
        sequence += 1
        if row["sequence"] != sequence:
            return AuditChain(count, previous, f"entries {sequence} to {row['sequence'] - 1} are missing")
        if row["previous"] != previous or digest_of(row) != row["digest"]:
            return AuditChain(count, previous, f"entry {sequence}, or an earlier one, was changed")
        if row["action"] == _CUT:
            if cut not in {None, row["before"]["digest"]}:
                return AuditChain(count, previous, f"entry {sequence} is a cut that does not follow the one before it")
            cut = row["after"]["digest"]
        previous, count = row["digest"], count + 1
        missing = missing and contains != previous
    if start["digest"] != (cut or _NOTHING):
        fault = f"entries 1 to {start['sequence']} are missing, and were not removed by the retention"
        return AuditChain(count, previous, fault)
    fault = (
        f"the digest {contains:.64} is not in the chain: if it is complete, entries were removed or replaced" * missing
    )
    return AuditChain(count, previous, fault, start["sequence"])


async def page(
    connection: AsyncConnection, filters: Mapping[str, Any], offset: int, limit: int
) -> tuple[list[dict[str, Any]], int]:
    """Return some entries, the newest first, and their total number.

    `filters` are values of actor, action, kind and subject, and `since` and `until`, in microseconds since the epoch;
    `without` is a kind that is excluded.
    """
    equal = filters.keys() - {"since", "until", "without"}
    conditions = [*[audit.c[name] == filters[name] for name in equal], *period(audit.c.at, filters)]
    if "without" in filters:
        conditions.append(audit.c.kind != filters["without"])
    return await page_of(connection, select(audit).where(*conditions), [audit.c.sequence.desc()], offset, limit)


async def prune(connection: AsyncConnection, now: int, days: int = RETENTION_DAYS) -> int:
    """Remove entries older than some days, at most once a day; return their number.

    If the start of the chain was moved otherwise, nothing is removed, which would hide that.
    """
    oldest = (await connection.execute(select(func.min(audit.c.at)))).scalar()
    if oldest is None or oldest >= now - (days + 1) * DAY_US:
        return 0
    start = await _start(connection)
    cuts = select(audit.c.after).where(audit.c.action == _CUT).order_by(audit.c.sequence.desc()).limit(1)
    cut = (await connection.execute(cuts)).scalar()
    if start["digest"] != (cut["digest"] if cut else _NOTHING):
        _LOG.error(
            "the start of the audit trail was changed, so the retention removes no entries: run headgate audit verify"
        )
        return 0
    newest = select(audit.c.sequence, audit.c.digest).where(audit.c.at < now - days * DAY_US)
    last = (await connection.execute(newest.order_by(audit.c.sequence.desc()).limit(1))).one()
    entry = AuditEntry(_CUT, "audit", f"1 to {last.sequence}", start, last._asdict())
    revision = (await connection.execute(select(func.max(audit.c.revision)))).scalar_one()
    await append(connection, [entry], Actor("clean-up", reason=f"older than {days} days"), revision, now)
    removed = await connection.execute(delete(audit).where(audit.c.sequence <= last.sequence))
    await connection.execute(update(audit_start).values(sequence=last.sequence, digest=last.digest))
    return removed.rowcount


def digest_of(row: Mapping[str, Any]) -> str:
    """Return the digest of all fields of an entry, among them the digest of the entry before it."""
    text = _DIGESTED.encode({name: row[name] for name in _FIELDS})
    return sha256(text.encode()).hexdigest()


_FIELDS = tuple(column.name for column in audit.c if column.name != "digest")
_DIGESTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)


async def _start(connection: AsyncConnection) -> dict[str, Any]:
    """Return the sequence and the digest of the entry before the first one; an empty digest if that was deleted."""
    start = await connection.execute(select(audit_start.c.sequence, audit_start.c.digest))
    return dict(start.mappings().one_or_none() or {"sequence": 0, "digest": ""})


async def _end(connection: AsyncConnection) -> tuple[int, str]:
    newest = select(audit.c.sequence, audit.c.digest).order_by(audit.c.sequence.desc()).limit(1)
    row = (await connection.execute(newest)).one_or_none()
    if row is None:
        start = await _start(connection)
        return start["sequence"], start["digest"]
    return row.sequence, row.digest


async def _rows(connection: AsyncConnection) -> AsyncIterator[dict[str, Any]]:
    async for some in in_slices(connection, select(audit), audit.c.sequence, _PAGE):
        for row in some:
            yield row._asdict()


def texts_of(value: Any) -> Iterator[str]:
    """Return all texts in JSON data, names of members too."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            left += [*part, *part.values()]
        elif isinstance(part, list):
            left += part

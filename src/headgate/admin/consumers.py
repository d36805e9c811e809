"""Consumers: callers of the API that is protected, with keys that are issued while the service runs.

A consumer is a user of the rules, whose name its keys prove: tier and overrides are those of the user of this name.
Its key is a text such as ``hgc_4f9a2c81d07b_pQ...``, shown once, of which only a digest is kept. It opens neither the
decision plane nor the admin plane. A consumer has one key at a time, and during an overlap the one before it as well.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import groupby
from typing import NamedTuple

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin import audit
from headgate.admin.audit import Actor
from headgate.admin.database import Database
from headgate.admin.objects import UnknownObject, announce, revision_number
from headgate.admin.statements import begins
from headgate.admin.tables import audit as trail
from headgate.admin.tables import consumer_keys, epoch_us, users
from headgate.core.errors import UsageError
from headgate.policy.key_file import CONSUMER_PREFIX, SharedKey
from headgate.web.apikey import digest, is_fit


class ConsumerKey(NamedTuple):
    """All that is known of a key: not the key itself."""

    id: str
    consumer: str
    tenant: str
    created_at: int
    created_by: str
    expires_at: int | None
    revoked_at: int | None

    def is_good(self, now: int) -> bool:
        """Whether it is accepted, at a time in microseconds since the epoch."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class NewConsumerKey(NamedTuple):
    """A key that was just made, and the only time that it is shown."""

    key: ConsumerKey
    text: str


class Consumer(NamedTuple):
    """A consumer, with all keys that it ever had, the oldest first."""

    tier: str
    """Of the user of its name; empty for none of its own."""
    keys: tuple[ConsumerKey, ...]


_MOST_NAMES = 1000
"""Consumers that are read again one by one, rather than all of them."""
_TABLE = consumer_keys.c
_COLUMNS = [_TABLE[name] for name in ConsumerKey._fields]


class Consumers:
    """The consumers of a database.

    Args:
        database: where digests of their keys are kept; None: nowhere, so that there are none.
        clock: what time it is, in microseconds since the epoch; for tests.
    """

    def __init__(self, database: Database | None, clock: Callable[[], int] = epoch_us) -> None:
        self._database, self._now = database, clock

    async def create(
        self, name: str, actor: Actor, *, tenant: str = "", expires_at: int | None = None
    ) -> NewConsumerKey:
        """Make a key for a consumer that has none. Raises UsageError if it has one."""
        for what, text in ("the name of a consumer", name), ("a tenant", tenant or "-"):
            if not is_fit(text):
                raise UsageError(f"{what} has 1 to 512 bytes, all of them printable")
        if expires_at is not None and expires_at <= self._now():
            raise UsageError("a key cannot end before it begins: expires_at is in the past")
        async with self._kept().exclusively() as connection:
            if any(key.is_good(self._now()) for key in await self._keys(connection, name)):
                raise UsageError(f"consumer {name!r:.80} has a key: rotate it, or revoke it first")
            return await self._add(connection, self._new(name, tenant, expires_at, actor), "create", actor)

    async def rotate(self, name: str, actor: Actor, *, overlap_us: int = 0) -> NewConsumerKey:
        """Replace a consumer's key; the old one is accepted for `overlap_us` more.

        Raises UnknownObject, and UsageError for a consumer without a key that is good.
        """
        async with self._kept().exclusively() as connection:
            now = self._now()
            good = [key for key in await self._known(connection, name) if key.is_good(now)]
            if not good:
                raise UsageError(f"consumer {name!r:.80} has no key any more: create another")
            newest = good[-1]
            new = self._new(name, newest.tenant, newest.expires_at, actor)
            made = await self._add(connection, new, "rotate", actor)
            ends = now + overlap_us
            for key in good:
                own = min(ends, key.expires_at or ends)
                ended = {"expires_at": own} if own > now else {"revoked_at": now}
                await connection.execute(update(consumer_keys).where(_TABLE.id == key.id).values(ended))
        return made

    async def revoke(self, name: str, actor: Actor) -> None:
        """End all keys of a consumer at once. Raises UnknownObject."""
        async with self._kept().exclusively() as connection:
            now = self._now()
            good = [key.id for key in await self._known(connection, name) if key.is_good(now)]
            if good:
                await connection.execute(update(consumer_keys).where(_TABLE.id.in_(good)).values(revoked_at=now))
                await self._record(
                    connection, audit.AuditEntry("revoke", "consumer", name, {"keys": good}, None), actor
                )

    async def delete(self, name: str, actor: Actor) -> None:
        """End all keys of a consumer at once, and forget them. Raises UnknownObject."""
        async with self._kept().exclusively() as connection:
            keys = [key.id for key in await self._known(connection, name)]
            await connection.execute(delete(consumer_keys).where(_TABLE.consumer == name))
            await self._record(connection, audit.AuditEntry("delete", "consumer", name, {"keys": keys}, None), actor)

    async def get(self, name: str) -> Consumer:
        """Return a consumer. Raises UnknownObject."""
        async with self._kept().reading() as connection:
            keys = await self._known(connection, name)
            tier = (await connection.execute(select(users.c.tier).where(users.c.id == name))).scalar_one_or_none()
        return Consumer(tier or "", tuple(keys))

    async def beginning(self, text: str, most: int) -> list[tuple[str, str]]:
        """Return consumers whose names begin with a text, and those of whose keys the id or the key does.

        They are pairs of a name and the id of that key, which is empty for those found by their names.
        """
        if self._database is None:
            return []
        key = text.removeprefix(CONSUMER_PREFIX).partition("_")[0] or text
        async with self._database.reading() as connection:
            names = select(_TABLE.consumer).distinct().where(begins(connection, _TABLE.consumer, text))
            ids = select(_TABLE.consumer, _TABLE.id).where(begins(connection, _TABLE.id, key))
            found = [
                (name, "") for name in (await connection.execute(names.order_by(_TABLE.consumer).limit(most))).scalars()
            ]
            return found + [
                (row.consumer, row.id) for row in await connection.execute(ids.order_by(_TABLE.id).limit(most))
            ]

    async def page(self, offset: int, limit: int) -> tuple[list[Consumer], int]:
        """Return some consumers, by name, and how many there are."""
        names = select(_TABLE.consumer).distinct()
        some = names.order_by(_TABLE.consumer).offset(offset).limit(limit).subquery()
        found = (
            select(*_COLUMNS, func.coalesce(users.c.tier, "").label("tier"))
            .join(some, some.c.consumer == _TABLE.consumer)
            .outerjoin(users, users.c.id == _TABLE.consumer)
            .order_by(_TABLE.consumer, _TABLE.created_at, _TABLE.id)
        )
        async with self._kept().reading() as connection:
            total = (await connection.execute(select(func.count()).select_from(names.subquery()))).scalar_one()
            rows = [(ConsumerKey(*row[:-1]), row.tier) for row in await connection.execute(found)]
        grouped = [tuple(each) for _, each in groupby(rows, lambda row: row[0].consumer)]
        return [Consumer(each[0][1], tuple([key for key, _ in each])) for each in grouped], total

    async def _known(self, connection: AsyncConnection, name: str) -> list[ConsumerKey]:
        if not (found := await self._keys(connection, name)):
            raise UnknownObject(f"there is no consumer {name!r:.80}")
        return found

    @staticmethod
    async def _keys(connection: AsyncConnection, name: str) -> list[ConsumerKey]:
        found = select(*_COLUMNS).where(_TABLE.consumer == name).order_by(_TABLE.created_at, _TABLE.id)
        return [ConsumerKey(*row) for row in await connection.execute(found)]

    def _new(self, name: str, tenant: str, expires_at: int | None, actor: Actor) -> ConsumerKey:
        return ConsumerKey(secrets.token_hex(6), name, tenant, self._now(), actor.name, expires_at, None)

    async def _add(self, connection: AsyncConnection, key: ConsumerKey, action: str, actor: Actor) -> NewConsumerKey:
        text = f"{CONSUMER_PREFIX}{key.id}_{secrets.token_urlsafe(32)}"
        await connection.execute(insert(consumer_keys).values(**key._asdict(), digest=digest(text)))
        after = {"key": key.id, "tenant": key.tenant, "expires_at": key.expires_at}
        await self._record(connection, audit.AuditEntry(action, "consumer", key.consumer, None, after), actor)
        return NewConsumerKey(key, text)

    async def _record(self, connection: AsyncConnection, entry: audit.AuditEntry, actor: Actor) -> None:
        number = await revision_number(connection)
        await audit.append(connection, [entry], actor, number, self._now())
        await announce(connection, number)

    def _kept(self) -> Database:
        if self._database is None:
            raise UnknownObject("there is no database, and so no consumer: keys are in the identity file")
        return self._database


class PublishedKeys:
    """The keys of consumers that were not revoked, as workers read them: all of them, then what changes.

    Every change of them has an entry in the audit trail, which says whose keys are to be read again.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys: dict[str, list[SharedKey]] = {}
        self._seen: int | None = None
        """The last entry that was looked at; None: everything has to be read."""

    def forget(self) -> None:
        """Read everything the next time: entries may be removed while the database cannot be reached."""
        self._seen = None

    async def changed(self) -> list[SharedKey] | None:
        """Return the keys if they are others than before, else None. Raises DatabaseError."""
        async with self._database.reading() as connection:
            newest: int = (await connection.execute(select(func.coalesce(func.max(trail.c.sequence), 0)))).scalar_one()
            if newest == self._seen:
                return None
            names: list[str] | None = None
            if self._seen is not None:
                entries = trail.c.sequence > self._seen, trail.c.kind == "consumer"
                found = await connection.execute(select(trail.c.subject).where(*entries).distinct().limit(_MOST_NAMES))
                names = list(found.scalars())
            if names is None or len(names) == _MOST_NAMES:
                names, self._keys = None, {}
            if names != []:
                await self._read(connection, names)
        self._seen = newest
        return None if names == [] else [key for keys in self._keys.values() for key in keys]

    async def _read(self, connection: AsyncConnection, names: list[str] | None) -> None:
        columns = _TABLE.id, _TABLE.digest, _TABLE.expires_at, _TABLE.consumer, _TABLE.tenant
        found = select(*columns).where(_TABLE.revoked_at.is_(None)).order_by(_TABLE.consumer, _TABLE.id)
        for name in names or ():
            self._keys.pop(name, None)
        for row in await connection.execute(found if names is None else found.where(_TABLE.consumer.in_(names))):
            self._keys.setdefault(row.consumer, []).append(SharedKey(*row))

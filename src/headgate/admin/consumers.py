"""Consumers: clients of the protected API, with keys that are issued while the service runs.

The keys of a consumer identify the user of its name, who has the tier and the overrides. A key is a text such as
``hgc_4f9a2c81d07b_pQ...``, shown once, of which only a digest is kept. Neither the decision plane nor the admin plane
accepts it. A consumer has one key, and during the overlap of a rotation also the one before.
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
from headgate.admin.keys import record
from headgate.admin.objects import UnknownObject
from headgate.admin.statements import begins
from headgate.admin.tables import audit as trail
from headgate.admin.tables import consumer_keys, epoch_us, users
from headgate.core.errors import UsageError
from headgate.policy.key_file import CONSUMER_PREFIX, SharedKey
from headgate.web.apikey import digest, is_fit


class ConsumerKey(NamedTuple):
    """A key, without its text."""

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
    """A key that was just created, with its text, which is kept nowhere."""

    key: ConsumerKey
    text: str


class Consumer(NamedTuple):
    """A consumer with all its keys, past ones too, the oldest first."""

    tier: str
    """Of the user of its name; empty for none."""
    keys: tuple[ConsumerKey, ...]


_MOST_NAMES = 1000
"""Changed consumers from which on all consumers are read again."""
_TABLE = consumer_keys.c
_COLUMNS = [_TABLE[name] for name in ConsumerKey._fields]


class Consumers:
    """The consumers of a database; without one there are none. `clock` returns microseconds since the epoch."""

    def __init__(self, database: Database | None, clock: Callable[[], int] = epoch_us) -> None:
        self._database, self._now = database, clock

    async def create(
        self, name: str, actor: Actor, *, tenant: str = "", expires_at: int | None = None
    ) -> NewConsumerKey:
        """Create a key for a consumer that has none. Raises UsageError if it has one."""
        for what, text in ("the name of a consumer", name), ("a tenant", tenant or "-"):
            if not is_fit(text):
                raise UsageError(f"{what} has 1 to 512 bytes, all of them printable")
        if expires_at is not None and expires_at <= self._now():
            raise UsageError("expires_at must be in the future")
        async with self._kept().exclusively() as connection:
            if any(key.is_good(self._now()) for key in await self._keys(connection, name)):
                raise UsageError(f"consumer {name!r:.80} already has a key: rotate it, or revoke it first")
            return await self._add(connection, self._new(name, tenant, expires_at, actor), "create", actor)

    async def rotate(self, name: str, actor: Actor, *, overlap_us: int = 0) -> NewConsumerKey:
        """Create another key for a consumer, whose old key ends after `overlap_us`.

        Raises UnknownObject, and UsageError if the consumer has no valid key.
        """
        async with self._kept().exclusively() as connection:
            now = self._now()
            good = [key for key in await self._known(connection, name) if key.is_good(now)]
            if not good:
                raise UsageError(f"all keys of consumer {name!r:.80} have ended: create a new one")
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
                entry = audit.AuditEntry("revoke", "consumer", name, {"keys": good}, None)
                await record(connection, entry, actor, now)

    async def delete(self, name: str, actor: Actor) -> None:
        """Delete all keys of a consumer. Raises UnknownObject."""
        async with self._kept().exclusively() as connection:
            keys = [key.id for key in await self._known(connection, name)]
            await connection.execute(delete(consumer_keys).where(_TABLE.consumer == name))
            entry = audit.AuditEntry("delete", "consumer", name, {"keys": keys}, None)
            await record(connection, entry, actor, self._now())

    async def get(self, name: str) -> Consumer:
        async with self._kept().reading() as connection:
            keys = await self._known(connection, name)
            tier = (await connection.execute(select(users.c.tier).where(users.c.id == name))).scalar_one_or_none()
        return Consumer(tier or "", tuple(keys))

    async def beginning(self, text: str, most: int) -> list[tuple[str, str]]:
        """Find consumers whose name, or whose key or its id, begins with a text.

        Returns pairs of a name and the id of that key, which is empty for consumers found by name.
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
        """Return some consumers, sorted by name, and their total number."""
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
        entry = audit.AuditEntry(action, "consumer", key.consumer, None, after)
        await record(connection, entry, actor, self._now())
        return NewConsumerKey(key, text)

    def _kept(self) -> Database:
        if self._database is None:
            raise UnknownObject("without a database there are no consumers: keys are in the identity file")
        return self._database


class PublishedKeys:
    """The keys of consumers that were not revoked, as workers read them.

    All are read once, then those of the consumers that the newer entries of the audit trail name.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys: dict[str, list[SharedKey]] = {}
        self._seen: int | None = None
        """The last entry that was read; None: all keys must be read."""

    def forget(self) -> None:
        """Read all keys the next time: entries may be removed while the database is unavailable."""
        self._seen = None

    async def changed(self) -> list[SharedKey] | None:
        """Return all keys if one has changed since the last call, else None. Raises DatabaseError."""
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

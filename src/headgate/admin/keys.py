"""API keys: of the admin plane and the decision plane, by their role, and of consumers.

A key is a text such as ``hg_4f9a2c81d07b_pQ...``: an id, and a secret of 256 random bits. Only a digest of it is kept,
so a key is shown once, when it is created. (A slow digest, as for passwords, is of no use with 256 random bits.)

Consumers are clients of the protected API, whose keys begin with ``hgc_`` and are issued while the service runs. Such a
key identifies the user of the consumer's name, who has the tier and the overrides; neither plane accepts it as its own.
A consumer has one key, and during the overlap of a rotation also the one before.
"""

from __future__ import annotations

import contextlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from enum import StrEnum
from hashlib import sha256
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import and_, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin import audit
from headgate.admin.audit import Actor
from headgate.admin.database import Database, DatabaseError
from headgate.admin.objects import announce, existing, revision_number
from headgate.admin.tables import api_keys, begins, consumer_keys, epoch_us, users
from headgate.core.errors import UsageError
from headgate.policy.key_file import CONSUMER_PREFIX, SharedKey
from headgate.web.apikey import digest, is_fit

LAST_USE_EVERY_US = 60_000_000
"""The shortest interval between two updates of a key's last use."""
_SHAPE = re.compile(r"hg_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_GIVEN = re.compile(r"[\x21-\x7e]{16,256}")
_GIVEN_ID = "environment"


class KeyRole(StrEnum):
    """The role of a key. Each role of the admin plane includes the ones before it."""

    CHECK = "check"
    """Requests to the decision plane; none to the admin plane."""
    VIEWER = "viewer"
    """Read everything but keys."""
    EDITOR = "editor"
    """Change rules, tiers, users and settings, and reset limits."""
    ADMIN = "admin"
    """Manage keys."""

    def includes(self, other: KeyRole) -> bool:
        if KeyRole.CHECK in {self, other}:
            return self is other
        ranks = list(KeyRole)
        return ranks.index(self) >= ranks.index(other)


def _is_good(key: ApiKey | ConsumerKey, now: int) -> bool:
    return key.revoked_at is None and (key.expires_at is None or now < key.expires_at)


class ApiKey(NamedTuple):
    """A key, without its text."""

    id: str
    name: str
    role: KeyRole
    created_at: int
    created_by: str
    expires_at: int | None
    last_used_at: int | None
    revoked_at: int | None

    def is_good(self, now: int) -> bool:
        return _is_good(self, now)


_Key = TypeVar("_Key")


class NewKey(NamedTuple, Generic[_Key]):
    """A new key with its text, which is not stored."""

    key: _Key
    text: str


_GIVEN_KEY = ApiKey(_GIVEN_ID, _GIVEN_ID, KeyRole.ADMIN, 0, _GIVEN_ID, None, None, None)
_COLUMNS = [api_keys.c[name] for name in ApiKey._fields]


class AdminKeys:
    """The keys of a database, and the operator's `given` one (``HEADGATE_ADMIN_KEY``), which has the role admin.

    `clock` returns microseconds since the epoch.
    """

    def __init__(self, database: Database | None, given: str = "", clock: Callable[[], int] = epoch_us) -> None:
        if given and not _GIVEN.fullmatch(given):
            raise UsageError("HEADGATE_ADMIN_KEY must have 16 to 256 characters, printable ASCII without spaces")
        self._database, self._now = database, clock
        self._given = digest_of(given) if given else ""
        self._noted: dict[str, int] = {}

    async def find(self, text: str) -> ApiKey | None:
        """Return the key of this text, if it is valid. Raises DatabaseError."""
        if self._given and hmac.compare_digest(digest_of(text), self._given):
            same = None
            if _SHAPE.fullmatch(text):  # if it is also in the database, the audit trail has its name there
                with contextlib.suppress(DatabaseError):  # the operator's key needs no database
                    same = await self._find(text)
            admins = same if same is not None and same.role is KeyRole.ADMIN else None
            return admins or _GIVEN_KEY
        return await self._find(text)

    async def _find(self, text: str) -> ApiKey | None:
        parts, now = _SHAPE.fullmatch(text), self._now()
        key = await self.known(parts[1], digest_of(text)) if parts else None
        if key is None:
            return None
        noted = max(key.last_used_at or 0, self._noted.get(key.id, 0))
        if noted < now - LAST_USE_EVERY_US:
            self._noted[key.id] = now  # concurrent requests need not write the same
            older = or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at < now - LAST_USE_EVERY_US)
            used = update(api_keys).where(api_keys.c.id == key.id, older).values(last_used_at=now)
            with contextlib.suppress(DatabaseError):  # keys are accepted with a read-only database too
                async with self._kept().writing() as connection:
                    await connection.execute(used)
        return key

    async def known(self, name: str, digest: str) -> ApiKey | None:
        """Return a key by its id and the digest of its text, if it is valid. Raises DatabaseError."""
        if name == _GIVEN_ID:
            return _GIVEN_KEY if hmac.compare_digest(digest, self._given) else None
        if self._database is None:
            return None
        async with self._database.reading() as connection:
            found = select(*_COLUMNS).where(api_keys.c.id == name, api_keys.c.digest == digest)
            row = (await connection.execute(found)).one_or_none()
        key = _key(row) if row else None
        return key if key is not None and key.is_good(self._now()) else None

    async def create(self, name: str, role: KeyRole, actor: Actor, *, expires_at: int | None = None) -> NewKey[ApiKey]:
        async with self._kept().exclusively() as connection:
            return await self._create(connection, name, role, actor, expires_at)

    async def _create(
        self, connection: AsyncConnection, name: str, role: KeyRole, actor: Actor, expires_at: int | None
    ) -> NewKey[ApiKey]:
        now = self._now()
        if not 0 < len(name) <= 128 or not name.isprintable():
            raise UsageError("the name of a key must have 1 to 128 printable characters")
        _check_expiry(expires_at, now)
        text = f"hg_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"
        key = ApiKey(text[3:15], name, role, now, actor.name, expires_at, None, None)
        await connection.execute(insert(api_keys).values(**key._asdict(), digest=digest_of(text)))
        await _record(connection, audit.AuditEntry("create", "key", key.id, None, _shown(key)), actor, now)
        return NewKey(key, text)

    async def rotate(self, name: str, actor: Actor, *, overlap_us: int = 0) -> NewKey[ApiKey]:
        """Create another key with the name and role of a key, which ends after `overlap_us`.

        Raises UnknownObject, and UsageError if the key has ended already.
        """
        async with self._kept().exclusively() as connection:
            old, now = await self._get(connection, name), self._now()
            if not old.is_good(now):
                raise UsageError(f"key {old.id} was revoked or has expired: create a new one")
            new = await self._create(connection, old.name, old.role, actor, old.expires_at)
            await self._end(connection, old, actor, now, now + overlap_us)
        return new

    async def revoke(self, name: str, actor: Actor) -> None:
        """End a key immediately, by its id. Raises UnknownObject."""
        async with self._kept().exclusively() as connection:
            now = self._now()
            await self._end(connection, await self._get(connection, name), actor, now, now)

    @staticmethod
    async def _get(connection: AsyncConnection, name: str) -> ApiKey:
        row = (await connection.execute(select(*_COLUMNS).where(api_keys.c.id == name))).one_or_none()
        return _key(existing(row, f"key {name!r:.40} does not exist"))

    async def all(self) -> list[ApiKey]:
        async with self._kept().reading() as connection:
            rows = await connection.execute(select(*_COLUMNS).order_by(api_keys.c.created_at, api_keys.c.id))
            return list(map(_key, rows))

    async def first(self) -> NewKey[ApiKey] | None:
        """Create a key of the role admin if there has never been a key, nor a given one; else return None."""
        if self._given:
            return None
        async with self._kept().exclusively() as connection:
            if (await connection.execute(select(api_keys.c.id).limit(1))).first() is not None:
                return None
            return await self._create(connection, "first", KeyRole.ADMIN, Actor("start-up"), None)

    def _kept(self) -> Database:
        return existing(self._database, "without a database, the only key is the one in HEADGATE_ADMIN_KEY")

    @staticmethod
    async def _end(connection: AsyncConnection, key: ApiKey, actor: Actor, now: int, at: int) -> None:
        if key.revoked_at is None:
            ended = key._replace(**await _end(connection, key, now, at))
            await _record(connection, audit.AuditEntry("revoke", "key", key.id, _shown(key), _shown(ended)), actor, now)


async def _end(connection: AsyncConnection, key: ApiKey | ConsumerKey, now: int, at: int) -> dict[str, Any]:
    """End a key at a moment, if it does not expire before; return its changes."""
    changes = {"revoked_at": now} if at <= now else {"expires_at": min(at, key.expires_at or at)}
    table = api_keys if isinstance(key, ApiKey) else consumer_keys
    await connection.execute(update(table).where(table.c.id == key.id).values(changes))
    return changes


def _check_expiry(expires_at: int | None, now: int) -> None:
    if expires_at is not None and expires_at <= now:
        raise UsageError("expires_at must be in the future")


async def _record(connection: AsyncConnection, entry: audit.AuditEntry, actor: Actor, now: int) -> None:
    """Add a change of keys to the audit trail, and announce it to followers, which read keys as well as rules."""
    number = await revision_number(connection)
    await audit.append(connection, [entry], actor, number, now)
    await announce(connection, number)


async def note_uses(database: Database, used: Mapping[str, int]) -> None:
    """Write the times when keys of the decision plane were last used, by their ids. Raises DatabaseError."""
    is_later = or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at < bindparam("at"))
    of_check = and_(api_keys.c.id == bindparam("key"), api_keys.c.role == KeyRole.CHECK)
    noted = update(api_keys).where(of_check, is_later).values(last_used_at=bindparam("at"))
    async with database.writing() as connection:  # sorted, so that two services cannot deadlock
        await connection.execute(noted, [{"key": name, "at": at} for name, at in sorted(used.items())])


async def check_keys(database: Database) -> tuple[SharedKey, ...]:
    """Return the keys of the decision plane, as workers read them. Raises DatabaseError."""
    columns = api_keys.c
    chosen = select(columns.id, columns.digest, columns.expires_at).order_by(columns.id)
    async with database.reading() as connection:
        found = chosen.where(columns.role == KeyRole.CHECK, columns.revoked_at.is_(None))
        return tuple([SharedKey(*row) for row in await connection.execute(found)])


def _key(row: Any) -> ApiKey:
    return ApiKey(*row)._replace(role=KeyRole(row.role))


def digest_of(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _shown(key: ApiKey) -> dict[str, object]:
    return {"name": key.name, "role": str(key.role), "expires_at": key.expires_at, "revoked_at": key.revoked_at}


# Consumers


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
        return _is_good(self, now)


class Consumer(NamedTuple):
    """A consumer with all its keys, including past ones, the oldest first."""

    tier: str
    """Of the user of its name; empty for none."""
    keys: tuple[ConsumerKey, ...]


_CONSUMERS = consumer_keys.c
_CONSUMER_COLUMNS = [_CONSUMERS[name] for name in ConsumerKey._fields]


class Consumers:
    """The consumers of a database; without a database, there are none. `clock` returns microseconds since the epoch."""

    def __init__(self, database: Database | None, clock: Callable[[], int] = epoch_us) -> None:
        self._database, self._now = database, clock

    async def create(
        self, name: str, actor: Actor, *, tenant: str = "", expires_at: int | None = None
    ) -> NewKey[ConsumerKey]:
        """Create a key for a consumer that has none. Raises UsageError if it has one."""
        for what, text in ("the name of a consumer", name), ("a tenant", tenant or "-"):
            if not is_fit(text):
                raise UsageError(f"{what} must have 1 to 512 bytes, all of them printable")
        _check_expiry(expires_at, self._now())
        async with self._kept().exclusively() as connection:
            if any(key.is_good(self._now()) for key in await self._keys(connection, name)):
                raise UsageError(f"consumer {name!r:.80} already has a key: rotate it, or revoke it first")
            return await self._add(connection, name, tenant, expires_at, "create", actor)

    async def rotate(self, name: str, actor: Actor, *, overlap_us: int = 0) -> NewKey[ConsumerKey]:
        """Create another key for a consumer, whose old key ends after `overlap_us`.

        Raises UnknownObject, and UsageError if the consumer has no valid key.
        """
        async with self._kept().exclusively() as connection:
            now = self._now()
            good = [key for key in await self._known(connection, name) if key.is_good(now)]
            if not good:
                raise UsageError(f"consumer {name!r:.80} has no valid key: create a new one")
            made = await self._add(connection, name, good[-1].tenant, good[-1].expires_at, "rotate", actor)
            for key in good:
                await _end(connection, key, now, now + overlap_us)
        return made

    async def revoke(self, name: str, actor: Actor) -> None:
        """End all keys of a consumer immediately. Raises UnknownObject."""
        async with self._kept().exclusively() as connection:
            now = self._now()
            good = [key for key in await self._known(connection, name) if key.is_good(now)]
            for key in good:
                await _end(connection, key, now, now)
            if good:
                entry = audit.AuditEntry("revoke", "consumer", name, {"keys": [key.id for key in good]}, None)
                await _record(connection, entry, actor, now)

    async def delete(self, name: str, actor: Actor) -> None:
        """Delete all keys of a consumer. Raises UnknownObject."""
        async with self._kept().exclusively() as connection:
            keys = [key.id for key in await self._known(connection, name)]
            await connection.execute(delete(consumer_keys).where(_CONSUMERS.consumer == name))
            entry = audit.AuditEntry("delete", "consumer", name, {"keys": keys}, None)
            await _record(connection, entry, actor, self._now())

    async def get(self, name: str) -> Consumer:
        async with self._kept().reading() as connection:
            keys = await self._known(connection, name)
            tier = (await connection.execute(select(users.c.tier).where(users.c.id == name))).scalar_one_or_none()
        return Consumer(tier or "", tuple(keys))

    async def search(self, text: str, most: int) -> list[tuple[str, str]]:
        """Find consumers whose name, or whose key or its id, begins with a text.

        Returns pairs of a name and the id of that key, which is empty for consumers found by name.
        """
        if self._database is None:
            return []
        key = text.removeprefix(CONSUMER_PREFIX).partition("_")[0] or text
        async with self._database.reading() as connection:
            names = select(_CONSUMERS.consumer).distinct().where(begins(connection, _CONSUMERS.consumer, text))
            ids = select(_CONSUMERS.consumer, _CONSUMERS.id).where(begins(connection, _CONSUMERS.id, key))
            found = [
                (name, "")
                for name in (await connection.execute(names.order_by(_CONSUMERS.consumer).limit(most))).scalars()
            ]
            return found + [
                (row.consumer, row.id) for row in await connection.execute(ids.order_by(_CONSUMERS.id).limit(most))
            ]

    async def page(self, offset: int, limit: int) -> tuple[list[Consumer], int]:
        """Return some consumers, sorted by name, and their total number."""
        names = select(_CONSUMERS.consumer).distinct()
        some = names.order_by(_CONSUMERS.consumer).offset(offset).limit(limit).subquery()
        found = (
            select(*_CONSUMER_COLUMNS, func.coalesce(users.c.tier, "").label("tier"))
            .join(some, some.c.consumer == _CONSUMERS.consumer)
            .outerjoin(users, users.c.id == _CONSUMERS.consumer)
            .order_by(_CONSUMERS.consumer, _CONSUMERS.created_at, _CONSUMERS.id)
        )
        async with self._kept().reading() as connection:
            total = (await connection.execute(select(func.count()).select_from(names.subquery()))).scalar_one()
            rows = [(ConsumerKey(*row[:-1]), row.tier) for row in await connection.execute(found)]
        grouped = [tuple(each) for _, each in groupby(rows, lambda row: row[0].consumer)]
        return [Consumer(each[0][1], tuple([key for key, _ in each])) for each in grouped], total

    async def _known(self, connection: AsyncConnection, name: str) -> list[ConsumerKey]:
        return existing(await self._keys(connection, name) or None, f"consumer {name!r:.80} does not exist")

    @staticmethod
    async def _keys(connection: AsyncConnection, name: str) -> list[ConsumerKey]:
        found = (
            select(*_CONSUMER_COLUMNS).where(_CONSUMERS.consumer == name).order_by(_CONSUMERS.created_at, _CONSUMERS.id)
        )
        return [ConsumerKey(*row) for row in await connection.execute(found)]

    async def _add(  # noqa: PLR0917  the fields of a key
        self, connection: AsyncConnection, name: str, tenant: str, expires_at: int | None, action: str, actor: Actor
    ) -> NewKey[ConsumerKey]:
        key = ConsumerKey(secrets.token_hex(6), name, tenant, self._now(), actor.name, expires_at, None)
        text = f"{CONSUMER_PREFIX}{key.id}_{secrets.token_urlsafe(32)}"
        await connection.execute(insert(consumer_keys).values(**key._asdict(), digest=digest(text)))
        after = {"key": key.id, "tenant": key.tenant, "expires_at": key.expires_at}
        entry = audit.AuditEntry(action, "consumer", key.consumer, None, after)
        await _record(connection, entry, actor, self._now())
        return NewKey(key, text)

    def _kept(self) -> Database:
        return existing(self._database, "without a database consumers do not exist: keys are in the identity file")

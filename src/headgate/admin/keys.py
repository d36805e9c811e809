"""API keys of the admin plane, by their role, and of the decision plane.

A key is a text such as ``hg_4f9a2c81d07b_pQ...``: an id, and a secret of 256 random bits. Only a digest of it is kept,
so a key is shown once, when it is created. (A slow digest, as for passwords, is of no use with 256 random bits.)
"""

from __future__ import annotations

import contextlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import and_, bindparam, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin import audit
from headgate.admin.audit import Actor
from headgate.admin.database import Database, DatabaseError
from headgate.admin.objects import UnknownObject, announce, revision_number
from headgate.admin.tables import api_keys, epoch_us
from headgate.core.errors import UsageError
from headgate.policy.key_file import SharedKey

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
        """Whether it is accepted, at a time in microseconds since the epoch."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class NewKey(NamedTuple):
    """A key that was just created, with its text, which is kept nowhere."""

    key: ApiKey
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
        if self._database is None:
            return None
        now = self._now()
        parts = _SHAPE.fullmatch(text)
        wanted = parts[1] if parts else ""
        async with self._kept().reading() as connection:
            found = select(*_COLUMNS, api_keys.c.digest).where(api_keys.c.id == wanted)
            row = (await connection.execute(found)).one_or_none()
        known = hmac.compare_digest(digest_of(text), row.digest if row else "0" * 64)  # takes as long for unknown ids
        if row is None or not known:
            return None
        key = _key(row)
        if not key.is_good(now):
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

    async def create(self, name: str, role: KeyRole, actor: Actor, *, expires_at: int | None = None) -> NewKey:
        async with self._kept().exclusively() as connection:
            return await self._create(connection, name, role, actor, expires_at)

    async def _create(
        self, connection: AsyncConnection, name: str, role: KeyRole, actor: Actor, expires_at: int | None
    ) -> NewKey:
        now = self._now()
        if not 0 < len(name) <= 128 or not name.isprintable():
            raise UsageError("the name of a key has 1 to 128 printable characters")
        if expires_at is not None and expires_at <= now:
            raise UsageError("expires_at must be in the future")
        text = f"hg_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"
        key = ApiKey(text[3:15], name, role, now, actor.name, expires_at, None, None)
        await connection.execute(insert(api_keys).values(**key._asdict(), digest=digest_of(text)))
        await record(connection, audit.AuditEntry("create", "key", key.id, None, _shown(key)), actor, now)
        return NewKey(key, text)

    async def rotate(self, name: str, actor: Actor, *, overlap_us: int = 0) -> NewKey:
        """Create another key with the name and role of a key, which ends after `overlap_us`.

        Raises UnknownObject, and UsageError if the key has ended already.
        """
        async with self._kept().exclusively() as connection:
            old, now = await self._get(connection, name), self._now()
            if not old.is_good(now):
                raise UsageError(f"key {old.id} was revoked or has expired: create a new one")
            new = await self._create(connection, old.name, old.role, actor, old.expires_at)
            ends = now + overlap_us
            await self._end(connection, old, actor, min(ends, old.expires_at or ends))
        return new

    async def revoke(self, name: str, actor: Actor) -> None:
        """End a key at once, by its id. Raises UnknownObject."""
        async with self._kept().exclusively() as connection:
            await self._end(connection, await self._get(connection, name), actor, None)

    async def get(self, name: str) -> ApiKey:
        async with self._kept().reading() as connection:
            return await self._get(connection, name)

    @staticmethod
    async def _get(connection: AsyncConnection, name: str) -> ApiKey:
        row = (await connection.execute(select(*_COLUMNS).where(api_keys.c.id == name))).one_or_none()
        if row is None:
            raise UnknownObject(f"there is no key {name!r:.40}")
        return _key(row)

    async def all(self) -> list[ApiKey]:
        """Return all keys, the oldest first."""
        async with self._kept().reading() as connection:
            rows = await connection.execute(select(*_COLUMNS).order_by(api_keys.c.created_at, api_keys.c.id))
            return [_key(row) for row in rows]

    async def first(self) -> NewKey | None:
        """Create a key of the role admin if there has never been a key, nor a given one; else return None."""
        if self._given:
            return None
        async with self._kept().exclusively() as connection:
            if (await connection.execute(select(api_keys.c.id).limit(1))).first() is not None:
                return None
            return await self._create(connection, "first", KeyRole.ADMIN, Actor("start-up"), None)

    def _kept(self) -> Database:
        if self._database is None:
            raise UnknownObject("without a database, the only key is the one in HEADGATE_ADMIN_KEY")
        return self._database

    async def _end(self, connection: AsyncConnection, key: ApiKey, actor: Actor, at: int | None) -> None:
        now = self._now()
        if key.revoked_at is not None:
            return
        ended = key._replace(revoked_at=now) if at is None or at <= now else key._replace(expires_at=at)
        values = {"revoked_at": ended.revoked_at, "expires_at": ended.expires_at}
        await connection.execute(update(api_keys).where(api_keys.c.id == key.id).values(**values))
        await record(connection, audit.AuditEntry("revoke", "key", key.id, _shown(key), _shown(ended)), actor, now)


async def record(connection: AsyncConnection, entry: audit.AuditEntry, actor: Actor, now: int) -> None:
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
    key = ApiKey(*[getattr(row, name) for name in ApiKey._fields])
    return key._replace(role=KeyRole(key.role))


def digest_of(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _shown(key: ApiKey) -> dict[str, object]:
    return {"name": key.name, "role": str(key.role), "expires_at": key.expires_at, "revoked_at": key.revoked_at}

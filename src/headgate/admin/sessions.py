"""Sessions of the console: a browser that has sent a valid key is identified by a cookie.

The cookie is a random token, of which only a digest is kept: in the database, for all nodes, or in this process if the
rules are in a file. A session ends with its key, an hour after its last request, and twelve hours after it began. While
the database is unavailable, this process accepts the sessions that it has verified in the last five minutes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from sqlalchemy import Executable, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin.database import Database, DatabaseError
from headgate.admin.keys import AdminKeys, ApiKey, digest_of
from headgate.admin.tables import epoch_us, sessions

LONGEST_US, IDLE_US = 12 * 3_600_000_000, 3_600_000_000
"""The longest lifetime of a session, in total and without a request."""
TRUSTED_US = 300_000_000
"""How long a verified session is accepted while the database is unavailable."""
MOST = 1000
"""Sessions that a process remembers."""
MOST_OF_KEY = 50
"""Sessions of one key: a new one ends the least recently used."""
_SEEN_EVERY_US = 60_000_000
_LONGEST_TOKEN = 100


class Session(NamedTuple):
    id: str
    """The digest of its token."""
    key_id: str
    key_digest: str
    """Of the key that began it: the key in an environment variable may have changed since."""
    created_at: int
    seen_at: int
    csrf: str
    """The token in its forms, which forms of other sites lack."""

    def is_active(self, now: int) -> bool:
        return now < min(self.created_at + LONGEST_US, self.seen_at + IDLE_US)


class Sessions:
    """The sessions of a database; without one, of this process. `clock` returns microseconds since the epoch."""

    def __init__(self, keys: AdminKeys, database: Database | None, clock: Callable[[], int] = epoch_us) -> None:
        self._keys, self._database, self._now = keys, database, clock
        self._known: dict[str, tuple[Session, ApiKey, int]] = {}  # with the time of its verification, the latest last

    async def begin(self, key: ApiKey, text: str) -> str:
        """Begin a session by a key, and return its token. Raises DatabaseError."""
        token, now = secrets.token_urlsafe(32), self._now()
        session = Session(digest_of(token), key.id, digest_of(text), now, now, secrets.token_urlsafe(24))
        known = [name for name, (each, *_) in self._known.items() if each.key_id == key.id]
        for excess in known[: max(0, len(known) - MOST_OF_KEY + 1)]:
            del self._known[excess]
        of_key = select(sessions.c.id).where(sessions.c.key_id == key.id).order_by(sessions.c.seen_at.desc())
        ended = delete(sessions).where(sessions.c.id.in_(of_key.offset(MOST_OF_KEY - 1)))
        await self._write(ended, insert(sessions).values(**session._asdict()))
        self._remember(session, key)
        return token

    async def find(self, token: str, *, is_active: bool = True) -> tuple[Session, ApiKey] | None:
        """Return the session of a token and its key, if both are valid. Raises DatabaseError.

        A request that is not active, such as the refresh of a page, does not prolong the session.
        """
        name, now = digest_of(token[:_LONGEST_TOKEN]), self._now()
        try:
            session = await self._stored(name)
            key = await self._keys.known(session.key_id, session.key_digest) if session else None
        except DatabaseError:
            known = self._known.get(name)
            if known is None or now >= known[2] + TRUSTED_US or not known[0].is_active(now):
                raise
            return known[:2]
        if session is None or key is None or not session.is_active(now):
            self._known.pop(name, None)
            return None
        if is_active and session.seen_at + _SEEN_EVERY_US <= now:
            session = session._replace(seen_at=now)
            with suppress(DatabaseError):  # a read-only database serves pages too
                await self._write(update(sessions).where(sessions.c.id == session.id).values(seen_at=now))
        self._remember(session, key)
        return session, key

    async def end(self, session: Session) -> None:
        self._known.pop(session.id, None)
        await self._write(delete(sessions).where(sessions.c.id == session.id))

    async def end_all(self, key_id: str) -> None:
        self._known = {name: known for name, known in self._known.items() if known[0].key_id != key_id}
        await self._write(delete(sessions).where(sessions.c.key_id == key_id))

    async def of_key(self, key_id: str) -> list[Session]:
        """Return the active sessions of a key, the latest first. Raises DatabaseError."""
        if self._database is None:
            found = [known[0] for known in self._known.values() if known[0].key_id == key_id]
        else:
            async with self._database.reading() as connection:
                chosen = select(sessions).where(sessions.c.key_id == key_id).limit(MOST)
                found = [Session(*row) for row in await connection.execute(chosen)]
        now = self._now()
        return sorted((each for each in found if each.is_active(now)), key=lambda each: -each.seen_at)

    async def _stored(self, name: str) -> Session | None:
        if self._database is None:
            known = self._known.get(name)
            return known[0] if known else None
        async with self._database.reading() as connection:
            row = (await connection.execute(select(sessions).where(sessions.c.id == name))).one_or_none()
        return Session(*row) if row else None

    async def _write(self, *statements: Executable) -> None:
        if self._database is not None:
            async with self._database.writing() as connection:
                for each in statements:
                    await connection.execute(each)

    def _remember(self, session: Session, key: ApiKey) -> None:
        self._known.pop(session.id, None)
        self._known[session.id] = (session, key, self._now())
        if len(self._known) > MOST:
            del self._known[next(iter(self._known))]


async def prune(connection: AsyncConnection, now: int) -> None:
    ended = (sessions.c.created_at <= now - LONGEST_US) | (sessions.c.seen_at <= now - IDLE_US)
    await connection.execute(delete(sessions).where(ended))

"""Keys of consumers: kept as digests, and published as they change; `tests/server/process` has them in use."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from headgate.admin import consumers as module
from headgate.admin.audit import Actor
from headgate.admin.consumers import Consumers, PublishedKeys
from headgate.admin.database import Database
from headgate.admin.keys import AdminKeys, KeyRole
from headgate.admin.objects import UnknownObject
from headgate.core.errors import UsageError

ME = Actor("me")
HOUR = 3_600_000_000


class Clock:
    now = 1000 * HOUR

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def consumers(database: Database, clock: Clock) -> Consumers:
    return Consumers(database, clock)


@pytest.mark.parametrize("most", [1, 1000], ids=["all are read again", "one by one"])
async def test_what_changes_is_published_and_nothing_else_is_read_again(
    most: int, monkeypatch: pytest.MonkeyPatch, database: Database, consumers: Consumers, clock: Clock
) -> None:
    monkeypatch.setattr(module, "_MOST_NAMES", most)
    published = PublishedKeys(database)

    async def names() -> list[str] | None:
        found = await published.changed()
        return None if found is None else sorted(key.consumer for key in found)

    assert await names() == []
    await consumers.create("acme", ME)
    await consumers.create("bee", ME)
    assert await names() == ["acme", "bee"]
    assert await names() is None
    await AdminKeys(database).create("bot", KeyRole.VIEWER, ME)
    assert await names() is None
    clock.now += 1
    await consumers.rotate("acme", ME, overlap_us=HOUR)
    assert await names() == ["acme", "acme", "bee"]
    await consumers.rotate("acme", ME)
    await consumers.delete("bee", ME)
    assert await names() == ["acme"]
    await consumers.revoke("acme", ME)
    assert await names() == []
    published.forget()
    assert await names() == []


async def test_a_consumer_has_one_key_which_ends_when_it_should(
    database: Database, consumers: Consumers, clock: Clock
) -> None:
    made = await consumers.create("acme", ME, tenant="big", expires_at=clock.now + 2 * HOUR)
    with pytest.raises(UsageError, match="already has a key: rotate it"):
        await consumers.create("acme", ME)
    clock.now += 1
    newer = await consumers.rotate("acme", ME, overlap_us=24 * HOUR)
    old, new = (await consumers.get("acme")).keys
    assert (old.id, old.expires_at, new) == (made.key.id, made.key.expires_at, newer.key)
    assert (new.tenant, new.expires_at) == ("big", made.key.expires_at)
    clock.now += 3 * HOUR
    with pytest.raises(UsageError, match="have ended: create a new one"):
        await consumers.rotate("acme", ME)
    await consumers.create("acme", ME)
    async with database.reading() as connection:
        for table in ("consumer_keys", "audit"):
            rows = repr((await connection.execute(text(f"SELECT * FROM {table}"))).all())  # noqa: S608  from above
            assert made.text.split("_", 2)[2] not in rows
    for action in (consumers.get, lambda name: consumers.revoke(name, ME), lambda name: consumers.delete(name, ME)):
        with pytest.raises(UnknownObject, match="there is no consumer 'nobody'"):
            await action("nobody")

"""Keys, of both planes and of consumers: shown once, kept as digests, accepted until they end, and published."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from headgate.admin import audit, follower
from headgate.admin.audit import Actor
from headgate.admin.database import Database
from headgate.admin.follower import PublishedKeys
from headgate.admin.keys import AdminKeys, Consumers, KeyRole
from headgate.admin.objects import UnknownObject
from headgate.core.errors import UsageError
from tests.admin.conftest import Clock

ME = Actor("me")
DAY, HOUR = 86_400_000_000, 3_600_000_000


@pytest.fixture
def keys(database: Database, clock: Clock) -> AdminKeys:
    return AdminKeys(database, clock=clock)


@pytest.fixture
def consumers(database: Database, clock: Clock) -> Consumers:
    return Consumers(database, clock)


async def test_a_key_is_found_by_its_text_alone(keys: AdminKeys) -> None:
    made = await keys.create("bot", KeyRole.EDITOR, ME)
    found = await keys.find(made.text)
    assert found is not None
    assert (found.name, found.role, found.id) == ("bot", KeyRole.EDITOR, made.key.id)
    near = made.text[:-1], made.text + "x", made.text.upper(), made.key.id
    for other in ("", "hg_", *near, "\ud800", "x" * 10_000):
        assert await keys.find(other) is None


async def test_no_row_has_a_key_in_it(database: Database, keys: AdminKeys, consumers: Consumers) -> None:
    made = (await keys.create("bot", KeyRole.ADMIN, ME)).text, (await consumers.create("acme", ME)).text
    async with database.reading() as connection:
        for table in ("api_keys", "consumer_keys", "audit", "versions", "settings"):
            rows = repr((await connection.execute(text(f"SELECT * FROM {table}"))).all())  # noqa: S608  names from above
            assert not [each for each in made if each.split("_", 2)[2] in rows]
        assert (await audit.verify(connection)).entries == 2


async def test_a_key_ends_when_it_expires_or_is_revoked(keys: AdminKeys, clock: Clock) -> None:
    brief = await keys.create("brief", KeyRole.VIEWER, ME, expires_at=clock.now + DAY)
    lasting = await keys.create("lasting", KeyRole.VIEWER, ME)
    clock.now += DAY - 1
    assert await keys.find(brief.text) is not None
    clock.now += 1
    assert await keys.find(brief.text) is None
    await keys.revoke(lasting.key.id, ME)
    assert await keys.find(lasting.text) is None
    with pytest.raises(UnknownObject, match=r"key '.*' does not exist"):
        await keys.revoke("nobody", ME)
    with pytest.raises(UsageError, match="must be in the future"):
        await keys.create("late", KeyRole.VIEWER, ME, expires_at=clock.now)


async def test_a_key_is_replaced_with_an_overlap(keys: AdminKeys, clock: Clock) -> None:
    old = await keys.create("bot", KeyRole.EDITOR, ME)
    new = await keys.rotate(old.key.id, ME, overlap_us=DAY)
    assert (new.key.name, new.key.role) == ("bot", KeyRole.EDITOR)
    assert await keys.find(old.text) is not None
    clock.now += DAY
    assert await keys.find(old.text) is None
    assert await keys.find(new.text) is not None
    newer = await keys.rotate(new.key.id, ME)
    assert await keys.find(new.text) is None
    assert await keys.find(newer.text) is not None
    with pytest.raises(UsageError, match="was revoked or has expired"):
        await keys.rotate(new.key.id, ME)


async def test_the_last_use_is_noted_now_and_then(keys: AdminKeys, clock: Clock) -> None:
    made = await keys.create("bot", KeyRole.EDITOR, ME)
    first = clock.now
    await keys.find(made.text)
    clock.now += 59_000_000
    await keys.find(made.text)
    assert (await keys.all())[0].last_used_at == first
    clock.now += 2_000_000
    await keys.find(made.text)
    assert (await keys.all())[0].last_used_at == clock.now


async def test_the_first_key_is_made_once(database: Database, keys: AdminKeys) -> None:
    first = await keys.first()
    assert first is not None
    assert first.key.role is KeyRole.ADMIN
    assert await keys.first() is None
    await keys.revoke(first.key.id, ME)
    assert await keys.first() is None
    assert await AdminKeys(database, "a-key-of-the-operator").first() is None


async def test_the_operator_s_own_key_is_an_admin_s(database: Database) -> None:
    keys = AdminKeys(database, "a-key-of-the-operator")
    found = await keys.find("a-key-of-the-operator")
    assert found is not None
    assert found.role is KeyRole.ADMIN
    assert await keys.find("another-key-of-nobody") is None
    for bad in ("short", "with space in it all", "x" * 257):
        with pytest.raises(UsageError, match="16 to 256"):
            AdminKeys(database, bad)


async def test_the_first_key_stays_the_same_actor_when_it_is_put_into_the_environment(
    database: Database, keys: AdminKeys
) -> None:
    first = await keys.first()
    assert first is not None
    found = await AdminKeys(database, first.text).find(first.text)
    assert found is not None
    assert (found.id, found.name, found.role) == (first.key.id, "first", KeyRole.ADMIN)
    viewer = await keys.create("viewer", KeyRole.VIEWER, ME)
    given = await AdminKeys(database, viewer.text).find(viewer.text)
    assert given is not None
    assert (given.id, given.role) == ("environment", KeyRole.ADMIN)


def test_roles_include_those_below_them() -> None:
    check, viewer, editor, admin = KeyRole
    expected = {
        check: {check},
        viewer: {viewer},
        editor: {viewer, editor},
        admin: {viewer, editor, admin},
    }
    assert {has: {needs for needs in KeyRole if has.includes(needs)} for has in KeyRole} == expected


@pytest.mark.parametrize("most", [1, 1000], ids=["all are read again", "one by one"])
async def test_only_changed_consumers_are_read_and_published_again(
    most: int, monkeypatch: pytest.MonkeyPatch, database: Database, consumers: Consumers, clock: Clock
) -> None:
    monkeypatch.setattr(follower, "_MOST_NAMES", most)
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


async def test_a_consumer_has_one_key_which_ends_when_it_should(consumers: Consumers, clock: Clock) -> None:
    made = await consumers.create("acme", ME, tenant="big", expires_at=clock.now + 2 * HOUR)
    with pytest.raises(UsageError, match="already has a key: rotate it"):
        await consumers.create("acme", ME)
    clock.now += 1
    newer = await consumers.rotate("acme", ME, overlap_us=24 * HOUR)
    old, new = (await consumers.get("acme")).keys
    assert (old.id, old.expires_at, new) == (made.key.id, made.key.expires_at, newer.key)
    assert (new.tenant, new.expires_at) == ("big", made.key.expires_at)
    clock.now += 3 * HOUR
    with pytest.raises(UsageError, match="has no valid key: create a new one"):
        await consumers.rotate("acme", ME)
    await consumers.create("acme", ME)
    for action in (consumers.get, lambda name: consumers.revoke(name, ME), lambda name: consumers.delete(name, ME)):
        with pytest.raises(UnknownObject, match="consumer 'nobody' does not exist"):
            await action("nobody")

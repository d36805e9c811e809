"""API keys: shown once, kept as digests, good until they end."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from headgate.admin import audit
from headgate.admin.audit import Actor
from headgate.admin.database import Database
from headgate.admin.keys import AdminKeys, KeyRole
from headgate.admin.objects import UnknownObject
from headgate.core.errors import UsageError

ME = Actor("me")
DAY = 86_400_000_000


class Clock:
    now = 1000 * DAY

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(database: Database, clock: Clock) -> AdminKeys:
    return AdminKeys(database, clock=clock)


async def test_a_key_is_found_by_its_text_alone(keys: AdminKeys) -> None:
    made = await keys.create("bot", KeyRole.EDITOR, ME)
    found = await keys.find(made.text)
    assert found is not None
    assert (found.name, found.role, found.id) == ("bot", KeyRole.EDITOR, made.key.id)
    for other in (
        "",
        "hg_",
        made.text[:-1],
        made.text + "x",
        made.text.upper(),
        made.key.id,
        "\ud800",
        "x" * 10_000,
    ):
        assert await keys.find(other) is None


async def test_no_row_has_a_key_in_it(database: Database, keys: AdminKeys) -> None:
    made = await keys.create("bot", KeyRole.ADMIN, ME)
    secret = made.text.split("_", 2)[2]
    async with database.reading() as connection:
        for table in ("api_keys", "audit", "versions", "settings"):
            rows = (await connection.execute(text(f"SELECT * FROM {table}"))).all()  # noqa: S608  names from above
            assert secret not in repr(rows)
        assert (await audit.verify(connection)).entries == 1


async def test_a_key_ends_when_it_expires_or_is_revoked(keys: AdminKeys, clock: Clock) -> None:
    brief = await keys.create("brief", KeyRole.VIEWER, ME, expires_at=clock.now + DAY)
    lasting = await keys.create("lasting", KeyRole.VIEWER, ME)
    clock.now += DAY - 1
    assert await keys.find(brief.text) is not None
    clock.now += 1
    assert await keys.find(brief.text) is None
    await keys.revoke(lasting.key.id, ME)
    assert await keys.find(lasting.text) is None
    with pytest.raises(UnknownObject, match="there is no key"):
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


async def test_the_last_use_is_noted_now_and_then(keys: AdminKeys, clock: Clock) -> None:
    made = await keys.create("bot", KeyRole.EDITOR, ME)
    first = clock.now
    await keys.find(made.text)
    clock.now += 59_000_000
    await keys.find(made.text)
    assert (await keys.get(made.key.id)).last_used_at == first
    clock.now += 2_000_000
    await keys.find(made.text)
    assert (await keys.get(made.key.id)).last_used_at == clock.now


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


@pytest.mark.parametrize(
    ("has", "needs", "may"),
    [
        (KeyRole.ADMIN, KeyRole.VIEWER, True),
        (KeyRole.ADMIN, KeyRole.EDITOR, True),
        (KeyRole.EDITOR, KeyRole.ADMIN, False),
        (KeyRole.VIEWER, KeyRole.EDITOR, False),
        (KeyRole.VIEWER, KeyRole.VIEWER, True),
        (KeyRole.CHECK, KeyRole.VIEWER, False),
        (KeyRole.ADMIN, KeyRole.CHECK, False),
        (KeyRole.CHECK, KeyRole.CHECK, True),
    ],
)
def test_roles_include_those_below_them(has: KeyRole, needs: KeyRole, may: bool) -> None:  # noqa: FBT001  a table
    assert has.includes(needs) is may

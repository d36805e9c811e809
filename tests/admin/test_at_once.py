"""Several at the same moment: services that start on an empty database, and editors of one rule."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from headgate.admin.audit import Actor
from headgate.admin.catalog import Catalog
from headgate.admin.database import Database
from headgate.admin.keys import AdminKeys
from headgate.admin.plane import AdminPlane
from headgate.policy.loading import from_data
from tests.admin.planes import DOCUMENT, Admin, plane

EDITORS, ROUNDS = 50, 2


async def test_services_that_start_at_once_make_one_database(empty_url: str, tmp_path: Path) -> None:
    """The tables, the first rules and the first key are made once, whichever service is first."""

    def begun(number: int) -> str:
        folder = tmp_path / str(number)
        folder.mkdir()
        begun = AdminPlane(empty_url, folder=folder).begin(lambda: from_data(DOCUMENT))
        assert begun.error == ""
        return begun.first_key

    with ThreadPoolExecutor(4) as threads:
        keys = list(threads.map(begun, range(4)))
    database = await Database.open(empty_url)
    (made,) = [text for text in keys if text]
    assert await AdminKeys(database).find(made)
    assert len(await AdminKeys(database).all()) == 1
    assert await Catalog(database).revision() == 1
    await database.close()


async def test_first_rules_do_not_replace_existing_ones(url: str) -> None:
    database = await Database.open(url)
    catalog = Catalog(database)
    mine = {"version": 1, "rules": [{"id": "mine", "limit": 1, "window": "1s"}]}
    await catalog.apply(mine, Actor("somebody"))
    done = await catalog.apply(DOCUMENT, Actor("start-up"), only_first=True)
    assert (done.revision, done.entries) == (1, ())
    assert [rule["id"] for rule in (await catalog.document()).document["rules"]] == ["mine"]
    await database.close()


async def test_no_update_is_lost_between_editors(admin: Admin) -> None:
    """All increment a limit at once; a request that comes too late is refused, and sent again a few times."""
    path = "/api/v1/rules/orders-user"

    async def edited() -> bool:
        read = await admin.ask("GET", path, role="editor")
        if read.status_code == 503:  # the database has too many visitors
            return False
        body = {"endpoint": "/orders", "window": "1m", "limit": read.json()["limit"] + 1}
        done = await admin.ask("PUT", path, body, role="editor", if_match=read.headers["etag"])
        assert done.status_code in {200, 412, 503}, done.text
        return done.status_code == 200

    done = []
    for _ in range(ROUNDS):
        done += await asyncio.gather(*[edited() for _ in range(EDITORS)])
    changes = sum(done)
    assert ROUNDS <= changes < ROUNDS * EDITORS
    rule = await admin.ask("GET", path)
    assert (rule.json()["limit"], rule.headers["etag"]) == (5 + changes, f'"{1 + changes}"')
    trail = (await admin.ask("GET", "/api/v1/audit?subject=orders-user&limit=1000")).json()["items"]
    assert [entry["after"]["limit"] for entry in trail] == list(range(5 + changes, 4, -1))
    assert (await admin.ask("GET", "/api/v1/audit/verify")).json()["intact"] is True


async def test_no_override_is_lost_between_editors_of_one_user(url: str) -> None:
    """Two services on one database, none of whose editors knows of a version: all that is accepted is kept."""
    rules = [{"id": f"r{number}", "limit": 1, "window": "1m"} for number in range(10)]
    document = {"version": 1, "tiers": {}, "rules": rules}
    async with plane(url) as here, plane(url) as there:
        assert (await here.ask("POST", "/api/v1/apply", document)).status_code == 200

        async def overridden(number: int) -> str:
            rule_id, side = f"r{number}", (here, there)[number % 2]
            done = await side.ask("POST", "/api/v1/users/42/override", {"rule_id": rule_id, "limit": 2})
            assert done.status_code in {200, 503}, done.text
            return rule_id if done.status_code == 200 else ""

        accepted = {name for name in await asyncio.gather(*map(overridden, range(10))) if name}
        (user,) = (await here.ask("GET", "/api/v1/users")).json()["items"]
        assert accepted
        assert user["overrides"].keys() == accepted


async def test_a_put_returns_the_rule_that_it_wrote(url: str) -> None:
    """Also while others delete it: never that it does not exist, and that it is new exactly if it was."""
    async with plane(url) as here, plane(url) as there:
        body, path = {"endpoint": "/race", "window": "1m", "limit": 1}, "/api/v1/rules/race"

        async def replaced(number: int) -> int:
            done = await here.ask("PUT", path, body | {"limit": 10 + number}, role="editor")
            assert done.status_code in {200, 201, 503}, done.text
            assert done.status_code == 503 or done.json()["limit"] == 10 + number
            return done.status_code

        async def deleted() -> int:
            return (await there.ask("DELETE", path)).status_code

        done = await asyncio.gather(*[each for number in range(10) for each in (replaced(number), deleted())])
        history = (await here.ask("GET", f"{path}/versions")).json()["items"]
        bodies = [None, *[version["body"] for version in reversed(history)]]
        made = [now for before, now in pairwise(bodies) if before is None and now]
        assert done.count(201) == len(made)

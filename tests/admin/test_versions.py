"""A change that names the version it replaces is refused with 412 if another change was quicker."""

from __future__ import annotations

import asyncio
from typing import Any

from headgate.admin.audit import Actor
from headgate.admin.catalog import Catalog
from headgate.admin.database import Database
from headgate.admin.objects import ObjectKind, Operation, document_of, revision_number
from tests.admin.planes import DOCUMENT, Admin, on_sqlite

USER = "/api/v1/users/42"
TIER: tuple[str, str, Any] = ("PUT", f"{USER}/tier", {"tier": "gold"})
OVERRIDE: tuple[str, str, Any] = ("POST", f"{USER}/override", {"rule_id": "orders-user", "limit": 9})


class TestUsers:
    @on_sqlite
    async def test_every_answer_about_a_user_has_its_version(self, admin: Admin) -> None:
        async def version(method: str, path: str, body: Any = None) -> str:
            answer = await admin.ask(method, path, body)
            assert answer.status_code == 200, answer.text
            return answer.headers["etag"]

        assert await version("GET", f"{USER}/limits") == '"0"'
        assert await version(*TIER) == '"1"'
        assert await version(*OVERRIDE) == '"2"'
        assert await version("GET", f"{USER}/limits") == '"2"'
        assert await version("DELETE", f"{USER}/override") == '"3"'
        assert await version("PUT", f"{USER}/tier", {"tier": ""}) == '"0"'
        assert await version("GET", f"{USER}/limits") == '"0"'
        assert await version(*TIER) == '"5"'  # a version that was is not used again

    @on_sqlite
    async def test_a_lost_race_changes_nothing(self, admin: Admin) -> None:
        read = (await admin.ask("GET", f"{USER}/limits")).headers["etag"]
        assert (await admin.ask(*OVERRIDE)).status_code == 200
        before = await admin.catalog.document()
        changes: list[tuple[str, str, Any]] = [
            ("PUT", f"{USER}/tier", {"tier": ""}),
            ("POST", f"{USER}/override", {"rule_id": "orders-user", "limit": 7}),
            ("DELETE", f"{USER}/override", None),
            ("DELETE", f"{USER}/override?rule_id=all-ip", None),
            ("DELETE", USER, None),
        ]
        for change in changes:
            for stale in (read, '"7"'):
                lost = await admin.ask(*change, if_match=stale)
                assert (lost.status_code, lost.json()["status"]) == (412, 412), (change, lost.text)
            assert (await admin.ask(*change, if_none_match="*")).status_code == 412, change
        assert await admin.catalog.document() == before

    @on_sqlite
    async def test_the_first_change_of_a_version_wins(self, admin: Admin) -> None:
        assert (await admin.ask(*TIER, if_match="*")).status_code == 412  # nothing is special yet
        assert (await admin.ask("PUT", f"{USER}/tier", {"tier": ""}, if_match='"3"')).status_code == 412
        assert (await admin.ask(*TIER, if_match='"0"')).status_code == 200
        assert (await admin.ask(*TIER, if_match='"0"')).status_code == 412
        assert (await admin.ask(*OVERRIDE, if_match='"1"')).status_code == 200
        assert (await admin.ask("DELETE", f"{USER}/override", if_match="*")).status_code == 200
        assert (await admin.ask("DELETE", USER, if_match='"3"')).status_code == 204
        assert (await admin.ask(*TIER, if_none_match="*")).status_code == 200


class TestRollBack:
    async def test_a_lost_race_changes_nothing(self, admin: Admin) -> None:
        path, rule = "/api/v1/rules/orders-user", {"window": "1m", "endpoint": "/orders"}
        for limit in (6, 7):
            assert (await admin.ask("PUT", path, {**rule, "limit": limit})).status_code == 200
        for stale in ('"1"', '"2"', '"0"'):
            assert (await admin.ask("POST", f"{path}/rollback", {"version": 1}, if_match=stale)).status_code == 412
        assert (await admin.ask("GET", path)).json()["limit"] == 7
        done = await admin.ask("POST", f"{path}/rollback", {"version": 1}, if_match='"3"')
        assert (done.status_code, done.headers["etag"]) == (200, '"4"')
        assert done.json() == {"revision": 4, "changed": True}
        again = await admin.ask("POST", f"{path}/rollback", {"version": 1}, if_match='"4"')
        assert (again.json(), again.headers["etag"]) == ({"revision": 4, "changed": False}, '"4"')

    @on_sqlite
    async def test_a_deleted_rule_is_restored_only_if_there_is_no_other(self, admin: Admin) -> None:
        path = "/api/v1/rules/all-ip"
        assert (await admin.ask("DELETE", path)).status_code == 204
        back = await admin.ask("POST", f"{path}/rollback", {"version": 1}, if_none_match="*")
        assert (back.status_code, back.headers["etag"]) == (200, '"3"')
        assert (await admin.ask("POST", f"{path}/rollback", {"version": 1}, if_none_match="*")).status_code == 412


class TestWholeFile:
    @on_sqlite
    async def test_a_file_replaces_the_revision_that_its_writer_saw(self, admin: Admin) -> None:
        exported = await admin.ask("GET", "/api/v1/export")
        assert exported.headers["etag"] == '"1"'
        assert (await admin.ask(*TIER)).status_code == 200
        file = {"version": 1, "rules": DOCUMENT["rules"][:1]}
        for query in ("", "?dry_run=true"):
            lost = await admin.ask("POST", f"/api/v1/apply{query}", file, if_match=exported.headers["etag"])
            assert lost.status_code == 412
            assert "is now at version 2, not 1" in lost.json()["detail"]
        assert (await admin.ask("GET", "/api/v1/rules")).json()["total"] == 3
        done = await admin.ask("POST", "/api/v1/apply", file, if_match='"2"')
        assert (done.status_code, done.json()["revision"]) == (200, 3)


async def test_a_star_does_not_lose_against_changes_meanwhile(admin: Admin) -> None:
    """It requires only that the object exists, in any version."""
    rule = {"window": "1m", "endpoint": "/orders"}
    done = await asyncio.gather(
        *[
            admin.ask("PUT", "/api/v1/rules/orders-user", {**rule, "limit": limit}, if_match="*")
            for limit in range(10, 30)
        ]
    )
    assert {answer.status_code for answer in done} <= {200, 503}
    assert len({answer.headers["etag"] for answer in done if answer.status_code == 200}) > 1


async def test_one_transaction_reads_one_revision(url: str) -> None:
    """Whatever is changed meanwhile: who follows must never find one half of a change."""
    database = await Database.open(url)
    catalog = Catalog(database)
    await catalog.apply(DOCUMENT, Actor("somebody"))
    before = await catalog.document()
    async with database.reading() as connection:
        assert await revision_number(connection) == 1
        operations = [
            Operation(ObjectKind.TIER, "gold", {"orders-user": {"limit": 60}}),
            Operation(ObjectKind.USER, "42", {"tier": "gold"}),
        ]
        await catalog.change(operations, Actor("another"))
        assert (await document_of(connection), await revision_number(connection)) == (before.document, 1)
    assert (await catalog.document()).revision == 2
    await database.close()

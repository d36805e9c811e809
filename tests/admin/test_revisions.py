"""Revisions are listed, shown and undone as a whole, or their conflicts are named."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.admin import audit
from headgate.admin.catalog import Catalog
from headgate.admin.database import Database, DatabaseUnavailable
from headgate.admin.follower import NodeStatus, _register
from headgate.admin.objects import InUse, ObjectKind, Operation, UnknownObject
from headgate.admin.revisions import Conflict, Superseded
from headgate.admin.tables import epoch_us
from headgate.config.problems import InvalidRules
from headgate.config.times import moment_text
from headgate.core.calendar import DAY_US
from headgate.policy.changing import BodyChange
from tests.admin.planes import Admin, on_sqlite, opened
from tests.admin.test_catalog import DOCUMENT, ME, without_times
from tests.policy.test_changing import DOCUMENT as RULES
from tests.policy.test_changing import STEPS

RULE, TIER, USER, SETTING = ObjectKind
WHOLE_FILES = st.permutations(["c", *[rule["id"] for rule in RULES["rules"]]]).flatmap(
    lambda names: st.integers(0, len(names)).map(lambda count: names[:count])
)


async def in_force(catalog: Catalog) -> dict[str, Any]:
    return without_times((await catalog.document()).document)


class TestUndo:
    def test_the_newest_changes_undone_one_by_one_leave_what_was(self, url: str) -> None:
        changes = st.lists(STEPS, min_size=1, max_size=3)

        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(st.one_of(changes, WHOLE_FILES, st.sampled_from("abc")), min_size=1, max_size=6))
        def holds(steps: list[list[BodyChange] | list[str] | str]) -> None:
            async def within() -> None:
                async with opened(url) as database:
                    await work(Catalog(database), steps)

            asyncio.run(within())

        async def change(catalog: Catalog, step: list[Any] | str) -> None:
            if isinstance(step, str):
                await catalog.delete(RULE, step, ME, drop=True)
            elif step and isinstance(step[0], BodyChange):
                once = {(each.kind, each.id): Operation(ObjectKind(each.kind), each.id, each.body) for each in step}
                await catalog.change(list(once.values()), ME)
            else:
                known = {rule["id"]: rule for rule in [*RULES["rules"], {"id": "c", "limit": 9, "window": "1s"}]}
                rules = [{**known[name], "replaces": []} for name in step]
                await catalog.apply({"version": 1, "rules": rules}, ME, sections={"rules"})

        async def work(catalog: Catalog, steps: list[Any]) -> None:
            await catalog.apply(RULES, ME)
            were = {await catalog.revision(): await in_force(catalog)}
            for step in steps:
                with suppress(InvalidRules, InUse, UnknownObject):
                    await change(catalog, step)
                were[await catalog.revision()] = await in_force(catalog)
            newest = await catalog.revision()
            for number in range(newest, min(were), -1):
                await catalog.undo(number, ME)
                assert await in_force(catalog) == were[number - 1]
            for number in range(min(were) + 1, newest + 1):  # an undo is undone in the same way
                await catalog.undo(2 * newest - number + 1, ME)
                assert await in_force(catalog) == were[number]

        holds()

    async def test_later_changes_are_named_as_conflicts_and_can_be_overridden(self, catalog: Catalog) -> None:
        await catalog.apply(DOCUMENT, ME)
        before = await in_force(catalog)
        c, d = ({"id": name, "limit": 1, "window": "1s"} for name in "cd")
        wanted = {**DOCUMENT, "rules": [{"id": "a", "limit": 6, "window": "1m"}, c, d], "default_tier": "blue"}
        await catalog.apply({**wanted, "tiers": {"gold": {"a": {"limit": 50}}, "blue": {"c": {"limit": 2}}}}, ME)
        await catalog.change([Operation(RULE, "a", {"id": "a", "limit": 7, "window": "1m"})], ME)
        await catalog.change([Operation(USER, "u2", {"tier": "blue", "overrides": {"c": {"limit": 3}}})], ME)
        await catalog.change([Operation(TIER, "gold", {"a": {"limit": 50}, "d": {"limit": 4}})], ME)
        with pytest.raises(Superseded) as raised:
            await catalog.undo(2, ME)
        assert raised.value.conflicts == [
            Conflict(TIER, "gold", 5),
            Conflict(USER, "u2", 4),
            Conflict(RULE, "a", 3),
        ]
        assert "tier 'gold' (revision 5), user 'u2' (revision 4), rule 'a' (revision 3)" in str(raised.value)
        assert await catalog.revision() == 5
        shown = await catalog.undo(2, ME, force=True, dry_run=True)
        assert await catalog.undo(2, ME, force=True) == shown
        assert await in_force(catalog) == before
        for number in (6, 5, 4, 3, 2):
            await catalog.undo(number, ME)
        assert await in_force(catalog) == before

    async def test_deleted_objects_that_an_undo_needs_are_conflicts(self, catalog: Catalog) -> None:
        await catalog.apply({**DOCUMENT, "users": {"u1": {"tier": "gold", "overrides": {"a": {"limit": 7}}}}}, ME)
        await catalog.change([Operation(USER, "u1", None), Operation(SETTING, "default_tier", None)], ME)
        await catalog.change([Operation(RULE, "b", None)], ME)
        await catalog.delete(RULE, "a", ME, drop=True)
        await catalog.delete(TIER, "gold", ME)
        with pytest.raises(Superseded) as raised:
            await catalog.undo(2, ME)
        assert raised.value.conflicts == [Conflict(TIER, "gold", 5), Conflict(RULE, "a", 4)]

    async def test_equal_and_reverted_changes_are_no_conflicts(self, catalog: Catalog) -> None:
        await catalog.apply(DOCUMENT, ME)
        for limit in (6, 7, 6):
            await catalog.change([Operation(RULE, "a", {"id": "a", "limit": limit, "window": "1m"})], ME)
        assert (await catalog.undo(2, ME)).revision == 5
        assert (await in_force(catalog))["rules"] == DOCUMENT["rules"]
        assert await catalog.undo(2, ME) == (5, ())

    async def test_ended_overrides_are_neither_restored_nor_conflicts(self, url: str) -> None:
        database = await Database.open(url)
        now = [1_900_000_000_000_000]
        catalog = Catalog(database, lambda: now[0])
        await catalog.apply({**DOCUMENT, "users": {}}, ME)
        soon, later = ({"limit": 8, "until": moment_text(now[0] + after)} for after in (10, 1000))
        await catalog.change([Operation(USER, "u1", {"tier": "gold", "overrides": {"a": soon, "b": later}})], ME)
        await catalog.change([Operation(USER, "u1", {"overrides": {"a": soon, "b": {"limit": 3}}})], ME)
        await catalog.change([Operation(USER, "u2", {"overrides": {"a": soon}})], ME)
        now[0] += 100
        await catalog.end_overrides()
        assert await catalog.undo(4, ME) == (5, ())
        await catalog.undo(3, ME)
        assert (await in_force(catalog))["users"] == {"u1": {"tier": "gold", "overrides": {"b": later}}}
        await catalog.undo(2, ME)
        assert "users" not in await in_force(catalog)
        await database.close()

    async def test_a_rule_of_any_name_is_changed_back_in_a_tier(self, catalog: Catalog) -> None:
        rule = {"id": "overrides", "limit": 1, "window": "1s"}
        await catalog.apply({"version": 1, "rules": [rule], "tiers": {"gold": {"overrides": {"limit": 2}}}}, ME)
        await catalog.change([Operation(TIER, "gold", {"overrides": {"limit": 3}})], ME)
        await catalog.undo(2, ME)
        assert (await in_force(catalog))["tiers"] == {"gold": {"overrides": {"limit": 2}}}

    async def test_revisions_removed_by_the_retention_cannot_be_undone(self, catalog: Catalog) -> None:
        await catalog.apply(DOCUMENT, ME)
        await catalog.change([Operation(TIER, "gold", {})], ME)
        async with catalog.database.exclusively() as connection:
            await audit.prune(connection, epoch_us() + 100 * DAY_US)
        with pytest.raises(UnknownObject, match="is no longer in the audit trail"):
            await catalog.undo(2, ME)
        for number in (0, 3):
            with pytest.raises(UnknownObject, match="does not exist"):
                await catalog.undo(number, ME)


class TestApi:
    async def test_revisions_are_listed_explained_and_undone(self, admin: Admin) -> None:
        for name in ("x", "y"):
            body = {"id": name, "limit": 1, "window": "1s"}
            assert (await admin.ask("POST", "/api/v1/rules", body, x_reason=f"for {name}")).status_code == 201
        page = (await admin.ask("GET", "/api/v1/revisions?limit=2", role="viewer")).json()
        assert [(each["revision"], each["summary"], each["reason"]) for each in page["items"]] == [
            (3, "create rule y", "for y"),
            (2, "create rule x", "for x"),
        ]
        assert (page["total"], page["next"]) == (3, 2)
        page = (await admin.ask("GET", "/api/v1/revisions?offset=2", role="viewer")).json()
        assert [each["summary"] for each in page["items"]] == ["create 3 rules, create tier gold"]
        one = (await admin.ask("GET", "/api/v1/revisions/1?offset=1&limit=2", role="viewer")).json()
        assert (one["changes"], one["total"], one["next"]) == (4, 4, 3)
        assert [(each["id"], each["before"], each["after"]["limit"]) for each in one["items"]] == [
            ("all-ip", None, 50),
            ("team/a", None, 9),
        ]
        for path in ("9", "9/undo"):
            missing = await admin.ask("POST" if path == "9/undo" else "GET", f"/api/v1/revisions/{path}")
            assert missing.status_code == 404, missing.text
        tried = await admin.ask("POST", "/api/v1/revisions/2/undo?dry_run=true", role="editor")
        assert tried.json() == {
            "revision": 4,
            "dry_run": True,
            "undone": 2,
            "total": 1,
            "counts": {"delete": {"rule": 1}},
            "changes": [
                {
                    "kind": "rule",
                    "id": "x",
                    "action": "delete",
                    "before": {"id": "x", "limit": 1, "window": "1s"},
                    "after": None,
                }
            ],
        }
        assert (await admin.ask("POST", "/api/v1/revisions/2/undo", if_match='"2"')).status_code == 412
        undone = await admin.ask("POST", "/api/v1/revisions/2/undo", if_match='"3"', x_reason="a mistake")
        assert (undone.status_code, undone.json()["revision"]) == (200, 4)
        assert (await admin.ask("GET", "/api/v1/rules/x")).status_code == 404
        newest = (await admin.ask("GET", "/api/v1/revisions?limit=1")).json()["items"][0]
        assert newest["reason"] == "undo of revision 2: a mistake"
        body = {"limit": 2, "window": "1s"}
        assert (await admin.ask("PUT", "/api/v1/rules/y", body)).status_code == 200
        refused = await admin.ask("POST", "/api/v1/revisions/3/undo")
        assert (refused.status_code, refused.json()["conflicts"]) == (
            409,
            [{"kind": "rule", "id": "y", "revision": 5}],
        )
        forced = await admin.ask("POST", "/api/v1/revisions/3/undo?force=true")
        assert (forced.status_code, forced.json()["total"]) == (200, 1)

    @on_sqlite
    async def test_members_are_changed_by_merge_patches(self, admin: Admin) -> None:
        async def patch(path: str, body: Any, kind: str = "application/merge-patch+json", **headers: str) -> Any:
            sent = {"content-type": kind, "authorization": f"Bearer {admin.keys['editor']}"}
            sent |= {name.replace("_", "-"): value for name, value in headers.items()}
            return await admin.client.patch(f"/api/v1/{path}", content=json.dumps(body), headers=sent)

        changed = await patch("rules/orders-user", {"limit": 9, "burst": 3, "when": {"region": "eu", "plan": "x"}})
        assert changed.status_code == 200, changed.text
        changed = await patch("rules/orders-user", {"burst": None, "when": {"plan": None}}, if_match='"2"')
        assert (changed.json()["limit"], changed.json()["when"], changed.headers["etag"]) == (
            9,
            {"region": "eu"},
            '"3"',
        )
        assert "burst" not in changed.json()
        for path, body, status in (
            ("rules/orders-user", {"limit": -1}, 400),
            ("rules/orders-user", {"limit": None}, 400),
            ("rules/orders-user", {"id": "other"}, 400),
            ("rules/orders-user", {"rule_id": "orders-user"}, 400),
            ("rules/orders-user", {"created_at": "2020-01-01T00:00:00Z"}, 400),
            ("rules/orders-user", [], 400),
            ("rules/nobody", {"limit": 1}, 404),
            ("tiers/nothing", {}, 404),
            ("users/42", {"tier": "glod"}, 400),
            ("users/42", {"tier": 5}, 400),
            ("users/42", {"tier": {}}, 400),
            ("users/42", {"overrides": {"all-ip": {"limit": 1, "until": "2020-01-01T00:00:00Z"}}}, 400),
            ("users/42", {"overrides": {"all-ip": {"limit": None}}}, 400),
            ("users/42", {"overrides": {"all-ip": 5}}, 400),
            ("users/42", {"overrides": ["all-ip"]}, 400),
            ("users/42", {"overrides": {"nothing": {"limit": 1}}}, 400),
        ):
            assert (await patch(path, body)).status_code == status, (path, body)
        assert (await patch("rules/orders-user", {"limit": 10}, if_match='"2"')).status_code == 412
        assert (await patch("rules/orders-user", [], "application/json-patch+json")).status_code == 415
        tier = await patch("tiers/gold", {"orders-user": None, "all-ip": {"limit": 70}})
        assert tier.json() == {"id": "gold", "value": {"all-ip": {"limit": 70}}, "version": 2}
        user = await patch("users/42", {"tier": "gold", "overrides": {"all-ip": {"limit": 3}}}, if_match='"0"')
        assert user.json() == {"id": "42", "tier": "gold", "overrides": {"all-ip": {"limit": 3}}}
        user = await patch("users/42", {"tier": None, "overrides": {"all-ip": None}})
        assert (user.json(), user.headers["etag"]) == ({"id": "42"}, '"0"')
        assert (await admin.ask("GET", "/api/v1/users")).json()["total"] == 0

    @on_sqlite
    async def test_a_committed_change_is_no_error_if_the_database_fails_afterwards(
        self, monkeypatch: pytest.MonkeyPatch, admin: Admin
    ) -> None:
        async def gone(*_: object) -> None:
            raise DatabaseUnavailable("it does not answer")

        monkeypatch.setattr("headgate.admin.service.nodes_of", gone)
        done = await admin.ask("PUT", "/api/v1/users/42/tier?wait=5s", {"tier": "gold"})
        assert (done.status_code, done.json()) == (200, {"id": "42", "tier": "gold"})
        assert done.headers["x-nodes-behind"].startswith("unknown: ")

    @on_sqlite
    async def test_a_change_waits_for_nodes_and_names_those_that_do_not_run_it(self, admin: Admin) -> None:
        status = NodeStatus("n1", "node-1", 7, epoch_us(), epoch_us(), 1, "")
        await _register(admin.catalog.database, status)
        late = await admin.ask("PUT", "/api/v1/users/42/tier?wait=1ms", {"tier": "gold"})
        assert (late.status_code, late.headers["x-revision"]) == (200, "2")
        assert late.headers["x-nodes-behind"] == "node-1:7 (revision 1)"
        waiting = asyncio.ensure_future(admin.ask("DELETE", "/api/v1/users/42?wait=1m"))
        for revision in (2, 3):
            assert not waiting.done()
            await _register(admin.catalog.database, status._replace(revision=revision, seen_at=epoch_us()))
        done = await waiting
        assert (done.status_code, done.headers["x-revision"], "x-nodes-behind" in done.headers) == (204, "3", False)
        for wrong in ("soon", "5", "2m", "-1s"):
            refused = await admin.ask("DELETE", f"/api/v1/rules/all-ip?wait={wrong}")
            assert (refused.status_code, refused.json()["errors"]) == (
                400,
                [{"pointer": "wait", "detail": "is not a duration up to 1 minute, such as 5s"}],
            )
        assert (await admin.ask("GET", "/api/v1/rules/all-ip?wait=1s")).status_code == 400
        assert "x-revision" not in (await admin.ask("DELETE", "/api/v1/rules/nothing?wait=1s")).headers

"""The REST API of the admin plane, as its clients see it."""

from __future__ import annotations

import gc
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from headgate.admin.api import document
from headgate.admin.security import FAILURES, MAX_BODY, PUBLIC, READS, WRITES
from headgate.engine import AsyncEngine
from headgate.policy.loading import from_data
from headgate.policy.request import Request
from tests.admin.planes import DOCUMENT, Admin, in_file, on_sqlite, plane


async def routes_of(admin: Admin) -> list[tuple[str, str]]:
    document = (await admin.ask("GET", "/openapi.json", role="")).json()
    paths = document["paths"]
    return [(method.upper(), path.replace("{", "").replace("}", "")) for path, item in paths.items() for method in item]


def members_of(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the members of all objects in a document, by name."""
    if isinstance(schema, dict):
        properties = schema.get("properties", {})
        yield from ((name, each) for name, each in properties.items() if isinstance(each, dict))
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from members_of(each)


def test_descriptions_of_members_fit_their_kind() -> None:
    """Members of one name mean different things in different responses, such as `allowed` and `total`."""
    found = json.loads(document())
    described = [(name, each) for name, each in members_of(found) if "description" in each]
    numbers = [(name, each["description"]) for name, each in described if each.get("type") in ("number", "integer")]
    assert len(numbers) > 100
    assert [(name, text) for name, text in numbers if text.startswith(("Whether", "Why", "The keys", "Every"))] == []
    live = found["paths"]["/api/v1/live"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    node = live["properties"]["nodes"]["properties"]["items"]["items"]["properties"]
    assert live["properties"]["rates"]["properties"]["allowed"]["description"] == "Admissions per second."
    assert node["state"]["enum"] == ["ok", "behind", "gone"]
    assert node["state"]["description"].startswith("`behind`: without the newest rules.")


class TestWhoMay:
    @on_sqlite
    async def test_every_route_refuses_without_a_key_and_with_a_wrong_one(self, admin: Admin) -> None:
        routes = await routes_of(admin)
        assert len(routes) > 30
        for method, path in routes:
            answer = await admin.ask(method, path, {}, role="")
            assert answer.status_code == 401, (method, path)
            assert answer.headers["content-type"] == "application/problem+json"
            assert "bearer" in answer.headers["www-authenticate"].lower()
            checking = await admin.ask(method, path, {}, role="check")
            assert checking.status_code == 403, (method, path)

    @on_sqlite
    async def test_a_role_permits_its_routes_only(self, admin: Admin) -> None:
        for method, path in await routes_of(admin):
            for role in ("viewer", "editor"):
                answer = await admin.ask(method, path, {}, role=role)
                reading = method == "GET" or path.endswith("/explain")
                may = (reading or role == "editor") and "/keys" not in path
                assert (answer.status_code == 403) is not may, (method, path, role, answer.text)

    @on_sqlite
    async def test_reads_and_writes_of_a_key_are_limited(self, url: str) -> None:
        assert (READS, WRITES, FAILURES) == ("1000/minute", "100/minute", "10/minute")
        async with plane(url, reads="3/day", writes="2/day") as admin:
            writes = [(await admin.ask("POST", "/api/v1/explain", {})).status_code for _ in range(3)]
            reads = [(await admin.ask("GET", "/api/v1/rules")).status_code for _ in range(4)]
            assert (writes, reads) == ([200, 200, 429], [200, 200, 200, 429])
            another = await admin.ask("GET", "/api/v1/rules", role="viewer")
            assert int(another.headers["x-ratelimit-reset"]) > 1_700_000_000
            assert (another.status_code, another.headers["x-ratelimit-remaining"]) == (200, "2")

    @on_sqlite
    async def test_public_paths_reveal_nothing(self, admin: Admin) -> None:
        for path in sorted(PUBLIC):
            answer = await admin.ask("GET", path, role="")
            assert answer.status_code == 200, path
            assert "orders-user" not in answer.text or path == "/openapi.json"
            names = r"http://(json-schema\.org|www\.w3\.org/2000/svg)"  # none that is fetched
            assert "http://" not in re.sub(names, "", answer.text) or "swagger-ui" in path


class TestRules:
    async def test_a_rule_is_made_read_replaced_and_deleted(self, admin: Admin) -> None:
        made = await admin.ask("POST", "/api/v1/rules", {"id": "new", "limit": 3, "window": "1s"})
        assert (made.status_code, made.headers["etag"]) == (201, '"1"')
        again = await admin.ask("POST", "/api/v1/rules", {"id": "new", "limit": 3, "window": "1s"})
        assert again.status_code == 409
        put = await admin.ask("PUT", "/api/v1/rules/new", {"limit": 4, "window": "1s"}, if_match='"1"')
        assert (put.status_code, put.headers["etag"], put.json()["limit"]) == (200, '"2"', 4)
        lost = await admin.ask("PUT", "/api/v1/rules/new", {"limit": 5, "window": "1s"}, if_match='"1"')
        assert lost.status_code == 412
        assert "is now at version 2" in lost.json()["detail"]
        assert (await admin.ask("GET", "/api/v1/rules/new")).json()["limit"] == 4
        assert (await admin.ask("DELETE", "/api/v1/rules/new", if_match='"1"')).status_code == 412
        assert (await admin.ask("DELETE", "/api/v1/rules/new")).status_code == 204
        assert (await admin.ask("GET", "/api/v1/rules/new")).status_code == 404
        versions = (await admin.ask("GET", "/api/v1/rules/new/versions")).json()["items"]
        assert [each["version"] for each in versions] == [3, 2, 1]
        assert versions[0]["body"] is None
        assert (await admin.ask("POST", "/api/v1/rules/new/rollback", {"version": 9})).status_code == 404
        back = await admin.ask("POST", "/api/v1/rules/new/rollback", {"version": 2})
        assert back.json()["changed"] is True
        assert (await admin.ask("GET", "/api/v1/rules/new")).json()["limit"] == 4

    async def test_the_times_of_a_rule_are_the_database_s(self, admin: Admin) -> None:
        """They are the same wherever a rule is shown, may be sent back as they are, and are not to be chosen."""
        (listed,) = (await admin.ask("GET", "/api/v1/rules?search=orders-user")).json()["items"]
        one = (await admin.ask("GET", "/api/v1/rules/orders-user")).json()
        assert one == {**listed, "version": 1}
        put = await admin.ask("PUT", "/api/v1/rules/orders-user", {**listed, "limit": 6})
        assert (put.status_code, put.json()["created_at"]) == (200, listed["created_at"])
        assert put.json()["updated_at"] > listed["updated_at"]
        for name in ("created_at", "updated_at"):
            other = {**listed, name: "2001-01-01T00:00:00Z"}
            rules = {"version": 1, "rules": [{**other, "limit": 7}]}
            for answer, pointer in (
                (await admin.ask("PUT", "/api/v1/rules/orders-user", other), f"/{name}"),
                (await admin.ask("POST", "/api/v1/rules", {**other, "id": "new"}), "/created_at"),
                (await admin.ask("POST", "/api/v1/apply", rules), f"/rules/0/{name}"),
            ):
                assert answer.status_code == 400, answer.text
                detail = "the database sets the times of rules. Leave it out"
                assert {"pointer": pointer, "detail": detail} in answer.json()["errors"]
        assert "created_at" not in (await admin.ask("GET", "/api/v1/export")).text

    @on_sqlite
    async def test_a_user_is_not_moved_to_a_tier_that_nothing_has(self, admin: Admin) -> None:
        for tier, said in (("golf", "did you mean 'gold'?"), ("of a rule", "the tiers are: gold")):
            answer = await admin.ask("PUT", "/api/v1/users/42/tier", {"tier": tier})
            assert answer.status_code == 400
            assert said in answer.json()["detail"]
        rule = {"id": "special", "limit": 9, "window": "1h", "tier": "of a rule"}
        assert (await admin.ask("POST", "/api/v1/rules", rule)).status_code == 201
        for tier in ("of a rule", "gold", ""):
            assert (await admin.ask("PUT", "/api/v1/users/42/tier", {"tier": tier})).status_code == 200
        assert (await admin.ask("PUT", "/api/v1/settings/default_tier", "golf")).status_code == 400
        assert (await admin.ask("PUT", "/api/v1/settings/default_tier", "gold")).status_code == 201

    async def test_objects_in_use_are_deleted_only_with_their_uses(self, admin: Admin) -> None:
        rule, tier = "/api/v1/rules/orders-user", "/api/v1/tiers/gold"
        for number in range(12):
            body = {"rule_id": "orders-user", "limit": 50 + number}
            await admin.ask("POST", f"/api/v1/users/u{number:02}/override", body)
        before = await admin.catalog.revision()
        refused = await admin.ask("DELETE", rule)
        names = ", ".join(f"u{number:02}" for number in range(10))
        uses = f"rule 'orders-user' is used by 12 users ({names} and 2 more), 1 tier (gold); change these first"
        assert (refused.status_code, refused.json()["detail"].startswith(uses)) == (409, True), refused.text
        assert (await admin.ask("DELETE", rule, if_match='"7"')).status_code == 412
        assert (await admin.ask("DELETE", f"{rule}?overrides=keep")).status_code == 400
        assert await admin.catalog.revision() == before
        assert (await admin.ask("DELETE", f"{rule}?overrides=drop")).status_code == 204
        assert await admin.catalog.revision() == before + 1
        document = (await admin.catalog.document()).document
        assert (document["users"], document["tiers"]) == ({}, {"gold": {}})
        await admin.ask("PUT", "/api/v1/users/u1/tier", {"tier": "gold"})
        await admin.ask("PUT", "/api/v1/settings/default_tier", "gold")
        for query, uses in (("", "1 user (u1), 1 setting (default_tier)"), ("?overrides=drop", "1 setting (")):
            refused = await admin.ask("DELETE", f"{tier}{query}")
            assert refused.status_code == 409
            assert f"tier 'gold' is used by {uses}" in refused.json()["detail"]
        assert (await admin.ask("DELETE", "/api/v1/settings/default_tier?overrides=drop")).status_code == 400
        assert (await admin.ask("DELETE", "/api/v1/settings/default_tier")).status_code == 204
        assert (await admin.ask("DELETE", f"{tier}?overrides=drop")).status_code == 204
        assert (await admin.catalog.document()).document["users"] == {}
        assert (await admin.ask("DELETE", tier)).status_code == 404
        await admin.ask("PUT", "/api/v1/rules/new", {"limit": 1, "window": "1s", "replaces": ["all-ip"]})
        refused = await admin.ask("DELETE", "/api/v1/rules/all-ip?overrides=drop")
        assert refused.json()["detail"] == "rule 'all-ip' is used by 1 rule (new); change these first"

    @on_sqlite
    async def test_an_override_without_effect_has_a_warning(self, admin: Admin) -> None:
        """It is kept: it may have an effect later, when the rule or the tier is another."""
        off = {"id": "off", "limit": 1, "window": "1s", "enabled": False}
        assert (await admin.ask("POST", "/api/v1/rules", off)).status_code == 201
        for user, (tier, rule_id, limit, warned) in enumerate(
            [
                ("", "orders-user", 6, None),
                ("", "orders-user", 5, "rule orders-user is 5/minute for this user anyway"),
                ("gold", "orders-user", 50, "rule orders-user is 50/minute for this user anyway"),
                ("gold", "orders-user", 5, None),
                ("", "team/a", 10, "rule team/a is only for tier gold, and the user has no tier"),
                ("gold", "team/a", 10, None),
                ("", "off", 10, "rule off is not enabled"),
            ]
        ):
            assert (await admin.ask("PUT", f"/api/v1/users/{user}/tier", {"tier": tier})).status_code == 200
            body = {"rule_id": rule_id, "limit": limit}
            answer = (await admin.ask("POST", f"/api/v1/users/{user}/override", body)).json()
            expected = None if warned is None else [f"it currently has no effect: {warned}"]
            assert answer.get("warnings") == expected, (tier, body)
            assert answer["overrides"] == {rule_id: {"limit": limit}}

    @on_sqlite
    async def test_ids_with_slashes_are_escaped_in_paths(self, admin: Admin) -> None:
        assert (await admin.ask("GET", "/api/v1/rules/team%2Fa")).json()["limit"] == 9
        assert (await admin.ask("GET", "/api/v1/rules/team%2Fa/versions")).status_code == 200
        odd = "a/b?c#d e%2F\u00fc"
        path = "/api/v1/users/a%2Fb%3Fc%23d%20e%252F%C3%BC"
        assert (await admin.ask("PUT", f"{path}/tier", {"tier": "gold"})).json() == {"id": odd, "tier": "gold"}
        assert (await admin.catalog.document()).document["users"] == {odd: {"tier": "gold"}}

    @on_sqlite
    async def test_pages_filters_and_sorting(self, admin: Admin) -> None:
        async def ids(query: str) -> list[str]:
            answer = await admin.ask("GET", f"/api/v1/rules?{query}")
            assert answer.status_code == 200, answer.text
            return [item["id"] for item in answer.json()["items"]]

        assert await ids("") == ["orders-user", "all-ip", "team/a"]
        assert await ids("sort=id") == ["all-ip", "orders-user", "team/a"]
        assert await ids("sort=-id") == ["team/a", "orders-user", "all-ip"]
        assert await ids("dimension=ip") == ["all-ip"]
        assert await ids("tier=gold") == ["team/a"]
        assert await ids("enabled=false") == []
        assert await ids("search=ORDERS") == ["orders-user"]
        assert await ids("offset=1&limit=1") == ["all-ip"]
        page = (await admin.ask("GET", "/api/v1/rules?limit=2")).json()
        assert (page["total"], page["next"]) == (3, 2)

    @on_sqlite
    async def test_an_invalid_parameter_is_named_with_what_is_accepted(self, admin: Admin) -> None:
        for path, name, said in (
            ("rules?limit=0", "limit", "is not a whole number from 1 to 1000 (items of a page, at most)"),
            ("rules?limit=9999", "limit", "is not a whole number from 1 to 1000 (items of a page, at most)"),
            ("rules?limit=ten", "limit", "is not a whole number from 1 to 1000 (items of a page, at most)"),
            ("rules?offset=-1", "offset", "is not a whole number from 0 to 10000000 (items to leave out)"),
            ("rules?enabled=perhaps", "enabled", "is not true or false"),
            ("rules?enabled=null", "enabled", "is not true or false"),
            ("audit?since=NULL", "since", "is not a whole number from 0"),
            ("rules?sort=height", "sort", "is not one of position, id, updated_at, -id, -updated_at"),
            ("usage?outcome=late", "outcome", "is not one of allowed, denied, shadow_allowed"),
            ("audit?since=today", "since", "(microseconds since the epoch)"),
            (f"rules?search={'x' * 201}", "search", "is not text of 0 to 200 characters"),
            ("rules/a%20b", "rule_id", "is not the id of a rule, 1 to 64 of A-Z"),
            ("rules?limit=1&limit=2", "limit", "occurs more than once"),
            ("rules/orders-user/what-if", "limit", "is missing; it is a whole number from 1 to"),
            ("rules?teir=gold", "teir", "is unknown; did you mean tier? It must be text"),
            ("rules?Enabled=false", "Enabled", "is unknown; did you mean enabled? It must be true or false"),
            ("users?colour=red", "colour", "is unknown; the parameters are: tier, offset, limit"),
            ("audit?actor=a&actr", "actr", "is unknown; did you mean actor?"),
            ("keys?role=admin", "role", "is unknown; there are no parameters here"),
        ):
            answer = await admin.ask("GET", f"/api/v1/{path}")
            assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json"), path
            assert f"not acceptable in the URL: '{name}'" in answer.json()["detail"], path
            assert [error["pointer"] for error in answer.json()["errors"]] == [name], path
            assert said in answer.json()["errors"][0]["detail"], path

    @on_sqlite
    async def test_every_route_refuses_a_parameter_that_it_does_not_know(self, admin: Admin) -> None:
        """Also those that change something, and then nothing is changed: a dry run must not be lost to a letter."""
        for method, path in await routes_of(admin):
            answer = await admin.ask(method, f"{path}?dryrun=true", {})
            assert answer.status_code == 400, (method, path)
            assert answer.json()["errors"][0]["pointer"] == "dryrun", (method, path, answer.text)
        applied = await admin.ask("POST", "/api/v1/apply?dryrun=true&dry_runs=1", {"version": 1, "rules": []})
        assert [error["pointer"] for error in applied.json()["errors"]] == ["dry_runs", "dryrun"]
        assert all("did you mean dry_run? It must be true or false" in e["detail"] for e in applied.json()["errors"])
        assert await admin.catalog.revision() == 1

    @on_sqlite
    async def test_problems_have_their_place(self, admin: Admin) -> None:
        for body, pointer, said in (
            ({"limit": -1, "window": "1s"}, "/limit", "not a whole number"),
            ({"limit": 1, "window": "soon"}, "/window", "soon"),
            ({"limt": 1, "window": "1s"}, "/limt", "Did you mean 'limit'?"),
            ({"limit": 1, "window": "1s", "replaces": ["nobody"]}, "/replaces/0", "rule 'nobody' does not exist"),
            ({"limit": 1, "window": "1s", "endpoint": "no path"}, "/endpoint", "path"),
            ({"limit": 1, "window": "1s", "odd key": 1}, "/odd key", "a rule has no 'odd key'"),
            ({}, "", "needs a quota"),
        ):
            assert (await admin.ask("PUT", "/api/v1/rules/new", body, if_match='"7"')).status_code == 412, body
            answer = await admin.ask("PUT", "/api/v1/rules/new", body)
            assert answer.status_code == 400, body
            found = {error["pointer"]: error["detail"] for error in answer.json()["errors"]}
            assert said in found[pointer], (body, found)
            assert (await admin.ask("GET", "/api/v1/rules/new")).status_code == 404
        whole = await admin.ask("POST", "/api/v1/explain", [1])
        assert whole.json()["errors"] == [{"pointer": "", "detail": "Expected `object`, got `array`"}]

    async def test_a_whole_file_is_applied_at_once(self, admin: Admin) -> None:
        exported = await admin.ask("GET", "/api/v1/export")
        text = exported.text.replace("limit: 5\n", "limit: 6\n")
        key = {"authorization": f"Bearer {admin.keys['editor']}"}
        tried = await admin.client.post("/api/v1/apply?dry_run=true", content=text, headers=key)
        assert [change["id"] for change in tried.json()["changes"]] == ["orders-user"]
        assert (await admin.catalog.revision()) == 1
        done = await admin.client.post("/api/v1/apply", content=text, headers=key)
        assert done.json()["revision"] == 2
        for bad in (b"", b"version: 1\nrules: [{id: a}]", b"\xff", b"{", b"- 1"):
            wrong = await admin.client.post("/api/v1/apply", content=bad, headers=key)
            assert wrong.status_code == 400, bad
        assert (await admin.catalog.revision()) == 2
        assert gc.isenabled(), "what rests while a file is applied goes on afterwards"

    async def test_an_apply_leaves_sections_that_its_file_lacks(self, admin: Admin) -> None:
        async def applied(document: dict[str, Any], query: str = "") -> Any:
            path = f"/api/v1/apply?dry_run={{}}{query}"
            tried = await admin.ask("POST", path.format("true"), document)
            done = await admin.ask("POST", path.format("false"), document)
            assert done.status_code == 200, done.text
            did = [(each["action"], each["kind"], each["id"]) for each in done.json()["changes"]]
            assert [(each["action"], each["kind"], each["id"]) for each in tried.json()["changes"]] == did
            left = (await admin.catalog.document()).document
            return did, {name: left.get(name) for name in ("tiers", "users", "ignore_case")}

        until = {"limit": 500, "until": "2036-01-01T00:00:00Z"}
        for user, change in (("for-ever", {"limit": 500}), ("for-now", until), ("both", until)):
            await admin.ask("POST", f"/api/v1/users/{user}/override", {"rule_id": "orders-user", **change})
        await admin.ask("PUT", "/api/v1/settings/ignore_case", body=True)
        before = (await admin.catalog.document()).document
        rules = [{**DOCUMENT["rules"][0], "limit": 6}, DOCUMENT["rules"][1]]
        did, left = await applied({"version": 1, "rules": rules})
        assert sorted(did) == [("delete", "rule", "team/a"), ("update", "rule", "orders-user")]
        assert left == {name: before[name] for name in left}, "the file has only rules"
        wrong = await admin.ask("POST", "/api/v1/apply", {"version": 1, "rules": rules[1:]})
        assert "rule 'orders-user' does not exist" in wrong.text, "what is left alone goes with what is applied"
        alone = {"version": 1, "tiers": {"gold": {"orders-user": {"limit": 9}}}}
        wrong = await admin.ask("POST", "/api/v1/apply", alone)
        assert "rule 'orders-user' does not exist" in wrong.text, "a file stands on its own"
        file: dict[str, Any] = {"version": 1, "rules": rules, "tiers": {}, "ignore_case": False}
        file["users"] = {"both": {"overrides": {"orders-user": {"limit": 7}}}, "new": {"tier": "gold"}}
        did, left = await applied(file)
        assert ("delete", "user", "for-ever") in did
        assert ("delete", "tier", "gold") in did
        kept = {"for-now": {"overrides": {"orders-user": until}}}
        assert left == {"tiers": {}, "users": file["users"] | kept, "ignore_case": None}
        assert await applied(file) == ([], left)
        did, left = await applied(file, "&replace_users=true")
        assert (did, left["users"]) == ([("delete", "user", "for-now")], file["users"])


class TestUsers:
    async def test_a_tier_an_override_and_a_reset_act_on_the_next_decision(self, admin: Admin) -> None:
        request = Request({"user": "42"}, "/orders")
        for _ in range(5):
            assert await admin.engine.check(request)
        assert not await admin.engine.check(request)
        reset = await admin.ask("POST", "/api/v1/users/42/reset")
        assert reset.json()["reset"] == ["orders-user", "team/a"]
        shared = await admin.ask("POST", "/api/v1/users/42/reset", {"rules": ["all-ip"]})
        assert (shared.status_code, "no separate usage of one user" in shared.json()["detail"]) == (400, True)
        assert (await admin.ask("POST", "/api/v1/users/42/reset", {"rules": ["nope"]})).status_code == 404
        assert await admin.engine.check(request)
        assert (await admin.ask("PUT", "/api/v1/users/42/tier", {"tier": "gold"})).status_code == 200
        given = {"rule_id": "orders-user", "limit": 500, "until": "2030-01-01T00:00:00Z"}
        assert (await admin.ask("POST", "/api/v1/users/42/override", given)).status_code == 200
        users = (await admin.ask("GET", "/api/v1/users?tier=gold")).json()
        assert users["items"][0]["overrides"]["orders-user"]["limit"] == 500
        ended = await admin.ask("DELETE", "/api/v1/users/42/override?rule_id=orders-user")
        assert ended.json() == {"id": "42", "tier": "gold"}
        assert (await admin.ask("DELETE", "/api/v1/users/42/override")).status_code == 404
        wrong = await admin.ask("POST", "/api/v1/users/42/override", {**given, "until": "tomorrow"})
        (error,) = wrong.json()["errors"]
        assert error["pointer"] == "/until"
        assert error["detail"].startswith("'tomorrow' is not a time. Accepted: a time with its time zone, such")
        assert (await admin.ask("DELETE", "/api/v1/users/42")).status_code == 204

    @on_sqlite
    async def test_limits_of_a_user_have_their_state_and_whether_the_last_change_is_in_force(
        self, monkeypatch: pytest.MonkeyPatch, admin: Admin
    ) -> None:
        """As where this node cannot follow the database."""
        monkeypatch.setattr("headgate.admin.users._FOLLOWS_WITHIN", 0)
        await admin.engine.check(Request({"user": "42"}, "/orders"))
        (rule,) = (await admin.ask("GET", "/api/v1/users/42/limits", role="viewer")).json()["rules"]
        assert (rule["rule_id"], rule["limits"][0]["remaining"], rule["source"]) == ("orders-user", 4, "the rule")
        await admin.ask("POST", "/api/v1/users/42/override", {"rule_id": "orders-user", "limit": 500})
        found = (await admin.ask("GET", "/api/v1/users/42/limits")).json()
        assert (found["in_force"], found["rules"][0]["limits"][0]["limit"]) == (False, 5)
        await admin.follow()
        found = (await admin.ask("GET", "/api/v1/users/42/limits")).json()
        assert (found["in_force"], found["rules"][0]["limits"][0]["limit"]) == (True, 500)

    @on_sqlite
    async def test_an_override_that_makes_no_sense_is_refused(self, admin: Admin) -> None:
        for body in (
            {"limit": 1},
            {"rule_id": "nope", "limit": 1},
            {"rule_id": "orders-user", "limit": "many"},
            {"rule_id": "orders-user", "limit": 1, "until": "2001-01-01T00:00:00Z"},
            {"rule_id": "orders-user", "limit": 1, "until": "tomorrow"},
            {"rule_id": "orders-user", "limit": 1, "until": "9999-12-31T23:59:59-12:00"},
            {"rule_id": "orders-user", "limit": 1, "unti": "2030-01-01T00:00:00Z"},
            {"rule_id": 7, "limit": 1},
            {"rule_id": "orders-user"},
            {"rule_id": "orders-user", "until": "2036-01-01T00:00:00Z"},
        ):
            answer = await admin.ask("POST", "/api/v1/users/42/override", body)
            assert answer.status_code == 400, (body, answer.text)
        assert "changes nothing: set a limit, burst" in answer.json()["detail"]
        assert (await admin.catalog.document()).document["users"] == {}


def test_the_form_of_the_log_stays_as_it_was() -> None:
    """The service has said how it logs; what its API is made with leaves that alone."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    document.__wrapped__()
    assert (root.handlers, root.level) == before


class TestTheRest:
    async def test_every_change_is_in_the_audit_trail_with_its_author_and_reason(self, admin: Admin) -> None:
        headers = {"x_request_id": "my-request", "x_reason": "a sale"}
        await admin.ask("PUT", "/api/v1/rules/new", {"limit": 4, "window": "1s"}, role="editor", **headers)
        trail = (await admin.ask("GET", "/api/v1/audit?subject=new", role="viewer")).json()
        (entry,) = trail["items"]
        assert (entry["request_id"], entry["reason"]) == ("my-request", "a sale")
        assert entry["actor"].startswith("editor (")
        assert (entry["action"], entry["kind"], entry["revision"], entry["before"]) == ("create", "rule", 2, None)
        await admin.ask("PUT", "/api/v1/rules/new", {"quota": "6/s"})
        (changed,) = (await admin.ask("GET", "/api/v1/audit?subject=new&action=update")).json()["items"]
        assert (changed["before"], changed["after"]["limit"]) == (entry["after"], 6)
        assert (await admin.ask("GET", "/api/v1/audit/verify")).json()["intact"] is True
        everything = json.dumps((await admin.ask("GET", "/api/v1/audit?limit=1000")).json())
        assert not any(key.split("_", 2)[2] in everything for key in admin.keys.values())

    @on_sqlite
    async def test_changes_of_keys_are_visible_to_admins_only(self, admin: Admin) -> None:
        secret = (await admin.ask("POST", "/api/v1/keys", {"name": "a-secret-name", "role": "check"})).json()["id"]
        for role in ("viewer", "editor"):
            for query in ("", f"?subject={secret}", "?action=create&limit=1000"):
                answer = await admin.ask("GET", f"/api/v1/audit{query}", role=role)
                assert answer.status_code == 200
                assert not [each for each in answer.json()["items"] if each["kind"] == "key"]
                assert "a-secret-name" not in answer.text
            assert (await admin.ask("GET", "/api/v1/audit?kind=key", role=role)).status_code == 403
        assert "a-secret-name" in (await admin.ask("GET", "/api/v1/audit?kind=key")).text

    async def test_keys_are_made_shown_once_replaced_and_revoked(self, admin: Admin) -> None:
        made = (await admin.ask("POST", "/api/v1/keys", {"name": "bot", "role": "viewer", "expires_in": 3600})).json()
        admin.keys["bot"] = made["key"]
        assert (await admin.ask("GET", "/api/v1/rules", role="bot")).status_code == 200
        listed = (await admin.ask("GET", "/api/v1/keys")).text
        assert made["id"] in listed
        assert made["key"].split("_", 2)[2] not in listed
        other = (await admin.ask("POST", f"/api/v1/keys/{made['id']}/rotate", {})).json()
        assert (await admin.ask("GET", "/api/v1/rules", role="bot")).status_code == 401
        admin.keys["bot"] = other["key"]
        assert (await admin.ask("GET", "/api/v1/rules", role="bot")).status_code == 200
        assert (await admin.ask("DELETE", f"/api/v1/keys/{other['id']}")).status_code == 204
        assert (await admin.ask("GET", "/api/v1/rules", role="bot")).status_code == 401
        assert (await admin.ask("POST", "/api/v1/keys", {"name": "x", "role": "god"})).status_code == 400

    @on_sqlite
    async def test_explain_returns_the_rules_that_apply(self, admin: Admin) -> None:
        body = {"principal": {"user": "42"}, "endpoint": "/orders"}
        found = (await admin.ask("POST", "/api/v1/explain", body, role="viewer")).json()
        applying = {rule["id"]: rule["applies"] for rule in found["rules"]}
        assert applying == {"orders-user": True, "all-ip": False, "team/a": False}

    @on_sqlite
    async def test_bodies_have_an_end(self, admin: Admin) -> None:
        key = {"authorization": f"Bearer {admin.keys['admin']}", "content-type": "application/json"}
        huge = await admin.client.put("/api/v1/rules/x", content=b" " * (MAX_BODY + 1), headers=key)
        assert huge.status_code == 413
        assert "10,485,760" in huge.text
        most = await admin.client.post("/api/v1/apply", content=b"#" * (MAX_BODY - 1) + b"\n", headers=key)
        assert most.status_code == 400, most.text
        packed = await admin.client.put("/api/v1/rules/x", content=b"{}", headers=key | {"content-encoding": "gzip"})
        assert packed.status_code == 415

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(12):
                yield b" " * 1_000_000

        chunked = await admin.client.put("/api/v1/rules/x", content=endless(), headers=key)
        assert chunked.status_code == 413
        assert "10,485,760" in chunked.text

    @on_sqlite
    async def test_null_replaces_nothing(self, admin: Admin) -> None:
        """In particular, it does not delete what was to be replaced."""
        headers = {"authorization": f"Bearer {admin.keys['admin']}"}
        bodies: dict[str, Any] = {"tiers/gold": {"orders-user": {"limit": 9}}, "settings/default_tier": "gold"}
        for path, body in bodies.items():
            made = await admin.ask("PUT", f"/api/v1/{path}", body)
            assert made.is_success, made.text
            null = await admin.client.put(f"/api/v1/{path}", content=b"null", headers=headers)
            assert null.status_code == 400, path
            assert (await admin.ask("GET", f"/api/v1/{path}")).json()["value"] == body

    async def test_rules_of_a_file_are_read_only(self) -> None:
        engine = AsyncEngine(from_data(DOCUMENT))
        transport = httpx.ASGITransport(in_file(engine, "the-operator-s-own-key"))
        key = {"authorization": "Bearer the-operator-s-own-key"}
        async with httpx.AsyncClient(transport=transport, base_url="http://admin", headers=key) as client:
            assert (await client.get("/api/v1/rules")).json()["items"] == DOCUMENT["rules"]
            shown = (await client.get("/api/v1/rules/all-ip")).json()
            assert shown == {**DOCUMENT["rules"][1], "version": 1}
            assert "1970" not in (await client.get("/api/v1/rules/all-ip/versions")).text
            assert (await client.get("/api/v1/users/42/limits")).status_code == 200
            for method, path, body in (
                ("PUT", "/api/v1/rules/x", {"limit": 1, "window": "1s"}),
                ("DELETE", "/api/v1/rules/all-ip", None),
                ("PUT", "/api/v1/users/42/tier", {"tier": "gold"}),
            ):
                refused = await client.request(method, path, json=body)
                assert refused.status_code == 409
                assert "rules.yaml" in refused.json()["detail"]
        await engine.close()

"""Attacks on the admin API, and misuse of it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest

from headgate.admin import security
from headgate.admin.security import Gatekeeper
from headgate.engine import AsyncEngine
from headgate.policy.loading import from_data
from tests.admin.planes import DOCUMENT, Admin, in_file, on_sqlite

RULES = "/api/v1/rules"


def key_of(admin: Admin, role: str = "admin") -> dict[str, str]:
    return {"authorization": f"Bearer {admin.keys[role]}"}


class TestTexts:
    @on_sqlite
    async def test_invisible_characters_are_refused_in_paths_and_queries(self, admin: Admin) -> None:
        for odd in ("%00", "%0A", "%E2%80%AE", "%FF", "%ED%A0%80", "%EE%80%80", "%7F", "%C2%85"):
            for method, path, body in (
                ("GET", f"/api/v1/users/a{odd}/limits", None),
                ("PUT", f"/api/v1/users/a{odd}/tier", {"tier": "gold"}),
                ("PUT", f"/api/v1/tiers/a{odd}", {}),
                ("GET", f"/api/v1/audit?actor=a{odd}", None),
                ("GET", f"/api/v1/audit/verify?contains=a{odd}", None),
                ("DELETE", f"/api/v1/keys/a{odd}", None),
            ):
                answer = await admin.ask(method, path, body)
                assert answer.status_code == 400, (path, answer.text)
                assert answer.headers["content-type"] == "application/problem+json"

    async def test_invisible_characters_are_refused_in_bodies(self, admin: Admin) -> None:
        key = key_of(admin) | {"content-type": "application/json"}
        for odd in (b"\\u0000", b"\\ud800", b"\\u202e"):
            for method, path, body in (
                ("PUT", "/api/v1/users/42/tier", b'{"tier": "%s"}' % odd),
                ("POST", "/api/v1/keys", b'{"name": "%s", "role": "viewer"}' % odd),
                ("PUT", "/api/v1/rules/new", b'{"name": "%s", "limit": 1, "window": "1s"}' % odd),
                ("PUT", "/api/v1/tiers/gold", b'{"%s": {"limit": 1}}' % odd),
                ("PUT", "/api/v1/settings/default_tier", b'"%s"' % odd),
                ("POST", "/api/v1/users/42/reset", b'{"rules": ["%s"]}' % odd),
                ("POST", "/api/v1/explain", b'{"principal": {"user": "%s"}}' % odd),
            ):
                answer = await admin.client.request(method, path, content=body, headers=key)
                assert answer.status_code == 400, (path, body, answer.text)
                assert "\u202e" not in answer.text
                assert answer.headers["content-type"] == "application/problem+json"
            file = b'version: 1\nrules: [{id: a, name: "%s", limit: 1, window: 1s}]' % odd
            applied = await admin.client.post("/api/v1/apply", content=file, headers=key_of(admin))
            assert applied.status_code == 400, (odd, applied.text)
        assert await admin.catalog.revision() == 1

    @on_sqlite
    async def test_reasons_are_text(self, admin: Admin) -> None:
        key, path = key_of(admin), "/api/v1/users/42/tier"
        kept: Any = {**key, "x-reason": "Größe".encode()}
        assert (await admin.client.put(path, json={"tier": "gold"}, headers=kept)).status_code == 200
        trail = (await admin.ask("GET", "/api/v1/audit?subject=42")).json()["items"]
        assert [entry["reason"] for entry in trail] == ["Größe"]
        for odd in (b"a\x85b", "\u202e".encode(), b"\x1b[31m", b"x" * 1001):
            odd_one: Any = {**key, "x-reason": odd}
            refused = await admin.client.put(path, json={"tier": ""}, headers=odd_one)
            assert refused.status_code == 400, odd

    async def test_injection_is_text_like_any_other(self, admin: Admin) -> None:
        for odd in (
            "'; DROP TABLE rules; --",
            '"><script>alert(1)</script>',
            "{{7*7}}",
            "$(id)",
            "%s%n",
            "../../x",
        ):
            quoted = httpx.URL("http://x/").copy_with(params={"q": odd}).query.decode().removeprefix("q=")
            path = "/api/v1/users/" + quoted.replace("+", "%20").replace("/", "%2F")
            moved = await admin.ask("PUT", f"{path}/tier", {"tier": "gold"}, x_reason=odd)
            assert (moved.status_code, moved.json()["id"]) == (200, odd)
            trail = (await admin.ask("GET", f"/api/v1/audit?subject={quoted}")).json()["items"]
            assert [(entry["subject"], entry["reason"]) for entry in trail] == [(odd, odd)]
        assert (await admin.ask("GET", RULES)).json()["total"] == 3

    async def test_a_key_with_a_long_name_can_change_things(self, admin: Admin) -> None:
        made = (await admin.ask("POST", "/api/v1/keys", {"name": "n" * 128, "role": "editor"})).json()
        admin.keys["long"] = made["key"]
        moved = await admin.ask("PUT", "/api/v1/users/42/tier", {"tier": "gold"}, role="long")
        assert moved.status_code == 200


class TestRequests:
    @on_sqlite
    async def test_members_and_headers_are_there_once(self, admin: Admin) -> None:
        key = [*key_of(admin).items(), ("content-type", "application/json")]
        body = b'{"limit": 1, "window": "1s", "limit": 1000}'
        twice = await admin.client.put("/api/v1/rules/new", content=body, headers=key)
        assert (twice.status_code, "'limit' twice" in twice.text) == (400, True)
        for name in ("authorization", "host", "if-match", "x-reason"):
            headers = [*key, (name, '"1"'), (name, '"2"')]
            assert (await admin.client.get(RULES, headers=headers)).status_code == 400, name

    @on_sqlite
    async def test_odd_json_is_refused(self, admin: Admin) -> None:
        key = {**key_of(admin), "content-type": "application/json"}
        odd = (
            b"",
            b"{",
            b"nul",
            b"\xff\xfe",
            b'{"limit": NaN}',
            b'{"limit": 1e999}',
            b"[" * 200_000,
            b"{" * 9999,
            b"1" * 9999,
        )
        for body in odd:
            for path in ("/api/v1/rules/new", "/api/v1/users/42/tier", "/api/v1/tiers/gold"):
                answer = await admin.client.put(path, content=body, headers=key)
                assert answer.status_code == 400, (path, body[:20])
                assert answer.headers["content-type"] == "application/problem+json"
            assert (await admin.client.post("/api/v1/apply", content=body, headers=key)).status_code == 400
        assert await admin.catalog.revision() == 1

    @on_sqlite
    async def test_conditions(self, admin: Admin) -> None:
        """If-Match and If-None-Match mean what RFC 9110 says."""
        rule, path = {"limit": 1, "window": "1s"}, "/api/v1/rules/new"
        assert (await admin.ask("PUT", path, rule, if_match="*")).status_code == 412
        assert (await admin.ask("PUT", path, rule, if_match='"1"')).status_code == 412
        assert (await admin.ask("PUT", path, rule, if_none_match="*")).status_code == 201
        assert (await admin.ask("PUT", path, rule, if_none_match="*")).status_code == 412
        assert (await admin.ask("PUT", path, {**rule, "limit": 2}, if_match="*")).status_code == 200
        assert (await admin.ask("PUT", path, {**rule, "limit": 3}, if_match='W/"2"')).status_code == 200
        for odd in ("", '"x"', '"1", "2"', '"-1"', '"00"', '"99999999999"'):
            assert (await admin.ask("PUT", path, rule, if_match=odd)).status_code == 400, odd
        for odd in ("", '"3"'):
            assert (await admin.ask("PUT", path, rule, if_none_match=odd)).status_code == 400

    @on_sqlite
    async def test_methods(self, admin: Admin) -> None:
        head = await admin.ask("HEAD", RULES)
        assert (head.status_code, head.headers["content-type"]) == (200, "application/json")
        assert (await admin.ask("HEAD", RULES, role="")).status_code == 401
        assert (await admin.ask("OPTIONS", RULES, role="")).status_code == 401
        options = await admin.ask("OPTIONS", RULES, role="viewer")
        wrong = await admin.ask("PATCH", RULES)
        assert (options.status_code, wrong.status_code) == (204, 405)
        assert options.headers["allow"] == wrong.headers["allow"] == "GET, HEAD, OPTIONS, POST"
        for path, allowed in (
            ("rules/a", "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"),
            ("users/a/tier", "OPTIONS, PUT"),
        ):
            options = await admin.ask("OPTIONS", f"/api/v1/{path}", role="viewer")
            assert (options.status_code, options.headers["allow"]) == (204, allowed)
        detail = f"'{RULES}' accepts {wrong.headers['allow']}, not 'PATCH'"
        assert wrong.json()["detail"] == detail
        nowhere = await admin.ask("GET", "/api/v1/rule")
        assert nowhere.status_code == 404
        assert nowhere.json()["detail"] == "no such path: '/api/v1/rule'; /docs lists all paths"
        hidden = await admin.ask("GET", RULES, role="viewer", x_http_method_override="DELETE", x_method="PUT")
        assert hidden.status_code == 200
        assert (await admin.ask("POST", "/api/v1/rules/all-ip?_method=DELETE", {})).status_code == 405

    @on_sqlite
    async def test_no_way_of_writing_a_path_leads_past_the_key(self, admin: Admin) -> None:
        app = admin.client._transport.app  # type: ignore[attr-defined]
        statuses: list[int] = []

        async def send(message: Any) -> None:
            statuses.append(message.get("status", 0))

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        for path in (
            *("//api/v1/rules", "/api/v1//rules", "/api/v1/rules/", "/docs/../api/v1/rules", "/docs%2F..%2Fapi"),
            *("/api%2Fv1%2Frules", "/healthz/../api/v1/keys", "/healthz;/api/v1/keys", "/litestar", "/schema"),
            *("/API/v1/keys", "/./docs/x"),
        ):
            scope: dict[str, Any] = {
                "type": "http",
                "method": "GET",
                "path": path,
                "raw_path": path.encode(),
                "headers": [],
            }
            scope |= {"query_string": b"", "client": ("127.0.0.1", 1), "http_version": "1.1", "scheme": "http"}
            statuses.clear()
            await app(scope, receive, send)
            assert statuses[0] == 401, path

    @on_sqlite
    async def test_a_body_that_does_not_come_is_given_up(self, monkeypatch: pytest.MonkeyPatch, admin: Admin) -> None:
        monkeypatch.setattr(security, "BODY_WITHIN", 0.05)

        async def slow() -> Any:
            yield b"{"
            await asyncio.sleep(60)

        key = {**key_of(admin), "content-type": "application/json"}
        answer = await admin.client.put("/api/v1/rules/x", content=slow(), headers=key)
        assert answer.status_code == 408


class TestGuessing:
    @pytest.fixture(autouse=True)
    def _lasting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No guess is forgiven while a test runs."""
        monkeypatch.setattr(security, "FAILURES", "10/day")

    @on_sqlite
    async def test_known_keys_are_accepted_from_an_address_that_guesses(
        self, admin: Admin, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A key that was good from there before is; forwarded addresses are not believed; nothing logs a key."""
        caplog.set_level(logging.DEBUG)
        assert (await admin.ask("GET", RULES, role="viewer")).status_code == 200
        statuses = []
        for number in range(20):
            admin.keys["guess"] = f"hg_{number:012x}_{'s3cret' * 8}"
            answer = await admin.ask("GET", RULES, role="guess", x_forwarded_for=f"203.0.113.{number}")
            statuses.append(answer.status_code)
        assert statuses == [401] * 10 + [429] * 10
        assert int(answer.headers["retry-after"]) >= 1
        assert (await admin.ask("GET", RULES, role="editor")).status_code == 429
        assert (await admin.ask("GET", RULES, role="viewer")).status_code == 200
        assert "s3cret" not in caplog.text

    async def test_a_flood_of_keys_and_addresses_is_remembered_in_part(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And the addresses of a /64 are one."""
        monkeypatch.setattr(security, "REMEMBERED", 3)
        engine = AsyncEngine(from_data(DOCUMENT))
        app = in_file(engine, "the-operator-s-own-key")
        assert isinstance(app, Gatekeeper)

        async def asked(address: str, key: str) -> int:
            transport = httpx.ASGITransport(app, client=(address, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
                return (await client.get(RULES, headers={"authorization": f"Bearer {key}"})).status_code

        for number in range(9):
            assert await asked(f"192.0.2.{number}", "the-operator-s-own-key") == 200
        assert len(app._seen) == 3
        statuses = [await asked(f"2001:db8::{number:x}", "x" * 20) for number in range(12)]
        assert statuses == [401] * 10 + [429] * 2
        await engine.close()

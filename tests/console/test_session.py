"""Sessions of the console: their start and end, and their protection against other sites."""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from headgate.admin.tables import epoch_us
from tests.console.browsing import Browsing, Problems, assert_fits, log_in, pretend, send_key
from tests.console.planes import Plane, running_plane
from tests.server.process.service import SECONDS

COOKIE = "headgate_session"
FORM = {"content-type": "application/x-www-form-urlencoded"}
HOUR_US = 3_600_000_000


def token_of(page: Page) -> str:
    """Return the session of a page; empty if it has none."""
    return "".join(str(each.get("value")) for each in page.context.cookies() if each.get("name") == COOKIE)


def csrf_of(page: Page) -> str:
    return page.locator("input[name=csrf]").first.get_attribute("value") or ""


def send(plane: Plane, method: str, path: str, token: str, body: str = "", **headers: str) -> httpx.Response:
    """Send a request as a browser with this session would, except for `headers`."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    own = {**FORM, "cookie": f"{COOKIE}={token}", "accept": "text/html"}
    return httpx.request(method, f"{plane.address}{path}", content=body, headers={**own, **sent}, timeout=SECONDS)


def is_in(plane: Plane, token: str) -> bool:
    """Return whether a session is active."""
    answer = send(plane, "GET", "/about", token)
    assert answer.status_code in {200, 303}, answer.text
    return answer.status_code == 200


def log_in_by_form(plane: Plane, role: str) -> str:
    """Log in with a key of a role, and return the token of the session."""
    return send(plane, "POST", "/login", "", f"key={plane.key(role)}").cookies[COOKIE]


def new_session(plane: Plane, role: str) -> tuple[str, str]:
    """Log in without a browser; return the token of the session, and that of its forms."""
    token = log_in_by_form(plane, role)
    found = re.search('name="csrf" value="([^"]+)"', send(plane, "GET", "/about", token).text)
    assert found
    return token, found[1]


@pytest.fixture
def own(plane: Plane) -> dict[str, Any]:
    """A key that this test may revoke, and log out everywhere."""
    return plane.new_key("editor")


class TestLogIn:
    def test_a_session_is_one_that_scripts_and_other_sites_cannot_have(self, plane: Plane, browsing: Browsing) -> None:
        page, key = browsing.open(), plane.key("viewer")
        log_in(page, key)
        expect(page.get_by_role("navigation").first).to_be_visible()
        (cookie,) = page.context.cookies()
        kept = {name: cookie.get(name) for name in ("name", "httpOnly", "sameSite", "path", "secure")}
        assert kept == {"name": COOKIE, "httpOnly": True, "sameSite": "Strict", "path": "/", "secure": False}
        assert 0 < cookie.get("expires", 0) <= time.time() + 12 * 3600 + 60
        assert len(token_of(page)) >= 32
        assert key not in token_of(page) + page.content() + page.url + plane.complained + plane.said

    def test_a_cookie_goes_over_tls_alone_where_the_log_in_did(self, plane: Plane) -> None:
        host = plane.address.removeprefix("http://")
        behind = {"origin": f"https://{host}", "sec_fetch_site": "same-origin"}
        answer = send(plane, "POST", "/login", "", f"key={plane.key('viewer')}", **behind)
        assert answer.status_code == 303
        assert "secure" in answer.headers["set-cookie"].lower()

    def test_an_invalid_key_and_one_of_the_decision_plane_get_no_session(self, plane: Plane, page: Page) -> None:
        for key in ("hg_0123456789ab_" + "x" * 43, "<script>alert(1)</script>", "ключ" * 999):
            send_key(page, key)
            assert page.url.endswith("/login")
            expect(page.get_by_role("alert")).to_contain_text("this key is invalid")
            expect(page.locator("input[name=key]")).to_have_value("")
        send_key(page, plane.key("check"))
        expect(page.get_by_role("alert")).to_contain_text("decision plane")
        assert not page.context.cookies()

    def test_it_leads_to_the_requested_page(self, plane: Plane, page: Page) -> None:
        page.goto("/rules?offset=0")
        assert "/login" in page.url
        page.locator("input[name=key]").fill(plane.key("viewer"))
        page.keyboard.press("Enter")
        page.wait_for_url("**/rules?offset=0")

    def test_it_leads_nowhere_else(self, plane: Plane) -> None:
        others = "//192.0.2.1/", "http://192.0.2.1/", "/\\192.0.2.1", "javascript:alert(1)", "/\t/192.0.2.1", "/login"
        for place in others:
            form = httpx.QueryParams({"key": plane.key("viewer"), "next": place})
            answer = send(plane, "POST", "/login", "", str(form))
            assert (answer.status_code, answer.headers["location"]) == (303, "/"), place
            asked = httpx.QueryParams({"next": place})
            answer = send(plane, "GET", f"/login?{asked}", "")
            assert answer.status_code == 400 or place not in answer.text or place == "/login"

    def test_a_token_chosen_by_an_attacker_is_no_session(self, plane: Plane, page: Page) -> None:
        page.context.add_cookies([{"name": COOKIE, "value": "chosen" * 8, "url": plane.address}])
        page.goto("/about")
        assert "/login" in page.url
        log_in(page, plane.key("viewer"))
        assert token_of(page) != "chosen" * 8
        assert is_in(plane, token_of(page))
        assert not is_in(plane, "chosen" * 8)

    def test_a_key_has_so_many_sessions_and_ends_none_of_another_and_guessing_is_slowed_down(
        self, browsing: Browsing
    ) -> None:
        """However often a viewer logs in, no table grows, and no other user is logged out."""
        constants = {"headgate.admin.security.FAILURES": "10/day", "headgate.admin.sessions.MOST_OF_KEY": 3}
        with running_plane(constants=constants) as plane:
            others = [log_in_by_form(plane, key) for key in ("viewer", "admin", "admin")]
            tokens = [log_in_by_form(plane, "admin") for _ in range(4)]
            assert [is_in(plane, token) for token in tokens] == [False, True, True, True]
            assert [is_in(plane, token) for token in others] == [True, False, False]
            inside = browsing.open(at=plane)
            log_in(inside, plane.key("viewer"))
            unused = plane.new_key("viewer")["key"]
            statuses = [send(plane, "POST", "/login", "", f"key=guess{number}").status_code for number in range(12)]
            assert statuses == [401] * 10 + [429] * 2
            page = browsing.open(at=plane)
            send_key(page, unused)
            expect(page.get_by_role("alert")).to_contain_text("too many")
            inside.goto("/about")
            assert inside.url.endswith("/about")

    def test_so_it_is_without_a_database(self, in_file: Plane) -> None:
        tokens = [log_in_by_form(in_file, "admin") for _ in range(4)]
        assert [is_in(in_file, token) for token in tokens] == [False, True, True, True]
        in_file.sessions.clear()  # which have ended

    def test_a_browser_over_its_limit_gets_a_page(self, browsing: Browsing) -> None:
        """A log-in counts among the writes of its key."""
        with running_plane("--admin-writes", "3/day", "--admin-reads", "5/day") as plane:
            page = browsing.open("admin", at=plane)
            form = f"key={plane.key('admin')}"
            assert [send(plane, "POST", "/login", "", form).status_code for _ in range(3)] == [303] * 2 + [429]
            answers = [page.goto("/about") for _ in range(5)]
            assert [answer.status for answer in answers if answer][-1] == 429
            expect(page.get_by_role("heading", level=1)).to_have_text("Too Many Requests")
            expect(page.locator("main")).to_contain_text("the limit of this key is 5/day; try again in")
            assert_fits(page)
            outside = browsing.open(at=plane)
            send_key(outside, plane.key("admin"))
            expect(outside.get_by_role("alert")).to_contain_text("the limit of this key is 3/day; try again in")
            assert not outside.context.cookies()


class TestHeaders:
    def test_headers_of_all_responses_keep_other_sites_away(self, plane: Plane) -> None:
        """Another port of this host is another origin, but the same site: the cookie goes along."""
        token, _ = new_session(plane, "viewer")
        for path in ("/", "/rules", "/nothing", "/login", "/console.js", "/api/v1/rules", "/docs", "/logout"):
            headers = send(plane, "GET", path, token).headers
            assert headers["cross-origin-opener-policy"] == "same-origin", path
            assert headers["cross-origin-resource-policy"] == "same-origin", path
            assert headers["x-content-type-options"] == "nosniff", path
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy, path
            assert "frame-ancestors 'none'" in policy, path
            assert "unsafe" not in policy, path
            if path not in {"/console.js", "/docs"}:
                assert headers["cache-control"] == "no-store", path


class TestEnd:
    def test_log_out_ends_the_session_for_good(self, plane: Plane, page: Page) -> None:
        log_in(page, plane.key("viewer"))
        page.goto("/rules")
        token = token_of(page)
        log_out(page)
        assert not page.context.cookies()
        assert not is_in(plane, token)
        page.go_back()
        page.wait_for_url("**/login**")

    def test_log_out_everywhere_ends_all_of_a_key_and_none_of_another(
        self, plane: Plane, browsing: Browsing, own: dict[str, Any]
    ) -> None:
        pages = [browsing.open() for _ in range(3)]
        for each, key in zip(pages, (own["key"], own["key"], plane.key("viewer")), strict=True):
            log_in(each, key)
        log_out(pages[0], everywhere=True)
        assert [is_in(plane, token_of(each)) for each in pages] == [False, False, True]
        pages[1].goto("/rules")
        assert "/login" in pages[1].url

    def test_a_key_that_is_revoked_ends_its_sessions(self, plane: Plane, page: Page, own: dict[str, Any]) -> None:
        log_in(page, own["key"])
        plane.ask("DELETE", f"/keys/{own['id']}")
        page.goto("/rules")
        assert "/login" in page.url

    def test_time_ends_it(self, plane: Plane, page: Page, own: dict[str, Any]) -> None:
        for column, hours in (("seen_at", 1), ("created_at", 12)):
            log_in(page, own["key"])
            for passed, where in ((hours - 0.5, "/rules"), (hours, "/login")):
                with closing(sqlite3.connect(plane.file, timeout=SECONDS)) as connection, connection:
                    aged = f"UPDATE sessions SET {column} = ? WHERE key_id = ?"  # noqa: S608
                    assert connection.execute(aged, (epoch_us() - int(passed * HOUR_US), own["id"])).rowcount
                page.goto("/rules")
                assert where in page.url.partition("?")[0], (column, passed)


class TestOtherSites:
    """SameSite keeps no other port of a host away: another program of this machine is as near as a page of ours."""

    def test_a_form_of_another_site_does_nothing(self, plane: Plane, browsing: Browsing, problems: Problems) -> None:
        page = browsing.open("viewer")
        page.goto("/about")
        csrf = csrf_of(page)
        for site in ("http://127.0.0.1:9", "http://evil.example"):
            problems.allow(site)
            for field in ("", f"<input name=csrf value='{csrf}'>"):
                html = f"<form method=post action='{plane.address}/logout'>{field}</form>"
                html += "<script>document.forms[0].submit()</script>"
                pretend(page, f"{site}/", html)
                with page.expect_response("**/logout") as answered:
                    page.goto(f"{site}/")
                assert answered.value.status in {200, 303, 403}, site  # without a cookie it is sent to log in
        assert is_in(plane, token_of(page))

    def test_another_site_reads_nothing_and_frames_no_page(
        self, plane: Plane, browsing: Browsing, problems: Problems
    ) -> None:
        page, site = browsing.open("admin"), "http://127.0.0.1:9"
        problems.allow(site)
        problems.expect(r"CORS policy|ERR_FAILED|status 401")
        problems.expect("frame-ancestors|ERR_BLOCKED_BY_RESPONSE")
        html = f"<iframe src='{plane.address}/rules'></iframe><iframe src='{plane.address}/login'></iframe>"
        pretend(page, f"{site}/", html)
        page.goto(f"{site}/")
        assert [frame.url for frame in page.frames[1:]] == ["chrome-error://chromewebdata/"] * 2
        for path in ("/", "/rules", "/api/v1/keys"):
            asked = "url => fetch(url, {credentials: 'include'}).then(answer => answer.text(), () => 'refused')"
            assert page.evaluate(asked, plane.address + path) == "refused"

    def test_requests_from_other_sites_are_refused_even_with_the_token(self, plane: Plane) -> None:
        (token, csrf), key = new_session(plane, "viewer"), plane.key("viewer")
        sites = [{"sec_fetch_site": site} for site in ("cross-site", "same-site", "odd")]
        for headers in (*sites, *({"origin": each} for each in ("http://evil.example", "http://127.0.0.1:9", "null"))):
            for path, session, body in (("/logout", token, f"csrf={csrf}"), ("/login", "", f"key={key}")):
                assert send(plane, "POST", path, session, body, **headers).status_code == 403, (path, headers)
        assert is_in(plane, token)


class TestForms:
    def test_a_form_needs_the_token_of_its_own_session(self, plane: Plane) -> None:
        (token, csrf), (_, other) = new_session(plane, "viewer"), new_session(plane, "editor")
        assert csrf not in {other, token}
        for body in ("", "csrf=", "csrf=x", f"csrf={other}", "csrf=%FF", f"csrf=x&csrf={other}"):
            answer = send(plane, "POST", "/logout", token, body)
            assert answer.status_code in {400, 403}, body
            assert answer.headers["content-type"].startswith("text/html")
        for kind in ("text/plain", "application/json", "multipart/form-data; boundary=x", ""):
            answer = send(plane, "POST", "/logout", token, f"csrf={csrf}", content_type=kind)
            assert answer.status_code == 415, kind
        assert send(plane, "POST", f"/logout?csrf={csrf}", token).status_code == 403
        assert is_in(plane, token)

    def test_nothing_but_a_form_changes_anything(self, plane: Plane) -> None:
        token, _ = new_session(plane, "admin")
        assert send(plane, "GET", "/logout", token).status_code == 405
        assert send(plane, "HEAD", "/about", token).status_code == 200
        for method in ("PUT", "PATCH", "DELETE", "TRACE"):
            assert send(plane, method, "/about", token).status_code in {403, 405, 415}
        assert is_in(plane, token)

    def test_the_rest_api_takes_no_cookie(self, plane: Plane) -> None:
        token, csrf = new_session(plane, "admin")
        for headers in ({}, {"sec_fetch_site": "same-origin"}, {"x_csrf_token": csrf}):
            for method, path in (("GET", "rules"), ("GET", "keys"), ("PUT", "rules/x"), ("POST", "apply")):
                answer = send(plane, method, f"/api/v1/{path}", token, f"csrf={csrf}", **headers)
                assert answer.status_code == 401
                assert answer.headers["content-type"] == "application/problem+json"


def log_out(page: Page, *, everywhere: bool = False) -> None:
    page.goto("/about")
    me = page.locator("details.me")
    me.locator("summary").click()
    me.get_by_role("button", name="Log out everywhere" if everywhere else "Log out", exact=True).click()
    page.wait_for_url("**/login")

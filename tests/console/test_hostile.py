"""Names, ids and reasons with markup or invisible characters, on every page that shows them.

A payload that became markup would ask for an image, or be reported by the Content-Security-Policy: either fails a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from urllib.parse import quote, urlencode, urljoin, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.console.browsing import Browsing, assert_fits, pages
from tests.console.planes import Plane, running_plane
from tests.servers import until

MARKUP = "<img src=x onerror=alert(1)>"
PAYLOAD = f"'\"></title></script>{MARKUP}{{{{7*7}}}}&lt;i&gt;"
TURNED, TURN = "user-\u202e12-nimda", "\u202e"
LONG = "x" * 500
WORST = ("-1", "0", "99999999999999999999", "1e999", "", "\x00", "\x85", TURN, "%", "../..", PAYLOAD, "x" * 2000)
USER = f"/who?user={quote(PAYLOAD, safe='')}"
RAISED = "raised"
RAISING = f"{USER}&raise={RAISED}"
_FIELDS = """forms => forms.filter(form => form.method === 'post').flatMap(form => {
    const typed = [...form.querySelectorAll('input:not([type=hidden]), textarea')].map(each => each.name)
    const buttons = [...form.querySelectorAll('button[name], button[formaction]'), {}]
    return buttons.map(button => [
        button.getAttribute?.('formaction') || form.getAttribute('action') || location.href,
        [...new FormData(form), ...(button.name ? [[button.name, button.value]] : [])], typed])})"""


@pytest.fixture(scope="module")
def hostile() -> Iterator[Plane]:
    """A service in which every text was chosen by an attacker."""
    with running_plane() as plane:
        rule, user = (
            plane.rule(RAISED, name=PAYLOAD, limit=1, endpoint="/**", when={"region": PAYLOAD}),
            quote(PAYLOAD, safe=""),
        )
        plane.rule(limit=1, endpoint="/**", dimension="user", name="n" * 200)
        plane.ask("PUT", f"/tiers/{user}", {rule: {"limit": 4}}, X_Reason=PAYLOAD)
        plane.ask("PUT", f"/users/{user}/tier", {"tier": PAYLOAD}, X_Reason=PAYLOAD)
        plane.ask("POST", f"/users/{user}/override", {"rule_id": rule, "limit": 3}, X_Reason=PAYLOAD)
        plane.ask("PUT", f"/users/{LONG}/tier", {"tier": PAYLOAD}, X_Reason=LONG)
        plane.ask("POST", "/keys", {"name": PAYLOAD, "role": "viewer"})
        plane.ask("POST", "/consumers", {"name": PAYLOAD, "tier": PAYLOAD})
        plane.ask("POST", "/consumers", {"name": "c" * 100, "tier": PAYLOAD})
        for caller in (PAYLOAD, TURNED, LONG):
            body = {"principal": {"user": caller}, "endpoint": f"/{caller}", "attributes": {"region": PAYLOAD}}
            for _ in range(5):
                plane.post("/api/v1/rate-limit/check", body)
        until(lambda: plane.ask("GET", "/refusals").json()["total"] >= 3, "refusals are written")
        yield plane


def assert_harmless(page: Page, url: str) -> None:
    """Assert that the page shows what is hostile as text, if at all."""
    assert page.locator("[onerror], img[src=x], script:not([src]), i").count() == 0, url
    content = page.content()
    assert MARKUP not in content, url
    assert TURN not in content, url


def test_hostile_text_is_no_markup_fits_and_is_refused_with_a_page(hostile: Plane, browsing: Browsing) -> None:
    """On every page; with every parameter of links and forms, and every field of forms."""
    page, shown = browsing.open("admin", at=hostile), set[str]()
    queries, forms = set[tuple[str, str]](), dict[tuple[str, ...], tuple[str, list[tuple[str, str]], list[str]]]()
    user = quote(PAYLOAD, safe="")
    single = [USER, RAISING, f"/who?q={user}", f"/who?user={LONG}", f"/try?user={user}"]
    for url in chain(pages(page), single):
        if url in single:
            page.goto(url)
        assert_harmless(page, url)
        if PAYLOAD in page.locator("main").inner_text():
            shown.add(urlsplit(url).path)
        parts = urlsplit(url)
        names = {pair.partition("=")[0] for pair in parts.query.split("&")} - {""}
        names |= set(
            page.locator("form[method=get] [name], form:not([method]) [name]").evaluate_all("a => a.map(e => e.name)")
        )
        queries |= {(parts.path, name) for name in names}
        for action, fields, typed in page.locator("form").evaluate_all(_FIELDS):
            target = urljoin(f"{hostile.address}{url}", action)
            kind = (urlsplit(target).path, *(value for name, value in fields if name not in typed and name == "do"))
            forms.setdefault(kind, (target, fields, typed))
        assert_fits(page)
    assert shown >= {"/audit", "/keys", "/consumers", "/consumer", "/revisions"}, shown
    assert len(queries) > 5
    for path, name in queries:
        for worst in WORST:
            assert_query_is_answered(page, f"{path}?{urlencode({name: worst})}")
    del forms["/logout",]
    for target, fields, typed in forms.values():
        for worst in WORST:
            form = {name: worst if name in typed else value for name, value in fields}
            assert_form_is_answered(page, target, form)
    wanted = {("/rule/edit", "save"), ("/rule/preview",), ("/keys",), ("/consumers",), ("/who/override",)}
    assert forms.keys() >= wanted, forms.keys()


def assert_query_is_answered(page: Page, url: str) -> None:
    answer = page.context.request.get(url, headers={"accept": "text/html"})
    text = answer.text()
    assert answer.status in {200, 400, 404, 503}, (url, answer.status, text)
    assert MARKUP not in text, url
    assert TURN not in text, url
    kind = answer.headers["content-type"]
    assert kind.startswith("text/html") or answer.status == 400, url


def assert_form_is_answered(page: Page, target: str, form: dict[str, str]) -> None:
    """And the response has no markup of others."""
    sent: dict[str, str | float | bool] = {**form}
    answer = page.context.request.post(target, form=sent, headers={"accept": "text/html"}, max_redirects=0)
    assert answer.status < 500, (target, form, answer.text())
    assert MARKUP not in answer.text(), (target, answer.text())
    typed_again = rf'value="{TURN}"|<textarea[^>]*>\n{TURN}</textarea>'
    assert TURN not in re.sub(typed_again, "", answer.text()), target


def test_unknown_paths_have_a_page_with_navigation(hostile: Plane, browsing: Browsing) -> None:
    page = browsing.open("viewer", at=hostile)
    for path in ("/nothing", f"/{quote(PAYLOAD, safe='')}", "/revision", "/login/x", "/who/../x"):
        answer = page.goto(f"{hostile.address}{path}")
        assert answer, path
        assert answer.status in {400, 404}, path
        expect(page.get_by_role("heading", level=1), path).to_be_visible()
        expect(page.get_by_role("navigation").first, path).to_be_visible()
        assert_harmless(page, path)


def test_requests_cannot_write_into_the_log_in_page(page: Page) -> None:
    page.set_extra_http_headers({"x-request-id": PAYLOAD, "user-agent": PAYLOAD})
    for path in (f"/login?next=/{quote(PAYLOAD, safe='')}", f"/{quote(PAYLOAD, safe='')}"):
        page.goto(path)
        assert "/login" in page.url
        assert_harmless(page, path)
        page.locator("input[name=key]").fill(PAYLOAD)
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_be_visible()
        assert_harmless(page, path)

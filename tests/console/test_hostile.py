"""Names, ids and reasons that try to be markup, or to look like something else, on every page that shows them.

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
    """A service where every text that may be chosen was chosen by somebody who means harm."""
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
            asked = {"principal": {"user": caller}, "endpoint": f"/{caller}", "attributes": {"region": PAYLOAD}}
            for _ in range(5):
                plane.post("/api/v1/rate-limit/check", asked)
        until(lambda: plane.ask("GET", "/refusals").json()["total"] >= 3, "refusals are written")
        yield plane


def assert_harmless(page: Page, url: str) -> None:
    """Assert that the page shows what is hostile as text, if at all."""
    assert page.locator("[onerror], img[src=x], script:not([src]), i").count() == 0, url
    content = page.content()
    assert MARKUP not in content, url
    assert TURN not in content, url


def test_nothing_is_markup_and_all_of_it_fits(hostile: Plane, browsing: Browsing) -> None:
    page, shown = browsing.open("admin", at=hostile), set[str]()
    user = quote(PAYLOAD, safe="")
    single = [
        f"/who?user={user}",
        f"/who?q={user}",
        f"/who?user={LONG}",
        f"/try?user={user}",
    ]
    for url in chain(pages(page), single):
        if url in single:
            page.goto(url)
        assert_harmless(page, url)
        if PAYLOAD in page.locator("main").inner_text():
            shown.add(urlsplit(url).path)
        assert_fits(page)
    assert shown >= {"/audit", "/keys", "/consumers", "/consumer", "/revisions"}, shown


def test_a_page_says_what_is_wrong_with_a_query(hostile: Plane, browsing: Browsing) -> None:
    """Every parameter of every link and of every form that asks."""
    page, asked = browsing.open("admin", at=hostile), set[tuple[str, str]]()
    for url in pages(page):
        parts = urlsplit(url)
        names = {pair.partition("=")[0] for pair in parts.query.split("&")} - {""}
        names |= set(
            page.locator("form[method=get] [name], form:not([method]) [name]").evaluate_all("a => a.map(e => e.name)")
        )
        asked |= {(parts.path, name) for name in names}
    assert len(asked) > 5
    for path, name in asked:
        for worst in WORST:
            url = f"{path}?{urlencode({name: worst})}"
            answer = page.context.request.get(url, headers={"accept": "text/html"})
            text = answer.text()
            assert answer.status in {200, 400, 404, 503}, (url, answer.status, text)
            assert MARKUP not in text, url
            assert TURN not in text, url
            kind = answer.headers["content-type"]
            assert kind.startswith("text/html") or answer.status == 400, url


def test_a_form_says_what_is_wrong_with_its_fields(hostile: Plane, browsing: Browsing) -> None:
    """And nobody's markup is in what it says."""
    page, tried = browsing.open("admin", at=hostile), set[tuple[str, ...]]()
    for url in chain(pages(page), [USER, RAISING]):
        if url in {USER, RAISING}:
            page.goto(url)
        for action, fields, typed in page.locator("form").evaluate_all(_FIELDS):
            target = urljoin(f"{hostile.address}{url}", action)
            kind = (urlsplit(target).path, *(value for name, value in fields if name not in typed and name == "do"))
            if kind in tried or kind[0] == "/logout":
                continue
            tried.add(kind)
            for worst in WORST:
                form = {name: worst if name in typed else value for name, value in fields}
                answer = page.context.request.post(target, form=form, headers={"accept": "text/html"}, max_redirects=0)
                assert answer.status < 500, (target, worst, answer.text())
                assert MARKUP not in answer.text(), (target, answer.text())
                typed_again = rf'value="{TURN}"|<textarea[^>]*>\n{TURN}</textarea>'
                assert TURN not in re.sub(typed_again, "", answer.text()), target
    assert tried >= {("/rule/edit", "save"), ("/rule/preview",), ("/keys",), ("/consumers",), ("/who/override",)}, tried


@pytest.mark.parametrize("path", ["/nothing", f"/{quote(PAYLOAD, safe='')}", "/revision", "/login/x", "/who/../x"])
def test_what_is_not_there_is_a_page_that_leads_on(hostile: Plane, browsing: Browsing, path: str) -> None:
    page = browsing.open("viewer", at=hostile)
    answer = page.goto(f"{hostile.address}{path}")
    assert answer
    assert answer.status in {400, 404}
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("navigation").first).to_be_visible()
    assert_harmless(page, path)


def test_who_asks_cannot_write_into_the_log_in_page(page: Page) -> None:
    page.set_extra_http_headers({"x-request-id": PAYLOAD, "user-agent": PAYLOAD})
    for path in (f"/login?next=/{quote(PAYLOAD, safe='')}", f"/{quote(PAYLOAD, safe='')}"):
        page.goto(path)
        assert "/login" in page.url
        assert_harmless(page, path)
        page.locator("input[name=key]").fill(PAYLOAD)
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_be_visible()
        assert_harmless(page, path)

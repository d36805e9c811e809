"""What all pages have in common: the test follows every link of the console, to one page of each kind."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

import pytest
from playwright.sync_api import expect

from tests.console.browsing import Browsing, assert_accessible, assert_fits, pages
from tests.console.planes import Plane

MAIN = {"/", "/who", "/try", "/rules", "/revisions", "/nodes", "/consumers", "/audit", "/about"}
_FORMS = "all => all.filter(each => each.method === 'post').map(each => each.getAttribute('action') || location.href)"
_IDS = "all => all.map(each => each.id).filter((id, index, ids) => ids.indexOf(id) !== index)"


@pytest.fixture(scope="module", autouse=True)
def _used(plane: Plane) -> None:
    """Something of everything, so that no page is empty."""
    rule = plane.rule(limit=2)
    plane.ask("PUT", "/tiers/gold", {rule: {"limit": 4}})
    plane.ask("PUT", "/users/maria/tier", {"tier": "gold"})
    plane.ask("POST", "/users/maria/override", {"rule_id": rule, "limit": 3})
    plane.ask("POST", "/consumers", {"name": "shop", "tier": "gold"})
    for user in ("maria", "maria", "maria", "maria", "jan"):
        plane.check(user, f"/{rule}")
    tried = plane.rule(shadow=True)
    for _ in range(100):  # by no rule, and so often that they are hot
        plane.check("visitor", f"/{tried}")


@pytest.mark.parametrize("role", ["viewer", "editor", "admin"])
def test_all_that_a_role_is_shown_works(browsing: Browsing, role: str) -> None:
    """Without JavaScript, too, where a page has the same content."""
    page = browsing.open(role, javascript=role != "editor")
    titles = {url: page.title() for url in pages(page)}
    assert {urlsplit(url).path for url in titles} >= MAIN | ({"/keys"} if role == "admin" else set())
    assert all(title.endswith("Headgate") and len(title) > len(" · Headgate") for title in titles.values()), titles
    main = [titles[path] for path in MAIN]
    assert len(set(main)) == len(main), titles


def test_every_page_is_for_everybody(browsing: Browsing) -> None:
    page, looked_at = browsing.open("admin"), set[str]()
    for url in pages(page):
        expect(page.get_by_role("heading", level=1), url).to_have_count(1)
        expect(page.locator("nav [aria-current=page]"), url).to_have_count(1)
        expect(page.locator("main"), url).to_have_count(1)
        assert not page.locator("[id]").evaluate_all(_IDS), url
        if urlsplit(url).path not in looked_at:  # what a query changes is seldom how a page is made
            looked_at.add(urlsplit(url).path)
            assert_accessible(page)
            assert_fits(page)


def test_the_first_tab_leads_to_the_content(browsing: Browsing) -> None:
    page = browsing.open("viewer")
    for url in MAIN:
        page.goto(url)
        page.locator("body").evaluate("() => document.activeElement.blur()")  # where the page has put the focus
        page.keyboard.press("Tab")
        link = page.locator(":focus")
        expect(link, url).to_have_text("Skip to the content")
        expect(link).to_be_in_viewport()
        page.keyboard.press("Enter")
        expect(page.locator("main"), url).to_be_focused()


def test_no_form_works_without_the_token_of_its_session(plane: Plane, browsing: Browsing) -> None:
    page, tried = browsing.open("admin"), set[str]()
    for url in pages(page):
        forms = page.locator("form").evaluate_all(_FORMS)
        without = page.locator("form[method=post]:not(:has(input[type=hidden][name=csrf][value]))")
        expect(without, url).to_have_count(0)
        for action in {urljoin(f"{plane.address}{url}", form) for form in forms} - tried:
            tried.add(action)
            headers = {"content-type": "application/x-www-form-urlencoded", "accept": "text/html"}
            for body in ("", "csrf=x"):
                answer = page.context.request.post(action, data=body, headers=headers)
                assert answer.status == 403, (action, answer.status, answer.text())
    assert len(tried) > 3

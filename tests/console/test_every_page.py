"""What all pages have in common: the test follows every link of the console, to one page of each kind."""

from __future__ import annotations

from urllib.parse import urlencode, urljoin, urlsplit

import pytest
from playwright.sync_api import Page, expect

from headgate.admin.console import handlers
from headgate.admin.keys import KeyRole
from tests.console.browsing import Browsing, assert_accessible, assert_fits, pages
from tests.console.planes import Plane
from tests.console.test_session import new_session, send

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


@pytest.mark.parametrize("role", ["viewer", "editor"])
def test_all_that_a_role_is_shown_works(browsing: Browsing, role: str) -> None:
    """Without JavaScript, too, where a page has the same content."""
    page, titles = browsing.open(role, javascript=role != "editor"), dict[str, str]()
    for url in pages(page):
        titles[url] = page.title()
        if role == "viewer":
            expect(page.locator("main form[method=post]"), url).to_have_count(0)
    assert_titled(titles, MAIN)


def assert_titled(titles: dict[str, str], paths: set[str]) -> None:
    assert {urlsplit(url).path for url in titles} >= paths
    assert all(title.endswith("Headgate") and len(title) > len(" · Headgate") for title in titles.values()), titles
    main = [titles[path] for path in paths]
    assert len(set(main)) == len(main), titles


def test_every_page_is_for_everybody_and_no_form_works_without_the_token_of_its_session(
    plane: Plane, browsing: Browsing
) -> None:
    page, looked_at, tried, titles = browsing.open("admin"), set[str](), set[str](), dict[str, str]()
    for url in pages(page):
        titles[url] = page.title()
        expect(page.get_by_role("heading", level=1), url).to_have_count(1)
        expect(page.locator("nav [aria-current=page]"), url).to_have_count(1)
        expect(page.locator("main"), url).to_have_count(1)
        assert not page.locator("[id]").evaluate_all(_IDS), url
        without = page.locator("form[method=post]:not(:has(input[type=hidden][name=csrf][value]))")
        expect(without, url).to_have_count(0)
        forms = page.locator("form").evaluate_all(_FORMS)
        if urlsplit(url).path not in looked_at:  # what a query changes is seldom how a page is made
            looked_at.add(urlsplit(url).path)
            assert_accessible(page)
            assert_fits(page)
            assert_first_tab_leads_to_content(page)
        for action in {urljoin(f"{plane.address}{url}", form) for form in forms} - tried:
            tried.add(action)
            headers = {"content-type": "application/x-www-form-urlencoded", "accept": "text/html"}
            for body in ("", "csrf=x"):
                answer = page.context.request.post(action, data=body, headers=headers)
                assert answer.status == 403, (action, answer.status, answer.text())
    assert len(tried) > 3
    assert_titled(titles, MAIN | {"/keys"})


def test_a_role_is_refused_the_routes_of_others(plane: Plane) -> None:
    """Even with the token of its session."""
    (router, *_) = handlers()
    routes = {
        (method, route.path): handler.opt["role"]
        for route in router.routes
        for handler in route.route_handlers
        for method in handler.http_methods
        if method in {"GET", "POST"}
    }
    for role in (KeyRole.VIEWER, KeyRole.EDITOR):
        token, csrf = new_session(plane, role)
        refused = [each for each, needed in routes.items() if not role.includes(needed)]
        assert len(refused) >= (4 if role == KeyRole.EDITOR else 20)
        for method, path in refused:
            body = urlencode({"csrf": csrf, "id": "x", "name": "x"}) if method == "POST" else ""
            answer = send(plane, method, f"{path}?id=x&n=1&user=x", token, body)
            assert answer.status_code == 403, (role, method, path)


def assert_first_tab_leads_to_content(page: Page) -> None:
    page.locator("body").evaluate("() => document.activeElement.blur()")  # where the page has put the focus
    page.keyboard.press("Tab")
    link = page.locator(":focus")
    expect(link, page.url).to_have_text("Skip to the content")
    expect(link).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main"), page.url).to_be_focused()

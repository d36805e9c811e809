"""The API references of both planes, in a browser: they are read, searched, and tried with a key."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, Response, expect

from tests.console.browsing import Browsing, Problems, assert_accessible, assert_fits
from tests.console.planes import ADMIN_KEY, Plane

STORED = "JSON.stringify([localStorage.length, sessionStorage.length, document.cookie])"


def opened(page: Page, url: str) -> Page:
    page.goto(url)
    expect(page.locator(".opblock").first).to_be_visible()
    return page


def authorize(page: Page, key: str) -> None:
    page.get_by_role("button", name="Authorize").click()
    entered = page.locator(".auth-container input").first
    expect(entered).to_have_attribute("type", "password")
    entered.fill(key)
    page.locator(".auth-container button.authorize").first.click()
    page.locator("button.btn-done").first.click()


def try_out(operation: Locator) -> None:
    operation.locator(".opblock-summary-control").click()
    operation.get_by_role("button", name="Try it out").click()


def executed(page: Page, operation: Locator) -> Response:
    """Execute an operation with its example."""
    with page.expect_response(lambda answer: "/api/v1/" in answer.url) as answered:
        operation.get_by_role("button", name="Execute").click()
    expect(operation.locator(".live-responses-table")).to_be_visible()
    return answered.value


def test_operations_are_searched_and_reached_by_keyboard_and_by_address(browsing: Browsing, problems: Problems) -> None:
    """And the page has the colours of the system."""
    problems.expect("escaping deep link whitespace with `_`")  # which may be a name's own
    page = opened(browsing.open(color_scheme="light"), "/docs")
    expect(page).to_have_title("Headgate: admin API")
    assert not page.evaluate("document.documentElement.classList.contains('dark-mode')")
    search, count = page.get_by_role("searchbox", name="Search"), page.locator(".bar output")
    total = int(count.inner_text().split()[0])
    assert total > 40
    search.fill("MERGE patch rule")  # in a description only
    expect(page.locator(".opblock-summary-path")).to_contain_text(["/api/v1/rules/{rule_id}", "/api/v1/tiers/{name}"])
    search.fill("audit verify")
    expect(count).to_have_text("1 operation")
    expect(page.locator(".opblock")).to_have_count(1)
    search.fill("nothing has this")
    expect(count).to_have_text("0 operations")
    search.fill("")
    expect(page.locator(".opblock")).to_have_count(total)
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_class("dark-mode")
    page.get_by_role("navigation", name="Groups").get_by_role("link", name="Audit").press("Enter")
    expect(page).to_have_url(re.compile("#operations-tag-Audit$"))
    control = page.locator("#operations-Audit-list_audit .opblock-summary-control")
    control.press("Enter")
    expect(control).to_have_attribute("aria-expanded", "true")
    expect(page).to_have_url(re.compile("#/Audit/list_audit$"))
    page.reload()
    expect(control).to_have_attribute("aria-expanded", "true")
    expect(page.locator("html")).to_have_class("dark-mode")
    page.locator(".models .models-control").press("Enter")
    expect(page.locator(".models")).to_contain_text("stored_rule")


def test_an_operation_needs_a_key_which_is_neither_kept_nor_shown(page: Page, problems: Problems) -> None:
    problems.expect("status 401: .*/api/v1/rules")
    opened(page, "/docs")
    operation = page.locator("#operations-Rules-list_rules")
    try_out(operation)
    assert executed(page, operation).status == 401
    expect(page.locator(".live-responses-table")).to_contain_text("a key is required")
    authorize(page, ADMIN_KEY)
    answer = executed(page, operation)
    assert (answer.status, answer.request.headers["authorization"]) == (200, f"Bearer {ADMIN_KEY}")
    expect(operation.locator(".curl-command")).to_contain_text("Authorization: Bearer KEY")
    assert ADMIN_KEY not in page.inner_text("body")
    assert page.evaluate(STORED) == '[0,0,""]'
    assert_accessible(page)
    try_out(page.locator("#operations-Rules-create_rule"))
    assert_fits(page)
    opened(page, "/docs")
    expect(page.get_by_role("button", name="Authorize")).to_have_class("btn authorize unlocked")


def test_the_decision_plane_has_its_own_and_decides(page: Page, plane: Plane, problems: Problems) -> None:
    origin = f"http://127.0.0.1:{plane.http_port}"
    problems.allow(origin)
    opened(page, f"{origin}/docs")
    expect(page).to_have_title("Headgate: decision API")
    operation = page.locator("#operations-Checks-check")
    try_out(operation)
    assert_fits(page)
    answer = executed(page, operation)
    assert answer.status == 200
    assert answer.json()["allowed"]
    assert_accessible(page)

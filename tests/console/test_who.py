"""Callers are found, and what is changed for one acts on the next decision."""

from __future__ import annotations

from urllib.parse import urlencode

from playwright.sync_api import Page, expect

from tests.console.browsing import Browsing, assert_accessible, assert_fits
from tests.console.planes import Plane
from tests.servers import until

_COUNTED = """
const count = () => { sessionStorage.clicks = 1 + Number(sessionStorage.clicks || 0) }
addEventListener("click", event => event.isTrusted && count(), true)
addEventListener("keydown", event => event.key === "Enter" && count(), true)
"""
"""Counts clicks; Enter, which sends the search, is one."""


def decided(plane: Plane, user: str, rule: str) -> bool:
    return bool(plane.check(user, f"/{rule}")["allowed"])


def used_up(plane: Plane, user: str, rule: str) -> None:
    """Let a user be refused, and wait until the service shows it."""
    while decided(plane, user, rule):
        pass
    until(
        lambda: plane.ask("GET", f"/refusals?{urlencode({'user': user})}").json()["total"], "refusals are written", 120
    )


def find(page: Page, text: str) -> None:
    """Search in the bar."""
    page.locator("#find").fill(text)
    page.locator("#find").press("Enter")


def test_from_a_complaint_to_a_raised_limit_in_three_clicks(plane: Plane, browsing: Browsing) -> None:
    rule, user, page = plane.rule(limit=3), plane.unique("grace"), browsing.open("editor")
    used_up(plane, user, rule)
    page.add_init_script(_COUNTED)
    page.goto("/")
    find(page, user)
    expect(page.get_by_role("heading", level=1)).to_have_text(user)
    row = page.get_by_role("listitem").filter(has_text=rule)
    expect(row).to_contain_text("3 of 3 used")
    assert_accessible(page)
    assert_fits(page)
    page.get_by_role("link", name=f"Raise {rule}", exact=True).click()
    expect(page.get_by_label("Limit")).to_have_value("6")
    expect(page.get_by_text("From the rule.")).to_be_visible()
    assert_accessible(page)
    assert_fits(page)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("It is in force from the next request on")
    assert page.evaluate("sessionStorage.clicks") == "3"
    until(lambda: decided(plane, user, rule), "the next request passes", 120)
    expect(page.get_by_role("listitem").filter(has_text=rule)).to_contain_text("of 6 used")
    page.get_by_role("button", name=f"End the override of {rule}").click()
    expect(page.get_by_role("status")).to_contain_text("The override has ended")
    until(lambda: not decided(plane, user, rule), "the limit is what it was", 120)

"""Ten thousand rules and thousands of users: every page has a bounded part of them, and a way to the rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.console.browsing import Browsing, pages
from tests.console.planes import Plane, running_plane

RULES, USERS = 10_000, 3_000
ROWS = 250
LAST = f"rule-{RULES - 1:05}"


@pytest.fixture(scope="module")
def full() -> Iterator[Plane]:
    with running_plane() as plane:
        tier, rules = {"gold": {LAST: {"limit": 9}}}, range(RULES)
        plane.ask(
            "POST",
            "/apply?wait=1m",
            {
                "version": 1,
                "rules": [
                    {
                        "id": f"rule-{n:05}",
                        "name": f"Thing {n}",
                        "endpoint": f"/a{n % 90}/{n}/**",
                        "limit": 9,
                        "window": "1h",
                    }
                    for n in rules
                ],
                "tiers": tier,
                "users": {
                    f"user-{n:05}": {"tier": "gold", "overrides": {f"rule-{n:05}": {"limit": 5}}} for n in range(USERS)
                },
            },
        )
        yield plane


def test_no_page_is_large(full: Plane, browsing: Browsing) -> None:
    page = browsing.open("admin", at=full)
    for url in pages(page):
        assert page.locator("tr, li, option").count() < ROWS, url


def test_a_rule_is_found_by_a_part_of_its_name_and_by_going_on(full: Plane, browsing: Browsing) -> None:
    page = browsing.open("viewer", at=full)
    page.goto("/rules")
    expect(page.locator("main")).to_contain_text("of 10\u202f000")
    first = page.locator("tbody tr").first
    expect(first).to_contain_text("rule-00000")
    page.get_by_role("link", name="Next").click()
    expect(first).not_to_contain_text("rule-00000")
    page.get_by_role("link", name="Previous").click()
    expect(first).to_contain_text("rule-00000")
    for part in (LAST, f"Thing {RULES - 1}", f"/{RULES - 1}/"):
        page.get_by_label("ID, name or endpoint").fill(part)
        page.get_by_role("button", name="Filter").click()
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(first).to_contain_text(LAST)
    page.get_by_role("link", name=LAST).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(LAST)
    page.goto(f"/rules?offset={RULES - 1}")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto(f"/rules?offset={RULES}")
    expect(page.locator("main")).not_to_contain_text("There are no rules yet")


def test_a_user_is_found_among_thousands(full: Plane, browsing: Browsing) -> None:
    page = browsing.open("viewer", at=full)
    page.goto("/who")
    page.locator("#find").fill("user-0")
    page.locator("#find").press("Enter")
    expect(page.locator("main")).to_contain_text("type more of the name")
    page.locator("#find").fill(f"user-{USERS - 1:05}")
    page.locator("#find").press("Enter")
    expect(page.locator("main")).to_contain_text("gold")
    expect(page.locator("main").get_by_text(f"user-{USERS - 1:05}").first).to_be_visible()

"""Revisions, the audit trail, and undoing what somebody did."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.console.browsing import Browsing
from tests.console.planes import Plane


def changed(plane: Plane, **fields: object) -> tuple[str, int]:
    """Make a rule and change it; return its id, and the revision of the change."""
    rule = plane.rule(limit=600, window="1m")
    plane.ask("PATCH", f"/rules/{rule}", fields or {"limit": 6}, X_Reason="a colleague's slip")
    return rule, plane.ask("GET", "/revisions?limit=1").json()["items"][0]["revision"]


def test_a_bad_change_is_found_and_undone(plane: Plane, browsing: Browsing) -> None:
    rule, number = changed(plane)
    page = browsing.open("editor")
    page.goto("/revisions")
    row = page.get_by_role("row").filter(has_text=rule).filter(has_text="a colleague's slip")
    row.get_by_role("link", name=f"Undo revision {number}").click()
    expect(page.locator(".removed")).to_have_text("- limit: 6")
    expect(page.locator(".added")).to_have_text("+ limit: 600")
    page.get_by_label("Reason").fill("it refused everybody")
    page.get_by_role("button", name=f"Undo revision {number}").click()
    expect(page.get_by_role("status")).to_contain_text("in force")
    expect(page.locator("main")).to_contain_text("it refused everybody")
    assert plane.ask("GET", f"/rules/{rule}").json()["limit"] == 600
    page.goto(f"/undo?n={number}")
    expect(page.locator("main")).to_contain_text("There is nothing to undo")


def test_later_changes_stand_in_the_way_until_they_are_overridden(plane: Plane, browsing: Browsing) -> None:
    rule, number = changed(plane)
    plane.ask("PATCH", f"/rules/{rule}", {"limit": 7})
    page = browsing.open("editor")
    page.goto(f"/undo?n={number}")
    expect(page.locator("main")).to_contain_text(f"rule {rule} in revision {number + 1}")
    page.get_by_role("link", name="See what overriding").click()
    expect(page.locator(".removed")).to_have_text("- limit: 7")
    page.get_by_role("button", name=f"Undo revision {number}").click()
    expect(page.get_by_role("status")).to_be_visible()
    assert plane.ask("GET", f"/rules/{rule}").json()["limit"] == 600


def test_what_was_seen_is_what_is_undone(plane: Plane, browsing: Browsing) -> None:
    """If anything changes between the look and the click, nothing is done, and the page shows what is so now."""
    rule, number = changed(plane)
    page = browsing.open("editor")
    page.goto(f"/undo?n={number}")
    plane.rule()
    page.get_by_role("button", name=f"Undo revision {number}").click()
    expect(page.get_by_role("alert")).to_contain_text("Nothing was undone")
    assert plane.ask("GET", f"/rules/{rule}").json()["limit"] == 6
    page.get_by_role("button", name=f"Undo revision {number}").click()
    expect(page.get_by_role("status")).to_be_visible()
    assert plane.ask("GET", f"/rules/{rule}").json()["limit"] == 600


def test_a_viewer_sees_and_cannot_undo(plane: Plane, browsing: Browsing) -> None:
    _, number = changed(plane)
    page = browsing.open("viewer")
    page.goto("/revisions")
    expect(page.get_by_text("a colleague's slip").first).to_be_visible()
    expect(page.get_by_role("link", name="Undo")).to_have_count(0)
    page.goto(f"/undo?n={number}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not allowed")


def test_the_audit_trail_says_who_did_what_and_that_it_is_intact(plane: Plane, browsing: Browsing) -> None:
    rule, _ = changed(plane)
    page = browsing.open("viewer")
    page.goto("/audit")
    page.get_by_label("Name").fill(rule)
    page.get_by_label("Action").select_option("update")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_text("Difference").click()
    expect(page.locator(".added")).to_have_text("+ limit: 6")
    page.get_by_role("link", name="Verify the chain").click()
    expect(page.get_by_role("status")).to_contain_text("The chain is intact")


def test_what_happened_to_keys_is_for_admins(plane: Plane, browsing: Browsing) -> None:
    made = plane.new_key("viewer")
    for role, count in (("viewer", 0), ("admin", 1)):
        page = browsing.open(role)
        page.goto(f"/audit?kind=key&subject={made['id']}")
        expect(page.locator("tbody tr")).to_have_count(count)

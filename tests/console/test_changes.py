"""Revisions, their undo, and the audit trail."""

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


def test_an_undo_is_that_of_the_preview_and_overrides_later_changes_only_on_demand(
    plane: Plane, browsing: Browsing
) -> None:
    """If anything changes after the preview, nothing is undone, and the page shows the present state."""
    rule, number = changed(plane)
    page = browsing.open("editor")
    page.goto(f"/undo?n={number}")
    plane.ask("PATCH", f"/rules/{rule}", {"limit": 7})
    page.get_by_role("button", name=f"Undo revision {number}").click()
    expect(page.get_by_role("alert")).to_contain_text("Nothing was undone")
    expect(page.locator("main")).to_contain_text(f"rule {rule} in revision {number + 1}")
    assert plane.ask("GET", f"/rules/{rule}").json()["limit"] == 7
    page.get_by_role("link", name="See what overriding").click()
    expect(page.locator(".removed")).to_have_text("- limit: 7")
    page.get_by_role("button", name=f"Undo revision {number}").click()
    expect(page.get_by_role("status")).to_be_visible()
    assert plane.ask("GET", f"/rules/{rule}").json()["limit"] == 600


def test_the_audit_trail_is_filtered_and_verified(plane: Plane, browsing: Browsing) -> None:
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

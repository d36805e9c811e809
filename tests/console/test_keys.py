"""Keys and consumers: made, shown once, replaced and ended."""

from __future__ import annotations

import httpx
from playwright.sync_api import Dialog, expect

from tests.console.browsing import Browsing
from tests.console.planes import Plane


def status(plane: Plane, key: str) -> int:
    """Return what the REST API answers to a key."""
    return httpx.get(f"{plane.address}/api/v1/rules", headers={"authorization": f"Bearer {key}"}).status_code


def test_a_key_is_made_shown_once_replaced_and_revoked_if_that_is_confirmed(plane: Plane, browsing: Browsing) -> None:
    name, page, questions = plane.unique("bot"), browsing.open("admin"), list[str]()

    def refuse(dialog: Dialog) -> None:
        questions.append(dialog.message)
        dialog.dismiss()

    page.goto("/keys")
    page.get_by_text("New key").click()
    page.get_by_label("Name").fill(name)
    page.get_by_label("Role").select_option("editor")
    page.get_by_label("Expires", exact=True).select_option("in a week")
    page.get_by_role("button", name="Create key").click()
    first = page.locator("#secret").inner_text()
    assert status(plane, first) == 200
    page.goto("/keys")
    expect(page.locator("body")).not_to_contain_text(first)
    row = page.get_by_role("row").filter(has_text=name)
    row.get_by_text("Replace, revoke").click()
    row.get_by_role("button", name="Replace").click()
    second = page.locator("#secret").inner_text()
    assert (status(plane, first), status(plane, second)) == (401, 200)
    row.get_by_text("Replace, revoke").click()
    page.once("dialog", refuse)
    row.get_by_role("button", name="Revoke").click()
    assert name in questions[0]
    assert status(plane, second) == 200
    page.once("dialog", lambda dialog: dialog.accept())
    row.get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("row").filter(has_text=name)).to_have_count(0)
    assert status(plane, second) == 401


def test_a_consumer_is_made_replaced_revoked_and_deleted(plane: Plane, browsing: Browsing) -> None:
    name, page = plane.unique("a/../b <i>"), browsing.open("editor")
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto("/consumers")
    page.get_by_text("New consumer").click()
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Create consumer").click()
    first = page.locator("#secret").inner_text()
    page.goto("/consumers")
    page.get_by_text("New consumer").click()
    page.get_by_label("Name").fill(name)
    page.get_by_label("Tenant").fill("north")
    page.get_by_role("button", name="Create consumer").click()
    expect(page.get_by_role("alert")).to_contain_text("rotate it, or revoke it first")
    expect(page.get_by_label("Tenant")).to_have_value("north")
    page.get_by_role("link", name=name).click()
    page.get_by_label("Old key expires").select_option("in an hour")
    page.get_by_role("button", name="Replace key").click()
    expect(page.locator("#secret")).not_to_have_text(first)
    page.goto("/consumers")
    page.get_by_role("link", name=name).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Revoke all keys").click()
    expect(page.locator("main")).to_contain_text("ended")
    page.get_by_role("button", name="Delete").click()
    expect(page).to_have_url(f"{plane.address}/consumers")
    expect(page.get_by_role("link", name=name)).to_have_count(0)

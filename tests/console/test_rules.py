"""The table of rules, and the page of each: its history, its state and its changes."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from headgate.admin.console import rendering
from headgate.admin.console.charts import Series, of_series, stack
from headgate.admin.console.rendering import difference
from headgate.observe.logs import Principals
from tests.console.browsing import Browsing, assert_accessible, assert_fits
from tests.console.planes import Plane


def test_rules_are_filtered(browsing: Browsing, plane: Plane) -> None:
    word = plane.unique("needle")
    plain, shadow = plane.rule(f"{word}-plain"), plane.rule(f"{word}-shadow", shadow=True, tier="gold")
    page = browsing.open("viewer")
    page.goto("/rules")
    page.get_by_label("ID, name or endpoint").fill(word.upper())
    page.get_by_role("button", name="Filter").click()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text=plain)).to_contain_text("5 per hour")
    assert_accessible(page)
    assert_fits(page)
    page.get_by_label("State").select_option("shadow")
    page.get_by_label("Tier").fill("gold")
    page.get_by_role("button", name="Filter").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text(shadow)
    expect(page.get_by_role("link", name="New rule")).to_have_count(0)


def test_what_a_rule_decided_is_drawn_and_written(browsing: Browsing, plane: Plane) -> None:
    rule = plane.rule(shadow=True)
    plane.decided(rule, 5, {}, shadow_allowed=30, shadow_denied=10)
    page = browsing.open("viewer")
    page.goto(f"/rules?q={rule}")
    expect(page.get_by_role("img", name="40 decisions in the last hour")).to_be_visible()
    expect(page.locator("tbody tr")).to_contain_text("25\u202f%")
    page.get_by_role("link", name=rule).click()
    page.get_by_role("link", name="Last hour").click()
    expect(page.locator("main")).to_contain_text("In shadow it would have refused 10 of 40 requests")
    expect(page.locator(".plot rect.shadow")).to_have_count(1)
    assert_accessible(page)
    page.get_by_text("The numbers as a table").click()
    expect(page.get_by_role("row", name="UTC 30 0 10")).to_be_visible()
    assert_accessible(page)
    assert_fits(page)


def test_a_shadow_shows_whom_it_would_refuse(browsing: Browsing, plane: Plane) -> None:
    rule, user = plane.rule(shadow=True, limit=1), plane.unique("eager")
    page = browsing.open("viewer")
    page.goto(f"/rule?id={rule}")
    found = page.locator("#would-refuse")
    expect(found).to_contain_text("None")
    for _ in range(200):
        plane.check(user, f"/{rule}")
    expect(found.get_by_role("row")).to_have_count(2)
    assert_accessible(page)
    found.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(Principals().shown(user))
    expect(page.locator("main")).to_contain_text("Only a digest is known")


def test_a_shadow_is_enforced_by_percent_and_rolled_back(browsing: Browsing, plane: Plane) -> None:
    rule = plane.rule(shadow=True)
    page = browsing.open("editor")
    page.goto(f"/rule?id={rule}")
    page.get_by_label("Percent").select_option("25")
    page.locator("#reason").fill("after a week")
    page.get_by_role("button", name="Enforce for").click()
    expect(page.locator("#saved")).to_contain_text("Saved as revision")
    expect(page.get_by_text("enforced for 25 %", exact=True)).to_be_visible()
    assert plane.ask("GET", f"/rules/{rule}").json()["enforce_percent"] == 25
    assert plane.ask("GET", f"/audit?subject={rule}").json()["items"][0]["reason"] == "after a week"
    assert_accessible(page)
    assert_fits(page)
    page.locator("summary", has_text="Version 1").click()
    page.get_by_role("button", name="Roll back to version 1").click()
    expect(page.get_by_text("The rule counts, but refuses nothing.")).to_be_visible()
    body = plane.ask("GET", f"/rules/{rule}").json()
    assert (body["shadow"], body["version"]) == (True, 3)


def test_a_change_of_an_outdated_version_is_refused(browsing: Browsing, plane: Plane) -> None:
    rule = plane.rule()
    page = browsing.open("editor")
    page.goto(f"/rule?id={rule}")
    plane.ask("PATCH", f"/rules/{rule}", {"limit": 6})
    page.get_by_role("button", name="Turn off").click()
    expect(page.get_by_role("alert")).to_contain_text("version 2, not 1")
    page.get_by_role("button", name="Turn off").click()
    expect(page.get_by_role("button", name="Turn on")).to_be_visible()
    assert plane.ask("GET", f"/rules/{rule}").json()["limit"] == 6


def test_a_chart_has_round_marks_and_says_when() -> None:
    hours = [3_600_000_000 * number for number in range(24)]
    point = {"allowed": 130, "denied": 20, "shadow_allowed": 0, "shadow_denied": 5, "degraded": 150}
    chart = of_series([{"at": "1970-01-01T01:00:00Z", **point}], hours)
    assert [each.name for each in chart.series] == ["Allowed", "Refused", "Would be refused, in shadow"]
    assert (chart.top, chart.labels) == (200, ["00:00", "06:00", "12:00", "18:00", "00:00"])
    drawn = rendering._TEMPLATES.get_template("charts.html").module.stacked(chart, "Decisions")  # type: ignore[attr-defined]
    assert re.findall(r'<rect class="(accent|bad|shadow)" x="25.0" y="(\S+)" width="21.5" height="(\S+)"/>', drawn) == [
        ("accent", "52.5", "97.5"),
        ("bad", "37.5", "15.0"),
        ("shadow", "33.75", "3.75"),
    ]
    ten_minutes = [5_000_000 * number for number in range(120)]
    assert stack(ten_minutes, []).labels == ["00:00", "00:02", "00:04", "00:06", "00:08", "00:10"]
    week = [7_200_000_000 * number for number in range(84)]
    assert stack(week, []).labels == ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed", "Thu"]
    assert stack(hours, [Series("None", "bad", [0] * 24)]).is_empty


def test_a_difference_is_quick_and_short_however_long_the_bodies() -> None:
    """Meanwhile, this process decides nothing."""
    before = [{"user": f"user-{n}"} for n in range(20_000)]
    assert [each for each in difference(before, [*before[:9], *before[10:]]) if each[0]] == [
        ("removed", "- - user: user-9")
    ]
    old, new = ({"when": {f"{name}{n}": f"value-{n}" for n in range(5000)}} for name in "ab")
    assert len(difference(old, new)) < 1100
    assert len(difference(None, before)) < 1100
    assert difference({"a": 1, "b": 2}, {"a": 1, "b": 3}) == [
        ("", "  a: 1"),
        ("removed", "- b: 2"),
        ("added", "+ b: 3"),
    ]

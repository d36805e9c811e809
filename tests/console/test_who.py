"""Callers are found, and changes for one act on the next decision."""

from __future__ import annotations

import json
from itertools import cycle
from urllib.parse import quote, urlencode

from playwright.sync_api import Page, expect

from headgate.observe.logs import Principals
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
    """Send a request of a user to the endpoint of a rule; return whether it passed."""
    return bool(plane.check(user, f"/{rule}")["allowed"])


def used_up(plane: Plane, user: str, rule: str) -> None:
    """Send requests of a user until one is refused, and wait until the refusal is listed."""
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
    expect(page.get_by_text("The limit is from the rule.")).to_be_visible()
    assert_accessible(page)
    assert_fits(page)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("It applies from the next request on")
    assert page.evaluate("sessionStorage.clicks") == "3"
    until(lambda: decided(plane, user, rule), "the next request passes", 120)
    expect(page.get_by_role("listitem").filter(has_text=rule)).to_contain_text("of 6 used")
    page.get_by_role("button", name=f"End the override of {rule}").click()
    expect(page.get_by_role("status")).to_contain_text("Override ended")
    until(lambda: not decided(plane, user, rule), "the limit is what it was", 120)


def test_any_name_can_be_raised(plane: Plane, browsing: Browsing) -> None:
    rule, page = plane.unique("rule"), browsing.open("editor", javascript=False)
    limits = [{"limit": 3, "window": "1h"}, {"limit": 5, "window": "1d"}]
    plane.ask("PUT", f"/rules/{rule}?wait=1m", {"limits": limits, "endpoint": f"/{rule}"})
    names = ("..", "a/../b?c=d&e#f", "'\"><img src=x onerror=alert(1)>", " spaces ", "ü" * 512)
    for kind, name in zip(cycle(("user", "consumer")), names, strict=False):
        page.goto(f"/who?{urlencode({kind: name})}")
        page.get_by_role("link", name=f"Raise {rule}", exact=True).click()
        page.get_by_label("Limit").first.fill("1 000")
        page.get_by_label("Lasts").select_option("permanently")
        page.get_by_label("Reason").fill("ticket 4711")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("status")).to_contain_text("Saved")
        users = {each["id"]: each for each in plane.ask("GET", "/users?limit=1000").json()["items"]}
        found = users[name]["overrides"][rule]
        assert [each["limit"] for each in found["limits"]] == [1000, 10]
        assert "until" not in found
        (entry,) = plane.ask("GET", f"/audit?{urlencode({'subject': name, 'limit': 1})}").json()["items"]
        assert entry["reason"] == "ticket 4711"


def test_errors_are_shown_beside_the_input(plane: Plane, browsing: Browsing) -> None:
    rule, user, page = plane.rule(limit=3), plane.unique("otto"), browsing.open("editor")
    late = browsing.open("editor")
    late.goto(f"/who?user={user}&raise={rule}")
    page.goto(f"/who?user={user}&raise={rule}")
    for label, text, wrong in (
        ("Limit", "many", "limit must be a whole number such as 500, not 'many'"),
        ("Limit", "3", "this is the limit without an override"),
        ("Window", "1 fortnight", "is not a duration"),
    ):
        page.get_by_label(label).fill(text)
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("alert")).to_contain_text(wrong)
        expect(page.get_by_label(label)).to_have_value(text)
    page.get_by_label("Window").fill("1h")
    page.get_by_label("Limit").fill("7")
    page.get_by_label("Lasts").select_option("until a date")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("the end must be a time in UTC")
    page.get_by_label("Date and time").fill("2020-01-01T00:00")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("until must be in the future")
    page.get_by_label("Date and time").fill("2090-01-01T00:00")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("Saved")
    late.get_by_role("button", name="Save").click()
    expect(late.get_by_role("alert")).to_contain_text("this user was changed in the meantime")
    found = plane.ask("GET", f"/users/{user}/limits").json()["overrides"]
    assert found == {rule: {"limit": 7, "until": "2090-01-01T00:00:00Z"}}


def test_callers_are_found(plane: Plane, browsing: Browsing) -> None:
    base, page = plane.unique("find"), browsing.open("viewer")
    for name in (f"{base}-%one", f"{base}-two"):
        plane.ask("PUT", f"/users/{quote(name, safe='')}/tier", {"tier": ""})
        plane.ask("POST", f"/users/{quote(name, safe='')}/override", {"rule_id": plane.rule(), "limit": 9})
    key = plane.ask("POST", "/consumers", {"name": f"{base}-shop"}).json()
    page.goto("/who")
    heading = page.get_by_role("heading", level=1)
    find(page, base)
    expect(page.get_by_role("link", name=f"{base}-%one")).to_be_visible()
    expect(page.get_by_role("link", name=f"{base}-two")).to_be_visible()
    expect(page.get_by_role("link", name=f"{base}-shop")).to_be_visible()
    assert_accessible(page)
    for text, found in (
        (f"{base}-%one", f"{base}-%one"),
        (f"{base}-shop", f"{base}-shop"),
        (key["key_id"], f"{base}-shop"),
        (key["key"], f"{base}-shop"),
        ("2001:db8::7", "2001:db8::7"),
    ):
        find(page, text)
        expect(heading).to_have_text(found)
    assert key["key"] not in page.url
    used_up(plane, f"{base}-two", plane.rule(limit=1))
    page.goto("/who")  # which shows callers as logs do
    page.get_by_role("row").filter(has_text=Principals().shown(f"{base}-two")).get_by_role("link").first.click()
    expect(heading).to_have_text(f"{base}-two")
    page.goto("/who?address=nowhere")
    expect(page.get_by_role("alert")).to_contain_text("ip must be an address such as")
    find(page, f"{base}-three")
    expect(page.locator("main")).to_contain_text("Nothing found for")
    page.get_by_role("link", name="Open as a user").click()
    expect(heading).to_have_text(f"{base}-three")


def test_an_address_is_reset_and_let_through(plane: Plane, browsing: Browsing) -> None:
    rule = plane.unique("rule")
    plane.rule(rule, limit=1, dimension=["ip", "endpoint"])  # for one path, so that its use is known
    page = browsing.open("editor")
    page.on("dialog", lambda dialog: dialog.accept())

    def passes() -> bool:
        asked = {"principal": {"ip": "203.0.113.77"}, "endpoint": f"/{rule}"}
        return bool(json.loads(plane.post("/api/v1/rate-limit/check", asked)[1])["allowed"])

    while passes():
        pass
    page.goto("/who?address=203.0.113.77")
    expect(page.locator("main")).to_contain_text("Overrides apply to users. For one address, add a rule")
    expect(page.get_by_role("listitem").filter(has_text=rule)).to_contain_text("1 of 1 used")
    page.get_by_role("button", name=f"Reset {rule}").click()
    expect(page.get_by_role("listitem").filter(has_text=rule)).to_contain_text("0 of 1 used")
    assert passes()
    assert not passes()
    page.get_by_role("button", name="Always allow").click()
    expect(page.get_by_role("status").filter(has_text="Limits do not apply")).to_contain_text("allow list")
    until(passes, "it is let through", 120)
    page.get_by_role("button", name="Remove from the allow list").click()
    until(lambda: not passes(), "it is limited", 120)


def test_overrides_of_a_consumer_hold_for_its_keys(plane: Plane, browsing: Browsing) -> None:
    rule, name, page = plane.rule(limit=1, dimension="apikey"), plane.unique("shop"), browsing.open("editor")
    plane.ask("POST", "/consumers", {"name": name})
    plane.rule(enabled=False)  # of which there is nothing to reset

    def passes() -> bool:
        asked = {"principal": {"user": name, "apikey": name}, "endpoint": f"/{rule}"}
        return bool(json.loads(plane.post("/api/v1/rate-limit/check", asked)[1])["allowed"])

    while passes():
        pass
    page.goto(f"/who?consumer={name}")
    row = page.get_by_role("listitem").filter(has_text=rule)
    expect(row).to_contain_text("1 of 1 used")
    page.get_by_role("link", name=f"Raise {rule}", exact=True).click()
    page.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("1 of 2 used")
    until(passes, "the next request passes", 120)
    assert not passes()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Reset all limits").click()
    expect(row).to_contain_text("0 of 2 used")
    assert passes()


def test_a_user_is_moved_to_a_tier(plane: Plane, browsing: Browsing) -> None:
    tier, user, page = plane.unique("gold"), plane.unique("tina"), browsing.open("editor", javascript=False)
    rule = plane.rule(limit=3)
    plane.ask("PUT", f"/tiers/{tier}?wait=1m", {rule: {"limit": 30}})
    page.goto(f"/who?user={user}")
    page.get_by_label(f"Tier of {user}").select_option(tier)
    page.get_by_role("button", name="Change tier").click()
    expect(page.get_by_role("listitem").filter(has_text=rule)).to_contain_text(f"from tier {tier}")
    expect(page.get_by_role("listitem").filter(has_text=rule)).to_contain_text("of 30 used")


def test_rules_in_a_file_are_read_only(browsing: Browsing, in_file: Plane) -> None:
    page = browsing.open("admin", at=in_file)
    page.goto("/who")
    expect(page.locator("main")).to_contain_text("No refusals")
    find(page, "ada")
    expect(page.get_by_role("status")).to_contain_text("in the rules file")
    expect(page.get_by_role("listitem").filter(has_text="each")).to_contain_text("of 9 used")
    for name in ("Raise each", "Change each", "Change tier", "End the override of each", "Always allow"):
        expect(page.get_by_label(name).or_(page.get_by_text(name, exact=True))).to_have_count(0)
    token = page.locator("input[name=csrf]").first.get_attribute("value") or ""
    form: dict[str, str | float | bool] = {"csrf": token, "rule": "each", "version": "1", "limit-0": "99"}
    refused = page.context.request.post("/who/override?user=ada", form=form)
    assert refused.status == 409
    assert "changed there" in refused.text()
    page.goto("/rules")
    page.get_by_role("link", name="each").click()
    expect(page.locator("main")).to_contain_text("These rules are in a file")
    expect(page.locator("a[href^='/rule/edit']")).to_have_count(0)
    for path in ("/rule/edit?id=each", "/rule/new"):
        refused = page.context.request.get(path)
        assert refused.status == 409, path
        assert "rules.yaml" in refused.text(), path

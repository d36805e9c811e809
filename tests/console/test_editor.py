"""The editor of rules: equal form and YAML, previews of changes, and concurrent editors."""

from __future__ import annotations

import json

import httpx
from playwright.sync_api import Page, expect

from headgate.admin.console import drafts
from headgate.policy.dumping import data_to_yaml
from tests.console.browsing import Browsing, assert_accessible, assert_fits
from tests.console.planes import Plane

Fields = dict[str, str | float | bool]


def test_form_and_yaml_agree_and_a_change_has_an_estimate(browsing: Browsing, plane: Plane) -> None:
    rule = plane.rule(limit=100, window="1m", algorithm="fixed_window", warn_percent=90)
    plane.decided(rule, 100, {1: 80, 2: 70, 3: 5}, allowed=150, denied=5)
    page = browsing.open("editor")
    page.goto(f"/rule/edit?id={rule}")
    yaml, limit, effects = page.locator("#yaml"), page.get_by_label("Limit"), page.locator("#effects")
    limit.fill("abc")
    expect(page.locator("#wrong-limit")).to_contain_text("'abc' is not a whole number")
    expect(page.locator("#problems")).to_contain_text("Line 3, column 8")
    expect(effects).to_contain_text("Correct the errors to see the difference")
    limit.fill("60")
    expect(yaml).to_have_value(
        f"id: {rule}\nendpoint: /{rule}\nlimit: 60\nwindow: 1m\nalgorithm: fixed_window\nwarn_percent: 90\n"
    )
    expect(page.locator("#wrong-limit")).to_be_empty()
    expect(effects.locator(".added")).to_have_text("+ limit: 60")
    expect(effects).to_contain_text("30 of 155 units")
    expect(effects).to_contain_text("The rule in force refused 5 of 155 requests")
    assert_accessible(page)
    assert_fits(page)
    yaml.fill(f"# mine\nid: {rule}\nlimit: 50\nwindow: 1m\nwindw: 1m\n")
    expect(page.locator("#problems")).to_contain_text("Line 5, column 1: a rule has no 'windw'. Did you mean 'window'?")
    expect(limit).to_have_value("50")
    yaml.fill(f"id: {rule}\nlimit: 100\nwindow: 1m\n")
    expect(limit).to_have_value("100")  # as when the page was loaded
    yaml.fill(f"# mine\nid: {rule}\nlimit: 50\nwindow: 1m\nwarn_percent: 80\n")
    expect(effects.locator(".added")).to_contain_text("limit: 50")
    expect(yaml).to_have_value(f"# mine\nid: {rule}\nlimit: 50\nwindow: 1m\nwarn_percent: 80\n")
    page.locator("#reason").fill("March")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#saved")).to_contain_text("Saved as revision")
    assert plane.ask("GET", f"/rules/{rule}").json()["limit"] == 50
    assert plane.ask("GET", f"/audit?subject={rule}").json()["items"][0]["reason"] == "March"


def test_a_new_rule_begins_in_shadow_and_all_works_without_a_script(browsing: Browsing, plane: Plane) -> None:
    rule = plane.unique("made")
    page = browsing.open("editor", javascript=False)
    page.goto("/rule/new")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#problems")).to_contain_text("a rule needs 'id'")
    page.get_by_label("Id").fill(rule)
    page.get_by_label("Counts by").fill("user + region")
    yaml = page.get_by_label("YAML")
    yaml.fill(yaml.input_value() + "\nrefusal_status: 503")  # both sides
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#effects")).to_contain_text("A new rule has no history")
    page.get_by_role("button", name="Save in shadow first").click()
    expect(page.get_by_text("The rule counts, but refuses nothing.")).to_be_visible()
    body = plane.ask("GET", f"/rules/{rule}").json()
    assert (body["shadow"], body["dimension"], body["refusal_status"]) == (True, ["user", "region"], 503)
    page.get_by_label("Percent").select_option("100")
    page.get_by_role("button", name="Enforce for").click()
    expect(page.get_by_text("enforced", exact=True)).to_be_visible()
    page.goto("/rule/new")
    page.get_by_label("Id").fill(rule)  # which exists
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#notices")).to_contain_text("A rule with this ID already exists")
    assert plane.ask("GET", f"/rules/{rule}").json()["version"] == 2


def test_two_editors_of_one_rule_lose_nothing(browsing: Browsing, plane: Plane) -> None:
    rule = plane.rule(name="before", limit=10)
    one, two = browsing.open("editor"), browsing.open("admin")
    for page in (one, two):
        page.goto(f"/rule/edit?id={rule}")
    one.get_by_label("Limit").fill("11")
    one.get_by_label("Methods").fill("GET")
    save(one)
    expect(one.locator("#saved")).to_contain_text("Saved")
    two.get_by_label("Name").fill("after")
    two.get_by_label("Limit").fill("12")
    two.get_by_role("button", name="Save", exact=True).click()
    notices = two.locator("#notices")
    expect(notices).to_contain_text("Someone else has changed this rule in the meantime")
    expect(notices.locator(".added").first).to_be_visible()
    expect(two.get_by_label("Methods")).to_have_value("GET")
    expect(two.get_by_label("Limit")).to_have_value("12")
    two.get_by_label("Limit").fill("13")
    save(two)
    expect(two.locator("#saved")).to_contain_text("Saved")
    body = plane.ask("GET", f"/rules/{rule}").json()
    assert (body["name"], body["limit"], body["methods"]) == ("after", 13, ["GET"])


def save(page: Page) -> None:
    expect(page.locator("#effects .added").first).to_be_visible()
    page.get_by_role("button", name="Save", exact=True).click()


def test_a_deletion_names_dependent_objects_and_can_be_rolled_back(browsing: Browsing, plane: Plane) -> None:
    rule, user = plane.rule(), plane.unique("ada")
    other = plane.rule(replaces=[rule])
    plane.ask("POST", f"/users/{user}/override", {"rule_id": rule, "limit": 7})
    page = browsing.open("editor")
    page.goto(f"/rule/delete?id={rule}")
    expect(page.locator("main")).to_contain_text(f"1 rule replaces it: {other}")
    plane.ask("DELETE", f"/rules/{other}")
    page.reload()
    expect(page.locator("main li")).to_have_text(f"the overrides of 1 user: {user}")
    page.get_by_role("button", name=f"Delete {rule}").click()
    expect(page.locator("main")).to_contain_text("This rule was deleted")
    page.locator("summary", has_text="Version 1").click()
    page.get_by_role("button", name="Roll back to version 1").click()
    expect(page.get_by_role("link", name="Edit")).to_be_visible()
    assert plane.ask("GET", f"/rules/{rule}").json()["limit"] == 5


def test_a_rule_deleted_meanwhile_is_created_again_only_on_the_second_save(plane: Plane) -> None:
    rule = plane.rule()
    body = {"id": rule, "limit": 5, "window": "1h"}
    form = {"id": rule, "opened": "1", "version": "1", "do": "save", "base": json.dumps(body), "f.limit": "6"}
    form["yaml"] = json.dumps(body)
    headers = {"authorization": f"Bearer {plane.key('editor')}"}
    plane.ask("DELETE", f"/rules/{rule}")
    refused = httpx.post(f"{plane.address}/rule/edit", data=form, headers=headers)
    assert refused.status_code == 409
    assert "This rule has been deleted in the meantime" in refused.text
    made = httpx.post(f"{plane.address}/rule/edit", data={**form, "version": "0"}, headers=headers)
    assert made.status_code == 303
    assert plane.ask("GET", f"/rules/{rule}").json()["limit"] == 6
    other = {**form, "opened": "3", "version": "3", "yaml": json.dumps({**body, "id": "another"})}
    for wrong in (other, {**other, "yaml": json.dumps({"rule_id": "another", "limit": 1, "window": "1h"})}):
        refused = httpx.post(f"{plane.address}/rule/edit", data=wrong, headers=headers)
        assert refused.status_code == 400
        assert "the id of a rule cannot change" in refused.text


BASE = {"id": "a", "limit": 5, "window": "1m", "replicas": 1, "when": {"region": "eu"}}


def test_input_on_either_side_is_on_both() -> None:
    cases: list[tuple[dict[str, str], dict[str, object], dict[str, object]]] = [
        ({}, BASE, BASE),
        ({"limit": "6"}, BASE, {**BASE, "limit": 6}),
        ({"limit": "6"}, {**BASE, "limit": 7, "burst": 1}, {**BASE, "limit": 6, "burst": 1}),
        ({"when": "region=us\ntier = 1"}, BASE, {**BASE, "when": {"region": "us", "tier": "1"}}),
        ({"when": ""}, BASE, {name: value for name, value in BASE.items() if name != "when"}),
        ({"methods": "GET, POST  PUT"}, BASE, {**BASE, "methods": ["GET", "POST", "PUT"]}),
        ({"shadow": "true", "name": "12"}, BASE, {**BASE, "shadow": True, "name": "12"}),
    ]
    for fields, yaml, body in cases:
        shown = {f"f.{name}": text for name, text in (drafts.fields_of(BASE) | fields).items()}
        draft = drafts.read({"base": json.dumps(BASE), "yaml": data_to_yaml(yaml), **shown}, "a")
        assert (draft.body, draft.problems) == (body, ())
        assert draft.fields == drafts.fields_of(body)


def test_fields_keep_their_input_while_the_yaml_is_invalid() -> None:
    shown = {f"f.{name}": text for name, text in (drafts.fields_of(BASE) | {"limit": "6"}).items()}
    for yaml in ("id: a\n  limit: [", "hello", "", "a: &a [1, 1]\n" + "b: [" + "*a, " * 9999 + "*a]"):
        draft = drafts.read({"base": json.dumps(BASE), "yaml": yaml, **shown}, "a")
        assert draft.problems[0].line > 0
        assert (draft.text, draft.fields["limit"], draft.body) == (yaml, "6", BASE)
        mended = {**shown, "base": drafts.base_of(draft), "yaml": "{id: b, limit: 5, window: 1m, replicas: 1}"}
        draft = drafts.read(mended, "a")
        assert draft.body == {"id": "b", "limit": 6, "window": "1m", "replicas": 1}
        assert [each.path for each in draft.problems] == ["id"]

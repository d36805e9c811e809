"""A request can be tried any number of times, and takes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import expect

from tests.console.browsing import Browsing, assert_accessible, assert_fits
from tests.console.planes import Plane


def test_a_request_is_explained_and_takes_nothing(plane: Plane, browsing: Browsing) -> None:
    tier = plane.unique("gold")
    rule = plane.rule(limit=3, methods=["POST"])
    other = plane.rule(limit=3, tier=tier, endpoint=f"/{rule}")
    user, page = plane.unique("tim"), browsing.open("viewer")
    plane.check(user, f"/{rule}")
    page.goto("/try")
    page.get_by_label("User", exact=True).fill(user)
    page.get_by_label("Method").select_option("POST")
    page.get_by_label("Path").fill(f"/{rule}")
    result = page.locator("#result")  # while typing
    expect(result).to_contain_text("It would pass")
    expect(result.get_by_role("listitem").filter(has_text=rule)).to_contain_text("1 of 3 used")
    expect(result.get_by_role("row").filter(has_text=other)).to_contain_text(f"it is for tier {tier}")
    page.get_by_label("Method").select_option("GET")
    expect(result.get_by_role("row").filter(has_text=rule).first).to_contain_text("it is for POST")
    page.get_by_label("Method").select_option("POST")
    expect(result.get_by_role("listitem").filter(has_text=rule)).to_contain_text("1 of 3 used")
    assert_accessible(page)
    assert_fits(page)
    page.get_by_role("link", name="Link to this request").click()
    expect(page.locator("#result")).to_contain_text("1 of 3 used")
    expect(page.get_by_label("User", exact=True)).to_have_value(user)
    while plane.check(user, f"/{rule}")["allowed"]:
        pass
    page.reload()
    expect(page.locator("#result")).to_contain_text("It would be refused")
    expect(page.locator("#result")).to_contain_text(f"by rule {rule}; the next one passes in 20")


def test_the_commands_send_the_same_request(plane: Plane, browsing: Browsing) -> None:
    rule, user, page = plane.rule(limit=3), 'it\'s "quoted" $HOME `id` -x', browsing.open("viewer", javascript=False)
    page.goto(f"/try?{urlencode({'user': user, 'path': f'/{rule}', 'method': 'PUT', 'attributes': 'a=b=c'})}")
    for name, expected in (("curl", '"remaining":3'), ("command", "3 of 3 left")):
        command = page.locator(f"#{name}").inner_text()
        variables = {
            "HEADGATE_URL": f"http://127.0.0.1:{plane.http_port}",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        said = subprocess.run(["/bin/bash", "-c", command], env=variables, capture_output=True, text=True, check=False)
        assert expected in said.stdout, (command, said)
    assert plane.check(user, f"/{rule}")["remaining"] == 2


def test_an_invalid_request_is_explained(browsing: Browsing) -> None:
    page = browsing.open("viewer")
    for given, expected in (
        ({"path": "/a/../../b"}, ".."),
        ({"cost": "-1"}, "cost must be a whole number from 0 to 100000"),
        ({"ip": "1.2.3.4.5"}, "ip must be an address such as"),
        ({"attributes": "region"}, "an attribute must be a line such as region=eu"),
    ):
        page.goto(f"/try?{urlencode(given)}")
        expect(page.get_by_role("alert")).to_contain_text(expected)

"""The report in a browser: it obeys its policy, sends no requests, is accessible, and fits any screen."""

from __future__ import annotations

from pathlib import Path

from headgate.policy.loading import load
from headgate.replay.replaying import Replay
from headgate.replay.report import report
from tests.console.browsing import assert_accessible, assert_fits, running_browser
from tests.replay.samples import RULES, entries
from tests.replay.test_report import attacked


def test_reports_are_accessible_light_and_dark_and_fit_a_phone(tmp_path: Path) -> None:
    replay = Replay([load(RULES)])
    replay.run(entries(800))
    (tmp_path / "one.html").write_text(report(replay.summary(), ["rules.yaml"], ["access.log"]))
    (tmp_path / "two.html").write_text(report(attacked(), ["rules.yaml", "new.yaml"], ["access.log"]))
    output: list[str] = []
    requested: set[str] = set()
    with running_browser() as browser:
        page = browser.new_page()
        page.on("console", lambda message: output.append(message.text))
        page.on("request", lambda request: requested.add(request.url))
        page.on("dialog", lambda dialog: output.append(dialog.message))
        for name in ("one.html", "two.html"):
            url = (tmp_path / name).as_uri()
            page.goto(url)
            assert page.locator("figure svg path").first.bounding_box()
            assert requested == {url}
            assert output == []
            assert_accessible(page)
            assert_fits(page)
            page.set_viewport_size({"width": 1280, "height": 800})
            rule = page.locator("details.rule").last
            was_open = rule.get_attribute("open") is not None
            rule.locator("summary").focus()
            page.keyboard.press("Enter")
            assert (rule.get_attribute("open") is not None) != was_open
            requested.clear()
            output.clear()

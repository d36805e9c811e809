"""The report is one page without scripts and requests, which shows text of clients as text."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

from headgate.policy.loading import load
from headgate.replay.logs import Entry
from headgate.replay.replaying import Replay, ReplaySummary
from headgate.replay.report import report
from tests.replay.samples import RULES, SECOND, START, entries

ATTACKS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg/onload=alert(1)>",
    "</style><script>alert(1)</script>",
    "<!--<script>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "{{7*7}}${7*7}",
    "\u202egpj.exe",
    "a\x00b\x1b[31m",
    "]]><script>alert(1)</script>",
)
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "section", "div", "p", "span", "strong", "small", "h1"),
    *("h2", "h3", "figure", "svg", "path", "rect", "line", "details", "summary", "table", "tr", "th", "td", "dl", "dt"),
    *("dd", "ul", "li"),
}


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str, str]] = set()
        self.text, self.style, self._open = "", "", list[str]()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {(tag, name, value or "") for name, value in attrs}
        self._open.append(tag)

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style" and not self.style:
            self.style = data
        else:
            self.text += data + "\n"


def attacked() -> ReplaySummary:
    """The results of a log with attacks in users, methods, paths and agents."""
    rules = "version: 1\nrules: [{id: per-user, dimension: user, limit: 1, window: 1h}]\ndeny: [{ip: 192.0.2.9}]"
    replay = Replay([load(rules), load(rules.replace("limit: 1", "limit: 2"))])
    replay.run(
        [
            Entry(START + second * SECOND, address, attack, "GET", f"/{number}", attack, 429, attack)
            for number, attack in enumerate(ATTACKS)
            for address in ("192.0.2.1", "192.0.2.9")
            for second in range(3)
        ]
    )
    return replay.summary()


def test_text_of_clients_is_escaped() -> None:
    page = Page(report(attacked(), ["<b>rules</b>.yaml", '"><script>.yaml'], [f"{ATTACKS[0]}.log"]))
    assert page.tags <= TAGS
    assert not [name for _, name, _ in page.attributes if name.startswith("on") or name in {"src", "href", "style"}]
    for attack in ATTACKS:
        if attack.isprintable():
            assert attack in page.text
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text
    assert "<b>rules</b>.yaml" in page.text


def test_the_policy_of_the_page_allows_its_own_style_and_nothing_else() -> None:
    page = Page(report(attacked(), ["rules.yaml", "new.yaml"], ["access.log"]))
    (policy,) = [value for _, name, value in page.attributes if name == "content" and "default-src" in value]
    digest = b64encode(sha256(page.style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert not re.search(r"url\(|@import|https?://", page.style)


def test_the_page_shows_the_figures_of_the_summary() -> None:
    replay = Replay([load(RULES)])
    replay.run(entries(1500))
    summary = replay.summary()
    text = Page(report(summary, ["rules.yaml"], ["access.log", "b.log", "c.log", "d.log"])).text
    (rules,) = summary.rules
    assert "What rules.yaml would have refused" in text
    assert "access.log, b.log, c.log and 1 more" in text
    for figure in (rules.requests, rules.refused, rules.principals_refused, rules.rules[0].refused.count):
        assert f"{figure:,}" in text
    for rule in rules.rules:
        assert rule.id in text
    assert rules.rules[0].refused.top[0].principal in text
    assert "Applied to no request: never" in text


def test_an_empty_log_and_one_of_the_year_9999_have_a_page() -> None:
    for log in ([], [Entry(253_402_300_799 * SECOND, "192.0.2.1", "ada", "GET", "/", "", 200)]):
        replay = Replay([load(RULES)])
        replay.run(log)
        assert f"{len(log)}\nrequests decided" in Page(report(replay.summary(), ["rules.yaml"], ["access.log"])).text


def test_the_number_of_rules_on_a_page_is_bounded() -> None:
    rules = "\n".join([f"  - {{id: r{number}, dimension: ip, limit: 5, window: 1m}}" for number in range(400)])
    replay = Replay([load(f"version: 1\nrules:\n{rules}")])
    replay.run(entries(200))
    page = report(replay.summary(), ["rules.yaml"], ["access.log"])
    assert "200 rules that refuse less are left out" in page

"""The harness detects problems."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.console.browsing import Problems, assert_accessible, assert_fits, pretend

STRICT = {"content-security-policy": "default-src 'self'"}


def show(page: Page, body: str, **headers: str) -> None:
    """Show a page of the service's origin."""
    html = f"<!DOCTYPE html><html lang=en><title>Made</title><main><h1>Made</h1>{body}</main>"
    pretend(page, "**/made", html, **headers)
    page.goto("/made")


def test_problems_of_a_page_are_detected(page: Page, problems: Problems) -> None:
    problems.expect("another origin|ERR_")
    cases: list[tuple[str, dict[str, str], str]] = [
        ("<script>console.error('odd')</script>", {}, "console: odd"),
        ("<script>nothing.is()</script>", {}, "script: nothing is not defined"),
        ("<script>1</script>", STRICT, "console: .*Content Security Policy"),
        ("<img alt='' src='/not-there.png'>", {}, "status 401: .*/not-there.png"),
        ("<img alt='' src='http://192.0.2.1/a.png'>", {}, "another origin: http://192.0.2.1/a.png"),
        ("<img alt='' src='http://www.example.org/a.png'>", {}, "request: .*: net::ERR_NAME_NOT_RESOLVED"),
    ]
    for body, headers, problem in cases:
        problems.expect(problem)
        show(page, body, **headers)


def test_inaccessible_pages_are_detected(page: Page) -> None:
    show(page, "<p>fine</p>")
    assert_accessible(page)
    assert_fits(page)
    show(page, "<style>@media (prefers-color-scheme: dark) {p {background: #000; color: #222}}</style><p>dark")
    with pytest.raises(AssertionError, match=r"dark.*color-contrast"):
        assert_accessible(page)
    show(page, "<input>")
    with pytest.raises(AssertionError, match="label"):
        assert_accessible(page)
    show(page, "<div style='width: 400px'>wide</div>")
    with pytest.raises(AssertionError, match=r"(40|48) px wider"):
        assert_fits(page)
    show(
        page, "<meta name=viewport content='width=device-width'><button style='width: 9px'>a</button><button>b</button>"
    )
    with pytest.raises(AssertionError, match="target-size"):
        assert_fits(page)

"""Browsers for tests of the console, and assertions about every page.

A test fails whose page logs an error, has a script that fails, breaks its Content-Security-Policy, asks for anything
that is not there, or for anything of another origin.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, Literal
from urllib.parse import parse_qs, urljoin, urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response, sync_playwright

from tests.console.planes import Plane

TIMEOUT = 60_000.0
"""Milliseconds; no test depends on it."""
PHONE = 360
LARGEST = 500_000
_FLAGS = [
    "--disable-dev-shm-usage",  # small in containers
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nothing leaves this machine
]
_LINKS = "all => all.map(each => each.getAttribute('href'))"
_AXE = (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
_HOW = {"resultTypes": ["violations"]}
_COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"]}
_TAPS = {"runOnly": ["target-size"]}
_SIDEWAYS = """() => [...document.querySelectorAll(".scroll:not(.tall)")]
    .filter(each => each.scrollWidth > each.clientWidth).map(each => `${each.ariaLabel}: ${each.scrollWidth} px`)"""
_WIDE = """() => {
    const root = document.documentElement, excess = root.scrollWidth - root.clientWidth
    const scrolls = element => element && element !== document.body &&
        (/auto|scroll|hidden|clip/.test(getComputedStyle(element).overflowX) || scrolls(element.parentElement))
    const wide = [...document.body.querySelectorAll("*")].filter(element =>
        element.getBoundingClientRect().right > root.clientWidth + 1 && !scrolls(element.parentElement))
    return [excess, wide.map(element => element.outerHTML.slice(0, 120)).slice(0, 5)]
}"""


class Problems:
    """The problems of the pages of a test."""

    def __init__(self) -> None:
        self._origins: set[str] = set()
        self._found: list[str] = []
        self._expected: list[str] = []

    def expect(self, pattern: str) -> None:
        """Expect a problem that matches this pattern."""
        self._expected.append(pattern)

    def allow(self, origin: str) -> None:
        """Allow requests to another origin."""
        self._origins.add(origin)

    @property
    def unexpected(self) -> list[str]:
        return [each for each in self._found if not any(re.search(pattern, each) for pattern in self._expected)]

    @property
    def missing(self) -> list[str]:
        """Expected problems that did not occur."""
        return [pattern for pattern in self._expected if not any(re.search(pattern, each) for each in self._found)]

    def watch(self, context: BrowserContext) -> None:
        context.on("console", self._logged)
        context.on("weberror", lambda error: self._found.append(f"script: {error.error}"))
        context.on("request", self._requested)
        context.on("response", self._answered)
        context.on("requestfailed", self._failed)

    def _logged(self, message: ConsoleMessage) -> None:
        # Of answers that are errors, and of requests that fail, `_answered` and `_failed` know more.
        if message.type in {"error", "warning"} and not message.text.startswith("Failed to load resource"):
            self._found.append(f"console: {message.text}")

    def _requested(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in {"data", "blob", "about"} and f"{parts.scheme}://{parts.netloc}" not in self._origins:
            self._found.append(f"another origin: {request.url}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400 and not response.request.is_navigation_request():  # a page may be an error
            self._found.append(f"status {response.status}: {response.url}")

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # by a page that is left
            self._found.append(f"request: {request.url}: {request.failure}")


class Browsing:
    """Opens pages of a console, each in a context of its own, as another user would."""

    def __init__(self, browser: Browser, plane: Plane, problems: Problems) -> None:
        self._browser, self._plane, self._problems = browser, plane, problems
        self._contexts: list[BrowserContext] = []

    def open(
        self, role: str = "", *, at: Plane | None = None, javascript: bool = True, width: int = 1280, **options: Any
    ) -> Page:
        """Return an empty page of a service, logged in with a key of a role if one is given."""
        plane = at or self._plane
        context = self._browser.new_context(
            base_url=plane.address,
            java_script_enabled=javascript,
            viewport={"width": width, "height": 800},
            reduced_motion="reduce",
            locale="en-GB",
            permissions=["local-network-access"],  # what keeps other sites out has to be ours
            **options,
        )
        self._contexts.append(context)
        context.set_default_timeout(TIMEOUT)
        self._problems.allow(plane.address)
        self._problems.watch(context)
        page = context.new_page()
        if role:
            if role in plane.sessions:
                context.add_cookies(plane.sessions[role])
            else:
                log_in(page, plane.key(role))
                plane.sessions[role] = context.cookies()
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Run Chromium. Until it ends, asyncio is Playwright's own in this thread: ``asyncio.run`` fails."""
    program = shutil.which("chromium")
    assert program, "chromium is needed: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            chromium_sandbox=False,  # which root has not
            args=_FLAGS,
            timeout=TIMEOUT,
        )
        try:
            yield browser
        finally:
            browser.close()


def log_in(page: Page, key: str) -> None:
    """Log in with a key, in the form."""
    send_key(page, key)
    page.wait_for_url(lambda url: not urlsplit(url).path.startswith("/login"))


def send_key(page: Page, key: str) -> None:
    """Send the log-in form, which may be refused."""
    page.goto("/login?next=/about")  # which does not refresh itself: a session that ends would be noticed at any time
    page.locator("input[name=key]").fill(key)
    with page.expect_navigation():
        page.locator("form:has(input[name=key]) [type=submit]").click()


def _kind(url: str) -> tuple[str, ...]:
    """Return the path and the parameter names of a URL: pages that share them look alike."""
    parts = urlsplit(url)
    return (parts.path, *sorted(parse_qs(parts.query, keep_blank_values=True)))


def pages(page: Page) -> Iterator[str]:
    """Go to every page that links lead to, one of each kind, and return its URL."""
    origin = ""
    waiting, seen = ["/"], {_kind("/"), _kind("/docs")}  # the reference of the API is a page of its own
    while waiting:
        url = waiting.pop(0)
        answer = page.goto(url)
        assert answer, url
        origin = origin or page.url.rstrip("/")
        assert answer.status == 200, f"{url}: {answer.status}"
        assert len(answer.body()) < LARGEST, url
        links = page.locator("a[href]").evaluate_all(_LINKS)
        yield url
        for link in links:
            parts = urlsplit(urljoin(f"{origin}{url}", link))
            assert parts.netloc == urlsplit(origin).netloc, f"{url} links to {link}"
            path = parts._replace(scheme="", netloc="", fragment="").geturl()
            if _kind(path) not in seen:
                seen.add(_kind(path))
                waiting.append(path)


def pretend(page: Page, url: str, html: str, **headers: str) -> None:
    """Let a URL of any site be this page, until it is another one.

    Interception stays on: requests that are under way while it is turned off may never end.
    """
    page.route(url, lambda route: route.fulfill(body=html, content_type="text/html", headers=headers))


def assert_accessible(page: Page) -> None:
    """Axe finds nothing serious, in light and in dark colours."""
    for scheme in _SCHEMES:
        page.emulate_media(color_scheme=scheme)
        page.evaluate("() => new Promise(requestAnimationFrame)")  # scripts have been notified by then
        found = _violations(page, _HOW if scheme == "light" else _COLOURS)
        assert not found, f"{page.url} ({scheme}): " + "\n".join(found)
    page.emulate_media(color_scheme="light")


_SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def assert_fits(page: Page, width: int = PHONE) -> None:
    """A narrow page and its tables need no scrolling to the side, and fingers can hit what is to be tapped."""
    before = page.viewport_size
    page.set_viewport_size({"width": width, "height": 740})
    excess, wide = page.evaluate(_WIDE)
    assert excess <= 0, f"{page.url} is {excess} px wider than {width}: " + "\n".join(wide)
    sideways = page.evaluate(_SIDEWAYS)
    assert not sideways, f"{page.url} at {width} px: " + "\n".join(sideways)
    found = _violations(page, _TAPS)
    assert not found, f"{page.url} at {width} px: " + "\n".join(found)
    if before:
        page.set_viewport_size(before)


def _violations(page: Page, how: dict[str, Any]) -> list[str]:
    if page.evaluate("() => typeof axe") == "undefined":
        page.evaluate(_AXE)
    found = page.evaluate("how => axe.run(document, how)", how)["violations"]
    return [
        f"{each['id']} ({each['impact']}): {each['help']}: {node['html'][:200]}: {node['failureSummary']}"
        for each in found
        if each["impact"] in {"serious", "critical"}
        for node in each["nodes"][:3]
    ]

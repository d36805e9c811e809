"""One browser and one service for the tests of the console; each test has pages of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.browsing import TIMEOUT, Browsing, Problems, running_browser
from tests.console.planes import Plane, running_plane


@pytest.fixture(scope="session")
def plane() -> Iterator[Plane]:
    """A service that tests share: each uses names of its own."""
    with running_plane() as running:
        yield running


@pytest.fixture(scope="package")
def in_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A service whose rules are in a file. Its keys may have three sessions each."""
    rules = tmp_path_factory.mktemp("in-file") / "rules.yaml"
    rules.write_text(
        "version: 1\nrules: [{id: each, limit: 5, window: 1h}]\nusers: {ada: {overrides: {each: {limit: 9}}}}"
    )
    with running_plane("--rules", str(rules), constants={"headgate.admin.sessions.MOST_OF_KEY": 3}) as running:
        yield running


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=TIMEOUT)
    with running_browser() as running:
        yield running


@pytest.fixture
def problems() -> Iterator[Problems]:
    """The problems of pages; a test declares those that it expects."""
    found = Problems()
    yield found
    assert not found.unexpected
    assert not found.missing


@pytest.fixture
def browsing(browser: Browser, plane: Plane, problems: Problems) -> Iterator[Browsing]:
    """Opens pages."""
    found = Browsing(browser, plane, problems)
    yield found
    found.close()


@pytest.fixture
def page(browsing: Browsing) -> Page:
    """A page without a session."""
    return browsing.open()

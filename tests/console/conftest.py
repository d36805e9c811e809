"""One browser and one service for the tests of the console; each test has pages of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.browsing import TIMEOUT, Browsing, Problems, running_browser
from tests.console.planes import Plane, running_plane


@pytest.fixture(scope="session")
def plane() -> Iterator[Plane]:
    """A service that tests share: what they make has names of its own."""
    with running_plane() as running:
        yield running


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=TIMEOUT)
    with running_browser() as running:
        yield running


@pytest.fixture
def problems() -> Iterator[Problems]:
    """What goes wrong in pages; a test says what it expects."""
    found = Problems()
    yield found
    assert not found.unexpected
    assert not found.missing


@pytest.fixture
def browsing(browser: Browser, plane: Plane, problems: Problems) -> Iterator[Browsing]:
    """What opens pages."""
    found = Browsing(browser, plane, problems)
    yield found
    found.close()


@pytest.fixture
def page(browsing: Browsing) -> Page:
    """A page without a session."""
    return browsing.open()

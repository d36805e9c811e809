"""The console during outages: every page comes, with what is known and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from playwright.sync_api import Page, expect

from headgate.admin.security import COOKIE
from tests.console.browsing import Browsing, send_key
from tests.console.planes import Plane, running_plane
from tests.console.test_every_page import MAIN
from tests.postgres import PostgresServer
from tests.server.process.service import SECONDS
from tests.servers import until


@pytest.fixture(scope="module")
def on_postgres(postgres: PostgresServer) -> Iterator[Plane]:
    """A service whose database can be stopped."""
    with running_plane("--database", postgres.database()) as plane:
        plane.rule("orders", limit=10_000, endpoint="/orders")
        plane.ask("POST", "/users/ada/override?wait=1m", {"rule_id": "orders", "limit": 9})
        yield plane


def test_pages_go_on_without_the_database_and_come_back_with_it(
    on_postgres: Plane, postgres: PostgresServer, browsing: Browsing
) -> None:
    page, watching, outside = (
        browsing.open("editor", at=on_postgres),
        browsing.open("viewer", at=on_postgres),
        browsing.open(at=on_postgres),
    )
    page.goto("/who?q=ad")
    expect(page.get_by_role("link", name="ada", exact=True)).to_be_visible()
    watching.goto("/")
    expect(watching.get_by_text("database is unavailable")).to_have_count(0)
    postgres.stop()
    try:
        expect(watching.get_by_text("database is unavailable").first).to_be_visible()
        for path in MAIN:
            answer = page.goto(path)
            assert answer, path
            assert answer.status in {200, 503}, path
            expect(page.get_by_role("heading", level=1), path).to_be_visible()
            expect(page.get_by_role("navigation").first, path).to_be_visible()
            if answer.status == 503:
                expect(page.locator("main"), path).to_contain_text("database")
        page.goto("/who?user=ada")
        expect(page.get_by_role("status")).to_contain_text("The database is unavailable")
        expect(page.get_by_role("listitem").filter(has_text="orders")).to_contain_text("of 9 used")
        expect(page.get_by_role("link", name="Raise")).to_have_count(0)
        page.goto("/who?q=ada")
        expect(page.get_by_role("link", name="Open as a user")).to_be_visible()
        assert on_postgres.check("maria", "/orders")["allowed"]
        send_key(outside, on_postgres.key("viewer"))
        expect(outside.get_by_role("alert")).to_contain_text("database")
        send_key(outside, on_postgres.key("admin"))  # which is known without it
        expect(outside.get_by_role("alert")).to_contain_text("sessions cannot be saved")
        outside.context.add_cookies([{"name": COOKIE, "value": "x" * 43, "url": on_postgres.address}])
        outside.goto("/rules")
        expect(outside.get_by_role("heading", level=1)).to_have_text("Service Unavailable")
        outside.goto("/login")
        expect(outside.get_by_label("API key")).to_be_visible()
    finally:
        postgres.start()
    expect(watching.get_by_text("database is unavailable")).to_have_count(0)
    for path in MAIN:
        until(partial(_is_there, page, path), path, SECONDS)


def _is_there(page: Page, path: str) -> bool:
    answer = page.goto(path)
    return answer is not None and answer.status == 200

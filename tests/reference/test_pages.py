"""The files of the API reference, as both planes serve them."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import httpx
import pytest

from headgate.reference.pages import PATHS
from headgate.web.apikey import digest
from tests.server.process.service import SECONDS, Service, service

KEY = "hg_an-operators-own-key-of-some-length"
ROOT = files("headgate.reference")


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    with service(environment={"HEADGATE_ADMIN_KEY": KEY}) as found:
        yield found.started()


@pytest.fixture(params=["admin", "http"])
def address(running: Service, request: pytest.FixtureRequest) -> str:
    return f"http://127.0.0.1:{getattr(running, f'{request.param}_port')}"


def get(url: str, **headers: str) -> httpx.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.get(url, headers=sent, timeout=SECONDS)


def test_all_of_it_is_served_without_a_key_and_may_run_only_what_is_served(address: str) -> None:
    for path in sorted(PATHS):
        answer = get(f"{address}{path}")
        assert answer.status_code == 200, path
        policies = answer.headers.get_list("content-security-policy")
        assert len(policies) == 1, path
        assert policies[0].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert not re.search(r"unsafe|https?:|\*", policies[0])
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers.get_list("cache-control") == ["no-cache"]


def test_a_file_that_the_browser_has_is_not_sent_again(address: str) -> None:
    for path in sorted(PATHS):
        etag = get(f"{address}{path}").headers["etag"]
        again = get(f"{address}{path}", if_none_match=etag)
        assert (again.status_code, again.content) == (304, b""), path
        assert get(f"{address}{path}", if_none_match='"another"').status_code == 200


def test_what_is_large_is_sent_compressed(address: str) -> None:
    sent = [get(f"{address}{path}") for path in sorted(PATHS)]
    assert sum(int(answer.headers["content-length"]) for answer in sent) < 750_000
    script = get(f"{address}/docs/swagger-ui.js")
    assert (script.headers["content-encoding"], script.headers["content-type"]) == (
        "gzip",
        "text/javascript; charset=utf-8",
    )
    assert int(script.headers["content-length"]) < len(script.content) // 3


def test_a_plane_shows_its_own_document(running: Service) -> None:
    admin, decision = (
        get(f"http://127.0.0.1:{port}/openapi.json").json() for port in (running.admin_port, running.http_port)
    )
    assert ("/api/v1/rules" in admin["paths"], "/api/v1/rate-limit/check" in decision["paths"]) == (True, True)
    assert not set(admin["paths"]) & set(decision["paths"])


def test_the_page_names_only_files_of_its_own() -> None:
    html = ROOT.joinpath("reference.html").read_text()
    named = {f"/{name}" for name in re.findall(r'(?:src|href)="([^"]*)"', html) if name != "data:,"}
    assert named | {"/docs"} == PATHS
    for name in ("reference.html", "reference.css", "reference.js"):
        assert not re.search(r"https?:|//[a-z]|style=|onclick", ROOT.joinpath(name).read_text())


def test_the_decision_plane_shows_it_without_a_key_of_a_caller(tmp_path: Path) -> None:
    (tmp_path / "callers").write_text(f"edge {digest('k' * 40)}\n")
    with service("--caller-keys", str(tmp_path / "callers")) as found:
        address = f"http://127.0.0.1:{found.started().http_port}"
        assert {get(f"{address}{path}").status_code for path in PATHS} == {200}
        assert get(f"{address}/hotkeys").status_code == 401


def test_the_decision_plane_need_not_have_it() -> None:
    with service("--http-docs", "off") as found:
        address = f"http://127.0.0.1:{found.started().http_port}"
        assert {get(f"{address}{path}").status_code for path in PATHS} == {404}


def test_the_files_of_swagger_ui_are_those_that_were_published() -> None:
    """`make swagger` renews them, with their digests."""
    folder = ROOT / "swagger-ui"
    version, *sums = folder.joinpath("SHA256SUMS").read_text().splitlines()
    assert re.fullmatch(r"# swagger-ui-dist \d+\.\d+\.\d+", version)
    for line in sums:
        expected, name = line.split()
        assert sha256(gzip.decompress(folder.joinpath(f"{name}.gz").read_bytes())).hexdigest() == expected
    assert {each.name for each in folder.iterdir()} == {
        *(f"{line.split()[1]}.gz" for line in sums),
        *("LICENSE", "NOTICE", "SHA256SUMS", "swagger-ui-bundle.js.LICENSE.txt"),
    }

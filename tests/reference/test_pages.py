"""The files of the API reference, as both planes serve them."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files

import httpx
import pytest

from headgate.reference.pages import PATHS
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


def test_files_are_public_compressed_cached_and_run_only_their_own_scripts(address: str) -> None:
    length = 0
    for path in sorted(PATHS):
        answer = get(f"{address}{path}")
        assert answer.status_code == 200, path
        (policy,) = answer.headers.get_list("content-security-policy")
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert not re.search(r"unsafe|https?:|\*", policy)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers.get_list("cache-control") == ["no-cache"]
        length += int(answer.headers["content-length"])
        if path == "/docs/swagger-ui.js":
            assert answer.headers["content-encoding"] == "gzip"
            assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
            assert int(answer.headers["content-length"]) < len(answer.content) // 3
        again = get(f"{address}{path}", if_none_match=answer.headers["etag"])
        assert (again.status_code, again.content) == (304, b""), path
        assert get(f"{address}{path}", if_none_match='"another"').status_code == 200
    assert length < 750_000


def test_a_plane_shows_its_own_document(running: Service) -> None:
    admin, decision = (
        get(f"http://127.0.0.1:{port}/openapi.json").json() for port in (running.admin_port, running.http_port)
    )
    assert ("/api/v1/rules" in admin["paths"], "/api/v1/rate-limit/check" in decision["paths"]) == (True, True)
    assert not set(admin["paths"]) & set(decision["paths"])


def test_the_page_names_only_its_own_files() -> None:
    html = ROOT.joinpath("reference.html").read_text()
    named = {f"/{name}" for name in re.findall(r'(?:src|href)="([^"]*)"', html) if name != "data:,"}
    assert named | {"/docs"} == PATHS
    for name in ("reference.html", "reference.css", "reference.js"):
        assert not re.search(r"https?:|//[a-z]|style=|onclick", ROOT.joinpath(name).read_text())


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

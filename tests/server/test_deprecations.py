"""Paths that are going to go are announced in their answers, as a file says; a file that is wrong is refused."""

from __future__ import annotations

import asyncio
from http.client import HTTPConnection
from pathlib import Path

import pytest

from headgate.config.problems import InvalidRules
from headgate.server.deprecations import announcing, load_deprecations
from headgate.server.wire.messages import HttpRequest, HttpResponse, answered
from headgate.web.deprecation import Deprecation, Deprecations
from tests.docs.test_blocks import BLOCKS
from tests.server.process.service import SECONDS, service

START, END = 1_798_761_600_000_000, 1_814_400_000_000_000
(FILE,) = [block.text for block in BLOCKS if block.page.name == "api.md" and block.file == "deprecations.yaml"]
(SHOWN,) = [block.text for block in BLOCKS if block.page.name == "api.md" and block.text.startswith("deprecation: @")]
FIELDS = dict(line.split(": ", 1) for line in SHOWN.splitlines())


def read(folder: Path, text: str) -> Deprecations:
    (folder / "deprecations.yaml").write_text(text)
    return load_deprecations(folder / "deprecations.yaml")


def test_the_fields_are_those_of_the_page(tmp_path: Path) -> None:
    found = read(tmp_path, FILE).fields("/api/v1/rate-limit/check")
    assert {name.decode(): value.decode() for name, value in found} == FIELDS


def test_the_longest_path_counts_and_only_whole_segments_do() -> None:
    one, two = Deprecation("/api/v1", START), Deprecation("/api/v1/rules/", START + 1_000_000, END)
    found = Deprecations((one, two))
    assert found.fields("/api/v1") == found.fields("/api/v1/usage") == one.fields
    assert found.fields("/api/v1/rules/a") == two.fields
    assert found.fields("/api/v10") == found.fields("/metrics") == ()
    assert Deprecations((Deprecation("/", START),)).fields("/metrics")
    assert not Deprecations()


def test_without_any_a_handler_is_left_as_it_is() -> None:
    async def handler(_: HttpRequest) -> HttpResponse:
        return HttpResponse(200, b"", ((b"x", b"y"),))

    assert announcing(handler, Deprecations()) is handler
    entry = Deprecation("/a", START)
    announced = announcing(handler, Deprecations((entry,)))
    answers = [asyncio.run(answered(announced, HttpRequest(b"GET", path, b""))) for path in (b"/a", b"/b")]
    assert [answer.headers for answer in answers] == [((b"x", b"y"), *entry.fields), ((b"x", b"y"),)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is nothing in it"),
        ("version: 1", "deprecations"),
        ("version: 1\ndeprecations: [{path: api, deprecated: 2027-01-01T00:00:00Z}]", "a path such as /api/v1"),
        ("version: 1\ndeprecations: [{path: /a}]", "deprecated"),
        ("version: 1\ndeprecations: [{path: /a, deprecated: 2027-01-01}]", "a moment with its time zone"),
        ("version: 1\ndeprecations: [{path: /a, deprecated: 2027-01-01T00:00:00Z, sunst: x}]", "sunset"),
        (
            "version: 1\ndeprecations: [{path: /a, deprecated: 2027-01-01T00:00:00Z, sunset: 2026-01-01T00:00:00Z}]",
            "is before the path is deprecated",
        ),
        (
            "version: 1\ndeprecations:\n" + "  - {path: /a, deprecated: 2027-01-01T00:00:00Z}\n" * 2,
            "/a is listed twice",
        ),
        (
            'version: 1\ndeprecations: [{path: /a, deprecated: 2027-01-01T00:00:00Z, link: "https://x/> a"}]',
            "an address such as https://",
        ),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidRules) as caught:
        read(tmp_path, text)
    assert said in str(caught.value)


@pytest.mark.parametrize(("sunset", "warnings"), [("2027-07-01T00:00:00Z", 0), ("2027-06-30T00:00:00Z", 1)])
def test_less_than_six_months_of_notice_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sunset: str, warnings: int
) -> None:
    entry = f"{{path: /a, deprecated: 2027-01-01T00:00:00Z, sunset: {sunset}}}"
    assert read(tmp_path, f"version: 1\ndeprecations: [{entry}]").fields("/a")
    assert caplog.text.count("sunset: is less than six months after the path is deprecated") == warnings


def test_a_service_announces_on_both_planes(tmp_path: Path) -> None:
    (tmp_path / "deprecations.yaml").write_text(FILE)
    key = "hg_" + "k" * 40
    environment = {"HEADGATE_RULES": "", "HEADGATE_ADMIN_KEY": key}
    with service("--deprecations", "deprecations.yaml", environment=environment, cwd=tmp_path) as found:
        found.started()
        for port, path, headers in (
            (found.http_port, "/api/v1/rate-limit/rules", {}),
            (found.admin_port, "/api/v1/rules", {"authorization": f"Bearer {key}"}),
            (found.admin_port, "/api/v1/rules", {}),
        ):
            connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            connection.close()
            assert {name: response.headers[name] for name in FIELDS} == FIELDS, path
        connection = HTTPConnection("127.0.0.1", found.http_port, timeout=SECONDS)
        connection.request("GET", "/healthz")
        assert connection.getresponse().headers["deprecation"] is None
        connection.close()


def test_a_service_with_a_wrong_file_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "deprecations.yaml").write_text("version: 2")
    with service("--deprecations", "deprecations.yaml", cwd=tmp_path) as found:
        assert found.ended() == 2
        assert "deprecations.yaml:1" in found.complained
        assert "Traceback" not in found.complained

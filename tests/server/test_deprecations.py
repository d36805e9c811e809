"""Deprecated paths are announced in responses; invalid files are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.cli.__main__ import main
from headgate.config.problems import InvalidRules
from headgate.server.deprecations import announcing, load_deprecations
from headgate.server.wire.messages import HttpRequest, HttpResponse, answered
from headgate.web.deprecation import Deprecation, Deprecations
from tests.docs.test_blocks import BLOCKS
from tests.server.process.service import service
from tests.servers import fetched

START, END = 1_798_761_600_000_000, 1_814_400_000_000_000
(FILE,) = [block.text for block in BLOCKS if block.page.name == "api.md" and block.file == "deprecations.yaml"]
(SHOWN,) = [block.text for block in BLOCKS if block.page.name == "api.md" and block.text.startswith("deprecation: @")]
FIELDS = dict(line.split(": ", 1) for line in SHOWN.splitlines())


def read(folder: Path, text: str) -> Deprecations:
    (folder / "deprecations.yaml").write_text(text)
    return load_deprecations(folder / "deprecations.yaml")


def test_the_fields_are_those_of_the_documentation(tmp_path: Path) -> None:
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


def test_without_deprecations_the_handler_is_unchanged() -> None:
    async def handler(_: HttpRequest) -> HttpResponse:
        return HttpResponse(200, b"", ((b"x", b"y"),))

    assert announcing(handler, Deprecations()) is handler
    entry = Deprecation("/a", START)
    announced = announcing(handler, Deprecations((entry,)))
    answers = [asyncio.run(answered(announced, HttpRequest(b"GET", path, b""))) for path in (b"/a", b"/b")]
    assert [answer.headers for answer in answers] == [((b"x", b"y"), *entry.fields), ((b"x", b"y"),)]


def test_problems_are_reported(tmp_path: Path) -> None:
    entry = "{path: /a, deprecated: 2027-01-01T00:00:00Z"
    for text, message in (
        *(("", "is empty"), ("version: 1", "deprecations")),
        ("version: 1\ndeprecations: [{path: api, deprecated: 2027-01-01T00:00:00Z}]", "a path such as /api/v1"),
        ("version: 1\ndeprecations: [{path: /a}]", "deprecated"),
        ("version: 1\ndeprecations: [{path: /a, deprecated: 2027-01-01}]", "a time with its time zone"),
        (f"version: 1\ndeprecations: [{entry}, sunst: x}}]", "sunset"),
        (f"version: 1\ndeprecations: [{entry}, sunset: 2026-01-01T00:00:00Z}}]", "is before the path is deprecated"),
        (f"version: 1\ndeprecations: [{entry}}}, {entry}}}]", "/a is listed twice"),
        (f'version: 1\ndeprecations: [{entry}, link: "https://x/> a"}}]', "an address such as https://"),
    ):
        with pytest.raises(InvalidRules) as caught:
            read(tmp_path, text)
        assert message in str(caught.value)


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
        for port, path, headers, is_announced in (
            (found.http_port, "/api/v1/rate-limit/rules", {}, True),
            (found.admin_port, "/api/v1/rules", {"authorization": f"Bearer {key}"}, True),
            (found.admin_port, "/api/v1/rules", {}, True),
            (found.http_port, "/healthz", {}, False),
        ):
            shown = fetched(port, path, **headers).headers
            expected = FIELDS if is_announced else dict.fromkeys(FIELDS)
            assert {name: shown.get(name) for name in FIELDS} == expected, path


def test_a_service_with_a_wrong_file_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deprecations.yaml").write_text("version: 2")
    assert main(["serve", "--check", "--deprecations", str(tmp_path / "deprecations.yaml")]) == 2
    assert "deprecations.yaml:1" in capsys.readouterr().err

"""What README and docs say is so: their code runs and prints what they claim, their links and commands exist."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

import headgate
from headgate.cli.__main__ import main
from headgate.policy import envoy
from headgate.policy.loading import read_file
from tests.server.process.service import Service, service
from tests.servers import RedisServer, redis_server

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
SCRIPTS = [path for path in EXAMPLES if path.name != "demo.py"]  # the demo has tests of its own
REDIS = "redis://localhost:6379/0"
"""Examples on this server get one of their own."""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CLAIM = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)


def name(path: object) -> str:
    return path.name if isinstance(path, Path) else str(path)


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(page.read_text()) if found == language]


def links(page: Path) -> list[str]:
    return [link for link in LINK.findall(BLOCK.sub("", page.read_text())) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """The names under which the headings of a page can be linked to."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def modules() -> list[str]:
    return ["headgate", *(found.name for found in pkgutil.walk_packages(headgate.__path__, "headgate."))]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_snippet_is_part_of_an_example(page: Path) -> None:
    sources = [path.read_text() for path in EXAMPLES]
    for block in blocks(page, "python"):
        variants = [indent(dedent(block), " " * depth) for depth in (0, 4, 8)]
        assert any(variant in source for variant in variants for source in sources), block


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_rules_in_a_page_are_part_of_a_file_that_loads(page: Path) -> None:
    examples = ROOT / "docs" / "examples"
    for_envoy = sorted((examples / "ratelimit").glob("*.yaml"))
    assert envoy.load({path.name: path.read_text() for path in for_envoy}).warnings == ()
    files = [*for_envoy, *(path for path in examples.glob("*.yaml") if not read_file(path).warnings)]
    for folder in ("envoy", "identity"):  # what they are for loads them, in tests of their own
        files += (examples / folder).rglob("*.yaml")
    for block in blocks(page, "yaml"):
        variants = [indent(dedent(block), " " * depth).strip("\n") for depth in range(0, 40, 2)]
        assert any(variant in path.read_text() for variant in variants for path in files), block


@pytest.fixture(scope="module")
def service_of_examples() -> Iterator[Service]:
    with service("--rules", str(ROOT / "docs" / "examples" / "rules.yaml")) as found:
        yield found.started()


def asking(found: Service, words: list[str]) -> list[str]:
    """The words of a command, which asks a service that is there rather than the one on the usual ports."""
    for usual, port in ((8080, found.http_port), (8081, found.grpc_port)):
        words = [word.replace(f"127.0.0.1:{usual}", f"127.0.0.1:{port}") for word in words]
    return words


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_of_a_page_run(page: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(ROOT / "docs" / "examples")
    for line in "".join(blocks(page, "sh")).splitlines():
        if line.startswith("headgate "):
            words = shlex.split(line, comments=True)[1:]
            if words[0] == "serve":
                words.append("--check")  # a service would not end
            elif words[0] in {"check", "load"}:
                found: Service = request.getfixturevalue("service_of_examples")
                monkeypatch.setenv("HEADGATE_URL", f"http://127.0.0.1:{found.http_port}")
                words = asking(found, words)
            assert main(words) == 0, line


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_an_example_prints_what_its_comments_claim(
    script: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    text = script.read_text()
    if REDIS in text:
        text = text.replace(REDIS, request.getfixturevalue("server").address)
    exec(compile(text, str(script), "exec"), {"__name__": "__main__", "__file__": str(script)})  # noqa: S102  our own
    claims = CLAIM.findall(text)
    assert claims
    assert capsys.readouterr().out.splitlines() == claims


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_resolve(page: Path) -> None:
    for link in links(page):
        target, _, anchor = link.partition("#")
        path = page.parent / target if target else page
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in links(ROOT / "README.md")}
    assert {str(page.relative_to(ROOT)) for page in PAGES[1:]} <= linked


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_quoted_commands_are_targets_of_the_makefile(page: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    quoted = set(re.findall(r"(?:^|`)make (\w+)", page.read_text(), re.MULTILINE))
    assert quoted <= targets
    assert page.name != "README.md" or {"run", "test"} <= quoted


@pytest.mark.parametrize("module", modules())
def test_doctests(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0


@pytest.fixture(scope="module")
def plots() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "plots.py"))


def test_pictures_show_the_data_of_today(plots: dict[str, Any]) -> None:
    """Each picture carries the digest of its data; where this fails, run ``make plots``."""
    runs = plots["runs"]()
    images = {path.stem: path.read_text() for path in (ROOT / "docs" / "images").glob("*.svg")}
    assert images.keys() == runs.keys()
    for picture, run in runs.items():
        assert run.digest in images[picture], picture


def test_every_picture_is_on_the_page() -> None:
    shown = {Path(link).name for link in links(ROOT / "docs" / "algorithms.md") if link.endswith(".svg")}
    assert shown == {path.name for path in (ROOT / "docs" / "images").iterdir()}


def test_the_table_below_the_pictures_has_their_numbers(plots: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text()
    most, second, window = plots["most_within"], plots["SECOND"], plots["WINDOW"]
    for algorithm, run in plots["runs"]().items():
        times = run.released
        numbers = [len(times), most(times, second), most(times, 2 * second), most(times, window)]
        row = f"| `{algorithm}`{' queue' if run.quota.queue else ''} | {' | '.join(map(str, numbers))} |"
        assert row in page


def test_the_fixed_window_shows_its_boundary_burst_and_the_others_do_not(plots: dict[str, Any]) -> None:
    in_two_seconds = {
        algorithm: plots["most_within"](run.released, 2 * plots["SECOND"]) for algorithm, run in plots["runs"]().items()
    }
    assert in_two_seconds.pop("fixed_window") == 2 * plots["LIMIT"]
    assert max(in_two_seconds.values()) <= plots["LIMIT"] + 1

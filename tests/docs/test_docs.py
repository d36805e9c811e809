"""README and docs: their links, commands, pictures, options and figures are right. `test_blocks` runs their code."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate import live
from headgate.cli.greeting import trial
from headgate.cli.serve import options, shown
from headgate.core.key import LITERAL, ONCE_US
from headgate.engine.base import LONGEST_MS
from headgate.observe import hot_keys, logs
from headgate.observe.recorder import MOST_BY_VALUE, MOST_SERIES
from headgate.replay import results
from headgate.server import node, supervisor
from headgate.server.settings import API_SECONDS, RLS_SECONDS, STORE_SECONDS, Settings
from headgate.server.wire.limits import WireLimits
from headgate.stores import memory
from headgate.stores.breaker import THRESHOLD
from headgate.stores.fallback import MAX_SEEN
from headgate.stores.redis import batching, pool
from headgate.stores.redis.address import Address

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *(ROOT / "examples" / name / "README.md" for name in ("demo", "microservices")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = Address()
WORDS = {0.5: "half a second", 1: "every second", 5: "five"}
FIGURES = [
    ("concepts", f"Keys longer than {LITERAL} characters"),
    ("concepts", f"`max_keys` states ({memory.MAX_KEYS:,} by default"),
    ("concepts", f"share up to {memory._OVERFLOW_STATES} *overflow* states"),
    ("rules", f"`LivePolicy` polls it every {WORDS[live.EVERY]} after its start"),
    ("operate", f"in the address, {1000 * ADDRESS.timeout:g} ms by default"),
    ("operate", f"after {WORDS[THRESHOLD]} failures in a row"),
    ("operate", f"the last {MAX_SEEN:_} limits, at least".replace("_", " ")),
    ("operate", f"for {WORDS[ONCE_US // 60_000_000]} minutes the first admission is replayed"),
    ("operate", f"in an event loop {batching.LONGEST_QUEUE:_} wait at most".replace("_", " ")),
    ("deploy", f"one script call decides up to {batching.LARGEST_BATCH} requests"),
    ("deploy", f"| `timeout` | {ADDRESS.timeout:g}; {STORE_SECONDS:g} in [the service]"),
    ("deploy", f"| `connect_timeout` | {ADDRESS.connect_timeout:g} |"),
    ("deploy", f"| `connections` | {batching.CONNECTIONS} (event loop), {pool.CONNECTIONS} (threads) |"),
    ("deploy", f"{Settings().drain_seconds:g} s by default, and {supervisor._GRACE:g} s for what follows"),
    ("operate", f"Each worker reads them every {WORDS[live.EVERY]}"),
    ("service", f"after a pause of up to {supervisor._LONGEST_PAUSE:g} s if it died soon after its start"),
    ("service", f"sends no heartbeat for {supervisor.PATIENCE:g} s"),
    ("service", f"over all connections, is limited to {WireLimits().held_bytes >> 20} MiB"),
    ("api", f"with the same key within {ONCE_US // 60_000_000} minutes is counted once"),
    ("envoy", f"A store on the network gets {1000 * RLS_SECONDS:g} ms"),
    ("observe", f"are copied there {WORDS[node._PUBLISH_EVERY]}"),
    ("observe", f"of which the first {MOST_BY_VALUE} values have separate names"),
    ("observe", f"at most {MOST_SERIES:_} series".replace("_", " ")),
    ("observe", f"a half-life of {hot_keys.HALF_LIFE} seconds"),
    (
        "observe",
        f"are one decision in {hot_keys.EVERY}, and every refusal up to {hot_keys.DENIALS} a second",
    ),
    ("observe", f"at most {2 * hot_keys.SIZE} keys of each kind are counted"),
    ("observe", f"A key that makes up more than 1 in {hot_keys.SIZE} of the samples"),
    ("observe", f"{logs.PER_RULE} a second for each rule and {logs.IN_ALL} a second in total"),
    ("replay", f"Exact up to {2 * results.sizes_for(1)[0]:,} callers of a rule"),
    ("replay", f"exact up to {2 * results.sizes_for(1)[1]} refused callers of a rule"),
    ("replay", f"at most {results.MOST_BUCKETS} buckets"),
    ("replay", f"At most {memory.MAX_KEYS:,} limits are kept"),
    ("observe", f"texts are truncated to {logs.LONGEST_TEXT} characters"),
]
"""Numbers on pages that are constants of the code."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def links(page: Path) -> list[str]:
    return [link for link in LINK.findall(BLOCK.sub("", page.read_text())) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def modules() -> list[str]:
    return ["headgate", *(found.name for found in pkgutil.walk_packages(headgate.__path__, "headgate."))]


def test_relative_links_resolve() -> None:
    for page in PAGES:
        for link in links(page):
            target, _, anchor = link.partition("#")
            path = page.parent / target if target else page
            assert path.exists(), f"{page}: {link}"
            assert not anchor or anchor in anchors(path), f"{page}: {link}"


def test_every_page_is_linked_from_the_readme_or_from_the_page_of_its_folder() -> None:
    linked = {link.partition("#")[0] for link in links(ROOT / "README.md")}
    for folder in ("frameworks", "benchmarks"):
        linked |= {f"docs/{link.partition('#')[0]}" for link in links(ROOT / "docs" / f"{folder}.md")}
    assert {str(page.relative_to(ROOT)) for page in PAGES[1:]} <= linked


def test_the_first_example_of_a_framework_has_five_lines() -> None:
    for page in (ROOT / "docs" / "frameworks").glob("*.md"):
        language, first = BLOCK.findall(page.read_text())[0]
        assert language == "python", page
        assert len([line for line in first.splitlines() if line.strip()]) <= 5, page


def test_quoted_commands_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    quoted = {page: set(re.findall(r"(?:^|`)make (\w+)", page.read_text(), re.MULTILINE)) for page in PAGES}
    assert {page.name: found - targets for page, found in quoted.items() if found - targets} == {}
    assert {"run", "test"} <= quoted[ROOT / "README.md"]


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    row = r"^\| (HTTP check|RLS)(?: by rules)?, memory, allowed \| .*, ([\d,]+) a second"
    rates = dict(re.findall(row, BENCHMARKS.read_text(), re.MULTILINE))
    assert f"{rates['HTTP check']} checks a second over HTTP, and {rates['RLS']} over Envoy's protocol" in readme


def test_the_figures_of_pages_are_those_of_the_code() -> None:
    texts = {page: " ".join((ROOT / "docs" / f"{page}.md").read_text().split()) for page, _ in FIGURES}
    assert [(page, figure) for page, figure in FIGURES if figure not in texts[page]] == []


def test_defaults_are_called_defaults() -> None:
    texts = {path: path.read_text() for folder in ("src", "docs") for path in (ROOT / folder).rglob("*.[mp][dy]")}
    assert [path for path, text in texts.items() if re.search(r"unless\s+(told|given)", text)] == []


def test_the_site_has_a_search_and_loads_nothing_from_other_sites(tmp_path: Path) -> None:
    """A dead link or anchor is an error of the build."""
    done = subprocess.run(
        ["/usr/bin/env", "make", "docs", f"SITE={tmp_path}"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sliding_window_counter" in (tmp_path / "search" / "search_index.json").read_text()
    for page in ("index.html", "docs/operate.html"):
        loaded = re.findall(
            r"<(?:script|img|link rel=.stylesheet.)[^>]* (?:src|href)=.?([^ >\"]+)", (tmp_path / page).read_text()
        )
        assert loaded, page
        assert [each for each in loaded if "//" in each] == [], page


def test_the_glossary_has_the_words_of_rules_answers_and_envoy() -> None:
    words = set(re.findall(r"\*([a-z]+)\*", (ROOT / "docs" / "concepts.md").read_text().partition("The verbs")[0]))
    assert {"principal", "dimension", "tier", "shadow", "degraded", "mode", "node", "descriptor", "share"} <= words


def test_doctests() -> None:
    results = {module: doctest.testmod(importlib.import_module(module)) for module in modules()}
    assert [module for module, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values())


@pytest.fixture(scope="module")
def plots() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "plots.py"))


def test_pictures_show_current_data(plots: dict[str, Any]) -> None:
    """Each picture has the digest of its data; ``make plots`` renews them."""
    runs = plots["runs"]()
    drawn = runpy.run_path(str(ROOT / "docs" / "diagrams.py"))["DIAGRAMS"]
    images = {path.stem: path.read_text() for path in (ROOT / "docs" / "images").glob("*.svg")}
    assert images.keys() == runs.keys() | drawn.keys()
    for picture, run in runs.items():
        assert run.digest in images[picture], picture
    for picture, draw in drawn.items():
        assert images[picture] == draw(), picture


def test_every_picture_is_on_a_page() -> None:
    shown = {Path(link).name for page in PAGES for link in links(page) if link.endswith((".svg", ".png"))}
    assert shown >= {path.name for path in (ROOT / "docs" / "images").iterdir()}


def test_the_table_below_the_pictures_has_their_numbers(plots: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text()
    most, second, window = plots["most_within"], plots["SECOND"], plots["WINDOW"]
    for algorithm, run in plots["runs"]().items():
        times = run.released
        numbers = [len(times), most(times, second), most(times, 2 * second), most(times, window)]
        row = f"| `{algorithm}`{' queue' if run.quota.queue else ''} | {' | '.join(map(str, numbers))} |"
        assert row in page
        assert numbers[2] in ({2 * plots["LIMIT"]} if algorithm == "fixed_window" else range(plots["LIMIT"] + 2))


def test_the_page_of_the_service_has_its_options_and_deadlines() -> None:
    page = (ROOT / "docs" / "service.md").read_text()
    for option in options():
        default = f"`{shown(option.default)}`" if option.default not in {"", ()} else ""
        about = option.about.replace("|", r"\|").replace("*", r"\*")
        assert f"| `{option.argument}` {option.metavar} | {default} | {about} |" in page
    assert len(re.findall(r"^\| `--", page, re.MULTILINE)) == len([*options()])
    assert re.findall(r"^\| \*\*(.+)\*\* \|", page, re.MULTILINE) == [each.group for each in options() if each.group]
    assert trial(Settings(), 8080) in page
    assert f"by default | {RLS_SECONDS * 1000:g} ms |" in page
    assert f"gRPC without a deadline | {API_SECONDS * 1000:g} ms |" in page
    assert f"at least {RLS_SECONDS * 1000:g} ms, at most {STORE_SECONDS:g} s" in page
    assert LONGEST_MS == STORE_SECONDS * 1000


def test_the_page_of_conformance_has_the_report_of_h2spec() -> None:
    """docs/h2spec.py makes the report, with a program in Go."""
    page = (ROOT / "docs" / "conformance.md").read_text()
    report = (ROOT / "docs" / "conformance" / "h2spec.txt").read_text()
    found = re.findall(r"^HTTP/2 (.+): (\d+) cases, (\d+) passed", report, re.MULTILINE)
    assert len(found) == 2
    for transport, cases, passed in found:
        assert f"| {transport} | {cases} | {passed} |" in page
    lines = [line for line in report.splitlines() if line.startswith(("passed", "FAILED"))]
    assert len(lines) == sum(int(cases) for _, cases, _ in found)
    failed = re.findall(r"^FAILED +(.+)$", report, re.MULTILINE)
    assert failed == ["http2/3.5        Sends invalid connection preface"]

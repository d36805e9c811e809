"""What README and docs say is so: their links, commands and pictures are there. `test_blocks` runs their code."""

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
from headgate.core.key import LITERAL, ONCE_US
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
    ("rules", f"`LivePolicy` asks it every {WORDS[live.EVERY]} when it is started"),
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
    ("service", f"checked every {WORDS[live.EVERY]}"),
    ("service", f"after a pause of up to {supervisor._LONGEST_PAUSE:g} s if it died young"),
    ("service", f"gives no sign of life for {supervisor.PATIENCE:g} s"),
    ("service", f"over all connections, is limited to {WireLimits().held_bytes >> 20} MiB"),
    ("api", f"with the same key within {ONCE_US // 60_000_000} minutes is counted once"),
    ("envoy", f"A store on the network gets {1000 * RLS_SECONDS:g} ms for an answer"),
    ("observe", f"are copied there {WORDS[node._PUBLISH_EVERY]}"),
    ("observe", f"of which the first {MOST_BY_VALUE} values have names of their own"),
    ("observe", f"at most {MOST_SERIES:_} series".replace("_", " ")),
    ("observe", f"what was {hot_keys.HALF_LIFE} seconds ago weighs half of what is now"),
    (
        "observe",
        f"One decision in {hot_keys.EVERY} is sampled, and every refusal up to {hot_keys.DENIALS} in a second",
    ),
    ("observe", f"{2 * hot_keys.SIZE} keys of each kind are counted at most"),
    ("observe", f"A key that makes up more than 1 in {hot_keys.SIZE} of the samples"),
    ("observe", f"{logs.PER_RULE} in a second for each rule and {logs.IN_ALL} in all"),
    ("replay", f"Exact up to {2 * results.sizes_for(1)[0]:,} callers of a rule"),
    ("replay", f"exact up to {2 * results.sizes_for(1)[1]} refused callers of a rule"),
    ("replay", f"at most {results.MOST_BUCKETS} buckets"),
    ("replay", f"At most {memory.MAX_KEYS:,} limits are kept"),
    ("observe", f"texts are cut after {logs.LONGEST_TEXT} characters"),
]
"""What pages say in numbers that the code has too. Other tests hold the code to what it does with them."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name(path: object) -> str:
    return path.name if isinstance(path, Path) else str(path)


def links(page: Path) -> list[str]:
    return [link for link in LINK.findall(BLOCK.sub("", page.read_text())) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """The names under which the headings of a page can be linked to."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def modules() -> list[str]:
    return ["headgate", *(found.name for found in pkgutil.walk_packages(headgate.__path__, "headgate."))]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_resolve(page: Path) -> None:
    for link in links(page):
        target, _, anchor = link.partition("#")
        path = page.parent / target if target else page
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link


def test_every_page_is_linked_from_the_readme_or_from_the_page_of_its_folder() -> None:
    linked = {link.partition("#")[0] for link in links(ROOT / "README.md")}
    for folder in ("frameworks", "benchmarks"):
        linked |= {f"docs/{link.partition('#')[0]}" for link in links(ROOT / "docs" / f"{folder}.md")}
    assert {str(page.relative_to(ROOT)) for page in PAGES[1:]} <= linked


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "frameworks").glob("*.md")), ids=name)
def test_a_framework_takes_five_lines_to_begin_with(page: Path) -> None:
    """`test_blocks` runs them."""
    language, first = BLOCK.findall(page.read_text())[0]
    assert language == "python"
    assert len([line for line in first.splitlines() if line.strip()]) <= 5


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_quoted_commands_are_targets_of_the_makefile(page: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    quoted = set(re.findall(r"(?:^|`)make (\w+)", page.read_text(), re.MULTILINE))
    assert quoted <= targets
    assert page != ROOT / "README.md" or {"run", "test"} <= quoted


def test_the_figures_of_the_readme_are_those_of_the_benchmarks_and_the_code() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    row = r"^\| (HTTP check|RLS)(?: by rules)?, memory, allowed \| .*, ([\d,]+) a second"
    rates = dict(re.findall(row, BENCHMARKS.read_text(), re.MULTILINE))
    assert f"{rates['HTTP check']} checks a second over HTTP and {rates['RLS']} of Envoy's" in readme
    assert f"for {1000 * API_SECONDS:g} ms at most, Envoy's for {1000 * RLS_SECONDS:g} ms" in readme
    assert f"after {THRESHOLD} failures in a row" in readme


@pytest.mark.parametrize(("page", "figure"), FIGURES)
def test_the_figures_of_a_page_are_those_of_the_code(page: str, figure: str) -> None:
    assert figure in " ".join((ROOT / "docs" / f"{page}.md").read_text().split())


def test_what_counts_where_nothing_is_said_is_called_a_default() -> None:
    texts = {path: path.read_text() for folder in ("src", "docs") for path in (ROOT / folder).rglob("*.[mp][dy]")}
    assert [path for path, text in texts.items() if re.search(r"unless\s+(told|given)", text)] == []


def test_the_site_can_be_searched_and_takes_nothing_from_elsewhere(tmp_path: Path) -> None:
    """It is built strictly: a dead link or anchor is an error."""
    done = subprocess.run(
        ["/usr/bin/env", "make", "docs", f"SITE={tmp_path}"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sliding_window_counter" in (tmp_path / "search" / "search_index.json").read_text()
    for page in ("index.html", "docs/operate.html"):
        taken = re.findall(
            r"<(?:script|img|link rel=.stylesheet.)[^>]* (?:src|href)=.?([^ >\"]+)", (tmp_path / page).read_text()
        )
        assert taken, page
        assert [each for each in taken if "//" in each] == [], page


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


def test_pictures_show_the_data_of_today(plots: dict[str, Any]) -> None:
    """Each picture carries the digest of its data; where this fails, run ``make plots``."""
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


def test_the_fixed_window_shows_its_boundary_burst_and_the_others_do_not(plots: dict[str, Any]) -> None:
    in_two_seconds = {
        algorithm: plots["most_within"](run.released, 2 * plots["SECOND"]) for algorithm, run in plots["runs"]().items()
    }
    assert in_two_seconds.pop("fixed_window") == 2 * plots["LIMIT"]
    assert max(in_two_seconds.values()) <= plots["LIMIT"] + 1

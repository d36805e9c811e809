"""The page about the admin plane is one story: all its commands run in their order, on one service, as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.admin import usage, what_if
from headgate.admin.audit import RETENTION_DAYS
from headgate.admin.keys import KeyRole
from headgate.admin.security import FAILURES, MAX_BODY, PUBLIC, READS, WRITES
from headgate.admin.service import SORTS
from headgate.cli.__main__ import main
from headgate.core.calendar import DAY_US
from headgate.observe.principal_use import LONGEST_WINDOW_US, MOST_PRINCIPALS
from tests.docs.test_blocks import ADMIN_PAGE, BLOCKS, Block
from tests.server.process.service import SECONDS, Service, service

PAGE = " ".join(ADMIN_PAGE.read_text().split())
KEY = "hg_1f0c6e2ab94d_..."
"""What stands on pages for the key that was printed."""
LOOKING = re.compile(r"headgate (users show|rules get|rules list|audit|keys list)|api (explain|nodes|users/\w+/limits)")
"""What may be asked again until a change has arrived."""


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that was given neither rules nor a database, in a folder of its own."""
    folder = tmp_path_factory.mktemp("embedded")
    with service(environment={"HEADGATE_RULES": ""}, cwd=folder) as found:
        yield found.started()


def first_key(found: Service) -> str:
    """The key that it printed."""
    shown = re.search(r"shown only once:\n  (\S+)\n", found.said)
    assert shown, found.said
    return shown[1]


def ran(script: str, found: Service, prelude: str) -> str:
    """Run what a page shows, in the folder of the service; return its output."""
    text = f"{prelude}\n{script}".replace(KEY, first_key(found)).replace(":8082", f":{found.admin_port}")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HEADGATE_ADMIN_URL": f"http://127.0.0.1:{found.admin_port}",
        "HEADGATE_ADMIN_KEY": first_key(found),
    }
    ended = subprocess.run(
        ["/bin/bash", "-uo", "pipefail", "-c", text],
        cwd=found.cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.stderr == "", f"{script}: {ended.stderr}"
    return ended.stdout


def answers(command: str, expected: str, found: Service, prelude: str) -> None:
    """See that a command says what the page says. An ellipsis stands for anything."""
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("..."))
    give_up = time.monotonic() + SECONDS
    while not re.fullmatch(pattern, output := ran(command, found, prelude).strip(), re.DOTALL):
        assert LOOKING.match(command), f"{command}\n{output}"
        assert time.monotonic() < give_up, f"{command}\n{output}"


def conversation(block: Block) -> list[tuple[str, str]]:
    said = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
    return [(command, expected) for command, expected in (each.split("\n", 1) for each in said)]


def test_the_admin_page_goes_as_printed(embedded: Service) -> None:
    prelude = ""
    assert embedded.cwd is not None
    for block in [block for block in BLOCKS if block.page == ADMIN_PAGE]:
        if block.language == "sh":
            prelude += block.text
        elif block.file:
            (embedded.cwd / block.file).write_text(block.text)
        for command, expected in conversation(block) if block.language == "console" else ():
            answers(command, expected, embedded, prelude)


@pytest.mark.parametrize("page", ["README.md", "admin.md"])
def test_what_the_admin_page_and_the_readme_show_of_the_start_is_what_is_said(embedded: Service, page: str) -> None:
    (shown,) = [block.text for block in BLOCKS if block.page.name == page and "the first key" in block.text]
    lines = [re.sub(r":\d+$", ":PORT", line) for line in embedded.said.splitlines()]
    for line in shown.splitlines():
        wanted = re.sub(r":\d+$", ":PORT", line).replace("/home/ada/headgate", str(embedded.cwd))
        if KEY in line:
            assert f"  {first_key(embedded)}" in lines
        elif "check" not in line:  # which has the port, and where the command is
            assert wanted in lines


def test_the_change_of_the_readme_is_made(embedded: Service) -> None:
    (block,) = [block for block in BLOCKS if block.page.name == "README.md" and ":8082/" in block.text]
    assert '"limit":50' in ran(block.text, embedded, "")


def test_a_key_that_is_not_good_is_told_where_it_goes(
    embedded: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADGATE_ADMIN_KEY", "nonsense")
    assert main(["users", "list", "--url", f"http://127.0.0.1:{embedded.admin_port}"]) == 2
    assert capsys.readouterr().err.endswith("put the key into HEADGATE_ADMIN_KEY\n")


def test_the_admin_page_has_the_figures_of_the_code() -> None:
    reads, writes, failures = (each.partition("/") for each in (READS, WRITES, FAILURES))
    assert {reads[2], writes[2], failures[2]} == {"minute"}
    assert f"can read {reads[0]} times and write {writes[0]} times a minute" in PAGE
    assert f"has sent {failures[0]} invalid keys in a minute" in PAGE
    assert f"at most {MAX_BODY:,} bytes" in PAGE
    assert f"`--audit-days`, {RETENTION_DAYS} by default" in PAGE
    assert f"(`step=minute`) for {usage.MINUTES_DAYS} days" in PAGE
    assert f"until it is {usage.HOURS_DAYS} days old" in PAGE
    assert f"a day of it waits, {usage.MOST_BATCHES} batches" in PAGE
    assert f"for up to {MOST_PRINCIPALS} principals in each window" in PAGE
    assert f"those longer than {LONGEST_WINDOW_US // DAY_US} days never" in PAGE
    assert f"number of units up to {what_if.EXACT_BELOW - 1} is exact" in PAGE
    assert f"the hour for {what_if.FINE_DAYS} days, then by the day, for {what_if.KEPT_DAYS} days in all" in PAGE
    assert f"within {what_if.LATE_US // usage.MINUTE_US} minutes after the window" in PAGE
    assert all(f"`{sort}`" in PAGE for sort in SORTS)
    assert all(f"| `{role}` |" in PAGE for role in KeyRole)
    assert {path for path in PUBLIC if "." not in path} == {"/docs", "/healthz", "/login"}


def test_the_admin_page_says_what_an_address_needs(tmp_path: Path) -> None:
    with service("--admin-host", "0.0.0.0", environment={"HEADGATE_RULES": ""}, cwd=tmp_path) as found:  # noqa: S104
        assert found.ended() == 2
        assert "--admin-insecure on" in found.complained
        assert "--tls-cert" in found.complained
    assert not (tmp_path / "headgate.db").exists()

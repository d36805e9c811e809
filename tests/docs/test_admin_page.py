"""All commands of the page about the admin plane run in order, on one service, with the printed output."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.admin import usage, what_if
from headgate.admin.audit import RETENTION_DAYS
from headgate.admin.keys import KeyRole
from headgate.admin.security import FAILURES, MAX_BODY, PUBLIC, READS, WRITES
from headgate.admin.service import SORTS
from headgate.core.calendar import DAY_US
from headgate.observe.principal_use import LONGEST_WINDOW_US, MOST_PRINCIPALS
from tests.docs.test_blocks import ADMIN_PAGE, BLOCKS, conversation, shell
from tests.server.process.service import SECONDS, Service, service

PAGE = " ".join(ADMIN_PAGE.read_text().split())
KEY = "hg_1f0c6e2ab94d_..."
"""On pages, the placeholder of a key."""
LOOKING = re.compile(r"headgate (users show|rules get|rules list|audit|keys list)|api (explain|nodes|users/\w+/limits)")
"""Commands that may be repeated until a change has arrived."""


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service without options for rules or a database, in a new folder."""
    folder = tmp_path_factory.mktemp("embedded")
    with service(environment={"HEADGATE_RULES": ""}, cwd=folder) as found:
        yield found.started()


def first_key(found: Service) -> str:
    shown = re.search(r"shown only once:\n  (\S+)\n", found.said)
    assert shown, found.said
    return shown[1]


def ran(script: str, found: Service, prelude: str) -> str:
    """Run commands of a page in the folder of the service; return their output."""
    assert found.cwd
    text = f"{prelude}\n{script}".replace(KEY, first_key(found)).replace(":8082", f":{found.admin_port}")
    url = f"http://127.0.0.1:{found.admin_port}"
    ended = shell(text, found.cwd, HEADGATE_ADMIN_URL=url, HEADGATE_ADMIN_KEY=first_key(found))
    assert ended.stderr == "", f"{script}: {ended.stderr}"
    return ended.stdout


def assert_output(command: str, pattern: str, found: Service, prelude: str) -> None:
    give_up = time.monotonic() + SECONDS
    while not re.fullmatch(pattern, output := ran(command, found, prelude).strip(), re.DOTALL):
        assert LOOKING.match(command), f"{command}\n{output}"
        assert time.monotonic() < give_up, f"{command}\n{output}"


def test_commands_have_the_printed_output(embedded: Service) -> None:
    prelude = ""
    assert embedded.cwd is not None
    for block in [block for block in BLOCKS if block.page == ADMIN_PAGE]:
        if block.language == "sh":
            prelude += block.text
        elif block.file:
            (embedded.cwd / block.file).write_text(block.text)
        for command, pattern in conversation(block) if block.language == "console" else ():
            assert_output(command, pattern, embedded, prelude)


def test_the_start_is_printed_as_on_the_page(embedded: Service) -> None:
    (shown,) = [block.text for block in BLOCKS if block.page == ADMIN_PAGE and "the first key" in block.text]
    lines = [re.sub(r":\d+$", ":PORT", line) for line in embedded.said.splitlines()]
    for line in shown.splitlines():
        wanted = re.sub(r":\d+$", ":PORT", line).replace("/home/ada/headgate", str(embedded.cwd))
        if KEY in line:
            assert f"  {first_key(embedded)}" in lines
        elif "check" not in line:  # which has the port, and where the command is
            assert wanted in lines


def test_the_figures_are_those_of_the_code() -> None:
    reads, writes, failures = (each.partition("/") for each in (READS, WRITES, FAILURES))
    assert {reads[2], writes[2], failures[2]} == {"minute"}
    assert f"can read {reads[0]} times and write {writes[0]} times a minute" in PAGE
    assert f"has sent {failures[0]} invalid keys in a minute" in PAGE
    assert f"at most {MAX_BODY:,} bytes" in PAGE
    assert f"`--audit-days`, {RETENTION_DAYS} by default" in PAGE
    assert f"(`step=minute`) for {usage.MINUTES_DAYS} days" in PAGE
    assert f"(`step=hour`) for {usage.HOURS_DAYS} days" in PAGE
    assert f"up to {usage.MOST_BATCHES} batches (a day)" in PAGE
    assert f"for up to {MOST_PRINCIPALS} principals in each window" in PAGE
    assert f"those longer than {LONGEST_WINDOW_US // DAY_US} days never" in PAGE
    assert f"number of units up to {what_if.EXACT_BELOW - 1} is exact" in PAGE
    assert f"the hour for {what_if.FINE_DAYS} days, then by the day, for {what_if.KEPT_DAYS} days in all" in PAGE
    assert f"within {what_if.LATE_US // usage.MINUTE_US} minutes after the window" in PAGE
    assert all(f"`{sort}`" in PAGE for sort in SORTS)
    assert all(f"| `{role}` |" in PAGE for role in KeyRole)
    assert {path for path in PUBLIC if "." not in path} == {"/docs", "/healthz", "/login"}


def test_a_public_address_needs_tls_or_an_option(tmp_path: Path) -> None:
    with service("--admin-host", "0.0.0.0", environment={"HEADGATE_RULES": ""}, cwd=tmp_path) as found:  # noqa: S104
        assert found.ended() == 2
        assert "--admin-insecure on" in found.complained
        assert "--tls-cert" in found.complained
    assert not (tmp_path / "headgate.db").exists()

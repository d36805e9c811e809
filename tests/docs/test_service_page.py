"""What the page about the service says is so: its options are those that there are, with their defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate.cli.greeting import trial
from headgate.cli.serve import GROUPS, Option, options, shown
from headgate.engine.base import LONGEST_MS
from headgate.server.settings import API_SECONDS, RLS_SECONDS, STORE_SECONDS, Settings

PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text()


def row(option: Option) -> str:
    unless_told = f"`{shown(option.default)}`" if option.default not in {"", ()} else ""
    about = option.about.replace("|", r"\|").replace("*", r"\*")
    return f"| `{option.argument}` {option.metavar} | {unless_told} | {about} |"


@pytest.mark.parametrize("option", [*options()], ids=lambda option: option.argument)
def test_every_option_is_in_the_table_with_its_default(option: Option) -> None:
    assert row(option) in PAGE


def test_the_table_has_no_option_that_there_is_not() -> None:
    assert len(re.findall(r"^\| `--", PAGE, re.MULTILINE)) == len([*options()])
    assert re.findall(r"^\| \*\*(.+)\*\* \|", PAGE, re.MULTILINE) == [*GROUPS]


def test_the_request_to_try_is_the_one_that_is_printed() -> None:
    assert trial(Settings(), 8080) in PAGE


def test_the_deadline_of_the_store_is_the_one_that_it_has() -> None:
    assert f"by default | {RLS_SECONDS * 1000:g} ms |" in PAGE
    assert f"gRPC without a deadline | {API_SECONDS * 1000:g} ms |" in PAGE
    assert f"at least {RLS_SECONDS * 1000:g} ms, at most {STORE_SECONDS:g} s" in PAGE
    assert LONGEST_MS == STORE_SECONDS * 1000

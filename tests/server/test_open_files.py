"""Limits belong to a process, so each of these tests has one of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest


def room(soft: int, hard: int, wanted: int) -> tuple[list[int], str]:
    """What a process with these limits returns, and its soft limit then; and what it logs."""
    code = (
        "import resource\n"
        "from headgate.server.open_files import room_for\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        f"print(room_for({wanted}), resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    return [int(word) for word in ended.stdout.split()], ended.stderr


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "found"),
    [
        (1000, 1000, 500, (500, 1000)),
        (300, 1000, 500, (500, 628)),
    ],
)
def test_as_many_files_are_allowed_as_connections_need(
    soft: int, hard: int, wanted: int, found: tuple[int, int]
) -> None:
    assert room(soft, hard, wanted) == ([*found], "")


def test_where_that_cannot_be_there_are_fewer_connections_and_the_log_says_so() -> None:
    found, logged = room(300, 400, 500)
    assert found == [272, 400]
    assert "272 connections at most, not 500: this process may open 400 files only (ulimit -n)" in logged


def test_there_is_always_room_for_one() -> None:
    assert room(100, 100, 500)[0] == [1, 100]

"""Slow commands show their progress."""

from __future__ import annotations

import io
import socket
import sys
import threading

import pytest

from headgate.cli import progress
from headgate.cli.__main__ import main
from headgate.cli.command import Terminal
from tests.cli.conftest import Screen
from tests.servers import until

SECONDS = 60


@pytest.mark.parametrize("is_terminal", [True, False])
def test_slow_work_is_shown_and_the_terminal_is_cleared(
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,  # noqa: FBT001
) -> None:
    monkeypatch.delenv("HEADGATE_PROGRESS")
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "EVERY", 0.001)
    monkeypatch.setattr(progress, "_REDRAW", 0.001)
    screen = Screen(is_terminal=is_terminal)
    with progress.show(Terminal(io.StringIO(), screen), "reading", "bytes") as seen:
        seen.total, seen.done = 4000, 1000
        until(lambda: "1,000 of 4,000 bytes" in screen.getvalue(), "it is shown", SECONDS)
    output = screen.getvalue()
    assert ("[######..................]" in output) == is_terminal
    assert output.endswith(" \r" if is_terminal else " s\n")


def test_quick_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADGATE_PROGRESS")
    monkeypatch.setattr(progress, "PATIENCE", 600.0)
    screen = Screen(is_terminal=True)
    with progress.show(Terminal(io.StringIO(), screen), "reading"):
        pass
    assert screen.getvalue() == ""


def test_notes_are_shown_beside_the_percentage() -> None:
    seen = progress.Progress("replaying", "bytes")
    seen.done, seen.note = 1000, "7 lines, 3 lines/s"
    for total, bar, line in (
        (4000, True, "replaying ... [######..................] 25 %, 7 lines, 3 lines/s, 2 s"),
        (4000, False, "replaying ... 25 %, 7 lines, 3 lines/s, 2 s"),
        (0, True, "replaying ... 1,000 bytes, 7 lines, 3 lines/s, 2 s"),
    ):
        seen.total = total
        assert seen.line(2, bar=bar) == line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("undo 3", "undoing revision 3 ..."),
        ("rules get", "reading the rules in force ..."),
        ("rules set orders limit=3 --wait", "waiting for 127.0.0.1:"),
        ("users list", "reading users ..."),
    ],
)
def test_commands_on_an_admin_plane_show_progress(words: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(is_terminal=False)
    monkeypatch.delenv("HEADGATE_PROGRESS")
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("HEADGATE_ADMIN_KEY", "key")
    with socket.create_server(("127.0.0.1", 0)) as plane:

        def refuse_once_it_is_shown() -> None:
            taken, _ = plane.accept()
            with taken:
                taken.recv(1 << 16)
                until(lambda: line in screen.getvalue(), "it is shown", SECONDS)
                taken.sendall(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n")

        answering = threading.Thread(target=refuse_once_it_is_shown)
        answering.start()
        assert main([*words.split(), "--url", f"http://127.0.0.1:{plane.getsockname()[1]}"]) == 2
        answering.join(SECONDS)
    assert "answered 500" in screen.getvalue()

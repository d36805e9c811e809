"""What takes long shows how it goes on."""

from __future__ import annotations

import io

import pytest

from headgate.cli import progress
from headgate.cli.command import Terminal
from tests.servers import until

SECONDS = 60


class Screen(io.StringIO):
    """A terminal, or a file."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize("is_terminal", [True, False])
def test_work_that_takes_long_is_shown_and_a_terminal_is_left_clean(
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,  # noqa: FBT001
) -> None:
    monkeypatch.delenv("HEADGATE_PROGRESS")
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "EVERY", 0.001)
    monkeypatch.setattr(progress, "_REDRAW", 0.001)
    screen = Screen(is_terminal=is_terminal)
    with progress.shown(Terminal(io.StringIO(), screen), "reading", "bytes") as seen:
        seen.total, seen.done = 4000, 1000
        until(lambda: "1,000 of 4,000 bytes" in screen.getvalue(), "it is shown", SECONDS)
    said = screen.getvalue()
    assert ("[######..................]" in said) == is_terminal
    assert said.endswith(" \r" if is_terminal else " s\n")


def test_what_is_quick_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADGATE_PROGRESS")
    monkeypatch.setattr(progress, "PATIENCE", 600.0)
    screen = Screen(is_terminal=True)
    with progress.shown(Terminal(io.StringIO(), screen), "reading"):
        pass
    assert screen.getvalue() == ""

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


@pytest.mark.parametrize(
    ("total", "bar", "line"),
    [
        (4000, True, "replaying ... [######..................] 25 %, 7 lines, 3 lines/s, 2 s"),
        (4000, False, "replaying ... 25 %, 7 lines, 3 lines/s, 2 s"),
        (0, True, "replaying ... 1,000 bytes, 7 lines, 3 lines/s, 2 s"),
    ],
)
def test_what_else_is_known_is_shown_beside_the_share_that_is_done(total: int, bar: bool, line: str) -> None:  # noqa: FBT001
    seen = progress.Progress("replaying", "bytes")
    seen.done, seen.total, seen.note = 1000, total, "7 lines, 3 lines/s"
    assert seen.line(2, bar=bar) == line

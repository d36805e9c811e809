"""Shows that something that takes long goes on: a line that is rewritten in a terminal, else a line now and then."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from headgate.cli.command import Terminal

PATIENCE, EVERY = 2.0, 5.0
"""Seconds until the first sign, and between two lines where there is no terminal."""
_REDRAW = 0.2
_WIDTH = 24


class Progress:
    """What is known of some work: how much of it is done, and of how much."""

    def __init__(self, doing: str, unit: str = "") -> None:
        self.doing, self.unit = doing, unit
        self.done = 0
        self.total = 0
        """0: not known."""
        self.note = ""
        """What says more than how much is done, such as a rate; that is shown as a percentage then."""

    def line(self, seconds: float, *, bar: bool) -> str:
        """Return what to show after so many seconds."""
        said = f"{self.doing} ..."
        if self.total and bar:
            filled = min(_WIDTH, self.done * _WIDTH // self.total)
            said += f" [{'#' * filled}{'.' * (_WIDTH - filled)}]"
        if self.note and self.total:
            said += f" {min(100, 100 * self.done // self.total)} %,"
        elif self.done:
            said += f" {self.done:,}{f' of {self.total:,}' if self.total else ''}{self.unit and ' '}{self.unit},"
        return f"{said} {self.note}{self.note and ', '}{seconds:.0f} s"


@contextmanager
def shown(terminal: Terminal, doing: str, unit: str = "") -> Iterator[Progress]:
    """Show on the standard error how work goes on, unless it takes less than `PATIENCE`.

    HEADGATE_PROGRESS=off in the environment is for programs that read the standard error.
    """
    progress, ended = Progress(doing, unit), Event()
    if os.environ.get("HEADGATE_PROGRESS") == "off":
        yield progress
        return
    is_terminal, began, width = terminal.err.isatty(), time.monotonic(), 0

    def show() -> None:
        nonlocal width
        wait = PATIENCE
        while not ended.wait(wait):
            line = progress.line(time.monotonic() - began, bar=is_terminal)
            if is_terminal:
                line = line[: shutil.get_terminal_size().columns - 1]  # what wraps cannot be rewritten
                terminal.err.write(f"\r{line.ljust(width)}")
                width = len(line)
            else:
                terminal.err.write(f"{line}\n")
            terminal.err.flush()
            wait = _REDRAW if is_terminal else EVERY

    showing = Thread(target=show, name="progress", daemon=True)
    showing.start()
    try:
        yield progress
    finally:
        ended.set()
        showing.join()
        if width:
            terminal.err.write(f"\r{' ' * width}\r")
            terminal.err.flush()

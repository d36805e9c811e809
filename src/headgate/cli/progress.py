"""Show the progress of slow work: a line rewritten in a terminal, else occasional lines."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from headgate.cli.command import Terminal

PATIENCE, EVERY = 2.0, 5.0
"""Seconds until the first line, and between lines without a terminal."""
_REDRAW = 0.2
_WIDTH = 24


class Progress:
    def __init__(self, doing: str, unit: str = "") -> None:
        self.doing, self.unit = doing, unit
        self.done = 0
        self.total = 0
        """0: unknown."""
        self.note = ""
        """More information, such as a rate; the progress is a percentage then."""

    def line(self, seconds: float, *, bar: bool) -> str:
        """Return the line to show after a number of seconds."""
        line = f"{self.doing} ..."
        if self.total and bar:
            filled = min(_WIDTH, self.done * _WIDTH // self.total)
            line += f" [{'#' * filled}{'.' * (_WIDTH - filled)}]"
        if self.note and self.total:
            line += f" {min(100, 100 * self.done // self.total)} %,"
        elif self.done:
            line += f" {self.done:,}{f' of {self.total:,}' if self.total else ''}{self.unit and ' '}{self.unit},"
        return f"{line} {self.note}{self.note and ', '}{seconds:.0f} s"


@contextmanager
def show(terminal: Terminal, doing: str, unit: str = "") -> Iterator[Progress]:
    """Show progress on standard error, unless the work takes less than `PATIENCE`.

    HEADGATE_PROGRESS=off disables it, for programs that read standard error.
    """
    progress, ended = Progress(doing, unit), Event()
    if os.environ.get("HEADGATE_PROGRESS") == "off":
        yield progress
        return
    is_terminal, began, width = terminal.err.isatty(), time.monotonic(), 0

    def update() -> None:
        nonlocal width
        wait = PATIENCE
        while not ended.wait(wait):
            line = progress.line(time.monotonic() - began, bar=is_terminal)
            if is_terminal:
                line = line[: shutil.get_terminal_size().columns - 1]  # a wrapped line could not be rewritten
                terminal.err.write(f"\r{line.ljust(width)}")
                width = len(line)
            else:
                terminal.err.write(f"{line}\n")
            terminal.err.flush()
            wait = _REDRAW if is_terminal else EVERY

    thread = Thread(target=update, name="progress", daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        ended.set()
        thread.join()
        if width:
            terminal.err.write(f"\r{' ' * width}\r")
            terminal.err.flush()

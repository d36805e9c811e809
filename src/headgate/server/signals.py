"""What signals ask of a service: to stop, or to look again at its files."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable


def heed(loop: asyncio.AbstractEventLoop, stop: Callable[[], object], reload: Callable[[], object]) -> None:
    """Call `stop` at SIGTERM and SIGINT, and `reload` at SIGHUP.

    SIGHUP also comes when the terminal is closed in which a service was started. Then nobody asked for anything, and
    nobody is left: that is `stop` (not under nohup).
    """
    had_terminal = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN and _has_terminal()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, lambda: stop() if had_terminal and not _has_terminal() else reload())


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True

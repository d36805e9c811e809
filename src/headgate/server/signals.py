"""What signals ask of a service: to stop, to look again at its files, to refuse nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable


def heed(
    loop: asyncio.AbstractEventLoop,
    stop: Callable[[], object],
    reload: Callable[[], object],
    enforce: Callable[[bool], object],
) -> None:
    """Call `stop` at SIGTERM and SIGINT, `reload` at SIGHUP, and `enforce` with False at SIGUSR1, True at SIGUSR2.

    SIGHUP also comes when the terminal is closed in which a service was started. Then nobody asked for anything, and
    nobody is left: that is `stop` (not under nohup).
    """
    had_terminal = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN and _has_terminal()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGUSR1, enforce, False)
    loop.add_signal_handler(signal.SIGUSR2, enforce, True)
    loop.add_signal_handler(signal.SIGHUP, lambda: stop() if had_terminal and not _has_terminal() else reload())


def overhear_switches() -> None:
    """Let nothing happen at SIGUSR1 and SIGUSR2, in this process and those it starts, until they are heeded.

    They would end a process that does not know them yet.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def tell_enforcement(log: logging.Logger, *, enforcing: bool) -> None:
    """Leave a trace of the switch in the log: who reads it later asks since when limits refused nobody."""
    if enforcing:
        log.warning("enforcement is on: limits refuse again")
    else:
        log.warning("enforcement is off: limits are counted and reported, and refuse nothing until SIGUSR2")


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True

"""Attacks that break no rule of the protocol: doing what is allowed, only too often."""

from __future__ import annotations

from typing import Final

from headgate.server.wire.http2.frames import ConnectionFault, ErrorCode
from headgate.server.wire.limits import WireLimits

_EXCUSED_BY_WORK: Final = 4
"""Control frames that a client may send for each response or piece of data; WINDOW_UPDATE above all."""


class Meter:
    """Counts what happens in stretches of time.

    Args:
        most: how often it may happen in a stretch; beyond that, each time has to be excused by a piece of useful work,
            of which each is an excuse once. So a client of long standing, all of whose calls time out at once, is not
            taken for an attacker.
        seconds: how long a stretch is.
    """

    __slots__ = ("_count", "_excused", "_most", "_seconds", "_start")

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._count, self._start, self._excused = 0, 0.0, 0

    def runs_over(self, now: float, useful: int) -> bool:
        """Count one at `now`, in seconds; return whether that is too many for the useful work done so far."""
        if not self._count or now - self._start >= self._seconds:
            self._count, self._start = 0, now
        self._count += 1
        if self._count <= self._most:
            return False
        self._excused += 1
        return self._excused > useful


class AbuseGuard:
    """Watches one connection.

    * Rapid reset (CVE-2023-44487): streams are opened and reset, and the work on them is in vain. It also counts when
      the client makes *us* reset them by a mistake on the stream (CVE-2025-8671).
    * Floods of PING, SETTINGS, PRIORITY, empty DATA, WINDOW_UPDATE of a byte, and other frames that bring nothing
      (CVE-2019-9511 to 9518).
    """

    __slots__ = ("_control", "_resets", "now", "useful")

    def __init__(self, limits: WireLimits) -> None:
        self._resets = Meter(limits.resets, limits.reset_time)
        self._control = Meter(limits.control_frames, limits.reset_time)
        self.now = 0.0
        """Seconds of a monotonic clock, set whenever bytes come in."""
        self.useful = 0
        """Counts responses and larger amounts of data: work that a client wants, and an attacker does not."""

    def saw_reset(self) -> None:
        """Count a stream that was reset; raise ConnectionFault if they are too many."""
        if self._resets.runs_over(self.now, self.useful):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many streams are reset")

    def saw_control(self) -> None:
        """Count a frame that brings nothing; raise ConnectionFault if they are too many."""
        if self._control.runs_over(self.now, self.useful * _EXCUSED_BY_WORK):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

"""Defences against attacks within the rules of the protocol: things that are allowed, but done too often."""

from __future__ import annotations

from typing import Final

from headgate.server.wire.http2.frames import ConnectionFault, ErrorCode
from headgate.server.wire.limits import WireLimits

_EXCUSED_BY_WORK: Final = 4
"""Control frames that a client may send per response or piece of data; above all WINDOW_UPDATE."""


class Meter:
    """Counts events in periods of time: `most` are allowed per period.

    Each further one must be offset by a unit of useful work, which counts once. So a long-lived client whose calls all
    time out at once is not treated as an attacker.
    """

    __slots__ = ("_count", "_excused", "_most", "_seconds", "_start")

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._count, self._start, self._excused = 0, 0.0, 0

    def runs_over(self, now: float, useful: int) -> bool:
        """Count an event at `now`, in seconds; return whether it exceeds what the useful work so far allows."""
        if not self._count or now - self._start >= self._seconds:
            self._count, self._start = 0, now
        self._count += 1
        if self._count <= self._most:
            return False
        self._excused += 1
        return self._excused > useful


class AbuseGuard:
    """Watches one connection.

    * Rapid reset (CVE-2023-44487): opening and resetting streams, which wastes the work on them. Errors with which the
      client makes *the server* reset them count too (CVE-2025-8671).
    * Floods of PING, SETTINGS, PRIORITY, empty DATA, WINDOW_UPDATE of a byte, and other useless frames (CVE-2019-9511
      to 9518).
    """

    __slots__ = ("_control", "_resets", "now", "useful")

    def __init__(self, limits: WireLimits) -> None:
        self._resets = Meter(limits.resets, limits.reset_time)
        self._control = Meter(limits.control_frames, limits.reset_time)
        self.now = 0.0
        """Seconds of a monotonic clock, set whenever bytes arrive."""
        self.useful = 0
        """Responses and larger amounts of data: work that a client wants, and an attacker does not."""

    def saw_reset(self) -> None:
        """Count a reset stream; raise ConnectionFault if there are too many."""
        if self._resets.runs_over(self.now, self.useful):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many streams are reset")

    def saw_control(self) -> None:
        """Count a useless frame; raise ConnectionFault if there are too many."""
        if self._control.runs_over(self.now, self.useful * _EXCUSED_BY_WORK):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that have no effect")

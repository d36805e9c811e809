"""Resetting streams on which the client made a mistake."""

from __future__ import annotations

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.events import Aborted, Event
from headgate.server.wire.http2.frames import ErrorCode
from headgate.server.wire.http2.guard import Guard
from headgate.server.wire.http2.sending import Sender
from headgate.server.wire.http2.streams import Streams


class Resets:
    """Resets streams of one connection."""

    __slots__ = ("_guard", "_sender", "_streams")

    def __init__(self, streams: Streams, sender: Sender, guard: Guard) -> None:
        self._streams, self._sender, self._guard = streams, sender, guard

    def reset(self, number: int, code: ErrorCode) -> bool:
        """Reset a stream; return whether it was open."""
        self._sender.control(frames.reset(number, code))
        return self._streams.drop(number)

    def fail(self, number: int, code: ErrorCode, events: list[Event]) -> None:
        """Reset a stream for a mistake of the client's; raise ConnectionFault if it makes too many."""
        if self.reset(number, code):
            events.append(Aborted(number))
        self._guard.saw_reset()

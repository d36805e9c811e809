"""What the parts of a connection share, and the one thing that all of them do: reset a stream."""

from __future__ import annotations

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.events import Aborted, Event
from headgate.server.wire.http2.frames import ErrorCode
from headgate.server.wire.http2.guard import Guard
from headgate.server.wire.http2.sending import Sender
from headgate.server.wire.http2.streams import Streams
from headgate.server.wire.limits import WireLimits


class State:
    """The state of one connection, apart from what only one of its parts needs."""

    __slots__ = ("guard", "limits", "sender", "streams")

    def __init__(self, limits: WireLimits) -> None:
        self.limits = limits
        self.streams = Streams(limits.streams)
        self.sender = Sender(self.streams)
        self.guard = Guard(limits, self.streams)

    def reset(self, number: int, code: ErrorCode) -> bool:
        """Reset a stream; return whether it was open."""
        self.sender.control(frames.reset(number, code))
        return self.streams.drop(number)

    def fail(self, number: int, code: ErrorCode, events: list[Event]) -> None:
        """Reset a stream for a mistake of the client's; raise ConnectionFault if it makes too many."""
        if self.reset(number, code):
            events.append(Aborted(number))
        self.guard.saw_reset()

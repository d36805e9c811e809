"""The streams of a connection: those that are open, and as much of the others as their late frames ask for."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

import msgspec

_SKIPS: Final = 64


class Stream(msgspec.Struct, gc=False):
    """A request and its response. A stream that is over is forgotten, so there is none that is closed.

    Attributes:
        window: bytes of DATA that the client lets us send; negative after it shrank what all streams may take.
        credit: bytes of DATA that we let the client send.
        missing: bytes of the body yet to come by its content-length; negative if it named none.
        ended: the client has sent all of its request.
        held: bytes that the client sent and nobody has dealt with yet.
        withholds: credit comes from `acknowledge` only.
        finished: the end of our response is sent, or waits in `queue` and `trailers`.
        queue: DATA that waits for the client's windows; None if there is none.
        trailers: the header block that follows the queue, if any.
    """

    window: int
    credit: int
    missing: int
    ended: bool
    held: int = 0
    withholds: bool = False
    finished: bool = False
    queue: deque[memoryview] | None = None
    trailers: bytes | None = None


class Streams:
    """All streams of a connection, and what they hold together.

    Args:
        remembered: how many streams that we dropped are remembered, to overlook frames that were on their way.
    """

    __slots__ = ("_dropped", "_remembered", "_skipped", "blocked", "held", "last", "open", "useful", "waiting")

    def __init__(self, remembered: int) -> None:
        self.open: dict[int, Stream] = {}
        self.last = 0
        """The newest that the client opened."""
        self.held = 0
        """Bytes received that nobody has dealt with yet, of all streams."""
        self.waiting = 0
        """Bytes to be sent that wait for the client's windows, of all streams."""
        self.blocked: OrderedDict[int, Stream] = OrderedDict()
        """Those that wait for the connection's window alone, in the order in which they will get their turn."""
        self.useful = 0
        """Counts responses and larger amounts of data: work that a client wants, and no attacker."""
        self._dropped: dict[int, None] = {}
        self._remembered = remembered
        self._skipped: deque[tuple[int, int]] = deque(maxlen=_SKIPS)

    def saw(self, number: int) -> None:
        """Note that a client has used a number, so that it cannot use a lower one."""
        if number != self.last + 2 and number > 1:
            self._skipped.append((self.last, number))
        self.last = number

    def close(self, number: int) -> bool:
        """Forget a stream; return whether it was open."""
        stream = self.open.pop(number, None)
        if stream is None:
            return False
        self.held -= stream.held
        if stream.queue is not None:
            self.waiting -= sum(map(len, stream.queue))
            self.blocked.pop(number, None)
        return True

    def drop(self, number: int) -> bool:
        """Forget a stream that the client believes open: it may go on sending for a while, which is no mistake."""
        self._dropped[number] = None
        if len(self._dropped) > self._remembered:
            del self._dropped[next(iter(self._dropped))]
        return self.close(number)

    def was_dropped(self, number: int) -> bool:
        """Whether late frames of a stream that is not open are to be overlooked."""
        return number in self._dropped

    def was_skipped(self, number: int) -> bool:
        """Whether a stream that is not open never was, as the client used a higher number before."""
        return any(low < number < high for low, high in self._skipped)

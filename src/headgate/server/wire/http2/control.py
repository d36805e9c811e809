"""Frames that are about the connection, its windows, or a stream as a whole; a table says who reads which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.compression import TABLE_SIZE
from headgate.server.wire.http2.events import Aborted, Event, Writable
from headgate.server.wire.http2.faults import ConnectionFault, protocol_error, size_error
from headgate.server.wire.http2.frames import ACK, LARGEST_ID, LARGEST_WINDOW, ErrorCode, Setting
from headgate.server.wire.http2.state import State

_ANY: Final = (0, (1 << 32) - 1, ErrorCode.NO_ERROR)
_RANGES: Final[dict[int, tuple[int, int, ErrorCode]]] = {
    Setting.ENABLE_PUSH: (0, 1, ErrorCode.PROTOCOL_ERROR),
    Setting.INITIAL_WINDOW_SIZE: (0, LARGEST_WINDOW, ErrorCode.FLOW_CONTROL_ERROR),
    Setting.MAX_FRAME_SIZE: (frames.FRAME_SIZE, frames.LARGEST_FRAME_SIZE, ErrorCode.PROTOCOL_ERROR),
}
"""What a client may set, and which mistake it is to set something else."""


class Control:
    """Reads control frames of one connection. Every method here may raise ConnectionFault."""

    __slots__ = ("_guard", "_sender", "_state", "_streams", "peer_leaves")

    def __init__(self, state: State) -> None:
        self._state = state
        self._streams, self._sender, self._guard = state.streams, state.sender, state.guard
        self.peer_leaves = False
        """Whether the client said GOAWAY."""

    def read(self, kind: int, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        """Read any frame but DATA, HEADERS and CONTINUATION; those of unknown kinds mean nothing."""
        read = _READERS.get(kind)
        if read is None:
            self._guard.saw_control()
        else:
            read(self, flags, number, payload, events)

    def _priority(self, _flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        """Check, and do nothing: priorities of this kind are of the past (section 5.3.2)."""
        self._guard.saw_control()
        if number == 0:
            raise protocol_error("PRIORITY of the connection")
        if number not in self._streams.open:
            if len(payload) != 5 or frames.word(payload) & LARGEST_ID == number:
                raise protocol_error("PRIORITY holds 5 bytes, of a stream that does not depend on itself")
        elif len(payload) != 5:
            self._state.fail(number, ErrorCode.FRAME_SIZE_ERROR, events)
        elif frames.word(payload) & LARGEST_ID == number:
            self._state.fail(number, ErrorCode.PROTOCOL_ERROR, events)

    def _rst_stream(self, _flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        if number == 0 or self._is_idle(number):
            raise protocol_error("RST_STREAM of a stream that never was")
        if len(payload) != 4:
            raise size_error("RST_STREAM holds 4 bytes")
        stream = self._streams.open.get(number)
        if stream is None:
            self._guard.saw_control()
            return
        self._streams.close(number)
        events.append(Aborted(number))
        if not (stream.ended and self._state.limits.free_resets):
            self._guard.saw_reset()

    def _settings(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        self._guard.saw_control()
        if number != 0:
            raise protocol_error("SETTINGS of a stream")
        if flags & ACK:
            if payload:
                raise size_error("an acknowledgement of SETTINGS holds nothing")
            return
        if len(payload) % 6:
            raise size_error("SETTINGS hold 6 bytes each")
        before = self._sender.initial_window
        for what, value in frames.read_settings(payload):
            self._set(what, value)
        self._sender.control(frames.SETTINGS_ACK)
        more = self._sender.initial_window - before
        if more:
            self._widen_all(more, events)

    def _set(self, what: int, value: int) -> None:
        low, high, code = _RANGES.get(what, _ANY)
        if not low <= value <= high:
            raise ConnectionFault(code, f"{Setting(what).name} is {low} to {high}, not {value}")
        if what == Setting.INITIAL_WINDOW_SIZE:
            self._sender.initial_window = value
        elif what == Setting.MAX_FRAME_SIZE:
            self._sender.frame_size = value
        elif what == Setting.HEADER_TABLE_SIZE and value < TABLE_SIZE:
            self._sender.without_table()

    def _widen_all(self, more: int, events: list[Event]) -> None:
        """Change the windows of all open streams, some of which may become negative (section 6.9.2)."""
        for stream in self._streams.open.values():
            stream.window += more
            if stream.window > LARGEST_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS widen a stream beyond 2^31-1 bytes")
        for number in list(self._streams.open):
            if number in self._streams.open:  # widening another may have ended it
                events.extend(map(Writable, self._sender.widened(number)))

    def _push_promise(self, _flags: int, _number: int, _payload: bytes, _events: list[Event]) -> None:
        raise protocol_error("a client promises nothing")

    def _ping(self, flags: int, number: int, payload: bytes, _events: list[Event]) -> None:
        self._guard.saw_control()
        if number != 0:
            raise protocol_error("PING of a stream")
        if len(payload) != 8:
            raise size_error("PING holds 8 bytes")
        if not flags & ACK:
            self._sender.control(frames.ping(payload, ack=True))

    def _goaway(self, _flags: int, number: int, payload: bytes, _events: list[Event]) -> None:
        self._guard.saw_control()
        if number != 0:
            raise protocol_error("GOAWAY of a stream")
        if len(payload) < 8:
            raise size_error("GOAWAY holds 8 bytes or more")
        self.peer_leaves = True

    def _window_update(self, _flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        self._guard.saw_control()
        if len(payload) != 4:
            raise size_error("WINDOW_UPDATE holds 4 bytes")
        more = frames.word(payload) & LARGEST_WINDOW
        if number != 0:
            self._widen_one(number, more, events)
            return
        if more == 0:
            raise protocol_error("WINDOW_UPDATE by nothing")
        self._sender.window += more
        if self._sender.window > LARGEST_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window of more than 2^31-1 bytes")
        events.extend(map(Writable, self._sender.flush()))

    def _widen_one(self, number: int, more: int, events: list[Event]) -> None:
        stream = self._streams.open.get(number)
        if stream is None:
            if self._is_idle(number):
                raise protocol_error("WINDOW_UPDATE of a stream that never was")
            return
        stream.window += more
        if more == 0:
            self._state.fail(number, ErrorCode.PROTOCOL_ERROR, events)
        elif stream.window > LARGEST_WINDOW:
            self._state.fail(number, ErrorCode.FLOW_CONTROL_ERROR, events)
        else:
            events.extend(map(Writable, self._sender.widened(number)))

    def _is_idle(self, number: int) -> bool:
        """Whether a stream is yet to be opened; those of even numbers would be ours, and we open none."""
        return number > self._streams.last or number & 1 == 0


_READERS: Final[dict[int, Callable[[Control, int, int, bytes, list[Event]], None]]] = {
    frames.PRIORITY: Control._priority,  # noqa: SLF001  the table of the class above
    frames.RST_STREAM: Control._rst_stream,  # noqa: SLF001
    frames.SETTINGS: Control._settings,  # noqa: SLF001
    frames.PUSH_PROMISE: Control._push_promise,  # noqa: SLF001
    frames.PING: Control._ping,  # noqa: SLF001
    frames.GOAWAY: Control._goaway,  # noqa: SLF001
    frames.WINDOW_UPDATE: Control._window_update,  # noqa: SLF001
}

"""What a client does wrong, and how far it reaches."""

from __future__ import annotations

from headgate.server.wire.http2.frames import ErrorCode


class ConnectionFault(Exception):
    """A client broke the protocol so that its connection cannot go on."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def protocol_error(text: str) -> ConnectionFault:
    """Return the fault of most mistakes."""
    return ConnectionFault(ErrorCode.PROTOCOL_ERROR, text)


def size_error(text: str) -> ConnectionFault:
    """Return the fault of frames that are larger or smaller than their kind can be."""
    return ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, text)

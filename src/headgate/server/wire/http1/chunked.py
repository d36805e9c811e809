"""Bodies that come in chunks (RFC 9112 section 7.1), understood in one way or refused."""

from __future__ import annotations

from headgate.server.wire.http1.head import Refused, is_section
from headgate.server.wire.limits import WireLimits

_LINE = 1024
"""The longest line before a chunk: its size and extensions, in bytes."""
_USEFUL = 4
"""Bytes of content that excuse one of sizes, extensions and line ends; a few thousand of these need no excuse."""
_HEX = b"0123456789abcdefABCDEF"
_UNSEEN = bytes(range(9)) + bytes(range(10, 32)) + b"\x7f"
"""What no line contains."""


class ChunkedBody:
    """A body in the making. Extensions and trailers are checked and left out."""

    __slots__ = ("_at_end", "_left", "_limits", "_overhead", "_parts", "_size", "refused", "rest")

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._parts: list[bytes] = []
        self._size, self._overhead = 0, 0
        self._left = 0
        """Of the chunk that is being read, its line end included; 0 before a line with a size."""
        self._at_end = False
        """The last chunk is read, and trailers may follow."""
        self.rest = b""
        """Bytes that are not understood yet; after the end of the body, those that follow it."""
        self.refused: Refused | None = None

    @property
    def size(self) -> int:
        """How many bytes are there, or announced, of the body."""
        return self._size

    def receive(self, data: bytes) -> bytes | None:
        """Take more of the body, and return it all when it is complete; None when it is not, or was `refused`."""
        data = self.rest + data if self.rest else data
        position = 0
        while not self._at_end:
            if self._left:
                taken = min(self._left, len(data) - position)
                chunk = data[position : position + taken]
                if not self._take(chunk):
                    return None
                position += taken
                if self._left:
                    self.rest = b""
                    return None
            end = data.find(b"\n", position, position + _LINE)
            if end < 0:
                self.rest = data[position:]
                if len(self.rest) >= _LINE:
                    self.refused = Refused(400, f"The line before a chunk is longer than {_LINE} bytes.")
                return None
            if not self._begin(data[position : end + 1]):
                return None
            position = end + 1
        return self._end(data[position:])

    def _begin(self, line: bytes) -> bool:
        """Read a size and extensions."""
        size, extension, extensions = line[:-2].partition(b";")
        self._overhead += len(line) + 2
        if not line.endswith(b"\r\n") or not size or len(size) > 8 or size.translate(None, _HEX):
            self.refused = Refused(400, "A chunk does not begin with its size in hexadecimal digits, and a line end.")
        elif extension and len(extensions.translate(None, _UNSEEN)) != len(extensions):
            self.refused = Refused(400, "A chunk extension contains a control character.")
        elif self._overhead > self._limits.header_bytes + self._size // _USEFUL:
            self.refused = Refused(400, "The chunks are too small, or have too long extensions, for what is in them.")
        elif (length := int(size, 16)) + self._size > self._limits.body_bytes:
            self.refused = Refused(413, f"The body is longer than {self._limits.body_bytes} bytes.")
        else:
            self._size += length
            self._left = length + 2 if length else 0
            self._at_end = not length
        return self.refused is None

    def _take(self, chunk: bytes) -> bool:
        """Take a part of a chunk; the two bytes at its end are its line end."""
        before, self._left = self._left, self._left - len(chunk)
        content = before - 2
        if len(chunk) > content:
            ending = chunk[max(content, 0) :]
            if ending != b"\r\n"[2 - min(before, 2) :][: len(ending)]:
                self.refused = Refused(400, "A chunk does not end where its size says.")
                return False
            chunk = chunk[: max(content, 0)]
        if chunk:
            self._parts.append(chunk)
            if len(self._parts) > 1024:  # many small ones would take more room than their bytes
                self._parts = [b"".join(self._parts)]
        return True

    def _end(self, data: bytes) -> bytes | None:
        """Read trailers up to the empty line."""
        if data.startswith(b"\r\n"):
            self.rest = data[2:]
            return b"".join(self._parts)
        end = data.find(b"\r\n\r\n")
        if end > self._limits.header_bytes or (end < 0 and len(data) > self._limits.header_bytes):
            self.refused = Refused(431, f"The trailers are longer than {self._limits.header_bytes} bytes.")
        elif end < 0:
            self.rest = data
        elif not is_section(data[: end + 2]):
            self.refused = Refused(400, "The trailers are malformed.")
        else:
            self.rest = data[end + 4 :]
            return b"".join(self._parts)
        return None

"""From header blocks to heads of requests, through a cache.

Clients send the same block again and again: Envoy, grpcio and load generators put all fields of a call into the table
at first, and then send indices. What such a block means changes only with the table, so it is looked up as a whole,
with everything that was found out about it. The cache is emptied whenever the table changes; a block that changes the
table itself is not kept.
"""

from __future__ import annotations

from typing import Final

from headgate.server.wire.http2.compression import Decoder, size_of
from headgate.server.wire.http2.events import Head
from headgate.server.wire.http2.heads import read_head
from headgate.server.wire.limits import WireLimits
from headgate.server.wire.messages import Headers

_KEPT: Final = 32
"""Blocks at most, and of these bytes each, decoded: what a client can make us keep."""
_KEPT_BYTES: Final = 4096


class Heads:
    """The heads of requests that one client sends.

    Args:
        limits: how large they may be.
    """

    __slots__ = ("_decoder", "_keepable", "known")

    def __init__(self, limits: WireLimits) -> None:
        self._decoder = Decoder(limits.header_bytes, limits.headers)
        self._keepable = False
        self.known: dict[bytes, Head] = {}
        """Heads by their blocks, to be looked up before `read`."""

    def fields(self, block: bytes) -> Headers | None:
        """Return the fields of a block, or None if they are too large. No block may be passed over, but those known.

        Raises:
            Undecodable: the connection cannot go on.
        """
        before = self._decoder.changes
        fields = self._decoder.decode(block)
        self._keepable = self._decoder.changes == before
        if not self._keepable:
            self.known.clear()
        return fields

    def read(self, block: bytes) -> Head | None:
        """Return the head that a block stands for, or None if it is too large.

        Raises:
            Undecodable: the connection cannot go on.
            Malformed: the request cannot be served.
        """
        fields = self.fields(block)
        if fields is None:
            return None
        return read_head(fields, is_kept=self._keepable and size_of(fields) <= _KEPT_BYTES)

    def keep(self, block: bytes, head: Head) -> None:
        """Make a head known that was just read, if it can be."""
        if head.is_kept:
            if len(self.known) >= _KEPT:
                self.known.clear()
            self.known[block] = head

"""How much a client may ask of the wire: everything that could grow or last is bounded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WireLimits:
    """Sizes in bytes, times in seconds."""

    connections: int = 10_000
    """In one process, over all its ports; more are refused with 503, or closed."""
    header_bytes: int = 16_384
    """All headers of a request together, as text."""
    headers: int = 100
    """How many."""
    target_bytes: int = 8192
    """The path and query of a request."""
    body_bytes: int = 1_048_576
    """The body of an HTTP request."""
    message_bytes: int = 262_144
    """A message of gRPC."""
    streams: int = 1000
    """Open at once on one HTTP/2 connection; as much as `SETTINGS_MAX_CONCURRENT_STREAMS` says."""
    pipelined: int = 64
    """Requests of one HTTP/1 connection that wait for their turn; reading pauses at more."""
    outgoing_bytes: int = 1_048_576
    """Waiting to be sent on one connection; then it is not read from, until `write_time` is over."""
    held_bytes: int = 134_217_728
    """Kept for all connections of a process together: what has arrived of their bodies, and what they do not take. If
    it is more, the connections that hold the most are closed."""
    header_time: float = 10.0
    """From the first byte of a request to the end of its headers; and for the TLS handshake."""
    body_time: float = 20.0
    """From there to the end of its body."""
    idle_time: float = 300.0
    """Without a request in progress."""
    write_time: float = 20.0
    """For a client to take what waits for it."""
    resets: int = 200
    """Streams that a client may reset in `reset_time`, beyond as many as it lets finish."""
    free_resets: bool = False
    """Whether streams may be reset freely once their request is complete: for calls, each of which is counted when it
    is admitted. All clients of a proxy share its connection, and may well give up at once."""
    reset_time: float = 10.0
    control_frames: int = 1000
    """PING, SETTINGS and other frames without use in `reset_time`; more are an attack."""


DEFAULT = WireLimits()

"""Bounds on everything that a client can make grow or last."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WireLimits:
    """Sizes in bytes, times in seconds."""

    connections: int = 10_000
    """Per process, over all its ports; more are refused with 503, or closed."""
    header_bytes: int = 16_384
    """All headers of a request together, as text."""
    headers: int = 100
    target_bytes: int = 8192
    """The path and query of a request."""
    body_bytes: int = 1_048_576
    """The body of an HTTP request."""
    message_bytes: int = 262_144
    """A message of gRPC."""
    streams: int = 1000
    """Open at once on one HTTP/2 connection: `SETTINGS_MAX_CONCURRENT_STREAMS`."""
    pipelined: int = 64
    """Unanswered requests of one HTTP/1 connection; beyond, reading pauses."""
    outgoing_bytes: int = 1_048_576
    """Bytes in the send buffer of one connection; beyond, reading pauses, for `write_time` at most."""
    held_bytes: int = 134_217_728
    """Bytes buffered for all connections of a process: incomplete bodies, and responses that clients do not read.
    Beyond, the connections that hold the most are closed."""
    header_time: float = 10.0
    """From the first byte of a request to the end of its headers; also for the TLS handshake."""
    body_time: float = 20.0
    """From the end of the headers to the end of the body."""
    idle_time: float = 300.0
    """Without a request in progress."""
    write_time: float = 20.0
    """For a client to read what is in the send buffer."""
    resets: int = 200
    """Streams that a client may reset in `reset_time`, in addition to as many as it lets finish."""
    free_resets: bool = False
    """Whether complete requests may be reset without a bound: for calls, which admission counts. All clients of a proxy
    share its connection, and may well cancel at the same time."""
    reset_time: float = 10.0
    control_frames: int = 1000
    """PING, SETTINGS and other overhead frames in `reset_time`; more are an attack."""


DEFAULT = WireLimits()

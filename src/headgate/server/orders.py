"""What a supervisor and its workers say to each other, over a socket that is the worker's standard input.

The supervisor sends the orders, one line, and then nothing: the end of the stream tells that it is gone. The worker
answers with one line, when it serves, or why it cannot; from then on it sends an empty line every second, as a sign of
life. Everything else is said by signals.
"""

from __future__ import annotations

import msgspec

from headgate.core.errors import UsageError
from headgate.server.settings import Settings

LONGEST_REPORT = 1_048_576
"""Bytes of a line."""
_LONGEST_ERROR = 10_000
SIGN_OF_LIFE = b"\n"
SIGN_EVERY = 1.0
"""Seconds."""


class Orders(msgspec.Struct, frozen=True):
    """What a worker is to do."""

    settings: Settings
    sockets: dict[str, int]
    """File descriptors of listening sockets, by what is spoken there: "http" or "grpc"."""
    slot: int
    """Which of the workers it is, counted from 0; one that replaces another has its number."""
    folder: str
    """Where the workers share what they measure."""


class Report(msgspec.Struct, frozen=True):
    """How it began."""

    rules: int = 0
    """How many rules are in force."""
    error: str = ""
    """Why it cannot serve; empty if it does."""
    is_usage: bool = False
    """Whether that is for the user to put right, as in a file that is wrong."""


def failed(error: Exception) -> Report:
    """Return the report of a worker that cannot serve."""
    text = str(error) or type(error).__name__
    return Report(error=text[:_LONGEST_ERROR], is_usage=isinstance(error, UsageError | ImportError))


def encode(message: Orders | Report) -> bytes:
    """Write a message as a line."""
    return msgspec.json.encode(message) + b"\n"


def decode_orders(line: bytes) -> Orders:
    """Read orders."""
    return msgspec.json.decode(line, type=Orders)


def decode_report(line: bytes) -> Report:
    """Read a report."""
    return msgspec.json.decode(line, type=Report)

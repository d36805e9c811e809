"""The Redis protocol, as far as requests go; replies are read by hiredis."""

from __future__ import annotations


def bulk(text: bytes) -> bytes:
    """Encode one argument."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


def command(*words: bytes) -> bytes:
    """Encode one command."""
    return b"*%d\r\n" % len(words) + b"".join(map(bulk, words))

"""Questions that come again and again, with what they ask the rules.

Only what has been seen before is kept: most clients of a busy service come once in a while, and to keep what they ask
would cost more than it saves.
"""

from __future__ import annotations

from headgate.policy.request import Request

MOST = 4096
LONGEST = 512
"""Bytes of a question that is kept."""
_SLOTS = 8192


class Recurring:
    """Keeps at most `MOST` short questions; when there are more, it begins anew."""

    __slots__ = ("_kept", "_seen", "find")

    def __init__(self) -> None:
        self._kept: dict[bytes, Request] = {}
        self._seen = [0] * _SLOTS
        """Hashes of questions that came lately, each in a place of its own choice."""
        self.find = self._kept.get
        """Returns what a question asks, if it is kept."""

    def note(self, raw: bytes, request: Request) -> None:
        """Take note of a question; the second time it comes in a while, it is kept."""
        number = hash(raw)
        slot = number % _SLOTS
        if self._seen[slot] != number:
            self._seen[slot] = number
        elif len(raw) <= LONGEST:
            if len(self._kept) >= MOST:
                self._kept.clear()
            self._kept[raw] = request

"""Counts and times what a node decides."""

from __future__ import annotations

from headgate.engine import Ruling
from headgate.policy.request import Request


class Recorder:
    """Takes note of every decision; on the hot path, so it does little."""

    def ruled(self, ruling: Ruling, request: Request, elapsed_ns: int) -> None:
        """Note a decision by rules."""

"""What to answer when the store does not."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """What to answer when the store does not."""

    LOCAL = "local"
    """This node decides, with its share of each limit."""
    ALLOW = "allow"
    DENY = "deny"

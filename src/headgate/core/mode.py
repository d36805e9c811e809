"""How to decide while the store is unavailable."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    LOCAL = "local"
    """This node decides, with its share of each limit."""
    ALLOW = "allow"
    DENY = "deny"

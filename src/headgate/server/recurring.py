"""Requests that recur, over HTTP and gRPC, are parsed once: parsing is a third of the time of a response.

Clients choose what is cached, so the cache is bounded: in requests, their bytes and members, and the limits that apply.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from headgate.cache import BoundedCache
from headgate.engine import JointCheck, SelectedCheck
from headgate.policy.compiled import Policy
from headgate.web.headers import MOST_SHOWN

MOST_RECURRING = 4096
"""Cached requests. The collector examines their objects, while all requests wait: the more of them, the longer."""
LONGEST_RECURRING = 512
"""Bytes of a cached request."""
LARGEST_RECURRING = 32
"""Members of a cached request, including those of inner objects: hundreds fit into so many bytes, and would take forty
times the memory."""


class _Parsed(Protocol):
    selected: Any
    """The check of the store; None before the first one, and with many limits."""


U = TypeVar("U", bound=_Parsed)


class RecurringRequests(BoundedCache[bytes, U]):
    """Parsed requests by their bytes; at first for the rules of `policy`."""

    __slots__ = ("_policy",)

    def __init__(self, policy: Policy | None) -> None:
        super().__init__(MOST_RECURRING)
        self._policy = policy

    def remember(self, raw: bytes, parsed: U, members: int) -> U:
        """Cache a parsed request unless it is large; returns it."""
        if len(raw) > LONGEST_RECURRING or members > LARGEST_RECURRING:
            return parsed
        return self.keep(raw, parsed)

    def select(self, parsed: U, selected: SelectedCheck | JointCheck) -> None:
        """Record the check of a request, which is new or has changed."""
        if selected.size <= MOST_SHOWN:
            parsed.selected = selected
        if selected.policy is not self._policy:  # checks of other rules keep those alive
            self._policy = selected.policy
            self.clear()

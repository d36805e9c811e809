"""Questions that come again, over HTTP and gRPC alike, are understood once: that is a third of the time of an answer.

Clients choose what is remembered, so it is bounded: in number, in bytes, in members, and in the limits that apply.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from headgate.cache import BoundedCache
from headgate.engine import JointCheck, SelectedCheck
from headgate.policy.compiled import Policy
from headgate.web.headers import MOST_SHOWN

MOST_RECURRING = 16_384
"""Questions that are remembered."""
LONGEST_RECURRING = 512
"""Bytes of one that is."""
LARGEST_RECURRING = 32
"""Members of it, those of inner objects too: hundreds fit into so many bytes, and would take forty times the memory."""


class _Understood(Protocol):
    selected: Any
    """What is asked of the store; None before it was asked, and where that is about many limits."""


U = TypeVar("U", bound=_Understood)


class RecurringQuestions(BoundedCache[bytes, U]):
    """What questions ask, by the bytes that asked them; at first by the rules of `policy`."""

    __slots__ = ("_policy",)

    def __init__(self, policy: Policy | None) -> None:
        super().__init__(MOST_RECURRING)
        self._policy = policy

    def remember(self, raw: bytes, understood: U, members: int) -> U:
        """Return what is understood, and remember it unless it is large."""
        if len(raw) > LONGEST_RECURRING or members > LARGEST_RECURRING:
            return understood
        return self.keep(raw, understood)

    def select(self, understood: U, selected: SelectedCheck | JointCheck) -> None:
        """Note what a question asks of the store now: it is new, or something else than before."""
        if selected.size <= MOST_SHOWN:
            understood.selected = selected
        if selected.policy is not self._policy:  # what was found by other rules keeps them alive
            self._policy = selected.policy
            self.clear()

"""What a contender is. To add one, write a file like those beside this one and name it in `contenders.PEERS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.scenarios import Kind, Limit

Call = Callable[[str], object]
"""Decides one request of the key."""


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A contender with limits of its own, ready to be called."""

    call: Call
    """What is timed."""
    allowed: Callable[[Any], bool]
    """Whether an answer of `call` admits the request."""
    take: Call
    """The cheapest way to take one unit of each limit, for preparation."""
    settle: Callable[[], None] = nothing
    """Wait until background work that `call` caused is over, so that it disturbs nobody else's measurement."""
    close: Callable[[], None] = nothing


class Contender(Protocol):
    """A library, called in one particular way."""

    @property
    def name(self) -> str:
        """The library's name."""
        ...

    @property
    def work(self) -> str:
        """The calls that are timed, in a few words."""
        ...

    @property
    def equal(self) -> bool:
        """Whether the answer says as much as a `Decision`: allowed, remaining, and when to come back."""
        ...

    def takes_part(self, kind: Kind, limits: int) -> bool:
        """Say whether this is a way to ask the library for that many limits of that algorithm."""
        ...

    def open(self, kind: Kind, limits: tuple[Limit, ...]) -> Subject:
        """Return a subject with fresh state."""
        ...

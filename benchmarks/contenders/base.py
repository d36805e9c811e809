"""What a contender is, in memory and on Redis.

To add a library, write a file like those beside this one, and name what it has in `PEERS` or `REDIS_PEERS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.in_memory.scenarios import Kind, Limit

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


AsyncCall = Callable[[str], Awaitable[object]]


async def nothing_async() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """A contender with limits of its own, for one caller that waits."""

    call: Call
    """Decides one request of the key; this is timed."""
    allowed: Callable[[Any], bool]
    """Whether an answer of `call` admits the request."""
    close: Callable[[], object] = nothing


@dataclass(frozen=True, slots=True)
class Concurrent:
    """The same for callers in an event loop."""

    call: AsyncCall
    allowed: Callable[[Any], bool]
    close: Callable[[], Awaitable[object]] = nothing_async


class RedisContender(Protocol):
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

    @property
    def blocks(self) -> bool:
        """Whether there is a way to call it without an event loop."""
        ...

    @property
    def is_floor(self) -> bool:
        """Whether it limits nothing and only shows what a call costs."""
        ...

    def takes_part(self, kind: Kind) -> bool:
        """Say whether the library has that algorithm."""
        ...

    def open(self, server: str, kind: Kind, limits: tuple[Limit, ...]) -> Blocking:
        """Return a subject whose state lives in the server of that address."""
        ...

    async def open_async(self, server: str, kind: Kind, limits: tuple[Limit, ...]) -> Concurrent:
        """Do the same for the running event loop."""
        ...


def first(answer: tuple[Any, ...]) -> bool:
    """Return the verdict of an answer that has more."""
    return bool(answer[0])

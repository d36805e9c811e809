"""Contenders in memory and on Redis.

To add a library, write a file like those in this folder, and list its contenders in `PEERS` or `REDIS_PEERS`.
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
    """A contender with its limits, ready to be called."""

    call: Call
    """The timed call."""
    allowed: Callable[[Any], bool]
    """Whether a result of `call` admits the request."""
    take: Call
    """The cheapest way to take one unit of each limit, for preparation."""
    settle: Callable[[], None] = nothing
    """Wait until background work of `call` is over, so that it does not disturb other measurements."""
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
        """Whether the result has the information of a `Decision`: allowed, remaining, and the time to retry."""
        ...

    def takes_part(self, kind: Kind, limits: int) -> bool:
        """Whether the library supports that many limits of that algorithm in this way."""
        ...

    def open(self, kind: Kind, limits: tuple[Limit, ...]) -> Subject:
        """Return a subject with fresh state."""
        ...


AsyncCall = Callable[[str], Awaitable[object]]


async def nothing_async() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """A contender with its limits, for one blocking caller."""

    call: Call
    """Decides one request of the key; this is timed."""
    allowed: Callable[[Any], bool]
    """Whether a result of `call` admits the request."""
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
        """Whether the result has the information of a `Decision`: allowed, remaining, and the time to retry."""
        ...

    @property
    def blocks(self) -> bool:
        """Whether there is a way to call it without an event loop."""
        ...

    @property
    def is_floor(self) -> bool:
        """Whether it limits nothing, and only measures a call."""
        ...

    def takes_part(self, kind: Kind) -> bool:
        """Return whether the library has an algorithm."""
        ...

    def open(self, server: str, kind: Kind, limits: tuple[Limit, ...]) -> Blocking:
        """Return a subject with its state on the server at an address."""
        ...

    async def open_async(self, server: str, kind: Kind, limits: tuple[Limit, ...]) -> Concurrent:
        """Do the same for the running event loop."""
        ...


def first(answer: tuple[Any, ...]) -> bool:
    """Return the verdict in a larger result."""
    return bool(answer[0])

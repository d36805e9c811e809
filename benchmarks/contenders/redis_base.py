"""What a contender on Redis is. To add one, write a file like those beside this one and name it in `REDIS_PEERS`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.contenders.base import Call, nothing
from benchmarks.scenarios import Kind, Limit

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


def first(answer: tuple[bool, object]) -> bool:
    """Return the verdict of an answer that has more."""
    return answer[0]

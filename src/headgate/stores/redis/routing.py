"""The way of a question through a cluster, from redirection to redirection.

Nothing here waits: a *route* is a generator that yields its next step, and is sent the answer, or thrown the error that
came instead; sync and async drive it in their own way. It goes on only after errors that say that nothing was done.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum
from typing import NamedTuple, TypeAlias

from headgate.core.errors import StoreBusy, StoreUnavailable
from headgate.stores.redis.address import Address
from headgate.stores.redis.answers import Answer
from headgate.stores.redis.discovery import SlotMap
from headgate.stores.redis.wire import Refused

ATTEMPTS = 16
PAUSE = 0.01
"""Seconds between attempts while keys move."""
LAST_ATTEMPT = 0.03
"""Seconds before the end of the caller's time after which there is no other attempt: its answer would come too late."""
REFRESH_EVERY, HINT_EVERY = 0.1, 1.0
"""Seconds between inquiries for the slot map: when an answer needs it, and when it would be good to have."""


class Pass(Enum):
    """A step that brings no answer."""

    REFRESH = "ask for the slot map now"
    HINT = "ask for it without waiting, or later: some of it is old"
    PAUSE = "wait a moment"


class Ask(NamedTuple):
    """A step that brings the answer: ask this server."""

    server: Address
    asking: bool
    """Whether to say first that the server is asked for what it does not own yet."""
    alone: bool = False
    """Whether not to ask together with others: while a slot moves, keys in both places cannot be asked for at once."""


def pause(left: float) -> float:
    """Return how many seconds to wait while keys move, for a caller that has so many left."""
    return PAUSE if left > LAST_ATTEMPT else max(0, left)


Route: TypeAlias = Generator[Ask | Pass, Answer, Answer]


def route(slots: SlotMap, slot: int) -> Route:  # noqa: C901  a branch for each answer
    """Return the way of a question about keys in `slot`."""
    owner, asking, moving, attempts = slots.owner(slot), False, False, 0
    refused: StoreUnavailable | None = None
    while attempts < ATTEMPTS:
        if owner is None:
            yield Pass.REFRESH
            owner = slots.owner(slot)
            if owner is None:
                break
        try:
            return (yield Ask(owner, asking, moving or asking))
        except StoreBusy:
            raise
        except StoreUnavailable as error:
            word, place = (error.word, error.place) if isinstance(error, Refused) else ("", ("", 0))
            refused = error if word or refused is None else refused
        attempts += not moving  # while keys move, for as long as the caller has time
        if word == "MOVED":
            owner, asking = slots.learn(slot, owner, place), False
            yield Pass.HINT
        elif word == "ASK":
            owner, asking = slots.named(owner, place), True
        elif word == "TRYAGAIN":
            yield Pass.PAUSE
            owner, asking, moving = slots.owner(slot), False, True
        elif moving:
            raise StoreBusy(str(refused))
        else:  # gone, or demoted: somebody else may have the slot by now
            yield Pass.REFRESH
            before, owner, asking = owner, slots.owner(slot), False
            if owner == before:
                raise refused
    raise refused or StoreUnavailable(slots.trouble or f"no server of the cluster has slot {slot}")

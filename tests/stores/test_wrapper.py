"""Stores around stores, `CachedStore` and `FailoverStore`: what they accept, and what accepts them."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import InvalidStore
from headgate.stores.cached import AsyncCachedStore, CachedStore
from headgate.stores.failover import AsyncFailoverStore, FailoverStore
from headgate.stores.memory import AsyncMemoryStore, MemoryStore

PAIRS: list[tuple[Any, Any]] = [(CachedStore, AsyncCachedStore), (FailoverStore, AsyncFailoverStore)]
CACHED, FAILOVER = PAIRS


@pytest.mark.parametrize(
    ("pair", "options", "message"),
    [
        (CACHED, {"peeks": -1}, "peeks must be a number of seconds from 0 to 3600, not -1"),
        (CACHED, {"peeks": "1"}, "peeks must be a number of seconds from 0 to 3600, not '1'"),
        (CACHED, {"peeks": True}, "peeks must be a number of seconds"),
        (CACHED, {"peeks": float("nan")}, "peeks must be a number of seconds"),
        (CACHED, {"denials": -1}, "denials must be a number of seconds from 0 to 3600, not -1"),
        (CACHED, {"denials": True}, "denials must be a number of seconds from 0 to 3600, not True"),
        (CACHED, {"max_entries": 0}, "max_entries must be a whole number from 1"),
        (FAILOVER, {"mode": "open"}, "mode must be one of local, allow, deny, not 'open'"),
        (FAILOVER, {"mode": None}, "mode must be one of"),
        (FAILOVER, {"nodes": 0}, "nodes must be a whole number from 1"),
        (FAILOVER, {"nodes": 2.0}, "nodes must be a whole number from 1"),
        (FAILOVER, {"failures": 0}, "threshold must be a whole number from 1"),
        (FAILOVER, {"pause": 0}, "pause must be a number of seconds"),
        (FAILOVER, {"pause": 3}, "longest_pause_us must be a whole number from 3000000"),
        (FAILOVER, {"longest_pause": "1"}, "longest_pause must be a number of seconds"),
        (FAILOVER, {"max_keys": 0}, "max_keys must be"),
    ],
)
def test_invalid_options_are_refused(pair: tuple[Any, Any], options: dict[str, Any], message: str) -> None:
    for made, store in zip(pair, (MemoryStore(), AsyncMemoryStore(MemoryStore())), strict=True):
        with pytest.raises(InvalidStore, match=message):
            made(store, **options)


@pytest.mark.parametrize("pair", PAIRS)
def test_other_objects_and_stores_of_the_other_colour_are_refused(pair: tuple[Any, Any]) -> None:
    blocking, asynchronous = pair
    for wrong in ("redis://localhost", MemoryStore, None, 7):
        with pytest.raises(InvalidStore, match="open it with open_store"):
            blocking(wrong)
    name = blocking.__name__
    for made, store in ((blocking, AsyncMemoryStore(MemoryStore())), (asynchronous, MemoryStore())):
        with pytest.raises(InvalidStore, match=f"only with the other of {name} and Async{name}"):
            made(store)

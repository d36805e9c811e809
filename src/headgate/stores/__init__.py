"""Where the state of limits lives, by address."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from headgate.clock import Clock
from headgate.core.errors import InvalidStore
from headgate.core.numbers import short
from headgate.stores.base import AsyncStore, Store
from headgate.stores.memory import AsyncMemoryStore, MemoryStore

ACCEPTED = '"memory", "memory:?max_keys=100000" or "redis://[user:password@]host:6379/0"'
AnyStore = TypeVar("AnyStore", bound=Store | AsyncStore)


def open_store(store: str | Store, *, clock: Clock | None = None) -> Store:
    """Return the store that an address names, or the store that is given.

    Raises:
        InvalidStore: the address names no known store, or has an unknown or wrong option.
    """
    if not isinstance(store, str):
        return _given(store, clock, asynchronous=False)
    if store.startswith("redis"):
        return _redis("sync").RedisStore(_redis("address").parse(store), clock=clock)  # type: ignore[no-any-return]
    return _memory(store, clock)


def open_async_store(store: str | AsyncStore | MemoryStore, *, clock: Clock | None = None) -> AsyncStore:
    """Do the same for callers in an event loop."""
    if isinstance(store, str):
        if store.startswith("redis"):
            return _redis("aio").AsyncRedisStore(_redis("address").parse(store), clock=clock)  # type: ignore[no-any-return]
        return AsyncMemoryStore(_memory(store, clock))
    if isinstance(store, MemoryStore):
        return AsyncMemoryStore(_given(store, clock, asynchronous=False))
    return _given(store, clock, asynchronous=True)


def _redis(module: str) -> Any:
    """Import a part of the Redis store; its dependencies are an extra."""
    try:
        return import_module(f"headgate.stores.redis.{module}")
    except ModuleNotFoundError as error:
        raise InvalidStore(f"{error.name} is not installed: install headgate[redis]") from None


def _given(store: AnyStore, clock: Clock | None, *, asynchronous: bool) -> AnyStore:
    if isinstance(store, type) or not (hasattr(store, "bind") and hasattr(store, "check") and hasattr(store, "clock")):
        raise InvalidStore(f"a store is an address or a store object, not {short(store)}: use {ACCEPTED}")
    if inspect.iscoroutinefunction(store.check) != asynchronous:
        raise InvalidStore(f"{type(store).__name__} is for the other of Limiter and AsyncLimiter")
    if clock is not None:
        raise InvalidStore("a store that is given has its own clock: give the clock to the store")
    return store


def _memory(address: str, clock: Clock | None) -> MemoryStore:
    scheme, _, query = address.partition(":?") if address != "memory:" else ("memory", "", "")
    if scheme != "memory":
        raise InvalidStore(f"unknown store {short(address)}: use {ACCEPTED}")
    options = parse_qsl(query, keep_blank_values=True)
    for name, value in options:
        if name != "max_keys" or len(options) > 1:
            raise InvalidStore(f"unknown or repeated option {name!r} in store {short(address)}: use {ACCEPTED}")
        if not (value.isascii() and value.isdecimal() and len(value) < 20):
            raise InvalidStore(f"max_keys must be a whole number in store {short(address)}: use {ACCEPTED}")
        return MemoryStore(max_keys=int(value), clock=clock)
    return MemoryStore(clock=clock)

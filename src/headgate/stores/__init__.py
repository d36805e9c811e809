"""The stores of limit state, opened by address."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, TypedDict, TypeVar, Unpack
from urllib.parse import parse_qsl

from headgate.clock import Clock
from headgate.core.errors import InvalidStore
from headgate.core.mode import Mode
from headgate.core.numbers import short
from headgate.messages import not_installed
from headgate.stores.base import AsyncStore, Store
from headgate.stores.failover import AsyncFailoverStore, FailoverStore, Options
from headgate.stores.memory import AsyncMemoryStore, MemoryStore

ACCEPTED = (
    '"memory", "memory:?max_keys=100000" or "redis://[user:password@]host:6379/0" '
    "(also rediss://, redis+unix://, redis+sentinel://, redis+cluster://)"
)
RAISE = "raise"
"""Not a mode: the behaviour of a store without a failover store around it."""
AnyStore = TypeVar("AnyStore", bound=Store | AsyncStore)


def open_store(store: str | Store, *, clock: Clock | None = None) -> Store:
    """Return the store at an address, or the given store. Raises InvalidStore for an unknown address or option."""
    if not isinstance(store, str):
        return _check_given(store, clock, asynchronous=False)
    if _is_redis(store):
        return _redis("store").RedisStore(_redis("address").parse(store), clock=clock)  # type: ignore[no-any-return]
    return _memory(store, clock)


def open_async_store(store: str | AsyncStore | MemoryStore, *, clock: Clock | None = None) -> AsyncStore:
    """Open the store at an address, for asyncio."""
    if isinstance(store, str):
        if _is_redis(store):
            return _redis("store").AsyncRedisStore(_redis("address").parse(store), clock=clock)  # type: ignore[no-any-return]
        return AsyncMemoryStore(_memory(store, clock))
    if isinstance(store, MemoryStore):
        return AsyncMemoryStore(_check_given(store, clock, asynchronous=False))
    return _check_given(store, clock, asynchronous=True)


class Resilience(TypedDict, total=False):
    """Arguments of `headgate.Limiter`, and the name of what the processes share, which are counted without `nodes`."""

    on_store_failure: str | None
    nodes: int | None
    shared: str


def open_resilient_store(store: str | Store, clock: Clock | None = None, **options: Unpack[Resilience]) -> Store:
    """Return a store for a limiter, which keeps answering during an outage."""
    opened, failover = open_store(store, clock=clock), _failover_options(store, **options)
    return FailoverStore(opened, **failover) if failover else opened


def open_resilient_async_store(
    store: str | AsyncStore | MemoryStore, clock: Clock | None = None, **options: Unpack[Resilience]
) -> AsyncStore:
    """Return the same for an event loop."""
    opened, failover = open_async_store(store, clock=clock), _failover_options(store, **options)
    return AsyncFailoverStore(opened, **failover) if failover else opened


def _is_redis(address: str) -> bool:
    return address.lower().startswith("redis")


def _failover_options(
    store: object, on_store_failure: str | None = None, nodes: int | None = None, shared: str = ""
) -> Options:
    """Return the options of the failover store around `store`; empty without one."""
    if on_store_failure is None:
        on_store_failure = Mode.LOCAL if isinstance(store, str) and _is_redis(store) else RAISE
    if on_store_failure == RAISE:
        if nodes not in {None, 1}:
            raise InvalidStore('nodes is only for on_store_failure="local", which divides the limits by it')
        return {}
    if on_store_failure not in set(Mode):
        accepted = ", ".join([*Mode, RAISE])
        raise InvalidStore(f"on_store_failure must be one of {accepted}, not {short(on_store_failure)}")
    return {"mode": on_store_failure, "nodes": nodes, "shared": shared}


def _redis(module: str) -> Any:
    """Import a module of the Redis store, whose dependencies are an extra."""
    try:
        return import_module(f"headgate.stores.redis.{module}")
    except ModuleNotFoundError as error:
        raise InvalidStore(not_installed(error.name, "redis")) from None


def _check_given(store: AnyStore, clock: Clock | None, *, asynchronous: bool) -> AnyStore:
    if isinstance(store, type) or not (hasattr(store, "bind") and hasattr(store, "run") and hasattr(store, "clock")):
        raise InvalidStore(f"a store must be an address or a store object, not {short(store)}: use {ACCEPTED}")
    if inspect.iscoroutinefunction(store.run) != asynchronous:
        raise InvalidStore(f"{type(store).__name__} works only with the other of Limiter and AsyncLimiter")
    if clock is not None:
        raise InvalidStore("a store object has its own clock: pass the clock to the store")
    return store


def _memory(address: str, clock: Clock | None) -> MemoryStore:
    scheme, _, query = address.partition(":?") if address != "memory:" else ("memory", "", "")
    if scheme != "memory":
        shown = short(address) if "://" not in address else f"that begins with {short(address.partition('://')[0])}"
        raise InvalidStore(f"unknown store {shown}: use {ACCEPTED}")  # the rest may have a password
    options = parse_qsl(query, keep_blank_values=True)
    for name, value in options:
        if name != "max_keys" or len(options) > 1:
            raise InvalidStore(f"unknown or repeated option {name!r} in store {short(address)}: use {ACCEPTED}")
        if not (value.isascii() and value.isdecimal() and len(value) < 20):
            raise InvalidStore(f"max_keys must be a whole number in store {short(address)}: use {ACCEPTED}")
        return MemoryStore(max_keys=int(value), clock=clock)
    return MemoryStore(clock=clock)

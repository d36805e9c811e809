"""Stores around stores: what `headgate.stores.cached` and `headgate.stores.failover` share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from copy import copy
from typing import Any, Generic, Protocol, Self, TypeVar

from headgate.core.decision import Decision
from headgate.core.errors import InvalidStore
from headgate.core.numbers import short
from headgate.core.plan import Call, Plan, shadowed
from headgate.flows import drive, drive_async
from headgate.stores.base import (
    AsyncStore,
    Sharded,
    Store,
    WithDeadlines,
    plain_async_check,
    plain_check,
)

AnyStore = TypeVar("AnyStore", bound=Store | AsyncStore)


class Layer(Protocol):
    """What a wrapper does before and after each call of its inner store. It never waits."""

    def begin(self, call: Call, /) -> Decision | Any:
        """Return a decision in place of the store's, or what the next methods need to know of this call.

        None: its shadow plans must be calls of their own.
        """

    def answered(self, call: Call, begun: Any, decision: Decision, /) -> Decision: ...

    def failed(self, call: Call, begun: Any, error: BaseException, /) -> Decision:
        """Return a decision in place of the store's, or raise the error."""

    def close(self) -> None: ...


class WrapperBase(Generic[AnyStore]):
    """Keeps the inner store, and has its clock and the names of its servers; a subclass adds the layer."""

    _layer: Layer
    run: Callable[..., object]

    def __init__(self, store: AnyStore) -> None:
        run = getattr(store, "run", None)
        if isinstance(store, str | type) or run is None:
            raise InvalidStore(
                f"a store object is needed, not {short(store)}: open it with open_store or open_async_store"
            )
        if inspect.iscoroutinefunction(run) != inspect.iscoroutinefunction(self.run):
            name = type(self).__name__.removeprefix("Async")
            raise InvalidStore(f"{type(store).__name__} works only with the other of {name} and Async{name}")
        self._store: AnyStore = store
        self.clock = store.clock
        if isinstance(store, Sharded):
            self.servers_of: Callable[[Plan], tuple[str, ...]] = store.servers_of
            self.servers: Callable[[], Collection[str]] = store.servers


class Wrapper(WrapperBase[Store]):
    """A store around a store, for callers that may block."""

    def run(self, call: Call) -> Decision:
        layer = self._layer
        begun = layer.begin(call)
        if isinstance(begun, Decision):
            return begun
        if begun is None:
            return drive(shadowed(call), self.run)
        try:
            decision = self._store.run(call)
        except BaseException as error:  # noqa: BLE001  the layer raises it again, or decides
            return layer.failed(call, begun, error)
        return layer.answered(call, begun, decision)

    bind = plain_check

    def ready(self) -> None:
        """Return if the inner store can decide now, else raise its StoreError: for health checks."""
        self._store.ready()

    def close(self) -> None:
        self._layer.close()
        self._store.close()


class AsyncWrapper(WrapperBase[AsyncStore]):
    """The same for an event loop."""

    async def run(self, call: Call) -> Decision:
        layer = self._layer
        begun = layer.begin(call)
        if isinstance(begun, Decision):
            return begun
        if begun is None:
            return await drive_async(shadowed(call), self.run)
        try:
            decision = await self._store.run(call)
        except BaseException as error:  # noqa: BLE001  the layer raises it again, or decides
            return layer.failed(call, begun, error)
        return layer.answered(call, begun, decision)

    def within(self, seconds: float) -> Self:
        """Return the same store, with the same state, for callers that wait at most `seconds`.

        Without effect if the inner store has no deadlines.
        """
        if not isinstance(self._store, WithDeadlines):
            return self
        copied = copy(self)
        copied._store = self._store.within(seconds)  # noqa: SLF001  of the same class
        return copied

    bind = plain_async_check

    async def ready(self) -> None:
        """Return if the inner store can decide now, else raise its StoreError: for health checks."""
        await self._store.ready()

    async def close(self) -> None:
        self._layer.close()
        await self._store.close()


def microseconds(name: str, seconds: object, *, or_none: bool = False) -> int:
    """Return an option in seconds, up to an hour, in microseconds; 0 is accepted where it means never."""
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        if 0 < seconds <= 3600:
            return max(1, round(seconds * 1_000_000))
        if seconds == 0 and or_none:
            return 0
    accepted = "from 0 to 3600" if or_none else "above 0 and up to 3600"
    raise InvalidStore(f"{name} must be a number of seconds {accepted}, not {short(seconds)}")

"""Stores around a memory store that can be made to fail, in both colours: what tests of wrappers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headgate import Algorithm, Decision, MemoryStore, OutcomeUnknown, Quota
from headgate.core.plan import Call, Family, Plan, Verb
from headgate.stores.base import Sharded, Store
from headgate.stores.memory import AsyncMemoryStore
from headgate.testing import ManualClock
from headgate.testing.blocking import Blocking

SECOND = 1_000_000
HOUR = 3600 * SECOND
TEN = Quota(10, HOUR, algorithm=Algorithm.SLIDING_WINDOW_LOG)


class Inner(MemoryStore):
    """A memory store that records its calls, takes time, and fails: before it acts or, with OutcomeUnknown, after."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.manual = clock
        self.asked: list[str] = []
        self.fault: type[BaseException] | None = None
        self.takes_us = 0
        self.meanwhile: Callable[[], object] = lambda: None
        """Happens once, after the store has acted and before it answers."""

    def run(self, call: Call) -> Decision:
        decision: Decision = self._act(call.verb.value, lambda: self._run_now(call))
        return decision

    def _run_now(self, call: Call) -> Decision:
        return super().run(call)

    def ready(self) -> None:
        self._act("ready", lambda: None)

    def _act(self, name: str, work: Callable[[], Any]) -> Any:
        self.asked.append(name)
        if self.fault not in {None, OutcomeUnknown}:
            raise self.fault("injected")
        self.manual.advance(us=self.takes_us // 2)
        done = work()
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        self.manual.advance(us=self.takes_us - self.takes_us // 2)
        if self.fault:
            raise self.fault("injected")
        return done


class Shards(Inner):
    """A store on several servers: the first letter of a principal is the name of its server. They fail one by one."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.away: set[str] = set()
        self.members: set[str] = set()
        """Those that have a part of the store; empty: not known."""
        self.incident: object = None

    def servers_of(self, plan: Plan) -> tuple[str, ...]:
        return tuple([str(limit.principal)[0] for limit in plan])

    def servers(self) -> set[str]:
        return self.members

    def _run_now(self, call: Call) -> Decision:
        for plan in (call.plan, *call.shadow):
            for server in self.servers_of(plan):
                if server in self.away:
                    error = OutcomeUnknown(f"{server} hangs")
                    error.server, error.incident = server, self.incident
                    raise error
        return super()._run_now(call)


class AsyncInner(AsyncMemoryStore):
    def __init__(self, store: Inner) -> None:
        super().__init__(store)
        if isinstance(store, Sharded):
            self.servers_of, self.servers = store.servers_of, store.servers


class Subject:
    """A wrapper of either colour around an inner store, for callers that block."""

    def __init__(self, wrappers: tuple[Any, Any], colour: str, inner: Any, **options: Any) -> None:
        self.inner, self.clock = inner, inner.manual
        if colour == "sync":
            self.wrapper = wrappers[0](inner, **options)
            self.store: Store = self.wrapper
        else:
            self.wrapper = wrappers[1](AsyncInner(inner), **options)
            self.store = Blocking(self.wrapper)
        self.statistics = self.wrapper.statistics
        self.family = Family("test", [TEN])
        self.plan = self.family.plan("user")

    def check(self, cost: int = 1) -> Decision:
        return self.store.run(Call(Verb.CHECK, self.plan, cost))

    def peek(self, cost: int = 1) -> Decision:
        return self.store.run(Call(Verb.PEEK, self.plan, cost))

    def asked(self) -> list[str]:
        asked: list[str] = self.inner.asked
        self.inner.asked = []
        return asked


Make = Callable[..., Subject]


def maker(blocking: Any, asynchronous: Any) -> Any:
    @pytest.fixture(params=["sync", "async"])
    def make(request: pytest.FixtureRequest) -> Iterator[Make]:
        with ExitStack() as stack:

            def one(inner: type[Inner] = Inner, **options: Any) -> Subject:
                subject = Subject((blocking, asynchronous), request.param, inner(ManualClock()), **options)
                stack.callback(subject.store.close)
                return subject

            yield one

    return make

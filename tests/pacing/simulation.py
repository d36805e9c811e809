"""Clients and a server in virtual time: deterministic, without sleeping, thousands of requests in a second.

The server decides by the pure functions of `headgate.core`, on a clock of its own, and writes the header fields of one
of several *styles*. Clients run the flows of real pacers; requests and answers take random times on their way.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from email.utils import formatdate
from itertools import count
from random import Random
from typing import Any

from benchmarks.clients.api import Fields, Style, github, headgate, ietf, seconds
from headgate.core.algorithms import State
from headgate.core.decision import Decision
from headgate.core.plan import Call
from headgate.core.quota import SECOND, Quota
from headgate.pacing.pacer import Incoming, Outgoing, Pacer, Send, WaitTooLong
from headgate.stores.memory import MemoryStore
from headgate.waiting import Pause

START = 1_790_000_000_000_000


def delta(decision: Decision, _: int) -> Fields:
    """A reset in seconds from now, and nothing else."""
    found = [("X-RateLimit-Limit", str(decision.limit)), ("X-RateLimit-Remaining", str(decision.remaining))]
    return [*found, ("X-RateLimit-Reset", str(seconds(decision.reset_after_us)))]


def openai(decision: Decision, _: int) -> Fields:
    """Durations, by kind."""
    reset = f"{decision.reset_after_us / 1000:.0f}ms"
    found = [("limit", str(decision.limit)), ("remaining", str(decision.remaining)), ("reset", reset)]
    return [(f"x-ratelimit-{what}-requests", value) for what, value in found]


def draft_7(decision: Decision, _: int) -> Fields:
    """The IETF's fields of an earlier draft."""
    found = f"limit={decision.limit}, remaining={decision.remaining}, reset={seconds(decision.reset_after_us)}"
    return [("RateLimit", found), ("RateLimit-Policy", f"{decision.limit};w={seconds(decision.quota.window_us)}")]


STYLES: dict[str, Style] = {each.__name__: each for each in (headgate, ietf, github, delta, openai, draft_7)}


@dataclass
class Server:
    """Enforces a quota, by a clock that is `skew_us` ahead of that of its clients."""

    quota: Quota
    style: Style
    skew_us: int = 0
    state: State = None
    seen: int = 0
    refused: int = 0

    def answer(self, now: int) -> Incoming:
        now += self.skew_us
        self.state, decision = self.quota.step(self.state, 1, now)
        self.seen += 1
        self.refused += not decision.allowed
        fields = self.style(decision, now)
        if not decision.allowed:
            fields.append(("Retry-After", str(max(1, seconds(decision.retry_after_us)))))
        fields.append(("Date", formatdate(now // SECOND, usegmt=True)))
        return Incoming(200 if decision.allowed else 429, fields, None)

    def take(self, now: int) -> None:
        """Count a request of another client, if it passes."""
        self.state, _ = self.quota.step(self.state, 1, now + self.skew_us)


class Ticket:
    """A ticket of a queue, in virtual time."""

    def __init__(self, world: World) -> None:
        self._world, self._called = world, False
        self.resume: Callable[[], None] | None = None

    def call(self) -> None:
        self._called = True
        resume, self.resume = self.resume, None
        if resume:
            self._world.after(0, resume)

    def settle(self) -> None:
        self._called = False

    def is_lost(self) -> bool:
        return False

    def wait(self, resume: Callable[[], None], until: int | None) -> None:
        """Call `resume` once: when called, or at `until`."""
        if self._called:
            self._world.after(0, resume)
            return
        self.resume = resume

        def due() -> None:
            if self.resume is resume:
                self.resume = None
                resume()

        if until is not None:
            self._world.at(until, due)


@dataclass
class World:
    """Time, and what happens in it. It is the clock of its pacers and of the store that they share."""

    seed: int = 0
    time: int = START
    events: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    longest_us: int = 20_000
    """The most that a request or an answer takes on its way."""

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self._numbers = count()
        self.store = MemoryStore(clock=self)

    def now(self) -> int:
        return self.time

    def ticks(self) -> int:
        return self.time - START + SECOND

    def wait(self, *_: object) -> None:
        raise AssertionError("no flow blocks")

    async def wait_async(self, *_: object) -> None:
        raise AssertionError("no flow waits")

    def at(self, ticks: int, do: Callable[[], None]) -> None:
        heapq.heappush(self.events, (max(ticks, self.ticks()), next(self._numbers), do))

    def after(self, us: int, do: Callable[[], None]) -> None:
        self.at(self.ticks() + us, do)

    def way(self) -> int:
        return self.random.randrange(self.longest_us // 4, self.longest_us)

    def run(self, most_events: int = 2_000_000) -> None:
        """Run all events; fail if they do not end."""
        for _ in range(most_events):
            if not self.events:
                return
            ticks, _, do = heapq.heappop(self.events)
            self.time = max(self.time, ticks + START - SECOND)
            do()
        raise AssertionError("it never ends")

    def exchange(
        self, pacer: Pacer, request: Outgoing, server: Any, done: Callable[[Any], None], *, shared: bool
    ) -> None:
        """Run a flow of a pacer."""
        ticket = Ticket(self)
        flow = pacer.exchange(request, ticket, is_shared=shared)

        def step(outcome: Any = None) -> None:
            try:
                wanted = flow.send(outcome)
            except StopIteration as end:
                done(end.value)
                return
            if isinstance(wanted, Pause):
                ticket.wait(step, wanted.until)
            elif isinstance(wanted, Call):
                self.after(300, lambda: self._decide(wanted, step))
            else:
                assert isinstance(wanted, Send)
                self.after(self.way(), lambda: self._arrive(server, step))

        self.after(0, step)

    def _decide(self, call: Call, step: Callable[[Any], None]) -> None:
        decision = self.store.run(call)
        self.after(300, lambda: step(decision))

    def _arrive(self, server: Any, step: Callable[[Any], None]) -> None:
        answer = server.answer(self.time)
        self.after(self.way(), lambda: step(answer))


def request(method: str = "GET", path: str = "/orders", **headers: str) -> Outgoing:
    return Outgoing(method, "http://api", path, headers, is_replayable=True)


@dataclass
class Fleet:
    """Processes with workers, which send `requests` in all as fast as they may."""

    world: World
    server: Any
    requests: int
    processes: int = 1
    workers: int = 8
    max_wait: float = 100_000.0
    outcomes: list[Any] = field(default_factory=list)
    ended: int = 0

    def run(self) -> Fleet:
        start = self.world.ticks()
        pacers = [Pacer(max_wait=self.max_wait, clock=self.world, jitter=lambda: 0.5) for _ in range(self.processes)]
        left = iter(range(self.requests))

        def work(pacer: Pacer) -> None:
            if next(left, None) is None:
                return

            def done(outcome: Any) -> None:
                self.outcomes.append(outcome)
                self.ended = self.world.ticks() - start
                work(pacer)

            self.world.exchange(pacer, request(), self.server, done, shared=self.processes > 1)

        for pacer in pacers:
            for _ in range(self.workers):
                work(pacer)
        self.world.run()
        return self

    @property
    def failed(self) -> Iterable[Any]:
        return [each for each in self.outcomes if isinstance(each, WaitTooLong) or each.status != 200]

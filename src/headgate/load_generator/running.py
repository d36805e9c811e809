"""A run: connections are kept busy until enough was asked, or time is over.

In the closed loop a connection asks again when it was answered. In the open loop questions are due at a constant rate,
whether the service keeps up or not, and latencies count from when a question was due: time that it had to wait for a
free connection is part of them (otherwise a service that stalls would look fast: "coordinated omission").
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Coroutine
from math import ceil
from time import perf_counter_ns
from typing import Any

import msgspec

from headgate.core.errors import UsageError
from headgate.load_generator.connection import Connection
from headgate.load_generator.machine import Machine
from headgate.load_generator.outcomes import LOST, NO_ANSWER, UNFINISHED, Kind, Outcome
from headgate.load_generator.statistics import Summary, Tally
from headgate.load_generator.targets import NotSpoken, Target, Unreachable

MOST_REQUESTS = 10_000_000
MOST_SECONDS = 3600.0
MOST_CONNECTIONS = 1000
MOST_STREAMS = 1000
MOST_RATE = 1_000_000
_SECOND = 1_000_000_000
_SPIN = 0.002
"""Seconds before a question is due that timers are too coarse for: from here on the loop looks again and again."""
_REST, _LONGEST_REST = 0.05, 1.0
"""Seconds between attempts to connect again."""


class Plan(msgspec.Struct, frozen=True):
    """How much, and how."""

    requests: int = MOST_REQUESTS
    seconds: float = 5.0
    connections: int = 16
    users: int = 1000
    rate: float | None = None
    """In a second, in the open loop; None: the closed loop."""
    timeout: float = 5.0
    """Seconds for one answer, and for connecting."""

    def __post_init__(self) -> None:
        bounds = {
            "requests": (self.requests, 1, MOST_REQUESTS),
            "seconds": (self.seconds, 0.001, MOST_SECONDS),
            "connections": (self.connections, 1, MOST_CONNECTIONS),
            "rate": (1 if self.rate is None else self.rate, 0.001, MOST_RATE),
            "timeout": (self.timeout, 0.001, MOST_SECONDS),
        }
        for name, (value, least, most) in bounds.items():
            if not least <= value <= most:
                raise UsageError(f"{name} should be {least:,} to {most:,}, not {value:g}")


class Progress(msgspec.Struct, frozen=True):
    """How far a run is."""

    seconds: float
    decided: int
    recently: float
    """Decisions in a second, since the last look."""
    shed: int
    failed: int


class Run:
    """One run; use it once.

    Args:
        target: whom to ask.
        plan: how much, and how.
        machine: makes the client's end of a connection.
        tls: how to speak TLS, if the target does.
        watch: is told once a second how it goes.
    """

    def __init__(
        self,
        target: Target,
        plan: Plan,
        machine: Callable[[], Machine],
        *,
        tls: ssl.SSLContext | None = None,
        watch: Callable[[Progress], object] | None = None,
    ) -> None:
        self._target, self._plan, self._machine, self._tls, self._watch = target, plan, machine, tls, watch
        self._tally = Tally()
        self._interval = _SECOND / plan.rate if plan.rate else 0.0
        self._again: deque[int] = deque()
        """When questions were due that a server surely did not look at: they are asked again."""
        self._free: deque[Connection] = deque()
        """Connections with room."""
        self._open: set[Connection] = set()
        self._sent = self._in_flight = 0
        self._connects = self._connects_failed = self._lost = 0
        self._began = self._ended = self._end_of_asking = 0
        self._asking = self._interrupted = self._gone = False
        self._last_error = OSError("no attempt was made")
        self._tried, self._over = asyncio.Event(), asyncio.Event()
        """Every lane has tried to connect; the run is over."""
        self._timer: asyncio.Handle | None = None

    def interrupt(self) -> None:
        """Stop at once; call it from the loop of the run."""
        self._asking, self._interrupted = False, True
        self._end()

    async def run(self) -> Summary:
        """Ask until all is asked or time is over, and wait for the last answers.

        Raises:
            Unreachable: not one connection could be made.
            NotSpoken: none could be used.
        """
        self._machine()  # where a package is missing, it says so here
        tasks = [self._task(self._keep_connected()) for _ in range(self._plan.connections)]
        try:
            await self._tried.wait()
            if not self._connects and not self._over.is_set():
                raise Unreachable(self._target, self._last_error)
            self._began, self._asking = perf_counter_ns(), not self._over.is_set()
            self._end_of_asking = self._began + round(self._plan.seconds * _SECOND)
            tasks.append(self._task(self._watch_over()))
            self._dispatch()
            await self._over.wait()
            self._ended = perf_counter_ns()
        finally:
            self._asking = False
            if self._timer is not None:
                self._timer.cancel()
            await self._close(tasks)
        return self._summary()

    def _task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task. None ends before the run does, unless something is wrong: then that is the end."""
        task = asyncio.create_task(coroutine)
        task.add_done_callback(lambda _: self._end())
        return task

    def _end(self) -> None:
        self._over.set()
        self._tried.set()

    async def _keep_connected(self) -> None:
        """Have one connection, and make a new one when it is lost."""
        loop, rest = asyncio.get_running_loop(), _REST
        name = self._target.host if self._tls is not None else None
        while not self._over.is_set():
            try:
                async with asyncio.timeout(self._plan.timeout):
                    _, connection = await loop.create_connection(
                        lambda: Connection(self._machine(), self),
                        self._target.host,
                        self._target.port,
                        ssl=self._tls,
                        server_hostname=name,
                    )
            except OSError as error:  # TimeoutError is one
                self._connects_failed += 1
                self._last_error = error
                self._note_tries()
            else:
                self._connects += 1
                self._note_tries()
                await connection.gone.wait()
                if connection.answered:  # whoever answers is asked again at once
                    rest = _REST
                    continue
            await asyncio.sleep(rest)
            rest = min(2 * rest, _LONGEST_REST)

    def _note_tries(self) -> None:
        if self._connects + self._connects_failed >= self._plan.connections:
            self._tried.set()

    async def _watch_over(self) -> None:
        """Once in a while: is time over, does an answer not come, is the service gone, and how does it go?"""
        step = min(0.1, self._plan.timeout / 4, self._plan.seconds / 4)
        end, timeout = self._end_of_asking, round(self._plan.timeout * _SECOND)
        told_at, told, seen = self._began, 0, self._began
        while not self._over.is_set():
            left = (end - perf_counter_ns()) / _SECOND
            await asyncio.sleep(min(step, left) if left > 0 else step)
            now = perf_counter_ns()
            if now >= end:
                self._asking = False
                if not self._in_flight or now >= end + timeout:
                    self._over.set()
            self._give_up(now - timeout)
            if self._open:
                seen = now
            elif now >= seen + timeout:
                self._gone = True
                self._over.set()
            if not self._sent and now >= self._began + timeout:
                raise NotSpoken(self._target, self._plan.timeout)
            if self._watch is not None and now - told_at >= _SECOND:
                progress = self._progress(now, told_at, told)
                told_at, told = now, progress.decided
                self._watch(progress)

    def _give_up(self, asked_before: int) -> None:
        for connection in [each for each in self._open if each.asked_before(asked_before)]:
            for due, asked in connection.take_all():
                self._count(NO_ANSWER if asked < asked_before else LOST, due)
            self._lost += 1
            connection.abort()

    def _progress(self, now: int, told_at: int, told: int) -> Progress:
        decided = self._tally.latencies.total
        recently = (decided - told) * _SECOND / (now - told_at)
        shed, failed = self._tally.of(Kind.SHED), self._tally.of(Kind.ERROR)
        return Progress((now - self._began) / _SECOND, decided, recently, shed, failed)

    def _dispatch(self) -> None:
        """Ask all that is due, as far as connections have room."""
        free, now = self._free, perf_counter_ns()
        if not self._asking or now >= self._end_of_asking:
            return
        touched: set[Connection] = set()
        while free:
            connection = free[0]
            if not connection.has_room():
                connection.is_listed = False
                free.popleft()
                continue
            due = self._next_due(now)
            if due is None:
                break
            connection.ask(self._sent % self._plan.users, due, now)
            touched.add(connection)
            self._sent += 1
            self._in_flight += 1
            free.rotate(-1)
        for connection in touched:
            connection.flush()

    def _next_due(self, now: int) -> int | None:
        """Return when the next question was due, if it was; otherwise see to it that this is looked at in time."""
        if self._again:
            return self._again.popleft()
        if self._sent >= self._plan.requests:
            return None
        if not self._interval:
            return now
        due = self._began + round(self._sent * self._interval)
        if due <= now:
            return due
        if self._timer is None:
            loop, wait = asyncio.get_running_loop(), (due - now) / _SECOND - _SPIN
            self._timer = loop.call_later(wait, self._on_time) if wait > 0 else loop.call_soon(self._on_time)
        return None

    def _on_time(self) -> None:
        self._timer = None
        self._dispatch()

    def on_made(self, connection: Connection) -> None:
        """A connection is there."""
        self._open.add(connection)

    def on_room(self, connection: Connection) -> None:
        """A connection has room."""
        if not connection.is_listed:
            connection.is_listed = True
            self._free.append(connection)
        self._dispatch()

    def on_answer(self, outcome: Outcome | None, due: int) -> None:
        """A question ended."""
        if outcome is None:
            self._in_flight -= 1
            self._sent -= 1
            self._again.append(due)
        else:
            self._count(outcome, due)

    def _count(self, outcome: Outcome, due: int) -> None:
        self._in_flight -= 1
        self._tally.add(outcome, (perf_counter_ns() - due) // 1000)
        if not self._in_flight and (not self._asking or self._sent >= self._plan.requests) and not self._again:
            self._over.set()

    def on_end(self, connection: Connection, outcome: Outcome) -> None:
        """A connection is gone."""
        if connection.is_listed:
            connection.is_listed = False
            self._free.remove(connection)
        self._open.discard(connection)
        unanswered = connection.take_all()
        self._lost += bool(unanswered)
        for due, _ in unanswered:
            self._count(outcome, due)

    async def _close(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        for connection in list(self._open):
            for due, _ in connection.take_all():
                self._count(UNFINISHED, due)
            connection.abort()
            await connection.gone.wait()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(end, Exception):
                raise end

    def _summary(self) -> Summary:
        tally = self._tally
        missed = 0
        if self._interval:
            asked_for = min(self._ended, self._end_of_asking) - self._began
            missed = max(0, min(self._plan.requests, ceil(asked_for / self._interval)) - self._sent)
        return Summary(
            seconds=(self._ended - self._began) / _SECOND,
            sent=self._sent,
            allowed=tally.of(Kind.ALLOWED),
            denied=tally.of(Kind.DENIED),
            degraded=tally.degraded(),
            shed=tally.of(Kind.SHED),
            errors=tally.errors(),
            missed=missed,
            connects=self._connects,
            connects_failed=self._connects_failed,
            connections_lost=self._lost,
            latency=tally.latency(),
            interrupted=self._interrupted,
            gone=self._gone,
            unmatched=tally.unmatched(),
        )

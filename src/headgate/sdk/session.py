"""Calls to a service from one event loop: batching, failover between nodes, retries, and the service's rules.

A call is sent at once while a node has fewer than `IN_FLIGHT` batches, and otherwise with the next *batch*: all calls
that arrived meanwhile. There is no timer. Deadlines exclude delays of this process (`headgate.stores.deadlines`). A
node is skipped after several consecutive failures (`headgate.stores.breaker`), or after one while other nodes respond;
background probes find out when it is up again.

A call that certainly had no effect is retried on another node. One with an unknown outcome is retried too if it is
idempotent: it takes nothing or has an idempotency key. Otherwise the fallback decides. With several nodes, of which the
chosen one has not responded recently, calls get a generated idempotency key, and an attempt has part of the timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import count
from secrets import token_hex
from time import monotonic
from typing import Any, TypeAlias

from headgate.core.errors import HeadgateError, OutcomeUnknown, StoreBusy, StoreError, StoreUnavailable, UsageError
from headgate.sdk.fallback import ServiceFallback
from headgate.sdk.settings import ClientSettings, NodeAddress
from headgate.sdk.transport import MAX_BATCH_BYTES, BatchTooLarge, FetchedRules, ServiceFailure, Transport, result_of
from headgate.stores.breaker import Breaker, Circuit
from headgate.stores.circuits import Reason, reason_of
from headgate.stores.deadlines import ServerTime

IN_FLIGHT = 2
"""Concurrent batches of a node."""
LARGEST_BATCH = 128
MAX_QUEUE = 20_000
RECENT_SECONDS = 0.1
"""A node is trusted for this long after a response, and may be this late with one."""
ATTEMPTS = 3
"""The timeout of a call is divided by this where it may be retried on another node."""
RULES_SECONDS = 5.0
"""Timeout for fetching the rules, at least."""
RULES_SOON = 1.0
"""Retry interval until the rules are first fetched."""
_CLOSED = Circuit.CLOSED
_NOT_AWAITED = ServiceFailure(
    Reason.OUTCOME_UNKNOWN, OutcomeUnknown("the client was closed before the response arrived"), 1
)
_LOG = logging.getLogger("headgate.sdk")
Send: TypeAlias = Callable[[Transport, Sequence["PendingCall"], float], Awaitable[Sequence[Any]]]
"""Sends calls to a node within a number of seconds, and returns an outcome for each."""


class PendingCall:
    """A call, encoded by its transport, that waits for its outcome: a result, a UsageError, or a ServiceFailure.

    `seconds` is its timeout, from submission; `answer` is a future of a thread or an event loop.
    """

    __slots__ = ("answer", "deadline", "is_repeatable", "payload", "seconds", "since")

    def __init__(self, payload: bytes, seconds: float, answer: Any, *, is_repeatable: bool) -> None:
        self.payload, self.seconds, self.answer = payload, seconds, answer
        self.is_repeatable = is_repeatable
        self.since = self.deadline = 0.0

    def begin(self, now: float) -> None:
        self.since, self.deadline = now, now + self.seconds

    def resolve(self, outcome: Any) -> None:
        """Set the outcome, unless the caller is gone."""
        if not self.answer.done():
            self.answer.set_result(outcome)


class ServiceNode:
    __slots__ = ("breaker", "endpoint", "in_flight", "pending_since", "responded_at", "transport")

    def __init__(self, endpoint: NodeAddress, transport: Transport) -> None:
        self.endpoint, self.transport = endpoint, transport
        self.in_flight = 0
        self.responded_at = -RECENT_SECONDS
        self.pending_since = 0.0  # of the oldest wait for any response
        self.breaker = Breaker()

    def is_overdue(self, now: float) -> bool:
        return self.in_flight > 0 and now - self.pending_since > RECENT_SECONDS

    @property
    def is_available(self) -> bool:
        return self.breaker.state is _CLOSED

    def wait_us(self) -> int:
        return self.breaker.wait_us(_ticks())

    def succeeded(self, ticket: int) -> None:
        if not self.breaker.is_healthy and self.breaker.succeeded(ticket):
            _LOG.warning("%s responds again", self.endpoint)

    def failed(self, ticket: int, error: BaseException) -> None:
        """Record a failure, unless the error is not the node's."""
        if not isinstance(error, StoreError) or isinstance(error, StoreBusy):
            self.breaker.abandoned(ticket, _ticks())
        elif self.breaker.failed(ticket, _ticks()):
            _LOG.warning("%s is unavailable (%s): using the fallback until it responds", self.endpoint, error)

    def trip(self, error: StoreError) -> None:
        """Open the circuit after a failure while other nodes respond."""
        if self.breaker.trip(_ticks()):
            _LOG.warning("%s is unavailable (%s): using other nodes until it responds", self.endpoint, error)


class Session:
    """Calls to the nodes of a service. It belongs to the event loop that it was made in, and is not thread-safe.

    `fallback` receives the rules of the service.
    """

    def __init__(self, settings: ClientSettings, transport: type[Transport], fallback: ServiceFallback | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.nodes = [ServiceNode(endpoint, transport(endpoint, settings)) for endpoint in settings.endpoints]
        self._timeout, self._rules_every = settings.timeout, settings.rules_every
        self._queue: deque[PendingCall] = deque()
        self._is_scheduled, self._is_closed = False, False
        self._largest = LARGEST_BATCH
        self._turns = count()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._etag = ""
        self._time = ServerTime(self.loop, self._expire)
        self._attempts: dict[asyncio.Timeout, tuple[float, Sequence[PendingCall]]] = {}
        """When each attempt ends, and its calls."""
        self._keys = (f"{token_hex(16)}-{number}" for number in count())
        self._with_key = transport.with_key
        if fallback is not None:
            self._start(self._follow_rules(fallback))

    def submit(self, calls: Iterable[PendingCall]) -> None:
        self._time.watch()
        now = self._time.time()
        for each in calls:
            each.begin(now)
            if self._is_closed:
                each.resolve(self._unavailable("the client was closed"))
            elif len(self._queue) >= MAX_QUEUE:
                each.resolve(_overload(f"{MAX_QUEUE} calls wait already"))
            else:
                self._queue.append(each)
        if not self._is_scheduled:  # one batch for the whole turn of the loop
            self._is_scheduled = True
            self.loop.call_soon(self._dispatch)

    def run(self, call: PendingCall, send: Send) -> None:
        """Send a call outside batches, immediately."""
        self._time.watch()
        call.begin(self._time.time())
        node = self._next_node(())
        if self._is_closed or node is None:
            call.resolve(self._unavailable("the client was closed" if self._is_closed else ""))
        else:
            self._start(self._call_nodes(node, [call], send))

    async def fetch_rules(self, fallback: ServiceFallback) -> None:
        seconds = max(self._timeout, RULES_SECONDS)

        async def send(transport: Transport, _: Sequence[PendingCall], left: float) -> Sequence[FetchedRules | None]:
            return [await transport.rules(self._etag if fallback.has_rules else "", left)]

        call = PendingCall(b"", seconds, self.loop.create_future(), is_repeatable=True)
        self.run(call, send)
        outcome: FetchedRules | None = result_of(await call.answer)
        if outcome is not None:
            await asyncio.to_thread(fallback.adopt, outcome)  # compiling many rules is slow
            self._etag = outcome.etag

    async def ready(self) -> None:
        """Return once a node is ready. Raises StoreError."""
        error: HeadgateError = StoreUnavailable("no node was reached")
        for node in self.nodes:
            try:
                await self._ready(node)
            except HeadgateError as other:
                error = other
            else:
                return
        raise error

    async def _ready(self, node: ServiceNode) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await node.transport.ready(self._timeout)
        except TimeoutError:
            raise StoreUnavailable(f"{node.endpoint} did not respond within {self._timeout:g} s") from None

    async def close(self) -> None:
        """Stop; pending calls fail."""
        self._is_closed = True
        self._fail_queued("the client was closed")
        await asyncio.sleep(0)  # a task that never began would resolve nothing
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for node in self.nodes:
            await node.transport.close()

    def _dispatch(self) -> None:
        self._is_scheduled = False
        for node in self.nodes:
            if not node.is_available and (ticket := node.breaker.permit(_ticks())):
                self._start(self._probe(node, ticket))
        while self._queue:
            free = self._next_node(())
            if free is None:
                self._fail_queued("")
                return
            if free.in_flight >= IN_FLIGHT:
                return
            if batch := self._next_batch():
                self._start(self._call_nodes(free, batch, _check))

    def _fail_queued(self, why: str) -> None:
        failure, waiting = self._unavailable(why), list(self._queue)
        self._queue.clear()
        for each in waiting:
            each.resolve(failure)

    def _next_batch(self) -> list[PendingCall]:
        """Take the next batch from the queue, without calls that were cancelled."""
        batch: list[PendingCall] = []
        size = 0
        while self._queue and len(batch) < self._largest:
            size += len(self._queue[0].payload)
            if size > MAX_BATCH_BYTES and batch:
                break
            first = self._queue.popleft()
            if not first.answer.done():
                batch.append(first)
        return batch

    def _next_node(self, tried: Sequence[ServiceNode]) -> ServiceNode | None:
        """Return the least busy available node, in rotation; None if there is none."""
        found = [node for node in self.nodes if node.is_available and node not in tried]
        if not found:
            return None
        turn, now = next(self._turns) % len(found), self._time.time()
        return min(found[turn:] + found[:turn], key=lambda node: (node.is_overdue(now), node.in_flight))

    async def _call_nodes(self, node: ServiceNode | None, waiting: list[PendingCall], send: Send) -> None:
        """Try nodes until one responds, and resolve all calls."""
        tried: list[ServiceNode] = []
        silent: list[ServiceNode] = []
        result: Any = _NOT_AWAITED
        try:
            while node is not None and waiting:
                result = await self._attempt(node, waiting, send, tried)
                if not isinstance(result, ServiceFailure):
                    break
                tried.append(node)
                if result.reason is Reason.OUTCOME_UNKNOWN:
                    silent.append(node)
                waiting = self._retryable(waiting, result)
                node = self._next_node(tried)
                if node is None and silent and len(tried) < ATTEMPTS:
                    node = silent.pop(0)  # perhaps only its connection was lost
        finally:
            outcomes = result if isinstance(result, list) else [result] * len(waiting)
            for each, outcome in zip(waiting, outcomes, strict=True):
                each.resolve(outcome)
            if not self._is_closed:
                self._dispatch()

    def _retryable(self, waiting: list[PendingCall], failure: ServiceFailure) -> list[PendingCall]:
        """Return the calls to retry now on another node; resolve or queue the others."""
        if isinstance(failure.error, BatchTooLarge) and len(waiting) > 1:
            self._largest = max(1, len(waiting) // 2)
            self._queue.extendleft(reversed(waiting))
            return []
        now, again = self._time.time(), []
        for each in waiting:
            if each.deadline > now and (each.is_repeatable or failure.reason is not Reason.OUTCOME_UNKNOWN):
                again.append(each)
            else:
                each.resolve(failure)
        return again

    async def _attempt(
        self, node: ServiceNode, waiting: Sequence[PendingCall], send: Send, tried: Sequence[ServiceNode]
    ) -> Any:
        """Try one node; return outcomes, the UsageError of the whole batch, or a ServiceFailure."""
        now = self._time.time()
        has_others = any(other.is_available for other in self.nodes if other is not node and other not in tried)
        if has_others and send is _check and now - node.responded_at > RECENT_SECONDS:
            self._add_keys(waiting)
        left = max(each.deadline for each in waiting) - now
        if left <= 0:  # not the node's fault
            return _overload("no time left for the call")
        if has_others and all(each.is_repeatable for each in waiting):
            left /= ATTEMPTS
        ticket = node.breaker.permit(_ticks())
        try:
            outcomes = await self._send(node, waiting, send, now, left)
        except TimeoutError:
            error: StoreError = OutcomeUnknown(f"{node.endpoint} did not answer in {left:.3g} s")
            if has_others and node.responded_at < now:
                node.trip(error)
        except UsageError as mistake:
            self._responded(node, ticket)
            return mistake
        except StoreError as failure:
            error = failure
        except BaseException as other:
            node.failed(ticket, other)
            raise
        else:
            self._responded(node, ticket)
            return outcomes
        node.failed(ticket, error)
        return ServiceFailure(reason_of(error), error, node.wait_us())

    async def _send(
        self, node: ServiceNode, waiting: Sequence[PendingCall], send: Send, now: float, left: float
    ) -> list[Any]:
        if not node.in_flight:
            node.pending_since = now
        node.in_flight += 1
        limit = asyncio.timeout(None)
        self._attempts[limit] = now + left, waiting
        self._time.watch()  # a tick between the queue and this attempt has seen no call
        try:
            async with limit:
                return list(await send(node.transport, waiting, left))
        finally:
            node.in_flight -= 1
            del self._attempts[limit]

    def _add_keys(self, waiting: Sequence[PendingCall]) -> None:
        for each in waiting:
            if not each.is_repeatable:
                each.payload, each.is_repeatable = self._with_key(each.payload, next(self._keys)), True

    def _responded(self, node: ServiceNode, ticket: int) -> None:
        node.responded_at = node.pending_since = self._time.time()
        node.succeeded(ticket)

    def _expire(self) -> bool:
        """Fail the calls that have timed out; return whether others are pending."""
        now, responded_at = self._time.time(), max(node.responded_at for node in self.nodes)
        while self._queue and self._queue[0].deadline <= now:
            each = self._queue.popleft()
            why = f"it was not sent in {each.seconds:g} s"
            each.resolve(_overload(why) if responded_at > each.since else self._unavailable(why))
        for limit, (until, waiting) in self._attempts.items():
            for each in waiting:
                if each.deadline <= now and not each.answer.done():
                    unknown = OutcomeUnknown(f"the service did not answer in {each.seconds:g} s")
                    each.resolve(ServiceFailure(Reason.OUTCOME_UNKNOWN, unknown, 1))
            if until <= now and not limit.expired():
                limit.reschedule(self.loop.time())
        return bool(self._queue or self._attempts)

    def _unavailable(self, why: str = "") -> ServiceFailure:
        """Return the failure of a call that no node can take now."""
        wait_us = min(node.wait_us() for node in self.nodes)
        if why:
            return ServiceFailure(Reason.STORE_UNAVAILABLE, StoreUnavailable(why), wait_us)
        places = ", ".join(str(node.endpoint) for node in self.nodes)
        message = f"{places} failed before; next attempt in {wait_us / 1e6:g} s"
        return ServiceFailure(Reason.CIRCUIT_OPEN, StoreUnavailable(message), wait_us)

    async def _probe(self, node: ServiceNode, ticket: int) -> None:
        try:
            await self._ready(node)
        except HeadgateError as error:
            node.failed(ticket, StoreUnavailable(str(error)))
        except BaseException as error:
            node.failed(ticket, error)
            raise
        else:
            node.succeeded(ticket)

    async def _follow_rules(self, fallback: ServiceFallback) -> None:
        while True:
            try:
                await self.fetch_rules(fallback)
            except HeadgateError as error:
                level = logging.DEBUG if fallback.has_rules else logging.WARNING
                _LOG.log(level, "cannot fetch the rules of the service: %s", error)
            await asyncio.sleep(self._rules_every if fallback.has_rules else min(RULES_SOON, self._rules_every))

    def _start(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("a background task of the client failed", exc_info=error)


def _overload(why: str) -> ServiceFailure:
    return ServiceFailure(Reason.OVERLOADED, StoreBusy(why), 1)


async def _check(transport: Transport, waiting: Sequence[PendingCall], seconds: float) -> Sequence[Any]:
    return await transport.check([each.payload for each in waiting], seconds)


def _ticks() -> int:
    return int(monotonic() * 1_000_000)

"""Asking a service from one event loop: batches, nodes that are away, questions that are asked again, and its rules.

A question is sent at once while a node has fewer than `IN_FLIGHT` batches, and otherwise with the next *batch*: all
questions that came meanwhile. No timer decides. Nobody waits for a node that has failed several times in a row
(`headgate.stores.breaker`): it is probed now and then, by a question of nobody's, and asked again when it answers that.

A question that surely was not answered goes to another node. One whose outcome is unknown does too if asking twice does
no harm, since it takes nothing or has an idempotency key; else the fallback answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import count
from time import monotonic
from typing import Any, TypeAlias

from headgate.core.errors import HeadgateError, OutcomeUnknown, StoreBusy, StoreError, StoreUnavailable, UsageError
from headgate.sdk.fallback import ServiceFallback
from headgate.sdk.settings import ClientSettings, Credentials, NodeAddress
from headgate.sdk.transport import MOST_BYTES, BatchTooLarge, FetchedRules, Transport, Unanswered, answer_of
from headgate.stores.breaker import Breaker, BreakerStatistics, Circuit
from headgate.stores.circuits import Reason

IN_FLIGHT = 2
"""Batches that a node has at once."""
LARGEST_BATCH = 128
LONGEST_QUEUE = 10_000
RULES_SECONDS = 5.0
"""For the rules, which may be many, at least."""
RULES_SOON = 1.0
"""Seconds until the rules are asked for again that were never had."""
_CLOSED = Circuit.CLOSED
_NOT_AWAITED = Unanswered(Reason.OUTCOME_UNKNOWN, OutcomeUnknown("the client was closed before the answer came"), 1)
_LOG = logging.getLogger("headgate.sdk")
Send: TypeAlias = Callable[[Transport, Sequence["OpenQuestion"], float], Awaitable[Sequence[Any]]]
"""Asks a node something, in so many seconds; there is an outcome for each of those who wait."""


class OpenQuestion:
    """A question that waits for its answer.

    Args:
        question: as its transport has it.
        seconds: how long its answer is waited for, from now on.
        is_repeatable: whether it may be asked again though perhaps it was answered.
        answer: a future, of a thread or of an event loop; it is given an outcome, a UsageError, or Unanswered.
    """

    __slots__ = ("answer", "deadline", "is_repeatable", "is_sent", "question", "seconds")

    def __init__(self, question: bytes, seconds: float, answer: Any, *, is_repeatable: bool) -> None:
        self.question, self.seconds, self.answer = question, seconds, answer
        self.deadline = monotonic() + seconds
        self.is_repeatable, self.is_sent = is_repeatable, False

    def tell(self, outcome: Any) -> None:
        """Answer it, unless nobody waits any more."""
        if not self.answer.done():
            self.answer.set_result(outcome)

    def given_up(self) -> Unanswered:
        """Return what is known of it when its time is over."""
        self.answer.cancel()
        if self.is_sent:
            unknown = OutcomeUnknown(f"the service did not answer in {self.seconds:g} s")
            return Unanswered(Reason.OUTCOME_UNKNOWN, unknown, 1)
        return Unanswered(
            Reason.STORE_UNAVAILABLE, StoreUnavailable(f"no node could be asked in {self.seconds:g} s"), 1
        )


class ServiceNode:
    """One node of the service, and whether it is asked."""

    __slots__ = ("_breaker", "endpoint", "in_flight", "transport")

    def __init__(self, endpoint: NodeAddress, transport: Transport) -> None:
        self.endpoint, self.transport = endpoint, transport
        self.in_flight = 0
        self._breaker = Breaker()

    @property
    def is_asked(self) -> bool:
        """Whether its circuit is closed."""
        return self._breaker.state is _CLOSED

    def ticket(self) -> int:
        """Return what to report with."""
        return self._breaker.ask(_ticks())

    def probe_ticket(self) -> int:
        """Return the ticket of a probe, if one is due; else 0."""
        return 0 if self.is_asked else self._breaker.ask(_ticks())

    def wait_us(self) -> int:
        """Return how many microseconds from now it is asked again."""
        return self._breaker.wait_us(_ticks())

    def answered(self, ticket: int) -> None:
        """Note that it answers."""
        if not self._breaker.is_untroubled and self._breaker.succeeded(ticket):
            _LOG.warning("%s answers again", self.endpoint)

    def failed(self, ticket: int, error: BaseException) -> None:
        """Note that it does not, unless the error says nothing about it."""
        if not isinstance(error, StoreError) or isinstance(error, StoreBusy):
            self._breaker.abandoned(ticket, _ticks())
        elif self._breaker.failed(ticket, _ticks()):
            _LOG.warning("%s does not answer (%s): decided without it until it does", self.endpoint, error)

    def statistics(self) -> BreakerStatistics:
        return self._breaker.statistics()


class Session:
    """Asks the nodes of a service. It belongs to the event loop that it was made in; nothing here is for threads.

    Args:
        settings: of the client.
        transport: makes what asks a node.
        fallback: is told the rules of the service; None: there is none.
    """

    def __init__(
        self,
        settings: ClientSettings,
        transport: Callable[[NodeAddress, Credentials], Transport],
        fallback: ServiceFallback | None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.nodes = [ServiceNode(endpoint, transport(endpoint, settings.identity)) for endpoint in settings.endpoints]
        self._timeout, self._rules_every = settings.timeout, settings.rules_every
        self._queue: deque[OpenQuestion] = deque()
        self._is_scheduled, self._is_closed = False, False
        self._largest = LARGEST_BATCH
        self._turns = count()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._etag = ""
        if fallback is not None:
            self._start(self._follow_rules(fallback))

    def submit(self, questions: Iterable[OpenQuestion]) -> None:
        """Ask questions; each is told its answer."""
        for each in questions:
            if self._is_closed or len(self._queue) >= LONGEST_QUEUE:
                each.tell(self._not_asked("the client was closed" if self._is_closed else "too many questions wait"))
            else:
                self._queue.append(each)
        if not self._is_scheduled:  # all that come in this turn of the loop travel together
            self._is_scheduled = True
            self.loop.call_soon(self._dispatch)

    def run(self, call: OpenQuestion, send: Send) -> None:
        """Make a call that is not part of a batch, at once; it is told the outcome."""
        node = self._next_node(())
        if self._is_closed or node is None:
            call.tell(self._not_asked("the client was closed" if self._is_closed else ""))
        else:
            self._start(self._asked(node, [call], send))

    async def fetch_rules(self, fallback: ServiceFallback) -> None:
        """Let the fallback know the rules in force. Raises StoreError or UsageError."""
        seconds = max(self._timeout, RULES_SECONDS)

        async def send(transport: Transport, _: Sequence[OpenQuestion], left: float) -> Sequence[FetchedRules | None]:
            return [await transport.rules(self._etag if fallback.has_rules else "", left)]

        call = OpenQuestion(b"", seconds, self.loop.create_future(), is_repeatable=True)
        self.run(call, send)
        outcome: FetchedRules | None = answer_of(await call.answer)
        if outcome is not None:
            await asyncio.to_thread(fallback.adopt, outcome)  # compiling many rules takes its time
            self._etag = outcome.etag

    async def ready(self) -> None:
        """Return when some node may be asked. Raises StoreError."""
        error: HeadgateError = StoreUnavailable("no node was asked")
        for node in self.nodes:
            try:
                await self._ready(node)
            except HeadgateError as other:
                error = other
            else:
                return
        raise error

    async def _ready(self, node: ServiceNode) -> None:
        """Return when one node may be asked. Raises HeadgateError."""
        try:
            async with asyncio.timeout(self._timeout):
                await node.transport.ready(self._timeout)
        except TimeoutError:
            raise StoreUnavailable(f"{node.endpoint} does not answer in {self._timeout:g} s") from None

    async def close(self) -> None:
        """Stop asking; whoever waits is told."""
        self._is_closed = True
        waiting = list(self._queue)
        self._queue.clear()
        for each in waiting:
            each.tell(self._not_asked("the client was closed"))
        await asyncio.sleep(0)  # a task that never began would tell nobody
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for node in self.nodes:
            await node.transport.close()

    def _dispatch(self) -> None:
        """Send what waits, as far as nodes are free."""
        self._is_scheduled = False
        self._probe()
        while self._queue:
            node = self._next_node(())
            if node is None:
                waiting = list(self._queue)
                self._queue.clear()
                absence = self._not_asked()
                for each in waiting:
                    each.tell(absence)
                return
            if node.in_flight >= IN_FLIGHT:
                return
            if batch := self._next_batch():
                self._start(self._asked(node, batch, _check))

    def _next_batch(self) -> list[OpenQuestion]:
        """Take the next batch from the queue, but not those whose callers are gone."""
        batch: list[OpenQuestion] = []
        size = 0
        while self._queue and len(batch) < self._largest:
            size += len(self._queue[0].question)
            if size > MOST_BYTES and batch:
                break
            first = self._queue.popleft()
            if not first.answer.done():
                batch.append(first)
        return batch

    def _next_node(self, tried: Sequence[ServiceNode]) -> ServiceNode | None:
        """Return the node to ask: the one with the least to do, each in its turn; None if none is asked now."""
        asked = [node for node in self.nodes if node.is_asked and node not in tried]
        if not asked:
            return None
        turn = next(self._turns) % len(asked)
        return min(asked[turn:] + asked[:turn], key=lambda node: node.in_flight)

    async def _asked(self, node: ServiceNode | None, waiting: list[OpenQuestion], send: Send) -> None:
        """Ask one node, and others if that one does not answer; all who wait are told."""
        tried: list[ServiceNode] = []
        told: Any = _NOT_AWAITED
        try:
            while node is not None and waiting:
                told = await self._attempt(node, waiting, send)
                if not isinstance(told, Unanswered):
                    break
                tried.append(node)
                waiting = self._to_ask_again(waiting, told)
                node = self._next_node(tried)
                if node is None and len(tried) == 1 and told.reason is Reason.OUTCOME_UNKNOWN:
                    node = self._next_node(())  # the connection may have been lost, not the node
        finally:
            outcomes = told if isinstance(told, list) else [told] * len(waiting)
            for each, outcome in zip(waiting, outcomes, strict=True):
                each.tell(outcome)
            if not self._is_closed:
                self._dispatch()

    def _to_ask_again(self, waiting: list[OpenQuestion], absence: Unanswered) -> list[OpenQuestion]:
        """Return those who may be asked again of another node, now; others are told, or wait in the queue again."""
        if isinstance(absence.error, BatchTooLarge) and len(waiting) > 1:
            self._largest = max(1, len(waiting) // 2)
            self._queue.extendleft(reversed(waiting))
            return []
        now, again = monotonic(), []
        for each in waiting:
            if each.deadline > now and (each.is_repeatable or absence.reason is not Reason.OUTCOME_UNKNOWN):
                again.append(each)
            else:
                each.tell(absence)
        return again

    async def _attempt(self, node: ServiceNode, waiting: Sequence[OpenQuestion], send: Send) -> Any:
        """Ask one node: returns outcomes, the error that is everybody's, or that it did not answer."""
        left = max(each.deadline for each in waiting) - monotonic()
        if left <= 0:  # which says nothing about the node
            return self._not_asked("there was no time left to ask")
        ticket = node.ticket()
        for each in waiting:
            each.is_sent = True
        node.in_flight += 1
        try:
            async with asyncio.timeout(left):
                outcomes = list(await send(node.transport, waiting, left))
        except TimeoutError:
            seconds = max(each.seconds for each in waiting)  # as callers said; other nodes may have had some
            error: StoreError = OutcomeUnknown(f"{node.endpoint} did not answer in {seconds:g} s")
        except UsageError as mistake:
            node.answered(ticket)
            return mistake
        except StoreError as failure:
            error = failure
        except BaseException as other:
            node.failed(ticket, other)
            raise
        else:
            node.answered(ticket)
            return outcomes
        finally:
            node.in_flight -= 1
        node.failed(ticket, error)
        reason = Reason.OUTCOME_UNKNOWN if isinstance(error, OutcomeUnknown) else Reason.STORE_UNAVAILABLE
        if reason is Reason.STORE_UNAVAILABLE:
            for each in waiting:
                each.is_sent = False
        return Unanswered(reason, error, node.wait_us())

    def _not_asked(self, why: str = "") -> Unanswered:
        """Return that no node is asked now, since all have failed before, or for another reason."""
        wait_us = min(node.wait_us() for node in self.nodes)
        if why:
            return Unanswered(Reason.STORE_UNAVAILABLE, StoreUnavailable(why), wait_us)
        places = ", ".join(str(node.endpoint) for node in self.nodes)
        told = f"{places} failed before, and is asked again in {wait_us / 1e6:g} s"
        return Unanswered(Reason.CIRCUIT_OPEN, StoreUnavailable(told), wait_us)

    def _probe(self) -> None:
        """Begin to find out whether nodes that were away for a while are back."""
        for node in self.nodes:
            if ticket := node.probe_ticket():
                self._start(self._probed(node, ticket))

    async def _probed(self, node: ServiceNode, ticket: int) -> None:
        try:
            await self._ready(node)
        except HeadgateError as error:
            node.failed(ticket, StoreUnavailable(str(error)))
        except BaseException as error:
            node.failed(ticket, error)
            raise
        else:
            node.answered(ticket)

    async def _follow_rules(self, fallback: ServiceFallback) -> None:
        """Have the rules at hand for when the service is away."""
        while True:
            try:
                await self.fetch_rules(fallback)
            except HeadgateError as error:
                level = logging.DEBUG if fallback.has_rules else logging.WARNING
                _LOG.log(level, "the rules of the service could not be had: %s", error)
            await asyncio.sleep(self._rules_every if fallback.has_rules else min(RULES_SOON, self._rules_every))

    def _start(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("a client failed to ask", exc_info=error)


async def _check(transport: Transport, waiting: Sequence[OpenQuestion], seconds: float) -> Sequence[Any]:
    return await transport.check([each.question for each in waiting], seconds)


def _ticks() -> int:
    return int(monotonic() * 1_000_000)

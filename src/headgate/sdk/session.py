"""Asking a service from one event loop: batches, nodes that are away, questions that are asked again, and its rules.

A question is sent at once while a node has fewer than `IN_FLIGHT` batches, and otherwise with the next *batch*: all
questions that came meanwhile. No timer decides. Deadlines count what the service takes, not this process
(`headgate.stores.deadlines`). Nobody waits for a node that has failed several times in a row
(`headgate.stores.breaker`), or once where others answer: it is probed now and then, by a question of nobody's, and
asked again when it answers that.

A question that surely was not answered goes to another node. One whose outcome is unknown does too if asking twice does
no harm, since it takes nothing or has an idempotency key; else the fallback answers. Where there are several nodes, and
the one to ask has not answered lately, questions get a key of their own, and an attempt has only a part of the time.
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
from headgate.sdk.settings import ClientSettings, Credentials, NodeAddress
from headgate.sdk.transport import MOST_BYTES, BatchTooLarge, FetchedRules, Transport, Unanswered, answer_of
from headgate.stores.breaker import Breaker, BreakerStatistics, Circuit
from headgate.stores.circuits import Reason, reason_of
from headgate.stores.deadlines import ServerTime

IN_FLIGHT = 2
"""Batches that a node has at once."""
LARGEST_BATCH = 128
LONGEST_QUEUE = 20_000
LATELY = 0.1
"""Seconds for which a node is trusted to be there after it answered, and not doubted while it owes an answer."""
ATTEMPTS = 3
"""The time of a call is for so many, where it may be asked again of another node."""
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
        seconds: how long the service may take, from when it is submitted.
        is_repeatable: whether it may be asked again though perhaps it was answered.
        answer: a future, of a thread or of an event loop; it is given an outcome, a UsageError, or Unanswered.
    """

    __slots__ = ("answer", "deadline", "is_repeatable", "question", "seconds", "since")

    def __init__(self, question: bytes, seconds: float, answer: Any, *, is_repeatable: bool) -> None:
        self.question, self.seconds, self.answer = question, seconds, answer
        self.is_repeatable = is_repeatable
        self.since = self.deadline = 0.0

    def begin(self, now: float) -> None:
        """Count its time from now on."""
        self.since, self.deadline = now, now + self.seconds

    def tell(self, outcome: Any) -> None:
        """Answer it, unless nobody waits any more."""
        if not self.answer.done():
            self.answer.set_result(outcome)


class ServiceNode:
    """One node of the service, and whether it is asked."""

    __slots__ = ("_breaker", "endpoint", "heard_at", "in_flight", "owes_since", "transport")

    def __init__(self, endpoint: NodeAddress, transport: Transport) -> None:
        self.endpoint, self.transport = endpoint, transport
        self.in_flight = 0
        self.heard_at = -LATELY  # when it last answered, by the time of deadlines
        self.owes_since = 0.0  # while batches are in flight: since when none was answered
        self._breaker = Breaker()

    def is_silent(self, now: float) -> bool:
        """Has it owed an answer for a while?"""
        return self.in_flight > 0 and now - self.owes_since > LATELY

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

    def left_out(self, error: StoreError) -> None:
        """Note that it does not answer while others do: nobody is to wait for it."""
        if self._breaker.trip(_ticks()):
            _LOG.warning("%s does not answer (%s): others are asked until it does", self.endpoint, error)

    def statistics(self) -> BreakerStatistics:
        return self._breaker.statistics()


class Session:
    """Asks the nodes of a service. It belongs to the event loop that it was made in; nothing here is for threads.

    Args:
        settings: of the client.
        transport: makes what asks a node.
        keyed: returns a question of the transport with an idempotency key.
        fallback: is told the rules of the service; None: there is none.
    """

    def __init__(
        self,
        settings: ClientSettings,
        transport: Callable[[NodeAddress, Credentials], Transport],
        keyed: Callable[[bytes, str], bytes],
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
        self._time = ServerTime(self.loop, self._look)
        self._attempts: dict[asyncio.Timeout, tuple[float, Sequence[OpenQuestion]]] = {}
        """When each that is under way ends, and for whom it is."""
        self._keys = (f"{token_hex(16)}-{number}" for number in count())
        self._keyed = keyed
        if fallback is not None:
            self._start(self._follow_rules(fallback))

    def submit(self, questions: Iterable[OpenQuestion]) -> None:
        """Ask questions; each is told its answer."""
        self._time.watch()
        now = self._time.time()
        for each in questions:
            each.begin(now)
            if self._is_closed:
                each.tell(self._not_asked("the client was closed"))
            elif len(self._queue) >= LONGEST_QUEUE:
                each.tell(_overloaded(f"{LONGEST_QUEUE} questions wait already"))
            else:
                self._queue.append(each)
        if not self._is_scheduled:  # all that come in this turn of the loop travel together
            self._is_scheduled = True
            self.loop.call_soon(self._dispatch)

    def run(self, call: OpenQuestion, send: Send) -> None:
        """Make a call that is not part of a batch, at once; it is told the outcome."""
        self._time.watch()
        call.begin(self._time.time())
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
        turn, now = next(self._turns) % len(asked), self._time.time()
        return min(asked[turn:] + asked[:turn], key=lambda node: (node.is_silent(now), node.in_flight))

    async def _asked(self, node: ServiceNode | None, waiting: list[OpenQuestion], send: Send) -> None:
        """Ask one node, and others if that one does not answer; all who wait are told."""
        tried: list[ServiceNode] = []
        silent: list[ServiceNode] = []
        told: Any = _NOT_AWAITED
        try:
            while node is not None and waiting:
                told = await self._attempt(node, waiting, send, tried)
                if not isinstance(told, Unanswered):
                    break
                tried.append(node)
                if told.reason is Reason.OUTCOME_UNKNOWN:
                    silent.append(node)
                waiting = self._to_ask_again(waiting, told)
                node = self._next_node(tried)
                if node is None and silent and len(tried) < ATTEMPTS:
                    node = silent.pop(0)  # it is slow, or only its connection was lost, and no other answers
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
        now, again = self._time.time(), []
        for each in waiting:
            if each.deadline > now and (each.is_repeatable or absence.reason is not Reason.OUTCOME_UNKNOWN):
                again.append(each)
            else:
                each.tell(absence)
        return again

    async def _attempt(
        self, node: ServiceNode, waiting: Sequence[OpenQuestion], send: Send, tried: Sequence[ServiceNode]
    ) -> Any:
        """Ask one node: returns outcomes, the error that is everybody's, or that it did not answer."""
        now = self._time.time()
        has_others = any(other.is_asked for other in self.nodes if other is not node and other not in tried)
        if has_others and send is _check and now - node.heard_at > LATELY:
            self._give_keys(waiting)
        left = max(each.deadline for each in waiting) - now
        if left <= 0:  # which says nothing about the node
            return _overloaded("there was no time left to ask")
        if has_others and all(each.is_repeatable for each in waiting):
            left /= ATTEMPTS
        ticket = node.ticket()
        try:
            outcomes = await self._sent(node, waiting, send, now, left)
        except TimeoutError:
            error: StoreError = OutcomeUnknown(f"{node.endpoint} did not answer in {left:.3g} s")
            if has_others and node.heard_at < now:
                node.left_out(error)
        except UsageError as mistake:
            self._heard(node, ticket)
            return mistake
        except StoreError as failure:
            error = failure
        except BaseException as other:
            node.failed(ticket, other)
            raise
        else:
            self._heard(node, ticket)
            return outcomes
        node.failed(ticket, error)
        return Unanswered(reason_of(error), error, node.wait_us())

    async def _sent(
        self, node: ServiceNode, waiting: Sequence[OpenQuestion], send: Send, now: float, left: float
    ) -> list[Any]:
        """Return what a node answers. Raises TimeoutError if it does not in the time that is left."""
        if not node.in_flight:
            node.owes_since = now
        node.in_flight += 1
        limit = asyncio.timeout(None)
        self._attempts[limit] = now + left, waiting
        try:
            async with limit:
                return list(await send(node.transport, waiting, left))
        finally:
            node.in_flight -= 1
            del self._attempts[limit]

    def _give_keys(self, waiting: Sequence[OpenQuestion]) -> None:
        """Make questions ones that may be asked again."""
        for each in waiting:
            if not each.is_repeatable:
                each.question, each.is_repeatable = self._keyed(each.question, next(self._keys)), True

    def _heard(self, node: ServiceNode, ticket: int) -> None:
        node.heard_at = node.owes_since = self._time.time()
        node.answered(ticket)

    def _look(self) -> bool:
        """Tell those whose time is up; says whether anybody still waits."""
        now, heard_at = self._time.time(), max(node.heard_at for node in self.nodes)
        while self._queue and self._queue[0].deadline <= now:
            each = self._queue.popleft()
            why = f"it was not asked in {each.seconds:g} s"
            each.tell(_overloaded(why) if heard_at > each.since else self._not_asked(why))
        for limit, (until, waiting) in self._attempts.items():
            for each in waiting:
                if each.deadline <= now and not each.answer.done():
                    unknown = OutcomeUnknown(f"the service did not answer in {each.seconds:g} s")
                    each.tell(Unanswered(Reason.OUTCOME_UNKNOWN, unknown, 1))
            if until <= now and not limit.expired():
                limit.reschedule(self.loop.time())
        return bool(self._queue or self._attempts)

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


def _overloaded(why: str) -> Unanswered:
    return Unanswered(Reason.OVERLOADED, StoreBusy(why), 1)


async def _check(transport: Transport, waiting: Sequence[OpenQuestion], seconds: float) -> Sequence[Any]:
    return await transport.check([each.question for each in waiting], seconds)


def _ticks() -> int:
    return int(monotonic() * 1_000_000)

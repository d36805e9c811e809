"""The clients, for callers that may block and for callers in an event loop: the same verbs, driven in two ways.

A client that blocks has a thread with an event loop of its own, which asks for all threads of the process; so their
questions travel together, and a deadline is one however slowly an answer trickles in.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Self, Unpack

from headgate.clock import Clock
from headgate.core.errors import StoreError, StoreUnavailable, UsageError, not_installed
from headgate.core.mode import Mode
from headgate.engine.ruling import Explained, Passed, Reset, Ruling
from headgate.flows import drive, drive_async
from headgate.locks import new_lock
from headgate.policy.compiled import Policy
from headgate.policy.request import Request
from headgate.sdk.background import Background
from headgate.sdk.session import RULES_SECONDS, OpenQuestion, Session
from headgate.sdk.settings import ClientOptions, ClientSettings, Credentials, NodeAddress, settings_of
from headgate.sdk.transport import Question, Transport, Unanswered
from headgate.sdk.verbs import ClientVerbs, Flow, Step, T, UnbatchedCall
from headgate.stores.breaker import BreakerStatistics
from headgate.stores.circuits import Reason

_CLOSED = Unanswered(Reason.STORE_UNAVAILABLE, StoreUnavailable("the client was closed"), 1)


class _Asking:
    """What both clients have: settings, verbs, and what asks."""

    def __init__(self, addresses: Sequence[str], options: ClientOptions) -> None:
        self._settings: ClientSettings = settings_of(addresses, options)
        self._verbs = ClientVerbs(self._settings)
        self.clock: Clock = self._settings.clock
        """What time it is for the rules while the service is away."""
        endpoint = self._settings.endpoints[0]
        if endpoint.is_tls:
            self._settings.identity.context()  # a file that cannot be used is told here
        self._encoded: Callable[[Question], bytes]
        self._encoded, self._keyed, transport = _carried_by(is_grpc=endpoint.is_grpc, timeout=self._settings.timeout)
        self._transport = transport
        self._has_fallback = True
        """Whether what the service does not answer is answered here; see `Unanswered`."""

    @property
    def _session(self) -> Callable[[], Session]:
        """What makes a session; it does not keep the client."""
        fallback = self._verbs.fallback if self._has_fallback else None
        return partial(Session, self._settings, self._transport, self._keyed, fallback)

    @property
    def policy(self) -> Policy:
        """The rules of the service, as they were last had. Raises StoreUnavailable before they were."""
        return self._verbs.fallback.policy

    def mode_of(self, rule_id: str) -> Mode:
        """Return what is answered for a rule while the service is away."""
        return self._verbs.fallback.mode_of(rule_id)

    def refusal_of(self, rule_id: str) -> tuple[int, str]:
        """Return the status and the message of a rule's refusals, as the rules of the service were last had."""
        return self._verbs.fallback.refusal_of(rule_id)

    def _pending(self, step: Sequence[Question], answer: Callable[[], Any]) -> list[OpenQuestion]:
        """Return questions that are to be asked; one that cannot be written down is answered already, by the error."""
        return [self._open(each, self._settings.timeout, answer()) for each in step]

    def _open(self, question: Question, seconds: float, answer: Any) -> OpenQuestion:
        try:
            return OpenQuestion(self._encoded(question), seconds, answer, is_repeatable=question.is_repeatable)
        except UsageError as error:  # which is nothing to the others of a batch
            answer.set_result(error)
            return OpenQuestion(b"", seconds, answer, is_repeatable=False)


def _carried_by(
    *, is_grpc: bool, timeout: float
) -> tuple[Callable[[Question], bytes], Callable[[bytes, str], bytes], Callable[[NodeAddress, Credentials], Transport]]:
    """Return what writes questions, what adds a key to one, and what carries them.

    Raises UsageError where that is not installed.
    """
    try:
        if is_grpc:
            from headgate.sdk import over_grpc  # noqa: PLC0415  only who asks over gRPC needs grpcio

            return over_grpc.encoded, over_grpc.keyed, partial(over_grpc.GrpcTransport, timeout=timeout)
        from headgate.sdk import over_http  # noqa: PLC0415  and over HTTP httpx

        return over_http.encoded, over_http.keyed, over_http.HttpTransport
    except ImportError as error:
        raise UsageError(not_installed(error.name, "sdk")) from None


class AsyncClient(_Asking):
    """Asks the decision service, from an event loop; see `Client`.

    Args:
        addresses: where its nodes are.
        options: see `Options`.

    It may be made anywhere, and used from one loop after the other. A caller that is cancelled disturbs nobody else.
    """

    def __init__(self, *addresses: str, **options: Unpack[ClientOptions]) -> None:
        super().__init__(addresses, options)
        self._own: Session | None = None

    async def check(self, request: Request) -> Ruling:
        """See `Client.check`."""
        return await self._drive(self._verbs.check(request))

    async def check_once(self, request: Request, idempotency_key: str) -> Ruling:
        """See `Client.check_once`."""
        return await self._drive(self._verbs.check_once(request, idempotency_key))

    async def check_batch(self, requests: Sequence[Request]) -> tuple[Ruling | UsageError, ...]:
        """See `Client.check_batch`."""
        return await self._drive(self._verbs.check_batch(requests))

    async def peek(self, request: Request) -> Ruling:
        """See `Client.peek`."""
        return await self._drive(self._verbs.peek(request))

    async def is_passed(self, client_id: str, rule_id: str) -> Passed:
        """See `Client.is_passed`."""
        return await self._drive(self._verbs.is_passed(client_id, rule_id))

    async def refund(self, request: Request | Ruling, charge: str = "") -> Ruling:
        """See `Client.refund`."""
        return await self._drive(self._verbs.refund(request, charge))

    async def reset(self, request: Request) -> Reset:
        """See `Client.reset`."""
        return await self._drive(self._verbs.reset(request))

    async def reset_all(self, request: Request) -> Reset:
        """See `Client.reset_all`."""
        return await self._drive(self._verbs.reset(request, is_whole=True))

    async def explain(self, request: Request) -> Explained:
        """See `Client.explain`."""
        return await self._drive(self._verbs.explain(request))

    async def ready(self) -> None:
        """See `Client.ready`."""
        await self._here().ready()

    def statistics(self) -> dict[str, BreakerStatistics]:
        """See `Client.statistics`."""
        return {str(node.endpoint): node.statistics() for node in self._own.nodes} if self._own else {}

    async def close(self) -> None:
        """Hang up; whoever still waits is answered by the mode."""
        own, self._own = self._own, None
        if own is not None and own.loop is asyncio.get_running_loop():
            await own.close()
        self._verbs.fallback.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _here(self) -> Session:
        """Return what asks from the running loop."""
        own = self._own
        if own is None or own.loop is not asyncio.get_running_loop():
            own = self._own = self._session()
        return own

    async def _drive(self, flow: Flow[T]) -> T:
        return await drive_async(flow, self._do)

    async def _do(self, step: Step) -> Sequence[Any]:
        session = self._here()
        if isinstance(step, str):
            return [await _fresh_rules(session, self._verbs)]
        if isinstance(step, UnbatchedCall):
            timeout = self._settings.timeout
            alone = OpenQuestion(b"", timeout, session.loop.create_future(), is_repeatable=step.is_repeatable)
            session.run(alone, step.send)
            return [await alone.answer]
        waiting = self._pending(step, session.loop.create_future)
        session.submit(waiting)
        return [await each.answer for each in waiting]


class Client(_Asking):
    r"""Asks the decision service, with the verbs and answers of `headgate.Engine`.

    Args:
        addresses: where its nodes are: ``http://localhost:8080``, ``https://...``, ``grpc://localhost:8081`` or
            ``grpcs://...``. Of several, each is asked in its turn, and the others while one is away.
        options: see `Options`.

    It always answers a check: while the service is away by the mode of each rule, by the rules that it had last; then
    `Ruling.degraded` says why. Safe for use from any number of threads, and in forked children.
    """

    def __init__(self, *addresses: str, **options: Unpack[ClientOptions]) -> None:
        super().__init__(addresses, options)
        self._lock = new_lock()
        self._thread: Background | None = None

    def check(self, request: Request) -> Ruling:
        """Take the request's cost from all limits that apply if all admit it, else from none. A cost of 0 peeks.

        Raises InvalidRequest, InvalidKey, InvalidCost, CostTooLarge for a cost that could never pass, and CallerRefused
        where the service does not know who calls.
        """
        return self._drive(self._verbs.check(request))

    def check_once(self, request: Request, idempotency_key: str) -> Ruling:
        """Check, but count a request that is sent again with the same key within 5 minutes only once.

        Such a check is asked again by itself where its answer was lost.
        """
        return self._drive(self._verbs.check_once(request, idempotency_key))

    def check_batch(self, requests: Sequence[Request]) -> tuple[Ruling | UsageError, ...]:
        """Check several requests, each on its own: one ruling for each, or the error that `check` would raise."""
        return self._drive(self._verbs.check_batch(requests))

    def peek(self, request: Request) -> Ruling:
        """Say what `check` would answer; take nothing."""
        return self._drive(self._verbs.peek(request))

    def is_passed(self, client_id: str, rule_id: str) -> Passed:
        """Check one rule, by its id, for one value of what it counts by: passed, reset time, limit, remaining.

        A rule that does not exist or is disabled lets pass, unless `unknown_rule` of the rules is "error": then it
        raises UnknownRule.
        """
        return self._drive(self._verbs.is_passed(client_id, rule_id))

    def refund(self, request: Request | Ruling, charge: str = "") -> Ruling:
        """Give back what a ruling took, as far as it still counts; once. Says what is left then.

        Elsewhere, where the ruling is not at hand, the request and `charge_of` the ruling do the same. A request alone
        is not enough for a service. Raises InvalidCharge, and what `peek` raises.
        """
        return self._drive(self._verbs.refund(request, charge))

    def reset(self, request: Request) -> Reset:
        """Forget all that was used of the limits that apply to the request and are counted by one of its principals.

        Raises StoreError where the service did not do it.
        """
        return self._drive(self._verbs.reset(request))

    def reset_all(self, request: Request) -> Reset:
        """Forget what was used of every limit that is counted by principals of the request, whatever it is for."""
        return self._drive(self._verbs.reset(request, is_whole=True))

    def explain(self, request: Request) -> Explained:
        """Say for every rule whether it applies and why, what state its limits are in, and what would be decided."""
        return self._drive(self._verbs.explain(request))

    def ready(self) -> None:
        """Return when a node of the service may be asked; raises StoreError, or CallerRefused."""
        thread = self._here()
        thread.result(thread.session.ready, self._settings.timeout * (len(self._settings.endpoints) + 1))

    def statistics(self) -> dict[str, BreakerStatistics]:
        """Return what the circuit of each node has seen so far, by its address; none before the first call."""
        thread = self._thread
        return {str(node.endpoint): node.statistics() for node in thread.session.nodes} if thread else {}

    def close(self) -> None:
        """Hang up, and end the thread; whoever still waits is answered by the mode."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and thread.pid == os.getpid():
            thread.close()
        self._verbs.fallback.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _here(self) -> Background:
        """Return what asks from this process: a forked child has no thread of its parent."""
        thread = self._thread
        if thread is None or thread.pid != os.getpid():
            with self._lock:
                thread = self._thread
                if thread is None or thread.pid != os.getpid():
                    thread = self._thread = Background(self._session)
                    weakref.finalize(self, thread.stop)
        return thread

    def _drive(self, flow: Flow[T]) -> T:
        return drive(flow, self._do)

    def _do(self, step: Step) -> Sequence[Any]:
        thread = self._here()
        session = thread.session
        if isinstance(step, str):
            return [
                thread.result(partial(_fresh_rules, session, self._verbs), 2 * RULES_SECONDS + self._settings.timeout)
            ]
        if isinstance(step, UnbatchedCall):
            waiting = [OpenQuestion(b"", self._settings.timeout, Future(), is_repeatable=step.is_repeatable)]
            is_asked = thread.do(session.run, waiting[0], step.send)
        else:
            waiting = self._pending(step, Future)
            is_asked = thread.do(session.submit, waiting)
        return [each.answer.result() if is_asked else _CLOSED for each in waiting]


async def _fresh_rules(session: Session, verbs: ClientVerbs) -> Policy | UsageError | Unanswered:
    """Return the rules in force, or why they could not be had."""
    try:
        await session.fetch_rules(verbs.fallback)
    except StoreError as error:
        return Unanswered(Reason.STORE_UNAVAILABLE, error, 1)
    except UsageError as error:
        return error
    return verbs.fallback.policy

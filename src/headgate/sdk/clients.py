"""The blocking and the asynchronous client: two drivers of the same verbs.

The blocking client runs an event loop in a thread, which serves all threads of the process; so their checks share
batches, and deadlines hold however slowly a response arrives.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, Self, Unpack

from headgate.clock import Clock
from headgate.core.errors import StoreError, StoreUnavailable, UsageError
from headgate.core.mode import Mode
from headgate.engine.ruling import Explained, Passed, Reset, Ruling
from headgate.flows import drive, drive_async
from headgate.locks import new_lock
from headgate.messages import not_installed
from headgate.policy.compiled import Policy
from headgate.policy.request import Request
from headgate.sdk.session import RULES_SECONDS, PendingCall, Session
from headgate.sdk.settings import ClientOptions, ClientSettings, parse_settings
from headgate.sdk.transport import Check, ServiceFailure, Transport
from headgate.sdk.verbs import ClientVerbs, Flow, Step, T
from headgate.stores.breaker import BreakerStatistics
from headgate.stores.circuits import Reason

_END_SECONDS = 10.0
"""Time for the thread of a blocking client to end."""
_CLOSED = ServiceFailure(Reason.STORE_UNAVAILABLE, StoreUnavailable("the client was closed"), 1)


class _ClientBase:
    def __init__(self, addresses: Sequence[str], options: ClientOptions) -> None:
        self._settings: ClientSettings = parse_settings(addresses, options)
        self._verbs = ClientVerbs(self._settings)
        self.clock: Clock = self._settings.clock
        """The time of local decisions."""
        endpoint = self._settings.endpoints[0]
        if endpoint.is_tls:
            self._settings.identity.context()  # reports unusable files
        self._transport = _transport_for(is_grpc=endpoint.is_grpc)
        self._has_fallback = True
        """Whether local decisions replace missing ones of the service."""

    @property
    def _session(self) -> Callable[[], Session]:
        """A factory of sessions that does not reference the client."""
        fallback = self._verbs.fallback if self._has_fallback else None
        return partial(Session, self._settings, self._transport, fallback)

    @property
    def policy(self) -> Policy:
        """The last rules of the service. Raises StoreUnavailable before they were received."""
        return self._verbs.fallback.policy

    def mode_of(self, rule_id: str) -> Mode:
        """Return the mode of a rule while the service is unavailable."""
        return self._verbs.fallback.verbs.mode_of(rule_id)

    def refusal_of(self, rule_id: str) -> tuple[int, str]:
        """Return status and message of a rule's refusals, by the last rules of the service."""
        return self._verbs.fallback.verbs.refusal_of(rule_id)

    def _pending(self, checks: Sequence[Check], answer: Callable[[], Any]) -> list[PendingCall]:
        """Return calls to submit; one that cannot be encoded is already resolved, with the error."""
        found, seconds = list[PendingCall](), self._settings.timeout
        for each in checks:
            try:
                found.append(
                    PendingCall(self._transport.encode(each), seconds, answer(), is_repeatable=each.is_repeatable)
                )
            except UsageError as error:  # it does not affect the others of a batch
                found.append(PendingCall(b"", seconds, answer(), is_repeatable=False))
                found[-1].resolve(error)
        return found


def _transport_for(*, is_grpc: bool) -> type[Transport]:
    """Return the class of transports. Raises UsageError if its library is not installed."""
    try:
        if is_grpc:
            from headgate.sdk.over_grpc import GrpcTransport  # noqa: PLC0415  grpcio is needed only here

            return GrpcTransport
        from headgate.sdk.over_http import HttpTransport  # noqa: PLC0415  and httpx only here
    except ImportError as error:
        raise UsageError(not_installed(error.name, "sdk")) from None
    return HttpTransport


class AsyncClient(_ClientBase):
    """A client of the decision service for event loops; see `Client`.

    It may be created anywhere and used from one loop after another. Cancelling one caller does not affect others.
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
        return {str(node.endpoint): node.breaker.statistics() for node in self._own.nodes} if self._own else {}

    async def close(self) -> None:
        """Close connections; pending checks are decided by the mode."""
        own, self._own = self._own, None
        if own is not None and own.loop is asyncio.get_running_loop():
            await own.close()
        self._verbs.fallback.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _here(self) -> Session:
        """Return the session of the running loop."""
        own = self._own
        if own is None or own.loop is not asyncio.get_running_loop():
            own = self._own = self._session()
        return own

    async def _drive(self, flow: Flow[T]) -> T:
        return await drive_async(flow, self._do)

    async def _do(self, step: Step) -> Sequence[Any]:
        session = self._here()
        if isinstance(step, str):
            return [await _fetch_rules(session, self._verbs)]
        if callable(step):
            alone = PendingCall(b"", self._settings.timeout, session.loop.create_future(), is_repeatable=True)
            session.run(alone, step)
            return [await alone.answer]
        waiting = self._pending(step, session.loop.create_future)
        session.submit(waiting)
        return [await each.answer for each in waiting]


class _Background:
    """A thread with an event loop, and the session that `make` makes in it, for the process that started it."""

    def __init__(self, make: Callable[[], Session]) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._lock, self._is_closed = threading.Lock(), False
        started: Future[Session] = Future()
        self._thread = threading.Thread(target=self._run, args=(make, started), name="headgate-sdk", daemon=True)
        self._thread.start()
        self.session: Session = started.result()

    def do(self, work: Callable[..., object], *args: Any) -> bool:
        """Schedule work in the loop; return False if the client is closed."""
        with self._lock:
            if not self._is_closed:
                self._loop.call_soon_threadsafe(work, *args)
            return not self._is_closed

    def result(self, work: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """Run work in the loop and return its result. Raises StoreUnavailable if it does not end in time."""
        with self._lock:
            ended = None if self._is_closed else asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            if ended is not None:
                return ended.result(seconds)
        except (TimeoutError, CancelledError):
            pass
        raise StoreUnavailable("the client was closed, or is overloaded")

    def stop(self) -> None:
        """End the thread soon, for a client that was not closed."""
        if self.pid == os.getpid():
            self.do(self._loop.stop)

    def close(self) -> None:
        """End the thread; pending calls fail."""
        self.stop()
        self._thread.join(_END_SECONDS)

    def _run(self, make: Callable[[], Session], started: Future[Session]) -> None:
        async def session_in_loop() -> Session:
            return make()

        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            session = loop.run_until_complete(session_in_loop())
        except BaseException as error:  # noqa: BLE001  raised by started.result
            started.set_exception(error)
        else:
            started.set_result(session)
            loop.run_forever()
            with self._lock:
                self._is_closed = True
            loop.run_until_complete(session.close())
            loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


class Client(_ClientBase):
    r"""A client of the decision service, with the verbs and rulings of `headgate.Engine`.

    Args:
        addresses: of its nodes: ``http://localhost:8080``, ``https://...``, ``grpc://localhost:8081`` or ``grpcs://...``.
            Several nodes take turns, and replace those that are down.
        options: see `ClientOptions`.

    Checks are always decided: while the service is unavailable, by the mode of each rule and the last known rules; then
    `Ruling.degraded` says why. Safe for any number of threads, and in forked children.
    """

    def __init__(self, *addresses: str, **options: Unpack[ClientOptions]) -> None:
        super().__init__(addresses, options)
        self._lock = new_lock()
        self._thread: _Background | None = None

    def check(self, request: Request) -> Ruling:
        """Take the request's cost from all limits that apply if all admit it, else from none. A cost of 0 peeks.

        Raises InvalidRequest, InvalidKey, InvalidCost, CostTooLarge for a cost that could never pass, and
        CallerRefused if the service requires another caller key.
        """
        return self._drive(self._verbs.check(request))

    def check_once(self, request: Request, idempotency_key: str) -> Ruling:
        """Check; a repetition with the same key within 5 minutes counts once.

        Such a check is retried automatically if its response was lost.
        """
        return self._drive(self._verbs.check_once(request, idempotency_key))

    def check_batch(self, requests: Sequence[Request]) -> tuple[Ruling | UsageError, ...]:
        """Check several requests independently; return for each a ruling, or the error that `check` would raise."""
        return self._drive(self._verbs.check_batch(requests))

    def peek(self, request: Request) -> Ruling:
        """Return what `check` would return; take nothing."""
        return self._drive(self._verbs.peek(request))

    def is_passed(self, client_id: str, rule_id: str) -> Passed:
        """Check one rule, by its id, for one value of what it counts by: passed, reset time, limit, remaining.

        A missing or disabled rule lets requests pass, unless `unknown_rule` of the rules is "error": then it raises
        UnknownRule.
        """
        return self._drive(self._verbs.is_passed(client_id, rule_id))

    def refund(self, request: Request | Ruling, charge: str = "") -> Ruling:
        """Refund a ruling's cost, as far as it still counts, and once. Returns what is left then.

        Where the ruling is not at hand, the request and `charge_of` the ruling do the same; a request alone is not
        enough for a service. Raises InvalidCharge, and what `peek` raises.
        """
        return self._drive(self._verbs.refund(request, charge))

    def reset(self, request: Request) -> Reset:
        """Reset the limits that apply to the request and are counted by one of its principals.

        Raises StoreError if the service did not do it.
        """
        return self._drive(self._verbs.reset(request))

    def reset_all(self, request: Request) -> Reset:
        """Reset every limit that is counted by principals of the request, whatever its endpoint."""
        return self._drive(self._verbs.reset(request, is_whole=True))

    def explain(self, request: Request) -> Explained:
        """Return for every rule whether it applies and why, the state of its limits, and the decision of a check."""
        return self._drive(self._verbs.explain(request))

    def ready(self) -> None:
        """Return once a node of the service is ready; raises StoreError, or CallerRefused."""
        thread = self._here()
        thread.result(thread.session.ready, self._settings.timeout * (len(self._settings.endpoints) + 1))

    def statistics(self) -> dict[str, BreakerStatistics]:
        """Return the statistics of each node's circuit breaker, by address; empty before the first call."""
        thread = self._thread
        return {str(node.endpoint): node.breaker.statistics() for node in thread.session.nodes} if thread else {}

    def close(self) -> None:
        """Close connections and end the thread; pending checks are decided by the mode."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and thread.pid == os.getpid():
            thread.close()
        self._verbs.fallback.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _here(self) -> _Background:
        """Return the thread of this process, which a forked child does not inherit."""
        thread = self._thread
        if thread is None or thread.pid != os.getpid():
            with self._lock:
                thread = self._thread
                if thread is None or thread.pid != os.getpid():
                    thread = self._thread = _Background(self._session)
                    weakref.finalize(self, thread.stop)
        return thread

    def _drive(self, flow: Flow[T]) -> T:
        return drive(flow, self._do)

    def _do(self, step: Step) -> Sequence[Any]:
        thread = self._here()
        session = thread.session
        if isinstance(step, str):
            return [
                thread.result(partial(_fetch_rules, session, self._verbs), 2 * RULES_SECONDS + self._settings.timeout)
            ]
        if callable(step):
            waiting = [PendingCall(b"", self._settings.timeout, Future(), is_repeatable=True)]
            is_available = thread.do(session.run, waiting[0], step)
        else:
            waiting = self._pending(step, Future)
            is_available = thread.do(session.submit, waiting)
        return [each.answer.result() if is_available else _CLOSED for each in waiting]


async def _fetch_rules(session: Session, verbs: ClientVerbs) -> Policy | UsageError | ServiceFailure:
    try:
        await session.fetch_rules(verbs.fallback)
    except StoreError as error:
        return ServiceFailure(Reason.STORE_UNAVAILABLE, error, 1)
    except UsageError as error:
        return error
    return verbs.fallback.policy

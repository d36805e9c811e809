"""Run the flows of a `Pacer` in threads and in tasks, with or without a shared store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from headgate.core.decision import Decision
from headgate.core.errors import UsageError
from headgate.core.numbers import short
from headgate.core.plan import Call
from headgate.core.quota import SECOND
from headgate.flows import drive, drive_async
from headgate.pacing.pacer import Incoming, Outgoing, Pacer, Step, WaitTooLong
from headgate.stores import open_resilient_async_store, open_resilient_store
from headgate.stores.base import AsyncStore, Store
from headgate.stores.memory import MemoryStore
from headgate.waiting import Pause, TaskTicket, ThreadTicket
from headgate.web.ietf import Headers
from headgate.web.problem import CONTENT_TYPE, of_status

STATUS = 429


class _Sender:
    def __init__(self, pacer: Pacer | None, *, raises: bool) -> None:
        if pacer is not None and not isinstance(pacer, Pacer):
            raise UsageError(f"pacer must be a headgate.pacing.Pacer, not {short(pacer)}")
        self.pacer, self._raises = pacer or Pacer(), raises

    def _result(self, outcome: Incoming | WaitTooLong) -> Incoming | WaitTooLong:
        if not isinstance(outcome, WaitTooLong):
            return outcome
        if self._raises:
            raise outcome
        return outcome.answer or outcome


class PacedSender(_Sender):
    def __init__(self, pacer: Pacer | None, store: str | Store | None, *, raises: bool) -> None:
        super().__init__(pacer, raises=raises)
        self._store = None if store is None else open_resilient_store(store)

    def exchange(
        self, request: Outgoing, send: Callable[[], Incoming], close: Callable[[Any], None]
    ) -> Incoming | WaitTooLong:
        """Call `send` once the limits allow it; `close` closes a refusal before the request is sent again."""
        ticket, clock, store = ThreadTicket(), self.pacer.clock, self._store

        def do(step: Step) -> Decision | Incoming | None:
            if isinstance(step, Pause):
                clock.wait(ticket.event, step.until)
                return None
            if isinstance(step, Call):
                return store.run(step) if store is not None else None
            if step.refused is not None:
                close(step.refused)
            return send()

        return self._result(drive(self.pacer.exchange(request, ticket, is_shared=store is not None), do))

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


class AsyncPacedSender(_Sender):
    def __init__(self, pacer: Pacer | None, store: str | AsyncStore | MemoryStore | None, *, raises: bool) -> None:
        super().__init__(pacer, raises=raises)
        self._store = None if store is None else open_resilient_async_store(store)

    async def exchange(
        self, request: Outgoing, send: Callable[[], Awaitable[Incoming]], close: Callable[[Any], Awaitable[None]]
    ) -> Incoming | WaitTooLong:
        """Await `send` once the limits allow it; a cancelled task leaves the queue."""
        ticket, clock, store = TaskTicket(), self.pacer.clock, self._store

        async def do(step: Step) -> Decision | Incoming | None:
            if isinstance(step, Pause):
                await clock.wait_async(ticket.event, step.until)
                return None
            if isinstance(step, Call):
                return await store.run(step) if store is not None else None
            if step.refused is not None:
                await close(step.refused)
            return await send()

        return self._result(await drive_async(self.pacer.exchange(request, ticket, is_shared=store is not None), do))

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()


def refusal_response(refusal: WaitTooLong) -> tuple[Headers, bytes]:
    """Return headers and body of the local 429 response for a request that was not sent."""
    seconds = -(-refusal.retry_after_us // SECOND)
    detail = f"not sent: by its announced limits, the server would refuse this request for {seconds} s"
    body = of_status(STATUS, detail).encode()
    headers = [
        ("Content-Type", CONTENT_TYPE),
        ("Content-Length", str(len(body))),
        ("Retry-After", str(seconds)),
        ("Cache-Control", "no-store"),
        ("X-RateLimit-Source", "client"),
    ]
    return headers, body

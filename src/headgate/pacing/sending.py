"""Run the flows of a `Pacer` in threads and in tasks, with or without a shared store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

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
from headgate.web.problem import CONTENT_TYPE

STATUS = 429


class PacedSender:
    """Sends requests from threads; the arguments are those of the transports."""

    def __init__(self, pacer: Pacer | None, store: str | Store | None, *, raises: bool) -> None:
        self.pacer = _checked(pacer)
        self._raises = raises
        self._store = None if store is None else open_resilient_store(store)

    def exchange(
        self, request: Outgoing, send: Callable[[], Incoming], close: Callable[[Any], None]
    ) -> Incoming | WaitTooLong:
        """Call `send` once the limits allow it; a refusal is closed before the request is sent again."""
        ticket, clock, store = ThreadTicket(), self.pacer.clock, self._store
        refused: list[Incoming] = []

        def do(step: Step) -> Decision | Incoming | None:
            if isinstance(step, Pause):
                clock.wait(ticket.event, step.until)
                return None
            if isinstance(step, Call):
                return store.run(step) if store is not None else None
            while refused:
                close(refused.pop().response)
            refused.append(send())
            return refused[0]

        return _result(
            drive(self.pacer.exchange(request, ticket, is_shared=store is not None), do), raises=self._raises
        )

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


class AsyncPacedSender:
    """Sends requests from tasks, without blocking the event loop."""

    def __init__(self, pacer: Pacer | None, store: str | AsyncStore | MemoryStore | None, *, raises: bool) -> None:
        self.pacer = _checked(pacer)
        self._raises = raises
        self._store = None if store is None else open_resilient_async_store(store)

    async def exchange(
        self, request: Outgoing, send: Callable[[], Awaitable[Incoming]], close: Callable[[Any], Awaitable[None]]
    ) -> Incoming | WaitTooLong:
        """Await `send` once the limits allow it; a cancelled task leaves the queue."""
        ticket, clock, store = TaskTicket(), self.pacer.clock, self._store
        refused: list[Incoming] = []

        async def do(step: Step) -> Decision | Incoming | None:
            if isinstance(step, Pause):
                await clock.wait_async(ticket.event, step.until)
                return None
            if isinstance(step, Call):
                return await store.run(step) if store is not None else None
            while refused:
                await close(refused.pop().response)
            refused.append(await send())
            return refused[0]

        flow = self.pacer.exchange(request, ticket, is_shared=store is not None)
        return _result(await drive_async(flow, do), raises=self._raises)

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()


def refusal_response(refusal: WaitTooLong) -> tuple[Headers, bytes]:
    """Return headers and body of the local 429 response for a request that was not sent."""
    seconds = -(-refusal.retry_after_us // SECOND)
    body = msgspec.json.encode(
        {
            "type": "about:blank",
            "title": "Too Many Requests",
            "status": STATUS,
            "detail": f"not sent: by its announced limits, the server would refuse this request for {seconds} s",
        }
    )
    headers = [
        ("Content-Type", CONTENT_TYPE),
        ("Content-Length", str(len(body))),
        ("Retry-After", str(seconds)),
        ("Cache-Control", "no-store"),
        ("X-RateLimit-Source", "client"),
    ]
    return headers, body


def _result(outcome: Incoming | WaitTooLong, *, raises: bool) -> Incoming | WaitTooLong:
    if not isinstance(outcome, WaitTooLong):
        return outcome
    if raises:
        raise outcome
    return outcome.answer or outcome


def _checked(pacer: Pacer | None) -> Pacer:
    if pacer is not None and not isinstance(pacer, Pacer):
        raise UsageError(f"pacer must be a headgate.pacing.Pacer, not {short(pacer)}")
    return pacer or Pacer()

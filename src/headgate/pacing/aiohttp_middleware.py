"""A client middleware for aiohttp that sends what the limits of a server allow, when they allow it.

::

    async with aiohttp.ClientSession(middlewares=[AiohttpMiddleware()]) as session:
        ...

A middleware of aiohttp has to return an answer of a server. So where a request is not sent, since it would be refused
for too long, `WaitTooLong` is raised.
"""

from __future__ import annotations

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
from aiohttp.payload import BytesPayload

from headgate.pacing.pacer import Incoming, Outgoing, Pacer, WaitTooLong
from headgate.pacing.sending import AsyncPacedSender
from headgate.stores.base import AsyncStore
from headgate.stores.memory import MemoryStore


class AiohttpMiddleware:
    """Sends requests of an `aiohttp.ClientSession`.

    Args:
        pacer: the limits of servers, and how long to wait; default: a new one.
        store: the store by which processes stay within a limit together, such as ``"redis://localhost"``.
        raises: whether to raise `WaitTooLong` also for a refusal by the server.

    Close it after its sessions if it was given a store.
    """

    def __init__(
        self,
        *,
        pacer: Pacer | None = None,
        store: str | AsyncStore | MemoryStore | None = None,
        raises: bool = False,
    ) -> None:
        self._sender = AsyncPacedSender(pacer, store, raises=raises)

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Send a request when the limits allow it."""

        async def send() -> Incoming:
            response = await handler(request)
            return Incoming(response.status, response.headers.items(), response)

        outcome = await self._sender.exchange(_outgoing(request), send, _close)
        if isinstance(outcome, WaitTooLong):
            raise outcome
        response: ClientResponse = outcome.response
        return response

    async def close(self) -> None:
        """Release what the store holds."""
        await self._sender.close()


async def _close(response: ClientResponse) -> None:
    response.close()


def _outgoing(request: ClientRequest) -> Outgoing:
    return Outgoing(
        request.method.upper(),
        str(request.url.origin()),
        request.url.raw_path,
        {name.lower(): value for name, value in request.headers.items()},
        not request.body or isinstance(request.body, BytesPayload),
    )

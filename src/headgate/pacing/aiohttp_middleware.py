"""A client middleware for aiohttp that delays requests until the server's limits allow them.

::

    async with aiohttp.ClientSession(middlewares=[AiohttpMiddleware()]) as session:
        ...

A middleware of aiohttp can only return a server's response, so a request that is not sent raises `WaitTooLong`.
"""

from __future__ import annotations

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
from aiohttp.payload import BytesPayload

from headgate.pacing.pacer import Incoming, Outgoing, Pacer, WaitTooLong
from headgate.pacing.sending import AsyncPacedSender
from headgate.stores.base import AsyncStore
from headgate.stores.memory import MemoryStore


class AiohttpMiddleware:
    """Paces the requests of an `aiohttp.ClientSession`.

    Args:
        pacer: the known limits and the longest wait; default: a new one.
        store: the store with which processes share limits, such as ``"redis://localhost"``.
        raises: raise `WaitTooLong` for refusals by the server too.

    With a store, close it after its sessions.
    """

    def __init__(
        self, *, pacer: Pacer | None = None, store: str | AsyncStore | MemoryStore | None = None, raises: bool = False
    ) -> None:
        self._sender = AsyncPacedSender(pacer, store, raises=raises)

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Send a request once the limits allow it."""

        async def send() -> Incoming:
            response = await handler(request)
            return Incoming(response.status, response.headers.items(), response)

        outcome = await self._sender.exchange(_outgoing(request), send, _close)
        if isinstance(outcome, WaitTooLong):
            raise outcome
        response: ClientResponse = outcome.response
        return response

    async def close(self) -> None:
        """Close the store."""
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

"""A client middleware for aiohttp that sends what the limits of a server allow, when they allow it.

::

    async with aiohttp.ClientSession(middlewares=[AiohttpMiddleware()]) as session:
        ...

A middleware of aiohttp has to return an answer of a server. So where a request is not sent, since it would be refused
for too long, `RateLimited` is raised.
"""

from __future__ import annotations

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
from aiohttp.payload import BytesPayload

from headgate.sdk.paced import AsyncPaced
from headgate.sdk.pacing import Incoming, Outgoing, Pacer, RateLimited, WaitTooLong
from headgate.stores.base import AsyncStore
from headgate.stores.memory import MemoryStore


class AiohttpMiddleware:
    """Sends requests of an `aiohttp.ClientSession`.

    Args:
        pacer: what is known of servers, and how long to wait; default: one of its own.
        store: what processes share, such as ``"redis://localhost"``: they stay within a limit together.
        raises: whether to raise `RateLimited` also where the server's answer is a refusal for the sake of a limit.

    Close it after its sessions if it was given a store.
    """

    def __init__(
        self,
        *,
        pacer: Pacer | None = None,
        store: str | AsyncStore | MemoryStore | None = None,
        raises: bool = False,
    ) -> None:
        self._paced = AsyncPaced(pacer, store, raises=raises)

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Send a request when the limits allow it."""

        async def send() -> Incoming:
            response = await handler(request)
            return Incoming(response.status, response.headers.items(), response)

        outcome = await self._paced.exchange(_outgoing(request), send, _close)
        if isinstance(outcome, WaitTooLong):
            raise RateLimited(outcome.retry_after_us / 1_000_000)
        response: ClientResponse = outcome.response
        return response

    async def close(self) -> None:
        """Release what the store holds."""
        await self._paced.close()


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

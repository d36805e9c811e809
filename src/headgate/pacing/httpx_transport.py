"""Transports for httpx that delay requests until the server's limits allow them.

::

    client = httpx.Client(transport=HttpxTransport())
    client = httpx.AsyncClient(transport=AsyncHttpxTransport(store="redis://localhost"))

A client with a transport ignores its own connection options: pass them to the inner transport,
``HttpxTransport(httpx.HTTPTransport(http2=True))``.
"""

from __future__ import annotations

from operator import methodcaller
from typing import Any, Self

import httpx

from headgate.pacing.pacer import Incoming, Outgoing, Pacer, WaitTooLong
from headgate.pacing.sending import STATUS, AsyncPacedSender, PacedSender, refusal_response
from headgate.stores.base import AsyncStore, Store
from headgate.stores.memory import MemoryStore


class HttpxTransport(httpx.BaseTransport):
    """Paces the requests of an `httpx.Client`.

    Args:
        transport: the inner transport; default: httpx's own.
        pacer: the known limits and the longest wait; default: a new one.
        store: the store with which processes share limits, such as ``"redis://localhost"``.
        raises: raise `WaitTooLong` instead of returning a refusal.

    A request that would wait for longer than `Pacer.max_wait` gets status 429 immediately. If it was not sent, the
    response has the header ``X-RateLimit-Source: client``.
    """

    def __init__(
        self,
        transport: httpx.BaseTransport | None = None,
        *,
        pacer: Pacer | None = None,
        store: str | Store | None = None,
        raises: bool = False,
    ) -> None:
        self._transport = transport or httpx.HTTPTransport()
        self._sender = PacedSender(pacer, store, raises=raises)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request once the limits allow it."""

        def send() -> Incoming:
            return _answer(self._transport.handle_request(request))

        return _response(self._sender.exchange(_outgoing(request), send, methodcaller("close")), request)

    def close(self) -> None:
        """Close the inner transport and the store."""
        self._transport.close()
        self._sender.close()

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:  # noqa: PYI036  passed on
        self._transport.__exit__(*error)
        self._sender.close()


class AsyncHttpxTransport(httpx.AsyncBaseTransport):
    """Paces the requests of an `httpx.AsyncClient`; see `HttpxTransport`."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        pacer: Pacer | None = None,
        store: str | AsyncStore | MemoryStore | None = None,
        raises: bool = False,
    ) -> None:
        self._transport = transport or httpx.AsyncHTTPTransport()
        self._sender = AsyncPacedSender(pacer, store, raises=raises)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request once the limits allow it."""

        async def send() -> Incoming:
            return _answer(await self._transport.handle_async_request(request))

        return _response(await self._sender.exchange(_outgoing(request), send, methodcaller("aclose")), request)

    async def aclose(self) -> None:
        """Close the inner transport and the store."""
        await self._transport.aclose()
        await self._sender.close()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:  # noqa: PYI036  passed on
        await self._transport.__aexit__(*error)
        await self._sender.close()


def _outgoing(request: httpx.Request) -> Outgoing:
    url = request.url
    return Outgoing(
        request.method.upper(),
        f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}",
        url.raw_path.decode("ascii", "replace"),
        {name.lower(): value for name, value in request.headers.items()},
        isinstance(request.stream, httpx.ByteStream),
    )


def _answer(response: httpx.Response) -> Incoming:
    return Incoming(response.status_code, response.headers.multi_items(), response)


def _response(outcome: Incoming | WaitTooLong, request: httpx.Request) -> httpx.Response:
    if isinstance(outcome, WaitTooLong):
        headers, body = refusal_response(outcome)
        return httpx.Response(STATUS, headers=headers, content=body, request=request)
    response: httpx.Response = outcome.response
    return response

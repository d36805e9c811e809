"""An adapter for requests that delays requests until the server's limits allow them.

::

    session = requests.Session()
    session.mount("https://", RequestsAdapter())
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from operator import methodcaller
from urllib.parse import urlsplit

import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3 import HTTPResponse

from headgate.pacing.pacer import Incoming, Outgoing, Pacer, WaitTooLong
from headgate.pacing.sending import STATUS, PacedSender, refusal_response
from headgate.stores.base import Store


class RequestsAdapter(BaseAdapter):
    """Paces the requests of a `requests.Session`, with the arguments of `headgate.pacing.HttpxTransport`.

    `adapter` is the inner adapter; default: requests' own.
    """

    def __init__(
        self,
        adapter: BaseAdapter | None = None,
        *,
        pacer: Pacer | None = None,
        store: str | Store | None = None,
        raises: bool = False,
    ) -> None:
        super().__init__()
        self._adapter = adapter or HTTPAdapter()
        self._sender = PacedSender(pacer, store, raises=raises)

    def send(  # noqa: PLR0917  the signature is that of requests
        self,
        request: requests.PreparedRequest,
        stream: bool = False,  # noqa: FBT001, FBT002
        timeout: float | tuple[float, float] | tuple[float, None] | None = None,
        verify: bool | str = True,  # noqa: FBT001, FBT002
        cert: bytes | str | tuple[bytes | str, bytes | str] | None = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Send a request once the limits allow it."""

        def send() -> Incoming:
            response = self._adapter.send(request, stream, timeout, verify, cert, proxies)
            return Incoming(response.status_code, _fields(response), response)

        outcome = self._sender.exchange(_outgoing(request), send, methodcaller("close"))
        if isinstance(outcome, WaitTooLong):
            return _own(request, outcome)
        response: requests.Response = outcome.response
        return response

    def close(self) -> None:
        """Close the inner adapter and the store."""
        self._adapter.close()
        self._sender.close()


def _own(request: requests.PreparedRequest, refusal: WaitTooLong) -> requests.Response:
    headers, body = refusal_response(refusal)
    raw = HTTPResponse(
        BytesIO(body), dict(headers), STATUS, reason="Too Many Requests", preload_content=False, decode_content=False
    )
    return HTTPAdapter().build_response(request, raw)


def _outgoing(request: requests.PreparedRequest) -> Outgoing:
    url = urlsplit(str(request.url))
    return Outgoing(
        str(request.method).upper(),
        f"{url.scheme}://{url.netloc.rpartition('@')[2]}",
        url.path,
        {name.lower(): _text(value) for name, value in request.headers.items()},
        request.body is None or isinstance(request.body, bytes | str),
    )


def _fields(response: requests.Response) -> list[tuple[str, str]]:
    raw = response.raw
    return list(raw.headers.items()) if raw is not None else list(response.headers.items())


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value

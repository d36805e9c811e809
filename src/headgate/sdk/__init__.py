"""For those who ask others: clients of the decision service, and of any API that has limits.

Of the service, with the verbs and answers of an engine, over HTTP or gRPC::

    engine = Engine("rules.yaml", store="redis://localhost")
    engine = Client("http://localhost:8080")
    engine.check(Request({"user": "42"}, "/api/v1/orders", "POST")).allowed

Of any other API, by what sends requests when the limits of their server allow it::

    httpx.Client(transport=HttpxTransport())
    httpx.AsyncClient(transport=AsyncHttpxTransport(store="redis://localhost"))
    session.mount("https://", RequestsAdapter())
    aiohttp.ClientSession(middlewares=[AiohttpMiddleware()])

All is imported when it is first asked for: none of it needs the libraries of the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.sdk.aiohttp_middleware import AiohttpMiddleware
    from headgate.sdk.clients import AsyncClient, Client
    from headgate.sdk.httpx_transport import AsyncHttpxTransport, HttpxTransport
    from headgate.sdk.pacing import Pacer, RateLimited
    from headgate.sdk.requests_adapter import RequestsAdapter
    from headgate.sdk.transport import CallerRefused

__all__ = [
    "AiohttpMiddleware",
    "AsyncClient",
    "AsyncHttpxTransport",
    "CallerRefused",
    "Client",
    "HttpxTransport",
    "Pacer",
    "RateLimited",
    "RequestsAdapter",
]

_LATER = {
    "AiohttpMiddleware": "aiohttp_middleware",
    "AsyncClient": "clients",
    "AsyncHttpxTransport": "httpx_transport",
    "CallerRefused": "transport",
    "Client": "clients",
    "HttpxTransport": "httpx_transport",
    "Pacer": "pacing",
    "RateLimited": "pacing",
    "RequestsAdapter": "requests_adapter",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'headgate.sdk' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"headgate.sdk.{_LATER[name]}"), name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *_LATER]

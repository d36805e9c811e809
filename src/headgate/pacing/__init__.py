"""Send requests to rate-limited APIs at the rate that their limits allow.

::

    httpx.Client(transport=HttpxTransport())
    httpx.AsyncClient(transport=AsyncHttpxTransport(store="redis://localhost"))
    session.mount("https://", RequestsAdapter())
    aiohttp.ClientSession(middlewares=[AiohttpMiddleware()])

Names are imported on first use, since each needs its own HTTP library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.pacing.aiohttp_middleware import AiohttpMiddleware
    from headgate.pacing.httpx_transport import AsyncHttpxTransport, HttpxTransport
    from headgate.pacing.pacer import Pacer, WaitTooLong
    from headgate.pacing.requests_adapter import RequestsAdapter

__all__ = ["AiohttpMiddleware", "AsyncHttpxTransport", "HttpxTransport", "Pacer", "RequestsAdapter", "WaitTooLong"]

_MODULES = {
    "AiohttpMiddleware": "aiohttp_middleware",
    "AsyncHttpxTransport": "httpx_transport",
    "HttpxTransport": "httpx_transport",
    "Pacer": "pacer",
    "RequestsAdapter": "requests_adapter",
    "WaitTooLong": "pacer",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'headgate.pacing' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"headgate.pacing.{_MODULES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]

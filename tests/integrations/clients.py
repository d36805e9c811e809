"""Clients of applications, for tests: the frameworks' own, and a plain one of ASGI."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Sequence
from typing import Any

with warnings.catch_warnings():  # Starlette wants another HTTP client by now, which nothing else here needs
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient, WebSocketDenialResponse

__all__ = ["TestClient", "WebSocketDenialResponse", "call", "scope_of"]


def scope_of(path: str = "/", kind: str = "http", **more: Any) -> dict[str, Any]:
    """A scope, as a server makes it."""
    client = ("203.0.113.9", 4711)
    return {
        "type": kind,
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "client": client,
        **more,
    }


async def call(app: Any, scope: dict[str, Any], received: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """Call an application; returns what it sends. It receives these messages, and then waits."""
    waiting, sent = list(received), list[dict[str, Any]]()

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent

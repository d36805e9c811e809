"""An application of FastAPI that uvicorn serves in tests, limited by the environment variable HEADGATE_SITE.

It counts by the header X-Key, and answers with the number of its process.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, WebSocket
from starlette.responses import StreamingResponse

from headgate.integrations.fastapi import RateLimitMiddleware

SETTINGS: Any = json.loads(os.environ["HEADGATE_SITE"])


def by_header(request: Any) -> str:
    return str(request.headers["x-key"])


fastapi_app = FastAPI()
fastapi_app.add_middleware(RateLimitMiddleware, key=by_header, **SETTINGS)


@fastapi_app.get("/")
async def home() -> int:
    return os.getpid()


@fastapi_app.get("/endless")
async def endless() -> StreamingResponse:
    async def pieces() -> AsyncIterator[str]:
        while True:
            yield "piece"
            await asyncio.sleep(0.001)

    return StreamingResponse(pieces())


@fastapi_app.websocket("/socket")
async def socket(connection: WebSocket) -> None:
    await connection.accept()
    async for text in connection.iter_text():
        await connection.send_text(text)

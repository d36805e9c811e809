"""Applications that real servers serve in tests, each limited by the environment variable HEADGATE_SITE.

They count by the header X-Key, and say which process answers.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, WebSocket
from flask import Flask
from starlette.responses import StreamingResponse

from headgate.integrations.fastapi import RateLimitMiddleware
from headgate.integrations.flask import RateLimits

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


flask_app = Flask(__name__)
RateLimits(flask_app, key=by_header, **SETTINGS)
flask_app.get("/")(lambda: str(os.getpid()))

"""gRPC."""

from __future__ import annotations
import asyncio
from typing import Any


class Grpc(asyncio.Protocol):
    def __init__(self, house: Any, methods: Any) -> None: ...


class NoHttp1(asyncio.Protocol):
    def __init__(self, house: Any) -> None: ...

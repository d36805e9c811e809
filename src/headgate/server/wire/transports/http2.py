"""HTTP/2 connections."""

from __future__ import annotations
import asyncio
from typing import Any


class Http2(asyncio.Protocol):
    def __init__(self, house: Any, handler: Any) -> None: ...

"""Limits that all processes share, on a Redis server."""

from __future__ import annotations

import asyncio

from headgate import AsyncLimiter, Limiter

limiter = Limiter("10/s burst 20; 5000/day", store="redis://localhost:6379/0")
decision = limiter.check("user:42")
print(decision.allowed, decision.remaining)  # True 29
limiter.close()


async def main() -> None:
    async with AsyncLimiter("10/h burst 20", store="redis://localhost:6379/0", name="shared") as limiter:
        decisions = await asyncio.gather(*[limiter.check("user:42") for _ in range(100)])
        print(sum(decision.allowed for decision in decisions))  # 30


asyncio.run(main())

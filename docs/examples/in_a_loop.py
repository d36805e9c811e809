"""The same verbs in an event loop."""

from __future__ import annotations

import asyncio

from headgate import AsyncLimiter


async def main() -> None:
    limiter = AsyncLimiter("100/s; 5000/day")
    print((await limiter.check("user:42")).allowed)  # True

    decision = await limiter.acquire("user:42", cost=10, timeout=2)
    print(decision.allowed)  # True

    async with limiter.guard("upstream"):
        print("calling")  # calling


asyncio.run(main())

"""Those who wait are served in the order they came."""

from __future__ import annotations

import asyncio

from headgate import AsyncLimiter


async def main() -> None:
    limiter = AsyncLimiter("1000/s")
    await limiter.check("printer", cost=1000)
    served = []

    async def job(number: int, cost: int) -> None:
        await limiter.acquire("printer", cost)
        served.append(number)

    await asyncio.gather(job(1, cost=5), job(2, cost=1), job(3, cost=1))
    print(served)  # [1, 2, 3]


asyncio.run(main())

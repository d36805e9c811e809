"""Another limit, the same state."""

from __future__ import annotations

from headgate import Limiter, MemoryStore

store = MemoryStore()
Limiter("10/minute", store=store).check("ada", cost=6)

print(Limiter("20/minute", store=store).peek("ada").remaining)  # 14
print(Limiter("4/minute", store=store).peek("ada").remaining)  # 0
print(Limiter("10/hour", store=store).peek("ada").remaining)  # 10

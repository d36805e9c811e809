"""A full store never hands out fresh budget."""

from __future__ import annotations

from headgate import Limiter, MemoryStore

store = MemoryStore(max_keys=1000)
limiter = Limiter("2/hour", store=store)
for number in range(5000):
    limiter.check(f"user:{number}")
print(len(store) <= 1000 + 1024)  # True

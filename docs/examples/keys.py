"""Each key is limited on its own."""

from __future__ import annotations

from headgate import Limiter, MemoryStore

limiter = Limiter("1/minute")
print(limiter.check("user:ada").allowed, limiter.check("user:bob").allowed)  # True True
print(limiter.check("user:ada").allowed)  # False

store = MemoryStore()
reads = Limiter("100/minute", store=store, name="reads")
writes = Limiter("100/minute", store=store, name="writes")
print(reads.check("user:ada").remaining, writes.check("user:ada").remaining)  # 99 99

"""What a limiter answers while its store is away."""

from __future__ import annotations

from headgate import Limiter

limiter = Limiter("100/minute", store="redis://localhost:6379/0", on_store_failure="local", nodes=4)
decision = limiter.check("user:42")
print(decision.allowed, decision.degraded or "decided by the store")  # True decided by the store
limiter.close()

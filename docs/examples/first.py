"""The first limiter."""

from __future__ import annotations

from headgate import Limiter

limiter = Limiter("100/minute")
decision = limiter.check("user:42")
print(decision.allowed, decision.remaining)  # True 99

if not limiter.check("user:42"):
    print("too many requests")

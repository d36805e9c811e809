"""Several limits in one decision."""

from __future__ import annotations

from headgate import Limiter

limiter = Limiter("2/minute; 100/day")
limiter.check("user:42")
limiter.check("user:42")

refused = limiter.check("user:42")
print(refused.allowed, refused.quota)  # False 2/minute
print([part.remaining for part in refused.limits])  # [0, 98]

"""Giving back what was not needed."""

from __future__ import annotations

from headgate import Limiter

limiter = Limiter("100/hour")
limiter.check("ada", cost=40)
print(limiter.refund("ada", 30).remaining)  # 90
print(limiter.refund("ada", 30).remaining)  # 100

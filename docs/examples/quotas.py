"""Quotas as objects."""

from __future__ import annotations

from headgate import Calendar, Limiter, Quota

print(Quota.parse("10/s burst 20; 5000/day gcra")[1].algorithm)  # gcra
print(Quota(limit=100, window_us=60_000_000, warn_percent=90))  # 100/minute
print(Quota.from_bucket(capacity=20, refill_rate=2).capacity)  # 20
print(Quota.per(250, Calendar("month", "Europe/Berlin")))  # 250/month in Europe/Berlin
print(Limiter([Quota.one_off(500), "10/s"]).quotas[0])  # 500 once

"""Waiting for a turn."""

from __future__ import annotations

from headgate import Limiter

limiter = Limiter("1/minute")
print(limiter.acquire("report").allowed)  # True

late = limiter.acquire("report", timeout=5)  # answers at once: it would take a minute
print(late.allowed, round(late.retry_after))  # False 60

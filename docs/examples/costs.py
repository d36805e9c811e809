"""Requests that weigh more than others."""

from __future__ import annotations

from headgate import Limiter

limiter = Limiter("100/minute")
print(limiter.check("user:42", cost=60).remaining)  # 40
print(limiter.check("user:42", cost=60).allowed)  # False
print(limiter.check("user:42", cost=40).allowed)  # True

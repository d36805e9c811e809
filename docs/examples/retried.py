"""A request that is sent again is counted once."""

from __future__ import annotations

from headgate import Limiter

limiter = Limiter("100/minute")
print(limiter.check_once("user:42", "order-1042").remaining)  # 99
print(limiter.check_once("user:42", "order-1042").remaining)  # 99
print(limiter.check_once("user:42", "order-1043").remaining)  # 98

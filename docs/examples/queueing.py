"""A leaky bucket as a queue says when it is a request's turn."""

from __future__ import annotations

from headgate import Limiter
from headgate.testing import ManualClock

limiter = Limiter("60/minute leaky_bucket queue", clock=ManualClock())
print([limiter.check("printer").delay for _ in range(3)])  # [0.0, 1.0, 2.0]

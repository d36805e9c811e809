"""Normal, warning, throttled."""

from __future__ import annotations

from headgate import Limiter
from headgate.testing import ManualClock

clock = ManualClock()
limiter = Limiter("10/minute", clock=clock)
print(limiter.check("ada", cost=8).state)  # normal
print(limiter.check("ada").state)  # warning
print(limiter.check("ada").state)  # throttled

clock.advance(18)  # three units have come back: 70 % is used
print(limiter.peek("ada").state)  # warning
clock.advance(6)
print(limiter.peek("ada").state)  # normal

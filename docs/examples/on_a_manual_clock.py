"""Testing code that is limited, without sleeping."""

from __future__ import annotations

from headgate import Limiter
from headgate.testing import ManualClock

clock = ManualClock()
limiter = Limiter("2/minute", clock=clock)
limiter.check("ada", cost=2)

refused = limiter.check("ada")
clock.advance(refused.retry_after, us=-1)
print(limiter.check("ada").allowed)  # False
clock.advance(us=1)
print(limiter.check("ada").allowed)  # True

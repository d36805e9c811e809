"""How close a key is to its limit: normal, warning, throttled, with hysteresis.

A key enters *warning* when more than ``warn_percent`` of the capacity is used and leaves it when less than
``calm_percent`` is, so that a key at the edge does not flicker. It is *throttled* when nothing is left, or when the
request was refused.

Only the band between the two thresholds needs memory, and one bit is enough: the *mark*, kept in the state. Without
traffic usage only falls, so what a request finds is the lowest point since the request before it; the bit can
therefore be brought up to date when a request is admitted, and a denied request need not write.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.core.quota import Quota

Judge = Callable[[int, int, int], "tuple[int, Pressure]"]


class Pressure(StrEnum):
    """The state of a key under one limit."""

    NORMAL = "normal"
    WARNING = "warning"
    THROTTLED = "throttled"


def thresholds(quota: Quota) -> tuple[int, int]:
    """Return the remaining units from which on a key is normal, and those below which it is in warning."""
    calm = quota.capacity * (100 - quota.calm_percent) // 100 + 1
    warn = -(-quota.capacity * (100 - quota.warn_percent) // 100)
    return calm, warn


def judge(quota: Quota) -> Judge:
    """Return the function (mark, remaining, cost) -> (mark, pressure).

    Above the calm threshold the mark is 0 and the key is normal: the algorithms skip the call there, and the fastest of
    them below the warning threshold as well.
    """
    calm, warn = thresholds(quota)

    normal, warned = (0, Pressure.NORMAL), (1, Pressure.WARNING)
    spent = (1 if warn else 0), Pressure.THROTTLED

    def marked(mark: int, remaining: int, cost: int) -> tuple[int, Pressure]:
        if not remaining:
            return spent
        if remaining < warn or (mark and remaining < calm and remaining + cost < calm):
            return warned
        return normal

    return marked

"""Headgate, in memory."""

from __future__ import annotations

from benchmarks.contenders.base import Subject
from benchmarks.scenarios import Kind, Limit
from headgate import Decision, Limiter


class HeadgateMemory:
    """`Limiter.check` as a user calls it: one call for all limits, a full `Decision` as the answer."""

    name = "headgate"
    work = "check"
    equal = True

    def takes_part(self, _kind: Kind, _limits: int) -> bool:
        return True

    def open(self, kind: Kind, limits: tuple[Limit, ...]) -> Subject:
        limiter = Limiter(quotas(kind, limits))
        return Subject(limiter.check, allowed=_allowed, take=limiter.check, close=limiter.close)


def quotas(kind: Kind, limits: tuple[Limit, ...]) -> str:
    """Return the limits in Headgate's text form."""
    return "; ".join(f"{limit.units}/{limit.seconds}s {kind}" for limit in limits)


def _allowed(decision: Decision) -> bool:
    return decision.allowed

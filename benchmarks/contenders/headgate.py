"""Headgate, in memory and on Redis."""

from __future__ import annotations

from benchmarks.contenders.base import Blocking, Concurrent, Subject
from benchmarks.in_memory.scenarios import Kind, Limit
from headgate import AsyncLimiter, Decision, Limiter


class HeadgateMemory:
    """`Limiter.check` as a user calls it: one call for all limits, with a full `Decision`."""

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


class Degraded(AssertionError):
    """A decision was made without the server, so its time would mean nothing."""


class HeadgateRedis:
    """`check` as a user calls it: one call for all limits, with a full `Decision`."""

    name = "headgate"
    work = "check"
    equal = True
    blocks = True
    is_floor = False

    def takes_part(self, _: Kind) -> bool:
        return True

    def open(self, server: str, kind: Kind, limits: tuple[Limit, ...]) -> Blocking:
        limiter = Limiter(quotas(kind, limits), store=_patient(server))
        return Blocking(limiter.check, allowed, limiter.close)

    async def open_async(self, server: str, kind: Kind, limits: tuple[Limit, ...]) -> Concurrent:
        limiter = AsyncLimiter(quotas(kind, limits), store=_patient(server))
        return Concurrent(limiter.check, allowed, limiter.close)


def allowed(decision: Decision) -> bool:
    """Return the verdict, if it is the server's."""
    if decision.degraded:
        raise Degraded(f"degraded ({decision.degraded}): {decision!r}")
    return decision.allowed


def _patient(server: str) -> str:
    """Give a busy machine more time than the default deadline; a decision costs the same."""
    return f"{server}?timeout=5"

"""The decision about a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import msgspec

from headgate.core.pressure import Pressure

if TYPE_CHECKING:
    from headgate.core.algorithms import State


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Whether a request may pass, and what is left.

    A decision is true when the request is allowed, so ``if limiter.check(key):`` reads as it should. Durations are
    kept in whole microseconds (`retry_after_us`) and offered in seconds (`retry_after`).

    For a plan of several limits the fields describe one of them: the limit that blocks longest when the request is
    refused, else the most restrictive one (smallest remaining / limit). `limit` is the size of that one, a number;
    `limits` has a decision for each of them, also where there is only one, and `index` is the position of this one.

    A `msgspec.Struct` because one is made per request: it costs half of a named tuple and a third of a dataclass.
    """

    allowed: bool
    """Whether the request may pass."""
    limit: int
    """The most that can pass at once: limit + burst of the quota."""
    remaining: int
    """The units that are left after this request, rounded down."""
    retry_after_us: int
    """Microseconds until the same request would pass without other requests; 0 when allowed."""
    reset_after_us: int
    """Microseconds until nothing counts as used any more, without other requests."""
    state: Pressure
    """normal, warning or throttled."""
    quota: quotas.Quota
    """The quota behind these numbers."""
    delay_us: int = 0
    """Leaky bucket as a queue: microseconds until it is this request's turn."""
    taken: int = 0
    """What it took: the cost of the request; 0 if that was refused, or the call was a peek."""
    taken_at_us: int = 0
    """When it took that, by the clock of the store, in microseconds since the epoch."""
    parts: tuple[Decision, ...] = ()
    """The decision of each limit, in the order of the plan; empty if there is only one."""
    degraded: str = ""
    """Why the store did not decide this, such as "storage_unavailable"; empty when it did. See `stores.failover`."""
    index: int = 0
    """Which of `limits` it describes."""
    shadow: tuple[Decision, ...] = ()
    """The decisions of shadow plans; see `headgate.core.plan.Call.shadow`."""
    identity: bytes = b""
    """Of CHECK_ONCE: names what it took, the same in all answers to one request. It is not compared."""

    def __bool__(self) -> bool:
        return self.allowed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decision) and _fields(self) == _fields(other)

    def __hash__(self) -> int:
        return hash(_fields(self))

    def __copy__(self) -> Self:
        """Return itself: a copy would be another charge, which could be refunded once more."""
        return self

    def __repr__(self) -> str:
        facts = ["allowed" if self.allowed else f"denied, retry_after={self.retry_after:g}"]
        facts += [f"remaining={self.remaining} of {self.limit}", f"reset_after={self.reset_after:g}", self.state]
        facts += [f"delay={self.delay:g}"] * bool(self.delay_us) + [f"{len(self.parts)} limits"] * bool(self.parts)
        facts += [f"degraded={self.degraded}"] * bool(self.degraded)
        return f"<Decision {str(self.quota)!r}: {', '.join(facts)}>"

    @property
    def retry_after(self) -> float:
        """Seconds until the same request would pass; 0 when allowed."""
        return self.retry_after_us / 1_000_000

    @property
    def reset_after(self) -> float:
        """Seconds until nothing counts as used any more."""
        return self.reset_after_us / 1_000_000

    @property
    def delay(self) -> float:
        """Seconds to wait before acting on an admission to a queue; 0 elsewhere."""
        return self.delay_us / 1_000_000

    @property
    def limits(self) -> tuple[Decision, ...]:
        """The decision of each limit; for a single limit, this decision alone."""
        return self.parts or (self,)

    @property
    def used(self) -> int:
        """The used units, rounded up."""
        return self.limit - self.remaining


def _fields(decision: Decision) -> tuple[Any, ...]:
    """Return the values by which decisions are compared."""
    return msgspec.structs.astuple(decision)[:-1]


def marked(decision: Decision, reason: str) -> Decision:
    """Return `decision` with the reason why the store did not make it, or not as it should be made."""
    parts = tuple([msgspec.structs.replace(part, degraded=reason) for part in decision.parts])
    return msgspec.structs.replace(decision, parts=parts, degraded=reason)


def refused(decision: Decision, retry_after_us: int) -> Decision:
    """Return `decision` as a refusal."""
    return msgspec.structs.replace(
        decision, allowed=False, state=Pressure.THROTTLED, retry_after_us=retry_after_us, delay_us=0
    )


def exhausted(quota: quotas.Quota, wait_us: int = 0) -> Decision:
    """Return the refusal of a limit that has nothing left until then."""
    return Decision(False, quota.capacity, 0, wait_us, wait_us, Pressure.THROTTLED, quota)


def held(outcome: tuple[State, Decision], lag_us: int) -> tuple[State, Decision]:
    """Return an outcome computed `lag_us` in the future, for a clock that fell behind the state, as seen from now."""
    state, decision = outcome
    return state, msgspec.structs.replace(
        decision,
        retry_after_us=decision.retry_after_us and decision.retry_after_us + lag_us,
        reset_after_us=decision.reset_after_us and decision.reset_after_us + lag_us,
        delay_us=decision.delay_us and decision.delay_us + lag_us,
        taken_at_us=decision.taken_at_us and decision.taken_at_us - lag_us,
    )


# A quota is made of algorithms, which make decisions. So this comes last, and names the module: whichever is imported
# first, `typing.get_type_hints(Decision)` finds all types.
from headgate.core import quota as quotas  # noqa: E402

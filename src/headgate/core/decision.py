"""The answer to a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headgate.core.pressure import Pressure

if TYPE_CHECKING:
    from headgate.core.algorithms import State


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Whether a request may pass, and all a caller wants to know besides.

    A decision is true when the request is allowed, so ``if limiter.check(key):`` reads as it should. Durations are
    kept in whole microseconds (`retry_after_us`) and offered in seconds (`retry_after`).

    For a plan of several limits the fields describe one of them: the limit that blocks longest when the request is
    refused, else the most restrictive one (smallest remaining / limit). `limit` is the size of that one, a number;
    `limits` has a decision for each of them, also where there is only one, and `index` says which of those this is.

    A `msgspec.Struct` because one is made per request: it costs half of a named tuple and a third of a dataclass.
    """

    allowed: bool
    """May the request pass?"""
    limit: int
    """The most that can pass at once: limit + burst of the quota."""
    remaining: int
    """What is left now, after this request took its cost. Whole units, rounded down."""
    retry_after_us: int
    """Microseconds until the same request would pass if nobody else asked; 0 when allowed."""
    reset_after_us: int
    """Microseconds until nothing counts as used any more if nobody asked."""
    state: Pressure
    """normal, warning or throttled."""
    quota: quotas.Quota
    """The quota behind these numbers."""
    delay_us: int = 0
    """Leaky bucket as a queue: microseconds until it is this request's turn."""
    taken: int = 0
    """What it took: the cost of the request; 0 if that was refused, or only asked about."""
    taken_at_us: int = 0
    """When it took that, by the clock of the store, in microseconds since the epoch: by this a refund finds it."""
    made_of: tuple[Decision, ...] = ()
    """What `parts` returns."""
    degraded: str = ""
    """Why the store did not decide this, such as "storage_unavailable"; empty when it did. See `stores.failover`."""
    index: int = 0
    """Which of `limits` it describes."""
    shadow: tuple[Decision, ...] = ()
    """What plans say that were only tried out, each on its own; see `headgate.core.plan.Call.shadow`."""
    identity: bytes = b""
    """Names what it took, from its first refund on: not a part of its value, so equal decisions may have others."""

    def __bool__(self) -> bool:
        return self.allowed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decision) and _fields(self) == _fields(other)

    def __hash__(self) -> int:
        return hash(_fields(self))

    def __repr__(self) -> str:
        facts = ["allowed" if self.allowed else f"denied, retry_after={self.retry_after:g}"]
        facts += [f"remaining={self.remaining} of {self.limit}", f"reset_after={self.reset_after:g}", self.state]
        facts += [f"delay={self.delay:g}"] * bool(self.delay_us) + [f"{len(self.parts)} limits"] * bool(self.made_of)
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
    def parts(self) -> tuple[Decision, ...]:
        """The decision of each limit, in the order of the plan; empty if there is only one."""
        return self.made_of

    @property
    def limits(self) -> tuple[Decision, ...]:
        """The decision of each limit; for a single limit, this decision alone."""
        return self.parts or (self,)

    @property
    def used(self) -> int:
        """What is taken of the limit now, rounded up."""
        return self.limit - self.remaining

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> Any:
        """Tell Pydantic how a decision is written as JSON, so that a route of FastAPI may be ``-> Decision``."""
        from pydantic_core import core_schema as schema  # noqa: PLC0415  only Pydantic calls this

        types = {bool: schema.bool_schema(), int: schema.int_schema(), float: schema.float_schema()}
        fields = {name: types.get(kind, schema.str_schema()) for name, kind in _SHOWN.items()}
        part = schema.typed_dict_schema({name: schema.typed_dict_field(kind) for name, kind in fields.items()})
        limits = schema.typed_dict_field(schema.list_schema(part))
        answer = schema.typed_dict_schema({**part["fields"], "limits": limits})
        shown = schema.plain_serializer_function_ser_schema(_shown, return_schema=answer)
        return schema.is_instance_schema(cls, serialization=shown)


_SHOWN = {
    "allowed": bool,
    "limit": int,
    "remaining": int,
    "retry_after": float,
    "reset_after": float,
    "delay": float,
    "state": str,
    "quota": str,
    "degraded": str,
}
"""What is shown of a decision, and as what. Times are in seconds."""


def _shown(decision: Decision) -> dict[str, Any]:
    limits = [{name: kind(getattr(each, name)) for name, kind in _SHOWN.items()} for each in decision.limits]
    return {name: kind(getattr(decision, name)) for name, kind in _SHOWN.items()} | {"limits": limits}


def _fields(decision: Decision) -> tuple[Any, ...]:
    """Return all that a decision says."""
    return msgspec.structs.astuple(decision)[:-1]


def marked(decision: Decision, reason: str) -> Decision:
    """Return `decision` with the reason why the store did not make it, or not as it should be made."""
    parts = tuple([msgspec.structs.replace(part, degraded=reason) for part in decision.parts])
    return msgspec.structs.replace(decision, made_of=parts, degraded=reason)


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


# A quota is made of algorithms, which make decisions. So this comes last, and names the module: whoever is imported
# first, `typing.get_type_hints(Decision)` finds all types.
from headgate.core import quota as quotas  # noqa: E402

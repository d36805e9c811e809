"""What a check over gRPC is answered, as it goes over the wire: `CheckResponse`, `QuotaResponse` and their lists.

Written by hand from prepared pieces, as Envoy's answers are: protobuf's objects take twice as long. The fields stand in
the order of their numbers, and those that have their default are left out, as protobuf has it. `QuotaResponse` has the
same fields with the same numbers as `CheckResponse`, which has one more, the charge.
"""

from __future__ import annotations

from struct import pack

import msgspec

from headgate.cache import BoundedCache
from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND, Quota
from headgate.engine import Ruling
from headgate.engine.charges import ALONE, Seal, charge_of
from headgate.engine.written import write
from headgate.protos import framed, varint
from headgate.web.headers import Numbers, Prepared

_ALLOWED, _DEGRADED, _MATCHED = b"\x08\x01", b"\x48\x01", b"\x58\x01"
_REASON, _DELAY, _LIMITS, _SHADOW, _UNMATCHED = b"\x52", b"\x61", b"\x6a", b"\x72", b"\x7a"
_CHARGE, _EXACT = b"\x82\x01", b"\x8a\x01"
_STATES = {Pressure.NORMAL: b"", Pressure.WARNING: b"\x40\x01", Pressure.THROTTLED: b"\x40\x02"}
_STATES_OF_LIMITS = {Pressure.NORMAL: b"", Pressure.WARNING: b"\x38\x01", Pressure.THROTTLED: b"\x38\x02"}
_64_BITS = 2**64 - 1
MOST_ANSWERS = 2048
"""Answers that are kept, of about a hundred bytes each."""


class LimitMessages(msgspec.Struct, frozen=True, gc=False):
    """What is the same in all messages about one limit."""

    limit: bytes
    """The field of an answer."""
    rule_id: bytes
    """The same."""
    allowed: bytes
    """The beginning of a `LimitStatus` that admits."""
    denied: bytes
    """The same of one that refuses."""


class RpcAnswers:
    """Answers checks. What single limits say is remembered: within a second, many are told the same of a limit."""

    __slots__ = ("_count", "_known", "_prepared", "_remaining", "_reset_at", "_retry_after")

    def __init__(self) -> None:
        self._prepared = Prepared(_prepare)
        self._count, self._remaining = _numbers(b"\x10"), _numbers(b"\x20")
        self._reset_at, self._retry_after = _numbers(b"\x28"), _numbers(b"\x30")
        self._known = BoundedCache[tuple[object, ...], tuple[LimitMessages, bytes]](MOST_ANSWERS)
        """With what is prepared of the limit, so that nothing else gets its identity."""

    def of(
        self, ruling: Ruling, now: int, *, refundable: bool = False, exact: bool = False, seal: Seal = ALONE
    ) -> bytes:
        """Return the answer to a request that came at `now`, in microseconds since the epoch.

        Args:
            ruling: what was decided.
            now: the time before the decision.
            refundable: whether the answer names the cost that was taken.
            exact: whether it has the ruling itself; see `headgate.engine.written`.
            seal: of charges.
        """
        decision = ruling.decision
        if decision is None:
            answer = _ALLOWED if ruling.allowed else b""
            answer += _STATES[ruling.state] + (framed(_REASON, ruling.reason.encode()) if ruling.reason else b"")
            answer += _MATCHED if ruling.matched else b""
        elif decision.parts:
            answer = self._decided(ruling, decision, now)
        else:
            answer = self._decided_by_one(ruling, decision, now)
        if ruling.shadow_rules:
            rules, tried = ruling.shadow_rules, enumerate(ruling.shadow_decisions)
            answer += b"".join([framed(_SHADOW, self._limit(rules[place], part, now)) for place, part in tried])
        if ruling.unmatched_principals:
            answer += b"".join([framed(_UNMATCHED, name.encode()) for name in ruling.unmatched_principals])
        if refundable and (charge := charge_of(ruling, seal)):
            answer += framed(_CHARGE, charge.encode())
        return answer + framed(_EXACT, write(ruling, seal)) if exact else answer

    def _decided_by_one(self, ruling: Ruling, decision: Decision, now: int) -> bytes:
        """Return what a single limit says, as it was put together before if it was."""
        limit, reset_at = self._prepared.of(ruling.rule_id, decision.quota), now + decision.reset_after_us
        numbers = decision.limit, decision.remaining, -(-reset_at // SECOND), -(-decision.retry_after_us // SECOND)
        key = id(limit), decision.allowed, numbers, decision.state, decision.delay_us, decision.degraded
        known = self._known.get(key)
        if known is None:
            known = self._known.keep(key, (limit, self._decided(ruling, decision, now)))
        return known[1]

    def _decided(self, ruling: Ruling, decision: Decision, now: int) -> bytes:
        """Return what limits say."""
        limit = self._prepared.of(ruling.rule_id, decision.quota)
        count, state = self._count[decision.limit - decision.remaining], _STATES[decision.state]
        pieces = [
            _ALLOWED if ruling.allowed else b"",
            count,
            limit.limit,
            self._numbers(decision, now),
            limit.rule_id,
            state,
        ]
        if decision.degraded:
            pieces += _DEGRADED, framed(_REASON, decision.degraded.encode())
        pieces.append(_MATCHED)
        if decision.delay_us:
            pieces += _DELAY, pack("<d", decision.delay_us / SECOND)
        rules = ruling.rules if decision.parts else (ruling.rule_id,)
        parts = zip(rules, decision.limits, strict=True)
        pieces += [framed(_LIMITS, self._limit(rule, part, now)) for rule, part in parts]
        return b"".join(pieces)

    def _limit(self, rule_id: str, decision: Decision, now: int) -> bytes:
        """Return the `LimitStatus` of a limit."""
        limit = self._prepared.of(rule_id, decision.quota)
        opening = limit.allowed if decision.allowed else limit.denied
        return opening + self._numbers(decision, now) + _STATES_OF_LIMITS[decision.state]

    def _numbers(self, decision: Decision, now: int) -> bytes:
        """Return what is left, and the times: they have the same numbers in an answer and in a `LimitStatus`."""
        reset_at = self._reset_at[-(-(now + decision.reset_after_us) // SECOND)]
        if decision.allowed:
            return self._remaining[decision.remaining] + reset_at
        wait = self._retry_after[-(-decision.retry_after_us // SECOND) or 1]
        return self._remaining[decision.remaining] + reset_at + wait


def _numbers(tag: bytes) -> Numbers[bytes]:
    """Return the fields with a tag; 0 is the default."""
    return Numbers(lambda number: tag + varint(number & _64_BITS) if number else b"")


def _prepare(rule_id: str, quota: Quota) -> LimitMessages:
    limit, name = b"\x18" + varint(quota.capacity), rule_id.encode()
    named = framed(b"\x0a", name) if name else b""
    rule = framed(b"\x3a", name) if name else b""
    return LimitMessages(limit, rule, named + b"\x10\x01" + limit, named + limit)

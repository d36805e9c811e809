"""The encoded responses to checks over gRPC: `CheckResponse` and `QuotaResponse`.

They are assembled from prepared pieces: protobuf objects take twice as long. Fields are in the order of their numbers,
and those with their default value are omitted. `CheckResponse` has the fields of `QuotaResponse`, and the charge.
"""

from __future__ import annotations

from struct import pack

import msgspec

from headgate.cache import Prepared
from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND, Quota
from headgate.engine import Ruling
from headgate.engine.charges import ALONE, Seal, charge_of
from headgate.engine.ruling_json import write
from headgate.protobuf import framed, varint
from headgate.web.headers import MOST_PREPARED

_ALLOWED, _DEGRADED, _MATCHED = b"\x08\x01", b"\x48\x01", b"\x58\x01"
_REASON, _DELAY, _LIMITS, _SHADOW, _UNMATCHED = b"\x52", b"\x61", b"\x6a", b"\x72", b"\x7a"
_CHARGE, _EXACT = b"\x82\x01", b"\x8a\x01"
_STATES = {Pressure.NORMAL: b"", Pressure.WARNING: b"\x40\x01", Pressure.THROTTLED: b"\x40\x02"}
_STATES_OF_LIMITS = {Pressure.NORMAL: b"", Pressure.WARNING: b"\x38\x01", Pressure.THROTTLED: b"\x38\x02"}
_64_BITS = 2**64 - 1


class LimitMessages(msgspec.Struct, frozen=True, gc=False):
    """The constant parts of all messages about a limit: two fields of a response, and the first of a `LimitStatus`."""

    limit: bytes
    rule_id: bytes
    allowed: bytes
    denied: bytes


class RpcAnswers:
    __slots__ = ("_prepared",)

    def __init__(self) -> None:
        self._prepared = Prepared(_prepare, MOST_PREPARED)

    def of(
        self, ruling: Ruling, now: int, *, refundable: bool = False, exact: bool = False, seal: Seal = ALONE
    ) -> bytes:
        """Return the response to a request that arrived at `now`, in microseconds since the epoch.

        If `refundable`, it has the charge; if `exact`, the ruling: see `headgate.engine.ruling_json`.
        """
        decision = ruling.decision
        if decision is None:
            raw = _ALLOWED if ruling.allowed else b""
            raw += _STATES[ruling.state] + (framed(_REASON, ruling.reason.encode()) if ruling.reason else b"")
            raw += _MATCHED if ruling.matched else b""
        else:
            raw = self._decided(ruling, decision, now)
        if ruling.shadow_rules:
            shadows = zip(ruling.shadow_rules, ruling.shadow_decisions, strict=True)
            raw += b"".join([framed(_SHADOW, self._limit(rule, part, now)) for rule, part in shadows])
        if ruling.unmatched_principals:
            raw += b"".join([framed(_UNMATCHED, name.encode()) for name in ruling.unmatched_principals])
        if refundable and (charge := charge_of(ruling, seal)):
            raw += framed(_CHARGE, charge.encode())
        return raw + framed(_EXACT, write(ruling, seal)) if exact else raw

    def _decided(self, ruling: Ruling, decision: Decision, now: int) -> bytes:
        limit, numbers = self._prepared.of(ruling.rule_id, decision.quota), _numbers(decision, now)
        pieces = [
            _ALLOWED if ruling.allowed else b"",
            _number(b"\x10", decision.limit - decision.remaining),
            limit.limit,
            numbers,
            limit.rule_id,
            _STATES[decision.state],
        ]
        if decision.degraded:
            pieces += _DEGRADED, framed(_REASON, decision.degraded.encode())
        pieces.append(_MATCHED)
        if decision.delay_us:
            pieces += _DELAY, pack("<d", decision.delay_us / SECOND)
        if decision.parts:
            parts = zip(ruling.rules, decision.parts, strict=True)
            pieces += [framed(_LIMITS, self._limit(rule, part, now)) for rule, part in parts]
        else:
            opening = limit.allowed if decision.allowed else limit.denied
            pieces.append(framed(_LIMITS, opening + numbers + _STATES_OF_LIMITS[decision.state]))
        return b"".join(pieces)

    def _limit(self, rule_id: str, decision: Decision, now: int) -> bytes:
        """Return the `LimitStatus` of a limit."""
        limit = self._prepared.of(rule_id, decision.quota)
        opening = limit.allowed if decision.allowed else limit.denied
        return opening + _numbers(decision, now) + _STATES_OF_LIMITS[decision.state]


def _numbers(decision: Decision, now: int) -> bytes:
    """Return the fields with the same numbers in a response and in a `LimitStatus`: remaining, and the times."""
    numbers = _number(b"\x20", decision.remaining) + _number(b"\x28", -(-(now + decision.reset_after_us) // SECOND))
    if decision.allowed:
        return numbers
    return numbers + _number(b"\x30", -(-decision.retry_after_us // SECOND) or 1)


def _number(tag: bytes, number: int) -> bytes:
    return tag + varint(number & _64_BITS) if number else b""


def _prepare(rule_id: str, quota: Quota) -> LimitMessages:
    limit, name = b"\x18" + varint(quota.capacity), rule_id.encode()
    named = framed(b"\x0a", name) if name else b""
    rule = framed(b"\x3a", name) if name else b""
    return LimitMessages(limit, rule, named + b"\x10\x01" + limit, named + limit)

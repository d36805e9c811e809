"""The answer to a check, as JSON, and its header fields as the wire sends them.

======================  =====================================================================================
allowed                 whether the request may pass
limit                   the most that can pass at once, under the limit that blocks longest or is the most
                        restrictive one; null, as the next four, where no limit decided
remaining               what is left of it
reset_at                Unix time in seconds, rounded up: when nothing counts as used any more if nobody asks
retry_after             whole seconds, at least 1 on refusal, 0 when allowed; null: waiting does not help
current_count           what is taken of the limit now
rule_id                 the rule of that limit
state                   normal, warning or throttled
degraded                whether the store did not decide this
matched                 whether any rule matched
reason                  who is on which list, or why it is degraded; else empty
delay                   of a leaky bucket that queues: seconds until it is this request's turn; else 0
limits                  what each limit says: rule_id, allowed, limit, remaining, reset_at, retry_after, state
shadow                  the same of the limits of shadow rules, which refuse nothing
unmatched_principals    names of principals that no rule and no list knows: nothing limits by them
charge                  if that was asked for: what names the cost that was taken, for a refund; empty if none was
======================  =====================================================================================

What is the same in all answers about a limit is written once for each; the rest is put between. Times are counted from
before the decision: with a later time, the end of a fixed window would seem to move.
"""

from __future__ import annotations

import msgspec

from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND, Quota
from headgate.engine import Ruling
from headgate.engine.charges import charge_of
from headgate.server.wire.messages import HttpResponse
from headgate.web.headers import HeaderWriter, LimitFields, Prepared, ResponseHeaders, as_bytes, policy_names

JSON = (b"content-type", b"application/json")
_BOOLEANS = {True: b"true", False: b"false"}
_STATES = {state: state.encode() for state in Pressure}
_LIMIT = b'{"rule_id":<rule>,"allowed":%b,"limit":<limit>,"remaining":%d,"reset_at":%d,"retry_after":%d,"state":"%b"}'
_DECIDED = (
    b'{"allowed":%b,"limit":<limit>,"remaining":%d,"reset_at":%d,"retry_after":%d,"current_count":%d,"rule_id":<rule>,'
    b'"state":"%b","degraded":%b,"matched":true,"reason":%b,"delay":%b,"limits":[%b],"shadow":[%b],'
    b'"unmatched_principals":%b%b}'
)
"""What is in angle brackets is filled in once for each limit."""
_UNDECIDED = (
    b'{"allowed":%b,"limit":null,"remaining":null,"reset_at":null,"retry_after":%b,"current_count":null,"rule_id":"",'
    b'"state":"%b","degraded":false,"matched":%b,"reason":%b,"delay":0.0,"limits":[],"shadow":[%b],'
    b'"unmatched_principals":%b%b}'
)
_encode = msgspec.json.Encoder().encode


class LimitAnswer(msgspec.Struct, frozen=True, gc=False):
    """What is the same in all answers about one limit."""

    decided: bytes
    """An answer where this limit is the one that decides, without what changes."""
    limit: bytes
    """An element of `limits`, without what changes."""
    fields: LimitFields[tuple[bytes, bytes]]
    """Of the header."""


class CheckAnswers:
    """Answers checks, always with 200: that a request is refused is what was asked for.

    Args:
        headers: which header fields, in which version.
    """

    def __init__(self, headers: ResponseHeaders) -> None:
        self._writer = HeaderWriter(headers, as_bytes)
        self._prepared = Prepared(self._prepare)

    def response(self, ruling: Ruling, now: int, *, refundable: bool = False) -> HttpResponse:
        """Return the response to a request that came at `now`, in microseconds since the epoch."""
        return HttpResponse(200, self.body(ruling, now, refundable=refundable), (JSON, *self._fields(ruling, now)))

    def body(self, ruling: Ruling, now: int, *, refundable: bool = False) -> bytes:
        """Return the answer; on request, with what names the cost that was taken."""
        decision = ruling.decision
        shadow = b",".join([self._limit(each.rule_id, each.decision, now) for each in ruling.shadow])
        unmatched = _encode(ruling.unmatched_principals) if ruling.unmatched_principals else b"[]"
        charge = b',"charge":' + _encode(charge_of(ruling)) if refundable else b""
        if decision is None:
            retry_after, reason = b"0" if ruling.allowed else b"null", _encode(ruling.reason)
            about = _STATES[ruling.state], _BOOLEANS[ruling.matched], reason, shadow, unmatched, charge
            return _UNDECIDED % (_BOOLEANS[ruling.allowed], retry_after, *about)
        prepared = self._prepared.of(ruling.rule_id, decision.quota)
        allowed, remaining, state = _BOOLEANS[decision.allowed], decision.remaining, _STATES[decision.state]
        reset_at = -(-(now + decision.reset_after_us) // SECOND)
        wait = 0 if decision.allowed else -(-decision.retry_after_us // SECOND) or 1
        return prepared.decided % (
            allowed,
            remaining,
            reset_at,
            wait,
            decision.limit - remaining,
            state,
            b"true" if decision.degraded else b"false",
            _encode(decision.degraded) if decision.degraded else b'""',
            _encode(decision.delay_us / SECOND) if decision.delay_us else b"0.0",
            b",".join([self._limit(rule, part, now) for rule, part in zip(ruling.rules, decision.parts, strict=True)])
            if decision.parts
            else prepared.limit % (allowed, remaining, reset_at, wait, state),
            shadow,
            unmatched,
            charge,
        )

    def _fields(self, ruling: Ruling, now: int) -> list[tuple[bytes, bytes]]:
        """Return the header fields of a ruling on a request that came at `now`; none where no limit decided."""
        decision = ruling.decision
        if decision is None:
            return []
        if not decision.parts:
            return self._writer.write(decision, (self._prepared.of(ruling.rule_id, decision.quota).fields,), now)
        names = policy_names(ruling.rules, len(decision.parts))
        parts = zip(names, decision.parts, strict=True)
        return self._writer.write(decision, [self._prepared.of(name, part.quota).fields for name, part in parts], now)

    def _limit(self, rule_id: str, decision: Decision, now: int) -> bytes:
        return self._prepared.of(rule_id, decision.quota).limit % (
            _BOOLEANS[decision.allowed],
            decision.remaining,
            -(-(now + decision.reset_after_us) // SECOND),
            0 if decision.allowed else -(-decision.retry_after_us // SECOND) or 1,
            _STATES[decision.state],
        )

    def _prepare(self, rule_id: str, quota: Quota) -> LimitAnswer:
        rule, limit = _encode(rule_id).replace(b"%", b"%%"), b"%d" % quota.capacity
        decided, element = (each.replace(b"<rule>", rule).replace(b"<limit>", limit) for each in (_DECIDED, _LIMIT))
        return LimitAnswer(decided, element, self._writer.prepare(rule_id, quota))

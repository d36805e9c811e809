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
exact                   if that was asked for: the ruling to the microsecond; see `headgate.engine.written`
======================  =====================================================================================

What is the same in all answers about a limit is written once for each; the rest is put between. Times are counted from
before the decision: with a later time, the end of a fixed window would seem to move.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND, Quota
from headgate.engine import Ruling
from headgate.engine.charges import charge_of
from headgate.engine.written import write
from headgate.server.wire.messages import HttpResponse
from headgate.web.headers import HeaderWriter, LimitFields, Prepared, ResponseHeaders, as_bytes, policy_names

JSON = (b"content-type", b"application/json")
_BOOLEANS = {True: b"true", False: b"false"}
_STATES = {state: state.encode() for state in Pressure}
_LIMIT = b'{"rule_id":<rule>,"allowed":%b,"limit":<limit>,"remaining":%d,"reset_at":%d,"retry_after":%b,"state":"%b"}'
_DECIDED = (
    b'{"allowed":%b,"limit":<limit>,"remaining":%d,"reset_at":%d,"retry_after":%b,"current_count":%d,"rule_id":<rule>,'
    b'"state":"%b",%b,"limits":[%b],%b}'
)
"""What is in angle brackets is filled in once for each limit."""
_IN_TIME = b'"degraded":false,"matched":true,"reason":"","delay":0.0'
_NO_MORE = b'"shadow":[],"unmatched_principals":[]'
_UNDECIDED = (
    b'{"allowed":%b,"limit":null,"remaining":null,"reset_at":null,"retry_after":%b,"current_count":null,"rule_id":"",'
    b'"state":"%b","degraded":false,"matched":%b,"reason":%b,"delay":0.0,"limits":[],%b}'
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

    def response(self, ruling: Ruling, now: int, *, refundable: bool = False, exact: bool = False) -> HttpResponse:
        """Return the response to a request that came at `now`, in microseconds since the epoch."""
        decision = ruling.decision
        if decision is None:
            return HttpResponse(200, self.body(ruling, now, refundable=refundable, exact=exact), (JSON,))
        limit = self._prepared.of(ruling.rule_id, decision.quota)
        reset_at = -(-(now + decision.reset_after_us) // SECOND)
        limits: list[LimitFields[tuple[bytes, bytes]]] = []
        if decision.parts and self._writer.lists_limits:
            parts = zip(policy_names(ruling.rules, len(decision.parts)), decision.parts, strict=True)
            limits = [self._prepared.of(name, part.quota).fields for name, part in parts]
        fields = self._writer.write(decision, limit.fields, reset_at, limits)
        body = self._decided(ruling, decision, limit, reset_at, now, refundable)
        return HttpResponse(200, _with_ruling(body, ruling) if exact else body, (JSON, *fields))

    def body(self, ruling: Ruling, now: int, *, refundable: bool = False, exact: bool = False) -> bytes:
        """Return the answer; on request, with what names the cost that was taken, and with the ruling."""
        if exact:
            return _with_ruling(self.body(ruling, now, refundable=refundable), ruling)
        decision = ruling.decision
        if decision is None:
            return self._undecided(ruling, now, refundable)
        limit = self._prepared.of(ruling.rule_id, decision.quota)
        reset_at = -(-(now + decision.reset_after_us) // SECOND)
        return self._decided(ruling, decision, limit, reset_at, now, refundable)

    def _decided(  # noqa: PLR0917  as many as there are pieces
        self,
        ruling: Ruling,
        decision: Decision,
        limit: LimitAnswer,
        reset_at: int,
        now: int,
        refundable: bool,  # noqa: FBT001  a fact, and private
    ) -> bytes:
        remaining, state = decision.remaining, _STATES[decision.state]
        allowed, wait = b"true", b"0"
        if not decision.allowed:
            allowed, wait = b"false", b"%d" % (-(-decision.retry_after_us // SECOND) or 1)
        if decision.parts:
            limits = self._limits(zip(ruling.rules, decision.parts, strict=True), now)
        else:
            limits = limit.limit % (allowed, remaining, reset_at, wait, state)
        return limit.decided % (
            allowed,
            remaining,
            reset_at,
            wait,
            decision.limit - remaining,
            state,
            _late(decision) if decision.degraded or decision.delay_us else _IN_TIME,
            limits,
            self._more(ruling, now, refundable)
            if ruling.shadow or ruling.unmatched_principals or refundable
            else _NO_MORE,
        )

    def _undecided(self, ruling: Ruling, now: int, refundable: bool) -> bytes:  # noqa: FBT001  a fact, and private
        """Return the answer where no limit decided."""
        retry_after = b"0" if ruling.allowed else b"null"
        about = _STATES[ruling.state], _BOOLEANS[ruling.matched], _encode(ruling.reason)
        return _UNDECIDED % (_BOOLEANS[ruling.allowed], retry_after, *about, self._more(ruling, now, refundable))

    def _more(self, ruling: Ruling, now: int, refundable: bool) -> bytes:  # noqa: FBT001  a fact, and private
        """Return the last members, which most answers have nothing to say in."""
        shadow = self._limits([(each.rule_id, each.decision) for each in ruling.shadow], now)
        unmatched = _encode(ruling.unmatched_principals) if ruling.unmatched_principals else b"[]"
        more = b'"shadow":[%b],"unmatched_principals":%b' % (shadow, unmatched)
        return more + b',"charge":' + _encode(charge_of(ruling)) if refundable else more

    def _limits(self, decisions: Iterable[tuple[str, Decision]], now: int) -> bytes:
        """Return what each of several limits says, of which rule."""
        limits, prepared = [], self._prepared.of
        for rule_id, decision in decisions:
            allowed, wait = b"true", b"0"
            if not decision.allowed:
                allowed, wait = b"false", b"%d" % (-(-decision.retry_after_us // SECOND) or 1)
            reset_at = -(-(now + decision.reset_after_us) // SECOND)
            told = allowed, decision.remaining, reset_at, wait, _STATES[decision.state]
            limits.append(prepared(rule_id, decision.quota).limit % told)
        return b",".join(limits)

    def _prepare(self, rule_id: str, quota: Quota) -> LimitAnswer:
        rule, limit = _encode(rule_id).replace(b"%", b"%%"), b"%d" % quota.capacity
        decided, element = (each.replace(b"<rule>", rule).replace(b"<limit>", limit) for each in (_DECIDED, _LIMIT))
        return LimitAnswer(decided, element, self._writer.prepare(rule_id, quota))


def _with_ruling(body: bytes, ruling: Ruling) -> bytes:
    """Return an answer with one more member."""
    return b'%b,"exact":%b}' % (body[:-1], write(ruling))


def _late(decision: Decision) -> bytes:
    """Return the members that say why the store did not decide, and when it is the turn of what is in a queue."""
    degraded, delay = decision.degraded, _encode(decision.delay_us / SECOND)
    told = _BOOLEANS[degraded != ""], _encode(degraded), delay
    return b'"degraded":%b,"matched":true,"reason":%b,"delay":%b' % told

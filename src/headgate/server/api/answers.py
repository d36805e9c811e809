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
from operator import attrgetter

import msgspec

from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND, Quota
from headgate.engine import Ruling
from headgate.engine.charges import charge_of
from headgate.engine.written import write
from headgate.server.wire.messages import HttpResponse
from headgate.web.headers import HeaderWriter, Prepared, ResponseHeaders, as_line, worst

JSON = (b"content-type", b"application/json")
_JSON_LINE = b"content-type: application/json\r\n"
_NORMAL = Pressure.NORMAL
_BOOLEANS = {True: b"true", False: b"false"}
_STATES = {state: state.encode() for state in Pressure}
_ELEMENT = (
    b'{"rule_id":<rule>,"allowed":true,"limit":<limit>,"remaining":%d,"reset_at":%d,"retry_after":0,"state":"%b"}'
)
_AMONG = (
    b'{"allowed":true,"limit":<limit>,"remaining":%d,"reset_at":%d,"retry_after":0,"current_count":%d,"rule_id":<rule>,'
    b'"state":"%b",%b,"limits":[<limits>],%b}'
)
_ALONE = _AMONG.replace(b"<limits>", _ELEMENT)
_LINES = _JSON_LINE + b"x-ratelimit-limit: <limit>\r\nx-ratelimit-remaining: %d\r\nx-ratelimit-reset: %d\r\n"
_ADMISSION = _ALONE, _AMONG, _ELEMENT, _LINES
"""What is in angle brackets is filled in once for each limit."""


def _refusing(template: bytes) -> bytes:
    """Return what is written of an admission as it is of a refusal."""
    for admitted, refused in (
        (b":true", b":false"),
        (b'"retry_after":0', b'"retry_after":%d'),
        (b'"%b"', b'"throttled"'),
    ):
        template = template.replace(admitted, refused)
    return template


_REFUSED_LINES = _LINES + b"x-ratelimit-state: throttled\r\nretry-after: %d\r\ncache-control: no-store\r\n"
_REFUSAL = (*[_refusing(template) for template in (_ALONE, _AMONG, _ELEMENT)], _REFUSED_LINES)
_IN_TIME = b'"degraded":false,"matched":true,"reason":"","delay":0.0'
_NO_MORE = b'"shadow":[],"unmatched_principals":[]'
_UNDECIDED = (
    b'{"allowed":%b,"limit":null,"remaining":null,"reset_at":null,"retry_after":%b,"current_count":null,"rule_id":"",'
    b'"state":"%b","degraded":false,"matched":%b,"reason":%b,"delay":0.0,"limits":[],%b}'
)
_encode = msgspec.json.Encoder().encode
_told = attrgetter("rule_id", "decision")
"""Returns a `RuleDecision` as a pair."""


class LimitAnswer(msgspec.Struct, frozen=True, gc=False):
    """What is the same in all answers about one limit."""

    admitted: bytes
    """An answer where this limit is the only one and admits it, without what changes."""
    admitted_among: bytes
    """The same where it is the most restrictive of several."""
    admits: bytes
    """An element of `limits` that admits, without what changes."""
    lines: bytes
    """The header, without the two numbers that change."""
    refused: bytes
    """Of a refusal, the same four: what it says of the wait changes as well, and what it says of the state does not."""
    refused_among: bytes
    refuses: bytes
    refused_lines: bytes


class CheckAnswers:
    """Answers checks, always with 200: that a request is refused is what was asked for.

    The header has the X-RateLimit fields, which repeat the answer. The IETF's fields are left out: they would tell the
    client of *this* response to slow down, who is not the one that is limited.

    Args:
        reset_format: of X-RateLimit-Reset, see `ResponseHeaders`.
    """

    def __init__(self, reset_format: str = "epoch") -> None:
        self._writer = HeaderWriter(ResponseHeaders(ietf="off", reset_format=reset_format), as_line)
        self._is_epoch = reset_format == "epoch"
        self._states = {state: as_line("X-RateLimit-State")(state) for state in Pressure} | {Pressure.NORMAL: b""}
        self._prepared = Prepared(self._prepare)

    def response(self, ruling: Ruling, now: int, *, refundable: bool = False, exact: bool = False) -> HttpResponse:
        """Return the response to a request that came at `now`, in microseconds since the epoch."""
        decision = ruling.decision
        if decision is None:
            return HttpResponse(200, self.body(ruling, now, refundable=refundable, exact=exact), (), _JSON_LINE)
        limit, reset_after = self._prepared.of(ruling.rule_id, decision.quota), decision.reset_after_us
        reset_at = -(-(now + reset_after) // SECOND)
        left, reset = decision.remaining, reset_at if self._is_epoch else -(-reset_after // SECOND)
        if decision.degraded or decision.delay_us:
            lines = limit.lines % (left, reset) + b"".join(self._writer.unusual(decision))
        elif decision.allowed:
            lines, state = limit.lines % (left, reset), worst(decision.parts) if decision.parts else decision.state
            if state is not _NORMAL:
                lines += self._states[state]
        else:
            lines = limit.refused_lines % (left, reset, -(-decision.retry_after_us // SECOND) or 1)
        body = self._decided(ruling, decision, limit, reset_at, now, refundable)
        return HttpResponse(200, _with_ruling(body, ruling) if exact else body, (), lines)

    def body(self, ruling: Ruling, now: int, *, refundable: bool = False, exact: bool = False) -> bytes:
        """Return the answer; on request, with what names the cost that was taken, and with the ruling."""
        decision = ruling.decision
        if decision is None:
            body = self._undecided(ruling, now, refundable)
        else:
            limit = self._prepared.of(ruling.rule_id, decision.quota)
            reset_at = -(-(now + decision.reset_after_us) // SECOND)
            body = self._decided(ruling, decision, limit, reset_at, now, refundable)
        return _with_ruling(body, ruling) if exact else body

    def _decided(  # noqa: PLR0917  as many as there are pieces
        self,
        ruling: Ruling,
        decision: Decision,
        limit: LimitAnswer,
        reset_at: int,
        now: int,
        refundable: bool,  # noqa: FBT001  a fact, and private
    ) -> bytes:
        left, parts, more = decision.remaining, decision.parts, _NO_MORE
        used = decision.limit - left
        in_time = _late(decision) if decision.degraded or decision.delay_us else _IN_TIME
        if refundable or ruling.shadow or ruling.unmatched_principals:
            more = self._more(ruling, now, refundable)
        if decision.allowed:
            state = _STATES[decision.state]
            if not parts:
                return limit.admitted % (left, reset_at, used, state, in_time, left, reset_at, state, more)
            limits = self._limits(zip(ruling.rules, parts, strict=True), now)
            return limit.admitted_among % (left, reset_at, used, state, in_time, limits, more)
        wait = -(-decision.retry_after_us // SECOND) or 1
        if not parts:
            return limit.refused % (left, reset_at, wait, used, in_time, left, reset_at, wait, more)
        limits = self._limits(zip(ruling.rules, parts, strict=True), now)
        return limit.refused_among % (left, reset_at, wait, used, in_time, limits, more)

    def _undecided(self, ruling: Ruling, now: int, refundable: bool) -> bytes:  # noqa: FBT001  a fact, and private
        """Return the answer where no limit decided."""
        retry_after = b"0" if ruling.allowed else b"null"
        about = _STATES[ruling.state], _BOOLEANS[ruling.matched], _encode(ruling.reason)
        return _UNDECIDED % (_BOOLEANS[ruling.allowed], retry_after, *about, self._more(ruling, now, refundable))

    def _more(self, ruling: Ruling, now: int, refundable: bool) -> bytes:  # noqa: FBT001  a fact, and private
        """Return the last members, which most answers have nothing to say in."""
        shadow = self._limits(map(_told, ruling.shadow), now) if ruling.shadow else b""
        unmatched = _encode(ruling.unmatched_principals) if ruling.unmatched_principals else b"[]"
        more = b'"shadow":[%b],"unmatched_principals":%b' % (shadow, unmatched)
        return more + b',"charge":' + _encode(charge_of(ruling)) if refundable else more

    def _limits(self, decisions: Iterable[tuple[str, Decision]], now: int) -> bytes:
        """Return what each of several limits says, of which rule."""
        limits, prepared = [], self._prepared.of
        for rule_id, decision in decisions:
            limit, left = prepared(rule_id, decision.quota), decision.remaining
            reset_at = -(-(now + decision.reset_after_us) // SECOND)
            if decision.allowed:
                limits.append(limit.admits % (left, reset_at, _STATES[decision.state]))
            else:
                limits.append(limit.refuses % (left, reset_at, -(-decision.retry_after_us // SECOND) or 1))
        return b",".join(limits)

    def _prepare(self, rule_id: str, quota: Quota) -> LimitAnswer:
        rule, limit = _encode(rule_id).replace(b"%", b"%%"), b"%d" % quota.capacity

        def filled(template: bytes) -> bytes:
            return template.replace(b"<limits>", b"%b").replace(b"<limit>", limit).replace(b"<rule>", rule)

        return LimitAnswer(*map(filled, (*_ADMISSION, *_REFUSAL)))


def _with_ruling(body: bytes, ruling: Ruling) -> bytes:
    """Return an answer with one more member."""
    return b'%b,"exact":%b}' % (body[:-1], write(ruling))


def _late(decision: Decision) -> bytes:
    """Return the members that say why the store did not decide, and when it is the turn of what is in a queue."""
    degraded, delay = decision.degraded, _encode(decision.delay_us / SECOND)
    told = _BOOLEANS[degraded != ""], _encode(degraded), delay
    return b'"degraded":%b,"matched":true,"reason":%b,"delay":%b' % told

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

What is the same in all answers by the same rules is written once; the rest is put between. Times are counted from
before the decision: with a later time, the end of a fixed window would seem to move.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.cache import BoundedCache
from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND
from headgate.engine import Ruling
from headgate.engine.charges import charge_of
from headgate.engine.written import write
from headgate.server.wire.messages import HttpResponse
from headgate.web.headers import MOST_PREPARED, HeaderWriter, Numbers, ResponseHeaders, as_line, worst

JSON = (b"content-type", b"application/json")
_JSON_LINE = b"content-type: application/json\r\n"
_LINES = _JSON_LINE + b"x-ratelimit-limit: %b\r\nx-ratelimit-remaining: %d\r\nx-ratelimit-reset: %b\r\n"
_REFUSED_LINES = _LINES + b"x-ratelimit-state: throttled\r\nretry-after: %b\r\ncache-control: no-store\r\n"
_NORMAL = Pressure.NORMAL
_STATES = {state: state.encode() for state in Pressure}
_DECIDED = (
    b'{"allowed":%b,"limit":%b,"remaining":%d,"reset_at":%b,"retry_after":%b,"current_count":%d,"rule_id":<rule>,'
    b'"state":"%b",%b,"limits":[<limits>],"shadow":[<shadow>],"unmatched_principals":%b%b}'
)
_UNDECIDED = (
    b'{"allowed":%b,"limit":null,"remaining":null,"reset_at":null,"retry_after":%b,"current_count":null,"rule_id":"",'
    b'"state":"%b",%b,"limits":[],"shadow":[<shadow>],"unmatched_principals":%b%b}'
)
_ELEMENT = b'{"rule_id":<rule>,"allowed":%b,"limit":%b,"remaining":%d,"reset_at":%b,"retry_after":%b,"state":"%b"}'
"""What is in angle brackets is filled in once for all answers by the same rules."""
_IN_TIME = b'"degraded":false,"matched":true,"reason":"","delay":0.0'
_encode = msgspec.json.Encoder().encode


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
        self._numbers = Numbers(b"%d".__mod__)
        """Limits and times, of which there are few at a time."""
        self._prepared = BoundedCache[tuple[object, ...], bytes](MOST_PREPARED)
        """Answers without what changes; by the rules of the limits, which of them decides, and the shadow rules."""

    def response(self, ruling: Ruling, now: int, *, refundable: bool = False, exact: bool = False) -> HttpResponse:
        """Return the response to a request that came at `now`, in microseconds since the epoch."""
        body, lines = self._written(ruling, now, refundable)
        return HttpResponse(200, _with_ruling(body, ruling) if exact else body, (), lines)

    def body(self, ruling: Ruling, now: int, *, refundable: bool = False, exact: bool = False) -> bytes:
        """Return the answer; on request, with what names the cost that was taken, and with the ruling."""
        body, _ = self._written(ruling, now, refundable)
        return _with_ruling(body, ruling) if exact else body

    def _written(self, ruling: Ruling, now: int, refundable: bool) -> tuple[bytes, bytes]:  # noqa: FBT001  a fact
        """Return the body of a response, and the lines of its header."""
        decision, numbers = ruling.decision, self._numbers
        key: tuple[object, ...]
        told: tuple[Decision, ...]
        if decision is None:
            key, told = (ruling.rules,), ()
        else:
            key, told = (ruling.rules, decision.index), decision.parts if decision.made_of else (decision,)
        if ruling.shadow:
            told = (*told, *[each.decision for each in ruling.shadow])
            key = (*key, *[each.rule_id for each in ruling.shadow])
        limits: list[Any] = []
        for part in told:
            limit, reset_at = numbers[part.limit], numbers[-(-(now + part.reset_after_us) // SECOND)]
            if part.allowed:
                limits += b"true", limit, part.remaining, reset_at, b"0", _STATES[part.state]
            else:
                wait = numbers[-(-part.retry_after_us // SECOND) or 1]
                limits += b"false", limit, part.remaining, reset_at, wait, b"throttled"
        unmatched = _encode(ruling.unmatched_principals) if ruling.unmatched_principals else b"[]"
        charge = b',"charge":' + _encode(charge_of(ruling)) if refundable else b""
        template = self._prepared.get(key) or self._prepared.keep(key, _template(ruling))
        if decision is None:
            return template % (*_undecided(ruling), *limits, unmatched, charge), _JSON_LINE
        in_time, first = _IN_TIME, 6 * decision.index
        allowed, limit, left, reset_at, wait, state = limits[first : first + 6]
        reset = reset_at if self._is_epoch else numbers[-(-decision.reset_after_us // SECOND)]
        if decision.degraded or decision.delay_us:
            in_time = _late(decision)
            lines = _LINES % (limit, left, reset) + b"".join(self._writer.unusual(decision))
        elif decision.allowed:
            lines = _LINES % (limit, left, reset)
            worst_state = worst(decision.parts) if decision.made_of else decision.state
            if worst_state is not _NORMAL:
                lines += self._states[worst_state]
        else:
            lines = _REFUSED_LINES % (limit, left, reset, wait)
        used = decision.limit - left
        body = template % (allowed, limit, left, reset_at, wait, used, state, in_time, *limits, unmatched, charge)
        return body, lines


def _template(ruling: Ruling) -> bytes:
    """Return the answers by the same rules, without what changes."""
    rules = (*ruling.rules, *[each.rule_id for each in ruling.shadow])
    names = [_encode(rule_id).replace(b"%", b"%%") for rule_id in rules]
    elements, enforced = [_ELEMENT.replace(b"<rule>", name) for name in names], len(ruling.rules)
    limits, shadow = b",".join(elements[:enforced]), b",".join(elements[enforced:])
    template = _UNDECIDED if ruling.decision is None else _DECIDED.replace(b"<rule>", names[ruling.decision.index])
    return template.replace(b"<limits>", limits).replace(b"<shadow>", shadow)


def _undecided(ruling: Ruling) -> tuple[bytes, ...]:
    """Return what an answer begins with where no limit decided."""
    allowed, retry_after = (b"true", b"0") if ruling.allowed else (b"false", b"null")
    about = _encode(ruling.matched), _encode(ruling.reason)
    return allowed, retry_after, _STATES[ruling.state], b'"degraded":false,"matched":%b,"reason":%b,"delay":0.0' % about


def _with_ruling(body: bytes, ruling: Ruling) -> bytes:
    """Return an answer with one more member."""
    return b'%b,"exact":%b}' % (body[:-1], write(ruling))


def _late(decision: Decision) -> bytes:
    """Return the members that say why the store did not decide, and when it is the turn of what is in a queue."""
    degraded, delay = decision.degraded, _encode(decision.delay_us / SECOND)
    told = _encode(degraded != ""), _encode(degraded), delay
    return b'"degraded":%b,"matched":true,"reason":%b,"delay":%b' % told

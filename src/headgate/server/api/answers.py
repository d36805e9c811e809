"""The response to a check, as JSON, and its header fields as the wire sends them.

======================  =====================================================================================
allowed                 whether the request may pass
limit                   the most that can pass at once, under the limit that blocks longest or is the most
                        restrictive one; null, as the next four, where no limit decided
remaining               the units left of it
reset_at                Unix time in seconds, rounded up: when the usage is 0 again without further requests
retry_after             whole seconds, at least 1 on refusal, 0 when allowed; null: waiting does not help
current_count           the usage of the limit
rule_id                 the rule of that limit
state                   normal, warning or throttled
degraded                whether it was decided without the store
matched                 whether any rule matched
reason                  the list and the principal on it, or why it is degraded; else empty
delay                   of a leaky bucket that queues: seconds until it is this request's turn; else 0
limits                  for each limit: rule_id, allowed, limit, remaining, reset_at, retry_after, state
shadow                  the same for the limits of shadow rules, which refuse nothing
unmatched_principals    names of principals that no rule and no list counts by
charge                  on request: the identifier of the cost that was taken, for a refund; empty if none was
refusal                 of a refusal by a rule with its own status or message: both of them, the message perhaps empty
exact                   on request: the ruling to the microsecond; see `headgate.engine.ruling_json`
======================  =====================================================================================

The constant parts of the responses by the same rules are prepared once; the numbers are inserted. Times are counted
from before the decision: with a later time, the end of a fixed window would seem to move.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from headgate.cache import BoundedCache
from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND
from headgate.engine import Ruling
from headgate.engine.charges import ALONE, Seal, charge_of
from headgate.engine.ruling_json import write
from headgate.server.wire.messages import HttpResponse
from headgate.web.headers import MOST_PREPARED, HeaderWriter, ResponseHeaders, as_line, worst

USUAL = 429, ""
"""The status and the message of refusals by rules that have none of their own."""
JSON = (b"content-type", b"application/json")
_JSON_LINE = b"content-type: application/json\r\n"
_LINES = _JSON_LINE + b"x-ratelimit-limit: %d\r\nx-ratelimit-remaining: %d\r\nx-ratelimit-reset: %d\r\n"
_REFUSED_LINES = _LINES + b"x-ratelimit-state: throttled\r\nretry-after: %d\r\ncache-control: no-store\r\n"
_NORMAL = Pressure.NORMAL
_STATES = {state: state.encode() for state in Pressure}
_DECIDED = (
    b'{"allowed":%b,"limit":%d,"remaining":%d,"reset_at":%d,"retry_after":%d,"current_count":%d,"rule_id":%b,'
    b'"state":"%b",%b,"limits":[<limits>],"shadow":[<shadow>],"unmatched_principals":[]}'
)
_UNDECIDED = (
    b'{"allowed":%b,"limit":null,"remaining":null,"reset_at":null,"retry_after":%b,"current_count":null,"rule_id":"",'
    b'"state":"%b",%b,"limits":[],"shadow":[<shadow>],"unmatched_principals":[]}'
)
_ELEMENT = b'{"rule_id":<rule>,"allowed":%b,"limit":%d,"remaining":%d,"reset_at":%d,"retry_after":%d,"state":"%b"}'
"""The parts in angle brackets are filled in once for all responses by the same rules."""
_IN_TIME = b'"degraded":false,"matched":true,"reason":"","delay":0.0'
_encode = msgspec.json.Encoder().encode


class CheckAnswers:
    """Writes the responses to checks. Their status is always 200: the check succeeded, even if it refuses a request.

    The headers have the X-RateLimit fields, which repeat the body, but not those of the IETF: they would make the
    receiver of *this* response slow down, which is not the limited client. `refusal_of` returns the status and the
    message of a rule's refusals.
    """

    def __init__(
        self, reset_format: str = "epoch", refusal_of: Callable[[str], tuple[int, str]] = lambda _: USUAL
    ) -> None:
        self._refusal_of = refusal_of
        self._writer = HeaderWriter(ResponseHeaders(ietf="off", reset_format=reset_format), as_line)
        self._is_epoch = reset_format == "epoch"
        self._states = {state: as_line("X-RateLimit-State")(state) for state in Pressure} | {Pressure.NORMAL: b""}
        self._prepared = BoundedCache[tuple[object, ...], tuple[bytes, list[bytes]]](MOST_PREPARED)
        """Templates of responses, by the rules of the limits and the shadow rules; see `_template`."""

    def response(
        self, ruling: Ruling, now: int, *, refundable: bool = False, exact: bool = False, seal: Seal = ALONE
    ) -> HttpResponse:
        """Return the response to a request that arrived at `now`, in microseconds since the epoch."""
        decision, shown = ruling.decision, ruling.shadow_decisions
        if decision is not None:
            shown = (decision.parts or (decision,)) + shown
        limits: tuple[Any, ...] = ()
        for part in shown:
            allowed, wait = (b"true", 0) if part.allowed else (b"false", -(-part.retry_after_us // SECOND) or 1)
            reset_at, state = -(-(now + part.reset_after_us) // SECOND), _STATES[part.state]
            limits += allowed, part.limit, part.remaining, reset_at, wait, state
        which = ruling.rules, ruling.shadow_rules
        template, names = self._prepared.get(which) or self._prepared.keep(which, _template(ruling))
        if decision is None:
            response = HttpResponse(200, template % (*_undecided(ruling), *limits), (), _JSON_LINE)
        else:
            response = self._decided(decision, names[decision.index], template, limits)
        if refundable or exact or ruling.unmatched_principals:
            response = _with_more(response, ruling, refundable=refundable, exact=exact, seal=seal)
        if not ruling.allowed and (own := self._refusal_of(ruling.rule_id)) != USUAL:
            body = b'%b,"refusal":{"status":%d,"message":%b}}' % (response.body[:-1], own[0], _encode(own[1]))
            return HttpResponse(200, body, response.fields, response.lines)
        return response

    def _decided(self, decision: Decision, name: bytes, template: bytes, limits: tuple[Any, ...]) -> HttpResponse:
        """Return the response to a request that limits decided; `limits` are the members of its elements."""
        place = 6 * decision.index
        allowed, limit, left, reset_at, wait, state = limits[place : place + 6]
        in_time = _IN_TIME
        reset = reset_at if self._is_epoch else -(-decision.reset_after_us // SECOND)
        refused = not decision.allowed
        lines = _REFUSED_LINES % (limit, left, reset, wait) if refused else _LINES % (limit, left, reset)
        if decision.degraded or decision.delay_us:
            in_time = _late(decision)
            lines = _LINES % (limit, left, reset) + b"".join(self._writer.unusual(decision))
        elif not refused:
            worst_state = worst(decision.parts) if decision.parts else decision.state
            if worst_state is not _NORMAL:
                lines += self._states[worst_state]
        about = decision.limit - left, name, state, in_time
        return HttpResponse(200, template % (allowed, limit, left, reset_at, wait, *about, *limits), (), lines)


def _template(ruling: Ruling) -> tuple[bytes, list[bytes]]:
    """Return the template of the responses by the same rules, and the encoded names of the rules."""
    rules = [_encode(rule_id) for rule_id in (*ruling.rules, *ruling.shadow_rules)]
    elements = [_ELEMENT.replace(b"<rule>", rule_id.replace(b"%", b"%%")) for rule_id in rules]
    enforced = len(ruling.rules)
    limits, shadow = b",".join(elements[:enforced]), b",".join(elements[enforced:])
    template = _UNDECIDED if ruling.decision is None else _DECIDED
    return template.replace(b"<limits>", limits).replace(b"<shadow>", shadow), rules


def _undecided(ruling: Ruling) -> tuple[bytes, ...]:
    """Return the first members of a response that no limit decided."""
    allowed, retry_after = (b"true", b"0") if ruling.allowed else (b"false", b"null")
    about = _encode(ruling.matched), _encode(ruling.reason)
    return allowed, retry_after, _STATES[ruling.state], b'"degraded":false,"matched":%b,"reason":%b,"delay":0.0' % about


def _with_more(response: HttpResponse, ruling: Ruling, *, refundable: bool, exact: bool, seal: Seal) -> HttpResponse:
    """Add the members that few responses have."""
    body = response.body
    if ruling.unmatched_principals:
        body = b"%b%b}" % (body[: -len(b"[]}")], _encode(ruling.unmatched_principals))
    if refundable:
        body = b'%b,"charge":%b}' % (body[:-1], _encode(charge_of(ruling, seal)))
    if exact:
        body = b'%b,"exact":%b}' % (body[:-1], write(ruling, seal))
    return HttpResponse(response.status, body, response.fields, response.lines)


def _late(decision: Decision) -> bytes:
    """Return the members of a decision that is degraded, or waits in a queue."""
    degraded, delay = decision.degraded, _encode(decision.delay_us / SECOND)
    members = _encode(degraded != ""), _encode(degraded), delay
    return b'"degraded":%b,"matched":true,"reason":%b,"delay":%b' % members

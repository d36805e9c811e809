"""The answer to a check, as JSON, and its header fields as the wire sends them."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND, Quota
from headgate.engine import RuleDecision, Ruling
from headgate.engine.charges import charge_of
from headgate.policy.request import PRINCIPALS
from headgate.server.wire.messages import Fields, HttpResponse
from headgate.web.headers import ResponseHeaders, raw

_JSON = (b"content-type", b"application/json")
_NORMAL = Pressure.NORMAL
_REMEMBERED = 4096


class LimitAnswer(msgspec.Struct, frozen=True, gc=False):
    """What one limit says."""

    rule_id: str
    allowed: bool
    limit: int
    remaining: int
    reset_at: int
    retry_after: int
    state: Pressure


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The answer to a check. What is None has no meaning here: no limit decided."""

    allowed: bool
    limit: int | None
    """The most that can pass at once, under the limit that blocks longest or is the most restrictive one."""
    remaining: int | None
    reset_at: int | None
    """Unix time in seconds, rounded up: when nothing counts as used any more if nobody asks."""
    retry_after: int | None
    """Whole seconds, at least 1 on refusal, 0 when allowed; None: waiting does not help, a list refuses."""
    current_count: int | None
    """What is taken of the limit now."""
    rule_id: str
    state: Pressure
    degraded: bool
    """Whether the store did not decide this."""
    matched: bool
    """Whether any rule matched."""
    reason: str
    """Why: who is on which list, or why it is degraded; else empty."""
    delay: float
    """A leaky bucket that queues: seconds until it is this request's turn; else 0."""
    limits: tuple[LimitAnswer, ...]
    shadow: tuple[LimitAnswer, ...] = ()
    """What the limits of shadow rules say, which refuse nothing."""
    unmatched_principals: tuple[str, ...] = ()
    """Names of principals that no rule and no list knows: nothing limits by them."""
    charge: str | msgspec.UnsetType = msgspec.UNSET
    """If that was asked for: what names the cost that was taken, for a refund. Empty if nothing was."""


encode = msgspec.json.Encoder().encode


def answer_of(ruling: Ruling, now: int) -> Answer:
    """Return what is answered to a check that began at `now`, in microseconds since the epoch.

    It is the time from before the decision: with a later one, the end of a fixed window would seem to move.
    """
    decision = ruling.decision
    shadow = _limits(ruling.shadow, now) if ruling.shadow else ()
    if decision is None:
        return _unlimited(ruling, shadow)
    reset_at = -(-(now + decision.reset_after_us) // SECOND)
    retry_after = 0 if decision.allowed else -(-decision.retry_after_us // SECOND) or 1
    limit, remaining, state, rule_id = decision.limit, decision.remaining, decision.state, ruling.rule_id
    if decision.parts:
        limits = _limits(ruling.limits, now)
    else:
        limits = (LimitAnswer(rule_id, decision.allowed, limit, remaining, reset_at, retry_after, state),)
    return Answer(
        decision.allowed,
        limit,
        remaining,
        reset_at,
        retry_after,
        limit - remaining,
        rule_id,
        state,
        decision.degraded != "",
        True,
        decision.degraded,
        decision.delay_us / SECOND,
        limits,
        shadow,
        ruling.unmatched_principals,
    )


def _unlimited(ruling: Ruling, shadow: tuple[LimitAnswer, ...]) -> Answer:
    retry_after = 0 if ruling.allowed else None
    facts = False, ruling.matched, ruling.reason, 0.0, (), shadow, ruling.unmatched_principals
    return Answer(ruling.allowed, None, None, None, retry_after, None, "", ruling.state, *facts)


def _limits(rulings: tuple[RuleDecision, ...], now: int) -> tuple[LimitAnswer, ...]:
    return tuple([_limit(each.rule_id, each.decision, now) for each in rulings])


def _limit(rule_id: str, decision: Decision, now: int) -> LimitAnswer:
    return LimitAnswer(
        rule_id,
        decision.allowed,
        decision.limit,
        decision.remaining,
        -(-(now + decision.reset_after_us) // SECOND),
        0 if decision.allowed else -(-decision.retry_after_us // SECOND) or 1,
        decision.state,
    )


def fields_of(ruling: Ruling, headers: ResponseHeaders, now: int) -> Fields:
    """Return the header fields of a ruling on a request that came at `now`; none where no limit decided."""
    if ruling.decision is None:
        return ()
    names = ruling.rules
    return tuple(raw(headers.of(ruling.decision, names, now=now)))


def charged(ruling: Ruling, now: int) -> Answer:
    """Return the same, with what names the cost that was taken."""
    return msgspec.structs.replace(answer_of(ruling, now), charge=charge_of(ruling))


class Answers:
    """Makes responses of rulings, always 200: that a request is refused is what was asked for.

    What is usual, the answer of one limit, is the same but for a few numbers each time: it is kept as a template, for
    each rule, quota and state. All else is written out.

    Args:
        headers: which header fields, in which version.
    """

    def __init__(self, headers: ResponseHeaders) -> None:
        self._headers = headers
        self._known: dict[tuple[str, int, bool, bool, tuple[str, ...]], _Template] = {}
        """By rule, the identity of the quota (tiers and overrides give a rule several), the state, and principals that
        no rule knows."""
        self._has_templates = headers.legacy and headers.ietf == "off"
        self._is_epoch = headers.reset_format == "epoch"

    def response(self, ruling: Ruling, now: int) -> HttpResponse:
        """Return the response to a request that came at `now`, in microseconds since the epoch."""
        decision = ruling.decision
        if (
            decision is None
            or decision.parts
            or decision.degraded
            or decision.delay_us
            or ruling.shadow
            or not PRINCIPALS.issuperset(ruling.unmatched_principals)
            or not self._has_templates
        ):
            return self.written_out(ruling, now)
        allowed, state = decision.allowed, decision.state
        unmatched = ruling.unmatched_principals
        template = self._known.get((ruling.rule_id, id(decision.quota), allowed, state is _NORMAL, unmatched))
        if template is None or template.state is not state:
            template = self._remember(ruling.rule_id, decision, unmatched)
        remaining, after_us = decision.remaining, decision.reset_after_us
        reset_at = -(-(now + after_us) // SECOND)
        reset = reset_at if self._is_epoch else -(-after_us // SECOND)
        told = (b"x-ratelimit-remaining", b"%d" % remaining), (b"x-ratelimit-reset", b"%d" % reset)
        count = decision.limit - remaining
        if allowed:
            body = template.body % (remaining, reset_at, count, remaining, reset_at)
            return HttpResponse(200, body, (*template.fields, *told))
        wait = -(-decision.retry_after_us // SECOND) or 1
        body = template.body % (remaining, reset_at, wait, count, remaining, reset_at, wait)
        return HttpResponse(200, body, (*template.fields, *told, (b"retry-after", b"%d" % wait)))

    def written_out(self, ruling: Ruling, now: int, *, refundable: bool = False) -> HttpResponse:
        """Return the same without a template; on request, with what names the cost that was taken."""
        answer = charged(ruling, now) if refundable else answer_of(ruling, now)
        return HttpResponse(200, encode(answer), (_JSON, *fields_of(ruling, self._headers, now)))

    def _remember(self, rule_id: str, decision: Decision, unmatched: tuple[str, ...]) -> _Template:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        allowed, limit, state = decision.allowed, decision.limit, decision.state
        number: Any = msgspec.Raw(b"%d")  # no id of a rule has a % in it
        wait = 0 if allowed else number
        facts = rule_id, state, False, True, "", 0.0
        status = LimitAnswer(rule_id, allowed, limit, number, number, wait, state)
        body = encode(Answer(allowed, limit, number, number, wait, number, *facts, (status,), (), unmatched))
        fields: Fields = (_JSON, (b"x-ratelimit-limit", b"%d" % limit))
        if state is not _NORMAL:
            fields = (*fields, (b"x-ratelimit-state", state.encode()))
        if not allowed:
            fields = (*fields, (b"cache-control", b"no-store"))
        template = _Template(decision.quota, state, body, fields)
        self._known[rule_id, id(decision.quota), allowed, state is _NORMAL, unmatched] = template
        return template


class _Template(msgspec.Struct, frozen=True, gc=False):
    """An answer of one limit, without its numbers."""

    quota: Quota
    """Kept, so that no other gets its identity."""
    state: Pressure
    body: bytes
    fields: Fields

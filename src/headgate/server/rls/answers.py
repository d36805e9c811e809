"""The responses to Envoy, by rules and by the descriptor trees of envoyproxy/ratelimit.

A response is assembled from pieces. The constant ones are encoded once for each limit (`LimitPieces`); the others are
the statuses, the header fields, the problem document of a refusal, and the metadata. No response is cached: a lookup
takes as long as writing one, and among many users hardly any two get the same.

A refusal because the store is unavailable, in the mode ``deny``, is over the limit as well: by default, Envoy lets a
request pass at an error. Only the problem document shows the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat

import msgspec

from headgate.cache import Prepared
from headgate.core.decision import Decision
from headgate.core.plan import combine
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND, Quota
from headgate.engine import Ruling
from headgate.engine.descriptors import Answered
from headgate.policy.envoy import EnvoyAnswer, Match, Status, passed_metadata
from headgate.policy.envoy.answering import Code
from headgate.policy.envoy.request import MAX_UINT32, Unit
from headgate.policy.selection import Verdict
from headgate.protobuf import entry, varint
from headgate.server.rls import codec
from headgate.server.rls.codec import OK, OVER_LIMIT
from headgate.web import problem
from headgate.web.headers import (
    MOST_PREPARED,
    HeaderWriter,
    LimitFields,
    ResponseHeaders,
    most_shown,
    policy_names,
    worst,
)
from headgate.web.problem import CONTENT_TYPE, NOT_ADMITTED, LimitTexts, of_status

UNNAMED = "default"
"""The name in header fields of a limit without a name, or with one that is invalid there."""
TOO_MANY_REQUESTS = 429
_HOPELESS = "The limit of this request is 0, or the request is more than the limit could ever admit."
_LONGEST_NAME = 64
_CONTENT_TYPE = codec.header("content-type")(CONTENT_TYPE)
_NO_STORE = codec.header("Cache-Control")("no-store")
_STATES = {state: entry("state", str(state)) for state in Pressure}
_PASSES, _IS_OVER, _NORMAL, _THROTTLED = Code.OK, Code.OVER_LIMIT, Pressure.NORMAL, Pressure.THROTTLED
"""Module globals: the lookup of an enum's member is too slow here."""
_OK_STATUS, _OVER_STATUS = (codec.status(codec.status_content(code)) for code in (Code.OK, Code.OVER_LIMIT))


class RlsAnswer(msgspec.Struct, frozen=True, gc=False):
    """A `RateLimitResponse`, and whether it lets the request pass."""

    allowed: bool
    raw: bytes


class LimitPieces(msgspec.Struct, frozen=True, gc=False):
    """The constant parts of all responses about one limit."""

    ok: bytes
    """The beginning of the status of a descriptor that passes."""
    over: bytes
    """The beginning of the status of one that does not."""
    name: str
    """Of its policy."""
    fields: Sequence[LimitFields[bytes]]
    """Of the header; none without header fields."""
    texts: LimitTexts
    """Of the problem document."""
    rule_id: bytes
    """The entry of the metadata; empty for a limit without a name."""
    metadata: Mapping[Pressure, bytes]
    """The complete metadata of responses with only the limit and its state."""


class _Answers:
    """Assembles responses, by rules or trees.

    Args:
        headers: which header fields a response has; None for none. Envoy may add its own.
        per_unit: returns the number of a quota that is sent as requests per unit: the capacity by rules, the limit by
            trees, whose files have it.
        about: returns metadata with the entry that names a limit, and its state.
    """

    def __init__(
        self,
        headers: ResponseHeaders | None,
        per_unit: Callable[[Quota], int],
        about: Callable[[bytes, Pressure], bytes],
    ) -> None:
        self._writer = None if headers is None else HeaderWriter(headers, codec.header)
        self._per_unit, self._about = per_unit, about
        self._prepared = Prepared(self._prepare, MOST_PREPARED)

    def _prepare(self, name: str, quota: Quota) -> LimitPieces:
        number, unit = min(self._per_unit(quota), MAX_UINT32), nearest_unit(quota.window_us)
        policy, current_limit = _policy_name(name), codec.current_limit(number, unit, name)
        rule_id = entry("rule_id", policy) if policy != UNNAMED else b""
        return LimitPieces(
            codec.status_content(Code.OK, current_limit),
            codec.status_content(Code.OVER_LIMIT, current_limit),
            policy,
            () if self._writer is None else (self._writer.prepare(policy, quota),),
            problem.prepare(policy, quota),
            rule_id,
            {state: codec.metadata(self._about(rule_id, state)) for state in Pressure},
        )

    def _decided(  # noqa: PLR0917  each of them is part of every answer
        self,
        allowed: bool,  # noqa: FBT001  as is the first field of the answer
        statuses: bytes,
        decision: Decision,
        names: Sequence[str],
        limit: LimitPieces,
        metadata: bytes,
        now: int,
        *,
        is_ours: bool = False,
        message: str = "",
    ) -> RlsAnswer:
        """Return the response to a request that limits decided.

        `decision` is that of all limits, whose names are `names`; `limit` is the one that it describes. `is_ours`: a
        refusal is a failure of ours. `message` replaces the usual message of a refusal; its status is up to Envoy.
        """
        reset_at = -(-(now + decision.reset_after_us) // SECOND)
        limits: Sequence[LimitPieces] = (limit,)
        fields = limit.fields
        if decision.parts:
            decision, limits = most_shown(decision, self._limits(names, decision.parts))
            fields = [field for each in limits for field in each.fields]
        pieces = [OK if allowed else OVER_LIMIT, statuses]
        if self._writer is not None:
            pieces += self._writer.write(decision, fields, reset_at)
        if not allowed:
            write = problem.reduced if is_ours else problem.exceeded
            document = write(decision, [each.texts for each in limits])
            if message and not is_ours:
                document = problem.reworded(document, TOO_MANY_REQUESTS, message)
            pieces += _CONTENT_TYPE, codec.BODY, varint(len(document)), document
        pieces.append(metadata)
        return RlsAnswer(allowed, b"".join(pieces))

    def _limits(self, names: Sequence[str], parts: Sequence[Decision]) -> Sequence[LimitPieces]:
        """Return the pieces of several limits; no two have the same name."""
        distinct = policy_names(list(map(_policy_name, names)), len(parts))
        return list(map(self._prepared.of, distinct, [part.quota for part in parts]))

    def _refused(self, statuses: bytes, detail: str, metadata: bytes) -> RlsAnswer:
        """Return a refusal that was not decided by a limit, or that waiting would not change."""
        document = of_status(TOO_MANY_REQUESTS, detail).encode()
        pieces = OVER_LIMIT, statuses, _NO_STORE, _CONTENT_TYPE, codec.BODY, varint(len(document)), document, metadata
        return RlsAnswer(False, b"".join(pieces))


class RuleAnswers(_Answers):
    """Responses by rules.

    `denies` returns whether a rule denies everything while the store is unavailable; `message_of` the message of its
    refusals, empty for the usual one.
    """

    def __init__(
        self,
        headers: ResponseHeaders | None,
        denies: Callable[[str], bool],
        message_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        super().__init__(headers, lambda quota: quota.capacity, lambda rule_id, state: rule_id + _STATES[state])
        self._denies, self._message_of = denies, message_of

    def of(self, rulings: Sequence[Ruling], now: int, refunds: Sequence[bool] = ()) -> RlsAnswer:
        """Return the response to a request that arrived at `now`, in microseconds since the epoch.

        There is a ruling for each descriptor; `refunds` marks those of refunds, which are never refused.
        """
        statuses = b"".join(map(self._status, rulings, refunds or repeat(False)))
        if refunds:
            rulings = [ruling for ruling, refund in zip(rulings, refunds, strict=True) if not refund or ruling.allowed]
        decision, names = _joined(rulings)
        more, hopeless = b"", None
        for ruling in rulings:
            if ruling.shadow_rules and not more:
                more = _shadow_denied(rulings)
            if ruling.reason and not ruling.allowed and hopeless is None:
                hopeless = ruling
        if hopeless is not None:  # on a list, or more than could ever pass: there is no time to come back at
            more += _STATES[hopeless.state] + entry("reason", hopeless.reason)
            detail = NOT_ADMITTED if hopeless.verdict is Verdict.DENIED else hopeless.reason
            return self._refused(statuses, detail, codec.metadata(more))
        if decision is None:
            return RlsAnswer(True, OK + statuses + codec.metadata(more + _STATES[_NORMAL]))
        rule_id, allowed = names[decision.index], decision.allowed
        limit = self._prepared.of(rule_id, decision.quota)
        metadata = limit.metadata[decision.state]
        if more or decision.degraded or decision.delay_us:
            more += limit.rule_id + _STATES[decision.state]
            if decision.degraded:
                more += entry("degraded", decision.degraded)
            if decision.delay_us:
                more += entry("delay", decision.delay_us / SECOND)
            metadata = codec.metadata(more)
        is_ours = not allowed and decision.degraded != "" and self._denies(rule_id)
        message = "" if allowed else self._message_of(rule_id)
        return self._decided(allowed, statuses, decision, names, limit, metadata, now, is_ours=is_ours, message=message)

    def unacceptable(self, problems: Sequence[str]) -> RlsAnswer:
        """Return the refusal of a request that rules cannot match; each descriptor has a problem, perhaps empty."""
        statuses = b"".join([_OVER_STATUS if each else _OK_STATUS for each in problems])
        detail = next(each for each in problems if each)
        about = _STATES[Pressure.THROTTLED] + entry("reason", detail)
        return self._refused(statuses, detail, codec.metadata(about))

    def _status(self, ruling: Ruling, refund: bool = False) -> bytes:  # noqa: FBT001, FBT002  one of a pair
        decision = ruling.decision
        if decision is None:
            return _OK_STATUS if ruling.allowed or refund else _OVER_STATUS
        limit = self._prepared.of(ruling.rule_id, decision.quota)
        if decision.allowed or refund:
            remaining = decision.remaining
            seconds = -(-decision.reset_after_us // SECOND)
            return codec.status(limit.ok, remaining if remaining < MAX_UINT32 else MAX_UINT32, seconds)  # noqa: FURB136  min() is a call
        return codec.status(limit.over, 0, -(-decision.retry_after_us // SECOND) or 1)


class TreeAnswers(_Answers):
    """Responses by descriptor trees, which may include the metadata of descriptors that passed.

    `denies`: everything is denied while the store is unavailable.
    """

    def __init__(self, headers: ResponseHeaders | None, *, denies: bool = False, with_metadata: bool = False) -> None:
        super().__init__(headers, lambda quota: quota.limit, lambda rule_id, state: _STATES[state] + rule_id)
        self._denies, self._with_metadata = denies, with_metadata

    def of(self, answered: Answered) -> tuple[EnvoyAnswer, RlsAnswer]:
        """Return the decision in Envoy's terms, and the response."""
        answer = answered.answer
        return answer, self._written(answered, answer)

    def _written(self, answered: Answered, answer: EnvoyAnswer) -> RlsAnswer:
        now, matches, given = answered.at_us, answered.matching.matches, answered.decisions
        allowed, statuses = answer.code is _PASSES, b""
        decisions: list[Decision] = []
        names: list[str] = []
        hopeless: str | None = None
        has_refused = is_over = False
        for place, status in enumerate(answer.statuses):
            match, decision = matches[place], given[place]
            statuses += self._status(status)
            is_over = is_over or status.over
            if decision is None or match.rule is None:
                if hopeless is None and status.code is _IS_OVER:  # no limit was checked, and no wait would help
                    hopeless = match.name
            elif (decision.allowed or not match.refund) and not match.rule.shadow_mode:
                decisions += decision.parts or (decision,)
                names += match.rule.names
                has_refused = has_refused or not decision.allowed
        shadowed = _shadowed(matches, answer) if is_over else ()
        has_metadata = self._with_metadata and any(match.metadata for match in matches)
        state = _THROTTLED if not allowed else worst(decisions)
        if not allowed and hopeless is not None:
            detail = next(iter(answered.matching.problems), _HOPELESS)
            rule_id = entry("rule_id", hopeless) if hopeless else b""
            metadata = self._metadata(answered, answer, state, rule_id, shadowed, has_metadata=has_metadata)
            return self._refused(statuses, detail, metadata)
        if allowed and has_refused:  # some quotas are exceeded, or it is shadow mode
            pairs = [(each, name) for each, name in zip(decisions, names, strict=True) if each.allowed]
            decisions, names = [each for each, _ in pairs], [name for _, name in pairs]
        if not decisions:
            metadata = self._metadata(answered, answer, state, b"", shadowed, has_metadata=has_metadata)
            return RlsAnswer(True, OK + statuses + metadata)
        decision = combine(decisions)
        limit = self._prepared.of(names[decision.index], decision.quota)
        metadata = (
            self._metadata(answered, answer, state, limit.rule_id, shadowed, has_metadata=has_metadata)
            if shadowed or has_metadata or answer.degraded
            else limit.metadata[state]
        )
        is_ours = decision.degraded != "" and self._denies
        return self._decided(allowed, statuses, decision, names, limit, metadata, now, is_ours=is_ours)

    def _status(self, status: Status) -> bytes:
        shown, content = status.current_limit, b""
        seconds: int | None = status.duration_until_reset
        if shown is not None and shown.quota is not None:
            limit = self._prepared.of(shown.name, shown.quota)
            content = limit.ok if status.code is _PASSES else limit.over
        elif shown is not None:  # a ban
            limited = codec.current_limit(shown.requests_per_unit, shown.nearest_unit, shown.name)
            content = codec.status_content(status.code, limited)
        else:
            content, seconds = codec.status_content(status.code), seconds or None
        return codec.status(content, status.limit_remaining, seconds)

    def _metadata(
        self,
        answered: Answered,
        answer: EnvoyAnswer,
        state: Pressure,
        rule_id: bytes,
        shadowed: Sequence[str],
        *,
        has_metadata: bool,
    ) -> bytes:
        """Return the metadata: our own, and that of the descriptors that passed."""
        ours = _STATES[state] + rule_id
        if shadowed:
            ours += entry("shadow_denied", shadowed)
        if answer.degraded:
            ours += entry("degraded", answer.degraded)
        given = passed_metadata(answered.matching, answer) if has_metadata else None
        return codec.metadata(ours, entry("metadata", given) if given else b"")


def _shadowed(matches: Sequence[Match], answer: EnvoyAnswer) -> list[str]:
    """Return the descriptors that are over a limit which does not refuse."""
    pairs = zip(matches, answer.statuses, strict=True)
    return [".".join(match.stat) for match, status in pairs if status.over and (answer.shadowed or match.shadow_mode)]


def _policy_name(name: str) -> str:
    return name if 0 < len(name) <= _LONGEST_NAME and name.isascii() and name.isprintable() else UNNAMED


def nearest_unit(window_us: int) -> Unit:
    """Return the unit that is closest to a window in proportion: the protocol has no others."""
    seconds = max(window_us / SECOND, 1e-6)
    return min(Unit, key=lambda unit: max(unit.seconds, seconds) / min(unit.seconds, seconds))


def _shadow_denied(rulings: Sequence[Ruling]) -> bytes:
    """Return the metadata entry of the shadow rules that would have refused, if any."""
    names = [name for ruling in rulings for name in ruling.shadow_denied]
    return entry("shadow_denied", list(dict.fromkeys(names))) if names else b""


def _joined(rulings: Sequence[Ruling]) -> tuple[Decision | None, Sequence[str]]:
    """Return the decision of all limits together, and the rule of each, without repeated limits."""
    if len(rulings) == 1:
        ruling = rulings[0]
        decision = ruling.decision
        if decision is None or not decision.parts:
            return decision, (ruling.rule_id,)
        return decision, ruling.rules
    found: dict[int, tuple[Decision, str]] = {}
    for ruling in rulings:
        decision = ruling.decision
        if decision is not None and not decision.parts:
            found[id(decision)] = decision, ruling.rule_id
        elif decision is not None:
            for part, name in zip(decision.parts, ruling.rules, strict=True):
                found[id(part)] = part, name
    if not found:
        return None, ()
    parts, names = zip(*found.values(), strict=True)
    return combine(parts), names

"""Answers by the descriptor trees of envoyproxy/ratelimit."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND
from headgate.engine.descriptors import Answered
from headgate.policy.envoy import Match, Outcome, RateLimit, Status, passed_metadata
from headgate.policy.envoy.answering import Code
from headgate.server.rls import encoding
from headgate.server.rls.answers import Answers, Options, joint
from headgate.server.rls.usual import Usual, UsualAnswers

UNNAMED = "default"
_REFUSED = "The limit of this request is 0, or the request is more than the limit could ever admit."
_LONGEST_NAME = 64
_REMEMBERED = 4096


class MatchedAnswers:
    """Writes answers to what descriptor trees decided.

    Args:
        options: what is told.
        denies: whether everything is denied while the store is away.
    """

    def __init__(self, options: Options, *, denies: bool = False) -> None:
        self._answers, self._options, self._denies = Answers(options), options, denies
        self._usual = UsualAnswers(options)
        self._known: dict[int, Usual] = {}

    def of(self, answered: Answered, now: int) -> bytes:
        """Return the answer; `now` is from before the decision, in microseconds since the epoch."""
        answer = answered.answer
        if len(answer.statuses) == 1:
            decision, (status,), (match,) = answered.decisions[0], answer.statuses, answered.matching.matches
            if (
                decision is not None
                and self._usual.fits(decision)
                and not (match.refund or match.shadow_mode)
                and status.duration_until_reset == -(-decision.reset_after_us // SECOND)
            ):
                usual = self._known.get(id(match.rule)) or self._remember(answered, decision)
                return self._usual.of(usual, decision, now)
        return self._any(answered, now)

    def _any(self, answered: Answered, now: int) -> bytes:
        answer = answered.answer
        statuses = b"".join(map(_status, answer.statuses))
        decisions, names = _enforced(answered)
        is_refused = any(not each.allowed for each in decisions)
        hopeless = [match.name for match, status in _pairs(answered) if _is_hopeless(match, status)]
        if answer.code is Code.OVER_LIMIT and hopeless:
            problem = next(iter(answered.matching.problems), _REFUSED)
            return self._answers.refused(statuses, problem, self._fields(answered, hopeless[0]))
        if answer.code is Code.OK and is_refused:  # quotas that are exceeded, but not all of them; or shadow mode
            pairs = [(each, name) for each, name in zip(decisions, names, strict=True) if each.allowed]
            decisions, names = [each for each, _ in pairs], [name for _, name in pairs]
        if not decisions:
            return self._answers.plain(statuses, self._fields(answered, ""))
        decision = joint(decisions)
        rule = names[decision.index]
        fields = self._fields(answered, rule if rule != UNNAMED else "")
        is_ours = decision.degraded != "" and self._denies
        return self._answers.decided(answer.code, statuses, decision, names, fields=fields, now=now, is_ours=is_ours)

    def _remember(self, answered: Answered, decision: Decision) -> Usual:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        (match,), (status,) = answered.matching.matches, answered.answer.statuses
        name = _policy_name(match.name)
        metadata = self._answers.metadata(self._fields(answered, name if name != UNNAMED else ""))
        limit = b"" if status.current_limit is None else _current_limit(status.current_limit)
        usual = self._known[id(match.rule)] = self._usual.made(match.rule, name, decision, limit, metadata)
        return usual

    def _fields(self, answered: Answered, rule: str) -> dict[str, Any]:
        """Return the metadata of the descriptors that passed, and over it our own."""
        if not self._options.metadata:
            return {}
        answer = answered.answer
        fields = passed_metadata(answered.matching, answer)
        fields["state"] = str(Pressure.THROTTLED if answer.code is Code.OVER_LIMIT else _worst(answered))
        if rule:
            fields["rule_id"] = rule
        over = [match for match, status in _pairs(answered) if status.over]
        shadowed = [".".join(match.stat) for match in over if match.shadow_mode or answer.shadowed]
        if shadowed:
            fields["shadow_denied"] = shadowed
        if answer.degraded:
            fields["degraded"] = answer.degraded
        return fields


def _pairs(answered: Answered) -> list[tuple[Match, Status]]:
    return list(zip(answered.matching.matches, answered.answer.statuses, strict=True))


def _is_hopeless(match: Match, status: Status) -> bool:
    """Whether a descriptor is refused however long one waits: no limit was asked."""
    return status.code is Code.OVER_LIMIT and match.outcome is not Outcome.LIMITED


def _enforced(answered: Answered) -> tuple[list[Decision], list[str]]:
    """Return what each limit says that may refuse, and what to call it."""
    decisions: list[Decision] = []
    names: list[str] = []
    for match, decision in zip(answered.matching.matches, answered.decisions, strict=True):
        if decision is None or match.rule is None or match.shadow_mode or match.outcome is not Outcome.LIMITED:
            continue
        if match.refund and not decision.allowed:
            continue
        decisions += decision.limits
        names += [_policy_name(limit.name) for limit in match.rule.limits]
    return decisions, names


def _worst(answered: Answered) -> Pressure:
    """Return the worst state of the limits that may refuse."""
    states = {decision.state for decision in _enforced(answered)[0]}
    return next((state for state in (Pressure.THROTTLED, Pressure.WARNING) if state in states), Pressure.NORMAL)


@lru_cache(maxsize=_REMEMBERED)
def _policy_name(name: str) -> str:
    """Return a name as header fields can have it."""
    return name if 0 < len(name) <= _LONGEST_NAME and name.isascii() and name.isprintable() else UNNAMED


def _status(status: Status) -> bytes:
    limit = b"" if status.current_limit is None else _current_limit(status.current_limit)
    return encoding.status(status.code, limit, status.limit_remaining, status.duration_until_reset)


@lru_cache(maxsize=_REMEMBERED)
def _limit_field(requests_per_unit: int, unit: int, name: str) -> bytes:
    return encoding.current_limit(requests_per_unit, unit, name)


def _current_limit(limit: RateLimit) -> bytes:
    return _limit_field(limit.requests_per_unit, limit.nearest_unit, limit.name)

"""Answers by Headgate's rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND
from headgate.engine import RuleDecision, Ruling
from headgate.policy.envoy.answering import Code
from headgate.policy.envoy.request import MAX_UINT32, Unit
from headgate.policy.selection import Verdict
from headgate.server.rls import encoding
from headgate.server.rls.answers import Answers, Options, joint
from headgate.server.rls.usual import Usual, UsualAnswers
from headgate.web.problem import NOT_ADMITTED

_NORMAL = Pressure.NORMAL
_REMEMBERED = 4096


_OK_STATUS = encoding.status(Code.OK)
_DENIED_STATUS = encoding.status(Code.OVER_LIMIT)


class RuledAnswers:
    """Writes answers to what rules decided.

    Args:
        options: what is told.
        denies: says of a rule, by its id, whether it denies everything while the store is away.
    """

    def __init__(self, options: Options, denies: Callable[[str], bool]) -> None:
        self._answers, self._denies = Answers(options), denies
        self._usual = UsualAnswers(options)
        self._known: dict[tuple[str, int], Usual] = {}

    def one(self, ruling: Ruling, now: int) -> bytes:
        """Return the answer to a request of one descriptor that came at `now`, in microseconds since the epoch."""
        decision = ruling.decision
        if decision is None or ruling.shadow or not self._usual.fits(decision):
            return self.several((ruling,), (False,), now)
        usual = self._known.get((ruling.rule_id, id(decision.quota)))
        if usual is None:
            usual = self._remember(ruling.rule_id, decision)
        return self._usual.of(usual, decision, now)

    def several(self, rulings: Sequence[Ruling], refunds: Sequence[bool], now: int) -> bytes:
        """Return the answer to a request of any number of descriptors; a refund is never refused."""
        statuses = b"".join([_status(ruling, refund) for ruling, refund in zip(rulings, refunds, strict=True)])
        asked = [ruling for ruling, refund in zip(rulings, refunds, strict=True) if not refund or ruling.allowed]
        limits = _told_apart(asked)
        fields: dict[str, Any] = {}
        shadowed = [each.rule_id for ruling in asked for each in ruling.shadow if not each.decision.allowed]
        if shadowed:
            fields["shadow_denied"] = list(dict.fromkeys(shadowed))
        hopeless = next((ruling for ruling in asked if not ruling.allowed and ruling.reason), None)
        if hopeless is not None:  # on a list, or more than could ever pass: there is no time to come back at
            fields |= {"state": str(hopeless.state), "reason": hopeless.reason}
            detail = NOT_ADMITTED if hopeless.verdict is Verdict.DENIED else hopeless.reason
            return self._answers.refused(statuses, detail, fields)
        if not limits:
            return self._answers.plain(statuses, fields | {"state": str(_NORMAL)})
        decision, rule_id = _joined(asked, limits)
        fields |= {"rule_id": rule_id, "state": str(decision.state)}
        if decision.degraded:
            fields["degraded"] = decision.degraded
        if decision.delay_us:
            fields["delay"] = decision.delay_us / SECOND
        code = Code.OK if decision.allowed else Code.OVER_LIMIT
        is_ours = code is Code.OVER_LIMIT and decision.degraded != "" and self._denies(rule_id)
        names = [each.rule_id for each in limits]
        return self._answers.decided(code, statuses, decision, names, fields=fields, now=now, is_ours=is_ours)

    def unacceptable(self, problems: Sequence[str]) -> bytes:
        """Return the refusal of what cannot be matched with rules: for each descriptor, what is wrong, or nothing."""
        statuses = b"".join([_DENIED_STATUS if problem else _OK_STATUS for problem in problems])
        detail = next(problem for problem in problems if problem)
        fields = {"state": str(Pressure.THROTTLED), "reason": detail}
        return self._answers.refused(statuses, detail, fields)

    def _remember(self, rule_id: str, decision: Decision) -> Usual:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        quota = decision.quota
        limit = _current_limit(rule_id, quota.capacity, quota.window_us)
        metadata = self._answers.metadata({"rule_id": rule_id, "state": str(_NORMAL)})
        usual = self._known[rule_id, id(quota)] = self._usual.made(quota, rule_id, decision, limit, metadata)
        return usual


def _told_apart(rulings: Sequence[Ruling]) -> list[RuleDecision]:
    """Return what each limit says; one that several descriptors share was asked once, and is told once."""
    if len(rulings) == 1:
        return list(rulings[0].limits)
    return list({id(each.decision): each for ruling in rulings for each in ruling.limits}.values())


def _joined(rulings: Sequence[Ruling], limits: Sequence[RuleDecision]) -> tuple[Decision, str]:
    """Return what all limits say together, and the rule that it is about."""
    if len(rulings) == 1 and rulings[0].decision is not None:
        return rulings[0].decision, rulings[0].rule_id
    decision = joint([each.decision for each in limits])
    return decision, limits[decision.index].rule_id


def _status(ruling: Ruling, refund: bool) -> bytes:  # noqa: FBT001  one of a pair that is zipped
    decision = ruling.decision
    if decision is None:
        return _OK_STATUS if ruling.allowed or refund else _DENIED_STATUS
    limit = _current_limit(ruling.rule_id, decision.quota.capacity, decision.quota.window_us)
    if decision.allowed or refund:
        seconds = -(-decision.reset_after_us // SECOND)
        return encoding.status(Code.OK, limit, min(decision.remaining, MAX_UINT32), seconds)
    return encoding.status(Code.OVER_LIMIT, limit, 0, -(-decision.retry_after_us // SECOND) or 1)


@lru_cache(maxsize=_REMEMBERED)
def _current_limit(rule_id: str, capacity: int, window_us: int) -> bytes:
    return encoding.current_limit(min(capacity, MAX_UINT32), nearest_unit(window_us), rule_id)


def nearest_unit(window_us: int) -> Unit:
    """Return the unit that is closest to a window in proportion: the protocol knows no others."""
    seconds = max(window_us / SECOND, 1e-6)
    return min(Unit, key=lambda unit: max(unit.seconds, seconds) / min(unit.seconds, seconds))

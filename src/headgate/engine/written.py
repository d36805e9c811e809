"""A ruling, exact to the microsecond, as it travels from a service to its clients, and so do the errors of a request.

The usual answers are for people and proxies: whole seconds, rounded. A client that is asked in the place of an engine
has to say what the engine would have said, so it asks for the ruling as well, as JSON:

======================  =====================================================================================
allowed                 whether the request may pass
verdict                 how it came about: limited, unlimited, allowed, denied
version                 of the policy
matched                 whether any rule matched
reason                  as in the usual answer
unmatched_principals    the same
limits, shadow          each limit that was asked: its rule, its quota in full, its own decision; microseconds
charge                  what names the cost that was taken, for a refund
======================  =====================================================================================

What is at its default is left out. Members that are not known are ignored, so that more can be added.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from headgate.core.algorithms import Algorithm
from headgate.core.calendar import Calendar
from headgate.core.decision import Decision
from headgate.core.errors import CostTooLarge, InvalidCost, InvalidKey, UsageError
from headgate.core.plan import combine
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota
from headgate.engine.charges import InvalidCharge, Seal, charge_of
from headgate.engine.ruling import Receipt, RuleDecision, Ruling
from headgate.policy.request import InvalidRequest, Request, UnknownRule
from headgate.policy.selection import Verdict

_CODES: dict[type[UsageError], str] = {
    CostTooLarge: "cost_too_large",
    InvalidCost: "invalid_cost",
    InvalidKey: "invalid_key",
    InvalidCharge: "invalid_charge",
    UnknownRule: "unknown_rule",
    InvalidRequest: "invalid_request",
}
_KINDS = {code: kind for kind, code in _CODES.items()}


class _Quota(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that a quota is made of."""

    limit: int
    window_us: int
    burst: int = 0
    algorithm: Algorithm = Algorithm.TOKEN_BUCKET
    queue: bool = False
    refill_every_us: int = 1
    warn_percent: int = 80
    calm_percent: int = 70
    calendar: tuple[str, str] | None = None
    """A unit, and a time zone."""
    keeps_capacity: bool = False
    replicas: int = 0


class _Limit(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What one limit said."""

    rule_id: str
    quota: _Quota
    allowed: bool
    remaining: int
    retry_after_us: int = 0
    reset_after_us: int = 0
    state: Pressure = Pressure.NORMAL
    delay_us: int = 0
    taken: int = 0
    taken_at_us: int = 0
    degraded: str = ""


class WrittenRuling(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A ruling as plain data."""

    allowed: bool
    verdict: Verdict
    version: int = 0
    matched: bool = False
    reason: str = ""
    unmatched_principals: tuple[str, ...] = ()
    limits: tuple[_Limit, ...] = ()
    shadow: tuple[_Limit, ...] = ()
    charge: str = ""

    def ruling(self, request: Request) -> Ruling:
        """Return the ruling that this was, on a request that a client has asked about."""
        decision = combine([_decision(each) for each in self.limits]) if self.limits else None
        rules = tuple([each.rule_id for each in self.limits])
        tried, told = tuple([each.rule_id for each in self.shadow]), tuple([_decision(each) for each in self.shadow])
        about = self.matched, self.reason, self.version, self.unmatched_principals, Receipt(request, self.charge)
        rule_id = rules[decision.index] if decision is not None else ""
        return Ruling(self.allowed, self.verdict, decision, rule_id, rules, tried, told, *about)


_encode = msgspec.json.Encoder().encode


def write(ruling: Ruling, seal: Seal) -> bytes:
    """Return a ruling as JSON, its charge included."""
    return _encode(
        WrittenRuling(
            ruling.allowed,
            ruling.verdict,
            ruling.version,
            ruling.matched,
            ruling.reason,
            ruling.unmatched_principals,
            tuple([_limit(each) for each in ruling.limits]),
            tuple([_limit(each) for each in ruling.shadow]),
            charge_of(ruling, seal),
        )
    )


def code_of(error: UsageError) -> str:
    """Return what a client knows an error by; empty for one that no engine raises."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), "")


def error_of(code: str, text: str, rule_id: str = "") -> UsageError:
    """Return the error of that code; of a code that is not known, InvalidRequest."""
    if code == "unknown_rule":
        return UnknownRule(rule_id, text=text)
    return _KINDS.get(code, InvalidRequest)(text)


def _limit(each: RuleDecision) -> _Limit:
    part = each.decision
    numbers = part.remaining, part.retry_after_us, part.reset_after_us, part.state, part.delay_us
    taken = part.taken, part.taken_at_us, part.degraded
    return _Limit(each.rule_id, _written_quota(part.quota, part.quota.keeps_capacity), part.allowed, *numbers, *taken)


def _decision(each: _Limit) -> Decision:
    quota = _quota(each.quota)
    about = each.retry_after_us, each.reset_after_us, each.state, quota, each.delay_us, each.taken, each.taken_at_us
    return Decision(each.allowed, quota.capacity, each.remaining, *about, (), each.degraded)


@lru_cache(maxsize=4096)
def _written_quota(quota: Quota, keeps_capacity: bool) -> _Quota:  # noqa: FBT001  quotas are equal without it
    calendar = (quota.calendar.unit, quota.calendar.zone) if quota.calendar is not None else None
    stated = quota.limit, quota.window_us, quota.burst, quota.algorithm, quota.queue, quota.refill_every_us
    return _Quota(*stated, quota.warn_percent, quota.calm_percent, calendar, keeps_capacity, quota.replicas)


@lru_cache(maxsize=4096)
def _quota(written: _Quota) -> Quota:
    """Return the quota itself. Raises InvalidQuota where there is none with such numbers."""
    calendar = Calendar(*written.calendar) if written.calendar is not None else None
    stated = written.limit, written.window_us, written.burst, written.algorithm, written.queue, written.refill_every_us
    options = written.warn_percent, written.calm_percent, calendar, written.keeps_capacity, written.replicas
    return Quota(*stated, *options)

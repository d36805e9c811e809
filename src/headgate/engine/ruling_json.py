"""Rulings, exact to the microsecond, and errors, as a service sends them to its clients.

Usual responses are for people and proxies: whole seconds, rounded. A client that replaces an engine needs the engine's
ruling, so it requests that too, as JSON:

======================  =====================================================================================
allowed                 whether the request may pass
verdict                 limited, unlimited, allowed, denied
version                 of the policy
matched                 whether any rule matched
reason                  as in the usual response
unmatched_principals    as in the usual response
limits, shadow          each limit: its rule, its whole quota, its decision; in microseconds
charge                  identifies the cost that was taken, for a refund
======================  =====================================================================================

Defaults are omitted. Unknown members are ignored, so that more can be added.
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
    """All fields of a quota."""

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
    """The decision of one limit."""

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


class RulingMessage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
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
        """Return the ruling on a client's request."""
        decision = combine([_decision(each) for each in self.limits]) if self.limits else None
        rules = tuple([each.rule_id for each in self.limits])
        shadow = tuple([each.rule_id for each in self.shadow]), tuple([_decision(each) for each in self.shadow])
        receipt = Receipt(request, self.charge)
        about = *shadow, self.matched, self.reason, self.version, self.unmatched_principals, receipt
        rule_id = rules[decision.index] if decision is not None else ""
        return Ruling(self.allowed, self.verdict, decision, rule_id, rules, *about)


_encode = msgspec.json.Encoder().encode


def write(ruling: Ruling, seal: Seal) -> bytes:
    """Return a ruling and its charge as JSON."""
    return _encode(
        RulingMessage(
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
    """Return the code of an error; empty if no engine raises it."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), "")


def error_of(code: str, text: str, rule_id: str = "") -> UsageError:
    """Return the error for a code; InvalidRequest for an unknown one."""
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
    given = {name: getattr(quota, name) for name in _Quota.__struct_fields__}
    calendar = (quota.calendar.unit, quota.calendar.zone) if quota.calendar is not None else None
    return _Quota(**given | {"calendar": calendar, "keeps_capacity": keeps_capacity})


@lru_cache(maxsize=4096)
def _quota(written: _Quota) -> Quota:
    """Return the quota. Raises InvalidQuota for impossible numbers."""
    calendar = Calendar(*written.calendar) if written.calendar is not None else None
    return Quota(**msgspec.structs.asdict(written) | {"calendar": calendar})

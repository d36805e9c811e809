"""Why a request gets its limits: every rule, whether it applies, and why or why not. Nothing is consumed.

This goes through all rules one by one: for people, not for every request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from headgate.config.times import moment_text
from headgate.core.plan import Plan
from headgate.core.quota import Quota
from headgate.policy.compiled import Policy
from headgate.policy.model import Change
from headgate.policy.prepared import Applied, PreparedRule, replaced_among
from headgate.policy.request import ENDPOINT, Request, principal_name
from headgate.policy.request_facts import address_given, facts_of, shown
from headgate.policy.selection import Selection, limits_of
from headgate.policy.trie import matches

MATCHES = "matches"
_REASONS = 3


class Considered(msgspec.Struct, frozen=True):
    """One rule and a request."""

    rule: str
    applies: bool
    reason: str
    """Why it applies, or the first reason why not."""
    is_enforced: bool = False
    """False for a shadow."""
    quotas: tuple[Quota, ...] = ()
    """The quotas in force, if it applies."""
    source: str = ""
    """Their origin: "the rule", "tier pro", or "override until 2026-12-01T00:00:00Z, on top of tier pro"."""
    limits: Plan = ()
    """The keys: a space and a principal for each quota."""


class Explanation(msgspec.Struct, frozen=True):
    """The selection of a policy for a request, with reasons."""

    selection: Selection
    facts: Mapping[str, str]
    """The attributes of the request by name, in the form in which they are compared; "endpoint" is the path."""
    tier: str
    """Empty: none."""
    rules: tuple[Considered, ...]
    """Every rule in the order of the ruleset, the default last; none if a list has decided."""


def explain(policy: Policy, request: Request, now: int) -> Explanation:
    """Explain `policy.select(request, now)`. Raises the same errors."""
    selection = policy.select(request, now)
    facts = facts_of(request, ignore_case=policy.ruleset.ignore_case)
    tier = request.tier or policy.tier_of(facts.get("user", ""))
    if selection.reason:
        return Explanation(selection, facts, tier, ())
    applying = {applied.rule.id: applied for applied in policy.applying(request, facts, now)}
    if request.rule_id:
        named = [_of_one_rule(rule_id, request.rule_id, applying, tier) for rule_id in policy.rules]
        return Explanation(selection, facts, tier, tuple(named))
    default = policy.ruleset.default.id if policy.ruleset.default is not None else None
    failures = {rule.id: next(_failures(rule, request, facts, tier), "") for rule in policy.rules.values()}
    replaced = replaced_among(
        rule
        for rule in policy.rules.values()
        if rule.replaces and not failures[rule.id] and rule.id != default and rule.enforces(rule.value(facts) or "")
    )
    considered = []
    for rule_id, failure in failures.items():
        if rule_id in applying:
            reason = "the default: no other rule is enforced" if rule_id == default else MATCHES
            considered.append(_applying(applying[rule_id], tier, reason))
        elif not failure and rule_id == default:
            considered.append(Considered(rule_id, False, "the default, and another rule is enforced"))
        else:
            considered.append(Considered(rule_id, False, failure or f"replaced by rule {replaced[rule_id]}"))
    return Explanation(selection, facts, tier, tuple(considered))


def explain_rule(policy: Policy, request: Request, now: int) -> Considered:
    """Explain only the rule that a request names. Raises the same errors as `explain`."""
    facts = facts_of(request, ignore_case=policy.ruleset.ignore_case)
    tier = request.tier or policy.tier_of(facts.get("user", ""))
    applying = {applied.rule.id: applied for applied in policy.applying(request, facts, now)}
    return _of_one_rule(request.rule_id, request.rule_id, applying, tier)


def why_not_reset(policy: Policy, request: Request, now: int) -> str:
    """Return the reason why there is nothing to reset for a request."""
    if not policy.rules:  # only files of envoyproxy/ratelimit
        return "there are no rules; limits of Envoy's files cannot be reset"
    names = {principal_name(name) for name in request.principal}
    rules = {rule_id: rule for rule_id, rule in policy.rules.items() if rule.rule.enabled}
    counting = {rule_id for rule_id, rule in rules.items() if not names.isdisjoint(rule.dimensions)}
    if not counting:
        known = dict.fromkeys(name for rule in rules.values() for name in rule.dimensions)
        return f"no rule counts by {', '.join(map(shown, names)) or 'nothing'}; they count by {', '.join(known)}"
    explained = explain(policy, msgspec.structs.replace(request, cost=0), now)
    if explained.selection.reason:
        return explained.selection.reason
    whys = [each for each in explained.rules if each.rule in counting and not each.reason.startswith("endpoint ")]
    reasons = "; ".join([f"{each.rule}: {each.reason}" for each in whys[:_REASONS]])
    return f"no rule that applies counts by that{f' ({reasons})' if reasons else ''}"


def _of_one_rule(rule_id: str, named: str, applying: Mapping[str, Applied], tier: str) -> Considered:
    """Explain a rule for a request that names one: this one, or another."""
    if rule_id in applying:
        return _applying(applying[rule_id], tier, "named by the request")
    return Considered(rule_id, False, "disabled" if rule_id == named else f"the request names rule {named}")


def _failures(prepared: PreparedRule, request: Request, facts: Mapping[str, str], tier: str) -> Iterator[str]:
    """Yield the reasons why a rule does not match."""
    rule, method = prepared.rule, request.method.upper()
    if not rule.enabled:
        yield "disabled"
    if not matches(prepared.segments, facts[ENDPOINT]):
        yield f"endpoint {rule.endpoint} does not match {shown(facts[ENDPOINT])}"
    if prepared.methods and method not in prepared.methods:
        found = shown(method) if method else "not known"
        yield f"it is for {' or '.join(sorted(rule.methods))}, and the method is {found}"
    if rule.tier and tier != rule.tier:
        yield f"it is for tier {rule.tier}, and the tier is {shown(tier) if tier else 'not known'}"
    for name, value in sorted(rule.when.items()):
        if facts.get(name) != value:
            found = shown(facts[name]) if name in facts else "not known"
            yield f"it is for {name} {shown(value)}, and {name} is {found}"
    for name in rule.dimensions:
        if name not in facts:
            yield f"no value for dimension {name}"
    if prepared.only is not None and prepared.only.find(facts, address_given(request)) is None:
        yield f"{rule.dimension} {shown(facts.get(rule.dimension, ''))} is not {shown(rule.key_pattern)}"


def _applying(applied: Applied, tier: str, reason: str) -> Considered:
    rule = applied.rule.rule
    if rule.shadow:
        reason += "; a shadow, which refuses nothing"
    elif rule.enforce_percent < 100:
        among = "one of them" if applied.is_enforced else "not one of them"
        reason += f"; enforced for {rule.enforce_percent} % of its principals, and this is {among}"
    terms = applied.terms
    of_tier = f"tier {shown(tier)}{_until(terms.tier_change)}" if terms.tier_change is not None else ""
    source = of_tier or "the rule"
    if terms.override is not None:
        source = f"override{_until(terms.override)}" + (f", on top of {of_tier}" if of_tier else "")
    return Considered(rule.id, True, reason, applied.is_enforced, terms.quotas, source, limits_of(applied))


def _until(change: Change) -> str:
    if change.until is None:
        return ""
    try:
        return f" until {moment_text(change.until)}"
    except OverflowError:
        return f" until {change.until} us after 1970"

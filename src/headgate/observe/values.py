"""Who is counted by a rule, as text; bounded, since it is remembered."""

from __future__ import annotations

from hashlib import blake2b

from headgate.core.errors import UsageError
from headgate.core.key import LITERAL
from headgate.engine import AsyncEngine
from headgate.policy.envoy.matching import Match
from headgate.policy.facts import facts_of
from headgate.policy.request import Request


def value_of(request: Request, rule_id: str, engine: AsyncEngine | None) -> str:
    """Return what the rule counts a request by; where that is not known any more, what the request has."""
    if engine is not None and rule_id:
        policy = engine.policy
        rule = policy.rules.get(rule_id)
        if rule is not None:
            value = request.principal.get(rule.dimension)
            if value is not None and rule.dimension != "ip":
                return bounded(value)
            try:
                facts = facts_of(request, ignore_case=policy.ruleset.ignore_case)
            except UsageError:  # it was decided all the same, by rules that have changed since
                facts = {}
            found = rule.value(facts)
            if found is not None:
                return bounded(found)
    return bounded(",".join([f"{name}={value}" for name, value in request.principal.items()]))


def descriptor_value(match: Match) -> str:
    """Return the entries of a descriptor."""
    return bounded(",".join([f"{key}={value}" if value else key for key, value in match.entries]))


def bounded(value: str) -> str:
    """Return a text that is short enough to be kept; a long one as its beginning and its digest."""
    if len(value) <= LITERAL:
        return value
    digest = blake2b(value.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{value[: LITERAL - 20]}...#{digest}"

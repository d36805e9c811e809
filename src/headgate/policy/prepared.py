"""Rules with all that can be computed before any request is seen: whom they are for, and on what terms.

The *terms* of a rule are its quotas as they are in force: as written, as a tier or a user's override changes them, and
until when. An override changes what the user's tier made of the rule. Terms are made when they are needed first, which
cannot fail: a `Ruleset` has only changes that make a quota, overrides also on top of their user's tier and of the
default tier. One that makes none on top of a tier that only a request brings along changes the rule as written. A
change that ends at `until` does so by itself, since what comes after it is there already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from graphlib import TopologicalSorter
from hashlib import blake2b

import msgspec

from headgate.core.errors import InvalidQuota
from headgate.core.key import space
from headgate.core.quota import Quota
from headgate.policy.facts import together
from headgate.policy.lists import Entries
from headgate.policy.model import Change, Entry, Rule
from headgate.policy.trie import parsed

FOREVER = 1 << 62
"""Later than any time, in microseconds."""
LAST = 1 << 62
"""The place of the default rule, after all others."""


class Terms:
    """The quotas of a rule that are in force for some time, and where their states live."""

    __slots__ = ("capacity", "counted", "override", "quotas", "since", "tier_change", "until")

    def __init__(
        self,
        rule: Rule,
        quotas: tuple[Quota, ...],
        times: tuple[int, int],
        tier_change: Change | None,
        override: Change | None,
    ) -> None:
        if rule.replicas:
            quotas = tuple([replace(quota, replicas=max(quota.replicas, rule.replicas)) for quota in quotas])
        self.quotas = quotas
        name = space_name(rule)
        self.counted = tuple([(space(name, quota), quota) for quota in quotas])
        """The space where the states of each quota are kept, and the quota."""
        self.capacity = min([quota.capacity for quota in quotas])
        """The highest cost that all quotas could admit."""
        self.since, self.until = times
        """Microseconds since the epoch; before these times, and from the second one on, other terms are in force."""
        self.tier_change = tier_change
        """What the tier changed, if it did."""
        self.override = override
        """What the user's override changed, if it did."""


class TermsByTier:
    """The terms of a rule for those who have a certain override, or none: made for a tier when they are needed first.

    Args:
        rule: as written.
        tiers: what tiers change of it.
        override: what is different for some users besides.
    """

    __slots__ = ("_by_tier", "_override", "_rule", "_tiers")

    def __init__(self, rule: Rule, tiers: Mapping[str, Change], override: Change | None = None) -> None:
        self._rule, self._tiers, self._override = rule, tiers, override
        self._by_tier: dict[str, tuple[Terms, ...]] = {}
        """One after the other in time, the last ones forever; the empty text stands for tiers that change nothing."""

    def at(self, tier: str, now: int) -> Terms:
        """Return the terms that are in force for a tier, at a time in microseconds since the epoch."""
        tier = tier if tier in self._tiers else ""
        schedule = self._by_tier.get(tier)
        if schedule is None:  # two threads may make it twice: equal ones
            schedule = self._by_tier[tier] = _schedule(self._rule, self._tiers.get(tier), self._override)
        return next(terms for terms in schedule if now < terms.until)


def _schedule(rule: Rule, tier_change: Change | None, override: Change | None) -> tuple[Terms, ...]:
    """Return the terms that result; those of the override alone where the two make no quota together."""
    ends = {change.until for change in (tier_change, override) if change is not None and change.until is not None}
    schedule: list[Terms] = []
    for end in (*sorted(ends), FOREVER):
        of_tier, of_user = _lasting(tier_change, end), _lasting(override, end)
        quotas = rule.quotas if of_tier is None else of_tier.apply(rule.quotas)
        if of_user is not None:
            try:
                quotas = of_user.apply(quotas)
            except InvalidQuota:
                of_tier, quotas = None, of_user.apply(rule.quotas)
        since = schedule[-1].until if schedule else 0
        schedule.append(Terms(rule, quotas, (since, end), of_tier, of_user))
    return tuple(schedule)


def _lasting(change: Change | None, end: int) -> Change | None:
    """Return the change if it lasts as long as that."""
    return change if change is not None and (change.until is None or end <= change.until) else None


def space_name(rule: Rule) -> str:
    """Return the name under which the states of a rule are kept: ``orders-user@user``.

    It has the dimension, for user 42 is not the API key 42. No name has an ``@``: so the name of a limiter is never
    that of a rule, and none of the parts can imitate another. With `reset_on_change` there is a fingerprint of
    `updated_at` and of the quotas as written: not as tiers and overrides change them, for then whoever has two tiers,
    or an override that ends, would get a fresh budget by that. All nodes must find the same name, those that start
    later included, so nothing but what is written can be in it.
    """
    name = f"{rule.id}@{rule.dimension}"
    if not rule.reset_on_change:
        return name
    numbers = [
        f"{quota.shape},{quota.limit},{quota.burst},{quota.queue:d},{quota.refill_every_us}" for quota in rule.quotas
    ]
    if rule.updated_at:
        numbers.append(f"@{rule.updated_at}")
    return f"{name}#{blake2b(';'.join(numbers).encode(errors='surrogatepass'), digest_size=8).hexdigest()}"


def rule_id_of(space: str) -> str:
    """Return the id of the rule whose states are in a space."""
    return space.partition("@")[0]


class PreparedRule:
    """A rule, ready to be applied."""

    __slots__ = (
        *("dimension", "dimensions", "id", "is_enforced", "methods", "only", "place", "replaces", "rule", "segments"),
        *("terms", "tiers"),
    )

    def __init__(self, rule: Rule, tiers: Mapping[str, Change], *, place: int = 0, ignore_case: bool = False) -> None:
        self.rule = rule
        self.tiers = tiers
        """What tiers change of it."""
        self.terms = TermsByTier(rule, tiers)
        """On which it applies to those who have no override."""
        self.place = place
        """Higher than that of the rules before it; `LAST` for the default."""
        self.id, self.dimension, self.replaces = rule.id, rule.dimension, rule.replaces
        self.dimensions = rule.dimensions
        self.methods = rule.methods | {"HEAD"} if "GET" in rule.methods else rule.methods
        """All that it is for; none: all."""
        self.is_enforced: bool | None = None
        """None: that depends on the principal."""
        if rule.shadow or rule.enforce_percent in {0, 100}:
            self.is_enforced = not rule.shadow and rule.enforce_percent == 100
        self.only: Entries | None = None
        """For whom it is; None: for all."""
        if rule.key_pattern:
            self.only = Entries((Entry(rule.dimension, rule.key_pattern),), ignore_case=ignore_case)
        self.segments = parsed(rule.endpoint, ignore_case=ignore_case)

    def value(self, facts: Mapping[str, str]) -> str | None:
        """Return who is counted; None: the request does not have all that the rule counts by."""
        if len(self.dimensions) == 1:
            return facts.get(self.dimension)
        return together([facts.get(name) for name in self.dimensions])

    def enforces(self, value: str) -> bool:
        """Whether it is enforced for somebody who is counted under `value`; else it is a shadow."""
        if self.is_enforced is None:
            return share_of(self.id, value) < self.rule.enforce_percent
        return self.is_enforced


class Applied(msgspec.Struct, frozen=True, gc=False):
    """A rule as it applies to some requests."""

    rule: PreparedRule
    terms: Terms
    is_enforced: bool
    """For these principals; else it is a shadow."""


def share_of(rule_id: str, value: str) -> int:
    """Return a number from 0 to 99, always the same for this rule and principal, and evenly spread.

    The rule is enforced for those whose number is below its `enforce_percent`: they stay below it when it is raised.
    """
    digest = blake2b(f"{rule_id}|{value}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 100


def replaced_among(rules: Iterable[PreparedRule]) -> dict[str, str]:
    """Return the ids of rules that do not apply, each with that of a rule that replaces it, of those that are enforced.

    A rule that is itself replaced does not apply, so that it replaces nothing. There is no circle among them: a
    `Ruleset` would not have it.
    """
    replacing = {rule.id: rule.replaces for rule in rules if rule.replaces}
    order = TopologicalSorter({rule_id: replaces & replacing.keys() for rule_id, replaces in replacing.items()})
    replaced: dict[str, str] = {}
    for rule_id in reversed([*order.static_order()]):
        if rule_id not in replaced:
            replaced |= dict.fromkeys(replacing[rule_id], rule_id)
    return replaced

"""Rules with everything that can be computed before a request: their conditions, and their terms.

The *terms* of a rule are its quotas in force: as written, or as a tier and a user's override change them, until a time.
An override applies on top of the user's tier. Terms are made when they are first needed, which cannot fail: every
change of a `Ruleset` makes a quota, and so does every override on top of its user's tier and of the default tier. An
override that makes no quota on top of another tier, which only a request has, applies to the rule as written. A change
ends automatically at its `until`, since the terms after it are part of the schedule.
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
from headgate.policy.lists import Entries
from headgate.policy.model import Change, Entry, Rule
from headgate.policy.request_facts import together
from headgate.policy.trie import parsed

FOREVER = 1 << 62
"""Later than any time, in microseconds."""
LAST = 1 << 62
"""The place of the default rule, after all other rules."""


class Terms:
    """The quotas of a rule that are in force for some time, and the spaces of their states."""

    __slots__ = ("capacity", "counted", "override", "quotas", "rules", "since", "tier_change", "until")

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
        """The space of each quota's states, and the quota."""
        self.rules = (rule.id,) * len(quotas)
        """The rule of each quota."""
        self.capacity = min([quota.capacity for quota in quotas])
        """The highest cost that all quotas could admit."""
        self.since, self.until = times
        """In force from the first time until before the second, in microseconds since the epoch."""
        self.tier_change = tier_change
        self.override = override


class TermsByTier:
    """The terms of a rule by tier, for users with a certain override or without; computed when first needed."""

    __slots__ = ("_by_tier", "_override", "_rule", "_tiers")

    def __init__(self, rule: Rule, tiers: Mapping[str, Change], override: Change | None = None) -> None:
        self._rule, self._tiers, self._override = rule, tiers, override
        self._by_tier: dict[str, tuple[Terms, ...]] = {}
        """In the order of time, the last ones forever. The empty text represents tiers that change nothing."""

    def at(self, tier: str, now: int) -> Terms:
        """Return the terms in force for a tier, at a time in microseconds since the epoch."""
        tier = tier if tier in self._tiers else ""
        schedule = self._by_tier.get(tier)
        if schedule is None:  # two threads may make it twice, with equal results
            schedule = self._by_tier[tier] = _schedule(self._rule, self._tiers.get(tier), self._override)
        for terms in schedule:
            if now < terms.until:
                break
        return terms


def _schedule(rule: Rule, tier_change: Change | None, override: Change | None) -> tuple[Terms, ...]:
    """Return the terms in the order of time; those of the override alone if the two make no quota together."""
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
    """Return the change if it lasts until `end`."""
    return change if change is not None and (change.until is None or end <= change.until) else None


def space_name(rule: Rule) -> str:
    """Return the name of the space of a rule's states: ``orders-user@user``.

    It includes the dimension, since user 42 is not the API key 42. Names have no ``@``, so that the space of a limiter
    is never that of a rule, and no part can imitate another. With `reset_on_change`, there is a fingerprint of
    `updated_at` and of the quotas as written: not as changed by tiers and overrides, or a user with two tiers, or with
    an override that ends, would get a fresh budget. All nodes must compute the same name, whenever they start, so it
    depends on the written rule only.
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
        *("dimension", "dimensions", "id", "is_enforced", "is_single", "methods", "only", "place", "replaces", "rule"),
        *("segments", "terms", "tiers"),
    )

    def __init__(self, rule: Rule, tiers: Mapping[str, Change], *, place: int = 0, ignore_case: bool = False) -> None:
        self.rule = rule
        self.tiers = tiers
        """Its changes by tier."""
        self.terms = TermsByTier(rule, tiers)
        """For users without an override."""
        self.place = place
        """Its place in the order of rules; `LAST` for the default."""
        self.id, self.dimension, self.replaces = rule.id, rule.dimension, rule.replaces
        self.dimensions = rule.dimensions
        self.is_single = len(rule.dimensions) == 1
        self.methods = rule.methods | {"HEAD"} if "GET" in rule.methods else rule.methods
        """Empty for all methods."""
        self.is_enforced: bool | None = None
        """None if it depends on the principal."""
        if rule.shadow or rule.enforce_percent in {0, 100}:
            self.is_enforced = not rule.shadow and rule.enforce_percent == 100
        self.only: Entries | None = None
        """The matching keys; None for all."""
        if rule.key_pattern:
            self.only = Entries((Entry(rule.dimension, rule.key_pattern),), ignore_case=ignore_case)
        self.segments = parsed(rule.endpoint, ignore_case=ignore_case)

    def value(self, facts: Mapping[str, str]) -> str | None:
        """Return the key to count by; None if the request lacks one of the dimensions."""
        if self.is_single:
            return facts.get(self.dimension)
        return together([facts.get(name) for name in self.dimensions])

    def enforces(self, value: str) -> bool:
        """Whether it is enforced for the key `value`, rather than a shadow."""
        if self.is_enforced is None:
            return share_of(self.id, value) < self.rule.enforce_percent
        return self.is_enforced


class Applied(msgspec.Struct, frozen=True, gc=False):
    """A rule that applies to a request, with its terms."""

    rule: PreparedRule
    terms: Terms
    is_enforced: bool
    """False for a shadow."""
    value: str
    """The key to count by."""


def share_of(rule_id: str, value: str) -> int:
    """Return a number from 0 to 99, always the same for a rule and a principal, and evenly distributed.

    The rule is enforced for principals whose number is below its `enforce_percent`, also after it is raised.
    """
    digest = blake2b(f"{rule_id}|{value}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 100


def replaced_among(rules: Iterable[PreparedRule]) -> dict[str, str]:
    """Return the ids of replaced rules, each with the id of an enforced rule that replaces it.

    A replaced rule does not apply, so it replaces nothing. A `Ruleset` has no circles.
    """
    replacing = {rule.id: rule.replaces for rule in rules if rule.replaces}
    if len(replacing) == 1:
        ((rule_id, replaces),) = replacing.items()
        return dict.fromkeys(replaces, rule_id)
    order = TopologicalSorter({rule_id: replaces & replacing.keys() for rule_id, replaces in replacing.items()})
    replaced: dict[str, str] = {}
    for rule_id in reversed([*order.static_order()]):
        if rule_id not in replaced:
            replaced |= dict.fromkeys(replacing[rule_id], rule_id)
    return replaced

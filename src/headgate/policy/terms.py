"""The quotas of a rule as they are in force: as written, as a tier or a user's override changes them, and until when.

An override changes what the user's tier made of the rule. What a rule is for each tier is computed when the policy is
built; an override is then checked with the tier of its user and with the default tier, and computed when it is needed
first. If it makes no quota on top of a tier that only a request brings along, it changes the rule as written. A change
that ends at `until` does so by itself, since what comes after it is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

from headgate.core.errors import InvalidQuota, InvalidRule
from headgate.core.key import space
from headgate.core.plan import Family
from headgate.core.quota import Quota
from headgate.policy.model import Change, Rule

FOREVER = 1 << 62
"""Later than any time, in microseconds."""


class Terms:
    """The quotas of a rule that are in force up to some time, and where their states live."""

    __slots__ = ("capacity", "override", "places", "quotas", "rules", "tier_change", "until")

    def __init__(
        self, rule: Rule, quotas: tuple[Quota, ...], until: int, tier_change: Change | None, override: Change | None
    ) -> None:
        if rule.replicas:
            quotas = tuple([replace(quota, replicas=max(quota.replicas, rule.replicas)) for quota in quotas])
        self.quotas = quotas
        name = space_name(rule)
        self.places = tuple([(space(name, quota), quota) for quota in quotas])
        """Each quota, and the space where its states are kept."""
        self.rules = (rule.id,) * len(quotas)
        self.capacity = min([quota.capacity for quota in quotas])
        """The highest cost that all quotas could admit."""
        self.until = until
        """Microseconds since the epoch; from then on other terms are in force."""
        self.tier_change = tier_change
        """What the tier changed, if it did."""
        self.override = override
        """What the user's override changed, if it did."""


Schedule = tuple[Terms, ...]
"""Terms one after the other in time, the last ones forever."""


def in_force(schedule: Schedule, now: int) -> Terms:
    """Return the terms at a time, in microseconds since the epoch."""
    return next(terms for terms in schedule if now < terms.until)


class Schedules:
    """The terms of a rule for every tier."""

    __slots__ = ("by_tier", "is_lasting", "untiered")

    def __init__(self, untiered: Schedule, by_tier: dict[str, Schedule]) -> None:
        self.untiered = untiered
        """For tiers that change nothing."""
        self.by_tier = by_tier
        self.is_lasting = all(len(schedule) == 1 for schedule in (untiered, *by_tier.values()))
        """Whether all of them are in force forever."""


class Overridden:
    """The terms of a rule for those who have a certain override; made for a tier when they are needed first."""

    __slots__ = ("_by_tier", "_override", "_rule", "_tiers")

    def __init__(self, rule: Rule, override: Change, tiers: Mapping[str, Change]) -> None:
        self._rule = rule
        self._override = override
        self._tiers = tiers
        self._by_tier: dict[str, Schedule] = {}
        """The empty text stands for all tiers that change nothing."""

    def schedule(self, tier: str) -> Schedule:
        """Return the terms for a tier."""
        tier = tier if tier in self._tiers else ""
        schedule = self._by_tier.get(tier)
        if schedule is None:  # two threads may make it twice: equal ones
            schedule = _schedule(self._rule, self._tiers.get(tier), self._override, _changed)
            self._by_tier[tier] = schedule
        return schedule

    def check(self, tier: str) -> None:
        """Raise InvalidRule if the override makes no quota on top of a tier."""
        if tier not in self._tiers:
            return
        try:
            _changed(self._rule, [self._tiers[tier], self._override])
        except InvalidQuota as error:
            raise InvalidRule(f"the override of rule {self._rule.id!r} on top of tier {tier!r}: {error}") from None


class Drafting:
    """Makes the terms of rules; equal quotas and equal overrides are made once."""

    def __init__(self, tiers: Mapping[str, Mapping[str, Change]]) -> None:
        self._tiers: dict[str, dict[str, Change]] = {}
        """By rule id, then by tier."""
        for tier, changes in tiers.items():
            for rule_id, change in changes.items():
                self._tiers.setdefault(rule_id, {})[tier] = change
        self._made: dict[tuple[object, ...], tuple[Quota, ...]] = {}
        self._overridden: dict[tuple[str, Change], Overridden] = {}
        self._checked: set[tuple[str, Change, str]] = set()

    def schedules(self, rule: Rule) -> Schedules:
        """Return the terms of a rule."""
        tiers = self._tiers.get(rule.id, {})
        by_tier = {tier: _schedule(rule, change, None, self._changed) for tier, change in tiers.items()}
        return Schedules(_schedule(rule, None, None, self._changed), by_tier)

    def overridden(self, rule: Rule, override: Change, usual: Iterable[str]) -> Overridden:
        """Return the terms of a rule for somebody who has that override, and usually is of one of those tiers.

        Raises InvalidRule: the override makes no quota on top of such a tier.
        """
        overridden = self._overridden.get((rule.id, override))
        if overridden is None:
            overridden = Overridden(rule, override, self._tiers.get(rule.id, {}))
            self._overridden[rule.id, override] = overridden
        for tier in usual:
            if (rule.id, override, tier) not in self._checked:
                overridden.check(tier)
                self._checked.add((rule.id, override, tier))
        return overridden

    def _changed(self, rule: Rule, changes: Sequence[Change]) -> tuple[Quota, ...]:
        """Return the quotas of a rule as a tier changes them, if one does."""
        if not changes:
            return rule.quotas
        (change,) = changes
        kept = tuple([quota.keeps_capacity for quota in (*rule.quotas, *(change.quotas or ()))])  # no part of equality
        what = (rule.quotas, kept, replace(change, until=None))
        made = self._made.get(what)
        if made is None:
            made = self._made[what] = _changed(rule, changes)
        return made


def _changed(rule: Rule, changes: Sequence[Change]) -> tuple[Quota, ...]:
    quotas = rule.quotas
    for change in changes:
        quotas = change.apply(quotas)
    if len(quotas) > 1:
        Family(rule.id, quotas)  # no two limits may count in one place
    return quotas


def _schedule(
    rule: Rule,
    tier_change: Change | None,
    override: Change | None,
    changed: Callable[[Rule, Sequence[Change]], tuple[Quota, ...]],
) -> Schedule:
    """Return the terms that result; those of the override alone where the two make no quota together."""
    ends = {change.until for change in (tier_change, override) if change is not None and change.until is not None}
    schedule = []
    for end in (*sorted(ends), FOREVER):
        of_tier, of_user = _lasting(tier_change, end), _lasting(override, end)
        try:
            quotas = changed(rule, [change for change in (of_tier, of_user) if change is not None])
        except InvalidQuota:
            if of_tier is None or of_user is None:
                raise
            of_tier, quotas = None, changed(rule, [of_user])
        schedule.append(Terms(rule, quotas, end, of_tier, of_user))
    return tuple(schedule)


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


def _lasting(change: Change | None, end: int) -> Change | None:
    """Return the change if it lasts as long as that."""
    return change if change is not None and (change.until is None or end <= change.until) else None

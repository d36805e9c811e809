"""The quotas of a rule as they are in force: as written, as a tier or a user's override changes them, and until when.

An override changes what the user's tier made of the rule. All combinations are computed, and so checked, when the
policy is built; a change that ends at `until` does so by itself, since what comes after it is there already.
"""

from __future__ import annotations

from collections.abc import Mapping
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

    __slots__ = ("capacity", "modes", "override", "places", "quotas", "rules", "tier_change", "until")

    def __init__(
        self, rule: Rule, quotas: tuple[Quota, ...], until: int, tier_change: Change | None, override: Change | None
    ) -> None:
        self.quotas = quotas
        name = space_name(rule)
        self.places = tuple([(space(name, quota), quota) for quota in quotas])
        """Each quota, and the space where its states are kept."""
        self.rules = (rule.id,) * len(quotas)
        self.modes = (rule.on_store_failure,) * len(quotas)
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
    """The terms of a rule, with or without somebody's override, for every tier."""

    __slots__ = ("by_tier", "untiered")

    def __init__(self, untiered: Schedule, by_tier: dict[str, Schedule]) -> None:
        self.untiered = untiered
        """For tiers that change nothing."""
        self.by_tier = by_tier


class Drafting:
    """Makes the schedules of rules; equal quotas are made once."""

    def __init__(self, tiers: Mapping[str, Mapping[str, Change]]) -> None:
        self._changes: dict[str, dict[str, Change]] = {}
        """By rule id, then by tier."""
        for tier, changes in tiers.items():
            for rule_id, change in changes.items():
                self._changes.setdefault(rule_id, {})[tier] = change
        self._applied: dict[tuple[object, ...], tuple[Quota, ...]] = {}

    def schedules(self, rule: Rule, override: Change | None = None) -> Schedules:
        """Return the terms of a rule, for somebody who has that override. Raises InvalidRule."""
        tiers = self._changes.get(rule.id, {})
        untiered = self._schedule(rule, None, override)
        by_tier = {}
        for tier, change in tiers.items():
            try:
                by_tier[tier] = self._schedule(rule, change, override)
            except InvalidQuota as error:
                raise InvalidRule(f"an override of rule {rule.id!r} on top of tier {tier!r}: {error}") from None
        return Schedules(untiered, by_tier)

    def _schedule(self, rule: Rule, tier_change: Change | None, override: Change | None) -> Schedule:
        ends = {change.until for change in (tier_change, override) if change is not None and change.until is not None}
        schedule = []
        for end in (*sorted(ends), FOREVER):
            of_tier, of_user = _lasting(tier_change, end), _lasting(override, end)
            quotas = rule.quotas
            for change in (of_tier, of_user):
                quotas = self._apply(rule.id, change, quotas) if change is not None else quotas
            schedule.append(Terms(rule, quotas, end, of_tier, of_user))
        return tuple(schedule)

    def _apply(self, rule_id: str, change: Change, quotas: tuple[Quota, ...]) -> tuple[Quota, ...]:
        what = (quotas, change.limit, change.burst, change.window_us, change.algorithm, change.quotas)
        applied = self._applied.get(what)
        if applied is None:
            applied = Family(rule_id, change.apply(quotas)).quotas  # no two limits may count in one place
            self._applied[what] = applied
        return applied


def space_name(rule: Rule) -> str:
    """Return the name under which the states of a rule are kept.

    With `reset_on_change` it has a fingerprint of the quotas as written: not as tiers and overrides change them, for
    then whoever has two tiers, or an override that ends, would get a fresh budget by that.
    """
    if not rule.reset_on_change:
        return rule.id
    numbers = [
        f"{quota.shape},{quota.limit},{quota.burst},{quota.queue:d},{quota.refill_every_us}" for quota in rule.quotas
    ]
    return f"{rule.id}#{blake2b(';'.join(numbers).encode(), digest_size=8).hexdigest()}"


def _lasting(change: Change | None, end: int) -> Change | None:
    """Return the change if it lasts as long as that."""
    return change if change is not None and (change.until is None or end <= change.until) else None

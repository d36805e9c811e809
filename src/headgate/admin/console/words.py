"""Rules described in words."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.admin.console.rendering import number
from headgate.core.algorithms import Algorithm
from headgate.core.mode import Mode
from headgate.core.quota import SECOND, Quota
from headgate.policy.model import Rule

_PERIODS = {SECOND: "second", 60 * SECOND: "minute", 3600 * SECOND: "hour", 86400 * SECOND: "day"}
_UNITS = ((86400 * SECOND, "d"), (3600 * SECOND, "h"), (60 * SECOND, "min"), (SECOND, "s"), (1000, "ms"), (1, "us"))
_EACH = {"user": "user", "ip": "address", "apikey": "API key", "endpoint": "path"}
_FAILURES = {
    Mode.ALLOW: "lets all requests pass",
    Mode.DENY: "refuses all requests",
    Mode.LOCAL: "counts on each node alone",
}


def limits(quotas: Iterable[Quota]) -> str:
    """Return limits in words: 100 per minute, 20 more at once."""
    return "; ".join(map(_limit, quotas))


def _limit(quota: Quota) -> str:
    if not quota.limit:
        return f"{number(quota.burst)} once"
    if quota.calendar is not None:
        return f"{number(quota.limit)} per {quota.calendar.unit} ({quota.calendar.zone})"
    return f"{number(quota.limit)} per {window(quota.window_us)}{_burst(quota)}"


def _burst(quota: Quota) -> str:
    if not quota.burst:
        return ""
    by_burst = quota.burst > 0 and not quota.keeps_capacity
    return f", {number(quota.burst)} more at once" if by_burst else f", at most {number(quota.capacity)} at once"


def window(length_us: int) -> str:
    """Return a window in words: minute, 15 min."""
    if length_us in _PERIODS:
        return _PERIODS[length_us]
    size, unit = next(each for each in _UNITS if length_us % each[0] == 0)
    return f"{length_us // size}\u202f{unit}"


def counting(quotas: Iterable[Quota]) -> str:
    """Return how limits count: token bucket."""
    names = {str(quota.algorithm) if quota.calendar is None else str(Algorithm.FIXED_WINDOW) for quota in quotas}
    return ", ".join(sorted(name.replace("_", " ") for name in names))


def counted_by(rule: Rule) -> str:
    """Return the dimensions of a rule in words: each user, each user and path, all callers together."""
    if rule.dimensions == ("global",):
        return "all callers together"
    return "each " + " and ".join(_EACH.get(name, name) for name in rule.dimensions)


def on_failure(rule: Rule) -> str:
    return "follows the default of the service" if rule.on_store_failure is None else _FAILURES[rule.on_store_failure]

"""Estimates of what another limit would have refused, from the use of single principals.

::

    use_windows, use_principals      open windows: the use of each principal of the sample, by its digest
            |  fold, when a window has ended
    use_histograms                   the number of principals by their use, by hour; after 30 days by day

A histogram counts principals in buckets by the units that they requested in a window. Up to 63 units, each number has a
bucket; beyond, the width of a bucket is at most 1/32 of its numbers. A limit of N would have refused the units of each
principal beyond N. These are known exactly, from the number of principals and the sum of units, for every bucket but
the one with N, for which there are bounds.

If the sample has one principal of 2 ** level, each stands for as many, which adds a statistical error.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, sqrt
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, and_, case, delete, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin.tables import constant, slices, sum_of, upsert, use_histograms, use_principals, use_windows
from headgate.config.times import length_text, moment_text
from headgate.core.algorithms import Algorithm
from headgate.core.calendar import DAY_US
from headgate.core.errors import UsageError
from headgate.core.quota import Quota
from headgate.observe.principal_use import LONGEST_WINDOW_US, WindowUse, measured_window, passed_over
from headgate.policy.model import Change, Rule, Ruleset

LATE_US = 900_000_000
"""The time after the end of a window until which its use can be added."""
FINE_DAYS, KEPT_DAYS = 30, 365
"""Days for which histograms are kept by hour, and in total."""
_EXACT_BITS = 6
EXACT_BELOW = 1 << _EXACT_BITS
"""Units below which each number has a bucket."""
HOUR_US = 3_600_000_000
_SERIES = ("rule_id", "window_us", "in_force", "at")
_POSITIONS = (1 << 63) - 1


class UseBucket(NamedTuple):
    """Principals of a sample with about the same use in a window, in one window or several."""

    level: int
    """One principal of 2 ** level is in the sample."""
    low: int
    """The least use in the bucket; see `width_of`."""
    principals: int
    units: int


class Estimate(NamedTuple):
    """What a limit would have refused. Principals are counted once in each window in which they sent requests."""

    units: int
    """Units that were requested."""
    principals: int
    refused: int
    """Units beyond the limit."""
    refused_at_least: int
    refused_at_most: int
    """Bounds of `refused`, apart from the error of the sample; equal if the buckets are exact."""
    touched: int
    """Principals beyond the limit, estimated for those near it."""
    standard_error: int
    """The standard error of `refused` by the sample, in units; 0 if it has all principals."""
    sampled: float
    """The least share of principals and windows in the sample; 1 for all."""


def width_of(low: int) -> int:
    """Return the width of the bucket that begins with a number."""
    return 1 if low < EXACT_BELOW else 1 << (low.bit_length() - _EXACT_BITS)


def estimate_refusals(buckets: Iterable[UseBucket], limit: int, window_us: int) -> Estimate:
    """Estimate what a limit, for windows of this length, would have refused."""
    units = principals = touched = sampled = 0
    low = high = variance = 0.0
    stands_for = passed_over(window_us)
    for bucket in buckets:
        each = stands_for << bucket.level
        sampled = max(sampled, each)
        units, principals = units + bucket.units * each, principals + bucket.principals * each
        least, most, above = _refused(bucket, limit)
        low, high, touched = low + least * each, high + most * each, touched + above * each
        if bucket.principals:
            mean = (least + most) / 2 / bucket.principals
            variance += bucket.principals * mean * mean * each * (each - 1)
    refused = round((low + high) / 2)
    return Estimate(
        units, principals, refused, int(low), ceil(high), touched, ceil(sqrt(variance)), 1 / sampled if sampled else 1.0
    )


def _refused(bucket: UseBucket, limit: int) -> tuple[float, float, int]:
    """Return the least and the most units that a limit refuses of a bucket, and the number of principals beyond it."""
    _, low, principals, units = bucket
    top = low + width_of(low) - 1
    if limit >= top:
        return 0, 0, 0
    if limit < low:
        beyond = units - limit * principals
        return beyond, beyond, principals
    at_most = (units - low * principals) * (top - limit) / (top - low)  # if all are at either end of the bucket
    touched = min(principals, ceil(principals * (top - limit) / (top - low + 1)))
    return max(0, units - limit * principals), at_most, touched


class LimitChange(NamedTuple):
    """Another limit of a rule, for principals with the limit `in_force`."""

    rule: str
    quota: Quota
    """With the other limit."""
    in_force: int

    @property
    def window_us(self) -> int:
        """The length of the windows in which use is counted; see `measured_window`."""
        return measured_window(self.quota)

    async def estimate(self, connection: AsyncConnection, since: int, until: int) -> dict[str, Any]:
        found = await use_of(connection, self.rule, self.window_us, since, until)
        limit = self.quota.limit * self.window_us // self.quota.window_us  # the window is at least a second
        estimate = estimate_refusals(found.get(self.in_force, ()), limit, self.window_us)
        others = {in_force: estimate_refusals(use, limit, self.window_us).units for in_force, use in found.items()}
        return {
            "rule_id": self.rule,
            "limit": self.quota.limit,
            "in_force": self.in_force,
            "window_seconds": self.quota.window_us / 1_000_000,
            "since": moment_text(since),
            "until": moment_text(until),
            **estimate._asdict(),
            "exact": self._is_exact,
            "assumes": self._assumption(),
            "others": [
                {"in_force": in_force, "units": units}
                for in_force, units in others.items()
                if in_force != self.in_force
            ],
        }

    @property
    def _is_exact(self) -> bool:
        """Whether use is counted in exactly the windows of the quota."""
        quota = self.quota
        is_fixed = quota.algorithm is Algorithm.FIXED_WINDOW and quota.calendar is None
        return is_fixed and self.window_us == quota.window_us

    def _assumption(self) -> str:
        assumed = "clients send the same requests, even after refusals"
        if self._is_exact:
            return assumed
        quota, length = self.quota, length_text(self.window_us)
        kind = f"a {str(quota.algorithm).replace('_', ' ')}"
        if quota.calendar:
            kind = "counted by the calendar"
        elif quota.algorithm is Algorithm.FIXED_WINDOW:
            kind = "one of another length"
        assumed += f"; use was counted in fixed windows of {length}, and {quota} is {kind}: an estimate"
        return f"{assumed} that ignores its burst" if quota.burst else assumed


def not_counted(quotas: Iterable[Quota]) -> list[str]:
    """Return the quotas whose use is not counted: their windows are too long, or they have none."""
    return [str(quota) for quota in quotas if not measured_window(quota)]


def changes_between(before: Ruleset, after: Ruleset) -> dict[tuple[str, str], list[LimitChange]]:
    """Return the limits that differ between two sets of rules, by tier, empty for none, and rule."""
    found: dict[tuple[str, str], list[LimitChange]] = {}
    old, new = _quotas(before), _quotas(after)
    for key in sorted(old.keys() & new.keys()):
        limits = {measured_window(quota): quota.limit for quota in reversed(old[key])}
        for quota in new[key]:
            in_force = limits.get(measured_window(quota)) if measured_window(quota) else None
            if in_force is not None and in_force != quota.limit:
                found.setdefault(key, []).append(LimitChange(key[1], quota, in_force))
    return found


def _quotas(ruleset: Ruleset) -> dict[tuple[str, str], tuple[Quota, ...]]:
    rules = {rule.id: rule for rule in ruleset.rules}
    found = {("", rule.id): rule.quotas for rule in ruleset.rules}
    for tier, changes in ruleset.tiers.items():
        found |= {(tier, rule): change.apply(rules[rule].quotas) for rule, change in changes.items() if rule in rules}
    return found


def limit_change(rule: Rule, limit: int, window_us: int | None = None, in_force: int | None = None) -> LimitChange:
    """Return the change to another limit of a rule, for one of its windows. Raises UsageError, InvalidQuota."""
    quotas = {quota.window_us: quota for quota in reversed(rule.quotas) if measured_window(quota)}
    lengths = ", ".join(f"{window // 1_000_000 or window / 1_000_000:g} s" for window in sorted(quotas))
    if not quotas:
        longest = length_text(LONGEST_WINDOW_US)
        raise UsageError(f"the use of rule {rule.id} is not counted: it has no window of at most {longest}")
    if window_us is None and len(quotas) > 1:
        raise UsageError(f"rule {rule.id} has several windows: choose one of {lengths}")
    quota = quotas.get(window_us) if window_us is not None else next(iter(quotas.values()))
    if quota is None:
        raise UsageError(f"rule {rule.id} has no such window: choose one of {lengths}")
    other = Change(limit=limit).apply((quota,))[0]
    return LimitChange(rule.id, other, quota.limit if in_force is None else in_force)


async def add(connection: AsyncConnection, uses: Iterable[WindowUse], now: int) -> None:
    """Add the use of principals, except of windows that ended too long ago."""
    windows: dict[tuple[str, int, int, int], int] = {}
    sums: dict[tuple[str, int, int, int, int], int] = {}
    for use in uses:
        if use.at + use.window_us + LATE_US <= now:
            continue
        key = use.rule, use.window_us, use.limit, use.at
        windows[key] = max(windows.get(key, 0), use.level)
        for principal, units in use.principals.items():
            sums[*key, principal] = sums.get((*key, principal), 0) + units
    headers = [dict(zip(_SERIES, key, strict=True), level=level) for key, level in sorted(windows.items())]
    rows = [  # sorted, so that two writers cannot deadlock
        dict(zip((*_SERIES, "principal"), key, strict=True), units=units) for key, units in sorted(sums.items())
    ]
    for some in slices(headers):
        await connection.execute(upsert(connection, use_windows, largest=["level"]), some)
    for some in slices(rows):
        await connection.execute(upsert(connection, use_principals, add=["units"]), some)


async def fold(connection: AsyncConnection, now: int) -> None:
    """Fold ended windows into histograms, and old histograms into days, and delete the oldest, in a transaction."""
    principals, windows, histograms = use_principals.c, use_windows.c, use_histograms.c
    over = principals.at + principals.window_us + 2 * LATE_US <= now
    await _add_to_histograms(connection, _bucketed(principals.at - principals.at % constant(HOUR_US), over))
    await connection.execute(delete(use_principals).where(over))
    await connection.execute(delete(use_windows).where(windows.at + windows.window_us + 2 * LATE_US <= now))
    fine = (now - FINE_DAYS * DAY_US) // DAY_US * DAY_US
    by_hour = and_(histograms.at < fine, histograms.at % constant(DAY_US) != 0)
    day = (histograms.at - histograms.at % constant(DAY_US)).label("at")
    keys = histograms.rule_id, histograms.window_us, histograms.in_force, day, histograms.level, histograms.low
    rows = select(*keys, histograms.principals, histograms.units).where(by_hour)
    await _add_to_histograms(connection, _summed(rows))
    await connection.execute(delete(use_histograms).where(by_hour))
    await connection.execute(delete(use_histograms).where(histograms.at < now - KEPT_DAYS * DAY_US))


async def use_of(
    connection: AsyncConnection, rule: str, window_us: int, since: int, until: int
) -> dict[int, list[UseBucket]]:
    """Return the use of a rule between two moments, by the limit that was in force.

    It includes all windows that overlap that time, and whole hours or days of folded windows.
    """
    of_rule = use_histograms.c.rule_id == rule, use_histograms.c.window_us == window_us
    while_ = use_histograms.c.at > since - max(window_us, HOUR_US), use_histograms.c.at < until
    past = select(use_histograms).where(*of_rule, *while_)
    principals = use_principals.c
    open_ = principals.at > since - window_us, principals.at < until
    present = _bucketed(principals.at, principals.rule_id == rule, principals.window_us == window_us, *open_)
    both = union_all(past, present).subquery()
    keys = both.c.in_force, both.c.level, both.c.low
    query = select(*keys, sum_of(both.c.principals), sum_of(both.c.units)).group_by(*keys).order_by(*keys)
    found: dict[int, list[UseBucket]] = {}
    for in_force, *bucket in await connection.execute(query):
        found.setdefault(in_force, []).append(UseBucket(*bucket))
    return found


def _bucketed(at: Any, *conditions: Any) -> Any:
    """Return the query for histograms of the principals that are in the samples of all workers."""
    principals, windows = use_principals.c, use_windows.c
    same = and_(*(principals[name] == windows[name] for name in _SERIES))
    in_sample = principals.principal <= constant(_POSITIONS).op(">>", return_type=BigInteger())(windows.level)
    width = case(
        *((principals.units < high, constant(width)) for high, width in _WIDTHS), else_=constant(_WIDTHS[-1][1])
    )
    low = (principals.units - principals.units % width).label("low")
    keys = principals.rule_id, principals.window_us, principals.in_force, at.label("at"), windows.level, low
    rows = select(*keys, constant(1).label("principals"), principals.units)
    return _summed(rows.join_from(use_principals, use_windows, same).where(in_sample, *conditions))


_WIDTHS = [(1 << bits, 1 << (bits - _EXACT_BITS)) for bits in range(_EXACT_BITS, 63)]
"""Pairs (n, width of the buckets below n)."""


def _summed(rows: Any) -> Any:
    """Return the query that sums rows of histograms with equal keys."""
    each = rows.subquery().c
    keys = [each[name] for name in (*_SERIES, "level", "low")]
    summed = select(*keys, sum_of(each.principals).label("principals"), sum_of(each.units).label("units"))
    return summed.group_by(*keys)


async def _add_to_histograms(connection: AsyncConnection, rows: Any) -> None:
    await connection.execute(upsert(connection, use_histograms, add=("principals", "units"), rows=rows))

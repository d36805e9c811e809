"""Problems that the database shows: limits that refuse more than before, keys that expire soon, unused rules.

They are searched once a minute while the overview is being viewed. Each query is bounded: a problem names a few objects
and counts the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import urlencode

from sqlalchemy import Table, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headgate.admin import audit, usage
from headgate.admin.overview import CRITICAL, INFO, MOST_OF_A_KIND, WARNING, Attention, clock
from headgate.admin.tables import api_keys, consumer_keys, overrides, rules, usage_minutes
from headgate.admin.tables import audit as audit_entries
from headgate.admin.usage import MINUTE_US, REQUESTS, UsagePoint
from headgate.core.calendar import DAY_US
from headgate.policy.model import Rule

COMPARED_US = 15 * MINUTE_US
"""The period whose share of refusals is compared with that of the same period a day before."""
FEWEST = 100
"""The least number of requests, or decisions of a rule, for a statement about shares."""
RISEN, RISEN_TIMES = 0.02, 2.0
"""By how much, and by which factor, a share of refusals must have risen to be reported."""
UNUSED_US = 7 * DAY_US
"""Time without decisions after which a rule is unused."""
ENDING_US, EXPIRING_US = DAY_US, 7 * DAY_US
"""How long before their end overrides and keys are reported."""
MOST_SHADOWS = 50
MOST_ENTRIES = 100_000
"""The longest audit trail that is verified automatically."""


async def find_problems(
    connection: AsyncConnection, in_force: Sequence[Rule], refusing: Iterable[str], now: int
) -> list[Attention]:
    """Return problems of rules, overrides and keys; `refusing` are the rules that refuse most at present."""
    enabled = {rule.id: rule for rule in in_force if rule.enabled}
    return [
        *await _find_risen(connection, [REQUESTS, *(rule for rule in refusing if rule in enabled)], now),
        *await _find_shadows(connection, [rule.id for rule in enabled.values() if rule.shadow], now),
        *await _find_unused(connection, enabled, now),
        *await _find_ending(connection, now),
        *await _find_expiring(connection, api_keys, "API key", "/keys", now),
        *await _find_expiring(connection, consumer_keys, "consumer key", "/consumers", now),
    ]


async def audit_fault(connection: AsyncConnection) -> list[Attention]:
    count = (await connection.execute(select(func.count()).select_from(audit_entries))).scalar_one()
    chain = await audit.verify(connection) if count <= MOST_ENTRIES else None
    if chain is None or not chain.fault:
        return []
    what = "The audit trail was changed from outside"
    why = f"Its chain of digests is broken: {chain.fault}. Someone has written to the database directly."
    do = "Compare it with a backup, check who can write to the database, and change that password."
    return [Attention(CRITICAL, "audit", what, why, do, "/audit")]


async def _find_risen(connection: AsyncConnection, names: Sequence[str], now: int) -> Iterator[Attention]:
    """Compare shares of refusals with those of a day before, at the same time of day."""
    last = now - now % MINUTE_US
    named = list(dict.fromkeys(names))[: usage.MOST_SERIES]
    present = await usage.series(connection, named, last - COMPARED_US, MINUTE_US)
    before_until = last - DAY_US
    before = await usage.series(connection, named, before_until - COMPARED_US, MINUTE_US, before_until)
    return (each for name in named if (each := _describe_rise(name, present[name], before[name])) is not None)


def _describe_rise(name: str, present: Iterable[UsagePoint], before: Iterable[UsagePoint]) -> Attention | None:
    counts, share = _share(present)
    old_counts, old_share = _share(before)
    if min(counts, old_counts) < FEWEST or share < old_share + RISEN or share < old_share * RISEN_TIMES:
        return None
    what = f"Rule {name} refuses" if name else "Limits refuse"
    link = _link("/rule", id=name) if name else "/"
    return Attention(
        WARNING,
        "refusals_risen",
        f"{what} {share:.1%} of requests, up from {old_share:.1%} at this time yesterday",
        "More callers exceed their limits, or one caller exceeds them by far.",
        "Check which callers are refused. Stop the abuse, or raise the limits of callers that need more.",
        link,
    )


def _share(points: Iterable[UsagePoint]) -> tuple[int, float]:
    """Return the number of decisions, and the share of refusals."""
    allowed = denied = 0
    for point in points:
        allowed, denied = allowed + point.allowed, denied + point.denied
    return allowed + denied, denied / (allowed + denied or 1)


async def _find_shadows(connection: AsyncConnection, names: Sequence[str], now: int) -> list[Attention]:
    """Return which shadow rules are ready to refuse, and which would refuse a lot."""
    some = names[:MOST_SHADOWS]
    used = await usage.totals(connection, some, now - DAY_US) if some else {}
    ready, harsh = [], []
    for name, counts in used.items():
        denied = counts.get("shadow_denied", 0)
        decided = counts.get("shadow_allowed", 0) + denied
        if decided >= FEWEST and not denied:
            ready.append(name)
        elif decided >= FEWEST and denied / decided >= 0.1:
            harsh.append((denied / decided, name))
    items = [
        Attention(
            WARNING,
            "shadow_harsh",
            f"Shadow rule {name} would refuse {share:.0%} of its requests",
            "Measured over the last 24 hours. A shadow rule refuses nothing.",
            "Raise its limit before you enforce it, or enforce it for a few percent of callers first.",
            _link("/rule", id=name),
        )
        for share, name in sorted(harsh, reverse=True)[:MOST_OF_A_KIND]
    ]
    if ready:
        items.append(
            Attention(
                INFO,
                "shadow_ready",
                f"{_named(ready, 'Shadow rule')} would refuse nothing",
                f"In the last 24 hours it had at least {FEWEST} requests, all within the limit.",
                "Enforce it, for all callers or for a percentage of them: set shadow to false.",
                _link("/rule", id=ready[0]) if len(ready) == 1 else "/rules",
            )
        )
    return items


async def _find_unused(connection: AsyncConnection, enabled: Mapping[str, Rule], now: int) -> list[Attention]:
    """Return the rules that matched no request in the last days, if there were any requests."""
    used = select(usage_minutes.c.at).where(usage_minutes.c.at >= now - UNUSED_US)
    of_rule = used.where(usage_minutes.c.rule_id == rules.c.id).limit(1).exists()
    old = select(rules.c.id).where(rules.c.updated_at < now - UNUSED_US)
    earlier = select(usage_minutes.c.at).where(usage_minutes.c.at < now - UNUSED_US).limit(1)
    if (await connection.execute(earlier)).first() is None or (await connection.execute(used.limit(1))).first() is None:
        return []  # there is too little history, or no traffic at all
    names = [name for (name,) in await connection.execute(old.where(~of_rule)) if name in enabled]
    if not names:
        return []
    return [
        Attention(
            INFO,
            "unused_rules",
            f"{_named(names, 'Rule')} matched no request for 7 days",
            "Its endpoint gets no requests, its path is misspelt, or no client sends its dimension.",
            "Try a request that the rule should match: the result states why it does not. Delete unused rules.",
            _link("/rule", id=names[0]) if len(names) == 1 else "/rules",
        )
    ]


async def _find_ending(connection: AsyncConnection, now: int) -> list[Attention]:
    columns = overrides.c
    soon = columns.until.between(now, now + ENDING_US)
    named = select(columns.user_id, columns.rule_id, columns.until, func.count().over().label("total")).where(soon)
    row = (await connection.execute(named.order_by(columns.until).limit(1))).one_or_none()
    if row is None:
        return []
    what = f"The override of {row.user_id} for rule {row.rule_id} ends at {clock(row.until)}"
    more = f", and {row.total - 1} more within a day" if row.total > 1 else ""
    return [
        Attention(
            INFO,
            "overrides_ending",
            what + more,
            "From then on the usual limit applies.",
            "If it is still needed, set it again with a later end.",
            _link("/who", q=row.user_id),
        )
    ]


async def _find_expiring(connection: AsyncConnection, table: Table, noun: str, link: str, now: int) -> list[Attention]:
    """Return keys that expire soon, except those that have a successor."""
    keys, other = table.c, table.alias().c
    name = "name" if table is api_keys else "consumer"
    good = keys.revoked_at.is_(None), keys.expires_at.between(now, now + EXPIRING_US)
    lasts = or_(other.expires_at.is_(None), other.expires_at > now + EXPIRING_US)
    replaced = select(other.id).where(other[name] == keys[name], other.revoked_at.is_(None), lasts).exists()
    soon = select(keys[name], keys.id, keys.expires_at, func.count().over().label("total")).where(*good, ~replaced)
    first = (await connection.execute(soon.order_by(keys.expires_at).limit(1))).one_or_none()
    if first is None:
        return []
    more = f", and {first.total - 1} more within a week" if first.total > 1 else ""
    return [
        Attention(
            WARNING,
            "keys_expiring",
            f"The {noun} {first[0]} ({first.id}) expires at {clock(first.expires_at)}{more}",
            "Requests with it are refused from then on.",
            "Rotate it with an overlap, and distribute the new key.",
            link,
        )
    ]


def _named(names: Sequence[str], noun: str) -> str:
    if len(names) == 1:
        return f"{noun} {names[0]}"
    more = ", ..." if len(names) > MOST_OF_A_KIND else ""
    return f"{len(names)} {noun.lower()}s ({', '.join(names[:MOST_OF_A_KIND])}{more})"


def _link(path: str, **query: str) -> str:
    return f"{path}?{urlencode(query)}"

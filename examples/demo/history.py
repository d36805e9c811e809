"""Gives the console of the demo a past: what the rules would have decided in the last days.

A service that has served for a week has usage by the minute, use by principal, and refusals by the hour. The
demo cannot wait for that. It has the real engine decide two minutes of the company's requests on a clock of its own,
one ordinary and one with the abuser, scales the outcome for each minute of the past by the hour of the day, and writes
it with the functions that services themselves use. There is no API that accepts usage.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from random import Random
from typing import NamedTuple

import msgspec

from examples.demo.company import PER_SECOND, Call, Company, busyness
from headgate import Engine, MemoryStore, Request, load_rules
from headgate.admin import refusals, usage, what_if
from headgate.admin.database import Database
from headgate.admin.usage import UsageBatch
from headgate.engine import RuleDecision
from headgate.observe.principal_use import WindowUse, measured_window, passed_over
from headgate.observe.recorder import ALLOWED, DEGRADED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED
from headgate.observe.refusals import Refusal
from headgate.policy.prepared import rule_id_of
from headgate.policy.selection import Selection
from headgate.testing import ManualClock

MINUTE_US, HOUR_US, DAY_US = 60_000_000, 3_600_000_000, 86_400_000_000
COARSE = 10
"""Minutes that are written as one before the last day."""
_APART = 30 * MINUTE_US
"""Between two windows of which it is written what principals asked for. Each stands for those until the next one."""
_SAMPLE = 16
"""Principals of such a window that are written, at most twice as many: a sample, as services take them, too."""
_PRINCIPAL_BITS = 63
_CALLERS = 12
"""Refused callers of each hour that are written."""
_INCIDENTS = ((2.1, 35, "abuse"), (9.4, 12, "outage"), (30.2, 50, "abuse"), (77.5, 25, "abuse"), (128.3, 7, "outage"))
"""How many hours ago, for how many minutes, and what."""


class Minute(NamedTuple):
    """What the rules decided in a minute."""

    counts: Mapping[tuple[str, str], int]
    """How often, by rule and outcome."""
    uses: Mapping[tuple[str, int, int], list[int]]
    """Units of each principal, in each window if these are short, by rule, length of the window, and limit in force."""
    refused: Counter[Refusal]
    """How often whom; with a time and a count of 0."""


class Past:
    """What the rules decide in an ordinary minute and in one with the abuser, and the past that is made of it.

    Args:
        rules: in force, as YAML.
        random: what it draws from.
    """

    def __init__(self, rules: str, random: Random) -> None:
        self._random, self._sequence = random, 0
        self._ordinary, self._abused = _decided(rules, random, 0), _decided(rules, random, 30)

    async def write(self, url: str, days: int) -> None:
        """Write so many days until now."""
        database = await Database.open(url)
        try:
            now = time.time_ns() // 1000
            for at in range((now // HOUR_US - 24 * days) * HOUR_US, now - MINUTE_US, HOUR_US):
                until = min(at + HOUR_US, now - MINUTE_US)
                step = MINUTE_US if now - at <= DAY_US + HOUR_US else COARSE * MINUTE_US
                batches = [self._batch(each, step, now) for each in range(at, until, step)]
                batches[0] = batches[0]._replace(uses=list(self._uses(at, until)))
                await usage.add(database, "demo-usage", batches, at)  # as if it came in time
                some = self._refusals(at, now)
                if some:
                    await refusals.add(database, "demo-refusals", self._sequence, some, until)
            async with database.exclusively() as connection:
                await what_if.fold(connection, now)
        finally:
            await database.close()

    def _batch(self, at: int, step: int, now: int) -> UsageBatch:
        """Return what was decided from a moment on."""
        what, minute = self._minute(at, now)
        factor = busyness(at / 1_000_000) * step / MINUTE_US * self._random.gauss(1, 0.06)
        counts = {key: round(count * factor + self._random.random() - 0.5) for key, count in minute.counts.items()}
        if what == "outage":
            counts |= {(rule, DEGRADED): count for (rule, outcome), count in counts.items() if outcome == ALLOWED}
        self._sequence += 1
        return UsageBatch(self._sequence, at, {key: count for key, count in counts.items() if count > 0})

    def _uses(self, at: int, until: int) -> Iterator[WindowUse]:
        """Return the use of principals in windows that begin in an hour."""
        random = self._random
        for (rule, window, limit), units in self._ordinary.uses.items():
            apart, asking = max(_APART, window), units
            everybody = len(units) * apart / MINUTE_US * busyness(at / 1_000_000) / passed_over(window)
            if window > MINUTE_US:  # few ask twice in the minute that was decided, but many in such a window
                asking = [1 + int(random.expovariate(0.5)) for _ in range(200)]
                everybody *= sum(units) / len(units) * len(asking) / sum(asking)
            level = max(0, int(everybody / _SAMPLE).bit_length() - 1)
            for begin in range(-(-at // apart) * apart, until, apart):
                count = round(everybody / 2**level + random.random() - 0.5)
                chosen = [asking[int((place + random.random()) * len(asking) / count)] for place in range(count)]
                shown = {random.getrandbits(_PRINCIPAL_BITS - level): each for each in chosen}
                yield WindowUse(rule, window, limit, begin, level, shown)

    def _refusals(self, at: int, now: int) -> list[Refusal]:
        """Return who was refused in an hour."""
        found = self._minute(at, now)[1].refused.most_common(_CALLERS)
        self._sequence += bool(found)
        times = 60 * busyness(at / 1_000_000)
        return [
            msgspec.structs.replace(each, at=min(at + self._random.randrange(HOUR_US), now), count=round(count * times))
            for each, count in found
        ]

    def _minute(self, at: int, now: int) -> tuple[str, Minute]:
        ago = (now - at) / HOUR_US
        what = next((what for hours, minutes, what in _INCIDENTS if 0 <= hours - ago < minutes / 60), "")
        return what, self._abused if what == "abuse" else self._ordinary


def _decided(rules: str, random: Random, abuse: int) -> Minute:
    """Let an engine decide a minute of requests, of which `abuse` in a second are the abuser's."""
    clock, company = ManualClock(ManualClock.START // MINUTE_US * MINUTE_US), Company(random)
    counts: Counter[tuple[str, str]] = Counter()
    refused: Counter[Refusal] = Counter()
    units: defaultdict[tuple[str, int, int], Counter[object]] = defaultdict(Counter)
    with Engine(load_rules(rules), store=MemoryStore(clock=clock)) as engine:
        for _ in range(60):
            calls = [company.call() for _ in range(int(PER_SECOND))] + [company.abuse() for _ in range(abuse)]
            for call in calls:
                clock.advance(us=1_000_000 // len(calls))
                ruling = engine.check(request_of(call))
                for limit in ruling.limits:
                    if ruling.allowed:
                        counts[limit.rule_id, ALLOWED] += 1
                    elif not limit.decision.allowed:
                        counts[limit.rule_id, DENIED] += 1
                        refused[_refusal(call, limit)] += 1
                for limit in ruling.shadow:
                    counts[limit.rule_id, SHADOW_ALLOWED if limit.decision.allowed else SHADOW_DENIED] += 1
                if isinstance(ruling.selection, Selection):
                    for limits in (ruling.selection.enforced, *ruling.selection.shadow):
                        for one in limits.plan:
                            window = measured_window(one.quota)
                            which = clock.now() // window if 0 < window < MINUTE_US else 0
                            units[rule_id_of(one.space), window, one.quota.limit][one.principal, which] += 1
    return Minute(counts, {key: sorted(found.values()) for key, found in units.items() if key[1]}, refused)


def _refusal(call: Call, limit: RuleDecision) -> Refusal:
    """Return what is noted of a refusal."""
    quota = limit.decision.quota
    counted = {"login-address": call.address, "search-address": call.address, "partners": call.partner}
    principal = counted.get(limit.rule_id, call.user)
    who = principal, call.user, call.partner, call.address
    return Refusal(0, limit.rule_id, *who, call.path, call.method, "check", quota.limit, quota.limit, 1_000_000, "", 0)


def request_of(call: Call) -> Request:
    """Return a call as an engine takes it."""
    named = {"user": call.user, "apikey": call.partner, "ip": call.address}
    principal = {name: value for name, value in named.items() if value}
    return Request(principal, call.path, call.method, attributes={"client": call.client})

"""Estimates of what another limit would have refused, and their bounds."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

from headgate.admin import usage, what_if
from headgate.admin.database import Database
from headgate.admin.objects import ObjectKind
from headgate.admin.tables import use_histograms, use_principals, use_windows
from headgate.admin.usage import UsageWriter
from headgate.admin.what_if import EXACT_BELOW, HOUR_US, LATE_US, Estimate, UseBucket, estimate_refusals, width_of
from headgate.config.problems import InvalidRules
from headgate.core.calendar import DAY_US
from headgate.core.errors import UsageError
from headgate.core.plan import Limit
from headgate.core.quota import Quota
from headgate.engine import AsyncEngine
from headgate.observe.principal_use import MINUTE_US, PrincipalUse, WindowUse
from headgate.observe.recorder import Recorder
from headgate.policy.loading import from_data, rule_from_data
from headgate.policy.request import Request
from headgate.server.decisions import Decisions
from tests.admin.planes import DOCUMENT, Admin, on_sqlite, opened

NOON = 1_800_000_000_000_000 // DAY_US * DAY_US + 12 * HOUR_US


def exact(use: Iterable[int], limit: int) -> int:
    return sum(max(0, units - limit) for units in use)


def low_of(units: int) -> int:
    """Return the number that the bucket of another begins with."""
    return units - units % width_of(units)


def buckets_of(use: Iterable[int]) -> list[UseBucket]:
    principals: Counter[int] = Counter()
    units: Counter[int] = Counter()
    for each in use:
        principals[low_of(each)] += 1
        units[low_of(each)] += each
    return [UseBucket(0, low, principals[low], units[low]) for low in principals]


@given(
    use=st.lists(st.integers(1, 200) | st.integers(1, 10**9)),
    limit=st.integers(1, EXACT_BELOW - 1) | st.integers(1, 10**9),
)
def test_the_estimate_is_within_its_bounds_and_a_bucket_is_narrow_or_exact(use: list[int], limit: int) -> None:
    found = estimate_refusals(buckets_of(use), limit, MINUTE_US)
    truth, near = exact(use, limit), [units for units in use if low_of(units) == low_of(limit)]
    assert found.refused_at_least <= truth <= found.refused_at_most
    assert found.refused_at_least <= found.refused <= found.refused_at_most
    assert found.refused_at_most - found.refused_at_least <= len(near) * max(1, limit // 32) * (width_of(limit) > 1)
    assert (found.units, found.principals, found.standard_error, found.sampled) == (sum(use), len(use), 0, 1.0)
    surely = sum(units > limit for units in use if units not in near)
    assert surely <= found.touched <= surely + len(near)
    if limit < EXACT_BELOW:
        assert found.refused == found.refused_at_least == found.refused_at_most == truth
        assert found.touched == sum(units > limit for units in use)


@given(st.integers(1, 2**50))
def test_buckets_follow_each_other_without_a_gap(units: int) -> None:
    low = low_of(units)
    assert low <= units < low + width_of(low)
    assert low_of(low + width_of(low) - 1) == low
    assert low_of(low + width_of(low)) == low + width_of(low)
    assert width_of(low) == 1 or width_of(low) * 32 <= low


class Traffic:
    """Principals with requests to several workers of several services."""

    def __init__(self, workers: int, *, most: int = 1000, window_us: int = MINUTE_US, limit: int = 5) -> None:
        self.quota = Quota(limit, window_us)
        self.workers = [PrincipalUse(most=most, now=NOON) for _ in range(workers)]
        self.asked: list[Counter[str]] = []

    def window(self, use: Mapping[str, int], seed: int = 0) -> None:
        """Let principals ask for so much in the next window, of one worker or another."""
        chance = random.Random(seed)
        for name, units in use.items():
            limit = Limit(f"orders@user|{self.quota.shape}", name, self.quota)
            first = chance.randrange(units + 1)
            for some in (first, units - first):
                if some:
                    chance.choice(self.workers).record((limit,), some)
        self.asked.append(Counter(use))
        for worker in self.workers:
            worker.second(NOON + len(self.asked) * self.quota.window_us)

    def taken(self) -> list[WindowUse]:
        return [use for worker in self.workers for use in worker.take(everything=True)]

    def refused(self, limit: int) -> int:
        return sum(exact(window.values(), limit) for window in self.asked)


async def added(database: Database, uses: list[WindowUse], now: int = NOON) -> None:
    """Add what was counted, as services do, each of them by itself."""
    for number, use in enumerate(uses):
        await usage.add(database, f"w{number}", [usage.UsageBatch(1, NOON, {}, [use])], now)


async def found(database: Database, limit: int, *, window_us: int = MINUTE_US, in_force: int = 5) -> Estimate:
    async with database.reading() as connection:
        use = await what_if.use_of(connection, "orders", window_us, NOON, NOON + DAY_US)
    return estimate_refusals(use.get(in_force, ()), limit, window_us)


async def folded(database: Database, now: int) -> tuple[int, int, int]:
    """Fold, twice, as two services may; returns how many rows the tables have."""
    for _ in range(2):
        async with database.exclusively() as connection:
            await what_if.fold(connection, now)
    async with database.reading() as connection:
        tables = use_windows, use_principals, use_histograms
        windows, principals, histograms = [
            (await connection.execute(select(func.count()).select_from(table))).scalar_one() for table in tables
        ]
    return windows, principals, histograms


class TestKeeping:
    async def test_the_use_of_few_principals_is_known_exactly(self, url: str) -> None:
        chance, traffic = random.Random(1), Traffic(4)
        for seed in range(3):
            traffic.window({f"user-{each}": chance.choice((1, 3, 40, 300)) for each in range(60)}, seed)
        async with opened(url) as database:
            await added(database, traffic.taken())
            for limit in (1, 5, 39, 63):
                assert (await found(database, limit)).refused == traffic.refused(limit)
            before = [await found(database, limit) for limit in (1, 5, 299, 1000)]
            assert await folded(database, NOON + MINUTE_US) == (3, 180, 0)  # nothing is over for long
            late = NOON + 3 * MINUTE_US + 2 * LATE_US
            assert await folded(database, late - 1) == (1, 60, 4)
            assert [await found(database, limit) for limit in (1, 5, 299, 1000)] == before
            assert await folded(database, late) == (0, 0, 4)
            assert [await found(database, limit) for limit in (1, 5, 299, 1000)] == before

    async def test_a_sample_of_many_principals_is_close_to_all(self, url: str) -> None:
        chance, traffic = random.Random(2), Traffic(3, most=200)
        for seed in range(4):
            traffic.window({f"user-{each}": 1 + int(chance.expovariate(0.1)) for each in range(3000)}, seed)
        async with opened(url) as database:
            await added(database, traffic.taken())
            estimate, truth = await found(database, 15), traffic.refused(15)
            assert 0 < estimate.sampled < 0.2
            assert 0 < estimate.standard_error < truth / 5
            assert abs(estimate.refused - truth) < 4 * estimate.standard_error
            assert abs(estimate.principals - 12_000) < 2400
            await folded(database, NOON + HOUR_US)
            assert await found(database, 15) == estimate

    async def test_the_smallest_sample_of_all_services_counts(self, url: str) -> None:
        """What the others counted of those that it passed over would be too little."""
        low, high = 5 << 31, 3 << 61
        uses = [
            WindowUse("orders", MINUTE_US, 5, NOON, 0, {low: 10, high: 10}),
            WindowUse("orders", MINUTE_US, 5, NOON, 2, {low: 7}),
            WindowUse("orders", MINUTE_US, 5, NOON, 1, {}),
        ]
        async with opened(url) as database:
            await added(database, uses)
            assert await found(database, 5) == Estimate(68, 4, 48, 48, 48, 4, 42, 0.25)

    async def test_use_of_windows_that_ended_long_ago_is_not_added(self, url: str) -> None:
        use = WindowUse("orders", MINUTE_US, 5, NOON, 0, {1: 1})
        async with opened(url) as database:
            await added(database, [use], NOON + MINUTE_US + LATE_US)
            assert (await found(database, 1)).units == 0
            await added(database, [use, use], NOON + MINUTE_US + LATE_US - 1)
            assert (await found(database, 1)).units == 1  # the first batch was known already

    async def test_histograms_are_kept_by_the_day_after_30_days_and_go_after_a_year(self, database: Database) -> None:
        windows = [NOON + hour * HOUR_US for hour in range(-12, 12)]
        uses = [WindowUse("orders", MINUTE_US, 5, at, 0, {1: 9, 2: 100}) for at in windows]
        await added(database, uses, NOON - 12 * HOUR_US)
        assert await folded(database, NOON + 2 * DAY_US) == (0, 0, 48)
        assert await folded(database, NOON + 30 * DAY_US) == (0, 0, 48)
        assert await folded(database, NOON + 31 * DAY_US) == (0, 0, 2)
        async with database.reading() as connection:
            use = await what_if.use_of(connection, "orders", MINUTE_US, NOON - DAY_US, NOON + DAY_US)
        assert use == {5: [UseBucket(0, 9, 24, 216), UseBucket(0, 100, 24, 2400)]}
        assert await folded(database, NOON + 366 * DAY_US) == (0, 0, 0)

    async def test_short_windows_stand_for_those_that_were_passed_over(self, url: str) -> None:
        traffic = Traffic(2, window_us=10_000_000)
        for seed in range(36):  # six minutes
            traffic.window({"ada": 8, "bob": 3}, seed)
        async with opened(url) as database:
            await added(database, traffic.taken())
            estimate = await found(database, 5, window_us=10_000_000)
            assert (estimate.units, estimate.refused, estimate.touched) == (36 * 11, 36 * 3, 36)
            assert estimate.sampled == pytest.approx(1 / 6)


async def test_decisions_of_a_service_are_written_to_the_database(tmp_path: Path) -> None:
    """By rules, of several together as well, in shadow, and whether it is admitted or not."""
    recorder = Recorder(principal_use=True)
    async with opened(f"sqlite:///{tmp_path}/headgate.db") as database:
        writer = UsageWriter(database, recorder.worker_counts, used=recorder.take_use)
        decisions = Decisions(AsyncEngine(from_data(DOCUMENT)), recorder)
        with closing(recorder):
            for _ in range(8):
                await decisions.engine.check(Request({"user": "ada"}, endpoint="/orders"))
            await decisions.engine.check(Request({"user": "bob"}, endpoint="/orders", cost=3))
            await decisions.engine.peek(Request({"user": "bob"}, endpoint="/orders"))
            await writer.finish()
        now = time.time_ns() // 1000
        async with database.reading() as connection:
            use = await what_if.use_of(connection, "orders-user", MINUTE_US, now - HOUR_US, now)
            counted, _ = await usage.page(connection, {}, "hour", 0, 9)
    assert [(row["rule_id"], row["outcome"], row["count"]) for row in counted] == [
        ("orders-user", "allowed", 6),
        ("orders-user", "denied", 3),
    ]
    assert use == {5: [UseBucket(0, 3, 1, 3), UseBucket(0, 8, 1, 8)]}


class TestWhichLimit:
    def test_one_of_several_windows_is_to_be_named(self) -> None:
        for quota, window_us, said in (
            ("10/s; 500/day", None, "has several windows: choose one of 1 s, 86400 s"),
            ("10/s; 500/day", MINUTE_US, "has no such window: choose one of 1 s, 86400 s"),
            ("10 once", None, "it has no window of at most 31d"),
        ):
            with pytest.raises(UsageError, match=said):
                what_if.limit_change(rule_from_data({"id": "a", "quota": quota}), 5, window_us)
        change = what_if.limit_change(rule_from_data({"id": "a", "quota": "10/s; 500/day"}), 400, DAY_US)
        assert (change.quota, change.in_force, change.window_us) == (Quota(400, DAY_US), 500, DAY_US)

    def test_limits_that_differ_between_rules_are_found_for_tiers_too(self) -> None:
        def rules(base: int, gold: int) -> Any:
            return from_data(
                {
                    "version": 1,
                    "rules": [
                        {"id": "a", "limit": base, "window": "1m"},
                        {"id": f"only-{base}", "limit": 1, "window": "1m"},
                        {"id": "same", "limit": 1, "window": "1m"},
                        {"id": "other-window", "limit": base, "window": base},
                    ],
                    "tiers": {"gold": {"a": {"limit": gold}, "same": {"limit": 9}}},
                }
            )

        changes = what_if.changes_between(rules(10, 50), rules(7, 40))
        found = {key: [(each.quota.limit, each.in_force) for each in some] for key, some in changes.items()}
        assert found == {("", "a"): [(7, 10)], ("gold", "a"): [(40, 50)]}


class TestAsking:
    @staticmethod
    async def used(database: Database) -> int:
        """Let principals ask for something within the last minutes; returns when."""
        now = time.time_ns() // 1000
        at = now // MINUTE_US * MINUTE_US - MINUTE_US
        uses = [
            WindowUse("orders-user", MINUTE_US, 5, at, 0, {1: 4, 2: 5, 3: 9}),
            WindowUse("orders-user", MINUTE_US, 50, at, 0, {4: 40, 5: 11}),
        ]
        await usage.add(database, "me", [usage.UsageBatch(1, at, {}, uses)], now)
        return now

    async def test_viewers_read_it_over_http(self, admin: Admin, database: Database) -> None:
        await self.used(database)

        async def ask(query: str) -> Any:
            return await admin.ask("GET", f"/api/v1/rules/orders-user/what-if?{query}", role="viewer")

        answer = (await ask("limit=4")).json()
        assert answer | {"since": "", "until": "", "assumes": ""} == {
            "rule_id": "orders-user",
            "limit": 4,
            "in_force": 5,
            "window_seconds": 60.0,
            "since": "",
            "until": "",
            "assumes": "",
            "units": 18,
            "principals": 3,
            "refused": 6,
            "refused_at_least": 6,
            "refused_at_most": 6,
            "touched": 2,
            "standard_error": 0,
            "sampled": 1.0,
            "exact": False,
            "others": [{"in_force": 50, "units": 51}],
            "hot_keys": [],
            "not_counted": [],
        }
        assert "fixed windows of 1m, and 4/minute is a token bucket: an estimate" in answer["assumes"]
        gold = (await ask("limit=10&in_force=50&window_seconds=60")).json()
        assert (gold["refused"], gold["touched"]) == (31, 2)
        assert (await ask("limit=4&until=60000000")).json()["units"] == 0
        for wrong in ("", "limit=0", "limit=x", "limit=4&window_seconds=61", "limit=4&since=-1"):
            assert (await ask(wrong)).status_code == 400, wrong
        missing = await admin.ask("GET", "/api/v1/rules/nowhere/what-if?limit=1", role="viewer")
        assert missing.status_code == 404
        keys = [("orders-user", "#1", 2.0), ("all-ip", "#2", 9.0), ("orders-user", "#3", 0.05)]
        hot = ",".join(f'{{"rule":"{rule}","key":"{key}","per_second":{rate}}}' for rule, key, rate in keys)
        admin.service.hot_keys = f'{{"hot":[{hot}],"denied":[]}}'.encode
        assert (await ask("limit=4")).json()["hot_keys"] == [{"key": "#1", "per_second": 2.0}], "refused at present"

    async def test_a_rule_is_tried_with_its_tiers_and_nothing_is_changed(
        self, admin: Admin, database: Database
    ) -> None:
        """What is said of the rule's own limit and of those in tiers, and of limits that cannot be compared."""
        await self.used(database)
        rule, revision = DOCUMENT["rules"][0], await admin.catalog.revision()
        tried = await admin.service.try_rule("orders-user", {**rule, "limit": 4})
        assert [(each["tier"], each["day"]["refused"]) for each in tried["what_if"]] == [("", 6)]
        assert (tried["before"]["limit"], tried["after"]["limit"], tried["state"]) == (5, 4, "kept")
        tried = await admin.service.try_rule("orders-user", {**rule, "window": "1h", "shadow": True})
        assert (tried["what_if"], tried["not_comparable"], tried["state"]) == ([], ["5/hour"], "afresh")
        tried = await admin.service.try_rule("new", {"id": "new", "limit": 4, "window": "1m"})
        assert (tried["before"], tried["after"]["limit"]) == (None, 4)
        with pytest.raises(InvalidRules, match="rule 'nowhere' does not exist"):
            await admin.service.try_rule("orders-user", {**rule, "replaces": ["nowhere"]})
        assert await admin.catalog.revision() == revision
        await admin.ask("PATCH", "/api/v1/rules/orders-user", {"shadow": True})
        filters = [{"enabled": True, "shadow": flag} for flag in (True, False)]
        found = [(await admin.catalog.page(ObjectKind.RULE, each, "id", 0, 9)).total for each in filters]
        assert found == [1, 2]

    @on_sqlite
    async def test_uncounted_and_inexact_quotas_are_reported(self, admin: Admin) -> None:
        limits = {
            "long": "5/minute; 900/365d",
            "fixed": "5/minute fixed_window",
            "odd": "5 per 1500ms fixed_window",
            "calendar": "5/day in Europe/Berlin",
            "gcra": "5/minute burst 3 gcra",
        }
        said = {}
        for name, quota in limits.items():
            made = await admin.ask("POST", "/api/v1/rules", {"id": name, "quota": quota})
            assert made.status_code == 201, made.text
            said[name] = (await admin.ask("GET", f"/api/v1/rules/{name}/what-if?limit=4")).json()
        assert {name: answer["not_counted"] for name, answer in said.items()} == {
            **{name: [] for name in limits},
            "long": ["900/365d"],
        }
        assert [name for name, answer in said.items() if answer["exact"]] == ["fixed"]
        assert "is one of another length: an estimate" in said["odd"]["assumes"]
        assert "is counted by the calendar: an estimate" in said["calendar"]["assumes"]
        assert said["gcra"]["assumes"].endswith("is a gcra: an estimate that ignores its burst")
        file = {"version": 1, "tiers": {}, "rules": [{"id": "long", "quota": "6/minute; 900/365d"}]}
        tried = (await admin.ask("POST", "/api/v1/apply?dry_run=true", file)).json()
        (changed,) = [each for each in tried["changes"] if each["id"] == "long"]
        assert changed["not_counted"] == ["900/365d"]

    async def test_a_dry_run_of_a_file_estimates_what_its_limits_would_have_refused(
        self, admin: Admin, database: Database
    ) -> None:
        await self.used(database)

        async def tried(limit: int, gold: int) -> dict[str, list[tuple[int, int, int, int]]]:
            rules = [{**DOCUMENT["rules"][0], "limit": limit}, *DOCUMENT["rules"][1:]]
            document = {**DOCUMENT, "rules": rules, "tiers": {"gold": {"orders-user": {"limit": gold}}}}
            answer = await admin.ask("POST", "/api/v1/apply?dry_run=true", document)
            return {
                f"{each['kind']} {each['id']}": [
                    (found["in_force"], found["limit"], found["refused"], found["units"]) for found in each["what_if"]
                ]
                for each in answer.json()["changes"]
            }

        assert await tried(4, 50) == {"rule orders-user": [(5, 4, 6, 18)]}
        assert await tried(5, 11) == {"tier gold": [(50, 11, 29, 51)]}
        both = [(5, 4, 6, 18), (50, 11, 29, 51)]
        assert await tried(4, 11) == {"rule orders-user": both, "tier gold": []}

"""A replay decides as the engine does, at the time of each line, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.core.errors import UsageError
from headgate.engine import Engine, Ruling
from headgate.policy.loading import load
from headgate.policy.request import Request
from headgate.replay import results
from headgate.replay.logs import Entry
from headgate.replay.replaying import Fields, Replay, ReplaySummary
from headgate.replay.report import report
from headgate.replay.results import MOST_BUCKETS, MOST_CELLS, Distinct, Timeline, hash_of
from headgate.stores.memory import MemoryStore
from headgate.testing import ManualClock
from headgate.testing.reference import ReferenceStore
from tests.replay.samples import RULES, SECOND, START, entries

TEXT = st.one_of(
    st.text(st.characters(), max_size=20),
    st.sampled_from(("ada", "192.0.2.1", "10.0.0.66", "GET", "/login", "\ud800", "x" * 70_000, "")),
)
"""Text of lines, including lone surrogates, as of JSON."""
PER_USER = "version: 1\nrules: [{id: per-user, dimension: user, limit: 2, window: 1m}]"


def entry(second: float, user: str = "ada", **more: str) -> Entry:
    return Entry(START + int(second * SECOND), "192.0.2.1", user, "GET", "/", "", 200, fields=more)


def replayed(log: Iterable[Entry], *rules: str, **options: object) -> ReplaySummary:
    replay = Replay([load(text) for text in rules or (PER_USER,)], **options)  # type: ignore[arg-type]
    replay.run(log)
    return replay.summary()


def test_decisions_are_those_of_the_engine_line_by_line() -> None:
    """Compared with an engine on the memory store of services, and one on the pure core."""
    ruleset, clock = load(RULES), ManualClock(0)
    others = [Engine(ruleset, store=MemoryStore(clock=clock)), Engine(ruleset, store=ReferenceStore(clock))]
    lines = refused = errors = 0
    for each, _, (ruling,) in Replay([ruleset]).decide(entries(2000)):
        clock.set(max(clock.now(), each.at))
        named = {"user": each.user, "ip": each.address}
        request = Request({name: value for name, value in named.items() if value}, each.path, each.method)
        for engine in others:
            expected: Ruling | None
            try:
                expected = engine.check(request)
            except UsageError:
                expected = None
            assert decision_of(ruling) == decision_of(expected), each
        lines += 1
        refused += ruling is not None and not ruling.allowed
        errors += ruling is None
    assert lines == 2000
    assert refused > 200
    assert errors


def decision_of(ruling: Ruling | None) -> object:
    """Return the content of a ruling."""
    if ruling is None:
        return None
    return ruling.allowed, ruling.verdict, ruling.decision, ruling.rule_id, ruling.rules, ruling.limits, ruling.shadow


def test_counts_equal_the_decisions() -> None:
    replay = Replay([load(RULES)])
    decided, refused, shadow = dict[str, int](), dict[str, int](), dict[str, int]()
    admitted = only_shadow = 0
    for _, _, (ruling,) in Replay([load(RULES)]).decide(entries(1500)):
        if ruling is None:
            continue
        admitted += ruling.allowed
        only_shadow += ruling.allowed and bool(ruling.shadow_denied)
        for rule in {*ruling.rules, *ruling.shadow_rules}:
            decided[rule] = decided.get(rule, 0) + 1
        for rule in {each.rule_id for each in ruling.limits if not each.decision.allowed}:
            refused[rule] = refused.get(rule, 0) + 1
        for rule in {*ruling.shadow_denied}:
            shadow[rule] = shadow.get(rule, 0) + 1
    replay.run(entries(1500))
    (summary,) = replay.summary().rules
    assert (summary.allowed, summary.would_refuse) == (admitted, only_shadow)
    assert summary.requests == summary.allowed + summary.refused == 1500 - summary.invalid
    assert {rule.id: rule.decided for rule in summary.rules if rule.decided} == decided
    assert {rule.id: rule.refused.count for rule in summary.rules if rule.refused.count} == refused
    assert {rule.id: rule.would_refuse.count for rule in summary.rules if rule.would_refuse.count} == shadow
    assert {"login-ip", "login-half"} <= shadow.keys()
    assert sum(summary.refused_over_time) == summary.refused
    assert sum(summary.would_refuse_over_time) == only_shadow > 0
    for each in summary.rules:
        assert sum(each.decided_over_time) == each.decided
        assert sum(each.refused_over_time) == each.refused.count
        assert sum(one.count for one in each.refused.top) <= each.refused.count


def test_a_summary_has_the_refused_principals_and_the_first_refusal() -> None:
    summary = replayed([entry(0), entry(1), entry(2), entry(3), entry(3, "bob"), entry(63), entry(64, "")])
    (rules,) = summary.rules
    (rule,) = rules.rules
    assert (rules.requests, rules.refused, rules.principals_refused, rules.unmatched) == (7, 2, 1, 1)
    assert (rule.decided, rule.principals, rule.refused.count) == (6, 2, 2)
    assert [(each.principal, each.count) for each in rule.refused.top] == [("ada", 2)]
    assert rule.refused.first is not None
    assert rule.refused.first.at == "2026-10-26T07:33:22Z"
    assert (summary.began, summary.ended) == ("2026-10-26T07:33:20Z", "2026-10-26T07:34:24Z")
    assert (summary.buckets_from, summary.bucket_seconds) == ("2026-10-26T07:33:20Z", 1)
    assert rules.refused_over_time[:5] == [0, 0, 1, 1, 0]


def test_the_clock_never_goes_back_and_late_lines_are_counted() -> None:
    """A late line is decided in the window of the last one, not in its own."""
    summary = replayed([entry(60), entry(61), entry(0), entry(59.5)])
    assert (summary.late, summary.latest_seconds, summary.rules[0].refused) == (2, 61, 2)


def test_lines_outside_the_period_are_ignored() -> None:
    log = [entry(second) for second in range(10)]
    summary = replayed(log, period=(START + 3 * SECOND, START + 7 * SECOND))
    assert (summary.lines, summary.outside, summary.rules[0].refused) == (4, 6, 2)


def test_principals_attributes_and_tiers_come_from_fields_of_the_log() -> None:
    rules = """
    version: 1
    rules:
      - {id: per-key, dimension: apikey, limit: 1, window: 1m}
      - {id: per-tenant, dimension: tenant, when: {region: eu}, limit: 1, window: 1m}
    tiers: {gold: {per-key: {limit: 2}}}
    """
    log = [entry(0, key="k1", customer=f"c{number}", country="eu", plan="gold") for number in range(3)]
    log += [entry(1, key="k2", customer="c1", country="us") for _ in range(2)]
    fields = Fields({"api_key": "key", "tenant": "customer"}, {"region": "country", "other": "absent"}, "plan")
    summary = replayed(log, rules, fields=fields)
    assert {rule.id: (rule.decided, rule.refused.count) for rule in summary.rules[0].rules} == {
        "per-key": (5, 2),
        "per-tenant": (3, 0),
    }
    assert summary.fields_missing == ("absent",)


def test_an_api_key_of_the_format_needs_no_mapping() -> None:
    summary = replayed([entry(0, apikey="k1")] * 2, PER_USER.replace("user", "apikey"))
    assert summary.rules[0].rules[0].decided == 2


def test_lists_and_requests_without_a_rule_are_counted_separately() -> None:
    rules = PER_USER + "\nallow: [{user: eve}]\ndeny: [{user: mal}]"
    (found,) = replayed([entry(0, name) for name in ("ada", "eve", "eve", "mal", "", "")], rules).rules
    assert (found.requests, found.allowed, found.refused) == (6, 5, 1)
    assert (found.allow_listed, found.deny_listed.count, found.unmatched) == (2, 1, 2)
    assert [each.principal for each in found.deny_listed.top] == ["mal, 192.0.2.1"]


def test_two_rulesets_are_compared_in_one_pass() -> None:
    other = PER_USER.replace("limit: 2", "limit: 1") + "\ndeny: [{ip: 192.0.2.9}]"
    log = [entry(0), entry(1), entry(2), entry(3, "bob"), entry(3, "bob"), entry(4, "eve")]
    log += [entry(5, "mal")._replace(address="192.0.2.9")]
    changes = replayed(log, PER_USER, other).comparison
    assert changes is not None
    assert (changes.newly_refused, changes.principals_newly_refused, changes.newly_admitted) == (3, 3, 0)
    assert {rule: each.count for rule, each in changes.refused_by.items()} == {"per-user": 2, "deny list": 1}
    back = replayed(log, other, PER_USER).comparison
    assert back is not None
    assert (back.newly_refused, back.newly_admitted) == (0, 3)
    assert [each.principal for each in back.admitted_by["per-user"].top] == ["ada", "bob"]


def test_each_of_two_rulesets_decides_as_it_does_alone() -> None:
    other = RULES.replace("limit: 5,", "limit: 3,")
    together = replayed(entries(600), RULES, other)
    assert together.rules == (*replayed(entries(600), RULES).rules, *replayed(entries(600), other).rules)


def test_a_longer_log_of_more_callers_needs_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits are bounded by those of the store, and names by the samples."""
    monkeypatch.setattr(results, "LARGEST", 800)

    def many(count: int) -> Iterable[Entry]:
        for number in range(count):
            yield Entry(START + number * 40_000, f"10.{number % 250}.2.1", f"user{number}", "GET", "/", "", 200)

    rules = PER_USER + "\n"
    rules = rules.replace("limit: 2, window: 1m", "limit: 1, window: 7d") + "default: {limit: 1, window: 1s}\n"
    replay = Replay([load(rules)], max_keys=400)
    tracemalloc.start()
    try:
        replay.run(many(1000))
        before = tracemalloc.get_traced_memory()[0]
        replay.run(many(2000))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 200_000
    assert replay.summary().stores_full
    assert len(replay.summary().rules[0].requests_over_time) <= 360


def test_an_interrupted_replay_has_the_results_until_then() -> None:
    def interrupted() -> Iterable[Entry]:
        yield entry(0)
        raise KeyboardInterrupt

    replay = Replay([load(PER_USER)])
    with pytest.raises(KeyboardInterrupt):
        replay.run(interrupted())
    assert replay.summary(is_complete=False).rules[0].requests == 1


def test_buckets_get_wider_and_lose_nothing() -> None:
    timeline = Timeline()
    series = timeline.series()
    for number in range(5000):
        timeline.move(START + number * number * SECOND)
        series[timeline.bucket] += 1
        assert timeline.bucket * timeline.width_us <= START + number * number * SECOND < timeline.ends
    counts = timeline.dense(series)
    assert sum(counts) == 5000
    assert MOST_BUCKETS / 6 < len(counts) <= MOST_BUCKETS
    assert timeline.width_us == 86_400 * SECOND
    days = [(START + number * number * SECOND) // timeline.width_us for number in range(5000)]
    assert counts[0] == days.count(timeline.starts() // timeline.width_us)


def test_a_log_of_thousands_of_years_has_few_buckets() -> None:
    timeline = Timeline()
    series = timeline.series()
    for at in (0, 253_402_300_799 * SECOND):
        timeline.move(at)
        series[timeline.bucket] = 1
    assert 1 < len(timeline.dense(series)) <= MOST_BUCKETS
    assert sum(timeline.dense(series)) == 2


def test_many_rules_share_the_buckets() -> None:
    timeline = Timeline()
    every = [timeline.series() for _ in range(1000)]
    for second in range(300):
        timeline.move(START + second * SECOND)
        for series in every:
            series[timeline.bucket] += 1
    assert sum(map(len, every)) <= MOST_CELLS + 1000
    assert all(sum(timeline.dense(series)) == 300 for series in every)


def test_principals_are_counted_exactly_and_then_estimated() -> None:
    few, many = Distinct(500), Distinct(500)
    for number in range(1000):
        few.add(hash_of(f"user{number % 800}"))
    assert (few.count(), few.is_exact) == (800, True)
    for number in range(200_000):
        many.add(hash_of(f"user{number}"))
    assert not many.is_exact
    assert abs(many.count() - 200_000) < 20_000


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-(10**15), 253_402_300_799 * SECOND), TEXT, TEXT, TEXT, TEXT, TEXT), max_size=8))
@example([(START, "10.0.0.66", "\ud800", "GET", "/login", "\ud800\x1b")])
@example([(START, "10.0.0.66", "x" * 70_000, "M" * 70_000, "/" + "x" * 70_000, "x" * 400_000)])
@example([(START, "10.0.0.66", "ada", "M" * 400_000, "/login", "x" * 400_000)])
def test_any_line_can_be_replayed_and_reported(lines: list[tuple[int, str, str, str, str, str]]) -> None:
    replay = Replay([load(RULES), load(RULES)], fields=Fields({"tenant": "x"}, {"region": "y"}, "z"))
    fields = [dict.fromkeys("xyz", each[-1]) for each in lines]
    replay.run(
        Entry(at, address, user, method, path, agent, 429, agent, more)
        for (at, address, user, method, path, agent), more in zip(lines, fields, strict=True)
    )
    summary = replay.summary()
    assert msgspec.json.decode(msgspec.json.encode(summary), type=dict)
    assert report(summary, ["a.yaml", "b.yaml"], ["access.log"]).encode()
    assert len(msgspec.json.encode(summary)) < 300_000

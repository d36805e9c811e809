"""The recorder: every decision is counted where it belongs, in a bounded number of series."""

from __future__ import annotations

import asyncio
import logging
import mmap
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
import pytest

from headgate.engine import AsyncEngine, JointRequest
from headgate.engine.descriptors import Answered, AsyncDescriptorEngine
from headgate.observe.hot_keys import EVERY
from headgate.observe.logs import Principals
from headgate.observe.recorder import DENIED, DOMAIN_EVERY, MOST_BY_VALUE, MOST_TIMED, Recorder, RuleSeries
from headgate.observe.table import SIZE, CounterTable, TableReader
from headgate.policy.envoy import Matching, loading
from headgate.policy.envoy.request import Descriptor
from headgate.policy.loading import from_data, load
from headgate.policy.request import Request
from headgate.server.decisions import Decisions
from headgate.testing import ManualClock
from tests.observe.readings import families, samples, value

RULES = """
version: 1
rules:
  - {id: orders-user, dimension: user, endpoint: /orders/**, limit: 3, window: 1h}
  - {id: all-ip, dimension: ip, endpoint: /orders/**, limit: 5, window: 1h}
  - {id: trial, dimension: user, endpoint: /trial, limit: 1, window: 1h, shadow: true}
  - {id: two, dimension: user, endpoint: /two, limits: [{limit: 2, window: 1s}, {limit: 2, window: 1h}]}
  - {id: single, dimension: user, endpoint: /single, limit: 2, window: 1h}
deny: [{ip: 192.0.2.0/24}]
allow: [{user: root}]
"""
T = TypeVar("T")
Run = Callable[[Awaitable[T]], T]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder(principals=Principals(plain=True))
    yield made
    made.close()


@pytest.fixture
def run() -> Iterator[Run[Any]]:
    with asyncio.Runner() as runner:

        async def wait(work: Awaitable[T]) -> T:
            return await work

        yield lambda work: runner.run(wait(work))


def decisions_of(recorder: Recorder) -> dict[tuple[str, str], float]:
    return {
        (labels["rule"], labels["outcome"]): number
        for (name, pairs), number in samples(recorder.metrics()[1]).items()
        if name == "headgate_rule_decisions_total" and (labels := dict(pairs))
    }


def by_rule(recorder: Recorder, wanted: str) -> dict[str, float]:
    """What a metric says of each rule."""
    found = samples(recorder.metrics()[1]).items()
    return {dict(pairs)["rule"]: number for (name, pairs), number in found if name == wanted}


def timed(recorder: Recorder) -> dict[str, float]:
    return by_rule(recorder, "headgate_decision_duration_seconds_count")


def near_limit(recorder: Recorder) -> dict[str, float]:
    return by_rule(recorder, "headgate_rule_near_limit_total")


def engine() -> AsyncEngine:
    return AsyncEngine(load(RULES))


def test_a_request_counts_for_every_rule_it_meets(recorder: Recorder, run: Run[Any]) -> None:
    decisions = Decisions(engine(), recorder)
    for _ in range(4):
        run(decisions.check(Request({"user": "ada", "ip": "203.0.113.9"}, "/orders/7")))
    counted = {("orders-user", "allowed"): 3, ("all-ip", "allowed"): 3, ("orders-user", "denied"): 1}
    assert decisions_of(recorder) == counted
    assert timed(recorder) == {"orders-user": 4}
    assert near_limit(recorder) == {"orders-user": 1}  # the third of three


def test_a_rule_with_several_limits_counts_once(recorder: Recorder, run: Run[Any]) -> None:
    decisions = Decisions(engine(), recorder)
    for _ in range(3):
        run(decisions.check(Request({"user": "ada"}, "/two")))
    assert decisions_of(recorder) == {("two", "allowed"): 2, ("two", "denied"): 1}


def test_a_single_limit_takes_the_short_way_to_the_same_counters(recorder: Recorder, run: Run[Any]) -> None:
    decisions = Decisions(engine(), recorder)
    for _ in range(5):
        run(decisions.check(Request({"user": "ada"}, "/single")))
    assert decisions_of(recorder) == {("single", "allowed"): 2, ("single", "denied"): 3}


def test_shadow_rules_have_outcomes_of_their_own(recorder: Recorder, run: Run[Any]) -> None:
    decisions = Decisions(engine(), recorder)
    for _ in range(3):
        run(decisions.check(Request({"user": "ada"}, "/trial")))
    assert decisions_of(recorder) == {("trial", "shadow_allowed"): 1, ("trial", "shadow_denied"): 2}
    assert value(recorder.metrics()[1], "headgate_unlimited_decisions_total", verdict="unlimited") == 3


def test_lists_and_what_no_rule_meets_are_counted_apart(recorder: Recorder, run: Run[Any]) -> None:
    decisions = Decisions(engine(), recorder)
    run(decisions.check(Request({"user": "root"}, "/orders/1")))
    run(decisions.check(Request({"ip": "192.0.2.1"}, "/orders/1")))
    run(decisions.check(Request({"user": "ada"}, "/nothing")))
    text = recorder.metrics()[1]
    assert decisions_of(recorder) == {}
    for verdict in ("allowed", "denied", "unlimited"):
        assert value(text, "headgate_unlimited_decisions_total", verdict=verdict) == 1


def test_what_takes_nothing_is_timed_and_decides_nothing(recorder: Recorder, run: Run[Any]) -> None:
    decisions = Decisions(engine(), recorder)
    request = Request({"user": "ada"}, "/single")
    run(decisions.peek(request))
    run(decisions.check(Request({"user": "ada"}, "/single", cost=0)))
    run(decisions.peek(Request({"user": "ada"}, rule_id="single")))
    run(decisions.check(Request({"user": "ada"}, cost=0, rule_id="single")))
    run(decisions.check_together([JointRequest(request, refund=True)]))
    run(decisions.reset(request))
    text = recorder.metrics()[1]
    assert decisions_of(recorder) == {}
    assert value(text, "headgate_peeks_total") == 4
    assert sum(timed(recorder).values()) == 4
    assert value(text, "headgate_refunds_total") == 1
    assert value(text, "headgate_resets_total") == 1


def test_one_rule_asked_for_by_its_id(recorder: Recorder, run: Run[Any]) -> None:
    decisions = Decisions(engine(), recorder)
    for _ in range(3):
        run(decisions.check(Request({"user": "ada"}, rule_id="single")))
    run(decisions.check(Request({"user": "ada"}, rule_id="any-id-a-client-may-send")))
    assert decisions_of(recorder) == {("single", "allowed"): 2, ("single", "denied"): 1}
    assert value(recorder.metrics()[1], "headgate_unlimited_decisions_total", verdict="unlimited") == 1


def test_principals_that_no_rule_knows_are_counted(recorder: Recorder, run: Run[Any]) -> None:
    decisions = Decisions(engine(), recorder)
    for _ in range(2):
        run(decisions.check(Request({"user": "ada", "api_key": "ak_1", "any-name": "x"}, "/single")))
    text = recorder.metrics()[1]
    counts = {
        name: value(text, "headgate_unmatched_principals_total", principal=name) for name in ("user", "apikey", "other")
    }
    assert counts == {"user": 0, "apikey": 2, "other": 2}


def test_calls_are_counted_by_api_and_outcome(recorder: Recorder) -> None:
    recorder.called("check", "allowed", 15_000)
    recorder.called("check", "error", 5_000_000_000)
    recorder.shed("check")
    text = recorder.metrics()[1]
    for outcome, count in {"allowed": 1, "denied": 0, "error": 1, "shed": 1}.items():
        assert value(text, "headgate_checks_total", api="check", outcome=outcome) == count
    assert value(text, "headgate_check_duration_seconds_bucket", api="check", le="1e-05") == 0
    assert value(text, "headgate_check_duration_seconds_bucket", api="check", le="2e-05") == 1
    assert value(text, "headgate_check_duration_seconds_count", api="check") == 2  # nothing took time that was shed
    assert value(text, "headgate_check_duration_seconds_sum", api="check") == 5.000015


def test_every_call_is_logged_only_where_that_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for is_wanted in (False, True):
        recorder = Recorder(access_log=is_wanted)
        recorder.called("check", "allowed", 15_999)
        recorder.close()
    (line,) = caplog.records
    assert line.__dict__["headgate_fields"] == {"api": "check", "outcome": "allowed", "microseconds": 15}


def test_a_refusal_is_logged_with_the_rule_and_who_it_was_and_through_which_api(
    recorder: Recorder, run: Run[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    decisions = Decisions(engine(), recorder).via("batch")
    for _ in range(3):
        run(decisions.check(Request({"user": "ada"}, "/single")))
    run(decisions.check(Request({"ip": "192.0.2.1"}, "/orders/1")))
    one, other = [line.__dict__["headgate_fields"] for line in caplog.records]
    assert one.pop("retry_after") > 0
    assert one == {"rule": "single", "principal": "ada", "api": "batch", "reason": None}
    assert other == {
        "rule": None,
        "principal": "ip=192.0.2.1",
        "api": "batch",
        "reason": "deny list",
        "retry_after": None,
    }


def test_refusals_left_out_of_the_log_are_counted(recorder: Recorder, run: Run[Any]) -> None:
    decisions = Decisions(engine(), recorder)
    for _ in range(2 + 15):
        run(decisions.check(Request({"user": "ada"}, "/single")))
    recorder.publish()
    assert value(recorder.metrics()[1], "headgate_denials_unlogged_total") == 5


def test_hot_and_denied_keys_are_found_by_what_the_rule_counts(recorder: Recorder, run: Run[Any]) -> None:
    decisions = Decisions(AsyncEngine(load(RULES.replace("limit: 2,", "limit: 100,"))), recorder)
    for number in range(EVERY * 40):
        run(decisions.check(Request({"user": "ada"}, "/single")))
        run(decisions.check(Request({"user": f"user-{number}"}, "/single")))
        run(decisions.check(Request({"ip": "2001:db8:1:2::7"}, "/orders/1")))
    report = msgspec.json.decode(recorder.hot_keys())
    expected = {("2001:db8:1:2::/64", "all-ip"), ("ada", "single")}
    assert {(each["key"], each["rule"]) for each in report["denied"]} == expected
    assert {each["key"] for each in report["hot"][:2]} == {"2001:db8:1:2::/64", "ada"}


def test_those_that_shadow_rules_would_refuse_are_found(recorder: Recorder, run: Run[Any]) -> None:
    decisions = Decisions(engine(), recorder)
    for user in ("ada", "ada", "ada", "bob", "bob", "carl"):
        run(decisions.check(Request({"user": user}, "/trial")))
    report = msgspec.json.decode(recorder.hot_keys())
    assert [(each["key"], each["rule"]) for each in report["would_refuse"]] == [("ada", "trial"), ("bob", "trial")]
    assert report["denied"] == []


def test_a_principal_of_any_length_is_remembered_in_bounded_space(recorder: Recorder, run: Run[Any]) -> None:
    decisions = Decisions(engine(), recorder)
    for _ in range(3):
        run(decisions.check(Request({"user": "x" * 60_000}, "/single")))
        run(decisions.check(Request({"user": "x" * 60_001}, "/single")))
    one, other = msgspec.json.decode(recorder.hot_keys())["denied"]
    assert len(one["key"]) <= 128
    assert one["key"] != other["key"]


def test_ten_thousand_rules_have_their_series(recorder: Recorder, run: Run[Any]) -> None:
    rules = [
        {"id": f"rule-{n}", "dimension": "user", "endpoint": f"/{n}", "limit": 1, "window": "1h"} for n in range(10_000)
    ]
    decisions = Decisions(AsyncEngine(from_data({"version": 1, "rules": rules})), recorder)

    async def everything() -> None:
        for _ in range(2):
            for number in range(10_000):
                await decisions.check(Request({"user": "ada"}, f"/{number}"))

    run(everything())
    counted = decisions_of(recorder)
    assert len(counted) == 20_000
    assert set(counted.values()) == {1}
    assert len(near_limit(recorder)) == 10_000
    by_themselves = timed(recorder)
    assert len(by_themselves) == MOST_TIMED + 1
    assert by_themselves["other"] == 2 * (10_000 - MOST_TIMED)


def test_rules_beyond_the_bound_are_counted_as_other() -> None:
    with mmap.mmap(-1, SIZE) as memory:
        table = CounterTable(memoryview(memory))
        series = RuleSeries(table, most=10)
        for number in range(1000):
            series.count(f"rule-{number}", DENIED)
            series.count("rule-1", DENIED)
        with memoryview(memory) as view:
            reader = TableReader(view)
            found = {each.labels: each.values[0] for each in reader.read()}
            reader._cells.release()
        table.close()
    assert len(found) == 11
    assert found['rule="other",outcome="denied"'] == 990
    assert found['rule="rule-1",outcome="denied"'] == 1001


ENVOY = """
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: path, value_to_metric: true, rate_limit: {unit: hour, requests_per_unit: 1000}}
  - {key: free, rate_limit: {unlimited: true}}
"""


def descriptors(*, shadow_mode: bool = False) -> AsyncDescriptorEngine:
    """An engine whose hour does not end."""
    return AsyncDescriptorEngine(loading.load({"shop.yaml": ENVOY}), shadow_mode=shadow_mode, clock=ManualClock())


def record(recorder: Recorder, run: Run[Any], trees: AsyncDescriptorEngine, matching: Matching) -> None:
    """Let a recorder know what trees have decided, whether that is there at once or has to be waited for."""
    answered = trees.decide(matching)
    recorder.answered(matching, (answered if isinstance(answered, Answered) else run(answered)).answer, 10_000)


def test_descriptor_trees_are_counted_by_domain_and_descriptor(recorder: Recorder, run: Run[Any]) -> None:
    trees = descriptors()
    asked = [Descriptor((("user", "ada"),)), Descriptor((("shadow", "x"),)), Descriptor((("free", "x"),))]
    for _ in range(3):
        matching = trees.match("shop", asked)
        record(recorder, run, trees, matching)
    assert decisions_of(recorder) == {
        ("shop.user", "allowed"): 2,
        ("shop.user", "denied"): 1,
        ("shop.shadow", "shadow_allowed"): 1,
        ("shop.shadow", "shadow_denied"): 2,
    }
    text = recorder.metrics()[1]
    assert value(text, "headgate_unlimited_decisions_total", verdict="unlimited") == 3
    assert timed(recorder) == {"shop.user": 3}
    assert near_limit(recorder) == {"shop.user": 1, "shop.shadow": 1}
    assert value(text, "headgate_rule_decisions_total", rule="shop.user", outcome="denied", domain="shop") == 1
    report = msgspec.json.decode(recorder.hot_keys())
    assert [each["key"] for each in report["denied"]] == ["user=ada"]
    assert [each["key"] for each in report["would_refuse"]] == ["shadow=x"]


def test_descriptors_that_only_look_or_give_back_decide_nothing(recorder: Recorder, run: Run[Any]) -> None:
    trees = descriptors()
    for asked in (Descriptor((("user", "ada"),), hits=0), Descriptor((("user", "ada"),), hits=1, refund=True)):
        matching = trees.match("shop", [asked])
        record(recorder, run, trees, matching)
    assert decisions_of(recorder) == {}
    assert value(recorder.metrics()[1], "headgate_peeks_total") == 1
    assert value(recorder.metrics()[1], "headgate_refunds_total") == 1


def test_values_in_names_are_bounded(recorder: Recorder, run: Run[Any]) -> None:
    trees = descriptors()
    for number in range(MOST_BY_VALUE + 10):
        matching = trees.match("shop", [Descriptor((("path", f"/{number}"),))])
        record(recorder, run, trees, matching)
    counted = decisions_of(recorder)
    assert counted["shop.path_/0", "allowed"] == 1
    assert counted["shop.path", "allowed"] == 10
    assert len(counted) == MOST_BY_VALUE + 1


def test_threads_may_ask_at_once_while_series_are_added(recorder: Recorder) -> None:
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(recorder.metrics) for _ in range(40)]
        for number in range(500):
            recorder.called(f"api-{number}", "allowed", 1000)
    for each in asked:
        names = [line.split(" ")[0] for line in each.result()[1].decode().splitlines() if line[0] != "#"]
        assert len(set(names)) == len(names)
    assert value(recorder.metrics()[1], "headgate_checks_total", api="api-499", outcome="allowed") == 1


def test_openmetrics_is_given_to_those_who_ask(recorder: Recorder) -> None:
    kind, text = recorder.metrics(b"application/openmetrics-text; version=1.0.0")
    assert kind.startswith(b"application/openmetrics-text; version=1.0.0")
    assert families(text, openmetrics=True)


def test_descriptor_trees_that_refuse_nothing_are_counted_as_shadows(recorder: Recorder, run: Run[Any]) -> None:
    trees = descriptors(shadow_mode=True)
    for _ in range(3):
        matching = trees.match("shop", [Descriptor((("user", "ada"),))])
        record(recorder, run, trees, matching)
    assert decisions_of(recorder) == {("shop.user", "allowed"): 2, ("shop.user", "shadow_denied"): 1}
    assert msgspec.json.decode(recorder.hot_keys())["denied"] == []


def test_an_unknown_domain_is_counted_and_logged_once_a_minute(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "headgate.rls"):
        for second in range(DOMAIN_EVERY + 1):
            recorder.unknown_domain(f"typo-{second}\n")
            recorder.publish()
    named = [line.__dict__["headgate_fields"]["domain"] for line in caplog.records]
    assert named == ["typo-0\n", f"typo-{DOMAIN_EVERY}\n"]
    assert value(recorder.metrics()[1], "headgate_unknown_domain_requests_total") == DOMAIN_EVERY + 1

"""The recorder: decisions are counted by rule and outcome, in a bounded number of series."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from headgate.engine import AsyncEngine, JointRequest
from headgate.engine.descriptors import Answered, AsyncDescriptorEngine
from headgate.observe.hot_keys import EVERY
from headgate.observe.logs import Principals
from headgate.observe.recorder import (
    ALLOWED,
    DENIED,
    DOMAIN_EVERY,
    MOST_BY_VALUE,
    MOST_TIMED,
    NEAR_LIMIT,
    Recorder,
    RuleSeries,
)
from headgate.observe.table import SIZE, CounterTable, TableReader
from headgate.policy.envoy import loading
from headgate.policy.envoy.request import Descriptor
from headgate.policy.loading import from_data, load
from headgate.policy.model import Ruleset
from headgate.policy.request import Request
from headgate.server.decisions import Decisions
from headgate.testing import ManualClock
from tests.observe.readings import samples, value

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
Counted = dict[tuple[str, str], float]
"""Decisions by rule and outcome."""


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder(principals=Principals(plain=True))
    yield made
    made.close()


async def check(recorder: Recorder, *requests: Request, rules: Ruleset | None = None) -> Decisions:
    """Decide requests in order, with a new engine."""
    decisions = Decisions(AsyncEngine(rules or load(RULES)), recorder)
    for request in requests:
        await decisions.engine.check(request)
    return decisions


def ada(endpoint: str = "/single", **fields: Any) -> Request:
    return Request({"user": "ada"}, endpoint, **fields)


def decisions_of(recorder: Recorder) -> Counted:
    return {
        (labels["rule"], labels["outcome"]): number
        for (name, pairs), number in samples(recorder.metrics()[1]).items()
        if name == "headgate_rule_decisions_total" and (labels := dict(pairs))
    }


def by_rule(recorder: Recorder, wanted: str) -> dict[str, float]:
    """Return the values of a metric by rule."""
    found = samples(recorder.metrics()[1]).items()
    return {dict(pairs)["rule"]: number for (name, pairs), number in found if name == wanted}


def timed(recorder: Recorder) -> dict[str, float]:
    return by_rule(recorder, "headgate_decision_duration_seconds_count")


def near_limit(recorder: Recorder) -> dict[str, float]:
    return by_rule(recorder, "headgate_rule_near_limit_total")


async def test_decisions_are_counted_by_rule_and_outcome() -> None:
    """Each case: the request, how often it is checked, and the counters."""
    by_id = Request({"user": "ada"}, rule_id="single")
    cases: dict[str, tuple[Request, int, Counted]] = {
        "every rule that matches": (
            Request({"user": "ada", "ip": "203.0.113.9"}, "/orders/7"),
            4,
            {("orders-user", "allowed"): 3, ("all-ip", "allowed"): 3, ("orders-user", "denied"): 1},
        ),
        "a rule with several limits, once": (ada("/two"), 3, {("two", "allowed"): 2, ("two", "denied"): 1}),
        "one limit": (ada(), 5, {("single", "allowed"): 2, ("single", "denied"): 3}),
        "a shadow": (ada("/trial"), 3, {("trial", "shadow_allowed"): 1, ("trial", "shadow_denied"): 2}),
        "a rule by its id": (by_id, 3, {("single", "allowed"): 2, ("single", "denied"): 1}),
        "a rule that does not exist": (Request({"user": "ada"}, rule_id="any-id-a-client-may-send"), 1, {}),
    }
    unlimited = {"a shadow": 3, "a rule that does not exist": 1}
    for name, (request, times, expected) in cases.items():
        recorder = Recorder()
        await check(recorder, *[request] * times)
        assert decisions_of(recorder) == expected, name
        text = recorder.metrics()[1]
        count = value(text, "headgate_unlimited_decisions_total", verdict="unlimited")
        assert count == unlimited.get(name, 0), name
        if name == "every rule that matches":
            assert timed(recorder) == {"orders-user": 4}
            assert near_limit(recorder) == {"orders-user": 1}  # the third of three
        recorder.close()


async def test_requests_decided_by_lists_and_without_rules_are_counted_separately(recorder: Recorder) -> None:
    root, denied = Request({"user": "root"}, "/orders/1"), Request({"ip": "192.0.2.1"}, "/orders/1")
    await check(recorder, root, denied, ada("/nothing"))
    text = recorder.metrics()[1]
    assert decisions_of(recorder) == {}
    for verdict in ("allowed", "denied", "unlimited"):
        assert value(text, "headgate_unlimited_decisions_total", verdict=verdict) == 1


async def test_peeks_refunds_and_resets_are_not_decisions(recorder: Recorder) -> None:
    decisions = await check(recorder, ada(cost=0), Request({"user": "ada"}, cost=0, rule_id="single"))
    await decisions.engine.peek(ada())
    await decisions.engine.peek(Request({"user": "ada"}, rule_id="single"))
    await decisions.engine.check_together([JointRequest(ada(), refund=True)])
    await decisions.engine.reset(ada())
    text = recorder.metrics()[1]
    assert decisions_of(recorder) == {}
    assert value(text, "headgate_peeks_total") == sum(timed(recorder).values()) == 4
    assert value(text, "headgate_refunds_total") == 1
    assert value(text, "headgate_resets_total") == 1


async def test_principals_that_no_rule_uses_are_counted(recorder: Recorder) -> None:
    await check(recorder, *[Request({"user": "ada", "api_key": "ak_1", "any-name": "x"}, "/single")] * 2)
    text = recorder.metrics()[1]
    for name, count in {"user": 0, "apikey": 2, "other": 2}.items():
        assert value(text, "headgate_unmatched_principals_total", principal=name) == count, name


def test_calls_are_counted_by_api_and_outcome(recorder: Recorder) -> None:
    recorder.record_call("check", "allowed", 15_000)
    recorder.record_call("check", "error", 5_000_000_000)
    recorder.record_shed("check")
    text = recorder.metrics()[1]
    for outcome, count in {"allowed": 1, "denied": 0, "error": 1, "shed": 1}.items():
        assert value(text, "headgate_checks_total", api="check", outcome=outcome) == count
    assert value(text, "headgate_check_duration_seconds_bucket", api="check", le="1e-05") == 0
    assert value(text, "headgate_check_duration_seconds_bucket", api="check", le="2e-05") == 1
    assert value(text, "headgate_check_duration_seconds_count", api="check") == 2  # rejected calls are not timed
    assert value(text, "headgate_check_duration_seconds_sum", api="check") == 5.000015


def test_calls_are_logged_only_with_an_access_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for is_wanted in (False, True):
        recorder = Recorder(access_log=is_wanted)
        recorder.record_call("check", "allowed", 15_999)
        recorder.close()
    (line,) = caplog.records
    assert line.__dict__["headgate_fields"] == {"api": "check", "outcome": "allowed", "microseconds": 15}


async def test_a_refusal_is_logged_with_its_rule_principal_and_api(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    decisions = (await check(recorder)).via("batch")
    for request in (*[ada()] * 3, Request({"ip": "192.0.2.1"}, "/orders/1")):
        await decisions.engine.check(request)
    one, other = [line.__dict__["headgate_fields"] for line in caplog.records]
    assert one.pop("retry_after") > 0
    assert one == {"rule": "single", "principal": "ada", "api": "batch", "reason": None}
    expected = {"rule": None, "principal": "ip=192.0.2.1", "api": "batch", "reason": "deny list", "retry_after": None}
    assert other == expected


async def test_refusals_left_out_of_the_log_are_counted(recorder: Recorder) -> None:
    await check(recorder, *[ada()] * (2 + 15))
    recorder.publish()
    assert value(recorder.metrics()[1], "headgate_denials_unlogged_total") == 5


async def test_hot_and_denied_keys_are_those_that_the_rule_counts(recorder: Recorder) -> None:
    requests = [
        each
        for number in range(EVERY * 40)
        for each in (
            ada(),
            Request({"user": f"user-{number}"}, "/single"),
            Request({"ip": "2001:db8:1:2::7"}, "/orders/1"),
        )
    ]
    await check(recorder, *requests, rules=load(RULES.replace("limit: 2,", "limit: 100,")))
    report = msgspec.json.decode(recorder.hot_keys())
    expected = {("2001:db8:1:2::/64", "all-ip"), ("ada", "single")}
    assert {(each["key"], each["rule"]) for each in report["denied"]} == expected
    assert {each["key"] for each in report["hot"][:2]} == {"2001:db8:1:2::/64", "ada"}


async def test_keys_that_shadow_rules_would_refuse_are_found(recorder: Recorder) -> None:
    users = ("ada", "ada", "ada", "bob", "bob", "carl")
    await check(recorder, *[Request({"user": user}, "/trial") for user in users])
    report = msgspec.json.decode(recorder.hot_keys())
    assert [(each["key"], each["rule"]) for each in report["would_refuse"]] == [("ada", "trial"), ("bob", "trial")]
    assert report["denied"] == []


async def test_long_principals_are_kept_in_bounded_space(recorder: Recorder) -> None:
    await check(recorder, *[Request({"user": "x" * length}, "/single") for length in (60_000, 60_001)] * 3)
    one, other = msgspec.json.decode(recorder.hot_keys())["denied"]
    assert len(one["key"]) <= 128
    assert one["key"] != other["key"]


def test_ten_thousand_rules_have_their_series(recorder: Recorder) -> None:
    for number in range(10_000):
        for outcome in (ALLOWED, DENIED, NEAR_LIMIT):
            recorder._series.count(f"rule-{number}", outcome)
    counted = decisions_of(recorder)
    assert (len(counted), {*counted.values()}, len(near_limit(recorder))) == (20_000, {1}, 10_000)


async def test_the_first_rules_are_timed_separately(recorder: Recorder) -> None:
    rules = [{"id": f"rule-{n}", "endpoint": f"/{n}", "limit": 1, "window": "1h"} for n in range(MOST_TIMED + 50)]
    requests = [ada(f"/{number}") for number in range(MOST_TIMED + 50)] * 2
    await check(recorder, *requests, rules=from_data({"version": 1, "rules": rules}))
    by_rules = timed(recorder)
    assert (len(by_rules), by_rules["other"]) == (MOST_TIMED + 1, 100)


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


async def record(recorder: Recorder, trees: AsyncDescriptorEngine, *descriptors: Descriptor) -> None:
    """Decide a request by descriptor trees, and record it."""
    matching = trees.match("shop", list(descriptors))
    answered = trees.decide(matching)
    answer = (answered if isinstance(answered, Answered) else await answered).answer
    recorder.record_envoy(matching, answer, 10_000)


async def test_descriptor_trees_are_counted_by_domain_and_descriptor(recorder: Recorder) -> None:
    trees = descriptors()
    for _ in range(3):
        await record(
            recorder, trees, *[Descriptor((each,)) for each in (("user", "ada"), ("shadow", "x"), ("free", "x"))]
        )
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


async def test_descriptors_in_global_shadow_mode_are_counted_as_shadows(recorder: Recorder) -> None:
    trees = descriptors(shadow_mode=True)
    for _ in range(3):
        await record(recorder, trees, Descriptor((("user", "ada"),)))
    assert decisions_of(recorder) == {("shop.user", "allowed"): 2, ("shop.user", "shadow_denied"): 1}
    assert msgspec.json.decode(recorder.hot_keys())["denied"] == []


async def test_peeks_and_refunds_of_descriptors_are_not_decisions(recorder: Recorder) -> None:
    trees = descriptors()
    for descriptor in (Descriptor((("user", "ada"),), hits=0), Descriptor((("user", "ada"),), hits=1, refund=True)):
        await record(recorder, trees, descriptor)
    assert decisions_of(recorder) == {}
    assert value(recorder.metrics()[1], "headgate_peeks_total") == 1
    assert value(recorder.metrics()[1], "headgate_refunds_total") == 1


async def test_names_of_rules_that_contain_values_are_bounded(recorder: Recorder) -> None:
    trees = descriptors()
    for number in range(MOST_BY_VALUE + 10):
        await record(recorder, trees, Descriptor((("path", f"/{number}"),)))
    counted = decisions_of(recorder)
    assert counted["shop.path_/0", "allowed"] == 1
    assert counted["shop.path", "allowed"] == 10
    assert len(counted) == MOST_BY_VALUE + 1


def test_threads_may_read_while_series_are_added(recorder: Recorder) -> None:
    with ThreadPoolExecutor(4) as threads:
        rendered = [threads.submit(recorder.metrics) for _ in range(40)]
        for number in range(500):
            recorder.record_call(f"api-{number}", "allowed", 1000)
    for each in rendered:
        names = [line.split(" ")[0] for line in each.result()[1].decode().splitlines() if line[0] != "#"]
        assert len(set(names)) == len(names)
    assert value(recorder.metrics()[1], "headgate_checks_total", api="api-499", outcome="allowed") == 1


def test_an_unknown_domain_is_counted_and_logged_once_a_minute(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "headgate.rls"):
        for second in range(DOMAIN_EVERY + 1):
            recorder.record_unknown_domain(f"typo-{second}\n")
            recorder.publish()
    named = [line.__dict__["headgate_fields"]["domain"] for line in caplog.records]
    assert named == ["typo-0\n", f"typo-{DOMAIN_EVERY}\n"]
    assert value(recorder.metrics()[1], "headgate_unknown_domain_requests_total") == DOMAIN_EVERY + 1

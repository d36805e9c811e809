"""Requests decided by rules, with memory and with an unavailable store."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from headgate import CostTooLarge, InvalidRule, InvalidStore, MemoryStore, StoreError
from headgate.engine import AsyncEngine
from headgate.policy.loading import load
from headgate.policy.request import InvalidRequest, Request
from headgate.policy.selection import Verdict
from headgate.testing import ManualClock
from tests.engine.conftest import Make
from tests.servers import RedisServer, free_port, until

RULES = """
version: 1
rules:
  - {id: orders-user, dimension: user, endpoint: /orders/**, limit: 3, window: 1h}
  - {id: all-ip, dimension: ip, limit: 5, window: 1h, algorithm: fixed_window}
  - {id: trial, dimension: user, endpoint: /orders/**, limit: 1, window: 1h, shadow: true}
  - {id: off, dimension: user, limit: 1, window: 1h, enabled: false}
deny: [{ip: 192.0.2.0/24}]
allow: [{user: root}]
"""


def order(user: str = "ada", ip: str = "203.0.113.9", **more: Any) -> Request:
    return Request({"user": user, "ip": ip}, "/orders/7", "POST", **more)


def test_all_matching_rules_are_decided_together(make: Make) -> None:
    engine = make(load(RULES), clock=ManualClock())
    ruling = engine.check(order())
    assert (ruling.allowed, ruling.verdict, ruling.matched) == (True, Verdict.LIMITED, True)
    assert [(each.rule_id, each.decision.remaining) for each in ruling.limits] == [("orders-user", 2), ("all-ip", 4)]
    assert ruling.rule_id == "orders-user"


def test_a_refusal_names_its_rule_and_takes_nothing(make: Make) -> None:
    engine = make(load(RULES), clock=ManualClock())
    for _ in range(3):
        assert engine.check(order())
    refused = engine.check(order())
    assert (refused.allowed, refused.rule_id, refused.state) == (False, "orders-user", "throttled")
    assert [each.decision.remaining for each in refused.limits] == [0, 2]
    assert engine.check(order("bob"))
    assert engine.check(order("bob"))
    assert engine.check(order("bob")).rule_id == "all-ip"


def test_shadow_rules_count_and_refuse_nothing(make: Make) -> None:
    engine = make(load(RULES), clock=ManualClock())
    assert [engine.check(order()).shadow[0].decision.allowed for _ in range(3)] == [True, False, False]
    refused = engine.check(order())
    assert not refused.allowed
    assert (refused.shadow[0].rule_id, refused.shadow[0].decision.allowed) == ("trial", False)


def test_lists_precede_limits(make: Make) -> None:
    engine = make(load(RULES), clock=ManualClock())
    denied = engine.check(order(ip="192.0.2.7"))
    assert (denied.allowed, denied.verdict, denied.decision, denied.state) == (False, Verdict.DENIED, None, "throttled")
    assert "192.0.2" in denied.reason
    allowed = [engine.check(order("root")) for _ in range(10)]
    assert {ruling.verdict for ruling in allowed} == {Verdict.ALLOWED}


def test_a_request_without_rules_passes(make: Make) -> None:
    ruling = make(load(RULES)).check(Request({"user": "ada"}, "/elsewhere"))
    assert (ruling.allowed, ruling.matched, ruling.rule_id) == (True, False, "")
    assert (ruling.state, ruling.degraded) == ("normal", "")


def test_peeks_refunds_resets_and_retries(make: Make) -> None:
    engine = make(load(RULES), clock=ManualClock())
    assert engine.check(order(cost=0)).limits[0].decision.remaining == 3
    assert engine.peek(order()).limits[0].decision.remaining == 3
    assert [engine.check_once(order(), "k").limits[0].decision.remaining for _ in range(2)] == [2, 2]
    assert engine.check_once(order(), "k").shadow[0].decision.allowed
    assert engine.refund(order()).limits[0].decision.remaining == 3
    engine.check(order(cost=3))
    engine.reset(order())
    assert engine.peek(order()).limits[0].decision.remaining == 3
    assert engine.peek(order()).shadow[0].decision.remaining == 1


def test_a_cost_of_0_changes_nothing(make: Make) -> None:
    engine = make(load(RULES), clock=ManualClock())
    engine.check(order(cost=2))
    for ruling in (engine.refund(order(cost=0)), engine.check_once(order(cost=0), "k"), engine.check(order(cost=0))):
        assert ruling.limits[0].decision.remaining == 1


def test_a_shadow_rule_below_the_cost_would_refuse(make: Make) -> None:
    engine = make(load(RULES), clock=ManualClock())
    ruling = engine.check(order(cost=2))
    assert ruling.allowed
    assert (ruling.shadow[0].decision.allowed, ruling.shadow[0].decision.remaining) == (False, 1)


def test_explain_takes_nothing(make: Make) -> None:
    engine = make(load(RULES), clock=ManualClock())
    for _ in range(3):
        engine.check(order())
    explained = engine.explain(order())
    applies = {each.rule: each.applies for each in explained.explanation.rules}
    assert applies == {"orders-user": True, "all-ip": True, "trial": True, "off": False}
    assert explained.ruling.rule_id == "orders-user"
    remaining = {rule: [state.remaining for state in states] for rule, states in explained.states.items()}
    assert remaining == {"orders-user": [0], "all-ip": [2], "trial": [0]}
    assert engine.explain(order()) == explained
    assert engine.explain(order(ip="192.0.2.1")).explanation.rules == ()


def test_bad_requests_are_errors(make: Make) -> None:
    engine = make(load(RULES), clock=ManualClock())
    with pytest.raises(CostTooLarge, match="orders-user"):
        engine.check(order(cost=4))
    with pytest.raises(InvalidRequest):
        engine.check(Request({"user": "ada"}, "/%zz"))
    with pytest.raises(InvalidStore, match="local, allow, deny"):
        make(load(RULES), on_store_failure="raise")


def test_changed_rules_act_on_the_next_request_and_keep_the_usage(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    text = "version: 1\nrules:\n- {id: a, limit: 3, window: 1h}\n- {id: b, limit: 9, window: 1h, algorithm: gcra}\n"
    file.write_text(text)
    engine = make(file)
    for _ in range(3):
        assert engine.check(Request({"user": "ada"}))
    assert not engine.check(Request({"user": "ada"}))
    file.write_text(text.replace("limit: 3", "limit: 5") + "# another size: the time of the file may be the same\n")
    until(lambda: engine.rules_statistics().loads == 2, "the new rules are in force")
    ruling = engine.check(Request({"user": "ada"}))
    assert [each.decision.remaining for each in ruling.limits] == [1, 5]
    file.write_text("version: 1\nrules: [{id: a, limit: many}]")
    until(lambda: engine.rules_statistics().failures == 1, "the bad rules were seen")
    assert engine.check(Request({"user": "ada"}))
    assert "many" in engine.rules_statistics().error


def test_a_cost_above_a_lowered_limit_is_refunded(make: Make) -> None:
    text = "version: 1\nrules: [{id: a, limit: 100, window: 1h}, {id: b, limit: 100, window: 1h, shadow: true}]"
    store = MemoryStore(clock=ManualClock())
    assert make(load(text), store=store).check(Request({"user": "ada"}, cost=50))
    lowered = make(load(text.replace("100", "10")), store=store)
    refunded = lowered.refund(Request({"user": "ada"}, cost=50))
    assert (refunded.decision.remaining, refunded.shadow[0].decision.remaining) == (10, 10)
    lowered.reset(Request({"user": "ada"}, cost=50))
    with pytest.raises(CostTooLarge):
        lowered.check(Request({"user": "ada"}, cost=50))


def test_warnings_about_a_file_are_logged(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("version: 1\nrules: [{id: a, tier: free, limit: 1, window: 1h}]\ntiers: {premium: {a: {limit: 2}}}")
    make(file)
    assert "has no effect" in caplog.text


def test_other_values_than_rules_are_refused_without_leftover_threads(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("version: 1")
    before = threading.active_count()
    wrong: Any
    for wrong in ({"rules": []}, 5, tmp_path / "none", "/etc/passwd/x", "a\0b", "x" * 5000):
        with pytest.raises(InvalidRule):
            make(wrong)
    with pytest.raises(InvalidStore):
        make(file, store="redis://127.0.0.1", nodes=0)
    assert threading.active_count() == before
    assert make(load("version: 1")).rules_statistics() is None


class TestTheStoreIsUnavailable:
    RULES = """
    version: 1
    rules:
      - {id: strict, endpoint: /pay, limit: 5, window: 1h, on_store_failure: deny}
      - {id: open, endpoint: /news, limit: 1, window: 1h, on_store_failure: allow}
      - {id: usual, endpoint: /work, limit: 4, window: 1h}
    """

    def engine(self, make: Make, **options: Any) -> Any:
        address = f"redis://127.0.0.1:{free_port()}/0"
        return make(load(self.RULES), store=address, **options)

    def test_each_rule_has_its_mode(self, make: Make) -> None:
        engine = self.engine(make, nodes=2)
        expected = {"/pay": [False] * 4, "/news": [True] * 4, "/work": [True, True, False, False]}
        for path, allowed in expected.items():
            rulings = [engine.check(Request({"user": "ada"}, path)) for _ in range(4)]
            assert [ruling.allowed for ruling in rulings] == allowed, path
            assert all(ruling.degraded for ruling in rulings)

    def test_other_rules_have_the_default_mode(self, make: Make) -> None:
        engine = self.engine(make, on_store_failure="deny")
        assert not engine.check(Request({"user": "ada"}, "/work"))
        assert engine.check(Request({"user": "ada"}, "/news"))
        assert [engine.mode_of(rule) for rule in ("strict", "open", "gone")] == ["deny", "allow", "deny"]

    def test_it_is_not_ready_and_counts_degraded_decisions(self, make: Make) -> None:
        engine = self.engine(make)
        with pytest.raises(StoreError):
            engine.ready()
        engine.check(Request({"user": "ada"}, "/work"))
        assert sum(engine.statistics().degraded.values()) == 1
        assert make(load(self.RULES)).statistics() is None


def test_refusals_and_peeks_are_cached_until_a_reset_or_a_refund(redis: RedisServer) -> None:
    rules = load("version: 1\nrules: [{id: r, limit: 1, window: 1h, algorithm: fixed_window}]")
    ada = Request({"user": "ada"})

    async def main(address: str) -> None:
        async with AsyncEngine(rules, store=address, is_cached=True, clock=ManualClock()) as engine:
            hurried = engine.within(0.5)
            taken = await engine.check(ada)
            assert [(await each.check(ada)).allowed for each in (engine, hurried, engine)] == [False] * 3
            assert [(await engine.peek(ada)).allowed for _ in range(3)] == [False] * 3
            statistics = engine.cache_statistics()
            assert statistics is not None
            assert (statistics.denial_hits, statistics.peek_hits > 0) == (2, True)
            await engine.refund(taken)
            assert (await engine.check(ada)).allowed
            assert not (await engine.check(ada)).allowed
            assert await engine.reset(ada)
            assert (await engine.peek(ada)).allowed
            assert (await engine.check(ada)).allowed
        async with AsyncEngine(rules, is_cached=True) as in_memory:
            assert in_memory.cache_statistics() is None

    asyncio.run(main(redis.address))

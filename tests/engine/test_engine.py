"""Requests decided by rules, over memory and over a store that is away."""

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
from tests.servers import free_port, redis_server, until

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


def test_all_rules_that_match_are_decided_together(make: Make) -> None:
    engine = make(load(RULES), clock=ManualClock())
    ruling = engine.check(order())
    assert (ruling.allowed, ruling.verdict, ruling.matched) == (True, Verdict.LIMITED, True)
    assert [(each.rule_id, each.decision.remaining) for each in ruling.limits] == [("orders-user", 2), ("all-ip", 4)]
    assert ruling.rule_id == "orders-user"


def test_the_rule_that_blocks_is_named_and_nothing_is_taken_from_the_others(make: Make) -> None:
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


def test_a_refused_request_takes_nothing_from_shadow_rules(make: Make) -> None:
    rules = load(
        "version: 1\nrules: [{id: a, limit: 1, window: 1h}, "
        "{id: b, limit: 5, window: 1h, shadow: true, algorithm: fixed_window}]"
    )
    engine = make(rules, clock=ManualClock())
    remaining = [engine.check(Request({"user": "ada"})).shadow[0].decision.remaining for _ in range(3)]
    assert remaining == [4, 4, 4]


def test_lists_come_first(make: Make) -> None:
    engine = make(load(RULES), clock=ManualClock())
    denied = engine.check(order(ip="192.0.2.7"))
    assert (denied.allowed, denied.verdict, denied.decision, denied.state) == (False, Verdict.DENIED, None, "throttled")
    assert "192.0.2" in denied.reason
    allowed = [engine.check(order("root")) for _ in range(10)]
    assert {ruling.verdict for ruling in allowed} == {Verdict.ALLOWED}


def test_nothing_matches(make: Make) -> None:
    ruling = make(load(RULES)).check(Request({"user": "ada"}, "/elsewhere"))
    assert (ruling.allowed, ruling.matched, ruling.rule_id, ruling.state, ruling.degraded) == (
        True,
        False,
        "",
        "normal",
        "",
    )


def test_one_rule_by_its_id(make: Make) -> None:
    engine = make(load(RULES), clock=ManualClock())
    by_rule = Request({"user": "eve"}, rule_id="orders-user")
    assert [engine.check(by_rule).allowed for _ in range(4)] == [True, True, True, False]
    ruling = engine.check(Request({"user": "eve"}, rule_id="off"))
    assert (ruling.allowed, ruling.matched) == (True, False)


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


def test_a_cost_of_nothing_takes_nothing_and_gives_nothing_back(make: Make) -> None:
    engine = make(load(RULES), clock=ManualClock())
    engine.check(order(cost=2))
    for ruling in (engine.refund(order(cost=0)), engine.check_once(order(cost=0), "k"), engine.check(order(cost=0))):
        assert ruling.limits[0].decision.remaining == 1


def test_a_shadow_that_is_too_small_for_a_cost_would_always_refuse(make: Make) -> None:
    engine = make(load(RULES), clock=ManualClock())
    ruling = engine.check(order(cost=2))
    assert ruling.allowed
    assert (ruling.shadow[0].decision.allowed, ruling.shadow[0].decision.remaining) == (False, 1)


def test_explain_says_why_and_takes_nothing(make: Make) -> None:
    engine = make(load(RULES), clock=ManualClock())
    for _ in range(3):
        engine.check(order())
    explained = engine.explain(order())
    assert [(each.rule, each.applies) for each in explained.explanation.rules] == [
        ("orders-user", True),
        ("all-ip", True),
        ("trial", True),
        ("off", False),
    ]
    assert explained.ruling.rule_id == "orders-user"
    assert {rule: [state.remaining for state in states] for rule, states in explained.states.items()} == {
        "orders-user": [0],
        "all-ip": [2],
        "trial": [0],
    }
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


def test_an_override_ends_by_itself(make: Make, manual_clock: ManualClock) -> None:
    rules = load(
        "version: 1\nrules: [{id: a, limit: 1, window: 1h}]\n"
        'users: {"7": {overrides: {a: {limit: 2, until: "2030-01-01T00:00:00Z"}}}}'
    )
    manual_clock.set(1_893_455_999_000_000)
    engine = make(rules, clock=manual_clock)
    assert engine.peek(Request({"user": "7"})).decision.limit == 2
    manual_clock.advance(us=1_000_000)
    assert engine.peek(Request({"user": "7"})).decision.limit == 1


def test_rules_that_change_act_on_the_next_request_and_keep_what_was_used(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    text = "version: 1\nrules:\n- {id: a, limit: 3, window: 1h}\n- {id: b, limit: 9, window: 1h, algorithm: gcra}\n"
    file.write_text(text)
    engine = make(file)
    for _ in range(3):
        assert engine.check(Request({"user": "ada"}))
    assert not engine.check(Request({"user": "ada"}))
    file.write_text(text.replace("limit: 3", "limit: 5") + "# of another size: it may be as old as the one before\n")
    until(lambda: engine.rules_statistics().loads == 2, "the new rules are in force")
    ruling = engine.check(Request({"user": "ada"}))
    assert [each.decision.remaining for each in ruling.limits] == [1, 5]
    file.write_text("version: 1\nrules: [{id: a, limit: many}]")
    until(lambda: engine.rules_statistics().failures == 1, "the bad rules were seen")
    assert engine.check(Request({"user": "ada"}))
    assert "many" in engine.rules_statistics().error


def test_what_was_taken_can_be_given_back_after_the_limit_was_lowered(make: Make) -> None:
    text = "version: 1\nrules: [{id: a, limit: 100, window: 1h}]"
    store = MemoryStore()
    assert make(load(text), store=store).check(Request({"user": "ada"}, cost=50))
    lowered = make(load(text.replace("100", "10")), store=store)
    assert lowered.refund(Request({"user": "ada"}, cost=50)).decision.remaining == 10
    lowered.reset(Request({"user": "ada"}, cost=50))
    with pytest.raises(CostTooLarge):
        lowered.check(Request({"user": "ada"}, cost=50))


def test_what_is_odd_about_a_file_is_in_the_log(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("version: 1\nrules: [{id: a, tier: free, limit: 1, window: 1h}]\ntiers: {premium: {a: {limit: 2}}}")
    make(file)
    assert "has no effect" in caplog.text


def test_what_is_no_rules_is_refused_and_nothing_stays_behind(make: Make, tmp_path: Path) -> None:
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


def test_limits_of_one_request_in_several_modes(make: Make) -> None:
    rules = load(
        "version: 1\nrules:\n- {id: a, limit: 2, window: 1h}\n"
        "- {id: b, limit: 1, window: 1h, dimension: ip, on_store_failure: allow}\n"
        "- {id: c, endpoint: /pay, limit: 1, window: 1h, dimension: global, on_store_failure: deny}\n"
    )
    engine = make(rules, store=f"redis://127.0.0.1:{free_port()}/0", nodes=1)
    denied = engine.check(Request({"user": "ada", "ip": "192.0.2.1"}, "/pay"))
    assert (denied.allowed, denied.rule_id) == (False, "c")
    asked = [engine.check(Request({"user": "ada", "ip": "192.0.2.1"}, "/read")) for _ in range(3)]
    assert [ruling.allowed for ruling in asked] == [True, True, False]
    assert asked[2].rule_id == "a"


def test_on_a_real_server_several_principals_are_decided_in_one_step(make: Make) -> None:
    with redis_server() as server:
        engine = make(load(RULES), store=server.address, clock=ManualClock())
        engine.ready()
        assert [engine.check(order()).allowed for _ in range(4)] == [True, True, True, False]
        assert [engine.check(order("bob")).rule_id for _ in range(3)] == ["all-ip", "all-ip", "all-ip"]
        assert engine.check_once(order("eve", "198.51.100.1"), "k") == engine.check_once(
            order("eve", "198.51.100.1"), "k"
        )
        assert engine.statistics().degraded == {}


class TestTheStoreIsAway:
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

    def test_each_rule_answers_in_its_own_mode(self, make: Make) -> None:
        engine = self.engine(make, nodes=2)
        asked = {path: [engine.check(Request({"user": "ada"}, path)) for _ in range(4)] for path in ("/pay", "/news")}
        asked["/work"] = [engine.check(Request({"user": "ada"}, "/work")) for _ in range(4)]
        assert {path: [ruling.allowed for ruling in rulings] for path, rulings in asked.items()} == {
            "/pay": [False] * 4,
            "/news": [True] * 4,
            "/work": [True, True, False, False],
        }
        assert all(ruling.degraded for rulings in asked.values() for ruling in rulings)

    def test_the_default_mode_is_for_rules_that_do_not_say(self, make: Make) -> None:
        engine = self.engine(make, on_store_failure="deny")
        assert not engine.check(Request({"user": "ada"}, "/work"))
        assert engine.check(Request({"user": "ada"}, "/news"))
        assert [engine.mode_of(rule) for rule in ("strict", "open", "gone")] == ["deny", "allow", "deny"]

    def test_it_is_not_ready_and_counts(self, make: Make) -> None:
        engine = self.engine(make)
        with pytest.raises(StoreError):
            engine.ready()
        engine.check(Request({"user": "ada"}, "/work"))
        assert sum(engine.statistics().degraded.values()) == 1
        assert make(load(self.RULES)).statistics() is None


def test_refusals_and_peeks_are_repeated_for_a_moment_and_not_after_a_reset_or_a_refund_here() -> None:
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

    with redis_server() as server:
        asyncio.run(main(server.address))

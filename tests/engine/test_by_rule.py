"""Checks of one rule by its id, and resets."""

from __future__ import annotations

from typing import cast

import pytest

from headgate import InvalidRequest, InvalidRule, InvalidRules, Request, Reset, UnknownRule
from headgate.policy.loading import load
from headgate.testing import ManualClock
from tests.engine.conftest import Make

RULES = """
version: 1
rules:
  - {id: orders, dimension: user, endpoint: /orders/**, limit: 3, window: 1h}
  - {id: trial, dimension: ip, limit: 1, window: 1h, shadow: true}
  - {id: everyone, dimension: global, endpoint: /shared, limit: 2, window: 1h, algorithm: fixed_window}
  - {id: path, dimension: endpoint, endpoint: /shared, limit: 5, window: 1h}
  - {id: tenant, dimension: tenant, endpoint: /shared, limit: 5, window: 1h}
  - {id: mine, dimension: user, endpoint: /shared, limit: 2, window: 1h}
  - {id: off, dimension: user, limit: 1, window: 1h, enabled: false}
deny: [{user: eve}]
"""


def by_id(rule_id: str, user: str, cost: int = 1) -> Request:
    return Request({"user": user}, cost=cost, rule_id=rule_id)


def test_is_passed(make: Make, manual_clock: ManualClock) -> None:
    engine = make(load(RULES), clock=manual_clock)
    reset_time = (ManualClock.START // 3_600_000_000 + 1) * 3600
    assert engine.is_passed("any", "everyone") == (True, reset_time, 2, 1)
    assert [engine.is_passed("ada", "orders").remaining for _ in range(4)] == [2, 1, 0, 0]
    assert not engine.is_passed("ada", "orders").passed
    assert engine.is_passed("bob", "orders").passed
    assert engine.is_passed("/somewhere", "path").remaining == 4


def test_without_a_limit_is_passed_has_no_numbers(make: Make) -> None:
    engine = make(load(RULES))
    assert engine.is_passed("eve", "orders") == (False, None, None, None)
    assert engine.is_passed("ada", "off") == (True, None, None, None)


def test_unknown_rules_can_be_errors(make: Make) -> None:
    """Then an unknown id gives no fresh budget, and exchanged arguments are noticed."""
    engine = make(load(RULES + "unknown_rule: error"))
    with pytest.raises(UnknownRule, match=r"rule 'nowhere' does not exist; the rules are: orders, trial, .*, off$"):
        engine.is_passed("ada", "nowhere")
    with pytest.raises(UnknownRule, match="rule 'ada' does not exist"):
        engine.is_passed("orders", "ada")
    for verb in (engine.check, engine.peek, engine.refund, engine.reset):
        with pytest.raises(UnknownRule):
            verb(by_id("nowhere", "ada"))


def test_the_error_names_some_of_many_rules() -> None:
    message = str(UnknownRule("r", [f"rule-{number}" for number in range(1000)]))
    assert message.endswith("rule-8, rule-9 and 990 more")
    assert "the rules are: none" in str(UnknownRule("r"))


@pytest.mark.parametrize("rule_id", ["nowhere", "off"])
def test_unknown_and_disabled_rules_pass_or_are_errors(make: Make, rule_id: str) -> None:
    message = f"rule '{rule_id}' (is disabled|does not exist)"
    for lenient in (make(load(RULES)), make(load(RULES + "unknown_rule: allow"))):
        for verb in (lenient.check, lenient.peek, lenient.refund):
            ruling = verb(by_id(rule_id, "ada"))
            assert (ruling.allowed, ruling.matched) == (True, False)
            assert ruling.reason.startswith(f"rule '{rule_id}' ")
        assert lenient.is_passed("ada", rule_id) == (True, None, None, None)
        with pytest.raises(UnknownRule, match=message):
            lenient.reset(by_id(rule_id, "ada"))
    with pytest.raises(UnknownRule, match=message):
        make(load(RULES + "unknown_rule: error")).check(by_id(rule_id, "ada"))


def test_the_principal_must_be_of_the_rules_dimension(make: Make) -> None:
    engine = make(load(RULES))
    address = Request({"ip": "203.0.113.9"}, rule_id="orders")
    for verb in (engine.check, engine.peek, engine.reset):
        with pytest.raises(InvalidRequest, match="'orders' counts by user, not by ip"):
            verb(address)
        with pytest.raises(InvalidRequest, match="'path' counts by endpoint, not by user"):
            verb(by_id("path", "ada"))
        with pytest.raises(InvalidRequest, match="'orders' counts by user: the request must have that"):
            verb(Request(rule_id="orders"))


def test_a_rule_that_counts_by_an_attribute_needs_it(make: Make) -> None:
    engine = make(load(RULES))
    engine.check(Request({"tenant": "acme"}, rule_id="tenant"))
    engine.check(Request({"user": "ada"}, attributes={"tenant": "acme"}, rule_id="tenant"))
    assert engine.is_passed("acme", "tenant").remaining == 2


def test_only_the_named_rule_applies(make: Make) -> None:
    explained = make(load(RULES)).explain(by_id("orders", "ada"))
    applying = {each.rule: each.reason for each in explained.explanation.rules if each.applies}
    assert applying == {"orders": "named by the request"}
    assert explained.states["orders"][0].remaining == 3


class TestReset:
    def test_it_covers_one_principal_of_the_named_rule(self, make: Make) -> None:
        engine = make(load(RULES))
        for user in ("ada", "bob"):
            engine.check(by_id("orders", user, 3))
        assert engine.reset(by_id("orders", "ada")) == Reset(("orders",))
        assert [engine.check(by_id("orders", user)).allowed for user in ("ada", "bob")] == [True, False]
        shadow = Request({"ip": "203.0.113.9"}, rule_id="trial")
        engine.check(shadow)
        assert engine.reset(shadow)
        assert engine.check(shadow).shadow[0].decision.allowed

    def test_shared_limits_are_not_reset(self, make: Make) -> None:
        """The reset of one user must not admit all others."""
        engine = make(load(RULES), clock=ManualClock())
        ada, bob = (Request({"user": user}, "/shared", attributes={"tenant": "acme"}) for user in ("ada", "bob"))
        engine.check(ada)
        engine.check(ada)
        assert not engine.check(bob).allowed
        reset = engine.reset(ada)
        assert (reset.rules, reset.shared) == (("mine",), ("everyone", "path", "tenant"))
        assert {each.rule_id: each.decision.remaining for each in engine.peek(ada).limits} == {
            "everyone": 0,
            "path": 3,
            "tenant": 3,
            "mine": 2,
        }
        assert not engine.check(bob).allowed

    def test_a_shared_limit_is_reset_by_its_name(self, make: Make) -> None:
        engine = make(load(RULES), clock=ManualClock())
        shared = Request({"user": "ada"}, "/shared")
        engine.check(shared)
        engine.check(shared)
        assert engine.reset(Request(rule_id="everyone")).rules == ("everyone",)
        assert engine.check(Request({"user": "bob"}, "/shared")).allowed

    def test_a_rule_that_counts_by_endpoint_needs_one_that_it_matches(self, make: Make) -> None:
        """Otherwise, the reset would report success without an effect."""
        engine = make(
            load("{version: 1, rules: [{id: ue, dimension: [user, endpoint], endpoint: /ue/**, quota: 1/h}]}")
        )
        engine.check(Request({"user": "ada"}, "/ue/a"))
        for request in (Request({"user": "ada"}, rule_id="ue"), Request({"user": "ada"}, "/other", rule_id="ue")):
            for verb in (engine.reset, engine.check):
                with pytest.raises(InvalidRequest, match=r"the endpoint must match /ue/\*\*"):
                    verb(request)
        assert engine.reset(Request({"user": "ada"}, "/ue/a", rule_id="ue"))
        assert engine.check(Request({"user": "ada"}, "/ue/a")).allowed

    def test_without_a_match_it_is_false(self, make: Make) -> None:
        engine = make(load(RULES))
        assert not engine.reset(Request({"user": "ada"}, "/elsewhere"))
        assert not engine.reset(by_id("orders", "eve"))


def test_a_rule_counts_each_user_on_each_path(make: Make) -> None:
    engine = make(load("{version: 1, rules: [{id: each, dimension: [user, endpoint], limit: 2, window: 1h}]}"))
    requests = [Request({"user": user}, path) for user in ("ada", "bob") for path in ("/a", "/b")]
    assert [[engine.check(request).allowed for _ in range(3)] for request in requests] == [[True, True, False]] * 4
    assert engine.reset(requests[0]).rules == ("each",)
    assert [engine.check(request).allowed for request in requests] == [True, False, False, False]
    assert engine.peek(Request({"user": "ada"}, "/a", rule_id="each")).decision.remaining == 1


def test_other_values_than_requests_are_errors(make: Make) -> None:
    for request in ("ada", {"user": "ada"}, None):
        with pytest.raises(InvalidRequest, match=r"request must be a Request, such as Request\({'user': '42'}"):
            make(load(RULES)).check(cast("Request", request))


def test_text_is_not_taken_for_a_file_name(make: Make) -> None:
    for text in ("version: 1", RULES * 100):
        with pytest.raises(InvalidRule, match=r"rules are given as the name of a file; for their text use load_rules"):
            make(text)
    with pytest.raises(InvalidRules, match=r"the name of a file, not rules. Engine\('rules.yaml'\) reads it"):
        load("rules.yaml")

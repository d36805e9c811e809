"""One rule, asked for by its id; and what a reset touches."""

from __future__ import annotations

from typing import cast

import pytest

from headgate.core.errors import InvalidRule
from headgate.engine import Reset
from headgate.policy.loading import InvalidRules, load
from headgate.policy.request import InvalidRequest, Request, UnknownRule
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


def asked(rule_id: str, user: str, cost: int = 1) -> Request:
    return Request({"user": user}, cost=cost, rule_id=rule_id)


def test_is_passed_looks_the_rule_up(make: Make, manual_clock: ManualClock) -> None:
    engine = make(load(RULES), clock=manual_clock)
    reset_time = (ManualClock.START // 3_600_000_000 + 1) * 3600
    assert engine.is_passed("anybody", "everyone") == (True, reset_time, 2, 1)
    assert [engine.is_passed("ada", "orders").remaining for _ in range(4)] == [2, 1, 0, 0]
    assert not engine.is_passed("ada", "orders").passed
    assert engine.is_passed("bob", "orders").passed
    assert engine.is_passed("/somewhere", "path").remaining == 4


def test_where_no_limit_decides_is_passed_has_no_numbers(make: Make) -> None:
    engine = make(load(RULES))
    assert engine.is_passed("eve", "orders") == (False, None, None, None)
    assert engine.is_passed("ada", "off") == (True, None, None, None)


def test_a_rule_that_does_not_exist_can_be_loud(make: Make) -> None:
    """Then nobody gets a fresh budget by an id that no rule has; neither does who mixes up the two."""
    engine = make(load(RULES + "unknown_rule: error"))
    with pytest.raises(UnknownRule, match=r"rule 'nowhere' does not exist; there are: orders, trial, .*, off$"):
        engine.is_passed("ada", "nowhere")
    with pytest.raises(UnknownRule, match="rule 'ada' does not exist"):
        engine.is_passed("orders", "ada")
    for verb in (engine.check, engine.peek, engine.refund, engine.reset):
        with pytest.raises(UnknownRule):
            verb(asked("nowhere", "ada"))


def test_of_many_rules_some_are_named() -> None:
    told = str(UnknownRule("r", [f"rule-{number}" for number in range(1000)]))
    assert told.endswith("rule-8, rule-9 and 990 more")
    assert "there are: none" in str(UnknownRule("r"))


@pytest.mark.parametrize("rule_id", ["nowhere", "off"])
def test_the_rules_can_say_what_becomes_of_unknown_and_disabled_rules(make: Make, rule_id: str) -> None:
    for lenient in (make(load(RULES)), make(load(RULES + "unknown_rule: allow"))):
        for verb in (lenient.check, lenient.peek, lenient.refund):
            ruling = verb(asked(rule_id, "ada"))
            assert (ruling.allowed, ruling.matched) == (True, False)
            assert ruling.reason.startswith(f"rule '{rule_id}' ")
        assert lenient.is_passed("ada", rule_id) == (True, None, None, None)
        with pytest.raises(UnknownRule, match=f"rule '{rule_id}' (is disabled|does not exist)"):
            lenient.reset(asked(rule_id, "ada"))
    strict = make(load(RULES + "unknown_rule: error"))
    with pytest.raises(UnknownRule, match=f"rule '{rule_id}' (is disabled|does not exist)"):
        strict.check(asked(rule_id, "ada"))


def test_what_is_sent_again_with_a_key_is_counted_once(make: Make) -> None:
    engine = make(load(RULES))
    rulings = [engine.check_once(asked("orders", "ada"), "k") for _ in range(3)]
    assert [ruling.decision.remaining for ruling in rulings] == [2, 2, 2]
    assert engine.check(asked("orders", "ada")).decision.remaining == 1


def test_a_peek_takes_nothing(make: Make) -> None:
    engine = make(load(RULES))
    engine.check(asked("orders", "ada", 3))
    assert [engine.peek(asked("orders", "ada")).allowed for _ in range(2)] == [False, False]
    assert engine.peek(asked("orders", "bob", 2)).decision.remaining == 3


def test_who_is_counted_is_of_the_rules_own_dimension(make: Make) -> None:
    engine = make(load(RULES))
    address = Request({"ip": "203.0.113.9"}, rule_id="orders")
    for verb in (engine.check, engine.peek, engine.reset):
        with pytest.raises(InvalidRequest, match="'orders' counts by user, not by ip"):
            verb(address)
        with pytest.raises(InvalidRequest, match="'path' counts by endpoint, not by user"):
            verb(asked("path", "ada"))
        with pytest.raises(InvalidRequest, match="'orders' counts by user: say by which"):
            verb(Request(rule_id="orders"))


def test_a_rule_that_counts_by_an_attribute_is_asked_with_that_attribute(make: Make) -> None:
    engine = make(load(RULES))
    for request in (
        Request({"tenant": "acme"}, rule_id="tenant"),
        Request({"user": "ada"}, attributes={"tenant": "acme"}, rule_id="tenant"),
    ):
        engine.check(request)
    assert engine.is_passed("acme", "tenant").remaining == 2


def test_an_explanation_is_about_the_rule_that_is_named(make: Make) -> None:
    explained = make(load(RULES)).explain(asked("orders", "ada"))
    applying = {each.rule: each.reason for each in explained.explanation.rules if each.applies}
    assert applying == {"orders": "named by the request"}
    assert explained.states["orders"][0].remaining == 3


class TestReset:
    def test_it_forgets_what_one_value_used_of_the_rule_that_is_named(self, make: Make) -> None:
        engine = make(load(RULES))
        for user in ("ada", "bob"):
            engine.check(asked("orders", user, 3))
        assert engine.reset(asked("orders", "ada")) == Reset(("orders",))
        assert [engine.check(asked("orders", user)).allowed for user in ("ada", "bob")] == [True, False]
        shadow = Request({"ip": "203.0.113.9"}, rule_id="trial")
        engine.check(shadow)
        assert engine.reset(shadow)
        assert engine.check(shadow).shadow[0].decision.allowed

    def test_limits_that_others_share_are_left_alone(self, make: Make) -> None:
        """Or the reset of one user would let everybody pass again."""
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

    def test_a_limit_that_others_share_is_reset_by_its_name(self, make: Make) -> None:
        engine = make(load(RULES), clock=ManualClock())
        shared = Request({"user": "ada"}, "/shared")
        engine.check(shared)
        engine.check(shared)
        assert engine.reset(Request(rule_id="everyone")).rules == ("everyone",)
        assert engine.check(Request({"user": "bob"}, "/shared")).allowed

    def test_a_rule_that_counts_by_the_endpoint_too_needs_one_of_its_own(self, make: Make) -> None:
        """Or it would be reset where nobody was ever counted, and say that it was."""
        engine = make(
            load("{version: 1, rules: [{id: ue, dimension: [user, endpoint], endpoint: /ue/**, quota: 1/h}]}")
        )
        engine.check(Request({"user": "ada"}, "/ue/a"))
        for request in (Request({"user": "ada"}, rule_id="ue"), Request({"user": "ada"}, "/other", rule_id="ue")):
            for verb in (engine.reset, engine.check):
                with pytest.raises(InvalidRequest, match=r"say which endpoint, one of /ue/\*\*"):
                    verb(request)
        assert engine.reset(Request({"user": "ada"}, "/ue/a", rule_id="ue"))
        assert engine.check(Request({"user": "ada"}, "/ue/a")).allowed

    def test_it_says_that_nothing_matched(self, make: Make) -> None:
        engine = make(load(RULES))
        assert not engine.reset(Request({"user": "ada"}, "/elsewhere"))
        assert not engine.reset(asked("orders", "eve"))


def test_a_rule_counts_each_user_on_each_path(make: Make) -> None:
    engine = make(load("{version: 1, rules: [{id: each, dimension: [user, endpoint], limit: 2, window: 1h}]}"))
    asked = [Request({"user": user}, path) for user in ("ada", "bob") for path in ("/a", "/b")]
    assert [[engine.check(request).allowed for _ in range(3)] for request in asked] == [[True, True, False]] * 4
    assert engine.reset(asked[0]).rules == ("each",)
    assert [engine.check(request).allowed for request in asked] == [True, False, False, False]
    assert engine.peek(Request({"user": "ada"}, "/a", rule_id="each")).decision.remaining == 1


def test_the_clock_of_an_engine_is_that_of_its_store(make: Make) -> None:
    engine = make(load(RULES))
    assert engine.clock.now() > 1_700_000_000_000_000


@pytest.mark.parametrize("request_", ["ada", {"user": "ada"}, None])
def test_what_is_not_a_request_is_told(make: Make, request_: object) -> None:
    with pytest.raises(InvalidRequest, match=r"what is decided is a Request, such as Request\({'user': '42'}"):
        make(load(RULES)).check(cast("Request", request_))


def test_text_and_names_of_files_are_told_apart(make: Make) -> None:
    for text in ("version: 1", RULES * 100):
        with pytest.raises(InvalidRule, match=r"rules are given as the name of a file; for their text use load_rules"):
            make(text)
    with pytest.raises(InvalidRules, match=r"the name of a file, not rules. Engine\('rules.yaml'\) reads it"):
        load("rules.yaml")

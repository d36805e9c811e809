"""One rule, asked for by its id."""

from __future__ import annotations

import pytest

from headgate.policy.loading import load
from headgate.policy.request import InvalidRequest, UnknownRule
from tests.engine.conftest import Make

RULES = """
version: 1
rules:
  - {id: orders, dimension: user, endpoint: /orders/**, limit: 3, window: 1h}
  - {id: trial, dimension: ip, limit: 1, window: 1h, shadow: true}
deny: [{user: eve}]
"""


def test_what_is_sent_again_with_a_key_is_counted_once(make: Make) -> None:
    engine = make(load(RULES))
    rulings = [engine.check_rule("orders", "ada", idempotency_key="k") for _ in range(3)]
    assert [ruling.decision.remaining for ruling in rulings] == [2, 2, 2]
    assert engine.check_rule("orders", "ada").decision.remaining == 1


def test_a_peek_takes_nothing(make: Make) -> None:
    engine = make(load(RULES))
    engine.check_rule("orders", "ada", 3)
    assert [engine.peek_rule("orders", "ada").allowed for _ in range(2)] == [False, False]
    assert engine.peek_rule("orders", "bob", 2).decision.remaining == 3


def test_a_reset_forgets_what_one_value_used(make: Make) -> None:
    engine = make(load(RULES))
    for user in ("ada", "bob"):
        engine.check_rule("orders", user, 3)
    assert engine.reset_rule("orders", "ada")
    assert [engine.check_rule("orders", user).allowed for user in ("ada", "bob")] == [True, False]
    engine.check_rule("trial", "203.0.113.9")
    assert engine.reset_rule("trial", "203.0.113.9")
    assert engine.check_rule("trial", "203.0.113.9").shadow[0].decision.allowed


def test_there_is_nothing_to_reset_of_a_rule_that_matches_nothing(make: Make) -> None:
    engine = make(load(RULES))
    assert not engine.reset_rule("nowhere", "ada")
    assert not engine.reset_rule("orders", "eve")


def test_the_value_is_of_the_rules_own_dimension(make: Make) -> None:
    engine = make(load(RULES))
    assert engine.check_rule("orders", "ada", dimension="user").matched
    for verb in (engine.check_rule, engine.peek_rule, engine.reset_rule):
        with pytest.raises(InvalidRequest, match="'orders' counts by user, not by ip"):
            verb("orders", "203.0.113.9", dimension="ip")
    assert engine.check_rule("nowhere", "ada", dimension="user").matched is False


def test_a_rule_that_does_not_exist_can_be_an_error(make: Make) -> None:
    engine = make(load(RULES.replace("version: 1", "version: 1\nunknown_rule: error")))
    for verb in (engine.check_rule, engine.peek_rule, engine.reset_rule):
        with pytest.raises(UnknownRule, match="nowhere"):
            verb("nowhere", "ada")


def test_the_clock_of_an_engine_is_that_of_its_store(make: Make) -> None:
    engine = make(load(RULES))
    assert engine.clock.now() > 1_700_000_000_000_000

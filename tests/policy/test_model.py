"""The model: every value is valid, and mistakes are explained."""

from __future__ import annotations

import re
from typing import Any

import pytest

from headgate.config.problems import InvalidRules
from headgate.core.algorithms import Algorithm
from headgate.core.errors import InvalidRule
from headgate.core.mode import Mode
from headgate.core.quota import Quota
from headgate.policy.compiled import Policy
from headgate.policy.dumping import to_yaml
from headgate.policy.loading import load
from headgate.policy.model import Change, Entry, Rule, Ruleset, User
from headgate.policy.request import Request

QUOTAS = Quota.parse("10/minute")
RULE = Rule("r", QUOTAS)


USUAL: dict[type, dict[str, Any]] = {Rule: {"id": "r", "quotas": QUOTAS}, Ruleset: {"rules": (RULE,)}}
WRONG: list[tuple[type, dict[str, Any], str]] = [
    (Rule, {"endpoint": "/a*"}, r"rule 'r': endpoint '/a*', segment 1: 'a*' is neither literal nor"),
    (Rule, {"id": 7}, "bad rule id: a name must have 1 to 64 of"),
    (Rule, {"dimension": None}, "rule 'r': dimension must be text, not None"),
    (Rule, {"dimension": "a b"}, "bad dimension: a name must have 1 to 64 of"),
    (Rule, {"dimension": "user+user_id"}, "different dimensions"),
    (Rule, {"dimension": "a+b+c+d+e"}, "up to 4"),
    (Rule, {"dimension": "user+global"}, "global counts all callers together"),
    (Rule, {"dimension": "user+"}, "bad dimension"),
    *((Rule, {"dimension": name, "key_pattern": "10.0.0.1/33"}, "key_pattern") for name in ("global", "user+ip", "ip")),
    (Rule, {"dimension": "endpoint", "key_pattern": "/a/../b"}, "rule 'r': key_pattern"),
    (Rule, {"quotas": ()}, "rule 'r' has no limit"),
    (Rule, {"quotas": "10/minute"}, "rule 'r': quotas must be a tuple or a list, not '10/minute'"),
    (Rule, {"quotas": QUOTAS * 2}, "rule 'r': two of the quotas '10/minute; 10/minute' have the same algorithm"),
    (Rule, {"created_at": 2026}, "rule 'r': created_at must be text, not 2026"),
    (Rule, {"methods": "POST"}, "rule 'r': methods must be a tuple or a list, not 'POST'"),
    (Rule, {"methods": {"post"}}, "rule 'r': 'post' is not an HTTP method: write it as POST"),
    (Rule, {"when": {"region": 7}}, "rule 'r': when: 'region' must be text, not 7"),
    (Rule, {"enabled": "no"}, "rule 'r': enabled must be True or False, not 'no'"),
    (Rule, {"enforce_percent": 101}, "rule 'r': enforce_percent must be a whole number from 0 to 100"),
    (Rule, {"replaces": {"r"}}, "rule 'r' cannot replace itself"),
    (Rule, {"on_store_failure": False}, "rule 'r': on_store_failure must be one of local, allow, deny, not False"),
    (Change, {"limit": "5"}, "a change: limit must be a whole number, not '5'"),
    (Change, {"until": "2026-12-01"}, "a change: until must be a whole number, not '2026-12-01'"),
    (Change, {"algorithm": "bucket"}, "a change: algorithm must be one of token_bucket, leaky_bucket,"),
    (Change, {"quotas": ()}, "a change: quotas must have at least one"),
    (User, {"tier": None}, "a user: tier must be text, not None"),
    (User, {"overrides": {"r": 5}}, "a user: overrides: 'r' must be a Change, not 5"),
    (Entry, {"dimension": None, "value": "x"}, "bad dimension"),
    (Entry, {"dimension": "user", "value": 7}, "an entry of a list: value must be text, not 7"),
    (Entry, {"dimension": "user", "value": b"x"}, "an entry of a list: value must be text, not b'x'"),
    (Entry, {"dimension": "user", "value": ""}, "an entry of a list must have 1 to 512 characters"),
    (Entry, {"dimension": "ip", "value": "10.0.0.1/8"}, "'10.0.0.1/8' is not an address or network"),
    (Ruleset, {"rules": RULE}, "rules must be a tuple or a list, not Rule("),
    (Ruleset, {"rules": (Rule("s", QUOTAS, replaces=frozenset({"x"})),)}, "rules[0].replaces: rule 'x' does not exist"),
    (Ruleset, {"tiers": {"pro": Change()}}, "tiers: 'pro' must be a mapping, not Change("),
    (Ruleset, {"tiers": {"pro": {"r": 5}}}, "tiers: 'pro': 'r' must be a Change, not 5"),
    (Ruleset, {"tiers": {"": {}}}, "tiers: the name of a tier must have at least one character"),
    (Ruleset, {"tiers": {"pro": {"x": Change()}}}, "tiers.pro.x: rule 'x' does not exist"),
    (
        Ruleset,
        {"tiers": {"pro": {"r": Change(limit=-1)}}},
        "tiers.pro.r.limit: this change of 'r' is invalid: limit must",
    ),
    (Ruleset, {"users": {"7": "pro"}}, "users: '7' must be a User, not 'pro'"),
    (Ruleset, {"users": {"7": User("", {"x": Change()})}}, "users[\"7\"].overrides.x: rule 'x' does not exist"),
    (Ruleset, {"default_tier": None}, "the rules: default_tier must be text, not None"),
    (Ruleset, {"deny": [{"user": "x"}]}, "deny: an item must be an Entry, not {'user': 'x'}"),
    (Ruleset, {"default": "allow"}, "default must be a Rule, not 'allow'"),
    (Ruleset, {"unknown_rule": "deny"}, "unknown_rule must be 'allow' or 'error', not 'deny'"),
    (Ruleset, {"ignore_case": 1}, "the rules: ignore_case must be True or False, not 1"),
    (
        Ruleset,
        {"rules": (RULE, RULE)},
        "rules[1].id: the id 'r' is already used by rules[0]. Accepted: an id that no other rule has",
    ),
]


def test_an_invalid_value_is_explained() -> None:
    for kind, given, message in WRONG:
        with pytest.raises(InvalidRule, match=re.escape(message)):
            kind(**{**USUAL.get(kind, {}), **given})


def test_unambiguous_values_are_converted() -> None:
    given: dict[str, Any] = {"methods": ["POST"], "replaces": {"other"}, "on_store_failure": "deny"}
    rule = Rule("r", list(QUOTAS), **given)  # type: ignore[arg-type]
    assert rule == Rule(
        "r", QUOTAS, methods=frozenset({"POST"}), replaces=frozenset({"other"}), on_store_failure=Mode.DENY
    )
    assert type(rule.on_store_failure) is Mode
    assert Change(algorithm="gcra") == Change(algorithm=Algorithm.GCRA)  # type: ignore[arg-type]
    assert Ruleset([RULE]) == Ruleset((RULE,))  # type: ignore[arg-type]


class TestCapacity:
    """What was given of the two, the burst or the capacity, stays when the limit changes."""

    def test_by_a_tier_or_an_override(self) -> None:
        for written, change, limit, capacity in (
            ("limit: 100, window: 1m, capacity: 10", "limit: 1000", 1000, 10),
            ("limit: 100, window: 1m, capacity: 10", "limit: 50", 50, 10),
            ("limit: 100, window: 1m, capacity: 10", "limit: 5", 5, 10),
            ("limit: 100, window: 1m, capacity: 150", "limit: 1000", 1000, 150),
            ("limit: 100, window: 1m, capacity: 10", "limit: 1000, capacity: 20", 1000, 20),
            ("limit: 100, window: 1m, capacity: 10", "capacity: 20", 100, 20),
            ("limit: 100, window: 1m, capacity: 10", "limit: 1000, burst: 20", 1000, 1020),
            ("limit: 100, window: 1m, capacity: 10", "limit: 1000, window: 1h, algorithm: gcra", 1000, 10),
            ("limit: 100, window: 1m, burst: 20", "limit: 1000", 1000, 1020),
            ("limit: 100, window: 1m, burst: 20", "limit: 1000, capacity: 30", 1000, 30),
            ("limit: 100, window: 1m, capacity: 100, algorithm: fixed_window", "limit: 1000", 1000, 1000),
            ("quota: 100/minute capacity 10", "limit: 1000", 1000, 10),
            ("quota: 100/minute burst 10", "limit: 1000", 1000, 1010),
            ("capacity: 10, refill_rate: 5", "limit: 8", 8, 10),
            ("capacity: 10, refill_rate: 0", "limit: 8", 8, 10),
            ("quota: 100/minute", "limit: 50, window: 1m, capacity: 5, warn_percent: 90", 50, 5),
        ):
            ruleset = load(f"""
                version: 1
                rules: [{{id: r, {written}}}]
                tiers: {{pro: {{r: {{{change}}}}}}}
                users: {{ada: {{overrides: {{r: {{{change}}}}}}}}}
                """)
            assert load(to_yaml(ruleset)) == ruleset, written
            for again in (ruleset, load(to_yaml(ruleset))):
                policy = Policy(again)
                for request in (Request({"user": "bob"}, tier="pro"), Request({"user": "ada"})):
                    (one,) = policy.select(request, 0).enforced.plan
                    assert (one.quota.limit, one.quota.capacity) == (limit, capacity), written

    @pytest.mark.parametrize("written", ["limit: 5, window: 1s, burst: 10", "limit: 5, window: 1s, capacity: 7"])
    @pytest.mark.parametrize("change", ["limit: 0", "limit: 0, burst: 3", "limit: 0, capacity: 3"])
    def test_a_limit_is_not_changed_to_none_with_a_burst_that_comes_back(self, written: str, change: str) -> None:
        with pytest.raises(InvalidRules, match=r"this change of 'r' is invalid: limit must be a whole number from 1"):
            load(f"{{version: 1, rules: [{{id: r, {written}}}], tiers: {{pro: {{r: {{{change}}}}}}}}}")

    def test_an_override_keeps_the_capacity_that_a_tier_gives(self) -> None:
        ruleset = load("""
            version: 1
            rules: [{id: r, limit: 100, window: 1m}, {id: s, limit: 100, window: 1m, capacity: 10}]
            tiers: {pro: {r: {capacity: 7}, s: {burst: 3}}}
            users: {ada: {tier: pro, overrides: {r: {limit: 500}, s: {limit: 500}}}}
            """)
        quotas = [limit.quota for limit in Policy(ruleset).select(Request({"user": "ada"}), 0).enforced.plan]
        assert [(quota.limit, quota.capacity) for quota in quotas] == [(500, 7), (500, 503)]

    def test_equal_quotas_of_two_rules_are_changed_each_in_its_own_way(self) -> None:
        ruleset = load("""
            version: 1
            rules: [{id: r, limit: 10, window: 1m, burst: 5}, {id: s, limit: 10, window: 1m, capacity: 15}]
            tiers: {pro: {r: {limit: 100}, s: {limit: 100}}}
            """)
        plan = Policy(ruleset).select(Request({"user": "ada"}, tier="pro"), 0).enforced.plan
        assert [limit.quota.capacity for limit in plan] == [105, 15]

    def test_a_change_gives_one_of_the_two(self) -> None:
        with pytest.raises(InvalidRule, match="burst and capacity are alternatives"):
            Change(burst=1, capacity=2)
        with pytest.raises(InvalidRules, match="burst and capacity are alternatives"):
            load("{version: 1, rules: [{id: r, quota: 1/s}], tiers: {pro: {r: {burst: 1, capacity: 2}}}}")

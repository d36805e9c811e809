"""The model: a value that exists is acceptable, and a mistake is said in words."""

from __future__ import annotations

import re
from typing import Any

import pytest

from headgate.core.algorithms import Algorithm
from headgate.core.errors import InvalidRule
from headgate.core.mode import Mode
from headgate.core.quota import Quota
from headgate.policy.compiled import Policy
from headgate.policy.dumping import to_yaml
from headgate.policy.loading import InvalidRules, load
from headgate.policy.model import Change, Entry, Rule, Ruleset, User
from headgate.policy.request import Request

QUOTAS = Quota.parse("10/minute")
RULE = Rule("r", QUOTAS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"id": 7}, "bad rule id: a name has 1 to 64 of"),
        ({"id": "a b"}, "bad rule id: a name has 1 to 64 of"),
        ({"dimension": None}, "rule 'r': dimension is text, not None"),
        ({"dimension": "a b"}, "bad dimension: a name has 1 to 64 of"),
        ({"quotas": ()}, "rule 'r' has no limit"),
        ({"quotas": QUOTAS[0]}, "rule 'r': quotas is several of Quota, in a tuple or a list, not Quota("),
        ({"quotas": "10/minute"}, "rule 'r': quotas is several of Quota, in a tuple or a list, not '10/minute'"),
        ({"quotas": ("10/minute",)}, "rule 'r': quotas has Quota only, not '10/minute'"),
        ({"quotas": QUOTAS * 2}, "rule 'r': two of the quotas '10/minute; 10/minute' have the same algorithm"),
        ({"name": None}, "rule 'r': name is text, not None"),
        ({"endpoint": b"/"}, "rule 'r': endpoint is text, not b'/'"),
        ({"tier": 1}, "rule 'r': tier is text, not 1"),
        ({"created_at": 2026}, "rule 'r': created_at is text, not 2026"),
        ({"updated_at": 2026}, "rule 'r': updated_at is text, not 2026"),
        ({"methods": "POST"}, "rule 'r': methods is several of text, in a tuple or a list, not 'POST'"),
        ({"methods": None}, "rule 'r': methods is several of text"),
        ({"methods": ""}, "rule 'r': methods is several of text"),
        ({"methods": {7}}, "rule 'r': methods has text only, not 7"),
        ({"methods": {"post"}}, "rule 'r': 'post' is not an HTTP method: write it as POST"),
        ({"when": {"region": 7}}, "rule 'r': when: 'region' has text, not 7"),
        ({"when": {7: "region"}}, "rule 'r': when has text as names, not 7"),
        ({"when": ["region"]}, "rule 'r': when is a mapping of text to text, not ['region']"),
        ({"when": None}, "rule 'r': when is a mapping of text to text, not None"),
        ({"shadow": 1}, "rule 'r': shadow is True or False, not 1"),
        ({"enabled": "no"}, "rule 'r': enabled is True or False, not 'no'"),
        ({"reset_on_change": None}, "rule 'r': reset_on_change is True or False, not None"),
        ({"enforce_percent": 101}, "rule 'r': enforce_percent is a whole number from 0 to 100"),
        ({"enforce_percent": True}, "rule 'r': enforce_percent is a whole number from 0 to 100"),
        ({"replaces": "abc"}, "rule 'r': replaces is several of text, in a tuple or a list, not 'abc'"),
        ({"replaces": [None]}, "rule 'r': replaces has text only, not None"),
        ({"replaces": {"r"}}, "rule 'r' cannot replace itself"),
        ({"on_store_failure": "raise"}, "rule 'r': on_store_failure is one of local, allow, deny, not 'raise'"),
        ({"replicas": -1}, "rule 'r': replicas is a whole number from 0 to 100"),
        ({"replicas": True}, "rule 'r': replicas is a whole number from 0 to 100"),
        ({"on_store_failure": False}, "rule 'r': on_store_failure is one of local, allow, deny, not False"),
    ],
)
def test_a_rule_says_what_is_wrong_with_it(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRule, match=re.escape(said)):
        Rule(**{"id": "r", "quotas": QUOTAS, **given})


def test_what_can_only_mean_one_thing_is_taken_as_that() -> None:
    given: dict[str, Any] = {"methods": ["POST"], "replaces": {"other"}, "on_store_failure": "deny"}
    rule = Rule("r", list(QUOTAS), **given)  # type: ignore[arg-type]
    assert rule == Rule(
        "r", QUOTAS, methods=frozenset({"POST"}), replaces=frozenset({"other"}), on_store_failure=Mode.DENY
    )
    assert type(rule.on_store_failure) is Mode
    assert Change(algorithm="gcra") == Change(algorithm=Algorithm.GCRA)  # type: ignore[arg-type]
    assert Ruleset([RULE]) == Ruleset((RULE,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"limit": "5"}, "a change: limit is a whole number, not '5'"),
        ({"burst": True}, "a change: burst is a whole number, not True"),
        ({"window_us": 1.5}, "a change: window_us is a whole number, not 1.5"),
        ({"until": "2026-12-01"}, "a change: until is a whole number, not '2026-12-01'"),
        ({"algorithm": "bucket"}, "a change: algorithm is one of token_bucket, leaky_bucket,"),
        ({"algorithm": 7}, "sliding_window_counter, gcra, not 7"),
        ({"quotas": "5/s"}, "a change: quotas is several of Quota"),
        ({"quotas": ()}, "a change: quotas has at least one"),
        ({"quotas": (None,)}, "a change: quotas has Quota only, not None"),
    ],
)
def test_a_change_says_what_is_wrong_with_it(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRule, match=re.escape(said)):
        Change(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tier": None}, "a user: tier is text, not None"),
        ({"overrides": None}, "a user: overrides is a mapping of text to Change, not None"),
        ({"overrides": {"r": 5}}, "a user: overrides: 'r' has Change, not 5"),
        ({"overrides": {5: Change()}}, "a user: overrides has text as names, not 5"),
    ],
)
def test_a_user_says_what_is_wrong_with_it(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRule, match=re.escape(said)):
        User(**given)


@pytest.mark.parametrize(
    ("dimension", "value", "said"),
    [
        (None, "x", "bad dimension"),
        ("user", 7, "an entry of a list: value is text, not 7"),
        ("user", b"x", "an entry of a list: value is text, not b'x'"),
        ("user", "", "an entry of a list has 1 to 512 characters"),
        ("ip", "10.0.0.1/8", "'10.0.0.1/8' is not an address or network"),
    ],
)
def test_an_entry_says_what_is_wrong_with_it(dimension: Any, value: Any, said: str) -> None:
    with pytest.raises(InvalidRule, match=re.escape(said)):
        Entry(dimension, value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rules": RULE}, "rules is several of Rule, in a tuple or a list, not Rule("),
        ({"rules": ("r",)}, "rules has Rule only, not 'r'"),
        (
            {"rules": (RULE, RULE)},
            "rules[1].id: the id 'r' is that of rules[0] already. Accepted: an id that no other rule has",
        ),
        ({"rules": (Rule("s", QUOTAS, replaces=frozenset({"x"})),)}, "rules[0].replaces: there is no rule 'x'"),
        ({"tiers": ["pro"]}, "tiers is a mapping of text to a mapping, not ['pro']"),
        ({"tiers": {"pro": Change()}}, "tiers: 'pro' has a mapping, not Change("),
        ({"tiers": {"pro": {"r": 5}}}, "tier 'pro': 'r' has Change, not 5"),
        ({"tiers": {"": {}}}, "tiers: the name of a tier has at least one character"),
        ({"tiers": {"pro": {"x": Change()}}}, "tiers.pro.x: there is no rule 'x'"),
        ({"tiers": {"pro": {"r": Change(limit=-1)}}}, "tiers.pro.r: 'r' cannot be changed like that: limit must"),
        ({"users": {"7": "pro"}}, "users: '7' has User, not 'pro'"),
        ({"users": {7: User()}}, "users has text as names, not 7"),
        ({"users": {"7": User("", {"x": Change()})}}, 'users["7"].overrides.x: there is no rule'),
        ({"default_tier": None}, "the rules: default_tier is text, not None"),
        ({"allow": Entry("user", "x")}, "allow is several of Entry"),
        ({"deny": [{"user": "x"}]}, "deny has Entry only, not {'user': 'x'}"),
        ({"default": "allow"}, "default is a Rule, not 'allow'"),
        ({"unknown_rule": None}, "the rules: unknown_rule is text, not None"),
        ({"unknown_rule": "deny"}, "unknown_rule is 'allow' or 'error', not 'deny'"),
        ({"ignore_case": 1}, "the rules: ignore_case is True or False, not 1"),
    ],
)
def test_a_ruleset_says_what_is_wrong_with_it(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRule, match=re.escape(said)):
        Ruleset(**{"rules": (RULE,), **given})


class TestCapacity:
    """What was given of the two, the burst or the capacity, stays when the limit changes."""

    @pytest.mark.parametrize(
        ("written", "change", "limit", "capacity"),
        [
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
            ("quota: 100/minute", "{limit: 50, window: 1m, capacity: 5, warn_percent: 90}", 50, 5),
        ],
    )
    def test_by_a_tier_or_an_override(self, written: str, change: str, limit: int, capacity: int) -> None:
        change = change.strip("{}")
        ruleset = load(f"""
            version: 1
            rules: [{{id: r, {written}}}]
            tiers: {{pro: {{r: {{{change}}}}}}}
            users: {{ada: {{overrides: {{r: {{{change}}}}}}}}}
            """)
        assert load(to_yaml(ruleset)) == ruleset
        for again in (ruleset, load(to_yaml(ruleset))):
            policy = Policy(again)
            for request in (Request({"user": "bob"}, tier="pro"), Request({"user": "ada"})):
                (one,) = policy.select(request, 0).enforced.plan
                assert (one.quota.limit, one.quota.capacity) == (limit, capacity)

    @pytest.mark.parametrize("written", ["limit: 5, window: 1s, burst: 10", "limit: 5, window: 1s, capacity: 7"])
    @pytest.mark.parametrize("change", ["limit: 0", "limit: 0, burst: 3", "limit: 0, capacity: 3"])
    def test_a_limit_is_not_changed_to_none_with_a_burst_that_comes_back(self, written: str, change: str) -> None:
        with pytest.raises(InvalidRules, match=r"'r' cannot be changed like that: limit must be a whole number from 1"):
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
        with pytest.raises(InvalidRule, match="burst and capacity are two ways to say the same"):
            Change(burst=1, capacity=2)
        with pytest.raises(InvalidRules, match="burst and capacity are two ways to say the same"):
            load("{version: 1, rules: [{id: r, quota: 1/s}], tiers: {pro: {r: {burst: 1, capacity: 2}}}}")

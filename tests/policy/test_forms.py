"""One rule, change, user or entry as data: the same form as in a file, and problems told by their paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from headgate import Quota
from headgate.core.mode import Mode
from headgate.policy.dumping import to_data
from headgate.policy.loading import (
    InvalidRules,
    change_from_data,
    entry_from_data,
    from_data,
    rule_from_data,
    user_from_data,
)
from headgate.policy.model import Change, Entry, Rule, Ruleset, User
from tests.policy.written import rulesets

MINUTE = 60_000_000


def test_a_rule() -> None:
    data = {"id": "a", "limit": 5, "window": "1m", "methods": ["GET"], "on_store_failure": "deny", "replaces": ["b"]}
    assert rule_from_data(data) == Rule(
        "a",
        (Quota(5, MINUTE),),
        methods=frozenset({"GET"}),
        on_store_failure=Mode.DENY,
        replaces=frozenset({"b"}),
    )


def test_a_rule_in_the_names_of_other_documents() -> None:
    data = {"rule_id": "a", "key_type": "ip", "endpoint_pattern": "/a/*", "limit": 5, "window_seconds": 60}
    assert rule_from_data(data) == Rule("a", (Quota(5, MINUTE),), dimension="ip", endpoint="/a/*")


def test_what_tiers_and_users_change() -> None:
    assert change_from_data({"limit": 5}) == Change(limit=5)
    assert change_from_data({"quota": "5/m", "until": "1970-01-01T00:00:01Z"}) == Change(
        quotas=(Quota(5, MINUTE),), until=1_000_000
    )
    assert user_from_data({"tier": "pro", "overrides": {"a": {"burst": 2}}}) == User("pro", {"a": Change(burst=2)})
    assert entry_from_data({"ip": "10.0.0.0/8"}) == Entry("ip", "10.0.0.0/8")


@pytest.mark.parametrize(
    ("reading", "data", "told"),
    [
        (
            rule_from_data,
            {"limit": 1.5, "window": "soon", "methods": ["get"], "endpont": "/"},
            [
                "limit: 1.5 is not a whole number from 0 to 2251799813685248",
                "window: 'soon' is not a length of time. Accepted: a number of seconds, or a length such as 500ms",
                "methods[0]: 'get' cannot be used here. Accepted: an HTTP method in capitals. Did you mean 'GET'?",
                "endpont: a rule has no 'endpont'. Did you mean 'endpoint'?",
                "a rule needs 'id'. Names the rule, in keys and answers; what was used is counted under it.",
            ],
        ),
        (
            rule_from_data,
            {"id": "a"},
            ["a rule needs a quota. Accepted: limit and window, capacity and refill_rate, or"],
        ),
        (rule_from_data, [], ["a list is not a rule. Accepted: a mapping with fields such as id, name, dimension,"]),
        (rule_from_data, None, ["there is nothing in it"]),
        (
            rule_from_data,
            {"id": "a", "limits": [{"limit": 5, "window": "1m", "burst": 2, "algorithm": "fixed_window"}]},
            ["limits[0].burst: fixed_window has no burst"],
        ),
        (
            rule_from_data,
            {"id": "a", "quota": "1/s", "endpoint": "/a/**/b", "dimension": ["user", "global"]},
            ["dimension: global counts all as one", "endpoint: endpoint '/a/**/b', segment 2: ** stands for the rest"],
        ),
        (change_from_data, {"limt": 5}, ["limt: a change has no 'limt'. Did you mean 'limit'?"]),
        (change_from_data, {"window": "month"}, ["window: the window 'month' has no fixed length"]),
        (
            user_from_data,
            {"overrides": {"a": {"limit": "5"}}, "teir": "pro"},
            [
                "overrides.a.limit: '5' is not a whole number from 0 to 2251799813685248. Write 5,",
                "teir: a user has no",
            ],
        ),
        (entry_from_data, {"ip": "10.0.0.1/8"}, ["ip: '10.0.0.1/8' is not an address or network"]),
        (entry_from_data, {"ip": "10.0.0.1", "user": "a"}, ["has 2 keys. Accepted: one dimension and its value"]),
    ],
)
def test_all_problems_are_told_by_their_paths(reading: Callable[[object], Any], data: Any, told: list[str]) -> None:
    with pytest.raises(InvalidRules) as caught:
        reading(data)
    found = [str(problem) for problem in caught.value.problems]
    assert len(found) == len(told)
    assert all(problem.startswith(start) for problem, start in zip(found, told, strict=True)), found
    assert all(problem.line == 0 for problem in caught.value.problems)


def test_whether_a_rule_goes_with_others_is_seen_when_a_ruleset_is_made() -> None:
    rule = rule_from_data({"id": "a", "quota": "1/s", "replaces": ["orders"]})
    assert Ruleset((rule, rule_from_data({"id": "orders", "quota": "2/s"}))).rules[0] is rule
    with pytest.raises(InvalidRules) as caught:
        Ruleset((rule, rule_from_data({"id": "order", "quota": "2/s"})), {"pro": {"order": Change(burst=-9)}})
    assert [problem.path for problem in caught.value.problems] == ["rules[0].replaces", "tiers.pro.order"]
    assert caught.value.problems[0].hint == "Did you mean 'order'?"


@given(rulesets())
@settings(max_examples=30)
def test_what_is_written_of_each_part_is_read_back(ruleset: Ruleset) -> None:
    assert tuple(rule_from_data(to_data(rule)) for rule in ruleset.rules) == ruleset.rules
    assert {name: user_from_data(to_data(user)) for name, user in ruleset.users.items()} == ruleset.users
    assert tuple(entry_from_data(to_data(entry)) for entry in ruleset.allow) == ruleset.allow
    changes = [change for changes in ruleset.tiers.values() for change in changes.values()]
    assert [change_from_data(to_data(change)) for change in changes] == changes
    assert from_data(to_data(ruleset)) == ruleset

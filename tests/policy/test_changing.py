"""Single changes of rules that are in force: checked and compiled alone, and as good as reading everything again."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.config.problems import InvalidRules
from headgate.policy.changing import BodyChange, changed, put
from headgate.policy.compiled import Policy
from headgate.policy.loading import from_data
from headgate.policy.request import Request, UnknownRule
from tests.policy.test_compiled import answer

DOCUMENT: dict[str, Any] = {
    "version": 1,
    "rules": [
        {"id": "a", "quota": "10/s", "endpoint": "/a/**"},
        {"id": "b", "quota": "5/s", "tier": "gold", "replaces": ["a"]},
        {"id": "c", "limits": ["7/s", "90/h"], "key_pattern": "u*", "enforce_percent": 50},
    ],
    "tiers": {"gold": {"a": {"limit": 100}}, "free": {"a": {"limit": 3}}},
    "users": {"u1": {"tier": "gold", "overrides": {"a": {"burst": 2}}}, "u2": {"overrides": {"b": {"limit": 9}}}},
    "default_tier": "free",
}
IDS = st.sampled_from(["a", "b", "c", "d", "e"])
CHANGES = st.sampled_from(
    [{"limit": 4}, {"limit": 2, "burst": 5}, {"capacity": 3}, {"window": "1h"}, {"limits": ["8/m"]}]
)
OVERRIDES = st.dictionaries(IDS, CHANGES, max_size=2)
TIERS = st.sampled_from(["gold", "free"])
MATCHING = st.fixed_dictionaries(
    {"quota": st.sampled_from(["1/s", "50/m", "1000/h burst 5"])},
    optional={
        "endpoint": st.sampled_from(["**", "/", "/a/**", "/a/*", "/A/b", "/a/{id}/c"]),
        "methods": st.sampled_from([["GET"], ["POST", "PUT"]]),
        "tier": TIERS,
        "when": st.sampled_from([{"region": "eu"}, {"region": "us", "plan": "x"}]),
        "dimension": st.sampled_from(["ip", "global", "user+endpoint", "tenant"]),
        "enabled": st.booleans(),
        "shadow": st.booleans(),
        "replaces": st.lists(IDS, max_size=2, unique=True),
    },
)
ENTRIES = st.sampled_from([[], [{"user": "u1"}], [{"ip": "10.0.0.0/8"}, {"user": "u*"}], [{"endpoint": "/a/1"}]])
DEFAULTS = st.sampled_from(["allow", {"quota": "2/m"}, {"id": "e", "quota": "4/m", "dimension": "ip"}])
SETTINGS = st.one_of(
    st.tuples(st.just("default_tier"), TIERS),
    st.tuples(st.sampled_from(["allow", "deny"]), ENTRIES),
    st.tuples(st.just("default"), DEFAULTS),
    st.tuples(st.just("ignore_case"), st.booleans()),
    st.tuples(st.just("unknown_rule"), st.sampled_from(["allow", "error"])),
)
STEPS = st.one_of(
    st.builds(BodyChange, st.just("rule"), IDS, st.one_of(MATCHING, MATCHING, st.none())),
    st.builds(BodyChange, st.just("tier"), TIERS, st.one_of(OVERRIDES, st.none())),
    st.builds(
        BodyChange,
        st.just("user"),
        st.sampled_from(["u1", "u2", "v"]),
        st.one_of(
            st.none(),
            st.fixed_dictionaries({"overrides": OVERRIDES}, optional={"tier": TIERS}),
        ),
    ),
    st.builds(lambda given: BodyChange("setting", *given), SETTINGS),
    st.builds(lambda given: BodyChange("setting", given[0], None), SETTINGS),
)
REQUESTS = [
    Request({"user": user, "ip": ip}, endpoint, method, attributes=attributes)
    for user, ip in (("u1", "10.0.0.1"), ("u2", "192.0.2.1"), ("v", "192.0.2.2"))
    for endpoint, method, attributes in (
        ("/a/1", "GET", {}),
        ("/a/1/c", "POST", {"region": "eu", "tenant": "t"}),
        ("/a/B", "PUT", {"region": "us", "plan": "x"}),
    )
] + [Request({"user": "u1"}, "/a/1", "GET", rule_id=each) for each in "abe"]


def answers(policy: Policy) -> list[object]:
    found: list[object] = []
    for request in REQUESTS:
        try:
            selection = policy.select(request, 0)
        except UnknownRule as error:
            found.append(str(error))
        except ValueError as error:
            found.append(repr(error))
        else:
            found.append((answer(selection), selection.reason, selection.unmatched_principals))
    return found


@given(st.lists(st.lists(STEPS, min_size=1, max_size=2), min_size=1, max_size=8))
def test_rules_changed_step_by_step_are_those_that_were_read_as_a_whole(
    steps: list[list[BodyChange]],
) -> None:
    document, ruleset = deepcopy(DOCUMENT), from_data(DOCUMENT)
    policy = Policy(ruleset)
    for step in steps:
        wanted = deepcopy(document)
        put(wanted, step)
        try:
            fresh = from_data(wanted)
        except InvalidRules:
            continue
        document, before, ruleset = wanted, (policy, answers(policy)), changed(ruleset, step)
        assert ruleset == fresh
        policy = Policy(ruleset, last=policy)
        assert answers(policy) == answers(Policy(fresh))
        assert answers(before[0]) == before[1]  # though they share what did not change


def test_unchanged_rules_are_not_prepared_again() -> None:
    document = {**DOCUMENT, "rules": [*DOCUMENT["rules"], {"id": "d", "quota": "1/s"}]}
    before = Policy(from_data(document))
    after = Policy(changed(before.ruleset, [BodyChange("rule", "d", {"quota": "2/s"})]), last=before)
    assert [after.rules[each] is before.rules[each] for each in "abcd"] == [True, True, True, False]
    retiered = Policy(changed(after.ruleset, [BodyChange("tier", "gold", {"b": {"limit": 1}})]), last=after)
    assert [retiered.rules[each] is after.rules[each] for each in "abcd"] == [False, False, True, True]


def test_terms_of_overrides_survive_changes_of_other_users() -> None:
    before = Policy(from_data({**DOCUMENT, "users": {"u": {"overrides": {"a": {"limit": 20}}}}}))
    after = Policy(changed(before.ruleset, [BodyChange("user", "v", {"tier": "gold"})]), last=before)
    first, last = (
        policy.select(Request({"user": "u"}, "/a/1"), 0).enforced.plan[0].quota for policy in (before, after)
    )
    assert first.limit == 20
    assert last is first


def test_an_invalid_body_is_refused() -> None:
    for change in (BodyChange("rule", "a", {"quota": "1/s", "limt": 5}), BodyChange("setting", "ignore_case", 5)):
        with pytest.raises(InvalidRules):
            changed(from_data(DOCUMENT), [change])

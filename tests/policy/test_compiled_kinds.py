"""What is remembered of kinds of requests never changes what is decided about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import CostTooLarge, HeadgateError
from headgate.core.quota import Quota
from headgate.policy import compiled
from headgate.policy.compiled import Policy
from headgate.policy.model import Change, Entry, Rule, Ruleset, User
from headgate.policy.request import InvalidRequest, Request
from tests.policy.naive import naive_plan
from tests.policy.test_compiled import NOW, answer, requests, rulesets

PER_USER = Rule("per-user", Quota.parse("10/minute"), dimension="user")
PER_IP = Rule("per-ip", Quota.parse("10/minute"), dimension="ip")
ADA = Request({"user": "ada"}, "/a", "GET")


@given(rulesets(), st.lists(requests, min_size=3, max_size=6), st.booleans())
def test_a_kind_of_request_that_was_seen_is_decided_as_if_it_was_new(
    ruleset: Ruleset,
    asked: list[Request],
    enforcing: bool,  # noqa: FBT001  drawn
) -> None:
    policy = Policy(ruleset, enforcing=enforcing)
    for request in asked * 2:
        for now in (NOW, NOW + 10_000_000, NOW):
            fresh = Policy(ruleset, enforcing=enforcing)
            assert policy.select(request, now, asking=False) == fresh.select(request, now, asking=False)
            if enforcing:
                assert answer(policy.select(request, now)) == naive_plan(ruleset, request, now)


WRONG: list[Any] = [None, 1, "", b"x", [], {}, "ü" * 70_000]


@given(st.sampled_from(msgspec.structs.fields(Request)), st.sampled_from(WRONG))
def test_what_is_wrong_with_a_request_is_told_as_if_it_was_new(field: msgspec.structs.FieldInfo, wrong: object) -> None:
    ruleset = Ruleset((PER_USER,))
    remembering = Policy(ruleset)
    remembering.select(ADA, NOW)
    request = msgspec.structs.replace(ADA, **{field.name: wrong})
    assert outcome(remembering, request) == outcome(Policy(ruleset), request)


@given(st.sampled_from(["user", "ip", "r"]), st.sampled_from(WRONG), st.booleans())
def test_what_is_wrong_with_a_value_is_told_as_if_it_was_new(name: str, wrong: object, in_principal: bool) -> None:  # noqa: FBT001  drawn
    ruleset = Ruleset((PER_USER, PER_IP))
    usual = {"user": "ada", "ip": "192.0.2.1"}
    remembering = Policy(ruleset)
    for principal, attributes in ((usual, {}), (usual, {"r": "x"}), (usual | {"r": "x"}, {})):
        remembering.select(Request(principal, "/a", "GET", attributes), NOW)
    found: Any = {name: wrong}
    request = Request(usual | found, "/a", "GET") if in_principal else Request(usual, "/a", "GET", found)
    assert outcome(remembering, request) == outcome(Policy(ruleset), request)


def outcome(policy: Policy, request: Request) -> object:
    try:
        return answer(policy.select(request, NOW))
    except HeadgateError as error:
        return type(error), str(error)


def test_names_are_no_principal() -> None:
    policy = Policy(Ruleset((PER_USER,)))
    policy.select(ADA, NOW)
    for principal in (("user",), ["user"], {"user"}, "user"):
        with pytest.raises(InvalidRequest, match="principal is a mapping"):
            policy.select(msgspec.structs.replace(ADA, principal=principal), NOW)


def test_who_is_special_is_not_taken_for_anybody_else() -> None:
    policy = Policy(Ruleset((PER_USER,), users={"bob": User("", {"per-user": Change(limit=99)})}))
    for _ in range(2):
        limits = [policy.select(Request({"user": user}, "/a", "GET"), NOW) for user in ("ada", "bob", "eve")]
        assert [each.enforced.plan[0].quota.limit for each in limits] == [10, 99, 10]


def test_a_cost_that_could_never_pass_is_refused_each_time() -> None:
    policy = Policy(Ruleset((PER_USER,)))
    policy.select(ADA, NOW)
    for _ in range(2):
        with pytest.raises(CostTooLarge, match="per-user"):
            policy.select(msgspec.structs.replace(ADA, cost=11), NOW)


def test_what_is_only_in_force_for_a_time_ends() -> None:
    ruleset = Ruleset((PER_USER,), tiers={"pro": {"per-user": Change(limit=99, until=NOW + 5)}})
    policy, request = Policy(ruleset), msgspec.structs.replace(ADA, tier="pro")
    found = [policy.select(request, now).enforced.plan[0].quota.limit for now in (NOW, NOW + 4, NOW + 5, NOW)]
    assert found == [99, 99, 10, 99]


def test_the_override_of_a_user_ends() -> None:
    override = Change(limit=99, until=NOW + 5)
    policy = Policy(Ruleset((PER_USER,), users={"ada": User("", {"per-user": override})}))
    found = [policy.select(ADA, now).enforced.plan[0].quota.limit for now in (NOW, NOW + 4, NOW + 5, NOW)]
    assert found == [99, 99, 10, 99]


@pytest.mark.parametrize(
    "ruleset",
    [
        Ruleset((PER_USER,), allow=(Entry("user", "ada"),)),
        Ruleset((PER_USER,), deny=(Entry("user", "ada"),)),
        Ruleset((replace(PER_USER, when={"user": "ada"}),)),
        Ruleset((replace(PER_USER, shadow=True),)),
        Ruleset((replace(PER_USER, enforce_percent=50),)),
        Ruleset((replace(PER_USER, key_pattern="a*"),)),
    ],
    ids=["allow", "deny", "when", "shadow", "percent", "key"],
)
def test_rules_that_look_at_values_look_at_those_of_each_request(ruleset: Ruleset) -> None:
    policy = Policy(ruleset)
    for user in ("ada", "bob", "eve", "ada", "bob", "eve"):
        request = Request({"user": user}, "/a", "GET")
        assert answer(policy.select(request, NOW)) == naive_plan(ruleset, request, NOW)


def test_a_rule_that_is_named_is_for_any_key_however_often() -> None:
    policy = Policy(Ruleset((replace(PER_USER, key_pattern="a*"),)))
    for _ in range(2):
        assert policy.select(Request({"user": "bob"}, rule_id="per-user"), NOW).matched
        assert not policy.select(Request({"user": "bob"}), NOW).matched


def test_values_that_no_rule_asks_for_are_one_kind() -> None:
    policy = Policy(Ruleset((replace(PER_USER, when={"region": "eu"}),)))
    for number in range(3):
        assert not policy.select(Request({"user": "ada"}, attributes={"region": f"r{number}"}), NOW).matched
        assert policy.select(Request({"user": f"u{number}"}, attributes={"region": "eu"}), NOW).matched
    assert remembered(policy)["_kinds"] == 2


def test_paths_that_the_same_patterns_match_are_one_kind() -> None:
    policy = Policy(Ruleset((PER_USER, replace(PER_IP, endpoint="/orders/**"))))
    for number in range(10):
        policy.select(Request({"user": "ada"}, f"/orders/{number}", "GET"), NOW)
    assert remembered(policy) == {"_known": 10, "_kinds": 1, "_steps": 0}


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MOST", 8)
    monkeypatch.setattr(compiled, "MOST_ENDPOINTS", 8)
    users = {f"u{number}": User("", {"per-user": Change(limit=number + 1)}) for number in range(20)}
    ruleset = Ruleset((PER_USER,), users=users)
    policy = Policy(ruleset)
    for number in range(100):
        principal = {"user": f"u{number % 30}", f"x{number}": "x"}
        request = Request(principal, f"/orders/{number}", "GET", tier=f"t{number}")
        assert answer(policy.select(request, NOW)) == naive_plan(ruleset, request, NOW)
        assert max(remembered(policy).values()) <= 8


@pytest.mark.parametrize(
    "asked",
    [
        Request({"user": "ada", "a" * compiled.LONGEST: "x"}),
        Request({"user": "ada"}, attributes={"a" * compiled.LONGEST: "x"}),
        Request({"user": "ada"}, method="A" * compiled.LONGEST, tier="b"),
        Request({"user": "ada"}, tier="a" * (compiled.LONGEST + 1)),
    ],
    ids=["principal", "attribute", "method", "tier"],
)
def test_what_is_long_is_not_remembered(asked: Request) -> None:
    policy = Policy(Ruleset((PER_USER,)))
    assert policy.select(asked, NOW).matched
    assert remembered(policy) == {"_known": 0, "_kinds": 0, "_steps": 0}


def test_a_long_path_is_not_remembered() -> None:
    policy = Policy(Ruleset((PER_USER,)))
    assert policy.select(Request({"user": "ada"}, "/" + "a" * compiled.LONGEST), NOW).matched
    assert remembered(policy) == {"_known": 0, "_kinds": 1, "_steps": 0}


def remembered(policy: Policy) -> dict[str, int]:
    return {name: len(getattr(policy, name)) for name in ("_known", "_kinds", "_steps")}


def test_what_an_override_makes_of_a_rule_is_kept_when_other_users_change() -> None:
    users = {"ada": User(overrides={"per-user": Change(limit=20)})}
    policy = Policy(Ruleset((PER_USER,), users=users))
    (before,) = policy.select(ADA, NOW).enforced.plan
    renewed = Policy(replace(policy.ruleset, users=users | {"bob": User(tier="gold")}), last=policy)
    (after,) = renewed.select(ADA, NOW).enforced.plan
    assert before.quota.limit == 20
    assert after.quota is before.quota

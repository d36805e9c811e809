"""What is remembered of requests never changes what is decided about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import CostTooLarge, HeadgateError
from headgate.core.quota import Quota
from headgate.policy import recipes
from headgate.policy.compiled import Policy
from headgate.policy.model import Change, Entry, Rule, Ruleset, User
from headgate.policy.recipes import Recipes
from headgate.policy.request import InvalidRequest, Request
from headgate.policy.selection import UNMATCHED
from tests.policy.naive import naive_plan
from tests.policy.test_compiled import NOW, answer, requests, rulesets

PER_USER = Rule("per-user", Quota.parse("10/minute"), dimension="user")
PER_IP = Rule("per-ip", Quota.parse("10/minute"), dimension="ip")
ADA = Request({"user": "ada"}, "/a", "GET")


def plain(rule: Rule) -> Rule:
    return replace(rule, when={}, shadow=False, enforce_percent=100)


def without_values(ruleset: Ruleset) -> Ruleset:
    """Return rules that do not look at values, most of which can be remembered."""
    default = None if ruleset.default is None else plain(ruleset.default)
    return replace(ruleset, rules=tuple(map(plain, ruleset.rules)), allow=(), deny=(), default=default)


@given(rulesets().map(without_values), st.lists(requests(), min_size=3, max_size=6))
def test_a_kind_of_request_that_was_seen_is_decided_as_if_it_was_new(ruleset: Ruleset, asked: list[Request]) -> None:
    policy = Policy(ruleset)
    for request in asked * 2:
        assert answer(policy.plan(request, NOW)) == naive_plan(ruleset, request, NOW)


WRONG: list[Any] = [None, 1, "", b"x", [], {}, "ü" * 70_000]


@given(st.sampled_from(msgspec.structs.fields(Request)), st.sampled_from(WRONG))
def test_what_is_wrong_with_a_request_is_told_as_if_it_was_new(field: msgspec.structs.FieldInfo, wrong: object) -> None:
    ruleset = Ruleset((PER_USER,))
    remembering = Policy(ruleset)
    remembering.plan(ADA, NOW)
    request = msgspec.structs.replace(ADA, **{field.name: wrong})
    assert outcome(remembering, request) == outcome(Policy(ruleset), request)


@given(st.sampled_from(["user", "ip", "r"]), st.sampled_from(WRONG), st.booleans())
def test_what_is_wrong_with_a_value_is_told_as_if_it_was_new(name: str, wrong: object, in_principal: bool) -> None:  # noqa: FBT001  drawn
    ruleset = Ruleset((PER_USER, PER_IP))
    usual = {"user": "ada", "ip": "192.0.2.1"}
    remembering = Policy(ruleset)
    for principal, attributes in ((usual, {}), (usual, {"r": "x"}), (usual | {"r": "x"}, {})):
        remembering.plan(Request(principal, "/a", "GET", attributes), NOW)
    found: Any = {name: wrong}
    request = Request(usual | found, "/a", "GET") if in_principal else Request(usual, "/a", "GET", found)
    assert outcome(remembering, request) == outcome(Policy(ruleset), request)


def outcome(policy: Policy, request: Request) -> object:
    try:
        return answer(policy.plan(request, NOW))
    except HeadgateError as error:
        return type(error), str(error)


def test_names_are_no_principal() -> None:
    policy = Policy(Ruleset((PER_USER,)))
    policy.plan(ADA, NOW)
    for principal in (("user",), ["user"], {"user"}, "user"):
        with pytest.raises(InvalidRequest, match="principal is a mapping"):
            policy.plan(msgspec.structs.replace(ADA, principal=principal), NOW)


def test_who_is_special_is_not_taken_for_anybody_else() -> None:
    policy = Policy(Ruleset((PER_USER,), users={"bob": User("", {"per-user": Change(limit=99)})}))
    for _ in range(2):
        limits = [policy.plan(Request({"user": user}, "/a", "GET"), NOW) for user in ("ada", "bob", "eve")]
        assert [each.enforced.plan[0].quota.limit for each in limits] == [10, 99, 10]


def test_a_cost_that_could_never_pass_is_refused_each_time() -> None:
    policy = Policy(Ruleset((PER_USER,)))
    policy.plan(ADA, NOW)
    for _ in range(2):
        with pytest.raises(CostTooLarge, match="per-user"):
            policy.plan(msgspec.structs.replace(ADA, cost=11), NOW)


def test_what_is_only_in_force_for_a_time_is_not_remembered() -> None:
    ruleset = Ruleset((PER_USER,), tiers={"pro": {"per-user": Change(limit=99, until=NOW + 5)}})
    policy, request = Policy(ruleset), msgspec.structs.replace(ADA, tier="pro")
    found = [policy.plan(request, now).enforced.plan[0].quota.limit for now in (NOW, NOW + 4, NOW + 5, NOW)]
    assert found == [99, 99, 10, 99]


@pytest.mark.parametrize(
    "ruleset",
    [
        Ruleset((PER_USER,), allow=(Entry("user", "ada"),)),
        Ruleset((PER_USER,), deny=(Entry("user", "ada"),)),
        Ruleset((replace(PER_USER, when={"user": "ada"}),)),
        Ruleset((replace(PER_USER, shadow=True),)),
        Ruleset((replace(PER_USER, enforce_percent=50),)),
    ],
    ids=["allow", "deny", "when", "shadow", "percent"],
)
def test_rules_that_look_at_values_are_asked_each_time(ruleset: Ruleset) -> None:
    policy = Policy(ruleset)
    for user in ("ada", "bob", "eve", "ada", "bob", "eve"):
        request = Request({"user": user}, "/a", "GET")
        assert answer(policy.plan(request, NOW)) == naive_plan(ruleset, request, NOW)


def test_memory_is_bounded_and_given_up_where_no_request_is_like_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "MOST", 8)
    ruleset = Ruleset((PER_USER,))
    policy, known = Policy(ruleset), Recipes({})
    for number in range(20):
        request = Request({"user": "ada"}, f"/orders/{number}", "GET")
        facts = {"user": "ada", "endpoint": request.endpoint, "global": "global"}
        known.remember(request, facts, policy.applying(request, facts, NOW), UNMATCHED)
        assert len(known) <= 8
    assert not known.is_worth_it
    for number in range(100):
        request = Request({"user": "ada"}, f"/orders/{number}", "GET")
        assert answer(policy.plan(request, NOW)) == naive_plan(ruleset, request, NOW)


@pytest.mark.parametrize(
    "asked",
    [
        Request({"user": "ada"}, "/" + "a" * recipes.LONGEST),
        Request({"user": "ada", "a" * recipes.LONGEST: "x"}),
        Request({"user": "ada"}, attributes={"a" * recipes.LONGEST: "x"}),
        Request({"user": "ada"}, method="A" * recipes.LONGEST),
        Request({"user": "ada"}, tier="a" * recipes.LONGEST),
    ],
    ids=["endpoint", "principal", "attribute", "method", "tier"],
)
def test_what_is_long_is_not_remembered(asked: Request) -> None:
    policy, known = Policy(Ruleset((PER_USER,))), Recipes({})
    facts = {"user": "ada", "endpoint": asked.endpoint, "global": "global"}
    known.remember(asked, facts, policy.applying(asked, facts, NOW), UNMATCHED)
    assert len(known) == 0

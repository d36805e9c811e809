"""The compiled policy: equal to the naive one, whatever the rules; keys that cannot be confused; overrides that end."""

from __future__ import annotations

import re
from collections import ChainMap
from dataclasses import replace
from enum import StrEnum
from http import HTTPMethod
from itertools import permutations, product
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.algorithms import Algorithm
from headgate.core.calendar import Calendar
from headgate.core.errors import CostTooLarge, InvalidCost, InvalidKey, InvalidRule
from headgate.core.key import checked_name, space
from headgate.core.mode import Mode
from headgate.core.plan import Family, Limit
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota
from headgate.policy.compiled import Policy
from headgate.policy.explain import explain
from headgate.policy.model import Change, Entry, Rule, Ruleset, User
from headgate.policy.prepared import rule_id_of, space_name
from headgate.policy.request import InvalidRequest, Request
from headgate.policy.selection import Limits, Selection, Verdict
from tests.policy.naive import NaiveAnswer, NaiveLimit, naive_plan

SECOND = 1_000_000
MINUTE = 60 * SECOND
QUOTAS = Quota.parse("10/minute")
IDS = ["r0", "r1", "r2", "r3", "r4", "r5"]
NOW = 1_000


class Tier(StrEnum):
    LOW = "low"


patterns = st.one_of(
    st.just("**"),
    st.builds(
        lambda segments, rest: "/" + "/".join([*segments, *rest]),
        st.lists(st.sampled_from(["a", "b", "*", "{x}"]), max_size=3),
        st.sampled_from([[], ["**"]]),
    ),
)
dimensions = st.sampled_from(["global", "endpoint", "user", "ip", "tenant", "r", "user+endpoint", "ip+user+r"])
quotas = st.sampled_from(
    [QUOTAS, Quota.parse("5/second gcra"), Quota.parse("7/minute sliding_window"), Quota.parse("1/s; 9/h")]
)
conditions = st.dictionaries(st.sampled_from(["r", "c", "user"]), st.sampled_from(["x", "y", "u1"]), max_size=2)
tiers = st.sampled_from(["", "free", "pro"])


# Strategies are made once, not in functions that draw from them: that takes longer than to draw.
fields = st.fixed_dictionaries(
    {
        "quotas": quotas,
        "dimension": dimensions,
        "endpoint": patterns,
        "methods": st.sampled_from(
            [frozenset()] * 3 + [frozenset({"GET"}), frozenset({"GET", "POST"}), frozenset({"HEAD"})]
        ),
        "tier": st.sampled_from(["", "", "", "free", "pro"]),
        "when": st.one_of(st.just({}), st.just({}), conditions),
        "shadow": st.sampled_from([False] * 5 + [True]),
        "enabled": st.sampled_from([True] * 5 + [False]),
        "enforce_percent": st.sampled_from([100] * 5 + [50, 0]),
        "on_store_failure": st.sampled_from([None, *Mode]),
        "reset_on_change": st.booleans(),
    }
)
replaced = [
    st.frozensets(st.sampled_from(IDS[:place]), max_size=2) if place else st.just(frozenset()) for place in range(6)
]
key_patterns = {
    "user": st.sampled_from(["", "", "u1", "u*"]),
    "ip": st.sampled_from(["", "", "10.0.0.0/8", "10.*"]),
    "endpoint": st.sampled_from(["", "", "/a", "/a/*"]),
    "tenant": st.sampled_from(["", "", "x", "*"]),
}
default_rules = st.builds(lambda drawn: Rule(id="default", **drawn), fields)


@st.composite
def rules(draw: st.DrawFn, place: int) -> Rule:
    """A rule that may replace those of the places before it."""
    drawn = draw(fields)
    key_pattern = draw(key_patterns[drawn["dimension"]]) if drawn["dimension"] in key_patterns else ""
    return Rule(id=IDS[place], replaces=draw(replaced[place]), key_pattern=key_pattern, **drawn)


changes = st.builds(
    Change,
    quotas=st.sampled_from([Quota.parse("1000/minute"), Quota.parse("77/day gcra")]),
    until=st.sampled_from([None, NOW - 1, NOW, NOW + 1]),
)
entries = st.one_of(
    st.builds(Entry, st.just("user"), st.sampled_from(["u1", "u*", "*1", "*u*1*", "x*"])),
    st.builds(Entry, st.just("ip"), st.sampled_from(["10.0.0.0/8", "10.0.0.1", "10.*", "::1", "::/0", "0.0.0.0/0"])),
    st.builds(Entry, st.just("endpoint"), st.sampled_from(["/a", "/a/*", "/"])),
    st.builds(Entry, st.just("tenant"), st.sampled_from(["x", "y"])),
)


def changed(ids: list[str]) -> tuple[st.SearchStrategy[Any], st.SearchStrategy[Any]]:
    """What tiers, and what users, change of rules with these IDs."""
    change = st.dictionaries(st.sampled_from(ids), changes, max_size=3) if ids else st.just({})
    users = st.builds(User, tiers, change)
    return (
        st.dictionaries(st.sampled_from(["free", "pro"]), change, max_size=2),
        st.dictionaries(st.sampled_from(["u1", "u2"]), users, max_size=2),
    )


written = {size: st.tuples(*[rules(place) for place in range(size)]).flatmap(st.permutations) for size in (0, 1, 3, 6)}
changed_by = {
    (size, default): changed(IDS[:size] + ["default"] * default) for size in written for default in (False, True)
}
sizes, defaults, listed = st.sampled_from([0, 1, 3, 6, 6, 6]), st.none() | default_rules, st.lists(entries, max_size=1)


@st.composite
def rulesets(draw: st.DrawFn) -> Ruleset:
    size, default = draw(sizes), draw(defaults)
    by_tier, by_user = changed_by[size, default is not None]
    return Ruleset(
        rules=tuple(draw(written[size])),
        tiers=draw(by_tier),
        users=draw(by_user),
        default_tier=draw(tiers),
        allow=tuple(draw(listed)),
        deny=tuple(draw(listed)),
        default=default,
    )


requests = st.builds(
    Request,
    st.fixed_dictionaries(
        {},
        optional={
            "user": st.sampled_from(["u1", "u2", "u" * 200, "ü"]),
            "ip": st.sampled_from(["10.0.0.1", "::ffff:10.0.0.1", "192.0.2.7", "::1", "::2"]),
            "tenant": st.sampled_from(["x", "y"]),
        },
    ),
    st.lists(st.sampled_from(["a", "b", "c"]), max_size=3).map(lambda segments: "/" + "/".join(segments)),
    st.sampled_from(["", "GET", "post", "HEAD"]),
    st.dictionaries(st.sampled_from(["r", "c", "tenant", "user", "ip"]), st.sampled_from(["x", "y"])),
    tier=tiers,
)


def flat(limits: Limits) -> list[NaiveLimit]:
    return [
        NaiveLimit(rule, limit.space, limit.principal, limit.quota)
        for rule, limit in zip(limits.rules, limits.plan, strict=True)
    ]


def answer(selection: Selection) -> NaiveAnswer:
    return NaiveAnswer(selection.verdict, flat(selection.enforced), [flat(limits) for limits in selection.shadow])


@given(rulesets(), st.lists(requests, min_size=3, max_size=6))
def test_the_compiled_policy_equals_the_naive_one(ruleset: Ruleset, requests: list[Request]) -> None:
    policy = Policy(ruleset)
    for request in requests:
        assert answer(policy.select(request, NOW)) == naive_plan(ruleset, request, NOW)


@given(rulesets(), st.lists(requests, min_size=1, max_size=4))
def test_a_policy_that_does_not_enforce_has_the_same_limits_as_shadows(
    ruleset: Ruleset, requests: list[Request]
) -> None:
    enforcing, counting = Policy(ruleset), Policy(ruleset, enforcing=False)
    for request in requests:
        usual, selection = (policy.select(request, NOW, takes_cost=False) for policy in (enforcing, counting))
        if usual.verdict is not Verdict.LIMITED:
            assert selection.verdict is usual.verdict
        else:
            assert selection.verdict is Verdict.UNLIMITED
        assert not selection.enforced.plan
        every = [*usual.enforced.plan, *(limit for limits in usual.shadow for limit in limits.plan)]
        shadows = [limit for limits in selection.shadow for limit in limits.plan]
        assert sorted(map(repr, shadows)) == sorted(map(repr, every))


@given(rulesets(), requests)
def test_the_explanation_equals_the_selection(ruleset: Ruleset, request: Request) -> None:
    explanation = explain(Policy(ruleset), request, NOW)
    selection = explanation.selection
    limits = [limit for part in (selection.enforced, *selection.shadow) for limit in part.plan]
    assert answer(selection) == naive_plan(ruleset, request, NOW)
    assert sorted(limit.space for rule in explanation.rules for limit in rule.limits) == sorted(
        limit.space for limit in limits
    )
    enforced = [limit for rule in explanation.rules if rule.is_enforced for limit in rule.limits]
    assert enforced == list(selection.enforced.plan)
    assert [rule.rule for rule in explanation.rules if not rule.reason] == []
    assert [rule.rule for rule in explanation.rules if rule.applies != bool(rule.limits)] == []


KEYED = Policy(
    Ruleset(
        tuple(
            Rule(rule_id, quotas, dimension=dimension, reset_on_change=resets)
            for rule_id, quotas, dimension, resets in [
                ("a", QUOTAS, "user", False),
                ("a:b", QUOTAS, "tenant", False),
                ("a/b", Quota.parse("1/s; 10/minute"), "apikey", False),
                ("global", QUOTAS, "global", False),
                ("endpoint", QUOTAS, "endpoint", True),
                ("r", Quota.parse("10/minute gcra"), "region", True),
            ]
        )
    )
)
values = st.one_of(
    st.sampled_from(["a", "b", "a|tb:60000000", "global", "/", "x" * 128, "x" * 129, "#a", "é"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=140),
)


@given(*[st.fixed_dictionaries({"user": values, "tenant": values, "apikey": values, "region": values})] * 2)
def test_two_keys_are_equal_only_for_the_same_rule_shape_and_value(one: dict[str, str], other: dict[str, str]) -> None:
    """Whatever the dimensions, rules and values: none can imitate another."""
    meaning_of_key: dict[Limit, tuple[str, str, str]] = {}
    keys_of_meaning: dict[tuple[str, str, str], Limit] = {}
    for values in (one, other):
        limits = KEYED.select(Request(values), NOW).enforced
        for rule_id, limit in zip(limits.rules, limits.plan, strict=True):
            value = {"global": "", "endpoint": "/", **values}[KEYED.rules[rule_id].dimension]
            meaning = rule_id, limit.quota.shape, value
            key = Limit(limit.space, limit.principal, QUOTAS[0])
            assert meaning_of_key.setdefault(key, meaning) == meaning
            assert keys_of_meaning.setdefault(meaning, key) == key


def limits(policy: Policy, request: Request, now: int = NOW) -> list[tuple[str, str]]:
    """Return rule and quota of what is enforced."""
    found = policy.select(request, now).enforced
    return [(rule, str(limit.quota)) for rule, limit in zip(found.rules, found.plan, strict=True)]


U1 = Request({"user": "u1"})


class TestTiersAndOverrides:
    RULES = (Rule("r", QUOTAS), Rule("several", Quota.parse("1/s; 10/h"), dimension="ip"))
    UNTIL = 1_700_000_000 * SECOND

    def policy(self, **given: Any) -> Policy:
        return Policy(Ruleset(self.RULES, **given))

    def test_the_tier_of_a_request_precedes_that_of_the_user_and_the_default(self) -> None:
        tiers = {name: {"r": Change(limit=limit)} for name, limit in [("free", 1), ("pro", 2), ("max", 3)]}
        policy = self.policy(tiers=tiers, users={"u1": User("pro")}, default_tier="free")
        assert limits(policy, Request({"user": "u2"})) == [("r", "1/minute")]
        assert limits(policy, U1) == [("r", "2/minute")]
        assert limits(policy, Request({"user": "u1"}, tier="max")) == [("r", "3/minute")]

    def test_each_change_ends_at_its_own_until(self) -> None:
        for tier_until, user_until in ((10, 20), (20, 10), (10, 10), (10, None), (None, 10)):
            users = {"u1": User("pro", {"r": Change(burst=7, until=user_until)})}
            policy = self.policy(tiers={"pro": {"r": Change(limit=50, until=tier_until)}}, users=users)
            for now in (0, 9, 10, 11, 19, 20, 21):
                limit = 50 if tier_until is None or now < tier_until else 10
                burst = " burst 7" if user_until is None or now < user_until else ""
                assert limits(policy, U1, now) == [("r", f"{limit}/minute{burst}")], tier_until

    def test_the_state_stays_when_a_limit_changes_and_not_when_the_window_does(self) -> None:
        spaces = [
            self.policy(users={"u1": User("", {"r": change})}).select(U1, NOW).enforced.plan[0].space
            for change in (
                Change(),
                Change(limit=5, burst=3),
                Change(window_us=SECOND),
                Change(algorithm=Algorithm.GCRA),
            )
        ]
        assert spaces == ["r@user|tb:60000000", "r@user|tb:60000000", "r@user|tb:1000000", "r@user|gcra:60000000"]

    FIXED = {"pro": {"r": Change(limit=50, algorithm=Algorithm.FIXED_WINDOW, until=20)}}  # noqa: RUF012  a constant

    def test_an_override_that_does_not_fit_the_usual_tier_is_refused(self) -> None:
        wrong = "u1.overrides.r.burst: this change of 'r' is invalid on top of tier 'pro': fixed_window has no"
        for tier, default in (("pro", ""), ("", "pro")):
            users = {"u1": User(tier, {"r": Change(burst=5)})}
            with pytest.raises(InvalidRule, match=wrong):
                self.policy(tiers=self.FIXED, users=users, default_tier=default)

    def test_an_override_that_does_not_fit_the_tier_of_a_request_changes_the_rule(self) -> None:
        policy = self.policy(tiers=self.FIXED, users={"u1": User("", {"r": Change(burst=5, until=10)})})
        request = Request({"user": "u1"}, tier="pro")
        assert limits(policy, request, 9) == [("r", "10/minute burst 5")]
        assert limits(policy, request, 10) == [("r", "50/minute fixed_window")]
        assert limits(policy, request, 20) == [("r", "10/minute")]
        found = {rule.rule: rule.source for rule in explain(policy, request, 9).rules}
        assert found["r"] == "override until 1970-01-01T00:00:00.000010Z"

    def test_an_override_applies_on_top_of_the_tier_of_a_request(self) -> None:
        tiers = {f"t{number}": {"r": Change(limit=number)} for number in range(1, 50)}
        policy = self.policy(tiers=tiers, users={"u1": User("t1", {"r": Change(burst=7)})}, default_tier="t2")
        for number in (1, 2, 7, 7, 49):
            request = Request({"user": "u1"}, tier=f"t{number}")
            assert limits(policy, request) == [("r", f"{number}/minute burst 7")]
        assert limits(policy, Request({"user": "u1"}, tier="unheard-of")) == [("r", "10/minute burst 7")]

    def test_overrides_are_not_computed_for_every_tier(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else a thousand overrides and fifty tiers would take as long as fifty thousand overrides."""
        made = []
        apply = Change.apply

        def counted(change: Change, quotas: tuple[Quota, ...]) -> tuple[Quota, ...]:
            made.append(change)
            return apply(change, quotas)

        monkeypatch.setattr(Change, "apply", counted)
        tiers = {f"t{number}": {"r": Change(limit=number)} for number in range(1, 51)}
        for overrides in ([Change(burst=burst) for burst in range(1000)], [Change(burst=5) for _ in range(1000)]):
            users = {f"u{place}": User(f"t{place % 50 + 1}", {"r": each}) for place, each in enumerate(overrides)}
            ruleset = Ruleset(self.RULES, tiers, users, default_tier="t1")
            made.clear()
            Policy(ruleset)
            assert len(made) <= 50 + 2 * 2 * min(1000, 50 * len(set(overrides)))

    def test_a_rule_with_several_limits_is_changed_as_a_whole(self) -> None:
        change = Change(quotas=Quota.parse("2/s; 20/h; 100/day"))
        policy = self.policy(users={"u1": User("", {"several": change})})
        both = Request({"user": "u1", "ip": "192.0.2.1"})
        assert limits(policy, both) == [
            ("r", "10/minute"),
            *[("several", q) for q in ("2/second", "20/hour", "100/day")],
        ]
        assert limits(policy, Request({"ip": "192.0.2.1"})) == [("several", "1/second"), ("several", "10/hour")]


class TestSpaces:
    def test_with_reset_on_change_another_limit_or_updated_at_has_another_space(self) -> None:
        rules = [Rule("r", Quota.parse(text)) for text in ("10/minute", "11/minute", "10/minute burst 1")]
        rules += [Rule("r", QUOTAS, updated_at=time) for time in ("2026-01-01", "2026-01-02")]
        assert {space_name(rule) for rule in rules} == {"r@user"}
        names = [space_name(replace(rule, reset_on_change=True)) for rule in rules]
        assert len({*names}) == len(names)
        assert all(name.startswith("r@user#") for name in names)

    def test_tiers_and_overrides_do_not_change_the_space(self) -> None:
        """Otherwise, a user with two tiers, or with an override that ends, would have two budgets."""
        rules = (Rule("r", QUOTAS, reset_on_change=True),)
        policies = [Policy(Ruleset(rules, users={"u1": User("", changes)})) for changes in ({}, {"r": Change(limit=5)})]
        first, second = (policy.select(U1, NOW).enforced.plan[0] for policy in policies)
        assert first.quota != second.quota
        assert first.space == second.space

    def test_no_limiter_has_the_space_of_a_rule(self) -> None:
        rule = Rule("default", QUOTAS)
        with pytest.raises(InvalidKey):
            checked_name(space_name(rule))
        (limit,) = Policy(Ruleset(default=rule)).select(Request({"user": "42"}), NOW).enforced.plan
        assert limit.space not in Family("default", QUOTAS).spaces

    def test_each_dimension_has_its_own_space(self) -> None:
        """User 42 is not the API key 42."""
        names = {space_name(Rule(one, QUOTAS, dimension=other)) for one in ("a", "a:a") for other in ("a", "a:a", "b")}
        assert len(names) == 6

    def test_a_space_has_the_id_of_its_rule(self) -> None:
        for quota, reset in product((*QUOTAS, Quota.per(5, Calendar("month", "Europe/Berlin"))), (False, True)):
            rule = Rule("a:b/c", (quota,), dimension="x:y", reset_on_change=reset)
            assert rule_id_of(space(space_name(rule), quota)) == "a:b/c"


class TestReplaces:
    WIDE = Rule("wide", QUOTAS)

    def test_a_rule_that_is_replaced_replaces_nothing(self) -> None:
        replaces = {"a": "b", "b": "c", "c": "d", "d": ""}
        for order in permutations("abcd"):
            rules = [Rule(name, QUOTAS, endpoint="**", replaces=frozenset(replaces[name])) for name in order]
            policy = Policy(Ruleset(tuple(rules)))
            assert sorted(policy.select(U1, NOW).enforced.rules) == ["a", "c"], order
            reasons = {each.rule: each.reason for each in explain(policy, U1, NOW).rules}
            assert (reasons["b"], reasons["d"]) == ("replaced by rule a", "replaced by rule c"), order
            without = Policy(Ruleset(tuple(replace(rule, enabled=rule.id != "a") for rule in rules)))
            assert sorted(without.select(U1, NOW).enforced.rules) == ["b", "d"], order

    def test_a_circle_is_refused(self) -> None:
        circle = [
            Rule(one, QUOTAS, replaces=frozenset({other, "wide"}))
            for one, other in [("a", "b"), ("b", "c"), ("c", "a")]
        ]
        with pytest.raises(InvalidRule, match="in a cycle: a -> b -> c -> a"):
            Policy(Ruleset((self.WIDE, *circle)))
        disabled = Rule("c", QUOTAS, replaces=frozenset({"a"}), enabled=False)
        Policy(Ruleset((self.WIDE, *circle[:2], disabled)))


class TestSeveralDimensions:
    POLICY = Policy(Ruleset((Rule("r", QUOTAS, dimension="user+endpoint"),)))

    def principal(self, request: Request) -> Any:
        (limit,) = self.POLICY.select(request, NOW).enforced.plan
        assert limit.space == "r@user+endpoint|tb:60000000"
        return limit.principal

    def test_each_user_is_counted_apart_on_each_path(self) -> None:
        requests = [Request({"user": user}, path) for user in ("ada", "bob") for path in ("/a", "/b")]
        assert [self.principal(request) for request in requests] == ["ada|/a", "ada|/b", "bob|/a", "bob|/b"]
        assert self.principal(Request({"user_id": "ada"}, "/a", rule_id="r")) == "ada|/a"

    @given(st.lists(st.text(st.sampled_from("a|\\"), min_size=1), min_size=4, max_size=4))
    def test_different_values_are_counted_apart(self, texts: list[str]) -> None:
        policy = Policy(Ruleset((Rule("r", QUOTAS, dimension="user+tenant"),)))
        one, other = (
            policy.select(Request({"user": user, "tenant": tenant}), NOW).enforced.plan[0].principal
            for user, tenant in (texts[:2], texts[2:])
        )
        assert (one == other) is (texts[:2] == texts[2:])

    def test_a_request_without_all_dimensions_does_not_match(self) -> None:
        assert not self.POLICY.select(Request({"ip": "192.0.2.1"}, "/a"), NOW).matched
        (considered,) = explain(self.POLICY, Request({}, "/a"), NOW).rules
        assert considered.reason == "no value for dimension user"

    def test_such_a_rule_cannot_be_checked_for_one_value(self) -> None:
        with pytest.raises(InvalidRequest, match=r"counts by user\+endpoint: send a request with all of them"):
            self.POLICY.request_of("ada", "r")


class TestKeyPattern:
    def test_a_rule_is_for_the_keys_that_match(self) -> None:
        for dimension, pattern, those, others in (
            ("user", "bot-*", ("bot-1", "bot-"), ("ada", "a-bot-1")),
            ("user", "*", ("ada",), ()),
            ("ip", "2001:db8::/32", ("2001:db8::1",), ("2001:db9::1",)),
            ("tenant", "acme", ("acme",), ("other",)),
        ):
            policy = Policy(Ruleset((Rule("r", QUOTAS, dimension=dimension, key_pattern=pattern),)))
            assert all(policy.select(Request({dimension: value}), NOW).matched for value in those), pattern
            for value in others:
                (considered,) = explain(policy, Request({dimension: value}), NOW).rules
                assert not policy.select(Request({dimension: value}), NOW).matched
                assert considered.reason.endswith(f"is not {pattern}")

    def test_a_rule_is_for_the_paths_that_match(self) -> None:
        policy = Policy(Ruleset((Rule("r", QUOTAS, dimension="endpoint", key_pattern="/api/*"),)))
        assert [policy.select(Request({}, path), NOW).matched for path in ("/api/a/b", "/other")] == [True, False]

    def test_the_default_rule_may_have_a_key_pattern(self) -> None:
        policy = Policy(Ruleset(default=Rule("default", QUOTAS, key_pattern="bot-*")))
        assert [policy.select(Request({"user": user}), NOW).matched for user in ("bot-1", "ada")] == [True, False]


class TestDefault:
    DEFAULT = Rule("default", QUOTAS, dimension="ip")
    ASKED = Request({"ip": "192.0.2.1"}, "/a")

    def test_the_default_applies_if_no_other_rule_is_enforced(self) -> None:
        rules = (Rule("b", QUOTAS, dimension="ip", endpoint="/b"), Rule("a", QUOTAS, dimension="ip", shadow=True))
        selection = Policy(Ruleset(rules, default=self.DEFAULT)).select(self.ASKED, NOW)
        assert selection.enforced.rules == ("default",)
        assert [limits.rules for limits in selection.shadow] == [("a",)]
        other = Policy(Ruleset(rules, default=self.DEFAULT)).select(Request({"ip": "192.0.2.1"}, "/b"), NOW)
        assert other.enforced.rules == ("b",)


def test_lists_decide_before_rules_and_compare_whole_addresses() -> None:
    """The deny list precedes the allow list."""
    policy = Policy(
        Ruleset(
            (Rule("r", QUOTAS, dimension="ip"),),
            allow=(Entry("ip", "10.0.0.0/8"), Entry("endpoint", "/health/")),
            deny=(Entry("ip", "10.6.6.0/24"), Entry("user", "evil*"), Entry("ip", "2001:db8::bad")),
        )
    )
    counted = {"ip": "2001:db8::/64"}
    cases: list[tuple[Request, Verdict, str]] = [
        (Request({"ip": "::ffff:10.1.2.3"}), Verdict.ALLOWED, "ip 10.1.2.3 is on the allow list: 10.0.0.0/8"),
        (Request({}, "/health//"), Verdict.ALLOWED, "endpoint /health is on the allow list: /health/"),
        (Request({"ip": "192.0.2.1"}), Verdict.LIMITED, ""),
        (Request({"ip": "10.6.6.6"}), Verdict.DENIED, "ip 10.6.6.6 is on the deny list: 10.6.6.0/24"),
        (Request({"ip": "10.0.0.1", "user": "evil-7"}), Verdict.DENIED, "user evil-7 is on the deny list: evil*"),
        (Request(counted, address="2001:db8::bad"), Verdict.DENIED, "ip 2001:db8::bad is on the deny list"),
        (Request(counted, address="2001:db8::900d"), Verdict.LIMITED, ""),
        (Request(counted), Verdict.LIMITED, ""),
        (Request({"ip": "2001:DB8::bad"}), Verdict.DENIED, "ip 2001:db8::bad is on the deny list: 2001:db8::bad"),
        (Request({"ip": "2001:db8::900d"}), Verdict.LIMITED, ""),
        (Request({"ip": "2001:db8::bad"}, rule_id="r"), Verdict.DENIED, "ip 2001:db8::bad is on the deny list"),
        (Request({"ip": "2001:db8::900d"}, rule_id="r"), Verdict.LIMITED, ""),
    ]
    for request, verdict, reason in cases:
        selection = policy.select(request, NOW)
        assert selection.verdict is verdict, request
        assert selection.reason.startswith(reason), request
        assert selection.matched is (verdict is Verdict.LIMITED), request


class TestIdentity:
    def test_an_invalid_request_is_refused(self) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"principal": {"user": ""}}, "principal 'user' must not be empty"),
            ({"principal": {"user": 7}}, "principal 'user' must be text, not 7"),
            ({"principal": {"user": ["ada"]}}, "principal 'user' must be text, not ['ada']"),
            ({"principal": {7: "user"}}, "the name of a principal must be text, not 7"),
            ({"principal": None}, "principal must be a mapping of text to text, such as {'user': '42'}, not None"),
            ({"principal": "user"}, "principal must be a mapping"),
            ({"principal": ["user"]}, "principal must be a mapping"),
            ({"principal": {"ip": "203.0.113.9:4711"}}, "ip must be an address such as 203.0.113.9"),
            ({"principal": {"ip": "x" * 1000}}, "ip must be an address such as 203.0.113.9"),
            ({"endpoint": "/a/../b"}, "the path '/a/../b' is not accepted"),
            ({"endpoint": None}, "the endpoint must be a path"),
            ({"method": None}, "method must be text, not None"),
            ({"method": ["GET"]}, "method must be text, not ['GET']"),
            ({"method": "POST "}, "method must be an HTTP method such as POST, not 'POST '"),
            ({"method": "GÉT"}, "method must be an HTTP method"),
            ({"method": "GET\n"}, "method must be an HTTP method"),
            ({"attributes": {"region": ["eu"]}}, "attribute 'region' must be text, not ['eu']"),
            ({"attributes": {None: "eu"}}, "the name of an attribute must be text, not None"),
            ({"attributes": [("region", "eu")]}, "attributes must be a mapping of text to text"),
            ({"tier": None}, "tier must be text, not None"),
            ({"address": b"203.0.113.9"}, "address must be text, not b'203.0.113.9'"),
        ]
        for fields, message in cases:
            request = Request(**{"principal": {"user": "u"}, **fields})
            for allow in ((), (Entry("user", "*"),)):
                with pytest.raises(InvalidRequest, match=re.escape(message)):
                    Policy(Ruleset((Rule("r", QUOTAS),), allow=allow)).select(request, NOW)

    def test_subclasses_of_mappings_and_text_are_accepted(self) -> None:
        policy = Policy(Ruleset((Rule("r", QUOTAS, methods=frozenset({"POST"}), tier="low"),)))
        request = Request(MappingProxyType({"user": Pressure.WARNING}), "/", HTTPMethod.POST, ChainMap(), tier=Tier.LOW)
        assert policy.select(request, NOW).enforced.plan[0].principal == "warning"

    def test_an_invalid_principal_is_refused(self) -> None:
        for user in ("\ud800", "x" * 70_000):
            with pytest.raises(InvalidKey):
                Policy(Ruleset((Rule("r", QUOTAS, enforce_percent=50),))).select(Request({"user": user}), NOW)

    def test_paths_are_case_sensitive_by_default(self) -> None:
        for ignore_case in (False, True):
            rules = (Rule("r", QUOTAS, dimension="endpoint", endpoint="/Api/caf\u00e9"),)
            policy = Policy(Ruleset(rules, ignore_case=ignore_case))
            found = {
                path: policy.select(Request(endpoint=path), NOW).enforced.plan
                for path in ("/Api/caf\u00e9", "/Api/caf%c3%a9", "/aPI/Caf%C3%A9")
            }
            assert [bool(plan) for plan in found.values()] == [True, True, ignore_case]
            assert len({plan[0].principal for plan in found.values() if plan}) == 1


class TestCost:
    POLICY = Policy(Ruleset((Rule("big", Quota.parse("100/s")), Rule("small", Quota.parse("5/s"), endpoint="/small"))))

    def test_a_cost_above_a_capacity_is_an_error_that_names_the_rule(self) -> None:
        assert all(self.POLICY.select(Request({"user": "u"}, cost=cost), NOW).matched for cost in (0, 6))
        with pytest.raises(CostTooLarge, match="rule 'small': cost 6 is above the capacity of 5/second, 5"):
            self.POLICY.select(Request({"user": "u"}, "/small", cost=6), NOW)

    def test_a_shadow_below_the_cost_is_too_small(self) -> None:
        policy = Policy(Ruleset((Rule("r", Quota.parse("5/s"), shadow=True),)))
        assert [policy.select(Request({"user": "u"}, cost=c), NOW).shadow[0].too_small for c in (5, 6)] == [False, True]

    def test_a_cost_is_a_whole_number_in_range(self) -> None:
        wrong: list[Any] = [-1, 100_001, 1.0, True, None, "1"]
        for cost in wrong:
            for policy in (self.POLICY, Policy(Ruleset())):
                with pytest.raises(InvalidCost, match="cost must be a whole number from 0 to 100000, not"):
                    policy.select(Request({"user": "u"}, cost=cost), NOW)


class TestGradualEnforcement:
    USERS = tuple(f"user-{number}" for number in range(2000))

    def enforced(self, percent: int, rule_id: str = "r") -> set[str]:
        policy = Policy(Ruleset((Rule(rule_id, QUOTAS, enforce_percent=percent),)))
        return {user for user in self.USERS if policy.select(Request({"user": user}), NOW).enforced.plan}

    def test_a_percentage_is_enforced_for_the_same_principals(self) -> None:
        ten, thirty = self.enforced(10), self.enforced(30)
        assert 140 < len(ten) < 260
        assert 500 < len(thirty) < 700
        assert ten < thirty
        assert self.enforced(0) == set()
        assert self.enforced(100) == set(self.USERS)

    def test_each_rule_has_its_own(self) -> None:
        assert 10 < len(self.enforced(10) & self.enforced(10, "other")) < 40


class TestOneRule:
    POLICY = Policy(
        Ruleset(
            (
                Rule("r", QUOTAS, endpoint="/a", methods=frozenset({"POST"}), tier="pro", when={"region": "eu"}),
                Rule("all", QUOTAS, dimension="global"),
                Rule("e", QUOTAS, dimension="endpoint"),
                Rule("i", QUOTAS, dimension="ip"),
                Rule("off", QUOTAS, enabled=False),
            ),
            users={"u1": User("", {"r": Change(limit=50), "i": Change(limit=70)})},
            deny=(Entry("user", "evil"), Entry("endpoint", "/")),
        )
    )

    def plan(self, rule_id: str, value: str, **given: str) -> list[tuple[str, Any, str]]:
        named = self.POLICY.request_of(value, rule_id)
        found = self.POLICY.select(msgspec.structs.replace(named, principal={**named.principal, **given}), NOW)
        return [
            (rule, limit.principal, str(limit.quota))
            for rule, limit in zip(found.enforced.rules, found.enforced.plan, strict=True)
        ]

    def test_a_named_rule_applies_despite_its_conditions(self) -> None:
        assert self.plan("r", "u2") == [("r", "u2", "10/minute")]
        assert self.plan("r", "u1") == [("r", "u1", "50/minute")]
        assert self.plan("all", "") == [("all", "global", "10/minute")]
        assert self.plan("e", "/b//") == [("e", "/b", "10/minute")]
        assert self.plan("i", "::ffff:192.0.2.1") == [("i", "192.0.2.1", "10/minute")]
        assert self.plan("i", "192.0.2.1", user="u1") == [("i", "192.0.2.1", "70/minute")]

    def test_a_named_rule_counts_in_the_same_space(self) -> None:
        request = Request({"user": "u1"}, "/a", "POST", {"region": "eu"}, tier="pro")
        named = Request({"user": "u1"}, rule_id="r")
        assert self.POLICY.select(request, NOW).enforced.plan[0] == self.POLICY.select(named, NOW).enforced.plan[0]

    def test_a_named_rule_applies_despite_its_key_pattern(self) -> None:
        policy = Policy(Ruleset((Rule("r", QUOTAS, key_pattern="a*"),)))
        assert policy.select(Request({"user": "bob"}, rule_id="r"), NOW).matched
        assert not policy.select(Request({"user": "bob"}), NOW).matched

    def test_lists_apply_to_requests_for_one_rule(self) -> None:
        assert self.POLICY.select(Request({"user": "evil"}, rule_id="r"), NOW).verdict is Verdict.DENIED
        both = Request({"ip": "192.0.2.1", "user": "evil"}, rule_id="i")
        assert self.POLICY.select(both, NOW).verdict is Verdict.DENIED
        assert self.POLICY.select(Request(endpoint="/", rule_id="e"), NOW).verdict is Verdict.DENIED

    def test_lists_apply_before_missing_dimensions_are_an_error(self) -> None:
        for when in ({}, {"region": "eu"}):
            rules = Rule("r", QUOTAS, dimension="user+tenant"), Rule("other", QUOTAS, when=when)
            policy = Policy(Ruleset(rules, allow=(Entry("user", "root"),), deny=(Entry("user", "evil"),)))
            verdicts = {"evil": Verdict.DENIED, "root": Verdict.ALLOWED}
            for name in ("user", "user_id"):
                for user, verdict in verdicts.items():
                    assert policy.select(Request({name: user}, rule_id="r"), NOW).verdict is verdict, when
                with pytest.raises(
                    InvalidRequest, match=r"rule 'r' counts by user\+tenant: the request must have that"
                ):
                    policy.select(Request({name: "ada"}, rule_id="r"), NOW)

    def test_a_value_and_a_cost_are_checked(self) -> None:
        with pytest.raises(InvalidRequest):
            self.POLICY.select(Request({"user": ""}, rule_id="r"), NOW)
        with pytest.raises(CostTooLarge):
            self.POLICY.select(Request({"user": "u2"}, cost=11, rule_id="r"), NOW)

    def test_names_must_be_text(self) -> None:
        values: list[Any] = [None, 7, ["r"], b"r"]
        for wrong in values:
            with pytest.raises(InvalidRequest, match="rule_id must be text, not"):
                self.POLICY.select(Request({"user": "u1"}, rule_id=wrong), NOW)
            for client_id, rule_id in (("u1", wrong), (wrong, "r")):
                with pytest.raises(InvalidRequest, match="must be text, not"):
                    self.POLICY.request_of(client_id, rule_id)

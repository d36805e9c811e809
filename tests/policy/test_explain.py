"""Explanations: every rule, whether it applies, and why or why not."""

from __future__ import annotations

from headgate.core.plan import Limit
from headgate.core.quota import Quota
from headgate.policy.compiled import Policy
from headgate.policy.explain import Considered, explain
from headgate.policy.model import Change, Entry, Rule, Ruleset, User
from headgate.policy.request import Request
from headgate.policy.selection import Verdict

QUOTAS = Quota.parse("10/minute")
UNTIL = 1_796_083_200_000_000  # 2026-12-01
RULESET = Ruleset(
    rules=(
        Rule("applies", QUOTAS),
        Rule("off", QUOTAS, enabled=False),
        Rule("elsewhere", QUOTAS, endpoint="/b/**"),
        Rule("posts", QUOTAS, methods=frozenset({"POST", "PUT"})),
        Rule("premium", QUOTAS, tier="premium"),
        Rule("eu", QUOTAS, when={"region": "eu"}),
        Rule("keyed", QUOTAS, dimension="apikey"),
        Rule("replaced", QUOTAS),
        Rule("replacing", QUOTAS, endpoint="/a/**", replaces=frozenset({"replaced"})),
        Rule("trial", QUOTAS, shadow=True, replaces=frozenset({"applies"})),
        Rule("some", QUOTAS, enforce_percent=1),
    ),
    tiers={"pro": {"applies": Change(limit=100)}, "free": {"applies": Change(limit=5, until=UNTIL)}},
    users={
        "plain": User(),
        "pro": User("pro"),
        "special": User("", {"applies": Change(limit=500, until=UNTIL)}),
        "always": User("", {"applies": Change(limit=7, until=1 << 61)}),
        "both": User("pro", {"applies": Change(burst=9)}),
    },
    default_tier="free",
    default=Rule("default", QUOTAS, dimension="ip"),
    deny=(Entry("user", "evil"),),
)
POLICY = Policy(RULESET)


def considered(request: Request, now: int = 0) -> dict[str, Considered]:
    return {rule.rule: rule for rule in explain(POLICY, request, now).rules}


def test_each_rule_has_a_reason() -> None:
    found = considered(Request({"user": "u", "ip": "192.0.2.1"}, "/a//x", "get", {"region": "us"}))
    assert {name: rule.reason for name, rule in found.items()} == {
        "applies": "matches",
        "off": "disabled",
        "elsewhere": "endpoint /b/** does not match /a/x",
        "posts": "it is for POST or PUT, and the method is GET",
        "premium": "it is for tier premium, and the tier is free",
        "eu": "it is for region eu, and region is us",
        "keyed": "no value for dimension apikey",
        "replaced": "replaced by rule replacing",
        "replacing": "matches",
        "trial": "matches; a shadow, which refuses nothing",
        "some": "matches; enforced for 1 % of its principals, and this is not one of them",
        "default": "the default, and another rule is enforced",
    }
    assert list(found) == [*POLICY.rules]
    assert [rule.applies for rule in found.values()] == [rule.reason[:7] == "matches" for rule in found.values()]


def test_unknown_facts_are_named_and_unprintable_values_quoted() -> None:
    deceiving = considered(Request({"user": "u"}, attributes={"region": "\x1b[2Jeu"}))
    assert deceiving["eu"].reason == r"it is for region eu, and region is '\x1b[2Jeu'"
    found = considered(Request({"user": "u"}, "/a"))
    assert found["posts"].reason == "it is for POST or PUT, and the method is not known"
    assert found["eu"].reason == "it is for region eu, and region is not known"
    assert found["default"].reason == "no value for dimension ip"


def test_the_reason_of_the_default_rule() -> None:
    found = considered(Request({"ip": "192.0.2.1"}))["default"]
    assert found == Considered(
        "default",
        applies=True,
        reason="the default: no other rule is enforced",
        is_enforced=True,
        quotas=QUOTAS,
        source="the rule",
        limits=(Limit("default@ip|tb:60000000", "192.0.2.1", QUOTAS[0]),),
    )


def test_the_quota_in_force_and_where_it_comes_from() -> None:
    for user, now, quota, source in (
        ("u", UNTIL, "10/minute", "the rule"),
        ("u", 0, "5/minute", "tier free until 2026-12-01T00:00:00Z"),
        ("pro", 0, "100/minute", "tier pro"),
        (
            "special",
            UNTIL - 1,
            "500/minute",
            "override until 2026-12-01T00:00:00Z, on top of tier free until 2026-12-01T00:00:00Z",
        ),
        ("special", UNTIL, "10/minute", "the rule"),
        ("always", UNTIL, "7/minute", f"override until {1 << 61} us after 1970"),
        ("both", 0, "100/minute burst 9", "override, on top of tier pro"),
    ):
        found = considered(Request({"user": user}), now)["applies"]
        assert [str(quota) for quota in found.quotas] == [quota], user
        assert found.source == source, user


def test_lists_precede_rules() -> None:
    found = explain(POLICY, Request({"user": "evil"}), 0)
    assert found.rules == ()
    assert found.selection.verdict is Verdict.DENIED
    assert found.selection.reason == "user evil is on the deny list: evil"


def test_the_facts_are_shown_as_they_are_compared() -> None:
    found = explain(POLICY, Request({"ip": "::ffff:192.0.2.1"}, "/a/%62//", attributes={"user": "x", "r": "y"}), 0)
    assert found.facts == {"ip": "192.0.2.1", "endpoint": "/a/b", "global": "global", "r": "y"}
    assert found.tier == "free"
    found = explain(POLICY, Request({"ip": "2001:db8:1:2::9"}), 0)
    assert found.facts["ip"] == "2001:db8:1:2::/64"
    assert [limit.principal for rule in found.rules for limit in rule.limits] == ["2001:db8:1:2::/64"]

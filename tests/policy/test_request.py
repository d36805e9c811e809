"""Names of principals mean the same everywhere, and unused ones are reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import InvalidRule
from headgate.core.quota import Quota
from headgate.policy.compiled import Policy
from headgate.policy.loading import load
from headgate.policy.model import Change, Entry, Rule, Ruleset, User
from headgate.policy.request import InvalidRequest, Request, principal_name
from headgate.policy.selection import Selection, Verdict

NOW = 1_750_000_000_000_000
QUOTAS = Quota.parse("10/minute")
SPELLINGS = [
    *(
        ("apikey", name, "ak_1")
        for name in ("api_key", "API_KEY", "api-key", "apiKey", "APIKEY", "x-api-key", "apikey")
    ),
    *(("user", name, "42") for name in ("user_id", "userid", "USER", "userId", "User-ID", "user")),
    *(("ip", name, "192.0.2.1") for name in ("ip_address", "client_ip", "IP", "remote_address", "ipAddress", "ip")),
]


def limits(selection: Selection) -> list[tuple[str, object]]:
    return [(limit.space, limit.principal) for limit in selection.enforced.plan]


def test_every_name_of_a_principal_means_the_same() -> None:
    for meant, written, value in SPELLINGS:
        policy = Policy(Ruleset((Rule("r", QUOTAS, dimension=meant),)))
        expected = [(f"r@{meant}|tb:60000000", value)]
        selection = policy.select(Request({written: value}), NOW)
        assert (limits(selection), selection.unmatched_principals) == (expected, ()), written
        assert limits(policy.select(Request({written: value}, rule_id="r"), NOW)) == expected, written
        ruleset = load(f"{{version: 1, rules: [{{id: r, dimension: {written}, limit: 1, window: 1m}}]}}")
        assert limits(Policy(ruleset).select(Request({meant: value}), NOW)) == expected, written
        condition = Policy(Ruleset((Rule("r", QUOTAS, dimension="global", when={written: value}),)))
        assert condition.select(Request({meant: value}), NOW).verdict is Verdict.LIMITED, written
        for entry, name in ((written, meant), (meant, written)):
            listed = Policy(Ruleset((), deny=(Entry(entry, value),)))
            assert listed.select(Request({name: value}), NOW).verdict is Verdict.DENIED, written
        assert not policy.select(Request(attributes={written: value}), NOW).matched, written


def test_users_are_known_by_any_name() -> None:
    policy = Policy(Ruleset((Rule("r", QUOTAS),), users={"42": User("", {"r": Change(limit=50)})}))
    assert policy.select(Request({"user_id": "42"}), NOW).enforced.plan[0].quota.limit == 50


def test_lists_compare_the_whole_address_under_every_name() -> None:
    policy = Policy(Ruleset((Rule("r", QUOTAS, dimension="ip"),), deny=(Entry("ip", "2001:db8::bad"),)))
    assert policy.select(Request({"client_ip": "2001:db8::bad"}), NOW).verdict is Verdict.DENIED
    assert policy.select(Request({"client_ip": "2001:db8::900d"}), NOW).verdict is Verdict.LIMITED


def test_two_names_of_one_principal_agree_or_are_refused() -> None:
    policy = Policy(Ruleset((Rule("r", QUOTAS),)))
    assert policy.select(Request({"user": "42", "user_id": "42"}), NOW).matched
    for names in (("user", "user_id"), ("user_id", "user")):
        with pytest.raises(
            InvalidRequest,
            match=f"principals '{names[0]}' and '{names[1]}' are names of 'user', and their values differ",
        ):
            policy.select(Request(dict(zip(names, ("42", "43"), strict=True))), NOW)
    with pytest.raises(InvalidRule, match="'when' has two names of one principal"):
        Rule("r", QUOTAS, when={"user": "42", "user_id": "43"})


def test_other_names_are_unchanged() -> None:
    for name in ("tenant", "Tenant", "users", "apikeys", "a" * 1000, "", "x" * 33 + "_user"):
        assert principal_name(name) == name


@given(st.text(max_size=40))
def test_canonical_names_are_unchanged(name: str) -> None:
    assert principal_name(principal_name(name)) == principal_name(name)


class TestUnmatchedPrincipals:
    POLICY = Policy(
        Ruleset(
            (Rule("r", QUOTAS, endpoint="/a"), Rule("when", QUOTAS, endpoint="/b", when={"plan": "free"})),
            deny=(Entry("device", "lost"),),
        )
    )

    def test_a_principal_that_no_rule_uses_is_reported(self) -> None:
        policy = Policy(Ruleset((Rule("r", QUOTAS, endpoint="/a"),), deny=(Entry("device", "lost"),)))
        request = Request({"user": "42", "apikye": "ak_1", "client_ip": "192.0.2.1"}, "/a")
        assert policy.select(request, NOW).unmatched_principals == ("apikye", "client_ip")

    def test_principals_of_rules_conditions_and_lists_are_used(self) -> None:
        """Whether such a rule applies to this request does not matter."""
        request = Request({"user": "42", "plan": "pro", "device": "new"}, "/elsewhere")
        assert self.POLICY.select(request, NOW).unmatched_principals == ()

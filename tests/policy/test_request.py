"""Principals have one set of names, wherever they are written; and what no rule knows is said."""

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


@pytest.mark.parametrize(("meant", "written", "value"), SPELLINGS)
class TestNames:
    def test_a_request_is_limited_however_it_calls_its_principal(self, meant: str, written: str, value: str) -> None:
        policy = Policy(Ruleset((Rule("r", QUOTAS, dimension=meant),)))
        for _ in range(2):  # also when such requests are known
            selection = policy.select(Request({written: value}), NOW)
            assert limits(selection) == [(f"r@{meant}|tb:60000000", value)]
            assert selection.unmatched_principals == ()
        assert limits(policy.select(Request({written: value}, rule_id="r"), NOW)) == limits(selection)
        assert limits(policy.select(Request({written: value}), NOW)) == limits(selection)  # seen before

    def test_a_rule_counts_however_it_calls_its_dimension(self, meant: str, written: str, value: str) -> None:
        ruleset = load(f"{{version: 1, rules: [{{id: r, dimension: {written}, limit: 1, window: 1m}}]}}")
        assert limits(Policy(ruleset).select(Request({meant: value}), NOW)) == [(f"r@{meant}|tb:60000000", value)]

    def test_conditions_and_lists_understand_it_too(self, meant: str, written: str, value: str) -> None:
        condition = Policy(Ruleset((Rule("r", QUOTAS, dimension="global", when={written: value}),)))
        assert condition.select(Request({meant: value}), NOW).verdict is Verdict.LIMITED
        for entry, given_name in ((written, meant), (meant, written)):
            listed = Policy(Ruleset((), deny=(Entry(entry, value),)))
            assert listed.select(Request({given_name: value}), NOW).verdict is Verdict.DENIED

    def test_an_attribute_cannot_claim_it(self, meant: str, written: str, value: str) -> None:
        policy = Policy(Ruleset((Rule("r", QUOTAS, dimension=meant),)))
        assert not policy.select(Request(attributes={written: value}), NOW).matched


def test_users_are_known_by_any_name() -> None:
    policy = Policy(Ruleset((Rule("r", QUOTAS),), users={"42": User("", {"r": Change(limit=50)})}))
    for _ in range(2):
        assert policy.select(Request({"user_id": "42"}), NOW).enforced.plan[0].quota.limit == 50


def test_a_list_sees_the_whole_address_whatever_it_is_called() -> None:
    policy = Policy(Ruleset((Rule("r", QUOTAS, dimension="ip"),), deny=(Entry("ip", "2001:db8::bad"),)))
    assert policy.select(Request({"client_ip": "2001:db8::bad"}), NOW).verdict is Verdict.DENIED
    assert policy.select(Request({"client_ip": "2001:db8::900d"}), NOW).verdict is Verdict.LIMITED


def test_two_names_of_one_principal_agree_or_are_refused() -> None:
    policy = Policy(Ruleset((Rule("r", QUOTAS),)))
    assert policy.select(Request({"user": "42", "user_id": "42"}), NOW).matched
    for _ in range(2):
        for names in (("user", "user_id"), ("user_id", "user")):
            with pytest.raises(InvalidRequest, match="is another name of 'user', and the two differ"):
                policy.select(Request(dict(zip(names, ("42", "43"), strict=True))), NOW)
    with pytest.raises(InvalidRule, match="'when' has two names of one principal"):
        Rule("r", QUOTAS, when={"user": "42", "user_id": "43"})


@pytest.mark.parametrize("name", ["tenant", "Tenant", "users", "apikeys", "a" * 1000, "", "x" * 33 + "_user"])
def test_other_names_stay_as_they_are(name: str) -> None:
    assert principal_name(name) == name


@given(st.text(max_size=40))
def test_a_name_is_brought_into_one_form_once(name: str) -> None:
    assert principal_name(principal_name(name)) == principal_name(name)


class TestUnmatchedPrincipals:
    POLICY = Policy(
        Ruleset(
            (Rule("r", QUOTAS, endpoint="/a"), Rule("when", QUOTAS, endpoint="/b", when={"plan": "free"})),
            deny=(Entry("device", "lost"),),
        )
    )
    UNREMEMBERED = Policy(Ruleset((Rule("r", QUOTAS, endpoint="/a"),), deny=(Entry("device", "lost"),)))
    REMEMBERED = Policy(Ruleset((Rule("r", QUOTAS, endpoint="/a"),)))

    @pytest.mark.parametrize("policy", [UNREMEMBERED, REMEMBERED])
    def test_a_principal_that_no_rule_knows_is_said(self, policy: Policy) -> None:
        asked = Request({"user": "42", "apikye": "ak_1", "client_ip": "192.0.2.1"}, "/a")
        plain = Request({"user": "42", "apikye": "ak_1"}, "/a")
        for _ in range(2):
            assert policy.select(asked, NOW).unmatched_principals == ("apikye", "client_ip")
            assert policy.select(plain, NOW).unmatched_principals == ("apikye",)

    def test_what_a_rule_counts_by_asks_for_or_a_list_is_about_is_known(self) -> None:
        """Whether such a rule applies to this request does not matter."""
        asked = Request({"user": "42", "plan": "pro", "device": "new"}, "/elsewhere")
        assert self.POLICY.select(asked, NOW).unmatched_principals == ()

"""Which limit applies: order, depth, patterns, replacements, overrides, hits."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.policy.envoy import Code, Descriptor, Match, MatchOutcome, Override, Unit
from headgate.policy.request import InvalidRequest
from tests.policy.envoy.given import Pairs, Service, matched, policy, rates, request, written

LIMITS = """
  - {key: k, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: k, value: 'ab*', rate_limit: {unit: second, requests_per_unit: 2}}
  - {key: k, value: 'a*c', rate_limit: {unit: second, requests_per_unit: 3}}
  - {key: k, value: 'abc', rate_limit: {unit: second, requests_per_unit: 4}}
  - {key: k, value: 'free'}
  - key: deep
    value: x
    rate_limit: {unit: second, requests_per_unit: 5}
    descriptors:
      - {key: k, rate_limit: {unit: second, requests_per_unit: 6}}
      - {key: k, value: 'a*', descriptors: [{key: z, rate_limit: {unit: second, requests_per_unit: 7}}]}
  - {key: under_score, rate_limit: {unit: second, requests_per_unit: 8}}
  - {key: star, value: '*', rate_limit: {unit: second, requests_per_unit: 9}}
  - {key: 'any*', rate_limit: {unit: second, requests_per_unit: 10}}
"""


def limit_of(match: Match) -> int:
    """Return the number of the limit that applies, 0 for none."""
    return match.limits[0].quota.limit if match.limits else 0


def test_order_and_depth() -> None:
    cases: list[tuple[Pairs, int]] = [
        ([("k", "abc")], 4),  # exactly
        ([("k", "abd")], 2),  # the first pattern that fits, not the longest
        ([("k", "ab")], 2),  # a star may stand for nothing
        ([("k", "axc")], 3),
        ([("k", "ac")], 3),
        ([("k", "a")], 1),  # the key alone
        ([("k", "")], 1),
        ([("k", "ABC")], 1),  # capitals matter
        ([("k", "free")], 0),  # listed, without a limit: free
        ([("K", "abc")], 0),
        ([("deep", "x")], 5),
        ([("deep", "y")], 0),
        ([("deep", "x"), ("k", "b")], 6),
        ([("deep", "x"), ("k", "ab")], 0),  # the pattern fits, its level has no limit: no second try with the key alone
        ([("deep", "x"), ("k", "ab"), ("z", "1")], 7),
        ([("deep", "x"), ("k", "b"), ("z", "1")], 0),
        ([("k", "abc"), ("k", "abc")], 0),  # deeper than the tree
        ([("under", "score")], 8),  # names are joined with _
        ([("under_score", "x")], 8),
        ([("star", "")], 9),
        ([("star", "what*ever")], 9),
        ([("anything", "at all")], 10),  # a star in a key
        ([], 0),
    ]
    for descriptor, expected in cases:
        assert limit_of(matched(written(LIMITS), *descriptor)) == expected


def test_an_unknown_domain_passes_and_is_reported() -> None:
    matching = policy("example01").match(
        "other", [request(("database", "users")), Descriptor((), None, Override(1, 1))]
    )
    assert not matching.known
    assert [match.outcome for match in matching.matches] == [MatchOutcome.UNMATCHED] * 2
    assert policy("example01").match("mongo_cps", [request(("database", "users"))]).known


def test_a_request_without_domain_or_descriptors_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^the domain is empty$"):
        policy("example01").match("", [request(("database", "users"))])
    with pytest.raises(InvalidRequest, match=r"^there are no descriptors$"):
        policy("example01").match("mongo_cps", [])


def test_hits() -> None:
    for hits_addend, hits, expected in ((0, None, 1), (1, None, 1), (7, None, 7), (7, 0, 0), (7, 3, 3), (0, 5, 5)):
        descriptor = request(("database", "users"), hits=hits)
        assert policy("example01").match("mongo_cps", [descriptor], hits_addend).matches[0].hits == expected


def test_more_hits_than_could_ever_pass_are_refused_without_a_store() -> None:
    rules = policy("example01")
    for hits, outcome in ((500, MatchOutcome.LIMITED), (501, MatchOutcome.TOO_MANY), (1 << 63, MatchOutcome.TOO_MANY)):
        match = rules.match("mongo_cps", [request(("database", "users"), hits=hits)]).matches[0]
        assert match.outcome is outcome


def test_hits_that_are_no_count_make_the_descriptor_invalid() -> None:
    wrong: list[Any] = [-1, True, 1.0, "1"]
    for hits in wrong:
        matching = policy("example01").match("mongo_cps", [request(("database", "users"), hits=hits)])
        assert matching.problems == (f"descriptor 'database=users': hits must be a whole number, not {hits!r}",)


def test_a_refund_is_at_most_the_capacity() -> None:
    service = Service(policy("example01"))
    users = (("database", "users"),)
    assert service.decide(Descriptor(users, 500)).statuses[0].limit_remaining == 0
    assert service.decide(Descriptor(users, 3, refund=True)).statuses[0].limit_remaining == 3
    status = service.decide(Descriptor(users, 1 << 63, refund=True)).statuses[0]
    assert (status.code, status.limit_remaining) == (Code.OK, 500)


class TestReplaces:
    """A limit that another one of the same request names does not apply."""

    RULES = """
  - {key: a, rate_limit: {name: A, unit: second, requests_per_unit: 1, replaces: [{name: B}, {name: Z}]}}
  - {key: b, rate_limit: {name: B, unit: second, requests_per_unit: 2, replaces: [{name: C}]}}
  - {key: c, rate_limit: {name: C, unit: second, requests_per_unit: 3}}
  - {key: x, rate_limit: {name: X, unit: second, requests_per_unit: 4, replaces: [{name: Y}]}}
  - {key: y, rate_limit: {name: Y, unit: second, requests_per_unit: 5, replaces: [{name: X}]}}
  - {key: free, rate_limit: {name: C, unlimited: true, replaces: [{name: A}]}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 6, replaces: [{name: C}]}}
"""

    def test_within_one_request(self) -> None:
        cases: list[tuple[str, list[int]]] = [
            ("a", [1]),
            ("ab", [1, 0]),
            ("ba", [0, 1]),
            ("bc", [2, 0]),
            ("abc", [1, 0, 0]),  # what is replaced itself still replaces
            ("ac", [1, 3]),
            ("xy", [0, 0]),  # each other
            ("bb", [2, 2]),
        ]
        for keys, expected in cases:
            matches = written(self.RULES).match("d", [request((key, "v")) for key in keys]).matches
            assert [limit_of(match) for match in matches] == expected, keys
            assert all(match.outcome is MatchOutcome.REPLACED for match in matches if not match.limits), keys

    def test_the_unlimited_and_shadows_replace_too_and_the_unlimited_is_not_replaced(self) -> None:
        rules = written(self.RULES)
        free, first = rules.match("d", [request(("free", "")), request(("a", ""))]).matches
        assert (free.outcome, first.outcome) == (MatchOutcome.UNLIMITED, MatchOutcome.REPLACED)
        assert free.name == "C"
        shadow, third = rules.match("d", [request(("shadow", "")), request(("c", ""))]).matches
        assert (limit_of(shadow), third.outcome) == (6, MatchOutcome.REPLACED)
        free, _ = rules.match("d", [request(("free", "")), request(("b", ""))]).matches
        assert free.outcome is MatchOutcome.UNLIMITED

    def test_an_override_neither_replaces_nor_is_replaced(self) -> None:
        override = Override(9, Unit.SECOND)
        first = Descriptor((("a", ""),), None, override)
        second = Descriptor((("b", ""),))
        matches = written(self.RULES).match("d", [first, second]).matches
        assert [limit_of(match) for match in matches] == [9, 2]

    def test_only_the_named_limit_is_replaced(self) -> None:
        user, spender = policy("beyond").match("beyond", [request(("user", "u")), request(("bigspender", "u"))]).matches
        assert rates(user) == ["10/second burst 20"]
        assert rates(spender) == ["5/second fixed_window"]


UNITS = "1 (SECOND), 2 (MINUTE), 3 (HOUR), 4 (DAY), 5 (MONTH), 6 (YEAR), 7 (WEEK)"


class TestOverride:
    """A limit that comes with the request."""

    RULES = """
  - {key: k, shadow_mode: true, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: p, value: 'a*', share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 5}}
"""

    def match(self, key: str, override: Override, value: str = "v") -> Match:
        return written(self.RULES).match("d", [Descriptor(((key, value),), None, override)]).matches[0]

    @pytest.mark.parametrize("key", ["k", "free", "nowhere"])
    @pytest.mark.parametrize(
        ("unit", "window"),
        [(1, "second"), (2, "minute"), (3, "hour"), (4, "day"), (5, "30d"), (6, "365d"), (7, "week")],
    )
    def test_it_applies_instead_of_all_that_is_configured(self, key: str, unit: int, window: str) -> None:
        match = self.match(key, Override(42, unit))
        assert rates(match) == [f"42/{window} fixed_window"]
        assert (match.shadow_mode, match.quota_mode, match.name) == (False, False, "")
        assert match.stat == ("d", f"{key}_v")

    def test_0_is_a_ban(self) -> None:
        assert self.match("k", Override(0, 1)).outcome is MatchOutcome.BANNED

    def test_an_invalid_override_affects_only_its_descriptor(self) -> None:
        cases: list[tuple[Override, str]] = [
            (Override(1, 0), f"0 is not a unit: use one of {UNITS}"),
            (Override(1, 99), f"99 is not a unit: use one of {UNITS}"),
            (Override(1 << 32, 1), "requests_per_unit must be a whole number from 0 to 4294967295, not 4294967296"),
            (Override(-1, 1), "requests_per_unit must be a whole number from 0 to 4294967295, not -1"),
        ]
        for override, problem in cases:
            bad, good = Descriptor((("k", "v"),), None, override), request(("k", "v"))
            service = Service(written(self.RULES))
            matching = service.rules.match("d", [bad, good])
            assert matching.problems == (f"descriptor 'k=v': the limit that came with the request: {problem}",)
            assert [match.outcome for match in matching.matches] == [MatchOutcome.INVALID, MatchOutcome.LIMITED]
            answer = service.decide(bad, good)  # it is refused if it is decided all the same
            assert [status.code for status in answer.statuses] == [Code.OVER_LIMIT, Code.OK], override
            assert answer.code is Code.OVER_LIMIT, override

    def test_it_counts_where_the_configured_limit_does(self) -> None:
        service = Service(written(self.RULES))
        service.decide(request(("k", "v"), hits=4))
        status = service.decide(Descriptor((("k", "v"),), None, Override(100, Unit.MINUTE))).statuses[0]
        assert status.limit_remaining == 95
        other = service.decide(Descriptor((("k", "v"),), None, Override(100, Unit.HOUR))).statuses[0]
        assert other.limit_remaining == 99

    def test_it_shares_nothing(self) -> None:
        limits = [self.match("p", Override(9, 2), value).limits[0] for value in ("a1", "a2")]
        assert limits[0].principal != limits[1].principal


class TestBeyond:
    """What goes beyond the original: any window, any algorithm, several limits."""

    def test_several_limits_on_one_descriptor(self) -> None:
        match = matched(policy("beyond"), ("user", "u1"))
        assert rates(match) == ["10/second burst 20", "250/day fixed_window"]
        assert len({limit.principal for limit in match.limits}) == 1
        assert len({limit.space for limit in match.limits}) == 2

    def test_any_window_and_algorithm(self) -> None:
        assert rates(matched(policy("beyond"), ("sms", "n"))) == ["3/15m sliding_window_counter"]
        assert rates(matched(policy("beyond"), ("report", "n"))) == ["1/30s fixed_window"]

    def test_one_limit_of_0_is_enough_for_a_ban(self) -> None:
        match = matched(policy("beyond"), ("banned", "u"))
        assert match.outcome is MatchOutcome.BANNED
        assert match.rule is not None
        assert match.rule.banned is not None
        assert match.rule.banned.name == "nothing"

    def test_clients_get_the_nearest_unit(self) -> None:
        for key, nearest in (("sms", Unit.HOUR), ("report", Unit.MINUTE), ("bigspender", Unit.SECOND)):
            rule = matched(policy("beyond"), (key, "x")).rule
            assert rule is not None, key
            assert rule.limits[0].nearest_unit is nearest, key


def test_text_that_is_not_unicode_makes_the_descriptor_invalid() -> None:
    rules = written("  - {key: k, rate_limit: {unit: second, requests_per_unit: 1}}")
    (problem,) = rules.match("d", [request(("k", "\ud800"))]).problems
    assert problem.startswith("descriptor 'k=\\ud800': a key must be valid Unicode text")
    (problem,) = rules.match("d", [request(("k", "x" * 70_000))]).problems
    assert problem.endswith("a key must have 1 to 65536 characters, not 70009")


def test_a_match_has_the_attributes_of_its_rule() -> None:
    rules = written(
        "  - {key: k, shadow_mode: true, quota_mode: true, metadata: {a: [1, {b: c}]},"
        " rate_limit: {name: n, unit: second, requests_per_unit: 1}}"
    )
    match = matched(rules, ("k", "v"))
    assert (match.name, match.shadow_mode, match.quota_mode, match.stat) == ("n", True, True, ("d", "k"))
    assert match.metadata == {"a": (1, {"b": "c"})}
    for flag in ("detailed_metric", "value_to_metric"):
        limit = "rate_limit: {unit: second, requests_per_unit: 1}"
        detailed = written(f"  - {{key: k, {flag}: true, metadata: {{a: b}}, {limit}}}")
        assert matched(detailed, ("k", "v")).metadata == {"a": "b"}
    nothing = matched(rules, ("x", "v"))
    assert (nothing.name, nothing.shadow_mode, nothing.quota_mode, nothing.stat) == ("", False, False, ())
    assert not nothing.metadata


class TestSharing:
    """Values that match a pattern with share_threshold count together, for each key and everything else apart."""

    RULES = """
  - {key: f, value: 'x/*', share_threshold: true, rate_limit: &limit {unit: hour, requests_per_unit: 9}}
  - {key: f, value: 'x/1', rate_limit: *limit}
  - key: f
    value: 'top/*'
    share_threshold: true
    descriptors:
      - {key: f, value: 'in/*', share_threshold: true, rate_limit: *limit}
      - {key: g, value: 'in/*', rate_limit: *limit}
      - {key: user, rate_limit: *limit}
  - {key: 'any*', share_threshold: true, rate_limit: *limit}
"""

    def test_values_of_a_shared_pattern_count_together(self) -> None:
        cases: list[tuple[Pairs, Pairs, bool]] = [
            ([("f", "x/2")], [("f", "x/3")], True),
            ([("f", "x/2")], [("f", "x/")], True),
            ([("f", "x/2")], [("f", "x/*")], True),  # the pattern itself is a value like any other
            ([("f", "x/2")], [("f", "x/1")], False),  # that one is listed
            ([("f", "top/1"), ("f", "in/1")], [("f", "top/2"), ("f", "in/2")], True),
            ([("f", "top/1"), ("g", "in/1")], [("f", "top/2"), ("g", "in/1")], True),
            ([("f", "top/1"), ("g", "in/1")], [("f", "top/1"), ("g", "in/2")], False),
            ([("f", "top/1"), ("user", "u")], [("f", "top/2"), ("user", "u")], True),
            ([("f", "top/1"), ("user", "u")], [("f", "top/1"), ("user", "v")], False),
            ([("any", "1")], [("any", "2")], True),
            ([("any", "1")], [("anyone", "1")], False),
        ]
        for first, second, together in cases:
            one, other = [matched(written(self.RULES), *pairs).limits[0] for pairs in (first, second)]
            assert ((one.space, one.principal) == (other.space, other.principal)) is together, first


def test_the_names_of_metrics_where_the_last_value_is_empty() -> None:
    for flags, value, metric in (
        ("", "", "d.k_a*.u"),
        ("value_to_metric: true, ", "", "d.k_abc.u"),
        ("share_threshold: true, ", "", "d.k_a*.u"),
        ("share_threshold: true, value_to_metric: true, ", "", "d.k_a*.u"),
        ("", "detailed_metric: true, ", "d.k_abc.u_"),
        ("share_threshold: true, ", "detailed_metric: true, ", "d.k_a*.u"),
        ("", "value_to_metric: true, ", "d.k_a*.u"),
        ("value_to_metric: true, ", "detailed_metric: true, value_to_metric: true, ", "d.k_abc.u_"),
    ):
        rules = written(
            f"  - {{key: k, value: 'a*', {flags}descriptors: "
            f"[{{key: u, {value}rate_limit: {{unit: day, requests_per_unit: 1}}}}]}}"
        )
        assert ".".join(matched(rules, ("k", "abc"), ("u", "")).stat) == metric, flags

"""Files: what loads, what is wrong with them and where, what is only odd."""

from __future__ import annotations

from textwrap import dedent

import pytest

from headgate.config.problems import InvalidRules
from headgate.policy.envoy import RateLimit, Unit, load
from tests.policy.envoy.given import FILES, asked, matched, policy, rates, written


def problems_of(text: str) -> list[str]:
    """Return what is told about a file."""
    with pytest.raises(InvalidRules) as caught:
        load({"f.yaml": dedent(text)})
    return [str(problem) for problem in caught.value.problems]


def one(limit: str = "{unit: second, requests_per_unit: 1}", *, more: str = "", key: str = "k") -> str:
    """Write a file with one descriptor on one line, the third."""
    return f"domain: d\ndescriptors:\n- {{key: {key}, {more}rate_limit: {limit}}}\n"


UNITS = "Accepted: one of second, minute, hour, day, week, month, year"
FIELDS = (
    "key, value, rate_limit, rate_limits, descriptors, shadow_mode, quota_mode, detailed_metric, value_to_metric, "
    "share_threshold, metadata"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # the file
        ("", "f.yaml:1:1: a file needs a domain. Accepted: a name that no other file has"),
        ("descriptors: []", "f.yaml:1:1: a file needs a domain. Accepted: a name that no other file has"),
        ("domain: ''", "f.yaml:1:9: domain: a file needs a domain. Accepted: a name that no other file has"),
        ("domain:", "f.yaml:1:8: domain: a file needs a domain. Accepted: a name that no other file has"),
        ("- a", "f.yaml:1:1: a list is not a file. Accepted: a mapping with domain, descriptors"),
        ("domain: [d]", "f.yaml:1:9: domain: a list is not text"),
        ("domain: d\n0.25: x", "f.yaml:2:1: [\"0.25\"]: a file has no '0.25'. Accepted: domain, descriptors"),
        ("domain: d\ndomain: e", "f.yaml:2:1: the key 'domain' is given twice, first on line 1"),
        # lists
        (
            "domain: d\ndescriptors: x",
            "f.yaml:2:14: descriptors: 'x' is not a list. Accepted: a list, each of its entries a descriptor",
        ),
        (
            "domain: d\ndescriptors: [a]",
            f"f.yaml:2:15: descriptors[0]: 'a' is not a descriptor. Accepted: a mapping with {FIELDS}",
        ),
        # descriptors
        ("domain: d\ndescriptors: [{value: x}]", "f.yaml:2:15: descriptors[0]: a descriptor needs a key"),
        ("domain: d\ndescriptors: [{key: ''}]", "f.yaml:2:21: descriptors[0].key: a key cannot be empty"),
        (
            "domain: d\ndescriptors: [{key: 1.10}]",
            "f.yaml:2:21: descriptors[0].key: 1.1 is not text. Put it in quotes.",
        ),
        (
            "domain: d\ndescriptors: [{key: k, ratelimit: {}}]",
            "f.yaml:2:24: descriptors[0].ratelimit: a descriptor has no 'ratelimit'. Did you mean 'rate_limit'?",
        ),
        (
            "domain: d\ndescriptors: [{key: k, burst: 1}]",
            "f.yaml:2:24: descriptors[0].burst: a descriptor has no 'burst'. It belongs to a rate limit.",
        ),
        (
            one(more="shadow_mode: maybe, "),
            "f.yaml:3:25: descriptors[0].shadow_mode: 'maybe' is not true or false",
        ),
        (one(more="quota_mode: 1, "), "f.yaml:3:24: descriptors[0].quota_mode: 1 is not true or false"),
        (one(more="metadata: [1], "), "f.yaml:3:22: descriptors[0].metadata: a list is not a mapping"),
        (
            one(more="value: abc, share_threshold: true, "),
            "f.yaml:3:41: descriptors[0].share_threshold: only a value with * can share its threshold, not 'k_abc'",
        ),
        (
            "domain: d\ndescriptors:\n- {key: k, value: v}\n- {key: k, value: v}",
            "f.yaml:4:3: descriptors[1]: the descriptor 'k_v' is there twice, first in f.yaml: descriptors[0]",
        ),
        (
            "domain: d\ndescriptors: [{key: p, descriptors: [{key: a_b}, {key: a, value: b}]}]",
            (
                "f.yaml:2:50: descriptors[0].descriptors[1]: the descriptor 'p.a_b' is there twice, first in f.yaml: "
                "descriptors[0].descriptors[0]. Key and value are joined with _: (a, b) is the same as (a_b, )."
            ),
        ),
        # limits
        (
            one("5"),
            (
                "f.yaml:3:24: descriptors[0].rate_limit: 5 is not a rate limit. Accepted: a mapping with unit, "
                "requests_per_unit, unlimited, name, replaces, unit_multiplier, algorithm, burst"
            ),
        ),
        (
            one("{unit: day, requestsperunit: 5}"),
            (
                "f.yaml:3:36: descriptors[0].rate_limit.requestsperunit: a rate limit has no 'requestsperunit'. "
                "Did you mean 'requests_per_unit'?"
            ),
        ),
        (
            one("{requests_per_unit: 5}"),
            f"f.yaml:3:24: descriptors[0].rate_limit: a rate limit needs a unit. {UNITS}",
        ),
        (
            one("{unit: , requests_per_unit: 5}"),
            f"f.yaml:3:31: descriptors[0].rate_limit.unit: a rate limit needs a unit. {UNITS}",
        ),
        (
            one("{unit: secnd, requests_per_unit: 5}"),
            f"f.yaml:3:31: descriptors[0].rate_limit.unit: 'secnd' is not a unit. {UNITS}. Did you mean 'second'?",
        ),
        (
            one("{unit: unknown, requests_per_unit: 5}"),
            f"f.yaml:3:31: descriptors[0].rate_limit.unit: 'unknown' is not a unit. {UNITS}",
        ),
        (
            one("{unit: day, requests_per_unit: -1}"),
            "f.yaml:3:55: descriptors[0].rate_limit.requests_per_unit: -1 is not a whole number from 0 to 4294967295",
        ),
        (
            one("{unit: day, requests_per_unit: 4294967296}"),
            (
                "f.yaml:3:55: descriptors[0].rate_limit.requests_per_unit: 4294967296 is not a whole number from 0 to "
                "4294967295"
            ),
        ),
        (
            one("{unit: day, requests_per_unit: 1e3}"),
            (
                "f.yaml:3:55: descriptors[0].rate_limit.requests_per_unit: 1000.0 is not a whole number from 0 to "
                "4294967295"
            ),
        ),
        (
            one("{unit: day, requests_per_unit: '010'}"),
            (
                "f.yaml:3:55: descriptors[0].rate_limit.requests_per_unit: '010' is not a whole number from 0 to "
                "4294967295"
            ),
        ),
        (
            one("{unlimited: true, unit: day}"),
            "f.yaml:3:48: descriptors[0].rate_limit.unit: what is unlimited has no unit",
        ),
        (
            one("{unlimited: true, burst: []}"),
            "f.yaml:3:49: descriptors[0].rate_limit.burst: what is unlimited has no burst",
        ),
        (
            one("{unit: day, requests_per_unit: 1, replaces: [{name: ''}]}"),
            "f.yaml:3:69: descriptors[0].rate_limit.replaces[0]: an entry of replaces needs the name of a limit",
        ),
        (
            one("{unit: day, requests_per_unit: 1, name: a, replaces: [{name: a}]}"),
            "f.yaml:3:78: descriptors[0].rate_limit.replaces[0]: the limit 'a' cannot replace itself",
        ),
        (
            one("{unit: day, requests_per_unit: 1, replaces: [a]}"),
            (
                "f.yaml:3:69: descriptors[0].rate_limit.replaces[0]: 'a' is not an entry of replaces. "
                "Accepted: a mapping with name"
            ),
        ),
        # what goes beyond the original
        (
            one("{unit: day, requests_per_unit: 1, unit_multiplier: 0}"),
            "f.yaml:3:75: descriptors[0].rate_limit.unit_multiplier: 0 is not a whole number from 1 to 4294967295",
        ),
        (
            one("{unit: year, requests_per_unit: 1, unit_multiplier: 11}"),
            "f.yaml:3:76: descriptors[0].rate_limit.unit_multiplier: a window of 11 years is longer than 3660 days",
        ),
        (
            one("{unit: day, requests_per_unit: 1, algorithm: token_buckt}"),
            (
                "f.yaml:3:69: descriptors[0].rate_limit.algorithm: 'token_buckt' is unknown. Accepted: one of "
                "token_bucket, leaky_bucket, fixed_window, sliding_window_log, sliding_window_counter, gcra. "
                "Did you mean 'token_bucket'?"
            ),
        ),
        (
            one("{unit: day, requests_per_unit: 1, burst: 5}"),
            (
                "f.yaml:3:65: descriptors[0].rate_limit.burst: fixed_window has no burst: raise the limit, or use "
                "token_bucket, leaky_bucket or gcra"
            ),
        ),
        (
            one("{unit: day, requests_per_unit: 0, burst: 5, algorithm: gcra}"),
            "f.yaml:3:65: descriptors[0].rate_limit.burst: a limit of 0 refuses everything: it has no burst",
        ),
        (
            one(more="rate_limits: [], "),
            "f.yaml:3:25: descriptors[0].rate_limits: there is a rate_limit, too: put it into the list",
        ),
        (
            (
                "domain: d\ndescriptors: [{key: k, rate_limits: ["
                "{unit: minute, requests_per_unit: 1}, {unit: second, unit_multiplier: 60, requests_per_unit: 2}]}]"
            ),
            (
                "f.yaml:2:37: descriptors[0].rate_limits: two limits have the same algorithm and window: keep the "
                "stricter one"
            ),
        ),
        (
            "domain: d\ndescriptors: [{key: k, rate_limits: [{unlimited: true}, {unit: day, requests_per_unit: 1}]}]",
            "f.yaml:2:38: descriptors[0].rate_limits[0]: an unlimited rate limit cannot be one of several",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, expected: str) -> None:
    assert problems_of(text) == [expected]


def test_text_that_is_no_yaml_is_told_as_such() -> None:
    (problem,) = problems_of("domain: d\ndescriptors: [")
    assert problem.startswith("f.yaml:3:1: not YAML: ")


def test_all_problems_are_told_at_once_file_by_file() -> None:
    texts = {
        "b.yaml": "domain: d\ndescriptors: [{key: k, rate_limit: {unit: x}}, {value: v}]",
        "a.yaml": "domain: [",
        "c.yaml": "domain: d\ndescriptors: [{key: k, keys: 1}]",
    }
    with pytest.raises(InvalidRules) as caught:
        load(texts)
    places = [(problem.file, problem.line, problem.path) for problem in caught.value.problems]
    assert places == [
        ("b.yaml", 2, "descriptors[0].rate_limit.unit"),
        ("b.yaml", 2, "descriptors[1]"),
        ("a.yaml", 2, ""),
        ("c.yaml", 1, "domain"),
        ("c.yaml", 2, "descriptors[0].keys"),
    ]


class TestDomains:
    """Domains over several files."""

    FIRST = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 1}}]"
    SECOND = "domain: d\ndescriptors: [{key: b, rate_limit: {unit: second, requests_per_unit: 2}}]"

    def test_a_domain_is_in_one_file(self) -> None:
        with pytest.raises(InvalidRules) as caught:
            load({"1.yaml": self.FIRST, "2.yaml": self.SECOND})
        assert str(caught.value) == (
            "2.yaml:1:9: domain: the domain 'd' is that of 1.yaml, too. Give it another name, or merge the domains."
        )

    def test_unless_merging_is_asked_for(self) -> None:
        rules = load({"1.yaml": self.FIRST, "2.yaml": self.SECOND}, merge_domains=True)
        assert [rates(matched(rules, (key, "v"))) for key in "ab"] == [
            ["1/second fixed_window"],
            ["2/second fixed_window"],
        ]

    def test_merged_files_may_not_have_the_same_descriptor(self) -> None:
        with pytest.raises(InvalidRules) as caught:
            load({"1.yaml": self.FIRST, "2.yaml": self.FIRST}, merge_domains=True)
        assert str(caught.value) == (
            "2.yaml:2:15: descriptors[0]: the descriptor 'a' is there twice, first in 1.yaml: descriptors[0]"
        )

    def test_merged_patterns_are_tried_in_the_order_of_the_files(self) -> None:
        texts = {
            f"{number}.yaml": "domain: d\ndescriptors: "
            f"[{{key: k, value: '{value}', rate_limit: {{unit: second, requests_per_unit: {number}}}}}]"
            for number, value in ((2, "a*"), (1, "*b"))
        }
        rules = load(texts, merge_domains=True)
        assert rates(matched(rules, ("k", "ab"))) == ["2/second fixed_window"]

    def test_no_file_is_a_policy_without_domains(self) -> None:
        assert not load({}).domains


class TestValues:
    """Values mean what they mean to a program written in Go."""

    @pytest.mark.parametrize(
        ("written_value", "means"),
        [
            ("123", "123"),
            ("007", "007"),
            ("0x1F", "0x1F"),
            ("1_000", "1_000"),
            ("true", "true"),
            ("True", "True"),
            ("FALSE", "FALSE"),
            ("yes", "yes"),
            ("no", "no"),
            ("2026-01-01", "2026-01-01"),
            ("12:30", "12:30"),
            ("'1.10'", "1.10"),
            ('"\\u00fc"', "ü"),
        ],
    )
    def test_scalars_are_text_as_written(self, written_value: str, means: str) -> None:
        rules = load({"f": one(more=f"value: {written_value}, ")})
        assert matched(rules, ("k", means)).limits

    @pytest.mark.parametrize("nothing", ["", "~", "null", "''"])
    def test_nothing_is_no_value(self, nothing: str) -> None:
        assert matched(load({"f": one(more=f"value: {nothing}, ")}), ("k", "anything")).limits

    @pytest.mark.parametrize(
        ("word", "means"),
        [("true", True), ("yes", True), ("On", True), ("y", True), ("false", False), ("off", False), ("~", False)],
    )
    def test_flags(self, word: str, means: bool) -> None:  # noqa: FBT001  that is the subject
        assert matched(load({"f": one(more=f"shadow_mode: {word}, ")}), ("k", "v")).shadow_mode is means

    @pytest.mark.parametrize(("number", "means"), [("1_000", 1000), ("0x10", 16), ("4294967295", 4294967295), ("7", 7)])
    def test_counts(self, number: str, means: int) -> None:
        match = matched(load({"f": one(f"{{unit: second, requests_per_unit: {number}}}")}), ("k", "v"))
        assert match.limits[0].quota.limit == means

    @pytest.mark.parametrize("unit", ["second", "SECOND", "Second"])
    def test_units_in_any_case(self, unit: str) -> None:
        match = matched(load({"f": one(f"{{unit: {unit}, requests_per_unit: 1}}")}), ("k", "v"))
        assert rates(match) == ["1/second fixed_window"]

    def test_empty_blocks_are_as_if_they_were_not_there(self) -> None:
        text = "  - {key: k, rate_limit: , descriptors: , metadata: , rate_limits: }"
        match = matched(written(text), ("k", "v"))
        assert not match.limits

    def test_where_the_word_is_not_to_be_seen_quotes_are_asked_for(self) -> None:
        text = "domain: d\ndescriptors: [{key: a, shadow_mode: &on true}, {key: *on}]"
        assert problems_of(text) == ["f.yaml:2:54: descriptors[1].key: true is not text. Put it in quotes."]

    def test_a_surrogate_is_no_text(self) -> None:
        with pytest.raises(InvalidRules):
            load({"f": one(more='value: "\\ud800", ')})


class TestWarnings:
    """What is odd loads as it does there, and is told."""

    def warnings_of(self, text: str) -> list[str]:
        return [str(warning) for warning in load({"f.yaml": text}).warnings]

    def test_a_known_key_where_it_has_no_effect(self) -> None:
        assert self.warnings_of(one("{unit: day, requests_per_unit: 1, shadow_mode: true}")) == [
            (
                "f.yaml:3:58: descriptors[0].rate_limit.shadow_mode: 'shadow_mode' has no effect in a rate limit. "
                "It belongs to a descriptor."
            )
        ]

    def test_a_limit_without_a_number_refuses_everything(self) -> None:
        assert self.warnings_of(one("{unit: day}")) == [
            (
                "f.yaml:3:24: descriptors[0].rate_limit: without requests_per_unit, everything is refused. "
                "Write it, even if it is 0."
            )
        ]
        rule = matched(load({"f": one("{unit: day}")}), ("k", "v")).rule
        assert rule is not None
        assert rule.banned == RateLimit(0, Unit.DAY)

    def test_a_number_for_the_unlimited(self) -> None:
        assert self.warnings_of(one("{unlimited: true, requests_per_unit: 1}")) == [
            (
                "f.yaml:3:42: descriptors[0].rate_limit.requests_per_unit: 'requests_per_unit' has no effect in what "
                "is unlimited"
            )
        ]

    def test_the_examples_have_none(self) -> None:
        assert not any(policy(path.stem).warnings for path in FILES.glob("*.yaml"))


def test_metadata_cannot_be_changed() -> None:
    rules = load({"f": one(more="metadata: {a: {b: [c]}}, ")})
    metadata = matched(rules, ("k", "v")).metadata
    with pytest.raises(TypeError):
        metadata["a"]["x"] = 1
    assert metadata["a"]["b"] == ("c",)


def test_a_key_does_not_change_with_the_limit_but_with_domain_and_path() -> None:
    def space(text: str, *path: tuple[str, str]) -> str:
        rules = load({"f": text})
        (domain,) = rules.domains
        return rules.match(domain, [asked(*path)]).matches[0].limits[0].space

    first = space(one(), ("k", "v"))
    assert first == space(one("{unit: second, requests_per_unit: 99, name: n}"), ("k", "v"))
    assert first != space(one("{unit: minute, requests_per_unit: 1}"), ("k", "v"))
    assert first != space(one(more="value: v, "), ("k", "v"))
    assert first != space(one().replace("domain: d", "domain: e"), ("k", "v"))
    assert first.startswith("rls:")
    assert len(first.split("|")[0]) == 36

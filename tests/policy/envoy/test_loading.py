"""Files: accepted values, problems with their places, warnings."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from headgate import InvalidRule
from headgate.config.problems import InvalidRules
from headgate.policy.envoy import Descriptor, LiveDescriptors, RateLimit, Unit, load
from tests.policy.envoy.given import FILES, matched, policy, rates, request, written
from tests.policy.written import assert_golden


def problems_of(text: str) -> list[str]:
    """Return the problems of a file."""
    with pytest.raises(InvalidRules) as caught:
        load({"f.yaml": dedent(text)})
    return [str(problem) for problem in caught.value.problems]


def one(limit: str = "{unit: second, requests_per_unit: 1}", *, more: str = "", key: str = "k") -> str:
    """Write a file with one descriptor on one line, the third."""
    return f"domain: d\ndescriptors:\n- {{key: {key}, {more}rate_limit: {limit}}}\n"


WRONG = [
    "",
    "descriptors: []",
    "domain: ''",
    "domain:",
    "- a",
    "domain: [d]",
    "domain: d\n0.25: x",
    "domain: d\ndomain: e",
    "domain: d\ndescriptors: x",
    "domain: d\ndescriptors: [a]",
    "domain: d\ndescriptors: [{value: x}]",
    "domain: d\ndescriptors: [{key: ''}]",
    "domain: d\ndescriptors: [{key: 1.10}]",
    "domain: d\ndescriptors: [{key: k, ratelimit: {}}]",
    "domain: d\ndescriptors: [{key: k, burst: 1}]",
    one(more="shadow_mode: maybe, "),
    one(more="quota_mode: 1, "),
    one(more="metadata: [1], "),
    one(more="value: abc, share_threshold: true, "),
    "domain: d\ndescriptors:\n- {key: k, value: v}\n- {key: k, value: v}",
    "domain: d\ndescriptors: [{key: p, descriptors: [{key: a_b}, {key: a, value: b}]}]",
    one("5"),
    one("{unit: day, requestsperunit: 5}"),
    one("{requests_per_unit: 5}"),
    one("{unit: , requests_per_unit: 5}"),
    one("{unit: secnd, requests_per_unit: 5}"),
    one("{unit: unknown, requests_per_unit: 5}"),
    one("{unit: day, requests_per_unit: -1}"),
    one("{unit: day, requests_per_unit: 4294967296}"),
    one("{unit: day, requests_per_unit: 1e3}"),
    one("{unit: day, requests_per_unit: '010'}"),
    one("{unlimited: true, unit: day}"),
    one("{unlimited: true, burst: 0}"),
    one("{unit: day, requests_per_unit: 1, replaces: [{name: ''}]}"),
    one("{unit: day, requests_per_unit: 1, name: a, replaces: [{name: a}]}"),
    one("{unit: day, requests_per_unit: 1, replaces: [a]}"),
    one("{unit: day, requests_per_unit: 1, unit_multiplier: 0}"),
    one("{unit: year, requests_per_unit: 1, unit_multiplier: 11}"),
    one("{unit: day, requests_per_unit: 1, algorithm: token_buckt}"),
    one("{unit: day, requests_per_unit: 1, burst: 5}"),
    one("{unit: day, requests_per_unit: 0, burst: 5, algorithm: gcra}"),
    one(more="rate_limits: [{unit: day, requests_per_unit: 1}], "),
    "domain: d\ndescriptors: [{key: k, rate_limits: [{unit: day}, {unit: second, unit_multiplier: 86400}]}]".replace(
        "{unit: ", "{requests_per_unit: 1, unit: "
    ),
    "domain: d\ndescriptors: [{key: k, rate_limits: [{unlimited: true}, {unit: day, requests_per_unit: 1}]}]",
]


def test_invalid_files_are_explained() -> None:
    lines = []
    for text in WRONG:
        with pytest.raises(InvalidRules) as caught:
            load({"f.yaml": text})
        lines += [f"{text!r}\n", *[f"    {problem}\n" for problem in caught.value.problems]]
    assert_golden(lines, Path(__file__).parent / "wrong.txt")


def test_all_problems_are_reported_file_by_file() -> None:
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
            "2.yaml:1:9: domain: the domain 'd' is already used by 1.yaml. Give it another name, or merge the domains."
        )

    def test_domains_of_several_files_can_be_merged(self) -> None:
        rules = load({"1.yaml": self.FIRST, "2.yaml": self.SECOND}, merge_domains=True)
        assert [rates(matched(rules, (key, "v"))) for key in "ab"] == [
            ["1/second fixed_window"],
            ["2/second fixed_window"],
        ]

    def test_merged_files_may_not_have_the_same_descriptor(self) -> None:
        with pytest.raises(InvalidRules) as caught:
            load({"1.yaml": self.FIRST, "2.yaml": self.FIRST}, merge_domains=True)
        assert str(caught.value) == (
            "2.yaml:2:15: descriptors[0]: the descriptor 'a' occurs twice, first in 1.yaml: descriptors[0]"
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

    def test_scalars_are_text_as_written(self) -> None:
        words = ["123", "007", "0x1F", "1_000", "true", "True", "FALSE", "yes", "no", "2026-01-01", "12:30"]
        for text, means in [*zip(words, words, strict=True), ("'1.10'", "1.10"), ('"\\u00fc"', "ü")]:
            assert matched(load({"f": one(more=f"value: {text}, ")}), ("k", means)).limits, text
        for nothing in ("", "~", "null", "''"):
            assert matched(load({"f": one(more=f"value: {nothing}, ")}), ("k", "anything")).limits, nothing

    def test_flags_counts_and_units(self) -> None:
        flags = dict.fromkeys(("true", "yes", "On", "y"), True) | dict.fromkeys(("false", "off", "~"), False)
        for word, means in flags.items():
            assert matched(load({"f": one(more=f"shadow_mode: {word}, ")}), ("k", "v")).shadow_mode is means, word
        for number, count in {"1_000": 1000, "0x10": 16, "4294967295": 4294967295, "7": 7}.items():
            match = matched(load({"f": one(f"{{unit: second, requests_per_unit: {number}}}")}), ("k", "v"))
            assert match.limits[0].quota.limit == count, number
        for unit in ("second", "SECOND", "Second"):
            match = matched(load({"f": one(f"{{unit: {unit}, requests_per_unit: 1}}")}), ("k", "v"))
            assert rates(match) == ["1/second fixed_window"], unit

    def test_empty_blocks_are_as_if_they_were_not_there(self) -> None:
        text = "  - {key: k, rate_limit: , descriptors: , metadata: , rate_limits: }"
        match = matched(written(text), ("k", "v"))
        assert not match.limits

    def test_an_aliased_flag_needs_quotes_as_text(self) -> None:
        text = "domain: d\ndescriptors: [{key: a, shadow_mode: &on true}, {key: *on}]"
        assert problems_of(text) == ["f.yaml:2:54: descriptors[1].key: true is not text. Put it in quotes."]

    def test_surrogates_are_not_text(self) -> None:
        with pytest.raises(InvalidRules):
            load({"f": one(more='value: "\\ud800", ')})


class TestWarnings:
    """Odd values are accepted as in envoyproxy/ratelimit, with a warning."""

    def test_keys_without_effect(self) -> None:
        for limit, expected in {
            "{unit: day, requests_per_unit: 1, shadow_mode: true}": (
                "f.yaml:3:58: descriptors[0].rate_limit.shadow_mode: 'shadow_mode' has no effect in a rate limit. "
                "It belongs to a descriptor."
            ),
            "{unlimited: true, requests_per_unit: 1}": (
                "f.yaml:3:42: descriptors[0].rate_limit.requests_per_unit: 'requests_per_unit' has no effect in an "
                "unlimited rate limit"
            ),
            "{unit: day}": (
                "f.yaml:3:24: descriptors[0].rate_limit: without requests_per_unit, everything is refused. "
                "Write it, even if it is 0."
            ),
        }.items():
            rules = load({"f.yaml": one(limit)})
            assert [str(warning) for warning in rules.warnings] == [expected]
        rule = matched(rules, ("k", "v")).rule
        assert rule is not None
        assert rule.banned == RateLimit(0, Unit.DAY)
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
        return rules.match(domain, [request(*path)]).matches[0].limits[0].space

    first = space(one(), ("k", "v"))
    assert first == space(one("{unit: second, requests_per_unit: 99, name: n}"), ("k", "v"))
    assert first != space(one("{unit: minute, requests_per_unit: 1}"), ("k", "v"))
    assert first != space(one(more="value: v, "), ("k", "v"))
    assert first != space(one().replace("domain: d", "domain: e"), ("k", "v"))
    assert first.startswith("rls:")
    assert len(first.split("|")[0]) == 36


EDGE = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 10}}]\n"


def limit_of(live: LiveDescriptors, domain: str = "edge") -> int | None:
    (match,) = live.value.match(domain, [Descriptor((("user", "ada"),))]).matches
    return match.limits[0].quota.limit if match.limits else None


def looked(live: LiveDescriptors) -> bool:
    """Look until the files have stayed the same between two looks."""
    return [live.refresh(), live.refresh()][1]


def test_files_are_changed_added_broken_and_removed(tmp_path: Path) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text(EDGE)
    live = LiveDescriptors(tmp_path)
    assert (limit_of(live), limit_of(live, "other")) == (10, None)
    file.write_text(EDGE.replace("10", "20"))
    (tmp_path / "other.yml").write_text(EDGE.replace("edge", "other"))
    assert looked(live)
    assert (limit_of(live), limit_of(live, "other")) == (20, 10)
    file.write_text(EDGE.replace("minute", "fortnight"))
    assert not looked(live)
    assert "fortnight" in live.statistics().error
    for each in tmp_path.iterdir():
        each.unlink()
    assert not looked(live)
    assert (limit_of(live), live.statistics().failures) == (20, 2)


def test_a_folder_without_files_is_refused_at_first(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(InvalidRule, match="no file there"):
            LiveDescriptors(folder)

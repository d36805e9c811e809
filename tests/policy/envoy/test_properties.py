"""Properties: matching equals the naive matcher, keys are injective, and nothing crashes on any input."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from headgate.config.problems import Finding, InvalidRules
from headgate.core.key import Principal
from headgate.policy.envoy import Descriptor, DescriptorPolicy, MatchOutcome, Override, envoy_answer, load
from headgate.policy.envoy.loading import DESCRIPTOR, FILE, RATE_LIMIT
from headgate.policy.envoy.matching import principal_of
from tests.policy.envoy.given import FILES, Service, policy

# The descriptor tree as one would explain it: no preparation, patterns as regular expressions, plain recursion.
Tree = list[dict[str, Any]]


def name_of(descriptor: dict[str, Any]) -> str:
    value = descriptor.get("value")
    return f"{descriptor['key']}_{value}" if value else str(descriptor["key"])


def fits(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None


def find(tree: Tree, entries: Sequence[tuple[str, str]]) -> dict[str, Any] | None:
    """Return the descriptor that the entries lead to."""
    if not entries:
        return None
    (key, value), rest = entries[0], entries[1:]
    name = f"{key}_{value}"
    candidates = [descriptor for descriptor in tree if name_of(descriptor) == name]
    candidates += [descriptor for descriptor in tree if "*" in name_of(descriptor) and fits(name_of(descriptor), name)]
    candidates += [descriptor for descriptor in tree if name_of(descriptor) == key]
    if not candidates:
        return None
    first = candidates[0]
    return find(first.get("descriptors", []), rest) if rest else first


keys = st.text("ab_*", min_size=1, max_size=3)
values = st.text("ab_*", max_size=4)
pairs = st.lists(st.tuples(keys, values), max_size=4).map(tuple)


def unique(tree: Tree) -> Tree:
    return [*{name_of(descriptor): descriptor for descriptor in tree}.values()]


def nodes(children: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    numbers = st.integers(1, 1000)
    limit = st.builds(lambda number: {"unit": "day", "requests_per_unit": number}, numbers)
    node = st.fixed_dictionaries(
        {"key": keys}, optional={"value": values, "rate_limit": limit, "descriptors": children}
    )
    return st.lists(node, max_size=5).map(unique)


nothing: st.SearchStrategy[Tree] = st.just([])
trees = st.recursive(nothing, nodes, max_leaves=8)


def loaded(tree: Tree) -> DescriptorPolicy:
    return load({"t": json.dumps({"domain": "d", "descriptors": tree})})


@given(trees, st.lists(pairs, min_size=1, max_size=5))
def test_matching_equals_the_naive_matcher(tree: Tree, requests: list[tuple[tuple[str, str], ...]]) -> None:
    matches = loaded(tree).match("d", [Descriptor(entries) for entries in requests]).matches
    for entries, match in zip(requests, matches, strict=True):
        found = find(tree, entries) or {}
        expected = found.get("rate_limit", {}).get("requests_per_unit")
        assert [limit.quota.limit for limit in match.limits] == ([expected] if expected else [])


text = st.text(st.sampled_from("ab1:*_\x00é"), max_size=4)
entries_of = st.lists(st.tuples(text, text), min_size=1, max_size=4).map(tuple)
long_entries = st.tuples(text, st.integers(100, 140).map(lambda size: "x" * size)).map(lambda pair: (pair,))


@given(st.one_of(entries_of, long_entries), st.one_of(entries_of, long_entries))
@example((("a", "b_c"),), (("a_b", "c"),))
@example((("a", "1:b"),), (("a", "1"), ("b", "")))
@example((("a", ""), ("", "b")), (("a", "b"), ("", "")))
def test_principals_are_injective(first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    assert (principal_of(first) == principal_of(second)) == (first == second)


WILD = """
domain: d
descriptors:
  - key: a
    value: 'x*'
    share_threshold: true
    descriptors:
      - {key: b, rate_limit: &r {unit: day, requests_per_unit: 9}}
      - {key: b, value: '*', share_threshold: true, rate_limit: *r}
  - {key: a, rate_limit: *r, descriptors: [{key: b, rate_limit: *r}]}
  - {key: a_b, value: '*', rate_limit: *r}
  - {key: '*', rate_limit: *r}
"""
near = st.lists(st.tuples(st.sampled_from(["a", "a_b", "b"]), st.text("xb_*:1", max_size=3)), min_size=1, max_size=2)


@given(st.lists(near.map(tuple), min_size=2, max_size=8))
def test_two_descriptors_count_in_one_place_only_if_they_are_equal_or_share_a_pattern(
    requests: list[tuple[tuple[str, str], ...]],
) -> None:
    rules = load({"w": WILD})
    matches = rules.match("d", [Descriptor(entries) for entries in requests]).matches
    places: dict[tuple[str, Principal], tuple[tuple[str, ...], ...]] = {}
    for entries, match in zip(requests, matches, strict=True):
        if not match.limits:
            continue
        (limit,) = match.limits
        assert match.rule is not None
        counted = tuple(
            (pair[0], "pattern", level.name) if level.shared else (pair[0], "value", pair[1])
            for level, pair in zip(match.rule.path, entries, strict=True)
        )
        assert places.setdefault((limit.space, limit.principal), counted) == counted
    assert len(set(places.values())) <= len(places)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 1 << 33), st.floats(), st.text("ab*_ \ud800:", max_size=3)
)
field_names = st.sampled_from([*FILE.fields, *DESCRIPTOR.fields, *RATE_LIMIT.fields, "x"])
junk = st.recursive(
    st.one_of(scalars, st.sampled_from(["day", "second", "gcra", "yes", "a*"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(field_names, inner, max_size=5)),
    max_leaves=20,
)


def usable(text_of_file: str) -> None:
    """Load a file; if that works, match with it, and answer."""
    problems: tuple[Finding, ...] = ()
    rules = DescriptorPolicy({})
    try:
        rules = load({"f": text_of_file})
    except InvalidRules as error:
        problems = error.problems
    assert bool(rules.domains) != bool(problems)
    assert all(problem.file == "f" and str(problem) for problem in problems)
    for domain in rules.domains:
        service = Service(rules)
        matching = rules.match(domain, [Descriptor((("a", "b"),)), Descriptor((("a", "b"), ("a", "b")))])
        envoy_answer(matching, service.decisions(matching), 0)


@given(junk)
def test_any_data_is_loaded_or_refused(data: Any) -> None:
    usable(json.dumps(data))


@given(junk)
def test_any_descriptors_are_loaded_or_refused(data: Any) -> None:
    usable(json.dumps({"domain": "d", "descriptors": [{"key": "a", "value": "b", "rate_limit": data}, data]}))


corpus = [path.read_text(encoding="utf-8") for path in sorted(FILES.glob("*.yaml"))]


@given(st.sampled_from(corpus), st.integers(0, 2000), st.integers(0, 12), st.text("{}[]:-*&!'\"\n\t #a1", max_size=4))
def test_damaged_files_are_loaded_or_refused(whole: str, at: int, cut: int, put: str) -> None:
    usable(whole[:at] + put + whole[at + cut :])


wild_text = st.text(max_size=5)
wild_descriptors = st.builds(
    Descriptor,
    st.lists(st.tuples(st.one_of(st.sampled_from(["user", "sms", "banned"]), wild_text), wild_text), max_size=3).map(
        tuple
    ),
    st.one_of(st.none(), st.integers(-1, 1 << 64)),
    st.one_of(st.none(), st.builds(Override, st.integers(-1, 1 << 33), st.integers(-1, 9))),
    st.booleans(),
)


@given(st.lists(wild_descriptors, min_size=1, max_size=4), st.integers(0, 1 << 32))
def test_any_request_gets_an_answer(descriptors: list[Descriptor], hits_addend: int) -> None:
    rules = policy("beyond")
    service = Service(rules)
    matching = rules.match("beyond", descriptors, hits_addend)
    answer = envoy_answer(matching, service.decisions(matching), service.clock.now())
    assert len(answer.statuses) == len(descriptors)
    for match, status in zip(matching.matches, answer.statuses, strict=True):
        assert (match.outcome is MatchOutcome.INVALID) == bool(match.problem)
        assert 0 <= status.limit_remaining < 1 << 32
        assert status.duration_until_reset >= 0
        with suppress(UnicodeEncodeError):
            ".".join(match.stat).encode()

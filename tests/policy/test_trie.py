"""Endpoint patterns: all that match are found, and malformed ones are explained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import InvalidRule
from headgate.policy.trie import Conditions, Trie, matches, parsed

T = TypeVar("T")
PATTERNS = ["**", "/**", "/", "/a", "/a/", "/*", "/a/**", "/{x}/b", "/a/b", "/*/*", "/a/*/**", "/a/*/c", "/caf\u00e9"]


def find(trie: Trie[T], path: str, method: str = "", tier: str = "", facts: Mapping[str, str] | None = None) -> list[T]:
    return trie.find(path, method, tier, {} if facts is None else facts)


def found(patterns: list[str], path: str) -> list[str]:
    return sorted(find(Trie((parsed(pattern), Conditions(), pattern) for pattern in patterns), path))


def test_all_patterns_that_match_are_found() -> None:
    cases: list[tuple[str, list[str]]] = [
        ("/", ["**", "/**", "/"]),
        ("/a", ["**", "/**", "/a", "/a/", "/*", "/a/**"]),
        ("/x", ["**", "/**", "/*"]),
        ("/A", ["**", "/**", "/*"]),
        ("/*", ["**", "/**", "/*"]),
        ("/**", ["**", "/**", "/*"]),
        ("/a/b", ["**", "/**", "/a/**", "/{x}/b", "/a/b", "/*/*", "/a/*/**"]),
        ("/x/b", ["**", "/**", "/{x}/b", "/*/*"]),
        ("/a/x/c", ["**", "/**", "/a/**", "/a/*/**", "/a/*/c"]),
        ("/a/x/d/e", ["**", "/**", "/a/**", "/a/*/**"]),
        ("/caf%C3%A9", ["**", "/**", "/*", "/caf\u00e9"]),
    ]
    for path, expected in cases:
        assert found(PATTERNS, path) == sorted(expected)


segments = st.lists(st.sampled_from(["a", "b", "*", "{n}"]), max_size=4)
patterns = st.builds(lambda parts, rest: "/" + "/".join(parts + rest), segments, st.sampled_from([[], ["**"]]))
paths = st.lists(st.sampled_from(["a", "b", "c"]), max_size=5).map(lambda parts: "/" + "/".join(parts))


@given(st.lists(patterns, unique=True, max_size=12), paths)
def test_a_trie_finds_each_matching_pattern_once(patterns: list[str], path: str) -> None:
    assert found(patterns, path) == sorted(pattern for pattern in patterns if matches(parsed(pattern), path))


def test_a_malformed_pattern_is_refused_with_the_reason() -> None:
    for pattern, message in (
        ("", "an endpoint is a pattern such as /api/orders/\\*\\*, not ''"),
        ("a/b", "endpoint 'a/b': a pattern begins with a slash, or is \\*\\*"),
        ("*", "begins with a slash"),
        ("/a/**/b", "endpoint '/a/\\*\\*/b', segment 2: \\*\\* matches the rest, and must be the last segment"),
        ("/a*", "segment 1: 'a\\*' is neither literal nor \\* nor {name}"),
        ("/a/***", "segment 2: .* is neither literal"),
        ("/a/{x}.json", "is neither literal"),
        ("/a/{}", "is neither literal"),
        ("/a/{x", "is neither literal"),
        ("/a//b", "segment 2: no path has a segment '' once it is normalised"),
        ("/a/./b", "no path has a segment '.'"),
        ("/a/%2e%2E", "no path has a segment '%2e%2E'"),
        ("/a?b=c", "paths are matched without \\?: remove it and the rest"),
        ("/a;b", "paths are matched without ;"),
        ("/a%2Fb", "it has %2F, which servers interpret differently"),
        ("/a%zz", "it has a % that encodes nothing"),
        ("/a\\b", "it has a backslash"),
        ("/" + "a" * 9000, "an endpoint is a pattern"),
    ):
        with pytest.raises(InvalidRule, match=message):
            parsed(pattern)
    with pytest.raises(InvalidRule, match="an endpoint is a pattern"):
        parsed(None)  # type: ignore[arg-type]


def test_conditions_are_met_all_or_not_at_all() -> None:
    cases: list[tuple[Conditions, str, str, dict[str, str], bool]] = [
        (Conditions(), "", "", {}, True),
        (Conditions(frozenset({"GET", "PUT"})), "PUT", "", {}, True),
        (Conditions(frozenset({"GET", "PUT"})), "POST", "", {}, False),
        (Conditions(frozenset({"GET"})), "", "", {}, False),
        (Conditions(tier="pro"), "", "pro", {}, True),
        (Conditions(tier="pro"), "", "", {}, False),
        (Conditions(when={"a": "1"}), "", "", {"a": "1", "b": "2"}, True),
        (Conditions(when={"a": "1"}), "", "", {"a": "2"}, False),
        (Conditions(when={"a": "1"}), "", "", {"b": "1"}, False),
        (Conditions(when={"a": "1", "b": "2"}), "", "", {"a": "1", "b": "2"}, True),
        (Conditions(when={"a": "1", "b": "2"}), "", "", {"a": "2", "b": "1"}, False),
        (Conditions(when={"a": "1", "b": "2"}), "", "", {"a": "1"}, False),
        (Conditions(frozenset({"GET"}), "pro", {"a": "1"}), "GET", "pro", {"a": "1"}, True),
        (Conditions(frozenset({"GET"}), "pro", {"a": "1"}), "GET", "free", {"a": "1"}, False),
    ]
    for conditions, method, tier, facts, expected in cases:
        assert find(Trie([(("**",), conditions, "it")]), "/", method, tier, facts) == ["it"] * expected


def steps(count: int) -> int:
    """Return how many attributes a search looks up when `count` rules share an endpoint."""

    class Counting(dict[str, str]):
        looks = 0

        def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override]
            self.looks += 1
            return super().get(key, default)

    rules = [
        (("a",), Conditions(frozenset({"GET"}), "", {"customer": str(number), "region": "eu"}), number)
        for number in range(count)
    ]
    rules += [(("a",), Conditions(when={f"attribute-{number}": "x"}), -number) for number in range(1, count)]
    facts = Counting({"customer": "7", "region": "eu", "attribute-3": "x"})
    assert sorted(find(Trie(rules), "/a", "GET", "", facts)) == [-3, 7]
    return facts.looks


def test_the_work_does_not_grow_with_the_rules_of_one_endpoint() -> None:
    assert steps(10) == steps(5000)

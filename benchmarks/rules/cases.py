"""Rules in several arrangements, and requests that one or two of them match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from benchmarks.in_memory.scenarios import ALLOWING, DAY
from headgate.core.quota import Quota
from headgate.policy.compiled import Policy
from headgate.policy.envoy import Descriptor, DescriptorPolicy, Matching
from headgate.policy.envoy import load as load_envoy
from headgate.policy.loading import load
from headgate.policy.model import Rule, Ruleset
from headgate.policy.request import Request
from headgate.policy.selection import Selection

T = TypeVar("T")
Found = tuple[str, ...]
"""The names of the rules that apply to a request."""

USER, ADDRESS = "u42", "203.0.113.9"
EVERYONE = "everyone"
"""The rule that counts by address, for all paths."""
DOMAIN = "edge"
PER_DAY, PER_WEEK = ALLOWING[:2]


@dataclass(frozen=True, slots=True)
class Case:
    """Requests, and what must be found for them."""

    name: str
    request: Callable[[int], Any]
    """Returns a request for the rule with a number."""
    expected: Callable[[int], Found]
    everywhere: bool = False
    """Whether requests are for different rules, in random order; otherwise all are the same."""


@dataclass(frozen=True, slots=True)
class Built:
    """Compiled rules."""

    match: Callable[[Any], object]
    """The timed call."""
    found: Callable[[Any], Found]
    """Returns the names of rules in a result of `match`."""
    floor: Callable[[Any], object]
    """Looks up the distinctive part of each rule in a dict, for comparison."""
    seconds: dict[str, float]
    """How long it took to get there, by step."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How the rules differ from each other."""

    build: Callable[[int], Built]
    """Makes a number of rules."""
    cases: tuple[Case, ...]
    envoy: bool = False


def rules_of_endpoints(size: int) -> Policy:
    """Return `size` rules, each for another endpoint, and the last for every address."""
    return Policy(load(_yaml(size)))


def for_endpoint(number: int, principal: dict[str, str]) -> Request:
    """Return a request for the rule of that number among `rules_of_endpoints`."""
    return Request(principal, f"{_beginning(number)}/12345", "POST")


def _beginning(number: int) -> str:
    return f"/api/v{number % 10}/resource{number}"


def _yaml(size: int) -> str:
    rules = [
        f"- {{id: r{number}, limit: {PER_DAY.units}, window: 1d, endpoint: {_beginning(number)}/*}}"
        for number in range(size - 1)
    ]
    rules.append(f"- {{id: {EVERYONE}, limit: {PER_WEEK.units}, window: 7d, dimension: ip}}")
    return "\n".join(("version: 1", "rules:", *rules))


def _by_endpoint(size: int) -> Built:
    text = _yaml(size)
    ruleset, reading = _timed(lambda: load(text))
    policy, compiling = _timed(lambda: Policy(ruleset))
    find = {for_endpoint(number, {}).endpoint: number for number in range(size)}.get
    steps = {"rules read from YAML and checked": reading, "rules of many endpoints, compiled": compiling}
    return Built(*_asked(policy), lambda request: find(request.endpoint), steps)


def _by_attribute(size: int) -> Built:
    policy, compiling = _one_endpoint(size, lambda number: {"when": {"region": "eu", "customer": f"c{number}"}})
    find = {f"c{number}": number for number in range(size)}.get
    steps = {"rules of one endpoint, differing in `when`, compiled": compiling}
    return Built(*_asked(policy), lambda request: find(request.attributes["customer"]), steps)


def _by_tier(size: int) -> Built:
    policy, compiling = _one_endpoint(size, lambda number: {"tier": f"t{number}"})
    find = {f"t{number}": number for number in range(size)}.get
    steps = {"rules of one endpoint, differing in `tier`, compiled": compiling}
    return Built(*_asked(policy), lambda request: find(request.tier), steps)


def _one_endpoint(size: int, condition: Callable[[int], dict[str, Any]]) -> tuple[Policy, float]:
    quotas = (Quota(PER_DAY.units, DAY * 1_000_000),)
    rules = [Rule(f"r{number}", quotas, endpoint="/api/v1/orders/**", **condition(number)) for number in range(size)]
    return _timed(lambda: Policy(Ruleset(tuple(rules))))


def _asked(policy: Policy) -> tuple[Callable[[Request], Selection], Callable[[Selection], Found]]:
    return partial(policy.select, now=0), lambda selection: selection.enforced.rules


def _siblings(size: int) -> Built:
    limit = "rate_limit: {unit: day, requests_per_unit: 1000}"
    lines = [
        f"domain: {DOMAIN}",
        "descriptors:",
        f"- {{key: remote_address, {limit}}}",
        f"- {{key: plan, value: gold, descriptors: [{{key: user, {limit}}}]}}",
        *(f"- {{key: remote_address, value: {_address(number)}, {limit}}}" for number in range(size)),
    ]
    text = "\n".join(lines)
    policy, loading = _timed(lambda: load_envoy({"edge.yaml": text}))
    find = {(("remote_address", _address(number)),): number for number in range(size)}.get
    steps = {"Envoy descriptors, read from YAML, checked and compiled": loading}
    return Built(_matching(policy), _matched, lambda descriptors: find(descriptors[0].entries), steps)


def _matching(policy: DescriptorPolicy) -> Callable[[Sequence[Descriptor]], Matching]:
    return partial(policy.match, DOMAIN)


def _matched(matching: Matching) -> Found:
    return tuple("/".join(level.name for level in match.rule.path) if match.rule else "" for match in matching.matches)


def _address(number: int) -> str:
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def _descriptor(*entries: tuple[str, str]) -> Descriptor:
    return Descriptor(entries)


_GOLD = _descriptor(("plan", "gold"), ("user", USER))


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    start = perf_counter()
    made = work()
    return made, perf_counter() - start


ENDPOINTS = Arrangement(
    _by_endpoint,
    (
        Case("one rule", lambda number: for_endpoint(number, {"user": USER}), lambda number: (f"r{number}",)),
        Case(
            "two rules, by user and by address",
            lambda number: for_endpoint(number, {"user": USER, "ip": ADDRESS}),
            lambda number: (f"r{number}", EVERYONE),
        ),
        Case(
            "one rule, another in each request",
            lambda number: for_endpoint(number, {"user": USER}),
            lambda number: (f"r{number}",),
            everywhere=True,
        ),
    ),
)
ATTRIBUTES = Arrangement(
    _by_attribute,
    (
        Case(
            "one rule, all have the same endpoint and differ in `when`",
            lambda number: Request(
                {"user": USER}, "/api/v1/orders/12345", "POST", {"region": "eu", "customer": f"c{number}"}
            ),
            lambda number: (f"r{number}",),
        ),
    ),
)
TIERS = Arrangement(
    _by_tier,
    (
        Case(
            "one rule, all have the same endpoint and differ in `tier`",
            lambda number: Request({"user": USER}, "/api/v1/orders/12345", "POST", tier=f"t{number}"),
            lambda number: (f"r{number}",),
        ),
    ),
)
SIBLINGS = Arrangement(
    _siblings,
    (
        Case(
            "the value of a sibling",
            lambda number: [_descriptor(("remote_address", _address(number)))],
            lambda number: (f"remote_address_{_address(number)}",),
        ),
        Case(
            "no sibling's value, but their key",
            lambda _: [_descriptor(("remote_address", ADDRESS))],
            lambda _: ("remote_address",),
        ),
        Case(
            "two descriptors, one of two levels",
            lambda number: [_descriptor(("remote_address", _address(number))), _GOLD],
            lambda number: (f"remote_address_{_address(number)}", "plan_gold/user"),
        ),
        Case(
            "the value of a sibling, another in each request",
            lambda number: [_descriptor(("remote_address", _address(number)))],
            lambda number: (f"remote_address_{_address(number)}",),
            everywhere=True,
        ),
    ),
    envoy=True,
)
ARRANGEMENTS = (ENDPOINTS, ATTRIBUTES, TIERS, SIBLINGS)

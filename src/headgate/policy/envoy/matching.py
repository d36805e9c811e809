"""Which limits apply to a request: domain and descriptors in, limits out, descriptor by descriptor.

As in envoyproxy/ratelimit: see `DescriptorNode.find` for the order of matching and the rule of depth. A limit that
another one, of the same request, names in `replaces` does not apply, also if that one is a shadow or unlimited. A limit
that comes with the request (`Override`) applies instead of the configured one and of all that is configured with it;
domains that are not configured have no limits at all.

Where this differs:

- Keys of counters are injective. There, ``("a", "b_c")`` and ``("a_b", "c")`` count in one place, here they do not.
  The space of a limit is made of the domain and the path in the tree, the principal of the keys and values of the
  request. Values that share a threshold are represented by the pattern.
- An override with an unknown unit, or text that cannot be a key, makes that descriptor invalid, with a reason; there,
  the former ends the process.
- More hits than a limit could ever admit are refused without asking the store; there, they are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import msgspec

from headgate.config.problems import Finding
from headgate.core.errors import InvalidKey, InvalidQuota
from headgate.core.key import LITERAL, Principal, bounded, checked_principal
from headgate.core.numbers import short
from headgate.core.plan import Call, Limit, Plan, Verb
from headgate.policy.envoy.request import Descriptor, Entries, Unit
from headgate.policy.envoy.tree import DescriptorNode, DescriptorRule, cached_limit, rule_id
from headgate.policy.request import InvalidRequest

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class MatchOutcome(StrEnum):
    """The outcome of matching a descriptor."""

    LIMITED = "limited"
    """The store decides about `Match.limits`; the other outcomes need no store."""
    UNLIMITED = "unlimited"
    """It passes: its rule is unlimited."""
    UNMATCHED = "unmatched"
    """It passes: there is no limit for it."""
    REPLACED = "replaced"
    """It passes: the limit is replaced by that of another descriptor of the request."""
    BANNED = "banned"
    """It is over the limit, which is 0."""
    TOO_MANY = "too_many"
    """It is over the limit, which could never admit that many hits at once."""
    INVALID = "invalid"
    """It cannot be matched, see `Match.problem`: it counts as over the limit."""


class Match(msgspec.Struct, frozen=True, gc=False):
    """The limits of one descriptor."""

    outcome: MatchOutcome
    limits: Plan = ()
    """For the store, if limited."""
    hits: int = 0
    """The cost, or the refund; 0: a peek."""
    refund: bool = False
    rule: DescriptorRule | None = None
    """The rule behind the limits: `rule.limits` are in the order of `limits`."""
    entries: Entries = ()
    problem: str = ""

    @property
    def name(self) -> str:
        """The name of the (first) limit, if it has one."""
        if self.rule is None:
            return ""
        return self.rule.limits[0].name if self.rule.limits else self.rule.name

    @property
    def shadow_mode(self) -> bool:
        """Whether it only counts, and never refuses."""
        return self.rule is not None and self.rule.shadow_mode

    @property
    def quota_mode(self) -> bool:
        """Whether it refuses only if all others of this kind do."""
        return self.rule is not None and self.rule.quota_mode

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Added to the answer if the descriptor passes."""
        return _NOTHING if self.rule is None else self.rule.metadata

    @property
    def stat(self) -> tuple[str, ...]:
        """The parts of the metric's name, the domain first; empty if nothing matched."""
        return () if self.rule is None else self.rule.stat_of(self.entries)


class Matching(msgspec.Struct, frozen=True, gc=False):
    """The matches of a request."""

    matches: tuple[Match, ...]
    known: bool = True
    calls: tuple[Call, ...] = ()
    """The calls of the store, one for each match with limits."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Why descriptors are invalid."""
        return tuple([match.problem for match in self.matches if match.problem])


class DescriptorPolicy:
    """The compiled rules of all domains. Immutable."""

    __slots__ = ("domains", "warnings")

    def __init__(self, domains: Mapping[str, DescriptorNode], warnings: Iterable[Finding] = ()) -> None:
        self.domains = MappingProxyType(domains)
        """The trees by domain, in the order of the files."""
        self.warnings = tuple(warnings)
        """Warnings about the files."""

    def described(self) -> list[str]:
        """Return all limits as text, such as ``edge.remote_address: 100 per MINUTE``."""
        return [line for name, node in self.domains.items() for line in node.described(name)]

    def match(self, domain: str, descriptors: Sequence[Descriptor], hits_addend: int = 0) -> Matching:
        """Return the matches of a request. Raises InvalidRequest without a domain or descriptors.

        `hits_addend` is for descriptors without hits of their own; 0 means 1, as in the protocol.
        """
        if not domain:
            raise InvalidRequest("the domain is empty")
        if not descriptors:
            raise InvalidRequest("there are no descriptors")
        root = self.domains.get(domain)
        if root is None:
            return Matching((_UNMATCHED,) * len(descriptors), known=False)
        hits = hits_addend or 1
        matches = [_match(domain, root, descriptor, hits) for descriptor in descriptors]
        replaced: frozenset[str] = frozenset()
        for match in matches:
            if match.rule is not None and match.rule.replaces:
                replaced |= match.rule.replaces
        if replaced:
            matches = [_not_replaced(match, replaced) for match in matches]
        return Matching(tuple(matches), calls=tuple([_call(match) for match in matches if match.limits]))


def _match(domain: str, root: DescriptorNode, descriptor: Descriptor, hits: int) -> Match:
    entries, override = descriptor.entries, descriptor.override
    if descriptor.hits is not None:
        hits = descriptor.hits
    if type(hits) is not int or hits < 0:
        return _invalid(entries, f"hits must be a whole number, not {short(hits)}")
    rule = root.find(entries)
    if override is not None:
        try:
            rule = _overriding(None if rule is None else rule.id, domain, *override)
        except InvalidQuota as error:
            return _invalid(entries, f"the limit that came with the request: {error}")
    return _UNMATCHED if rule is None else _apply(rule, entries, hits, refund=descriptor.refund)


_UNMATCHED = Match(MatchOutcome.UNMATCHED)
_LIMITED, _CHECK = MatchOutcome.LIMITED, Verb.CHECK
"""A lookup in the class takes longer than most uses of its members."""


def principal_of(entries: Entries, shares: tuple[str, ...] = ()) -> Principal:
    """Return the principal: all keys and values, each after its length; for a value that shares, its pattern.

    Raises InvalidKey if it is longer than 65,536 characters, or not Unicode text.
    """
    if shares:
        parts = [
            f"{len(key)}:{key}{share or f'{len(value)}:{value}'}"
            for share, (key, value) in zip(shares, entries, strict=True)
        ]
    else:
        parts = [f"{len(key)}:{key}{len(value)}:{value}" for key, value in entries]
    text = "".join(parts) or "-"
    if len(text) > LITERAL or not text.isascii():
        return bounded(checked_principal(text))
    return text


def _apply(rule: DescriptorRule, entries: Entries, hits: int, *, refund: bool) -> Match:
    if not rule.counted:
        return Match(
            MatchOutcome.UNLIMITED if rule.banned is None else MatchOutcome.BANNED, (), hits, refund, rule, entries
        )
    if hits > rule.capacity:
        if not refund:
            return Match(MatchOutcome.TOO_MANY, (), hits, refund, rule, entries)
        hits = rule.capacity
    try:
        principal = principal_of(entries, rule.shares)
    except InvalidKey as error:
        return _invalid(entries, str(error))
    limits = tuple([Limit(place, principal, quota) for place, quota in rule.counted])
    return Match(_LIMITED, limits, hits, refund, rule, entries)


def _call(match: Match) -> Call:
    if not match.hits:
        return Call(Verb.PEEK, match.limits)
    return Call(Verb.REFUND if match.refund else _CHECK, match.limits, match.hits)


@lru_cache(maxsize=10_000)
def _overriding(replaced: str | None, domain: str, requests_per_unit: int, unit: int) -> DescriptorRule:
    """Return a rule for a limit that came with the request; it counts where the rule does that it replaces."""
    try:
        known = Unit(unit)
    except ValueError:
        units = ", ".join(f"{known.value} ({known.name})" for known in Unit)
        raise InvalidQuota(f"{short(unit)} is not a unit: use one of {units}") from None
    return DescriptorRule(replaced or rule_id(domain), domain, (), (cached_limit(requests_per_unit, known),))


def _not_replaced(match: Match, replaced: frozenset[str]) -> Match:
    rule = match.rule
    if rule is None or not any(limit.name in replaced for limit in rule.limits if limit.name):
        return match
    kept = tuple([limit for limit in rule.limits if not limit.name or limit.name not in replaced])
    if not kept:
        return Match(MatchOutcome.REPLACED, hits=match.hits, refund=match.refund, entries=match.entries)
    return _apply(replace(rule, limits=kept), match.entries, match.hits, refund=match.refund)


def _invalid(entries: Entries, problem: str) -> Match:
    shown = ", ".join(f"{key}={value}" for key, value in entries)
    return Match(MatchOutcome.INVALID, entries=entries, problem=f"descriptor {short(shown)}: {problem}")

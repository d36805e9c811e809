"""Rules with all that can be computed before any request is seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from hashlib import blake2b

import msgspec

from headgate.core.errors import InvalidRule
from headgate.policy.facts import together
from headgate.policy.lists import Entries
from headgate.policy.model import Entry, Rule
from headgate.policy.terms import Drafting, Overridden, Terms
from headgate.policy.trie import parsed


class PreparedRule:
    """A rule, ready to be applied.

    Raises:
        InvalidRule: its endpoint is malformed.
    """

    __slots__ = (
        *("dimension", "dimensions", "id", "is_enforced", "methods", "only", "rank", "replaces", "rule", "schedules"),
        "segments",
    )

    def __init__(self, rule: Rule, drafting: Drafting, *, rank: int = 0, ignore_case: bool = False) -> None:
        self.rule = rule
        self.rank = rank
        """Lower than that of all rules it replaces."""
        self.id, self.dimension, self.replaces = rule.id, rule.dimension, rule.replaces
        self.dimensions = rule.dimensions
        self.methods = rule.methods | {"HEAD"} if "GET" in rule.methods else rule.methods
        """All that it is for; none: all."""
        self.schedules = drafting.schedules(rule)
        self.is_enforced: bool | None = None
        """None: that depends on the principal."""
        if rule.shadow or rule.enforce_percent in {0, 100}:
            self.is_enforced = not rule.shadow and rule.enforce_percent == 100
        self.only: Entries | None = None
        """For whom it is; None: for all."""
        try:
            if rule.key_pattern:
                self.only = Entries((Entry(rule.dimension, rule.key_pattern),), ignore_case=ignore_case)
            self.segments = parsed(rule.endpoint, ignore_case=ignore_case)
        except InvalidRule as error:
            raise InvalidRule(f"rule {rule.id!r}: {error}") from None

    def value(self, facts: Mapping[str, str]) -> str | None:
        """Return who is counted; None: the request does not have all that the rule counts by."""
        if len(self.dimensions) == 1:
            return facts.get(self.dimension)
        return together([facts.get(name) for name in self.dimensions])


class Applied(msgspec.Struct, frozen=True, gc=False):
    """A rule as it applies to one request."""

    rule: PreparedRule
    value: str
    """Of the rule's dimension: who is counted."""
    terms: Terms
    is_enforced: bool
    """For this principal; else it is a shadow."""


class Special:
    """What is special about one user: a tier, or empty, and overrides by rule id."""

    __slots__ = ("overrides", "tier")

    def __init__(self, tier: str, overrides: Mapping[str, Overridden]) -> None:
        self.tier = tier
        self.overrides = overrides


def share_of(rule_id: str, value: str) -> int:
    """Return a number from 0 to 99, always the same for this rule and principal, and evenly spread.

    The rule is enforced for those whose number is below its `enforce_percent`: who is stays so when that is raised.
    """
    digest = blake2b(f"{rule_id}|{value}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 100


def replaced_among(rules: Iterable[PreparedRule]) -> dict[str, str]:
    """Return the ids of rules that do not apply, each with that of a rule that replaces it, of those that are enforced.

    A rule that is itself replaced does not apply, so that it replaces nothing.
    """
    replaced: dict[str, str] = {}
    for rule in sorted([rule for rule in rules if rule.replaces], key=_rank):
        if rule.id not in replaced:
            replaced |= dict.fromkeys(rule.replaces, rule.id)
    return replaced


def ranks_of(rules: Iterable[Rule]) -> dict[str, int]:
    """Return a number for each rule that replaces others, or is replaced: lower than the numbers of those it replaces.

    Raises InvalidRule: rules replace each other in a circle.
    """
    rules = tuple(rules)
    check_circles(rules)
    order = TopologicalSorter({rule.id: rule.replaces for rule in rules if rule.replaces and rule.enabled})
    return {rule_id: -place for place, rule_id in enumerate(order.static_order())}


def _rank(rule: PreparedRule) -> int:
    return rule.rank


def check_circles(rules: Iterable[Rule]) -> None:
    """Refuse rules that replace each other in a circle: where all of them match, none would apply."""
    circle = circle_among(rules)
    if circle:
        raise InvalidRule(f"rules replace each other in a circle: {' -> '.join([*circle, circle[0]])}")


def circle_among(rules: Iterable[Rule]) -> list[str]:
    """Return the ids of rules that replace each other in a circle, each the next one; empty if there is none."""
    replaces = {rule.id: rule.replaces for rule in rules if rule.replaces and rule.enabled}
    done: set[str] = set()
    for start in replaces:
        trail: dict[str, None] = {}
        stack = [(start, False)]
        while stack:
            rule_id, is_left = stack.pop()
            if is_left:
                del trail[rule_id]
                done.add(rule_id)
            elif rule_id in trail:
                return [*trail][[*trail].index(rule_id) :]
            elif rule_id not in done:
                trail[rule_id] = None
                stack.append((rule_id, True))
                stack += [(other, False) for other in sorted(replaces.get(rule_id, ()), reverse=True)]
    return []

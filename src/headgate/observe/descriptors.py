"""What the rules of Envoy descriptor trees are called in metrics."""

from __future__ import annotations

from headgate.policy.envoy.matching import Match
from headgate.policy.envoy.tree import Rule

MOST_BY_VALUE = 1000
"""The most names that have values of requests in them; clients could make any number of them."""


class DescriptorNames:
    """Names rules as envoyproxy/ratelimit does: the domain and the descriptors, with dots between them.

    Rules that ask for it (`detailed_metric`, `value_to_metric`) have values of the request in their names, and so have
    limits that come with the request. When there are too many of those, the names go without the values.
    """

    __slots__ = ("_by_rule", "_by_value")

    def __init__(self) -> None:
        self._by_rule: dict[str, str] = {}
        self._by_value: set[str] = set()

    def of(self, rule: Rule, match: Match) -> str:
        """Return the name."""
        name = self._by_rule.get(rule.id)
        if name is not None:
            return name
        if rule.stat is not None:
            name = self._by_rule[rule.id] = ".".join(rule.stat)
            return name
        name = ".".join(match.stat)
        if name in self._by_value:
            return name
        if len(self._by_value) < MOST_BY_VALUE:
            self._by_value.add(name)
            return name
        return ".".join([rule.domain, *(level.name for level in rule.path)]) if rule.path else f"{rule.domain}.override"

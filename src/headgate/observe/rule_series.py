"""The counters of rules: as many as there are rules, and not more than a monitoring system can take."""

from __future__ import annotations

from headgate.observe.families import RULE_DECISIONS, RULE_DEGRADED
from headgate.observe.table import Table

MOST_SERIES = 25_000
"""The most series of a table; rules that come later are counted together."""
OTHER = "other"
ALLOWED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED = "allowed", "denied", "shadow_allowed", "shadow_denied"
DEGRADED = "degraded"


class RuleSeries:
    """Counts what rules say.

    Args:
        table: where.
        most: see `MOST_SERIES`.
    """

    __slots__ = ("_most", "_places", "_table", "allowed")

    def __init__(self, table: Table, *, most: int = MOST_SERIES) -> None:
        self._table, self._most = table, most
        outcomes = ALLOWED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED, DEGRADED
        self._places: dict[str, dict[str, int]] = {outcome: {} for outcome in outcomes}
        self.allowed = self._places[ALLOWED]
        """The cells that count what passed, by rule, as far as they are known: for those who are in a hurry."""

    def count(self, rule: str, outcome: str) -> None:
        """Count one more decision of a rule."""
        place = self._places[outcome].get(rule)
        self._table.cells[self._found(rule, outcome) if place is None else place] += 1

    def _found(self, rule: str, outcome: str) -> int:
        labels = () if outcome == DEGRADED else (outcome,)
        family = RULE_DEGRADED if outcome == DEGRADED else RULE_DECISIONS
        if len(self._table) >= self._most and not self._table.has(family, rule, *labels):
            return self._table.place_of(family, OTHER, *labels)
        place = self._places[outcome][rule] = self._table.place_of(family, rule, *labels)
        return place

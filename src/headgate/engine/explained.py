"""Why a request gets the answer it would get, with the state that its limits are in. Nothing is taken."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headgate.core.decision import Decision
from headgate.engine.ruling import Ruling
from headgate.policy.explain import Explanation


class Explained(msgspec.Struct, frozen=True):
    """An explanation by the policy, joined with what the store knows."""

    explanation: Explanation
    """Every rule, whether it applies, and why or why not."""
    ruling: Ruling
    """What would be decided now."""
    states: Mapping[str, tuple[Decision, ...]]
    """What each limit of the rules that apply has now, by rule id."""


def joined(explanation: Explanation, ruling: Ruling) -> Explained:
    """Return an explanation with the answers of a peek."""
    states: dict[str, tuple[Decision, ...]] = {}
    for each in (*ruling.limits, *ruling.shadow):
        states[each.rule_id] = (*states.get(each.rule_id, ()), each.decision)
    return Explained(explanation, ruling, states)

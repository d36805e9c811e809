"""What both engines share: everything that does not wait."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from headgate.core.errors import InvalidRule, InvalidStore
from headgate.core.mode import Mode
from headgate.core.numbers import short
from headgate.core.plan import Limit, Plan
from headgate.engine.ruling import Reset
from headgate.live import LoadStatistics
from headgate.policy.compiled import Policy
from headgate.policy.live import LivePolicy, rules_file
from headgate.policy.model import Ruleset
from headgate.policy.prepared import rule_id_of
from headgate.policy.request import Request, principal_name
from headgate.policy.selection import Selection

Rules = str | os.PathLike[str] | Ruleset | Policy | LivePolicy
"""A file of rules, which is watched; rules; or a policy made of them."""
_WRITTEN = re.compile(r"\n|^\s*\{|:\s")
"""What the text of rules has, and the name of a file hardly."""


class Book:
    """The policy in force, whatever it was given as.

    Args:
        rules: see `Rules`.
        mode: what is answered while the store is away, where a rule does not say.
    """

    def __init__(self, rules: Rules, mode: Mode = Mode.LOCAL) -> None:
        self._mode = mode
        self._live: LivePolicy | None = None
        self._own = isinstance(rules, str | os.PathLike)
        if isinstance(rules, str | os.PathLike):
            if isinstance(rules, str) and _WRITTEN.search(rules) and not os.path.exists(rules):  # noqa: PTH110  any text
                raise InvalidRule("rules are given as the name of a file; for their text use load_rules(text)")
            rules = LivePolicy(rules_file(rules))
        if isinstance(rules, LivePolicy):
            live = self._live = rules
            self.policy: Callable[[], Policy] = lambda: live.value
        elif isinstance(rules, Ruleset | Policy):
            fixed = rules if isinstance(rules, Policy) else Policy(rules)
            self.policy = lambda: fixed
        else:
            raise InvalidRule(f"rules are a file, a Ruleset, a Policy or a LivePolicy, not {short(rules)}")

    def open(self) -> None:
        """Begin to watch a file, unless the caller does that."""
        if self._live and self._own:
            self._live.start()

    def mode_of(self, rule_id: str) -> Mode:
        """Return what is answered for a rule when the store does not answer."""
        compiled = self.policy().rules.get(rule_id)  # None: a reload has just removed it
        return (compiled.rule.on_store_failure if compiled else None) or self._mode

    def mode_of_limit(self, limit: Limit) -> Mode:
        """Return the same for a limit of a rule."""
        return self.mode_of(rule_id_of(limit.space))

    def statistics(self) -> LoadStatistics | None:
        """Return how loading the rules went; None where they do not change."""
        return self._live.statistics() if self._live else None

    def close(self) -> None:
        """Stop watching a file, unless the caller does that."""
        if self._live and self._own:
            self._live.close()


def checked_mode(on_store_failure: object) -> Mode:
    """Return a mode by its name."""
    for mode in Mode:
        if on_store_failure == mode:
            return mode
    raise InvalidStore(f"on_store_failure must be one of {', '.join(Mode)}, not {short(on_store_failure)}")


def to_reset(policy: Policy, request: Request, now: int) -> tuple[list[Plan], Reset]:
    """Return the plans that a reset is about: limits counted by a principal of the request, or of the rule it names."""
    selection = policy.plan(request, now, asking=False)
    names = {principal_name(name) for name in request.principal}
    plans, own, shared = [], dict[str, None](), dict[str, None]()
    for limits in (selection.enforced, *selection.shadow):
        chosen = []
        for limit, rule_id in zip(limits.plan, limits.rules, strict=True):
            if request.rule_id or not names.isdisjoint(policy.rules[rule_id].dimensions):
                chosen.append(limit)
                own[rule_id] = None
            else:
                shared[rule_id] = None
        if chosen:
            plans.append(tuple(chosen))
    return plans, Reset(tuple(own), tuple(shared))


def plans_of(selection: Selection) -> list[Plan]:
    """Return the plans of enforced and of shadow limits."""
    enforced = [selection.enforced.plan] if selection.enforced.plan else []
    return [*enforced, *(limits.plan for limits in selection.shadow)]

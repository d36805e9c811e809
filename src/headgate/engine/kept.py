"""A request whose plan is kept, for callers that ask the same again and again.

What a policy says about a request depends on the policy, which is an immutable snapshot, and on the time, where
overrides end. So it need not be worked out again before one of them changes; that is half of the cost of a decision.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import ref

from headgate.policy.compiled import Policy
from headgate.policy.facts import address_given, facts_of
from headgate.policy.request import Request
from headgate.policy.selection import UNMATCHED, Selection, select
from headgate.policy.terms import FOREVER


class KeptRequest:
    """A request, and what the policy that saw it last said about it. Not for several threads at once."""

    __slots__ = ("_policy", "_selection", "_until", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self._policy: Callable[[], Policy | None] = _nobody
        """A weak reference: what is kept must not keep old rules."""
        self._selection = UNMATCHED
        self._until = 0

    def selection(self, policy: Policy, now: int) -> Selection:
        """Return what `Policy.plan` returns; raises what it raises."""
        if policy is self._policy() and now < self._until:
            return self._selection
        request, until = self.request, FOREVER
        if request.rule_id:  # overrides end at times that are not looked for here
            return policy.plan(request, now)
        facts = facts_of(request, ignore_case=policy.ruleset.ignore_case)
        listed = policy.listed(facts, address_given(request)) if policy.has_lists else None
        if listed is None:
            applying = policy.applying(request, facts, now)
            until = min([applied.terms.until for applied in applying], default=FOREVER)
            listed = policy.marked(select(applying, request.cost), request)
        self._policy, self._selection, self._until = ref(policy), listed, until
        return listed


def _nobody() -> Policy | None:
    return None

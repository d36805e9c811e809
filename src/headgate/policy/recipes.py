"""What rules mean for requests of one kind, remembered: to work it out takes three times as long.

Requests are of one kind if they have the same endpoint, method and tier, and name the same principals and attributes:
the same rules apply to them, and only who is counted differs. That is so unless rules look at values: those with
`when`, lists, shadows, shares, and users for whom something is special. Such requests are not for this file; it says
so by returning None, and the policy works it out.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, TypeAlias

import msgspec

from headgate.core.key import LITERAL
from headgate.core.plan import MAX_COST, Limit
from headgate.core.quota import Quota
from headgate.policy.addresses import counted_by
from headgate.policy.facts import together
from headgate.policy.prepared import Applied
from headgate.policy.request import ENDPOINT, GLOBAL, Request
from headgate.policy.selection import Limits, Selection, Verdict, principal_of

MOST = 4096
"""Kinds that are remembered."""
LONGEST = 512
"""Characters of a kind: its endpoint, and all names. Longer ones are not remembered."""
_LIMITED = Verdict.LIMITED
_new = tuple.__new__

Kind: TypeAlias = tuple[Any, ...]


class Recipe(msgspec.Struct, frozen=True, gc=False):
    """How to make the plan of a request."""

    rules: tuple[str, ...]
    """Of each limit."""
    highest: int
    """The highest cost that all limits could admit."""
    has_ip: bool
    """Whether an address is to be read."""
    name: str
    """Of the principal that a single limit counts by; empty if there are several limits, or another one."""
    steps: tuple[tuple[tuple[str, ...], str, Quota], ...]
    """By what each limit counts, where its states live, and its quota."""
    known: dict[str, str]
    """What does not depend on who asks: the endpoint in canonical form, and everybody."""
    unmatched: tuple[str, ...]
    """See `Selection.unmatched_principals`."""


class Recipes:
    """All that are remembered, for one policy.

    Args:
        special: users about whom something is special.
    """

    __slots__ = ("_hits", "_recipes", "_special", "is_worth_it")

    def __init__(self, special: Container[str]) -> None:
        self._special = special
        self._recipes: dict[Kind, Recipe] = {}
        self._hits = 0
        self.is_worth_it = True
        """False: hardly a request is like another one, as where endpoints contain ids."""

    def __len__(self) -> int:
        """Return how many kinds of requests are remembered."""
        return len(self._recipes)

    def selection(self, request: Request) -> Selection | None:
        """Return what is to be done about a request; None if that has to be worked out, or is an error.

        Raises InvalidKey and InvalidRequest for principals that are not acceptable, as the policy would.
        """
        principal, attributes, cost = request.principal, request.attributes, request.cost
        try:
            recipe = self._recipes.get(_kind_of(request))
            if (
                recipe is None
                or type(principal) is not dict
                or type(attributes) is not dict
                or type(request.address) is not str
                or type(cost) is not int
                or not 0 <= cost <= recipe.highest
                or (self._special and principal.get("user") in self._special)
            ):
                return None
        except TypeError:  # something is not of the type that it should be
            return None
        for value in principal.values():
            if type(value) is not str or not value:
                return None
        for value in attributes.values():
            if type(value) is not str:
                return None
        self._hits += 1
        value = principal[recipe.name] if recipe.name else ""
        if not 0 < len(value) <= LITERAL or not value.isascii():
            return _several(recipe, request)
        _, place, quota = recipe.steps[0]
        # tuple.__new__ makes a named tuple in half the time
        limits = Limits((_new(Limit, (place, value, quota)),), recipe.rules)
        return Selection(_LIMITED, limits, (), "", recipe.unmatched)

    def remember(
        self, request: Request, facts: dict[str, str], applying: Sequence[Applied], selection: Selection
    ) -> None:
        """Remember what was worked out for a request, if it is the same for all of its kind."""
        kind = _kind_of(request)
        length = len(facts[ENDPOINT]) + sum([len(text) for text in kind if text is not None])
        if length > LONGEST or facts.get("user") in self._special:
            return
        for name in request.principal:
            if name not in facts:  # an alias: which of two is meant depends on their values
                return
        for applied in applying:
            if applied.rule.is_enforced is not True or not applied.rule.schedules.is_lasting:
                return
        steps = tuple([(each.rule.dimensions, *place) for each in applying for place in each.terms.places])
        if not steps:
            return
        if len(self._recipes) >= MOST:
            self.is_worth_it = self._hits > MOST
            self._recipes.clear()
            self._hits = 0
        name = steps[0][0][0]
        is_simple = (
            len(steps) == 1 == len(steps[0][0]) and name in request.principal and name not in {"ip", ENDPOINT, GLOBAL}
        )
        self._recipes[kind] = Recipe(
            sum([each.terms.rules for each in applying], ()),
            min(MAX_COST, *[each.terms.capacity for each in applying]),
            "ip" in request.principal,
            name if is_simple and "ip" not in request.principal else "",
            steps,
            {ENDPOINT: facts[ENDPOINT], GLOBAL: facts[GLOBAL]},
            selection.unmatched_principals,
        )


def _kind_of(request: Request) -> Kind:
    if request.attributes:
        return (request.endpoint, request.method, request.tier, *request.principal, None, *request.attributes)
    return (request.endpoint, request.method, request.tier, *request.principal)


def _several(recipe: Recipe, request: Request) -> Selection:
    facts = {**request.attributes, **request.principal, **recipe.known}
    if recipe.has_ip:
        facts["ip"] = counted_by(facts["ip"])
    plan = []
    for names, place, quota in recipe.steps:
        value = facts[names[0]] if len(names) == 1 else together([facts[name] for name in names]) or ""
        plan.append(Limit(place, principal_of(value), quota))
    return Selection(_LIMITED, Limits(tuple(plan), recipe.rules), (), "", recipe.unmatched)

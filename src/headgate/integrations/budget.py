"""What is limited: a `Budget` has quotas of its own, or names a rule of the engine, and says which requests count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeAlias, TypedDict

from headgate.core.errors import InvalidCost, UsageError
from headgate.core.key import checked_name
from headgate.core.numbers import short, whole
from headgate.core.plan import MAX_COST, Family
from headgate.core.quota import Quota

Quotas: TypeAlias = str | Quota | Iterable[str | Quota]
"""Text such as "100/minute" or "10/s burst 20; 5000/day", a quota, or several of either."""
QuotasOfKey: TypeAlias = Callable[[str], Quotas | Awaitable[Quotas]]
"""Returns the quotas of a key, such as those of a customer's plan."""
NamedFamily: TypeAlias = tuple[tuple[str, ...], Family]
"""Limits, and the name of each."""
cached = lru_cache(maxsize=4096)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Budget:
    """What is limited, and which requests count. Raises UsageError if it could never work.

    Functions get the framework's request. In an asynchronous application they can be coroutine functions.
    """

    limits: Quotas | QuotasOfKey | None = None
    """Quotas, or a function that returns the quotas of a key."""
    rule: str | None = None
    """Instead of quotas: the id of a rule of the engine; empty: all of its rules that apply."""
    name: str = ""
    """Budgets of the same name are one. Empty: each route has its own, named after its method and path."""
    key: Callable[..., Any] | None = None
    """Returns the key to count by or, for an engine's rules, principals by dimension. None: the identified caller."""
    cost: int | Callable[..., Any] = 1
    """How much a request takes; 0 takes nothing, and passes if anything is left."""
    exempt: Callable[..., Any] | None = None
    """Requests for which this is true are not limited."""
    count_when: Callable[..., Any] | None = None
    """Counts only requests whose response makes this true: ``lambda response: response.status_code == 401``.

    The cost is taken before the request is served and refunded if this is false, so requests in progress count and
    the limit holds however many arrive at once. A request without a response stays counted."""
    refund_on_error: bool = False
    """Whether an exception, or a status of 500 and above, costs nothing."""
    shadow: bool = False
    """Whether nothing is refused: `on_refused` is called only."""
    replaces: bool = False
    """Whether the limits for all routes do not apply to this one."""

    is_final: bool = field(init=False, repr=False, compare=False, default=True)
    """Whether the response cannot change what a request costs."""
    families: Callable[[str], NamedFamily] = field(init=False, repr=False, compare=False)
    """Returns the limits under the name of a route; there are none where they depend on the key."""

    def __post_init__(self) -> None:
        if (self.limits is None) == (self.rule is None):
            raise UsageError("set either limits, such as '100/minute', or rule, the id of a rule of the engine")
        if self.name:
            checked_name(self.name)
        if not callable(self.cost):
            whole("cost", self.cost, 0, MAX_COST, InvalidCost)
        for option in ("key", "exempt", "count_when"):
            function = getattr(self, option)
            if function is not None and not callable(function):
                raise UsageError(f"{option} must be a function, got {short(function)}")
        for option in ("refund_on_error", "shadow", "replaces"):
            if not isinstance(getattr(self, option), bool):  # the text "false" would be true
                raise UsageError(f"{option} must be True or False, got {short(getattr(self, option))}")
        family = None
        if self.limits is not None and not callable(self.limits):
            family = family_of(self.name or "default", self.limits)
            if not callable(self.cost) and self.cost:
                family.checked_cost(self.cost)
        object.__setattr__(self, "is_final", self.count_when is None and not self.refund_on_error)
        object.__setattr__(self, "families", cached(partial(_named, () if family is None else family.quotas)))

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions among its options."""
        options = (self.limits, self.key, self.cost, self.exempt, self.count_when)
        return tuple([each for each in options if callable(each)])

    def settles_like(self, other: Budget) -> bool:
        """Whether both refund the same requests."""
        return (self.count_when, self.refund_on_error) == (other.count_when, other.refund_on_error)

    def family(self, name: str, quotas: Quotas | None = None) -> NamedFamily:
        """Return the limits under a name, with the given quotas instead of its own."""
        if quotas is None:
            return self.families(name)
        family = _family_of_text(name, quotas) if isinstance(quotas, str) else family_of(name, quotas)
        return (name,) * len(family.quotas), family


class CallTerms(TypedDict, total=False):
    """The options of every decorator besides quotas; see `Budget`."""

    rule: str | None
    name: str
    key: Callable[..., Any] | None
    cost: int | Callable[..., Any]
    exempt: Callable[..., Any] | None
    refund_on_error: bool
    shadow: bool


class BudgetSettings(CallTerms, total=False):
    """The options of decorators of routes, which have responses, and limits for all of them."""

    count_when: Callable[..., Any] | None
    replaces: bool


def _named(quotas: Sequence[Quota], name: str) -> NamedFamily:
    return (name,) * len(quotas), Family(name, quotas)


def family_of(name: str, quotas: Quotas) -> Family:
    """Return the limits of quotas. Raises InvalidQuota."""
    parts = [quotas] if isinstance(quotas, str | Quota) else quotas
    if not isinstance(parts, Iterable) or isinstance(parts, bytes):
        Quota.parse(parts)  # raises the error
    found: list[Quota] = []
    for part in parts:
        found.extend([part] if isinstance(part, Quota) else Quota.parse(part))
    return Family(name, found)


_family_of_text = cached(family_of)

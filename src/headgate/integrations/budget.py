"""A `Budget`: quotas, or a rule of the engine, and the requests that count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
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


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Budget:
    """Quotas or a rule, and the requests that count. Raises UsageError if it could never work.

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
        if self.limits is not None and not callable(self.limits):
            self._check_quotas(family_of(self.name or "default", self.limits))

    def _check_quotas(self, family: Family) -> None:
        if not isinstance(self.limits, str):
            object.__setattr__(self, "limits", family.quotas)  # an iterator can be read once
        if not callable(self.cost) and self.cost:
            family.checked_cost(self.cost)

    @property
    def is_final(self) -> bool:
        """Whether the response cannot change what a request costs."""
        return self.count_when is None and not self.refund_on_error

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        options = (self.limits, self.key, self.cost, self.exempt, self.count_when)
        return tuple([each for each in options if callable(each)])


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


def family_of(name: str, limits: Quotas) -> Family:
    """Return the limits of quotas under a name. Raises InvalidQuota."""
    if isinstance(limits, str):
        return _family(name, limits)
    parts = [limits] if isinstance(limits, Quota) else limits
    if not isinstance(parts, Iterable) or isinstance(parts, bytes):
        Quota.parse(parts)  # raises the error
    quotas = [[part] if isinstance(part, Quota) else Quota.parse(part) for part in parts]
    return _family(name, tuple([quota for several in quotas for quota in several]))


@lru_cache(maxsize=4096)
def _family(name: str, quotas: str | tuple[Quota, ...]) -> Family:
    return Family(name, Quota.parse(quotas) if isinstance(quotas, str) else quotas)

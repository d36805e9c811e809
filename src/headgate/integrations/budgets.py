"""What is counted: budgets, and who decides on them by quotas alone.

A `Budget` says what is limited and on which terms: by quotas that are written down where it is used, or by a rule of an
engine. What decides by quotas is a `Counter`, which has the verbs of an engine: so the rest does not know which it is.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, TypeAlias, TypedDict

import msgspec

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import InvalidCost, UsageError
from headgate.core.key import checked_name
from headgate.core.mode import Mode
from headgate.core.numbers import short, whole
from headgate.core.plan import MAX_COST, Call, Family, Plan, Verb, checked_cost
from headgate.core.quota import Quota
from headgate.engine import Ruling
from headgate.policy.selection import Verdict
from headgate.stores.base import AsyncStore, Store
from headgate.stores.wrapping import refund_for

Quotas: TypeAlias = str | Quota | Iterable[str | Quota]
"""Text such as "100/minute" or "10/s burst 20; 5000/day", a quota, or several of either."""
QuotasOfKey: TypeAlias = Callable[[str], Quotas | Awaitable[Quotas]]
"""Says which quotas a key has: for plans that customers pay for, and the like."""
NamedFamily: TypeAlias = tuple[tuple[str, ...], Family]
"""Limits, and the name of each."""
KEPT_FAMILIES = 4096
"""Different quotas of `QuotasOfKey` that are kept, ready to use."""
NO_ROUTE = "-"
"""The route of requests for what is not there."""
_kept = lru_cache(maxsize=KEPT_FAMILIES)
_LIMITED = Verdict.LIMITED
_BUDGETS = "__headgate_budgets__"
"""The attribute by which a decorated view has its budgets."""
_LIMITED_AS = "__headgate_limited__"
"""The attribute by which a function has what a decorator made of it."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.:/-]+")
_NUMBERED = re.compile(r":[0-9]+$")
_LONGEST_NAME = 60
"""Characters of a name that is made of another one: it leaves room for a number at its end."""


def _named(quotas: Sequence[Quota], name: str) -> NamedFamily:
    return (name,) * len(quotas), Family(name, quotas)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Budget:
    """What is limited, and on which terms.

    All functions may be coroutine functions where the application is asynchronous. They get the request as the
    framework has it. Raises UsageError when it is made, for whatever could not work later.
    """

    limits: Quotas | QuotasOfKey | None = None
    """Quotas, or a function that says which ones a key has."""
    rule: str | None = None
    """Instead of quotas: the id of a rule of the engine; empty: all of its rules that apply."""
    name: str = ""
    """What has the same name shares a budget. Empty: each route has one of its own, named after its method and path."""
    key: Callable[..., Any] | None = None
    """Who is counted: returns text or, for the rules of an engine, principals by dimension. None: who asks."""
    cost: int | Callable[..., Any] = 1
    """How much a request takes; 0 takes nothing, and asks whether something is left."""
    exempt: Callable[..., Any] | None = None
    """Requests for which this is true are not limited."""
    count_when: Callable[..., Any] | None = None
    """Requests count only if this is true of their response, such as ``lambda response: response.status_code == 401``.

    The cost is taken before, and given back if it is not true. So never more pass than the limit says, however many
    come at once; while requests are under way, they count. Where there is no response, they go on counting."""
    refund_on_error: bool = False
    """Whether a request costs nothing that fails by an exception or with a status of 500 or above."""
    shadow: bool = False
    """Whether nothing is refused, and only told to `on_refused`."""
    replaces: bool = False
    """Whether the limits that are for all routes are not asked for this one."""

    is_final: bool = field(init=False, repr=False, compare=False, default=True)
    """Whether nothing that comes after a request changes what it costs."""
    is_plain: bool = field(init=False, repr=False, compare=False, default=True)
    """Whether no function has a say in what is asked, and the answer is not only tried out."""
    families: Callable[[str], NamedFamily] = field(init=False, repr=False, compare=False)
    """The limits, under the names of the routes that have this budget; none where a function says which ones."""

    def __post_init__(self) -> None:
        is_final = self.count_when is None and not self.refund_on_error
        object.__setattr__(self, "is_final", is_final)  # the instance is frozen; these are parts of its construction
        is_plain = not (self.key or self.exempt or self.shadow or callable(self.cost) or callable(self.limits))
        object.__setattr__(self, "is_plain", is_plain)
        if (self.limits is None) == (self.rule is None):
            raise UsageError("give either limits, such as '100/minute', or the id of a rule of the engine")
        if self.name:
            checked_name(self.name)
        if not callable(self.cost):
            whole("cost", self.cost, 0, MAX_COST, InvalidCost)
        for what in ("key", "exempt", "count_when"):
            function = getattr(self, what)
            if function is not None and not callable(function):
                raise UsageError(f"{what} is a function, not {short(function)}")
        for what in ("refund_on_error", "shadow", "replaces"):
            if not isinstance(getattr(self, what), bool):  # text such as "false" would be true
                raise UsageError(f"{what} is True or False, not {short(getattr(self, what))}")
        family = None
        if self.limits is not None and not callable(self.limits):
            family = family_of(self.name or "default", self.limits)
            if not callable(self.cost) and self.cost:
                family.checked_cost(self.cost)
        object.__setattr__(self, "families", _kept(partial(_named, () if family is None else family.quotas)))

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """All functions that are asked about requests."""
        found = (self.limits, self.key, self.cost, self.exempt, self.count_when)
        return tuple([each for each in found if callable(each)])

    def has_terms_of(self, other: Budget) -> bool:
        """Whether the same becomes of a request that took the same from either."""
        return (self.count_when, self.refund_on_error) == (other.count_when, other.refund_on_error)

    def named(self, name: str, quotas: Quotas | None = None) -> NamedFamily:
        """Return the limits under a name: those that a key has, or the same for all."""
        if quotas is None:
            return self.families(name)
        family = _family_of_text(name, quotas) if isinstance(quotas, str) else family_of(name, quotas)
        return (name,) * len(family.quotas), family


class CallTerms(TypedDict, total=False):
    """What decorators of anything may be told besides quotas: see `Budget`."""

    rule: str | None
    name: str
    key: Callable[..., Any] | None
    cost: int | Callable[..., Any]
    exempt: Callable[..., Any] | None
    refund_on_error: bool
    shadow: bool


class BudgetSettings(CallTerms, total=False):
    """What decorators of routes may be told: these have responses, and limits for all of them."""

    count_when: Callable[..., Any] | None
    replaces: bool


def family_of(name: str, quotas: Quotas) -> Family:
    """Return the limits that quotas describe. Raises InvalidQuota."""
    parts = [quotas] if isinstance(quotas, str | Quota) else quotas
    if not isinstance(parts, Iterable) or isinstance(parts, bytes):
        Quota.parse(parts)  # says what would be right
    found: list[Quota] = []
    for part in parts:
        found.extend([part] if isinstance(part, Quota) else Quota.parse(part))
    return Family(name, found)


@_kept
def _family_of_text(name: str, quotas: str) -> Family:
    return family_of(name, quotas)


@_kept
def name_of(route: str, nth: int = 1) -> str:
    """Return the name of the n-th budget of a route: what cannot be in a name is replaced, and no two are the same."""
    route = route or NO_ROUTE
    name = _NOT_IN_NAMES.sub("_", route)
    if name != route or len(name) > _LONGEST_NAME or _NUMBERED.search(name):  # as that of a second budget would be
        mark = blake2b(route.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
        name = f"{name[-_LONGEST_NAME + len(mark) + 1 :]}:{mark}"
    return name if nth == 1 else f"{name}:{nth}"


def name_of_route(methods: Iterable[str], path: str) -> str:
    """Return the name of a route; with HEAD and OPTIONS a framework answers for other methods."""
    own = sorted(set(methods).difference(("HEAD", "OPTIONS"))) or sorted(methods)
    return f"{'-'.join(own)}:{path}"


def name_of_function(function: Callable[..., Any]) -> str:
    """Return the name of a function, and of its budgets where there is no route."""
    function = inspect.unwrap(function)
    kind = type(function)
    return f"{getattr(function, '__module__', kind.__module__)}.{getattr(function, '__qualname__', kind.__qualname__)}"


def check_name(function: Callable[..., Any], budget: Budget) -> None:
    """Refuse quotas without a name for a function whose own name others may have, too. Raises UsageError."""
    inner = inspect.unwrap(function)
    is_bound = inspect.ismethod(inner) and not inspect.isclass(inner.__self__)
    if (
        budget.limits is None
        or budget.name
        or (inspect.isroutine(inner) and not is_bound and "<" not in inner.__qualname__)
    ):
        return
    raise UsageError(
        f"{name_of_function(function)} may be the name of several functions, which would share their limit: give it a "
        "name of its own, such as name='mails'"
    )


def own_budgets(view: Any) -> list[Budget]:
    """Return the budgets of a decorated view; none of another."""
    found: list[Budget] = getattr(view, _BUDGETS, [])
    return found


def decorated_with(view: Callable[..., Any], budget: Budget, limited: Callable[[list[Budget]], Any]) -> Any:
    """Return a view, made by `limited`, that has a budget besides those of the given one.

    The given one stays as it is: other routes may have it.
    """
    budgets = [budget, *own_budgets(view)]
    made = limited(budgets)
    setattr(made, _BUDGETS, budgets)
    vars(made).pop(_LIMITED_AS, None)  # of another limit of the same function
    with suppress(AttributeError):  # a bound method takes no notes
        setattr(view, _LIMITED_AS, made)
    return made


def check_order(endpoints: Iterable[Any]) -> None:
    """Refuse routes of a function that was limited only after it had become one: nothing limits them."""
    found = list(endpoints)
    for endpoint in found:
        limited = first = getattr(endpoint, _LIMITED_AS, None)
        while limited is not None and not any(each is limited for each in found):
            limited = getattr(limited, _LIMITED_AS, None)  # by a further limit
        if first is not None and limited is None:
            name = name_of_function(endpoint)
            raise UsageError(f"{name} is a route without its limit: put that below the decorator of the route")


class QuotaQuestion(msgspec.Struct, frozen=True, gc=False):
    """What a counter is asked: a key of a family or, for several, a plan; and how much is taken."""

    names: tuple[str, ...]
    """The name of the budget of each limit."""
    cost: int
    family: Family | None = None
    key: str = ""
    joined: Plan = ()
    """Of several families."""

    @property
    def plan(self) -> Plan:
        """All limits. Raises InvalidKey."""
        return self.family.plan(self.key) if self.family is not None else self.joined

    def call(self) -> Call:
        """Return the call that checks several families. Raises CostTooLarge, and InvalidCost."""
        if self.cost == 0 and type(self.cost) is int:
            return Call(Verb.PEEK, self.joined)
        return Call(Verb.CHECK, self.joined, checked_cost(self.cost, [limit.quota for limit in self.joined]))

    def ruling(self, decision: Decision) -> Ruling:
        """Return what a decision of the store means."""
        names = self.names
        return Ruling(decision.allowed, _LIMITED, decision, names[decision.index], names, matched=True)


class _Counts:
    """What both counters have."""

    def __init__(self, mode: str | None, clock: Clock) -> None:
        self.clock, self._mode = clock, Mode(mode) if mode in set(Mode) else Mode.LOCAL

    def mode_of(self, _: str) -> Mode:
        """Return what is answered while the store is away."""
        return self._mode


class Counter(_Counts):
    """Decides by quotas, for callers that may block; in memory, for all.

    Args:
        store: an opened one.
        mode: what it answers while it is away.
    """

    def __init__(self, store: Store, mode: str | None) -> None:
        super().__init__(mode, store.clock)
        self._store = store
        self.bound = _kept(store.bind)
        """What checks keys of a family."""

    def check(self, question: QuotaQuestion) -> Decision:
        """Take the cost from all limits if all admit it, else from none. Raises InvalidCost and InvalidKey."""
        family = question.family
        if family is None:
            return self._store.run(question.call())
        return self.bound(family)(question.key, question.cost)

    def give_back(self, question: QuotaQuestion, decision: Decision) -> Decision:
        """Give back what a decision on a question took."""
        return self._store.run(refund_for(question.plan, decision))

    def reset(self, question: QuotaQuestion) -> None:
        """Forget what was used."""
        self._store.run(Call(Verb.RESET, question.plan))

    def close(self) -> None:
        """Release what the store holds."""
        self._store.close()


class AsyncCounter(_Counts):
    """Decides by quotas, for callers in an event loop; see `Counter`."""

    def __init__(self, store: AsyncStore, mode: str | None) -> None:
        super().__init__(mode, store.clock)
        self._store = store
        self.bound = _kept(store.bind)

    async def check(self, question: QuotaQuestion) -> Decision:
        """See `Counter.check`."""
        family = question.family
        if family is None:
            return await self._store.run(question.call())
        return await self.bound(family)(question.key, question.cost)

    async def give_back(self, question: QuotaQuestion, decision: Decision) -> Decision:
        """See `Counter.give_back`."""
        return await self._store.run(refund_for(question.plan, decision))

    async def reset(self, question: QuotaQuestion) -> None:
        """See `Counter.reset`."""
        await self._store.run(Call(Verb.RESET, question.plan))

    async def close(self) -> None:
        """See `Counter.close`."""
        await self._store.close()

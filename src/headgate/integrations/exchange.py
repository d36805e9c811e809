"""One request: its properties, the budgets that it was checked against, and the rulings.

A request is checked against the budgets for all routes, and then against those of its route. If a later budget refuses
it, or its response does not count, what it took is refunded.

The methods are flows (see `headgate.flows`). They yield the results of engines and of the application's functions,
which may have to be awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from headgate.core.decision import Decision
from headgate.core.errors import CostTooLarge, InvalidCost, InvalidKey, UsageError
from headgate.core.numbers import short
from headgate.core.plan import Call, Plan, Verb, checked_cost
from headgate.engine import Ruling
from headgate.integrations.answers import Refusal
from headgate.integrations.budget import Budget, family_of
from headgate.integrations.routes import budget_name, function_name
from headgate.policy.request import USER, InvalidRequest, Request
from headgate.policy.selection import Verdict
from headgate.stores.refunds import refund_for
from headgate.web.errors import AmbiguousIdentity
from headgate.web.identity import Identity
from headgate.web.lines import HeaderLines

if TYPE_CHECKING:
    from headgate.integrations.limiter import LimiterBase

T = TypeVar("T")
Flow: TypeAlias = Generator[Any, Any, T]
DEFAULT = "default"
"""The name of the budget for all routes."""
_BAD_REQUESTS = (AmbiguousIdentity, CostTooLarge, InvalidRequest)
_CALLERS = ("user", "apikey", "ip")
"""Dimensions that identify the caller, the preferred one first."""


class ResponseStart(msgspec.Struct, frozen=True):
    """The argument of `count_when` where the framework has no object for a response."""

    status_code: int
    headers: Sequence[Any] = ()
    """Pairs, as they are sent."""


class BudgetCheck(msgspec.Struct, gc=False):
    """The check of a request against a budget, or against several that are decided together."""

    budget: Budget
    """The first of them; the others refund the same requests."""
    cost: Any = 1
    request: Request | None = None
    """For the engine; None: the store decides by the plan."""
    names: tuple[str, ...] = ()
    """The budget of each limit of the plan."""
    plan: Plan = ()
    ruling: Any = None
    is_settled: bool = False
    """Whether it was refunded, or is certain to count."""

    def take(self, limiter: LimiterBase) -> Flow[None]:
        """Take the cost from all limits, or from none. Raises InvalidCost."""
        if self.request is not None:
            self.ruling = yield limiter.engine.check(self.request)
        elif not self.cost:
            yield from self._decide(limiter, Call(Verb.PEEK, self.plan))
        else:
            cost = checked_cost(self.cost, [limit.quota for limit in self.plan])
            yield from self._decide(limiter, Call(Verb.CHECK, self.plan, cost))

    def refund(self, limiter: LimiterBase) -> Flow[None]:
        self.is_settled = True
        if self.request is not None:
            self.ruling = yield limiter.engine.refund(self.ruling)
        else:
            yield from self._decide(limiter, refund_for(self.plan, self.ruling.decision))

    def _decide(self, limiter: LimiterBase, call: Call) -> Flow[None]:
        decision: Decision = yield limiter.store.run(call)
        rule_id = self.names[decision.index]
        self.ruling = Ruling(decision.allowed, Verdict.LIMITED, decision, rule_id, self.names, matched=True)


class Exchange(msgspec.Struct, eq=False):
    limiter: LimiterBase
    subject: Any
    """The framework's request."""
    peer: str | None = None
    """The address that opened the connection; None on a Unix socket."""
    lines: HeaderLines = ()
    """Header lines, as bytes."""
    path: str = "/"
    """As sent, not decoded; set only for rules."""
    method: str = ""
    present: Callable[[Any], Any] | None = None
    """Converts `subject` into what functions of the application get; None: they get it as it is."""
    is_open: bool = False
    """Whether the response decides what the request costs."""
    has_left: bool = False
    """Whether the client has disconnected."""
    key: Any = ""
    """The last key that a key function returned."""
    covered: frozenset[Budget] | None = None
    """Budgets of decorators that are checked outside the view; None: the middleware has not looked for any yet."""
    _checks: list[BudgetCheck] = []
    _now: int = 0
    _identity: Identity | None = None
    _is_exempt: bool | None = None
    _names: dict[str, int] | None = None

    @property
    def request(self) -> Any:
        """The request, as functions of the application get it."""
        if self.present is not None:
            self.subject, self.present = self.present(self.subject), None
        return self.subject

    @property
    def identity(self) -> Identity:
        if self._identity is None:
            self._identity = self.limiter.identifier.identify(self.peer, self.lines, self.limiter.clock.now())
        return self._identity

    @contextmanager
    def covering(self, budgets: Sequence[Budget]) -> Iterator[list[Budget]]:
        """Yield the budgets that are not covered yet; within the block, all of them are."""
        before = self.covered or frozenset()
        self.covered = before.union(budgets)
        try:
            yield [each for each in budgets if each not in before]
        finally:
            self.covered = before

    def check(self, budgets: Sequence[Budget], route: str = DEFAULT) -> Flow[Refusal | None]:
        """Take the cost from the budgets of a route; returns the refusal, after refunding everything, or None."""
        limiter = self.limiter
        if not (budgets and limiter.enabled) or (yield from self._is_exempted()):
            return None
        try:
            for each in (yield from self._plan(budgets, route)):
                self._now = limiter.clock.now()
                yield from each.take(limiter)
                if each.ruling.allowed:
                    self._keep(each)
                    continue
                refusal = limiter.answers.refusal(each.ruling, self._now)
                if not each.budget.shadow:
                    break
                yield from self._report(msgspec.structs.replace(refusal, is_shadow=True))
            else:
                return None
        except _BAD_REQUESTS as error:
            refusal = limiter.answers.bad_request(error)
        for each in self._checks:
            if not each.is_settled:
                yield from each.refund(limiter)
        return (yield from self._report(refusal))

    @property
    def delay_us(self) -> int:
        """Microseconds until the request's turn in a leaky bucket's queue."""
        decisions = [ruling.decision for ruling in self._enforced_rulings() if ruling.decision is not None]
        return max([decision.delay_us for decision in decisions], default=0)

    def respond(self, response: Any, status: int) -> Flow[None]:
        """Refund what does not count according to the response."""
        for each in self._checks:
            budget = each.budget
            if each.is_settled or budget.is_final:
                continue
            counts = not (budget.refund_on_error and status >= 500)
            if counts and budget.count_when is not None:
                counts = bool((yield budget.count_when(response)))
            if not counts:
                yield from each.refund(self.limiter)
            each.is_settled = budget.count_when is not None or not counts

    def fail(self) -> Flow[None]:
        """Refund what does not count after an exception."""
        for each in self._checks:
            if not each.is_settled and each.budget.refund_on_error:
                yield from each.refund(self.limiter)

    def fields(self) -> list[Any]:
        return self.limiter.answers.fields(self._enforced_rulings(), self._now) if self._checks else []

    def _enforced_rulings(self) -> list[Ruling]:
        return [each.ruling for each in self._checks if not each.budget.shadow]

    def _is_exempted(self) -> Flow[bool]:
        exempt = self.limiter.exempt
        if self._is_exempt is None:
            self._is_exempt = exempt is not None and bool((yield exempt(self.request)))
        return self._is_exempt

    def _keep(self, check: BudgetCheck) -> None:
        """Note a check that took its cost. Raises UsageError if it is of a rule that limits nothing."""
        budget, ruling = check.budget, check.ruling
        if budget.rule and not ruling.matched and ruling.verdict is Verdict.UNLIMITED:
            raise UsageError(ruling.reason or f"rule {budget.rule!r} limits nothing")
        self._checks.append(check)
        if not budget.is_final:
            self.is_open = True

    def _report(self, refusal: Refusal) -> Flow[Refusal]:
        hook = self.limiter.on_refused
        if hook is not None:
            answer = yield hook(self.request, refusal)
            if answer is not None:
                return msgspec.structs.replace(refusal, answer=answer)
        return refusal

    def _plan(self, budgets: Sequence[Budget], route: str) -> Flow[list[BudgetCheck]]:
        """Return the checks to make: one for all that can be decided together; shadows come last."""
        enforced: list[BudgetCheck] = []
        shadows: list[BudgetCheck] = []
        for budget in budgets:
            is_unnamed = not budget.name and budget.rule is None
            name = self._next_name(route) if is_unnamed else budget.name  # exempt budgets have a number, too
            if budget.exempt is not None and (yield budget.exempt(self.request)):
                continue
            cost = budget.cost if not callable(budget.cost) else (yield from self._cost(budget.cost))
            function = budget.key or self.limiter.key
            key = None if function is None else (yield from self._key(function, by_rule=budget.rule is not None))
            if budget.rule is not None:
                check = BudgetCheck(budget, cost, self._request(budget.rule, cost, key))
            else:
                self.key = key or (self._caller_key() if function is None else self._address_key())
                limits: Any = (yield budget.limits(self.key)) if callable(budget.limits) else budget.limits
                plan = family_of(name, limits).plan(self.key)
                check = BudgetCheck(budget, cost, None, (name,) * len(plan), plan)
                earlier = (*self._checks, *enforced, *(shadows if budget.shadow else ()))
                if earlier and _is_repeated(check, earlier):
                    continue
            if budget.shadow:
                shadows.append(check)
            elif check.request is not None or not _join(enforced, check):
                enforced.append(check)
        return enforced + shadows if shadows else enforced

    def _next_name(self, route: str) -> str:
        if self._names is None:
            self._names = {route: 1}
            return budget_name(route)
        nth = self._names[route] = self._names.get(route, 0) + 1
        return budget_name(route, nth)

    def _cost(self, function: Callable[..., Any]) -> Flow[int]:
        cost = yield function(self.request)
        if type(cost) is not int or cost < 0:
            raise InvalidCost(
                f"a cost must be an integer of at least 0, got {short(cost)} from {function_name(function)}"
            )
        return cost

    def _key(self, function: Callable[..., Any], *, by_rule: bool) -> Flow[Any]:
        """Return the result of a key function; None: count by the address. Raises InvalidRequest, InvalidKey."""
        key = yield function(self.request)
        if key is not None and not isinstance(key, str) and not (by_rule and isinstance(key, Mapping)):
            right = "text, or principals by dimension" if by_rule else "text such as 'user:42'"
            raise InvalidKey(f"a key must be {right}, got {short(key)}")
        if not key and self.limiter.counts_by_address(function):
            return None
        self.key = key
        return key

    def _caller_key(self) -> str:
        if self.limiter.addresses is not None:
            return self._address_key()
        principal = self.identity.principal
        return next(f"{name}:{principal[name]}" for name in _CALLERS if name in principal)

    def _address_key(self) -> str:
        return self.limiter.key_of_address(self.peer, self.lines)

    def _request(self, rule_id: str, cost: Any, key: str | Mapping[str, str] | None) -> Request:
        """Return the request for a rule; what `key` has takes precedence over the identity."""
        principal, client, tier = self.identity.principal, self.identity.address.client, self.identity.tier
        if key is not None:
            principal = {**principal, **({USER: key} if isinstance(key, str) else key)}
        address = "" if client is None else client.text
        return Request(principal, self.path, self.method, cost=cost, tier=tier, address=address, rule_id=rule_id)


def _is_repeated(check: BudgetCheck, earlier: Iterable[BudgetCheck]) -> bool:
    """Whether equal limits were checked already: a budget that a router and a route share counts once."""
    terms = check.budget.count_when, check.budget.refund_on_error, check.cost
    plans = [each.plan for each in earlier if (each.budget.count_when, each.budget.refund_on_error, each.cost) == terms]
    checked = {(limit.space, limit.principal) for plan in plans for limit in plan}
    return all((limit.space, limit.principal) in checked for limit in check.plan)


def _join(enforced: Iterable[BudgetCheck], check: BudgetCheck) -> bool:
    """Add limits to an earlier check that is decided and settled in the same way, if there is one."""
    for earlier in enforced:
        is_final = check.budget.is_final and earlier.budget.is_final and earlier.request is None
        if is_final and earlier.cost == check.cost:
            earlier.names += check.names
            earlier.plan += check.plan
            return True
    return False

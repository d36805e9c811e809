"""One request: what a framework knows of it, the budgets that it was checked against, and what it took from them.

A request is checked against the budgets for all routes, and then against those of its route. If a later budget refuses
it, or its response does not count, it gets back what it took.

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
from headgate.integrations.answers import Refusal
from headgate.integrations.budget import Budget
from headgate.integrations.quota_engine import QuotaRequest
from headgate.integrations.routes import budget_name, function_name
from headgate.policy.request import USER, InvalidRequest, Request
from headgate.policy.selection import Verdict
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


class EmptyKey(InvalidRequest):
    """The key function returned nothing, so the request cannot be counted."""


class ResponseStart(msgspec.Struct, frozen=True):
    """What `count_when` gets where the framework has no object for a response."""

    status_code: int
    headers: Sequence[Any] = ()
    """Pairs, as they are sent."""


class BudgetCheck(msgspec.Struct, gc=False):
    """The check of a request against a budget, or against several that are decided together."""

    budget: Budget
    """The first of them; the others refund the same requests."""
    request: Any
    """A `Request`, or a `QuotaRequest`."""
    result: Any = None
    """The engine's ruling, or the decision about quotas."""
    is_settled: bool = False
    """Whether it was refunded, or is certain to count."""

    @property
    def outcome(self) -> tuple[tuple[str, ...], Decision | None]:
        """The name of each limit, and the decision about all of them."""
        result = self.result
        return (self.request.names, result) if self.budget.rule is None else (result.rules, result.decision)


class Exchange(msgspec.Struct, eq=False):
    """A request and its checks."""

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
        """The caller. Raises AmbiguousIdentity."""
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
        if not (budgets and limiter.enabled) or (limiter.exempt is not None and (yield from self._exempted())):
            return None
        try:
            for each in (yield from self._planned(budgets, route)):
                budget = each.budget
                self._now = limiter.clock.now()
                result = limiter.engine_of(budget).check(each.request)
                each.result = result = (yield result) if limiter.awaits else result
                if result.allowed:
                    self._keep(each)
                    continue
                ruling = result if budget.rule is not None else each.request.ruling(result)
                refusal = limiter.answers.refusal(ruling, self._now)
                if not budget.shadow:
                    break
                yield from self._report(msgspec.structs.replace(refusal, is_shadow=True))
            else:
                return None
        except _BAD_REQUESTS as error:
            refusal = limiter.answers.bad_request(error)
        for each in self._checks:
            if not each.is_settled:
                yield from self._refund(each)
        return (yield from self._report(refusal))

    @property
    def delay_us(self) -> int:
        """Microseconds until the request's turn in a leaky bucket's queue."""
        decisions = [decision for _, decision in self._enforced()]
        return max([decision.delay_us for decision in decisions if decision is not None], default=0)

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
                yield from self._refund(each)
            each.is_settled = budget.count_when is not None or not counts

    def fail(self) -> Flow[None]:
        """Refund what does not count after an exception."""
        for each in self._checks:
            if not each.is_settled and each.budget.refund_on_error:
                yield from self._refund(each)

    def fields(self) -> list[Any]:
        """Return the header fields of the response."""
        checks, answers = self._checks, self.limiter.answers
        if not checks:
            return []
        if len(checks) > 1 or checks[0].budget.shadow:
            return answers.joint_fields(self._enforced(), self._now)
        return answers.fields(*checks[0].outcome, self._now)

    def _enforced(self) -> list[tuple[tuple[str, ...], Decision | None]]:
        return [each.outcome for each in self._checks if not each.budget.shadow]

    def _exempted(self) -> Flow[bool]:
        if self._is_exempt is None:
            assert self.limiter.exempt is not None  # noqa: S101  the caller has checked
            self._is_exempt = bool((yield self.limiter.exempt(self.request)))
        return self._is_exempt

    def _keep(self, check: BudgetCheck) -> None:
        """Note a check that took its cost. Raises UsageError if it is of a rule that limits nothing."""
        budget, result = check.budget, check.result
        if budget.rule and not result.matched and result.verdict is Verdict.UNLIMITED:
            raise UsageError(result.reason or f"rule {budget.rule!r} limits nothing")
        self._checks.append(check)
        if not budget.is_final:
            self.is_open = True

    def _report(self, refusal: Refusal) -> Flow[Refusal]:
        """Call `on_refused`; returns the refusal with its answer."""
        hook = self.limiter.on_refused
        if hook is not None:
            answer = yield hook(self.request, refusal)
            if answer is not None:
                return msgspec.structs.replace(refusal, answer=answer)
        return refusal

    def _refund(self, check: BudgetCheck) -> Flow[None]:
        check.is_settled = True
        engine, by_rule = self.limiter.engine_of(check.budget), check.budget.rule is not None
        check.result = yield engine.refund(check.result) if by_rule else engine.refund(check.request, check.result)

    def _planned(self, budgets: Sequence[Budget], route: str) -> Flow[list[BudgetCheck]]:
        """Return the checks to make: one for all that can be decided together; shadows come last."""
        enforced: list[BudgetCheck] = []
        shadows: list[BudgetCheck] = []
        for budget in budgets:
            is_unnamed = not budget.name and budget.rule is None
            name = self._next_name(route) if is_unnamed else budget.name  # exempt budgets have a number, too
            if budget.exempt is not None and (yield budget.exempt(self.request)):
                continue
            cost = budget.cost if not callable(budget.cost) else (yield from self._cost(budget.cost))
            if budget.rule is not None:
                request: Any = self._request(budget, cost, (yield from self._principal(budget)))
            else:
                key = (yield from self._key(budget)) if budget.key or self.limiter.key else self._caller_key()
                quotas = (yield budget.limits(key)) if callable(budget.limits) else None
                names, family = budget.family(name, quotas)
                request = QuotaRequest(names, cost, family, key)
                earlier = (*self._checks, *enforced, *(shadows if budget.shadow else ()))
                if earlier and _is_repeated(budget, request, earlier):
                    continue
            if budget.shadow:
                shadows.append(BudgetCheck(budget, request))
            elif budget.rule is not None or not _join(enforced, budget, request):
                enforced.append(BudgetCheck(budget, request))
        return enforced + shadows if shadows else enforced

    def _next_name(self, route: str) -> str:
        """Return the name of the next unnamed budget of a route."""
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

    def _key(self, budget: Budget) -> Flow[str]:
        """Return the key of the key function."""
        function = budget.key or self.limiter.key
        assert function is not None  # noqa: S101  the caller has checked
        key = yield function(self.request)
        if key is not None and not isinstance(key, str):
            raise InvalidKey(f"a key must be text such as 'user:42', got {short(key)}")
        self.key = found = self._address_key() if not key and self.limiter.counts_by_address(function) else str(key)
        return found

    def _caller_key(self) -> str:
        """Return the key of the identified caller."""
        limiter = self.limiter
        if limiter.addresses is not None:
            return self._address_key() if limiter.addresses.header else limiter.key_of_peer(self.peer)
        principal = self.identity.principal
        return next(f"{name}:{principal[name]}" for name in _CALLERS if name in principal)

    def _address_key(self) -> str:
        return self.limiter.key_of_address(self.peer, self.lines)

    def _principal(self, budget: Budget) -> Flow[Mapping[str, str]]:
        """Return the caller by dimension."""
        principal, function = self.identity.principal, budget.key or self.limiter.key
        if function is None:
            return principal
        key = self.key = yield function(self.request)
        if isinstance(key, Mapping) and key:
            return {**principal, **key}
        if key and not isinstance(key, str):
            raise InvalidKey(f"a key must be text, or principals by dimension, got {short(key)}")
        return {**principal, USER: key} if key or not self.limiter.counts_by_address(function) else principal

    def _request(self, budget: Budget, cost: Any, principal: Mapping[str, str]) -> Request:
        client, tier = self.identity.address.client, self.identity.tier
        address = "" if client is None else client.text
        rule_id = budget.rule or ""
        return Request(principal, self.path, self.method, cost=cost, tier=tier, address=address, rule_id=rule_id)


def _is_repeated(budget: Budget, request: QuotaRequest, earlier: Iterable[BudgetCheck]) -> bool:
    """Whether equal limits were checked already: a budget that a router and a route share counts once."""
    alike = [
        each.request.plan
        for each in earlier
        if each.budget.rule is None and each.budget.settles_like(budget) and each.request.cost == request.cost
    ]
    checked = {(limit.space, limit.principal) for plan in alike for limit in plan}
    return all((limit.space, limit.principal) in checked for limit in request.plan)


def _join(enforced: Iterable[BudgetCheck], budget: Budget, request: QuotaRequest) -> bool:
    """Add limits to an earlier check that is decided and settled in the same way, if there is one."""
    for earlier in enforced:
        first = earlier.request
        is_final = budget.is_final and earlier.budget.is_final and earlier.budget.rule is None
        if is_final and first.cost == request.cost:
            plan, names = first.plan + request.plan, first.names + request.names
            earlier.request = QuotaRequest(names, first.cost, joined=plan)
            return True
    return False

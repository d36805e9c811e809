"""One request on its way through a gate: what it is asked about, what it took, and what of that it keeps.

It *enters* under the budgets that are for all routes, and then under those of its own route. When its response is
known, or it failed, what should not have counted is given back. A request passes all of its budgets or takes from none:
what earlier ones took is given back when a later one refuses.

All of that is flows (see `headgate.flows`). They yield what somebody returned who may have to be waited for: whoever
decides, or a function of the application. Gates differ in whether they wait.
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
from headgate.integrations.budgets import Budget, QuotaQuestion, name_of, name_of_function
from headgate.policy.request import USER, InvalidRequest, Request
from headgate.policy.selection import Verdict
from headgate.web.errors import AmbiguousIdentity
from headgate.web.identity import Identity
from headgate.web.lines import HeaderLines

if TYPE_CHECKING:
    from headgate.integrations.gate import Gatekeeping

T = TypeVar("T")
Flow: TypeAlias = Generator[Any, Any, T]
"""Yields values, or awaitables in an event loop, and is sent what they are."""
DEFAULT = "default"
"""The name of the budget that is for all routes."""
UNREADABLE = (AmbiguousIdentity, CostTooLarge, InvalidRequest)
"""What a client's request may be: it is answered with 400."""
UNDECIDED: Any = object()
"""What is neither a refusal nor None: the request has to `enter`."""
_NAMED = ("user", "apikey", "ip")
"""Who asks, the best name first."""


class EmptyKey(InvalidRequest):
    """The key function returned nothing for a request: nobody is counted by no key, so it does not pass."""


class Answer(msgspec.Struct, frozen=True):
    """What `count_when` gets where the framework has no object for a response."""

    status_code: int
    headers: Sequence[Any] = ()
    """Pairs, as they are sent."""


class Asked(msgspec.Struct, gc=False):
    """Budgets that are decided by one question."""

    budget: Budget
    """The first of them: they are alike in what comes afterwards."""
    question: Any
    """A `QuotaQuestion` for a counter, a `Request` for an engine."""
    answer: Any = None
    """The decision of a counter, or the ruling of an engine."""
    is_settled: bool = False
    """Whether it was given back, or it is certain that it counts."""


class Visit(msgspec.Struct, eq=False):
    """One request on its way through a gate, and what a framework knows about it."""

    gate: Gatekeeping
    subject: Any
    """The request, as the framework has it."""
    peer: str | None = None
    """The address that opened the connection; None on a Unix socket."""
    lines: HeaderLines = ()
    """Header lines, as bytes."""
    path: str = "/"
    """As it was sent, not decoded; only where rules decide."""
    method: str = ""
    present: Callable[[Any], Any] | None = None
    """Makes of `subject` what functions of the application want to see; None: they see it as it is."""
    is_open: bool = False
    """Whether the response decides what it costs."""
    has_left: bool = False
    """Whether the client has hung up."""
    refused: Refusal | None = None
    """What `enter` is to return, where it was refused before that."""
    key: Any = ""
    """What a key function returned last."""
    _asked: list[Asked] = []
    _now: int = 0
    _identity: Identity | None = None
    _is_exempt: bool | None = None
    _names: dict[str, int] | None = None
    _ahead: set[Budget] | None = None

    @property
    def request(self) -> Any:
        """The request, as functions of the application see it."""
        if self.present is not None:
            self.subject, self.present = self.present(self.subject), None
        return self.subject

    @property
    def identity(self) -> Identity:
        """Who asks. Raises AmbiguousIdentity."""
        if self._identity is None:
            self._identity = self.gate.identifier.identify(self.peer, self.lines, self.gate.clock.now())
        return self._identity

    def ask(self, budgets: Sequence[Budget]) -> None:
        """Note that the budgets of a decorated view are asked before it is called; it need not do that itself."""
        self._ahead = (self._ahead or set()).union(budgets)

    def has_asked(self, budgets: Sequence[Budget]) -> bool:
        """Whether that was noted."""
        return self._ahead is not None and self._ahead.issuperset(budgets)

    @contextmanager
    def asking(self, budgets: Sequence[Budget]) -> Iterator[list[Budget]]:
        """Yield those of a decorated view's budgets that nobody asks; within the block, views inside do not ask any."""
        before = self._ahead or set()
        self._ahead = before.union(budgets)
        try:
            yield [each for each in budgets if each not in before]
        finally:
            self._ahead = before

    def plain(self, budgets: Sequence[Budget], route: str) -> Any:
        """Return the one question of a request, where no function of the application has a say in it; else None.

        It is what `enter` would ask of the only budget. Whoever asks it tells `answered`. Raises one of `UNREADABLE`.
        """
        gate = self.gate
        if self._asked or not gate.is_plain or len(budgets) != 1 or not gate.enabled:
            return None
        budget = budgets[0]
        if not budget.is_plain:
            return None
        cost: Any = budget.cost
        self._now = gate.clock.now()
        if budget.rule is not None:
            return self._request(budget, cost, self.identity.principal)
        names, family = budget.families(budget.name or self._name(route))
        return QuotaQuestion(names, cost, family, self._own_key())

    def at_once(self, budgets: Sequence[Budget], route: str = DEFAULT) -> Any:
        """Take what budgets of a route cost; returns the refusal, if it is one, or `UNDECIDED`.

        It is decided where no function of the application has a say, and nobody has to be waited for. Otherwise, let it
        `enter`, which knows whether it was refused here.
        """
        if not budgets:
            return None
        gate = self.gate
        if gate.waits or self.refused is not None:
            return UNDECIDED
        try:
            question = self.plain(budgets, route)
            if question is None:
                return UNDECIDED
            refusal = self.answered(Asked(budgets[0], question, gate.decider_of(budgets[0]).check(question)))
        except UNREADABLE as error:
            refusal = gate.answers.unreadable(error)
        if refusal is None or gate.on_refused is None:  # it is the first question: there is nothing to give back
            return refusal
        self.refused = refusal
        return UNDECIDED

    def enter(self, budgets: Iterable[Budget], route: str = DEFAULT) -> Flow[Refusal | None]:
        """Take what budgets of a route cost; returns the refusal, if it is one."""
        gate = self.gate
        if self.refused is not None:  # of these budgets: others that it meets, if it goes on, are asked again
            refused, self.refused = self.refused, None
            return (yield from self.refuse(refused))
        if not gate.enabled:
            return None
        if gate.exempt is not None:
            if self._is_exempt is None:
                self._is_exempt = bool((yield gate.exempt(self.request)))
            if self._is_exempt:
                return None
        try:
            asked = yield from self._questions(budgets, route)
            refusal = yield from self._decided(asked)
        except UNREADABLE as error:
            refusal = gate.answers.unreadable(error)
        return None if refusal is None else (yield from self.refuse(refusal))

    def refuse(self, refusal: Refusal) -> Flow[Refusal]:
        """Give back what earlier budgets took: a request that is refused takes nothing. Returns what is answered."""
        for each in self._asked:
            if not each.is_settled:
                each.is_settled = True
                each.answer = yield self._refund(each)
        return (yield from self._told(refusal))

    @property
    def delay_us(self) -> int:
        """Microseconds until it is the request's turn, where a leaky bucket queues."""
        decisions = [decision for _, decision in self._enforced()]
        return max([decision.delay_us for decision in decisions if decision is not None], default=0)

    def respond(self, response: Any, status: int) -> Flow[None]:
        """Give back what does not count, now that the response is known."""
        for each in self._asked:
            budget = each.budget
            if each.is_settled or budget.is_final:
                continue
            counts = not (budget.refund_on_error and status >= 500)
            if counts and budget.count_when is not None:
                counts = bool((yield budget.count_when(response)))
            each.is_settled = budget.count_when is not None or not counts
            if not counts:
                each.answer = yield self._refund(each)

    def fail(self) -> Flow[None]:
        """Give back what does not count, now that there was an exception."""
        for each in self._asked:
            if not each.is_settled and each.budget.refund_on_error:
                each.is_settled = True
                each.answer = yield self._refund(each)

    def fields(self) -> list[Any]:
        """Return the header fields of the response."""
        asked, answers = self._asked, self.gate.answers
        if not asked:
            return []
        only = asked[0]
        if len(asked) > 1 or only.budget.shadow:
            return answers.fields_of(self._enforced(), self._now)
        return answers.fields(*_outcome_of(only), self._now)

    def _enforced(self) -> list[tuple[tuple[str, ...], Decision | None]]:
        """Return what is not only tried out: the name of each limit, and the decision."""
        return [_outcome_of(each) for each in self._asked if not each.budget.shadow]

    def _decided(self, asked: Iterable[Asked]) -> Flow[Refusal | None]:
        gate = self.gate
        for each in asked:
            self._now = gate.clock.now()
            answer = gate.decider_of(each.budget).check(each.question)
            each.answer = (yield answer) if gate.waits else answer
            refusal = self.answered(each)
            if refusal is not None and not each.budget.shadow:
                return refusal
            if refusal is not None:
                yield from self._told(msgspec.structs.replace(refusal, is_shadow=True))
        return None

    def answered(self, asked: Asked) -> Refusal | None:
        """Note what was answered to a question; returns the refusal, if it is one."""
        budget, answer = asked.budget, asked.answer
        if not answer.allowed:
            ruling = answer if budget.rule is not None else asked.question.ruling(answer)
            return self.gate.answers.refusal(ruling, self._now)
        if budget.rule and not answer.matched and answer.verdict is Verdict.UNLIMITED:
            raise UsageError(answer.reason or f"rule {budget.rule!r} limits nothing")
        self._asked.append(asked)
        if not budget.is_final:
            self.is_open = True
        return None

    def _told(self, refusal: Refusal) -> Flow[Refusal]:
        hook = self.gate.on_refused
        if hook is not None:
            answer = yield hook(self.request, refusal)
            if answer is not None:
                return msgspec.structs.replace(refusal, answer=answer)
        return refusal

    def _refund(self, asked: Asked) -> Any:
        """Begin to give back what a question took."""
        decider = self.gate.decider_of(asked.budget)
        if asked.budget.rule is not None:
            return decider.refund(asked.answer)
        return decider.give_back(asked.question, asked.answer)

    def _questions(self, budgets: Iterable[Budget], route: str) -> Flow[list[Asked]]:
        """Return what is to be asked: what can be decided together is one question; shadows come last."""
        enforced: list[Asked] = []
        shadows: list[Asked] = []
        for budget in budgets:
            name = (
                budget.name if budget.name or budget.rule is not None else self._name(route)
            )  # counts the exempt, too
            if budget.exempt is not None and (yield budget.exempt(self.request)):
                continue
            cost = budget.cost if not callable(budget.cost) else (yield from self._cost(budget.cost))
            if budget.rule is not None:
                question: Any = self._request(budget, cost, (yield from self._principal(budget)))
            else:
                key = (yield from self._key(budget)) if budget.key or self.gate.key else self._own_key()
                quotas = (yield budget.limits(key)) if callable(budget.limits) else None
                names, family = budget.named(name, quotas)
                question = QuotaQuestion(names, cost, family, key)
                earlier = (*self._asked, *enforced, *(shadows if budget.shadow else ()))
                if earlier and _is_asked(budget, question, earlier):
                    continue
            if budget.shadow:
                shadows.append(Asked(budget, question))
            elif budget.rule is not None or not _joined(enforced, budget, question):
                enforced.append(Asked(budget, question))
        return enforced + shadows if shadows else enforced

    def _name(self, route: str) -> str:
        """Return the name of the next budget of a route."""
        if self._names is None:
            self._names = {route: 1}
            return name_of(route)
        nth = self._names[route] = self._names.get(route, 0) + 1
        return name_of(route, nth)

    def _cost(self, function: Callable[..., Any]) -> Flow[int]:
        """Return the cost that a function finds."""
        cost = yield function(self.request)
        if type(cost) is not int or cost < 0:
            name = name_of_function(function)
            raise InvalidCost(f"a cost is a whole number, 0 or above, not {short(cost)}, which {name} returned")
        return cost

    def _key(self, budget: Budget) -> Flow[str]:
        """Return the key that a function finds."""
        function = budget.key or self.gate.key
        assert function is not None  # noqa: S101  whoever asks has looked
        key = yield function(self.request)
        if key is not None and not isinstance(key, str):
            raise InvalidKey(f"a key is text, such as 'user:42', not {short(key)}: format it first")
        self.key = found = self._address_key() if not key and self.gate.empty_key(budget) else str(key)
        return found

    def _own_key(self) -> str:
        """Return the key of the client."""
        gate = self.gate
        if gate.addresses is not None:
            return self._address_key() if gate.addresses.header else gate.key_of_peer(self.peer)
        principal = self.identity.principal
        return next(f"{name}:{principal[name]}" for name in _NAMED if name in principal)

    def _address_key(self) -> str:
        return self.gate.key_of_address(self.peer, self.lines)

    def _principal(self, budget: Budget) -> Flow[Mapping[str, str]]:
        """Return who asks, by dimension."""
        principal, function = self.identity.principal, budget.key or self.gate.key
        if function is None:
            return principal
        key = self.key = yield function(self.request)
        if isinstance(key, Mapping) and key:
            return {**principal, **key}
        if key and not isinstance(key, str):
            raise InvalidKey(f"a key is text, or principals by dimension, not {short(key)}")
        return {**principal, USER: key} if key or not self.gate.empty_key(budget) else principal

    def _request(self, budget: Budget, cost: Any, principal: Mapping[str, str]) -> Request:
        """Return what an engine is asked."""
        client, tier = self.identity.address.client, self.identity.tier
        address = "" if client is None else client.text
        about = principal, self.path, self.method
        return Request(*about, cost=cost, tier=tier, address=address, rule_id=budget.rule or "")


def _outcome_of(asked: Asked) -> tuple[tuple[str, ...], Decision | None]:
    """Return the name of each limit, and the decision about them."""
    answer = asked.answer
    return (asked.question.names, answer) if asked.budget.rule is None else (answer.rules, answer.decision)


def _is_asked(budget: Budget, question: QuotaQuestion, earlier: Iterable[Asked]) -> bool:
    """Whether a question is asked already, on the same terms: a budget that a router and a route share counts once."""
    counted = [each for each in earlier if each.budget.rule is None and each.budget.has_terms_of(budget)]
    alike = [each for each in counted if each.question.cost == question.cost]
    places = {(limit.space, limit.principal) for each in alike for limit in each.question.plan}
    return all((limit.space, limit.principal) in places for limit in question.plan)


def _joined(enforced: Iterable[Asked], budget: Budget, question: QuotaQuestion) -> bool:
    """Whether a question could be made part of an earlier one: nothing that comes later tells them apart."""
    for earlier in enforced:
        first = earlier.question
        is_final = budget.is_final and earlier.budget.is_final and earlier.budget.rule is None
        if is_final and first.cost == question.cost:
            plan, names = first.plan + question.plan, first.names + question.names
            earlier.question = QuotaQuestion(names, first.cost, joined=plan)
            return True
    return False

"""One request on its way through a gate: what it is asked about, what it took, and what of that it keeps.

It *enters* under the budgets that are for all routes, and then under those of its own route. When its response is
known, or it failed, what should not have counted is given back. A request passes all of its budgets or takes from none:
what earlier ones took is given back when a later one refuses.

All of that is flows (see `headgate.flows`). They yield what somebody returned who may have to be waited for: whoever
decides, or a function of the application. Gates differ in whether they wait.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from headgate.core.errors import CostTooLarge, InvalidKey, UsageError
from headgate.core.numbers import short
from headgate.engine import Ruling
from headgate.integrations.answers import Refusal
from headgate.integrations.budgets import Budget, Question, name_of
from headgate.policy.request import USER, InvalidRequest, Request, UnknownRule
from headgate.policy.selection import Verdict
from headgate.web.address import UNKNOWN
from headgate.web.errors import AmbiguousIdentity
from headgate.web.identity import Identity
from headgate.web.lines import Lines

if TYPE_CHECKING:
    from headgate.integrations.gate import Gatekeeping

T = TypeVar("T")
Flow: TypeAlias = Generator[Any, Any, T]
"""Yields values, or awaitables in an event loop, and is sent what they are."""
DEFAULT = "default"
"""The name of the budget that is for all routes."""
_UNREADABLE = (AmbiguousIdentity, CostTooLarge, InvalidRequest)
"""What a client's request may be: it is answered with 400."""
KEPT_PEERS = 4096
"""Addresses of peers of which the key is kept."""
_NAMED = ("user", "apikey", "ip")
"""Who asks, the best name first."""


class EmptyKey(InvalidRequest):
    """The key function returned nothing for a request: nobody is counted by no key, so it does not pass."""


class Subject(msgspec.Struct, frozen=True):
    """What a framework knows about a request."""

    request: Any
    """As its own functions, and those of applications, have it."""
    peer: str | None = None
    """The address that opened the connection; None on a Unix socket."""
    lines: Lines = ()
    """Header lines, as bytes."""
    path: str = "/"
    """As it was sent, not decoded."""
    method: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What `count_when` gets where the framework has no object for a response."""

    status_code: int
    headers: Sequence[Any] = ()
    """Pairs, as they are sent."""


class _Asked(msgspec.Struct, gc=False):
    """Budgets that are decided by one question."""

    budget: Budget
    """The first of them: they are alike in what comes afterwards."""
    question: Any
    ruling: Any = None
    is_settled: bool = False
    """Whether it was given back, or it is certain that it counts."""


class Visit:
    """One request on its way through a gate."""

    __slots__ = (
        "_ahead",
        "_asked",
        "_identity",
        "_is_exempt",
        "_names",
        "_now",
        "gate",
        "has_entered",
        "is_open",
        "request",
        "subject",
    )

    def __init__(self, gate: Gatekeeping, subject: Subject) -> None:
        self.gate, self.subject, self.request = gate, subject, subject.request
        self._asked: list[_Asked] = []
        self._identity: Identity | None = None
        self._is_exempt: bool | None = None
        self._names: dict[str, int] | None = None
        self._ahead: set[int] | None = None
        self._now = 0
        self.has_entered = False
        """Whether it was asked for anything yet."""
        self.is_open = False
        """Whether the response decides what it costs."""

    @property
    def identity(self) -> Identity:
        """Who asks. Raises AmbiguousIdentity."""
        if self._identity is None:
            self._identity = self.gate.identifier.identify(self.subject.peer, self.subject.lines, self.gate.clock.now())
        return self._identity

    def ask(self, budgets: Sequence[Budget]) -> None:
        """Note that the budgets of a decorated view are asked before it is called; it need not do that itself."""
        self._ahead = (self._ahead or set()).union(map(id, budgets))

    def has_asked(self, budgets: Sequence[Budget]) -> bool:
        """Whether that was noted."""
        return self._ahead is not None and self._ahead.issuperset(map(id, budgets))

    def enter(self, budgets: Iterable[Budget], route: str = DEFAULT) -> Flow[Refusal | None]:
        """Take what budgets of a route cost; returns the refusal, if it is one."""
        gate, self.has_entered = self.gate, True
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
        except UnknownRule:
            raise  # the application's fault, not the client's
        except _UNREADABLE as error:
            refusal = gate.answers.unreadable(error)
        if refusal is not None:
            yield from self._give_back()
            return (yield from self._told(refusal))
        return None

    @property
    def delay_us(self) -> int:
        """Microseconds until it is the request's turn, where a leaky bucket queues."""
        decisions = [each.ruling.decision for each in self._asked if not each.budget.shadow]
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
                each.ruling = yield self._refund(each)

    def fail(self) -> Flow[None]:
        """Give back what does not count, now that there was an exception."""
        for each in self._asked:
            if not each.is_settled and each.budget.refund_on_error:
                each.is_settled = True
                each.ruling = yield self._refund(each)

    def fields(self) -> list[Any]:
        """Return the header fields of the response."""
        if not self._asked:
            return []
        return self.gate.answers.fields([each.ruling for each in self._asked if not each.budget.shadow], self._now)

    def _decided(self, asked: Iterable[_Asked]) -> Flow[Refusal | None]:
        gate = self.gate
        for each in asked:
            self._now = gate.clock.now()
            answer = gate.decider.check(each.question)
            ruling: Ruling = (yield answer) if gate.waits else answer
            if ruling.allowed:
                if each.budget.rule and not ruling.matched and ruling.verdict is Verdict.UNLIMITED:
                    raise UsageError(ruling.reason or f"rule {each.budget.rule!r} limits nothing")
                each.ruling = ruling
                self._asked.append(each)
                if not each.budget.is_final:
                    self.is_open = True
            elif each.budget.shadow:
                refusal = gate.answers.refusal(ruling, self._now)
                yield from self._told(msgspec.structs.replace(refusal, is_shadow=True))
            else:
                return gate.answers.refusal(ruling, self._now)
        return None

    def _told(self, refusal: Refusal) -> Flow[Refusal]:
        hook = self.gate.on_refused
        if hook is not None:
            answer = yield hook(self.request, refusal)
            if answer is not None:
                return msgspec.structs.replace(refusal, answer=answer)
        return refusal

    def _refund(self, asked: _Asked) -> Any:
        """Begin to give back what a question took."""
        decider = self.gate.decider
        return decider.refund(asked.ruling) if self.gate.by_rules else decider.give_back(asked.question, asked.ruling)

    def _give_back(self) -> Flow[None]:
        """Give back what earlier budgets took: a request that is refused takes nothing."""
        for each in self._asked:
            if not each.is_settled:
                each.is_settled = True
                each.ruling = yield self._refund(each)

    def _questions(self, budgets: Iterable[Budget], route: str) -> Flow[list[_Asked]]:
        """Return what is to be asked: what can be decided together is one question; shadows come last."""
        by_rules = self.gate.by_rules
        enforced: list[_Asked] = []
        shadows: list[_Asked] = []
        for budget in budgets:
            if budget.exempt is not None and (yield budget.exempt(self.request)):
                continue
            cost = budget.cost if not callable(budget.cost) else (yield budget.cost(self.request))
            if by_rules:
                question: Any = yield from self._request(budget, cost)
            else:
                key = (yield from self._key(budget)) if budget.key or self.gate.key else self._own_key()
                quotas = (yield budget.limits(key)) if callable(budget.limits) else None
                name = budget.name or self._name(route)
                family = budget.family(name, quotas)
                question = Question((name,) * len(family.quotas), cost, family, key)
                earlier = (*self._asked, *enforced, *(shadows if budget.shadow else ()))
                if earlier and _is_asked(budget, question, earlier):
                    continue
            if budget.shadow:
                shadows.append(_Asked(budget, question))
            elif by_rules or not enforced or not _joined(enforced, budget, question):
                enforced.append(_Asked(budget, question))
        return enforced + shadows if shadows else enforced

    def _name(self, route: str) -> str:
        """Return the name of the next budget of a route."""
        if self._names is None:
            self._names = {}
        nth = self._names[route] = self._names.get(route, 0) + 1
        return name_of(route, nth)

    def _key(self, budget: Budget) -> Flow[str]:
        """Return the key that a function finds."""
        function = budget.key or self.gate.key
        assert function is not None  # noqa: S101  whoever asks has looked
        key = yield function(self.request)
        if key is not None and not isinstance(key, str):
            raise InvalidKey(f"a key is text, such as 'user:42', not {short(key)}: format it first")
        return self._address_key() if not key and self.gate.empty_key(budget) else str(key)

    def _own_key(self) -> str:
        """Return the key of who asks."""
        if self.gate.addresses is not None:
            return self._address_key()
        principal = self.identity.principal
        return next(f"{name}:{principal[name]}" for name in _NAMED if name in principal)

    def _address_key(self) -> str:
        peer, peers = self.subject.peer, self.gate.peers
        key = peers.get(peer) if peer is not None else None
        if key is None:
            reader = self.gate.identifier.addresses
            address = reader.read(peer, self.subject.lines).key
            if address == UNKNOWN:
                self.gate.unknown_address()
            key = f"ip:{address}"
            if peer is not None and not reader.header:  # it is all that counts
                if len(peers) >= KEPT_PEERS:
                    peers.clear()
                peers[peer] = key
        return key

    def _request(self, budget: Budget, cost: int) -> Flow[Request]:
        """Return what an engine is asked."""
        identity, function = self.identity, budget.key or self.gate.key
        principal: Mapping[str, str] = identity.principal
        if function is not None:
            key = yield function(self.request)
            if isinstance(key, Mapping) and key:
                principal = {**principal, **key}
            elif key and not isinstance(key, str):
                raise InvalidKey(f"a key is text, or principals by dimension, not {short(key)}")
            elif key or not self.gate.empty_key(budget):
                principal = {**principal, USER: str(key)}
        client = identity.address.client
        address = "" if client is None else client.text
        about = principal, self.subject.path, self.subject.method
        return Request(*about, cost=cost, tier=identity.tier, address=address, rule_id=budget.rule or "")


def _is_asked(budget: Budget, question: Question, earlier: Iterable[_Asked]) -> bool:
    """Whether a question is asked already, on the same terms: a budget that a router and a route share counts once."""
    alike = [each for each in earlier if each.question.cost == question.cost and each.budget.has_terms_of(budget)]
    places = {limit[:2] for each in alike for limit in each.question.plan}
    return all(limit[:2] in places for limit in question.plan)


def _joined(enforced: Iterable[_Asked], budget: Budget, question: Question) -> bool:
    """Whether a question could be made part of an earlier one: nothing that comes later tells them apart."""
    for earlier in enforced:
        first = earlier.question
        if budget.is_final and earlier.budget.is_final and first.cost == question.cost:
            plan, names = first.plan + question.plan, first.names + question.names
            earlier.question = Question(names, first.cost, joined=plan)
            return True
    return False

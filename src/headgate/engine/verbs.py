"""What an engine can be asked, without waiting: each verb is a flow of calls to the store; see `headgate.flows`.

A flow yields the calls that may be made at the same time, and is sent their decisions. The engines, which differ in
how they wait, drive them. Whoever serves others has all of it observed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Sequence
from copy import copy
from time import perf_counter_ns, time_ns
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import structs

from headgate.clock import Clock, SystemClock
from headgate.core.decision import Decision
from headgate.core.errors import InvalidRule, InvalidStore, UsageError
from headgate.core.key import Principal, bounded, checked_once, digest_of
from headgate.core.mode import Mode
from headgate.core.numbers import short
from headgate.core.plan import Call, Limit, Plan, Verb, refund_of
from headgate.core.quota import SECOND
from headgate.engine.charges import InvalidCharge, NamedCharge, Seal, charge_of, named_charge, parse, taken_by
from headgate.engine.joint import JointCheck, JointRequest, selected
from headgate.engine.ruling import (
    NOTHING_TRIED,
    Explained,
    Passed,
    Reset,
    Ruling,
    joined,
    passed,
    ruling_of,
    shadow_limits,
)
from headgate.live import Live, LoadStatistics
from headgate.policy.compiled import Policy
from headgate.policy.explain import explain, why_not_reset
from headgate.policy.facts import check_text, facts_of
from headgate.policy.live import LivePolicy, rules_file
from headgate.policy.model import Ruleset
from headgate.policy.prepared import rule_id_of
from headgate.policy.request import APIKEY, ENDPOINT, IP, USER, Request, UnknownRule, principal_name
from headgate.policy.selection import Selection, Verdict
from headgate.stores.wrapping import answered_once

T = TypeVar("T")
Flow: TypeAlias = Generator[Sequence[Call], Sequence[Decision], T]
Rules = str | os.PathLike[str] | Ruleset | Policy | LivePolicy
"""A file of rules, which is watched; rules; or a policy made of them."""
TRIES = 3
"""To take what is left of a limit, while others take from it too."""
_CHECK = Verb.CHECK
_WRITTEN = re.compile(r"\n|^\s*\{|:\s")
"""What the text of rules has, and the name of a file hardly."""


class Observer(Protocol):
    """Is told what an engine did; times are in nanoseconds."""

    def decided(self, ruling: Ruling, request: Request, elapsed_ns: int, /) -> None:
        """Take note of a check; with a cost of 0 it took nothing, and decided nothing."""
        ...

    def looked(self, elapsed_ns: int, /) -> None:
        """Take note of a peek."""
        ...

    def refunded(self) -> None:
        """Take note of a cost that was given back."""
        ...

    def was_reset(self, request: Request, reset: Reset, /) -> None:
        """Take note of limits that were reset."""
        ...


class SelectedCheck(msgspec.Struct, frozen=True, gc=False):
    """A check, and what it asks of the store. It may be kept, and asked again: see `Verbs.asked`."""

    request: Request
    selection: Selection
    """What applies to it."""
    call: Call | None
    """The one that decides it, if it is one."""
    policy: Policy
    """By which that was found."""

    @property
    def size(self) -> int:
        """How many limits there are, those of shadow rules included."""
        return self.selection.size


class _Fixed(msgspec.Struct, frozen=True):
    """A policy that does not change."""

    value: Policy


class Verbs:
    """The verbs of an engine, by the policy in force.

    Args:
        rules: see `Rules`.
        mode: what is answered while the store is away, where a rule does not say.
        clock: what time it is for the rules.
    """

    def __init__(self, rules: Rules, mode: str, clock: Clock) -> None:
        self._mode, self.clock = checked_mode(mode), clock
        self._now = None if type(clock) is SystemClock else clock.now  # None: read it without another call
        self._own = isinstance(rules, str | os.PathLike)
        if isinstance(rules, str | os.PathLike):
            if isinstance(rules, str) and _WRITTEN.search(rules) and not os.path.exists(rules):  # noqa: PTH110  any text
                raise InvalidRule("rules are given as the name of a file; for their text use load_rules(text)")
            rules = LivePolicy(rules_file(rules))
        if isinstance(rules, Ruleset):
            rules = Policy(rules)
        if not isinstance(rules, Policy | LivePolicy):
            raise InvalidRule(f"rules are a file, a Ruleset, a Policy or a LivePolicy, not {short(rules)}")
        self._rules: LivePolicy | _Fixed = _Fixed(rules) if isinstance(rules, Policy) else rules
        self.seal = Seal()
        """By which charges are known as those of processes that share the store."""
        self.observer: Observer | None = None

    def open(self) -> None:
        """Begin to watch a file, unless the caller does that."""
        if self._own and isinstance(self._rules, Live):
            self._rules.start()

    def observed(self, observer: Observer) -> Verbs:
        """Return the same verbs as a service has them."""
        observed = copy(self)
        observed.observer = observer
        return observed

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._rules.value

    def mode_of(self, rule_id: str) -> Mode:
        """Return what is answered for a rule while the store is away."""
        compiled = self.policy.rules.get(rule_id)  # None: a reload has just removed it
        return (compiled.rule.on_store_failure if compiled else None) or self._mode

    def refusal_of(self, rule_id: str) -> tuple[int, str]:
        """Return the status and the message of a rule's refusals; without a message, the limit says it."""
        compiled = self.policy.rules.get(rule_id)
        return (compiled.rule.refusal_status, compiled.rule.refusal_message) if compiled else (429, "")

    def mode_of_limit(self, limit: Limit) -> Mode:
        """Return the same for a limit of a rule."""
        return self.mode_of(rule_id_of(limit.space))

    def statistics(self) -> LoadStatistics | None:
        """Return how loading the rules went; None where they do not change."""
        return self._rules.statistics() if isinstance(self._rules, Live) else None

    def close(self) -> None:
        """Stop watching a file, unless the caller does that."""
        if self._own and isinstance(self._rules, Live):
            self._rules.close()

    def asked(self, request: Request, before: SelectedCheck | None = None) -> SelectedCheck:
        """Return what is to be asked of the store; that is `before`, of the same request, as long as it holds."""
        policy, now = self._rules.value, time_ns() // 1000 if self._now is None else self._now()
        if before is not None and before.policy is policy:
            selection = before.selection
            if selection.since <= now < selection.until:
                return before
        selection = policy.select(request, now)
        plan, shadow, cost = selection.enforced.plan, selection.shadow, request.cost
        if not shadow:
            return SelectedCheck(request, selection, Call(_CHECK, plan, cost) if plan and cost else None, policy)
        tried: tuple[Plan, ...] = ()
        for limits in shadow:
            if not limits.too_small:
                tried += (limits.plan,)
        call = Call(_CHECK, plan, cost, b"", None, tried) if cost and len(tried) == len(shadow) else None
        return SelectedCheck(request, selection, call, policy)

    def answered(self, asked: SelectedCheck, decision: Decision, began: int = 0) -> Ruling:
        """End a check whose one call the store has answered; for an observer it `began` at that nanosecond."""
        selection = asked.selection
        tried = shadow_limits(selection.shadow, decision.shadow) if selection.shadow else NOTHING_TRIED
        ruling = ruling_of(selection, decision if selection.enforced.plan else None, asked.policy.version, tried)
        if self.observer is not None:
            self.observer.decided(ruling, asked.request, perf_counter_ns() - began)
        return ruling

    def check(
        self, asked: SelectedCheck, began: int = 0, verb: Verb = Verb.CHECK, idempotency_key: str = ""
    ) -> Flow[Ruling]:
        """Go on with a check that takes no call, or several."""
        call = Call(verb, (), asked.request.cost)
        once = _once(asked.request, idempotency_key) if verb is Verb.CHECK_ONCE else None
        ruling = yield from ruled(asked.selection, call, asked.policy.version, once)
        if self.observer is not None:
            self.observer.decided(ruling, asked.request, perf_counter_ns() - began)
        return ruling

    def check_once(self, request: Request, idempotency_key: str) -> Flow[Ruling]:
        began = perf_counter_ns()
        return self.check(self.asked(request), began, Verb.CHECK_ONCE, checked_once(idempotency_key))

    def peek(self, request: Request) -> Flow[Ruling]:
        began = perf_counter_ns()
        ruling = yield from self._ruled(request, Verb.PEEK)
        if self.observer is not None:
            self.observer.looked(perf_counter_ns() - began)
        return ruling

    def is_passed(self, client_id: str, rule_id: str) -> Flow[Passed]:
        began, now = perf_counter_ns(), self.clock.now()
        asked = self.asked(self.policy.request_of(client_id, rule_id))
        return passed((yield from self.check(asked, began)), now)

    def joint_check(self, requests: Sequence[JointRequest], before: JointCheck | None = None) -> JointCheck:
        """Return what requests that pass together ask of the store; that is `before`, of the same, while it holds."""
        policy, now = self._rules.value, time_ns() // 1000 if self._now is None else self._now()
        return before if before is not None and before.holds(policy, now) else JointCheck(policy, requests, now)

    def check_together(self, check: JointCheck) -> Flow[tuple[Ruling, ...]]:
        began = perf_counter_ns()
        rulings = yield from check.flow()
        if self.observer is not None:
            elapsed_ns = perf_counter_ns() - began
            for part, ruling in zip(check.parts, rulings, strict=True):
                if not part.is_refund:
                    self.observer.decided(ruling, part.request, elapsed_ns)
                elif part.request.cost:
                    self.observer.refunded()
        return rulings

    def use_up(self, part: JointRequest) -> Flow[None]:
        selection = selected(self.policy, part, self.clock.now())
        for limits in (selection.enforced, *selection.shadow):
            yield from used_up(limits.plan, part.request.cost)

    def sealing(self) -> Flow[None]:
        """Find out the secret by which charges are sealed."""
        if not self.seal:
            yield from self._learning()

    def _learning(self) -> Flow[None]:
        """Ask for the secret, unless that was in vain in the last second: refusals must not cost the store much."""
        seal = self.seal
        before = seal.asked_at
        if not before or self.clock.ticks() - before >= SECOND:
            seal.learn((yield seal.calls()), self.clock.ticks())

    def charge_of(self, ruling: Ruling) -> Flow[str]:
        yield from self.sealing()
        return charge_of(ruling, self.seal)

    def refund(self, request: Request | Ruling, charge: str = "") -> Flow[Ruling]:
        policy = self.policy
        if isinstance(request, Ruling):
            selection = request.selection
            if not isinstance(selection, Selection) or request.is_joint:
                raise UsageError(
                    "one of several requests that passed together is refunded by its request, not by its ruling; "
                    "and the ruling of a client by that client"
                )
            ruling = yield from self._given_back(selection, named_charge(request), policy)
        elif charge != "":
            check_text(charge=charge)
            named = yield from self._opened(charge)
            selection = policy.select(request, self.clock.now(), asking=False)
            ruling = yield from self._given_back(selection, named, policy)
        else:
            ruling = yield from self._ruled(request, Verb.REFUND)
        if self.observer is not None and ruling.matched:
            self.observer.refunded()
        return ruling

    def undo(self, rulings: Sequence[Ruling]) -> Flow[None]:
        charges = {}
        if all(ruling.allowed for ruling in rulings):  # else those that passed together took nothing
            for ruling in rulings:
                for limit, part in taken_by(ruling):  # several share one decision where they have taken it together
                    charges[id(part)] = refund_of((limit,), part)
        if charges:
            yield list(charges.values())
            if self.observer is not None:
                self.observer.refunded()

    def reset(self, request: Request) -> Flow[Reset]:
        policy = self.policy
        selection = policy.select(request, self.clock.now(), asking=False)
        if selection.reason and selection.verdict is Verdict.UNLIMITED:  # an operator's mistake, whatever checks do
            raise UnknownRule(request.rule_id, policy.rules)
        names = {principal_name(name) for name in request.principal}
        plans, own, shared = list[Plan](), dict[str, None](), dict[str, None]()
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
        if plans:
            yield [Call(Verb.RESET, plan) for plan in plans]
        return self._recorded(request, Reset(tuple(own), tuple(shared)))

    def reset_all(self, request: Request) -> Flow[Reset]:
        rules, shared, policy = list[str](), list[str](), self.policy
        if isinstance(request, Request):  # whatever it is for
            request = Request(request.principal, tier=request.tier)
        policy.select(request, self.clock.now(), asking=False)  # says what is wrong with it
        principal = {principal_name(name): value for name, value in request.principal.items()}
        for rule_id, rule in policy.rules.items():
            counted = {name: principal[name] for name in rule.dimensions if name in principal}
            if not counted or not rule.rule.enabled:
                continue
            if len(counted) < len(rule.dimensions):
                shared.append(rule_id)
                continue
            named = Request(counted, tier=request.tier, rule_id=rule_id)
            selection = policy.select(named, self.clock.now(), asking=False)
            plans = [limits.plan for limits in (selection.enforced, *selection.shadow) if limits.plan]
            if plans:
                yield [Call(Verb.RESET, plan) for plan in plans]
                rules.append(rule_id)
        return self._recorded(request, Reset(tuple(rules), tuple(shared)))

    def explain(self, request: Request) -> Flow[Explained]:
        policy = self.policy
        explanation = explain(policy, request, self.clock.now())
        call = Call(Verb.PEEK, (), request.cost)
        return joined(explanation, (yield from ruled(explanation.selection, call, policy.version)))

    def _ruled(self, request: Request, verb: Verb) -> Flow[Ruling]:
        policy = self.policy
        selection = policy.select(request, self.clock.now(), asking=verb is not Verb.REFUND)
        return ruled(selection, Call(verb, (), request.cost), policy.version)

    def _given_back(self, selection: Selection, charge: NamedCharge, policy: Policy) -> Flow[Ruling]:
        """Give back what a charge took from the limits of a selection that are the same; says what is left."""
        calls = [call for limits in (selection.enforced, *selection.shadow) for call in charge.refunds(limits.plan)]
        if calls:
            yield calls
        return (yield from ruled(selection, Call(Verb.PEEK, ()), policy.version))

    def _opened(self, charge: str) -> Flow[NamedCharge]:
        """Return what a text names. Another secret may be in the store by now, if it has lost its data."""
        yield from self.sealing()
        try:
            return parse(charge, self.seal)
        except InvalidCharge:
            yield from self._learning()
            return parse(charge, self.seal)

    def _recorded(self, request: Request, reset: Reset) -> Reset:
        """Take note of a reset, or say why nothing was."""
        if not reset:
            return structs.replace(reset, reason=why_not_reset(self.policy, request, self.clock.now()))
        if self.observer is not None:
            self.observer.was_reset(request, reset)
        return reset


def checked_mode(given: object, name: str = "on_store_failure") -> Mode:
    """Return a mode by its name."""
    for mode in Mode:
        if given == mode:
            return mode
    raise InvalidStore(f"{name} must be one of {', '.join(Mode)}, not {short(given)}")


class _Once(NamedTuple):
    """What a request with an idempotency key is remembered by."""

    caller: Principal
    token: bytes

    def named(self, call: Call, shadow: str = "") -> Call:
        """Return a call that is made once, for the rules that decide or for a shadow rule."""
        token = digest_of([self.token.hex(), shadow]) if shadow else self.token
        return msgspec.structs.replace(call, token=token, caller=self.caller)


def _once(request: Request, idempotency_key: str) -> _Once:
    """Return what a request is remembered by: its caller and what it asks for, whatever limits apply to it.

    The caller is the user, else the API key, else the address; else all that is known of the request.
    """
    facts = facts_of(request)
    name = next((name for name in (USER, APIKEY, IP) if name in facts), "")
    caller = [name, facts[name]] if name else [each for fact in sorted(facts.items()) for each in fact]
    asked = [f"{request.cost}", idempotency_key, facts[ENDPOINT], request.method.upper(), request.rule_id]
    return _Once(bounded(facts[name]) if name else "", digest_of([*asked, *caller]))


def ruled(selection: Selection, what: Call, version: int, once: _Once | None = None) -> Flow[Ruling]:
    """Ask the store what the policy says is to be asked.

    Enforced limits are all or nothing. Shadow rules take their cost where the request passes, each on its own, as they
    would if they were enforced; where it does not pass, they are only asked. For a check or a peek they travel with the
    enforced ones, else they come after them. Of a shadow whose capacity is below the cost no store would take it: what
    it has left is asked.

    Args:
        selection: what applies to a request.
        what: the verb and the cost, which are the same for all calls.
        version: of the policy.
        once: of CHECK_ONCE.
    """
    cost = what.cost
    verb = what.verb if cost else Verb.PEEK  # it takes nothing, and gives nothing back
    enforced, tried = selection.enforced, [limits for limits in selection.shadow if not limits.too_small]
    hopeless = [Call(Verb.PEEK, limits.plan) for limits in selection.shadow if limits.too_small]
    decision: Decision | None = None
    if verb is Verb.CHECK or verb is Verb.PEEK:
        call = Call(verb, enforced.plan, cost or 1, shadow=tuple([limits.plan for limits in tried]))
        calls = [call, *hopeless] if enforced.plan or tried else hopeless
        answers = list((yield calls) if calls else ())
        if enforced.plan or tried:
            decision = answers.pop(0)
        looked, told = iter(answers), iter(decision.shadow if decision is not None else ())
    else:
        if enforced.plan:
            call = Call(verb, enforced.plan, cost)
            call = once.named(call) if once else call
            (decision,) = yield (call,)
            answered_once(decision, call.token)
        after = verb if decision is None or decision.allowed else Verb.PEEK
        calls = list(hopeless)
        for limits in tried:
            call = Call(after, limits.plan, cost)
            rule_id = rule_id_of(limits.plan[0].space)
            calls.append(once.named(call, rule_id) if once and after is Verb.CHECK_ONCE else call)
        answers = list((yield calls) if calls else ())
        for call, answer in zip(calls, answers, strict=True):
            answered_once(answer, call.token)
        looked, told = iter(answers[: len(hopeless)]), iter(answers[len(hopeless) :])
    shadow = shadow_limits(
        selection.shadow, [next(looked) if limits.too_small else next(told) for limits in selection.shadow]
    )
    return ruling_of(selection, decision if enforced.plan else None, version, shadow)


def used_up(plan: Plan, cost: int) -> Flow[None]:
    """Take `cost` from each limit on its own, or what is left of it: it was used before it was asked for."""
    for limit in plan:
        for _ in range(TRIES):
            (decision,) = yield (Call(Verb.PEEK, (limit,)),)
            left = min(cost, decision.remaining)
            if not left:
                break
            (decision,) = yield (Call(Verb.CHECK, (limit,), left),)
            if decision.allowed:
                break

"""The verbs of an engine. Each is a flow, which never waits; see `headgate.flows`.

A flow yields calls to the store that may be made concurrently, and receives their decisions. The engines drive flows.
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
from headgate.core.key import Principal, bounded, checked_once, checked_principal, digest_of
from headgate.core.mode import Mode
from headgate.core.numbers import short
from headgate.core.plan import Call, Limit, Plan, Verb, refund_of
from headgate.core.quota import SECOND
from headgate.engine.charges import InvalidCharge, NamedCharge, Seal, charge_of, named_charge, parse, taken_by
from headgate.engine.joint import JointCheck, JointRequest, selection_of
from headgate.engine.ruling import (
    NOTHING_TRIED,
    Explained,
    Passed,
    Reset,
    Ruling,
    as_passed,
    ruling_of,
    shadow_limits,
    with_states,
)
from headgate.live import Live, LoadStatistics
from headgate.policy.compiled import Policy
from headgate.policy.explain import explain, why_not_reset
from headgate.policy.live import LivePolicy, rules_file
from headgate.policy.model import Ruleset
from headgate.policy.prepared import rule_id_of
from headgate.policy.request import APIKEY, ENDPOINT, IP, USER, Request, UnknownRule, principal_name
from headgate.policy.request_facts import check_text, facts_of
from headgate.policy.selection import Selection, Verdict
from headgate.stores.refunds import with_identity

T = TypeVar("T")
Flow: TypeAlias = Generator[Sequence[Call], Sequence[Decision], T]
Rules = str | os.PathLike[str] | Ruleset | Policy | LivePolicy
"""A rules file, which is watched; rules; or a policy."""
TRIES = 3
"""Attempts to take the remainder of a limit while others take from it too."""
_CHECK = Verb.CHECK
_WRITTEN = re.compile(r"\n|^\s*\{|:\s")
"""Identifies the text of rules: file names hardly match."""


class Observer(Protocol):
    """Receives what an engine did; times are in nanoseconds."""

    def decided(self, ruling: Ruling, request: Request, elapsed_ns: int, /) -> None:
        """Record a check. With a cost of 0, it took nothing and does not count as a decision."""
        ...

    def peeked(self, elapsed_ns: int, /) -> None:
        """Record a peek."""
        ...

    def refunded(self) -> None:
        """Record a refund."""
        ...

    def was_reset(self, request: Request, reset: Reset, /) -> None:
        """Record a reset."""
        ...


class SelectedCheck(msgspec.Struct, frozen=True, gc=False):
    """A check with its limits. It may be kept and used again: see `Verbs.select`."""

    request: Request
    selection: Selection
    """The limits that apply."""
    call: Call | None
    """The call that decides, if one is enough."""
    policy: Policy
    """The policy that selected them."""

    @property
    def size(self) -> int:
        """The number of limits, including those of shadow rules."""
        return self.selection.size


class _Fixed(msgspec.Struct, frozen=True):
    """A policy that does not change."""

    value: Policy


class Verbs:
    """The verbs of an engine, by the policy in force.

    `mode` is how to decide while the store is unavailable, unless a rule has a mode.
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
            raise InvalidRule(f"rules must be a file, a Ruleset, a Policy or a LivePolicy, not {short(rules)}")
        self._rules: LivePolicy | _Fixed = _Fixed(rules) if isinstance(rules, Policy) else rules
        self.seal = Seal()
        """Identifies charges as those of processes that share the store."""
        self.observer: Observer | None = None

    def open(self) -> None:
        """Start watching the file, unless the caller does."""
        if self._own and isinstance(self._rules, Live):
            self._rules.start()

    def observed(self, observer: Observer) -> Verbs:
        """Return the same verbs with an observer."""
        observed = copy(self)
        observed.observer = observer
        return observed

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._rules.value

    def mode_of(self, rule_id: str) -> Mode:
        """Return how to decide by a rule while the store is unavailable."""
        compiled = self.policy.rules.get(rule_id)  # None: a reload has just removed it
        return (compiled.rule.on_store_failure if compiled else None) or self._mode

    def refusal_of(self, rule_id: str) -> tuple[int, str]:
        """Return the status and the message of a rule's refusals; without a message, it describes the limit."""
        compiled = self.policy.rules.get(rule_id)
        return (compiled.rule.refusal_status, compiled.rule.refusal_message) if compiled else (429, "")

    def mode_of_limit(self, limit: Limit) -> Mode:
        """Return how to decide by a limit while the store is unavailable."""
        return self.mode_of(rule_id_of(limit.space))

    def statistics(self) -> LoadStatistics | None:
        """Return the statistics of loading the rules; None if they are constant."""
        return self._rules.statistics() if isinstance(self._rules, Live) else None

    def close(self) -> None:
        """Stop watching the file, unless the caller does."""
        if self._own and isinstance(self._rules, Live):
            self._rules.close()

    def select(self, request: Request, before: SelectedCheck | None = None) -> SelectedCheck:
        """Select the limits of a request; return `before`, of the same request, while it is valid."""
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

    def conclude(self, selected: SelectedCheck, decision: Decision, began: int = 0) -> Ruling:
        """Complete a check by the decision about its call; `began` is in nanoseconds, for an observer."""
        selection = selected.selection
        tried = shadow_limits(selection.shadow, decision.shadow) if selection.shadow else NOTHING_TRIED
        ruling = ruling_of(selection, decision if selection.enforced.plan else None, selected.policy.version, tried)
        if self.observer is not None:
            self.observer.decided(ruling, selected.request, perf_counter_ns() - began)
        return ruling

    def check(
        self, selected: SelectedCheck, began: int = 0, verb: Verb = Verb.CHECK, idempotency_key: str = ""
    ) -> Flow[Ruling]:
        """Complete a check that takes no call, or several."""
        call = Call(verb, (), selected.request.cost)
        once = _once(selected.request, idempotency_key) if verb is Verb.CHECK_ONCE else None
        ruling = yield from run_selected(selected.selection, call, selected.policy.version, once)
        if self.observer is not None:
            self.observer.decided(ruling, selected.request, perf_counter_ns() - began)
        return ruling

    def check_once(self, request: Request, idempotency_key: str) -> Flow[Ruling]:
        began = perf_counter_ns()
        return self.check(self.select(request), began, Verb.CHECK_ONCE, checked_once(idempotency_key))

    def peek(self, request: Request) -> Flow[Ruling]:
        began = perf_counter_ns()
        ruling = yield from self._run(request, Verb.PEEK)
        if self.observer is not None:
            self.observer.peeked(perf_counter_ns() - began)
        return ruling

    def is_passed(self, client_id: str, rule_id: str) -> Flow[Passed]:
        began, now = perf_counter_ns(), self.clock.now()
        selected = self.select(self.policy.request_of(client_id, rule_id))
        return as_passed((yield from self.check(selected, began)), now)

    def joint_check(self, requests: Sequence[JointRequest], before: JointCheck | None = None) -> JointCheck:
        """Select the limits of requests that pass together; return `before`, of the same, while it is valid."""
        policy, now = self._rules.value, time_ns() // 1000 if self._now is None else self._now()
        return before if before is not None and before.holds(policy, now) else JointCheck(policy, requests, now)

    def check_together(self, check: JointCheck) -> Flow[tuple[Ruling, ...]]:
        began = perf_counter_ns()
        return self.conclude_together(check, (yield from check.flow()), began)

    def conclude_together(self, check: JointCheck, rulings: tuple[Ruling, ...], began: int) -> tuple[Ruling, ...]:
        """Complete a joint check that has its rulings."""
        if self.observer is not None:
            elapsed_ns = perf_counter_ns() - began
            for part, ruling in zip(check.parts, rulings, strict=True):
                if not part.is_refund:
                    self.observer.decided(ruling, part.request, elapsed_ns)
                elif part.request.cost:
                    self.observer.refunded()
        return rulings

    def use_up(self, part: JointRequest) -> Flow[None]:
        selection = selection_of(self.policy, part, self.clock.now())
        for limits in (selection.enforced, *selection.shadow):
            yield from use_up_plan(limits.plan, part.request.cost)

    def fetch_secret(self) -> Flow[None]:
        """Get the secret that seals charges."""
        if not self.seal:
            yield from self._learn_secret()

    def _learn_secret(self) -> Flow[None]:
        """Request the secret, unless that failed within the last second: refusals must not load the store."""
        seal = self.seal
        before = seal.failed_at
        if not before or self.clock.ticks() - before >= SECOND:
            seal.learn((yield seal.calls()), self.clock.ticks())

    def charge_of(self, ruling: Ruling) -> Flow[str]:
        yield from self.fetch_secret()
        return charge_of(ruling, self.seal)

    def refund(self, request: Request | Ruling, charge: str = "") -> Flow[Ruling]:
        policy = self.policy
        if isinstance(request, Ruling):
            selection = request.selection
            if not isinstance(selection, Selection) or request.is_joint:
                raise UsageError(
                    "to refund one of several requests that passed together, pass the request, not its ruling; "
                    "to refund a ruling of a client, use that client"
                )
            ruling = yield from self._refund(selection, named_charge(request), policy)
        elif charge != "":
            check_text(charge=charge)
            named = yield from self._read_charge(charge)
            selection = policy.select(request, self.clock.now(), takes_cost=False)
            ruling = yield from self._refund(selection, named, policy)
        else:
            ruling = yield from self._run(request, Verb.REFUND)
        if self.observer is not None and ruling.matched:
            self.observer.refunded()
        return ruling

    def undo(self, rulings: Sequence[Ruling]) -> Flow[None]:
        charges = {}
        if all(ruling.allowed for ruling in rulings):  # else nothing was taken
            for ruling in rulings:
                for limit, part in taken_by(ruling):  # several share one decision if they were charged together
                    charges[id(part)] = refund_of((limit,), part)
        if charges:
            yield list(charges.values())
            if self.observer is not None:
                self.observer.refunded()

    def reset(self, request: Request) -> Flow[Reset]:
        policy = self.policy
        selection = policy.select(request, self.clock.now(), takes_cost=False)
        if selection.reason and selection.verdict is Verdict.UNLIMITED:  # an operator's mistake, even if checks pass
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
        return self._record(request, Reset(tuple(own), tuple(shared)))

    def reset_all(self, request: Request) -> Flow[Reset]:
        rules, shared, policy = list[str](), list[str](), self.policy
        if isinstance(request, Request):  # at any endpoint
            request = Request(request.principal, tier=request.tier)
        policy.select(request, self.clock.now(), takes_cost=False)  # raises its errors
        principal = {principal_name(name): value for name, value in request.principal.items()}
        for rule_id, rule in policy.rules.items():
            counted = {name: principal[name] for name in rule.dimensions if name in principal}
            if not counted or not rule.rule.enabled:
                continue
            if len(counted) < len(rule.dimensions):
                shared.append(rule_id)
                continue
            named = Request(counted, tier=request.tier, rule_id=rule_id)
            selection = policy.select(named, self.clock.now(), takes_cost=False)
            plans = [limits.plan for limits in (selection.enforced, *selection.shadow) if limits.plan]
            if plans:
                yield [Call(Verb.RESET, plan) for plan in plans]
                rules.append(rule_id)
        return self._record(request, Reset(tuple(rules), tuple(shared)))

    def explain(self, request: Request) -> Flow[Explained]:
        policy = self.policy
        explanation = explain(policy, request, self.clock.now())
        call = Call(Verb.PEEK, (), request.cost)
        return with_states(explanation, (yield from run_selected(explanation.selection, call, policy.version)))

    def _run(self, request: Request, verb: Verb) -> Flow[Ruling]:
        policy = self.policy
        selection = policy.select(request, self.clock.now(), takes_cost=verb is not Verb.REFUND)
        return run_selected(selection, Call(verb, (), request.cost), policy.version)

    def _refund(self, selection: Selection, charge: NamedCharge, policy: Policy) -> Flow[Ruling]:
        """Refund a charge to the limits of a selection that it took from; return a ruling with the remainder."""
        calls = [call for limits in (selection.enforced, *selection.shadow) for call in charge.refunds(limits.plan)]
        if calls:
            yield calls
        return (yield from run_selected(selection, Call(Verb.PEEK, ()), policy.version))

    def _read_charge(self, charge: str) -> Flow[NamedCharge]:
        """Return the charge of a text. The store may have another secret by now, if it has lost its data."""
        yield from self.fetch_secret()
        try:
            return parse(charge, self.seal)
        except InvalidCharge:
            yield from self._learn_secret()
            return parse(charge, self.seal)

    def _record(self, request: Request, reset: Reset) -> Reset:
        """Record a reset, or add the reason why nothing was reset."""
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
    """The identity of a request with an idempotency key."""

    caller: Principal
    token: bytes

    def named(self, call: Call, shadow: str = "") -> Call:
        """Return a call that counts once, for the enforced rules or for a shadow rule."""
        token = digest_of([self.token.hex(), shadow]) if shadow else self.token
        return msgspec.structs.replace(call, token=token, caller=self.caller)


def _once(request: Request, idempotency_key: str) -> _Once:
    """Return the identity of a request: its caller, endpoint, cost and key, independent of the limits that apply.

    The caller is the user, else the API key, else the address, else all facts about the request.
    """
    facts = facts_of(request)
    name = next((name for name in (USER, APIKEY, IP) if name in facts), "")
    caller = [name, facts[name]] if name else [each for fact in sorted(facts.items()) for each in fact]
    identity = [f"{request.cost}", idempotency_key, facts[ENDPOINT], request.method.upper(), request.rule_id]
    return _Once(bounded(checked_principal(facts[name])) if name else "", digest_of([*identity, *caller]))


def run_selected(selection: Selection, what: Call, version: int, once: _Once | None = None) -> Flow[Ruling]:
    """Run the verb of `what` with its cost on the limits of a selection.

    Enforced limits are all or nothing. If the request passes, each shadow rule takes its cost separately, as it would
    if it were enforced; otherwise, shadow rules are only peeked at. For a check or a peek they are part of the same
    call, else of a later one. A shadow rule with a capacity below the cost is only peeked at.

    `version` is that of the policy, and `once` the identity of a CHECK_ONCE.
    """
    cost = what.cost
    verb = what.verb if cost else Verb.PEEK  # nothing to take or refund
    enforced, tried = selection.enforced, [limits for limits in selection.shadow if not limits.too_small]
    hopeless = [Call(Verb.PEEK, limits.plan) for limits in selection.shadow if limits.too_small]
    decision: Decision | None = None
    if verb is Verb.CHECK or verb is Verb.PEEK:
        call = Call(verb, enforced.plan, cost or 1, shadow=tuple([limits.plan for limits in tried]))
        calls = [call, *hopeless] if enforced.plan or tried else hopeless
        answers = list((yield calls) if calls else ())
        if enforced.plan or tried:
            decision = answers.pop(0)
        peeked, decided = iter(answers), iter(decision.shadow if decision is not None else ())
    else:
        if enforced.plan:
            call = Call(verb, enforced.plan, cost)
            call = once.named(call) if once else call
            (answer,) = yield (call,)
            decision = with_identity(answer, call.token)
        after = verb if decision is None or decision.allowed else Verb.PEEK
        calls = list(hopeless)
        for limits in tried:
            call = Call(after, limits.plan, cost)
            rule_id = rule_id_of(limits.plan[0].space)
            calls.append(once.named(call, rule_id) if once and after is Verb.CHECK_ONCE else call)
        answers = list((yield calls) if calls else ())
        answers = [with_identity(answer, call.token) for call, answer in zip(calls, answers, strict=True)]
        peeked, decided = iter(answers[: len(hopeless)]), iter(answers[len(hopeless) :])
    shadow = shadow_limits(
        selection.shadow, [next(peeked) if limits.too_small else next(decided) for limits in selection.shadow]
    )
    return ruling_of(selection, decision if enforced.plan else None, version, shadow)


def use_up_plan(plan: Plan, cost: int) -> Flow[None]:
    """Take `cost`, which was used already, from each limit separately, or what is left there."""
    for limit in plan:
        for _ in range(TRIES):
            (decision,) = yield (Call(Verb.PEEK, (limit,)),)
            left = min(cost, decision.remaining)
            if not left:
                break
            (decision,) = yield (Call(Verb.CHECK, (limit,), left),)
            if decision.allowed:
                break

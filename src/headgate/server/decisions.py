"""The one door between the APIs and the engine: every decision is measured and recorded on its way."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from time import perf_counter_ns

from msgspec import structs

from headgate.engine import AsyncEngine, Part, Reset, Ruling
from headgate.observe.recorder import Recorder
from headgate.policy.compiled import Policy
from headgate.policy.explain import explain
from headgate.policy.facts import shown
from headgate.policy.request import Request, UnknownRule, principal_name
from headgate.policy.selection import Verdict

LONGEST_MS = 1000
"""No caller's deadline is longer, in milliseconds. So there are only so many different ones."""
_TOLD = 3
"""Rules of which it is said why they were not reset."""


class Decisions:
    """Decides, and records what was decided.

    Args:
        engine: the rules and the store.
        recorder: what counts and times decisions.
        api: what is asked through, for the log of denials.

    Everything raises what the engine raises: UsageError and its kind for requests that make no sense. But a request
    that names a rule which does not exist passes, and matched nothing, unless the rules say that it is an error. What
    only looks (`peek`, and a check with a cost of 0) is timed and not counted: it decided nothing.
    """

    __slots__ = ("_api", "_hurried", "_ruled", "engine", "recorder")

    def __init__(self, engine: AsyncEngine, recorder: Recorder, api: str = "") -> None:
        self.engine, self.recorder, self._api = engine, recorder, api
        self._ruled = recorder.ruled
        self._hurried: dict[int, Decisions] = {}
        recorder.watch(engine)

    def via(self, api: str) -> Decisions:
        """Return the same for another API: check, batch, forward_auth and so on."""
        return self._copied(self.engine, api)

    def within(self, seconds: float | None) -> Decisions:
        """Return the same for callers that wait no longer than so many seconds for the store; None for the usual."""
        if seconds is None:
            return self
        ms = max(1, min(int(seconds * 1000), LONGEST_MS))
        hurried = self._hurried.get(ms)
        if hurried is None:
            hurried = self._hurried[ms] = self._copied(self.engine.within(ms / 1000), self._api)
        return hurried

    def _copied(self, engine: AsyncEngine, api: str) -> Decisions:
        """Return the same with another engine, which has the same numbers to show."""
        other = copy(self)
        other.engine, other._api, other._hurried = engine, api, {}  # noqa: SLF001  it is one of us
        return other

    async def check(self, request: Request, idempotency_key: str = "") -> Ruling:
        """Take the cost from all limits that apply if all admit it; with a key, only once in 5 minutes."""
        began = perf_counter_ns()
        try:
            if idempotency_key:
                ruling = await self.engine.check_once(request, idempotency_key)
            else:
                ruling = await self.engine.check(request)
        except UnknownRule as error:
            ruling = self._unmatched(error)
        self._ruled(ruling, request, perf_counter_ns() - began, self._api)
        return ruling

    async def check_together(self, parts: Sequence[Part]) -> tuple[Ruling, ...]:
        """Take the costs of several requests if all of them pass, else none; see `AsyncEngine.check_together`."""
        began = perf_counter_ns()
        rulings = await self.engine.check_together(parts)
        elapsed_ns = perf_counter_ns() - began
        for part, ruling in zip(parts, rulings, strict=True):
            if not part.refund:
                self._ruled(ruling, part.request, elapsed_ns, self._api)
            elif part.request.cost:
                self.recorder.refunded()
        return rulings

    async def peek(self, request: Request) -> Ruling:
        """Say what `check` would answer; take nothing."""
        began = perf_counter_ns()
        try:
            ruling = await self.engine.peek(request)
        except UnknownRule as error:
            ruling = self._unmatched(error)
        self.recorder.looked(perf_counter_ns() - began)
        return ruling

    async def refund(self, request: Request, charge: str) -> Ruling:
        """Give back what a request took; see `AsyncEngine.refund`."""
        try:
            ruling = await self.engine.refund(request, charge)
        except UnknownRule as error:
            return self._unmatched(error)
        self.recorder.refunded()
        return ruling

    async def reset(self, request: Request) -> Reset:
        """Forget what was used of limits; see `AsyncEngine.reset`. Raises StoreError if that failed."""
        try:
            reset = await self.engine.reset(request)
        except UnknownRule as error:
            return Reset(reason=self._unmatched(error).reason)
        return self._recorded(reset, request)

    async def reset_all(self, request: Request) -> Reset:
        """Forget what was used of every limit that is counted by principals of the request, whatever it is for.

        A rule that counts by these and more, such as user and endpoint together, is left alone, and named.
        """
        rules, shared = list[str](), list[str]()
        principal = {principal_name(name): value for name, value in request.principal.items()}
        for rule_id, rule in self.engine.policy.rules.items():
            counted = {name: principal[name] for name in rule.dimensions if name in principal}
            if not counted or not rule.rule.enabled:
                continue
            if len(counted) < len(rule.dimensions):
                shared.append(rule_id)
                continue
            named = Request(counted, tier=request.tier, rule_id=rule_id)
            rules += (await self.engine.reset(named)).rules
        return self._recorded(Reset(tuple(rules), tuple(shared)), request)

    def _recorded(self, reset: Reset, request: Request) -> Reset:
        """Take note of a reset, or say why nothing was."""
        if reset:
            self.recorder.was_reset(request, reset, self._api)
            return reset
        policy, now = self.engine.policy, self.engine.clock.now()
        return structs.replace(reset, reason=why_not_reset(policy, request, now))

    def _unmatched(self, error: UnknownRule) -> Ruling:
        """Return the answer to a request that names an unknown rule: it passes, unless the rules say otherwise."""
        policy = self.engine.policy
        if policy.ruleset.unknown_rule == "error":
            raise error
        return Ruling(True, Verdict.UNLIMITED, reason=str(error), version=policy.version)


def why_not_reset(policy: Policy, request: Request, now: int) -> str:
    """Say why there is nothing to reset for a request."""
    if not policy.rules:  # as with the files alone
        return "there are no rules; limits of Envoy's files cannot be reset"
    names = {principal_name(name) for name in request.principal}
    rules = {rule_id: rule for rule_id, rule in policy.rules.items() if rule.rule.enabled}
    counting = {rule_id for rule_id, rule in rules.items() if not names.isdisjoint(rule.dimensions)}
    if not counting:
        known = dict.fromkeys(name for rule in rules.values() for name in rule.dimensions)
        return f"no rule counts by {', '.join(map(shown, names)) or 'nothing'}; they count by {', '.join(known)}"
    explained = explain(policy, structs.replace(request, cost=0), now)
    if explained.selection.reason:
        return explained.selection.reason
    whys = [each for each in explained.rules if each.rule in counting and not each.reason.startswith("endpoint ")]
    told = "; ".join([f"{each.rule}: {each.reason}" for each in whys[:_TOLD]])
    return f"no rule that applies counts by that{f' ({told})' if told else ''}"

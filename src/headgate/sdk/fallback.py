"""Local decisions while the service is unavailable, by the last rules that it sent.

Each limit is decided in its own mode with this process's share, as while Redis is unavailable; see
`headgate.stores.fallback`. The last responses of the service are known here too, so a used-up limit stays used up. If
no rules were ever received, the setting `without_rules` decides, and an error is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TypeVar

from headgate.core.decision import Decision
from headgate.core.errors import StoreUnavailable, UsageError
from headgate.core.mode import Mode
from headgate.core.plan import Call, Limit, Verb, shadowed
from headgate.engine.ruling import Receipt, Ruling
from headgate.engine.verbs import Flow, Verbs
from headgate.flows import drive
from headgate.policy.compiled import Policy
from headgate.policy.loading import loads_json
from headgate.policy.model import Ruleset
from headgate.policy.request import Request
from headgate.policy.selection import Verdict
from headgate.sdk.settings import ClientSettings
from headgate.sdk.transport import FetchedRules, ServiceFailure
from headgate.stores.circuits import Reason
from headgate.stores.fallback import Fallback
from headgate.stores.memory import MAX_KEYS

LOUD_EVERY = 10.0
"""Seconds between log records about requests decided without rules."""
_LOG = logging.getLogger("headgate.sdk")
_LOCAL = ServiceFailure(Reason.CIRCUIT_OPEN, StoreUnavailable("it was decided locally"), 1)
T = TypeVar("T")


class ServiceFallback:
    """Decides in place of a service; thread-safe."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings, self._clock = settings, settings.clock
        self.verbs, self.has_rules = Verbs(Policy(Ruleset()), settings.mode, settings.clock), False
        """By the last rules of the service, or none."""
        self._fallback = Fallback(self._mode_of, settings.nodes, MAX_KEYS, settings.clock)
        self._silent_until = 0.0

    @property
    def policy(self) -> Policy:
        """The last rules of the service. Raises StoreUnavailable."""
        return self._known().policy

    def adopt(self, fetched: FetchedRules) -> None:
        """Decide by these rules from now on. Raises UsageError if they are invalid."""
        policy = Policy(
            loads_json(bytes(fetched.rules), name="rules of the service"),
            version=fetched.version,
            enforcing=fetched.enforcing,
        )
        self.verbs, self.has_rules = Verbs(policy, self._settings.mode, self._clock), True

    def record(self, ruling: Ruling, request: Request) -> None:
        verbs, decision = self.verbs, ruling.decision
        if not self.has_rules or decision is None:
            return
        try:
            selection = verbs.policy.select(request, self._clock.now(), takes_cost=False)
        except UsageError:  # the local rules are older
            return
        if selection.enforced.rules == ruling.rules:
            self._fallback.record(Call(Verb.CHECK, selection.enforced.plan), decision)

    def decide(self, request: Request, failure: ServiceFailure, verb: Callable[[Verbs], Flow[T]]) -> T | Ruling:
        """Return the result of a verb, decided locally; without rules, a ruling by the setting for that."""
        if not self.has_rules:
            return self._decide_without_rules(request, failure)
        return self._drive(verb(self.verbs), failure)

    def refund(self, ruling: Ruling) -> Ruling:
        return self._drive(self._known().refund(ruling), _LOCAL)

    def reset(self, request: Request, *, is_whole: bool) -> None:
        """Reset the local counts, beside those of the service."""
        if not self.has_rules:
            return
        flow = self.verbs.reset_all(request) if is_whole else self.verbs.reset(request)
        drive(flow, self._reset)

    def close(self) -> None:
        self._fallback.close()

    def _reset(self, calls: Sequence[Call]) -> Sequence[Decision]:
        for call in calls:
            self._fallback.reset(call.plan)
        return [self._fallback.answer(Call(Verb.PEEK, call.plan), 1) for call in calls]

    def _drive(self, flow: Flow[T], failure: ServiceFailure) -> T:
        return drive(flow, lambda calls: [self._decide(call, failure) for call in calls])

    def _decide(self, call: Call, failure: ServiceFailure) -> Decision:
        if call.shadow:
            return drive(shadowed(call), lambda each: self._decide(each, failure))
        return self._fallback.answer_for(call, failure.reason, failure.wait_us)

    def _decide_without_rules(self, request: Request, failure: ServiceFailure) -> Ruling:
        mode = self._settings.mode
        allowed = (self._settings.without_rules if mode is Mode.LOCAL else mode) is Mode.ALLOW
        now = monotonic()
        if now >= self._silent_until:
            self._silent_until = now + LOUD_EVERY
            _LOG.error(
                "the service is unavailable (%s), and its rules were never received: every request is %s",
                failure.error,
                "allowed" if allowed else "refused",
            )
        return Ruling(allowed, Verdict.UNDECIDED, reason=str(failure.reason), selection=Receipt(request, ""))

    def _mode_of(self, limit: Limit) -> Mode:
        return self.verbs.mode_of_limit(limit)  # by the last rules

    def _known(self) -> Verbs:
        if not self.has_rules:
            raise StoreUnavailable("the rules of the service are not known yet")
        return self.verbs

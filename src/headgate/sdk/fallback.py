"""Local decisions while the service is unavailable, by the last rules that it sent.

Each limit is decided in its own mode with this process's share, as while Redis is unavailable; see
`headgate.stores.fallback`. The last responses of the service are known here too, so a used-up limit stays used up. If
no rules were ever received, the setting `without_rules` decides, and an error is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic
from typing import TypeVar

from headgate.core.decision import Decision
from headgate.core.errors import StoreUnavailable, UsageError
from headgate.core.mode import Mode
from headgate.core.plan import Call, Limit, Verb, shadowed
from headgate.engine.ruling import Passed, Receipt, Ruling
from headgate.engine.verbs import Flow, Verbs
from headgate.flows import drive
from headgate.policy.compiled import Policy
from headgate.policy.loading import loads_json
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
        self._fallback = Fallback(self._mode_of, settings.nodes, MAX_KEYS, settings.clock)
        self._verbs: Verbs | None = None
        self._silent_until = 0.0

    @property
    def has_rules(self) -> bool:
        return self._verbs is not None

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
        self._verbs = Verbs(policy, self._settings.mode, self._clock)

    def mode_of(self, rule_id: str) -> Mode:
        return self._verbs.mode_of(rule_id) if self._verbs is not None else self._settings.mode

    def refusal_of(self, rule_id: str) -> tuple[int, str]:
        """Return status and message of a rule's refusals; the defaults before the rules are known."""
        return self._verbs.refusal_of(rule_id) if self._verbs is not None else (429, "")

    def record(self, ruling: Ruling, request: Request) -> None:
        """Remember a decision of the service."""
        verbs, decision = self._verbs, ruling.decision
        if verbs is None or decision is None:
            return
        try:
            selection = verbs.policy.select(request, self._clock.now(), asking=False)
        except UsageError:  # the local rules are older
            return
        if selection.enforced.rules == ruling.rules:
            self._fallback.record(Call(Verb.CHECK, selection.enforced.plan), decision)

    def check(self, request: Request, failure: ServiceFailure, idempotency_key: str = "") -> Ruling:
        verbs = self._verbs
        if verbs is None:
            return self._undecided(request, failure)
        if idempotency_key:
            return self._drive(verbs.check_once(request, idempotency_key), failure)
        return self._drive(verbs.check(verbs.asked(request)), failure)

    def peek(self, request: Request, failure: ServiceFailure) -> Ruling:
        verbs = self._verbs
        return self._undecided(request, failure) if verbs is None else self._drive(verbs.peek(request), failure)

    def is_passed(self, client_id: str, rule_id: str, failure: ServiceFailure) -> Passed:
        if self._verbs is not None:
            return self._drive(self._verbs.is_passed(client_id, rule_id), failure)
        return Passed(self._undecided(Request(rule_id=rule_id), failure).allowed, None, None, None)

    def refund(self, ruling: Ruling) -> Ruling:
        """Refund what was taken locally."""
        return self._drive(self._known().refund(ruling), _LOCAL)

    def reset(self, request: Request, *, is_whole: bool) -> None:
        """Reset the local counts, beside those of the service."""
        if self._verbs is None:
            return
        flow = self._verbs.reset_all(request) if is_whole else self._verbs.reset(request)
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

    def _undecided(self, request: Request, failure: ServiceFailure) -> Ruling:
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
        return self._verbs.mode_of_limit(limit) if self._verbs is not None else self._settings.mode

    def _known(self) -> Verbs:
        if self._verbs is None:
            raise StoreUnavailable("the rules of the service are not known yet")
        return self._verbs

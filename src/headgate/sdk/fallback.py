"""Who answers while the service is away: this process, by the rules of the service that it had last.

Each limit is answered in its own mode, with this process's share, as where Redis is away; see
`headgate.stores.fallback`. What the service said last is known here as well, so that a
limit that is used up does not begin anew. Where there never were any rules, a setting answers, and the log says so.
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
from headgate.sdk.transport import FetchedRules, Unanswered
from headgate.stores.circuits import Reason
from headgate.stores.fallback import Fallback
from headgate.stores.memory import MAX_KEYS

LOUD_EVERY = 10.0
"""Seconds for which nothing more is logged about requests that nobody can decide."""
_LOG = logging.getLogger("headgate.sdk")
_NOT_ASKED = Unanswered(Reason.CIRCUIT_OPEN, StoreUnavailable("it was decided here"), 1)
T = TypeVar("T")


class ServiceFallback:
    """Answers in place of a service; safe for threads."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings, self._clock = settings, settings.clock
        self._fallback = Fallback(self._mode_of, settings.nodes, MAX_KEYS, settings.clock)
        self._verbs: Verbs | None = None
        self._silent_until = 0.0

    @property
    def has_rules(self) -> bool:
        """Whether the rules of the service are known."""
        return self._verbs is not None

    @property
    def policy(self) -> Policy:
        """The rules of the service as they were last had. Raises StoreUnavailable."""
        return self._known().policy

    def adopt(self, fetched: FetchedRules) -> None:
        """Decide by these rules from now on. Raises UsageError if they cannot be understood."""
        policy = Policy(
            loads_json(bytes(fetched.rules), name="rules of the service"),
            version=fetched.version,
            enforcing=fetched.enforcing,
        )
        self._verbs = Verbs(policy, self._settings.mode, self._clock)

    def mode_of(self, rule_id: str) -> Mode:
        """Return what is answered for a rule while the service is away."""
        return self._verbs.mode_of(rule_id) if self._verbs is not None else self._settings.mode

    def refusal_of(self, rule_id: str) -> tuple[int, str]:
        """Return the status and the message of a rule's refusals; before the rules are known, the usual ones."""
        return self._verbs.refusal_of(rule_id) if self._verbs is not None else (429, "")

    def saw(self, ruling: Ruling, request: Request) -> None:
        """Note what the service has decided."""
        verbs, decision = self._verbs, ruling.decision
        if verbs is None or decision is None:
            return
        try:
            selection = verbs.policy.select(request, self._clock.now(), asking=False)
        except UsageError:  # the rules here are older
            return
        if selection.enforced.rules == ruling.rules:
            self._fallback.saw(Call(Verb.CHECK, selection.enforced.plan), decision)

    def check(self, request: Request, absence: Unanswered, idempotency_key: str = "") -> Ruling:
        """Check a request."""
        verbs = self._verbs
        if verbs is None:
            return self._undecided(request, absence)
        if idempotency_key:
            return self._driven(verbs.check_once(request, idempotency_key), absence)
        return self._driven(verbs.check(verbs.asked(request)), absence)

    def peek(self, request: Request, absence: Unanswered) -> Ruling:
        """Say what a check would answer."""
        verbs = self._verbs
        return self._undecided(request, absence) if verbs is None else self._driven(verbs.peek(request), absence)

    def is_passed(self, client_id: str, rule_id: str, absence: Unanswered) -> Passed:
        """Check one rule."""
        if self._verbs is not None:
            return self._driven(self._verbs.is_passed(client_id, rule_id), absence)
        return Passed(self._undecided(Request(rule_id=rule_id), absence).allowed, None, None, None)

    def refund(self, ruling: Ruling) -> Ruling:
        """Give back what was taken here."""
        return self._driven(self._known().refund(ruling), _NOT_ASKED)

    def forget(self, request: Request, *, is_whole: bool) -> None:
        """Forget what was used here: the service is asked to do the same."""
        if self._verbs is None:
            return
        flow = self._verbs.reset_all(request) if is_whole else self._verbs.reset(request)
        drive(flow, self._forgotten)

    def close(self) -> None:
        """Forget all."""
        self._fallback.close()

    def _forgotten(self, calls: Sequence[Call]) -> Sequence[Decision]:
        for call in calls:
            self._fallback.reset(call.plan)
        return [self._fallback.answer(Call(Verb.PEEK, call.plan), 1) for call in calls]

    def _driven(self, flow: Flow[T], absence: Unanswered) -> T:
        return drive(flow, lambda calls: [self._decided(call, absence) for call in calls])

    def _decided(self, call: Call, absence: Unanswered) -> Decision:
        if call.shadow:
            return drive(shadowed(call), lambda each: self._decided(each, absence))
        return self._fallback.instead(call, absence.reason, absence.wait_us)

    def _undecided(self, request: Request, absence: Unanswered) -> Ruling:
        mode = self._settings.mode
        allowed = (self._settings.without_rules if mode is Mode.LOCAL else mode) is Mode.ALLOW
        now = monotonic()
        if now >= self._silent_until:
            self._silent_until = now + LOUD_EVERY
            _LOG.error(
                "the service is away (%s), and its rules were never had: every request is %s",
                absence.error,
                "let pass" if allowed else "refused",
            )
        return Ruling(allowed, Verdict.UNDECIDED, reason=str(absence.reason), selection=Receipt(request, ""))

    def _mode_of(self, limit: Limit) -> Mode:
        return self._verbs.mode_of_limit(limit) if self._verbs is not None else self._settings.mode

    def _known(self) -> Verbs:
        if self._verbs is None:
            raise StoreUnavailable("the rules of the service are not known yet")
        return self._verbs

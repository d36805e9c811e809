"""The verbs of clients as flows without I/O; see `headgate.flows`.

A step is a sequence of checks, which may share a batch, or the function of one other call, which may be sent again:
the service resets any number of times, and refunds a charge only once. The fallback decides what the service does
not answer, except for `reset`, which raises.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from msgspec import structs

from headgate.core.errors import InvalidQuota, OutcomeUnknown, UsageError
from headgate.core.key import checked_once
from headgate.engine.ruling import Explained, Passed, Receipt, Reset, Ruling, as_passed, with_states
from headgate.engine.ruling_json import RulingMessage
from headgate.policy.explain import explain
from headgate.policy.request import Request, UnknownRule
from headgate.policy.request_facts import check_text
from headgate.sdk.fallback import ServiceFallback
from headgate.sdk.session import Send
from headgate.sdk.settings import ClientSettings
from headgate.sdk.transport import Check, Outcome, ServiceFailure, result_of, validate
from headgate.stores.circuits import Reason

T = TypeVar("T")


FRESH_RULES = "fresh rules"
"""The step that fetches the rules in force."""
Step: TypeAlias = Sequence[Check] | Send | str
Flow: TypeAlias = Generator[Step, Sequence[Any], T]


class ClientVerbs:
    def __init__(self, settings: ClientSettings) -> None:
        self.fallback = ServiceFallback(settings)
        self._clock = settings.clock

    def check(self, request: Request, idempotency_key: str = "") -> Flow[Ruling]:
        (outcome,) = yield (Check(request, idempotency_key=idempotency_key),)
        return self._decide(request, outcome, idempotency_key)

    def check_once(self, request: Request, idempotency_key: str) -> Flow[Ruling]:
        return self.check(request, checked_once(idempotency_key))

    def check_batch(self, requests: Sequence[Request]) -> Flow[tuple[Ruling | UsageError, ...]]:
        outcomes = yield tuple([Check(request) for request in requests])
        return tuple([self._or_error(request, each) for request, each in zip(requests, outcomes, strict=True)])

    def peek(self, request: Request) -> Flow[Ruling]:
        (outcome,) = yield (Check(request, consume=False),)
        return self._or_locally(request, self._ruling(request, outcome))

    def is_passed(self, client_id: str, rule_id: str) -> Flow[Passed]:
        check_text(client_id=client_id, rule_id=rule_id)
        request, now = Request(rule_id=rule_id), self._clock.now()
        (outcome,) = yield (Check(request, client_id=client_id),)
        ruling = self._ruling(request, outcome)
        if isinstance(ruling, ServiceFailure):
            decided = self.fallback.decide(request, ruling, lambda verbs: verbs.is_passed(client_id, rule_id))
            return decided if isinstance(decided, Passed) else as_passed(decided, now)
        return as_passed(ruling, now)

    def refund(self, request: Request | Ruling, charge: str = "") -> Flow[Ruling]:
        if isinstance(request, Ruling):
            kept = request.selection
            if not isinstance(kept, Receipt):
                return self.fallback.refund(request)  # decided locally
            if not kept.charge:
                return (yield from self.peek(kept.request))
            receipt = kept
        else:
            check_text(charge=charge)
            if not charge:
                raise UsageError("a client refunds by charge: refund(ruling), or refund(request, charge_of(ruling))")
            receipt = Receipt(request, charge)

        async def send(transport: Any, _: object, seconds: float) -> Sequence[RulingMessage]:
            return [await transport.refund(receipt.request, receipt.charge, seconds)]

        (outcome,) = yield send
        about = structs.replace(receipt.request, cost=1)
        return self._or_locally(about, self._ruling(receipt.request, outcome))

    def reset(self, request: Request, *, is_whole: bool = False) -> Flow[Reset]:
        async def send(transport: Any, _: object, seconds: float) -> Sequence[Reset]:
            return [await transport.reset(request, seconds, is_whole=is_whole)]

        if is_whole and isinstance(request, Request):
            request = Request(request.principal, tier=request.tier)
        validate(request)
        self.fallback.reset(request, is_whole=is_whole)
        (outcome,) = yield send
        reset: Reset = result_of(outcome)
        return reset

    def explain(self, request: Request) -> Flow[Explained]:
        (failure,) = yield FRESH_RULES
        policy = self.fallback.policy if isinstance(failure, ServiceFailure) else result_of(failure)
        explanation = explain(policy, request, self._clock.now())
        return with_states(explanation, (yield from self.peek(request)))

    def _decide(self, request: Request, outcome: Outcome | ServiceFailure, idempotency_key: str = "") -> Ruling:
        ruling = self._ruling(request, outcome)
        if not isinstance(ruling, ServiceFailure):
            self.fallback.record(ruling, request)
            return ruling
        if idempotency_key:
            return self.fallback.decide(request, ruling, lambda verbs: verbs.check_once(request, idempotency_key))
        return self.fallback.decide(request, ruling, lambda verbs: verbs.check(verbs.select(request)))

    def _or_locally(self, request: Request, ruling: Ruling | ServiceFailure) -> Ruling:
        if isinstance(ruling, ServiceFailure):
            return self.fallback.decide(request, ruling, lambda verbs: verbs.peek(request))
        return ruling

    def _or_error(self, request: Request, outcome: Outcome | ServiceFailure) -> Ruling | UsageError:
        try:
            return self._decide(request, outcome)
        except UsageError as error:
            return error

    def _ruling(self, request: Request, outcome: Outcome | ServiceFailure) -> Ruling | ServiceFailure:
        if isinstance(outcome, UnknownRule):
            raise UnknownRule(request.rule_id, text=str(outcome))
        if isinstance(outcome, UsageError):
            raise outcome
        if isinstance(outcome, ServiceFailure):
            return outcome
        try:
            return outcome.ruling(request)
        except InvalidQuota as error:
            unknown = OutcomeUnknown(f"the service responded, but is not a Headgate service: {error}")
            return ServiceFailure(Reason.OUTCOME_UNKNOWN, unknown, 1)

"""The verbs of clients as flows without I/O; see `headgate.flows`.

A step is a sequence of checks, which may share a batch, or one other call. The fallback decides what the service does
not answer, except for `reset`, which raises.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from msgspec import structs

from headgate.core.errors import InvalidQuota, OutcomeUnknown, UsageError
from headgate.core.key import checked_once
from headgate.engine.ruling import Explained, Passed, Receipt, Reset, Ruling, joined, passed
from headgate.engine.written import WrittenRuling
from headgate.policy.explain import explain
from headgate.policy.facts import check_text
from headgate.policy.request import Request, UnknownRule
from headgate.sdk.fallback import ServiceFallback
from headgate.sdk.session import Send
from headgate.sdk.settings import ClientSettings
from headgate.sdk.transport import Check, Outcome, ServiceFailure, checked, result_of
from headgate.stores.circuits import Reason

T = TypeVar("T")


class UnbatchedCall(NamedTuple):
    """A call outside batches."""

    send: Send
    is_repeatable: bool = False


FRESH_RULES = "fresh rules"
"""The step that fetches the rules in force."""
Step: TypeAlias = Sequence[Check] | UnbatchedCall | str
Flow: TypeAlias = Generator[Step, Sequence[Any], T]


class ClientVerbs:
    def __init__(self, settings: ClientSettings) -> None:
        self.fallback = ServiceFallback(settings)
        self._clock = settings.clock

    def check(self, request: Request, idempotency_key: str = "") -> Flow[Ruling]:
        (outcome,) = yield (Check(request, idempotency_key=idempotency_key),)
        return self._checked(request, outcome, idempotency_key)

    def check_once(self, request: Request, idempotency_key: str) -> Flow[Ruling]:
        return self.check(request, checked_once(idempotency_key))

    def check_batch(self, requests: Sequence[Request]) -> Flow[tuple[Ruling | UsageError, ...]]:
        outcomes = yield tuple([Check(request) for request in requests])
        return tuple([self._or_error(request, each) for request, each in zip(requests, outcomes, strict=True)])

    def peek(self, request: Request) -> Flow[Ruling]:
        (outcome,) = yield (Check(request, consume=False),)
        ruling = self._ruling(request, outcome)
        return self.fallback.peek(request, ruling) if isinstance(ruling, ServiceFailure) else ruling

    def is_passed(self, client_id: str, rule_id: str) -> Flow[Passed]:
        check_text(client_id=client_id, rule_id=rule_id)
        request, now = Request(rule_id=rule_id), self._clock.now()
        (outcome,) = yield (Check(request, client_id=client_id),)
        ruling = self._ruling(request, outcome)
        if isinstance(ruling, ServiceFailure):
            return self.fallback.is_passed(client_id, rule_id, ruling)
        return passed(ruling, now)

    def refund(self, request: Request | Ruling, charge: str = "") -> Flow[Ruling]:
        if not isinstance(request, Ruling):
            check_text(charge=charge)
            if not charge:
                right = "refund(ruling), or refund(request, charge_of(ruling))"
                raise UsageError(f"a client refunds by charge: {right}")
            return (yield from self._refund(Receipt(request, charge)))
        receipt = request.selection
        if not isinstance(receipt, Receipt):
            return self.fallback.refund(request)  # decided locally
        return (yield from self._refund(receipt))

    def _refund(self, receipt: Receipt) -> Flow[Ruling]:
        """Refund a receipt's charge, which the service does only once."""

        async def send(transport: Any, _: object, seconds: float) -> Sequence[WrittenRuling]:
            return [await transport.refund(request, charge, seconds)]

        request, charge = receipt.request, receipt.charge
        if not charge:
            return (yield from self.peek(request))
        (outcome,) = yield UnbatchedCall(send, is_repeatable=True)
        answer = self._ruling(request, outcome)
        if isinstance(answer, ServiceFailure):
            return self.fallback.peek(structs.replace(request, cost=1), answer)
        return answer

    def reset(self, request: Request, *, is_whole: bool = False) -> Flow[Reset]:
        async def send(transport: Any, _: object, seconds: float) -> Sequence[Reset]:
            return [await transport.reset(request, seconds, is_whole=is_whole)]

        if is_whole and isinstance(request, Request):
            request = Request(request.principal, tier=request.tier)
        checked(request)
        self.fallback.reset(request, is_whole=is_whole)
        (outcome,) = yield UnbatchedCall(send, is_repeatable=True)
        reset: Reset = result_of(outcome)
        return reset

    def explain(self, request: Request) -> Flow[Explained]:
        (failure,) = yield FRESH_RULES
        policy = self.fallback.policy if isinstance(failure, ServiceFailure) else result_of(failure)
        explanation = explain(policy, request, self._clock.now())
        return joined(explanation, (yield from self.peek(request)))

    def _checked(self, request: Request, outcome: Outcome | ServiceFailure, idempotency_key: str = "") -> Ruling:
        ruling = self._ruling(request, outcome)
        if isinstance(ruling, ServiceFailure):
            return self.fallback.check(request, ruling, idempotency_key)
        self.fallback.record(ruling, request)
        return ruling

    def _or_error(self, request: Request, outcome: Outcome | ServiceFailure) -> Ruling | UsageError:
        try:
            return self._checked(request, outcome)
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
            unknown = OutcomeUnknown(f"the service answers, but not like Headgate: {error}")
            return ServiceFailure(Reason.OUTCOME_UNKNOWN, unknown, 1)

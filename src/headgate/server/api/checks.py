"""``POST /api/v1/rate-limit/check``: one question, one answer. The hot path of HTTP begins and ends here.

And ``/reset``, which takes the same bodies.
"""

from __future__ import annotations

from time import perf_counter_ns

import msgspec

from headgate.core.errors import InvalidCost, StoreError, UsageError
from headgate.engine import Ruling
from headgate.engine.charges import InvalidCharge
from headgate.server.api.answer import Answers
from headgate.server.api.body import InvalidBody, Question, question
from headgate.server.api.idempotency import key_in
from headgate.server.api.timestamps import Timestamps
from headgate.server.decisions import Decisions
from headgate.server.wire.messages import Fields, HttpRequest, HttpResponse
from headgate.web.problem import CONTENT_TYPE, Problem, bad_request, of_status

PROBLEM = (b"content-type", CONTENT_TYPE.encode())

_CHARGE = "the charge that the answer to a check named, which was asked for with `refundable`"
_COST = "is what the request takes, 0 to 100000, and no more than a limit can ever admit"


class Checks:
    """Answers questions.

    Args:
        decisions: what decides.
        answers: what makes responses of rulings.
        timestamps: what clients' timestamps may be.
    """

    def __init__(self, decisions: Decisions, answers: Answers, timestamps: Timestamps) -> None:
        self._resets, self._refunds = decisions.via("reset"), decisions.via("refund")
        decisions = decisions.via("check")
        self._decisions, self._timestamps = decisions, timestamps
        self.now, self._answers = decisions.engine.clock.now, answers
        self._check, self._response, self._called = decisions.check, answers.response, decisions.recorder.called

    async def check(self, request: HttpRequest) -> HttpResponse:
        """Answer a request."""
        began, now = perf_counter_ns(), self.now()
        try:
            asked, key = question(request.body), key_in(request.headers)
            if isinstance(asked, Question):
                ruling = await self.decide(asked, key, now)
            else:
                ruling = await self._check(asked, key)
        except (UsageError, StoreError) as error:
            return self._failed("check", error, began)
        if isinstance(asked, Question) and asked.refundable:
            response = self._answers.written_out(ruling, now, refundable=True)
        else:
            response = self._response(ruling, now)
        self._called("check", "allowed" if ruling.allowed else "denied", perf_counter_ns() - began)
        return response

    async def refund(self, request: HttpRequest) -> HttpResponse:
        """Give back what a charge took; answers what a check would be told now."""
        began, now = perf_counter_ns(), self.now()
        try:
            asked = question(request.body)
            if not isinstance(asked, Question) or not asked.charge:
                raise InvalidBody("the body does not say what to give back", ("/charge", f"is missing: {_CHARGE}"))
            ruling = await self._refunds.refund(asked.request, asked.charge)
        except (UsageError, StoreError) as error:
            return self._failed("refund", error, began)
        self._called("refund", "allowed", perf_counter_ns() - began)
        return self._response(ruling, now)

    async def reset(self, request: HttpRequest) -> HttpResponse:
        """Forget what somebody used. Without an endpoint and a rule: of all limits counted by who is named."""
        began = perf_counter_ns()
        try:
            asked = question(request.body)
            named = asked.request if isinstance(asked, Question) else asked
            if not named.rule_id and "endpoint" not in msgspec.json.decode(request.body):
                reset = await self._resets.reset_all(named)
            else:
                reset = await self._resets.reset(named)
        except (UsageError, StoreError) as error:
            return self._failed("reset", error, began)
        self._called("reset", "allowed", perf_counter_ns() - began)
        told = {"success": bool(reset), "rules": reset.rules, "shared": reset.shared, "reason": reset.reason}
        body = msgspec.json.encode(told)
        return HttpResponse(200, body, ((b"content-type", b"application/json"), (b"cache-control", b"no-store")))

    def _failed(self, api: str, error: UsageError | StoreError, began: int) -> HttpResponse:
        self._called(api, "error", perf_counter_ns() - began)
        if api == "reset" and isinstance(error, StoreError):
            detail = "the store did not answer: not all is reset, perhaps nothing; send it again"
            return problem_response(of_status(503, detail))
        return problem_response(problem_of(error))

    async def decide(self, asked: Question, key: str, now: int) -> Ruling:
        """Decide a question that came at `now` with this idempotency key in a header, or an empty one."""
        if asked.charge:
            raise InvalidBody("a check has no charge yet", ("/charge", "is sent to /api/v1/rate-limit/refund"))
        if asked.timestamp is not None:
            self._timestamps.check(asked.timestamp, now)
        if asked.idempotency_key:
            if key and key != asked.idempotency_key:
                raise InvalidBody(
                    "the header and the body have different idempotency keys",
                    ("/idempotency_key", "is the same as in the header, or only in one of them"),
                )
            key = asked.idempotency_key
        try:
            if asked.consume:
                return await self._decisions.check(asked.request, key)
            return await self._decisions.peek(asked.request)
        except InvalidCost as error:
            raise InvalidBody(str(error), (f"/{asked.cost_member}", _COST)) from None


def problem_of(error: UsageError | StoreError) -> Problem:
    """Return what is answered to a question that cannot be."""
    if isinstance(error, StoreError):
        return of_status(503, "the store did not answer; nothing is known about this request")
    if isinstance(error, InvalidBody):
        return bad_request(str(error), error.errors)
    if isinstance(error, InvalidCharge):
        return bad_request(str(error), [("/charge", f"is {_CHARGE}")])
    if isinstance(error, InvalidCost):
        return bad_request(str(error), [("/cost", _COST)])
    return bad_request(str(error))


def problem_response(problem: Problem, *more: tuple[bytes, bytes]) -> HttpResponse:
    """Return a problem as a response, with more header fields."""
    fields: Fields = (PROBLEM, (b"cache-control", b"no-store"), *more)
    if problem.status == 503:
        fields = (*fields, (b"retry-after", b"1"))
    return HttpResponse(problem.status, problem.encode(), fields)

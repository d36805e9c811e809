"""Checks over HTTP. The hot path of HTTP begins and ends here.

=======================================  =====================================================================
``POST /api/v1/rate-limit/check``        one question, one answer
``POST /api/v1/rate-limit/batch``        many questions, each with its own answer or its own problem
``POST /api/v1/rate-limit/refund``       gives back what a check took
``POST /api/v1/rate-limit/reset``        forgets what somebody used
=======================================  =====================================================================

All of them take the bodies of `questions`; a batch takes a list of them::

    {"requests": [{"principal": {"user": "u1"}, "endpoint": "/a"}, {"key_type": "user", ...}, ...]}
    {"results": [{"allowed": true, ...}, {"error": {"status": 400, "title": "Bad Request", ...}}, ...]}

They are decided at the same time, so that a store on the network hears of all of them at once; in memory in their
order. They are not all or nothing: each stands alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from time import perf_counter_ns
from typing import Any

import msgspec

from headgate.core.errors import InvalidCost, StoreError, UsageError
from headgate.engine import AsyncEngine, Ruling, SelectedCheck
from headgate.engine.charges import InvalidCharge
from headgate.engine.written import code_of
from headgate.policy.compiled import Policy
from headgate.policy.request import Request
from headgate.server.api.answers import JSON, CheckAnswers
from headgate.server.api.questions import (
    CheckQuestion,
    InvalidBody,
    Timestamps,
    key_in,
    question,
    refuse_repeated,
    unreadable,
)
from headgate.server.decisions import Decisions
from headgate.server.recurring import RecurringQuestions
from headgate.server.wire import eager
from headgate.server.wire.admission import AdmitMore, admit_any
from headgate.server.wire.grpc.calls import UnaryCall
from headgate.server.wire.messages import Fields, HttpRequest, HttpResponse
from headgate.web.problem import CONTENT_TYPE, ProblemDocument, bad_request, of_status

PROBLEM = (b"content-type", CONTENT_TYPE.encode())
MOST = 1000
"""Questions in one batch."""
_CHARGE = "the charge that the answer to a check named, which was asked for with `refundable`"
_COST = "is what the request takes, 0 to 100000, and no more than a limit can ever admit"
_ACCEPTED = {"requests": f"a list of 1 to {MOST} questions, each as the check has them"}
_TYPES: dict[str, tuple[type, ...]] = {"requests": (list,)}


class _Batch(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    requests: list[msgspec.Raw]


class UnderstoodCheck(msgspec.Struct, gc=False):
    """A question, and what it asks of the store."""

    question: CheckQuestion
    selected: SelectedCheck | None = None


class RecurringChecks(RecurringQuestions[UnderstoodCheck]):
    """Remembers checks, over HTTP or gRPC, and decides them."""

    __slots__ = ("_timestamps",)

    def __init__(self, policy: Policy, timestamps: Timestamps) -> None:
        super().__init__(policy)
        self._timestamps = timestamps

    def decide(
        self, engine: AsyncEngine, understood: UnderstoodCheck, key: str, now: int
    ) -> Ruling | Awaitable[Ruling]:
        """Decide a question that came at `now` with this idempotency key beside it, or an empty one."""
        ruling = self._decided(engine, understood, key, now)
        asked = understood.question
        if (asked.refundable or asked.exact) and not engine.seal:
            return engine.sealed(ruling)
        return ruling

    def _decided(
        self, engine: AsyncEngine, understood: UnderstoodCheck, key: str, now: int
    ) -> Ruling | Awaitable[Ruling]:
        asked, before = understood.question, understood.selected
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
        request = named(engine.policy, asked) if asked.rule_id else asked
        if not asked.consume:
            return engine.peek(request)
        if key:
            return engine.check_once(request, key)
        selected = engine.asked(request, before)
        if selected is not before:
            self.select(understood, selected)
        return engine.decide(request, selected)

    async def undo(self, engine: AsyncEngine, understood: UnderstoodCheck, key: str, ruling: Ruling) -> None:
        """Refund what an abandoned request took.

        One with an idempotency key keeps its charge: it will be sent again, and then passes by the same charge.
        """
        asked = understood.question
        if asked.consume and not (key or asked.idempotency_key):
            await engine.undo((ruling,))


def outcome_of(call: HttpRequest | UnaryCall, *, allowed: bool = True) -> str:
    """Return how a call of an API ended, for metrics."""
    return "cancelled" if call.is_abandoned else "allowed" if allowed else "denied"


_decode_batch = msgspec.json.Decoder(_Batch).decode


class Checks:
    """Answers questions.

    Args:
        decisions: what decides.
        answers: what makes responses of rulings.
        timestamps: what clients' timestamps may be.
        admit_more: asked whether so many questions of a batch beyond the first are let in.
    """

    def __init__(
        self, decisions: Decisions, answers: CheckAnswers, timestamps: Timestamps, admit_more: AdmitMore = admit_any
    ) -> None:
        self._resets, self._refunds = decisions.via("reset").engine, decisions.via("refund").engine
        self._engine, self._admit_more = decisions.via("check").engine, admit_more
        self._now, self._answers = decisions.engine.clock.now, answers
        self._recorder, self._called = decisions.recorder, decisions.recorder.called
        self._recurring = RecurringChecks(self._engine.policy, timestamps)

    def check(self, request: HttpRequest) -> HttpResponse | Coroutine[Any, Any, HttpResponse]:
        """Answer a question: at once, unless the store makes it wait."""
        began, now, asked = perf_counter_ns(), self._now(), None
        try:
            understood = self._recurring.get(request.body) or self._read(request.body)
            asked = understood.question
            ruling = self._recurring.decide(self._engine, understood, key_in(request.headers), now)
        except (UsageError, StoreError) as error:
            return self._failed("check", error, began, asked)
        if isinstance(ruling, Ruling):
            return self._answered(request, asked, ruling, began, now)
        return self._awaited(request, understood, ruling, began, now)

    async def _awaited(
        self, request: HttpRequest, understood: UnderstoodCheck, ruling: Awaitable[Ruling], began: int, now: int
    ) -> HttpResponse:
        asked = understood.question
        try:
            decided = await ruling
            if request.is_abandoned:
                await self._recurring.undo(self._engine, understood, key_in(request.headers), decided)
        except (UsageError, StoreError) as error:
            return self._failed("check", error, began, asked)
        return self._answered(request, asked, decided, began, now)

    def _answered(
        self, request: HttpRequest, asked: CheckQuestion, ruling: Ruling, began: int, now: int
    ) -> HttpResponse:
        response = self._answers.response(
            ruling, now, refundable=asked.refundable, exact=asked.exact, seal=self._engine.seal
        )
        self._called("check", outcome_of(request, allowed=ruling.allowed), perf_counter_ns() - began)
        return response

    async def batch(self, request: HttpRequest) -> HttpResponse:
        """Answer many questions at once."""
        began, now = perf_counter_ns(), self._now()
        try:
            questions, key = _questions(request.body), key_in(request.headers)
        except InvalidBody as error:
            return self._failed("batch", error, began)
        if (refusal := self._admit_more(len(questions) - 1, request.peer)) is not None:
            self._recorder.shed("batch")
            return refusal.response()
        results = await eager.together(
            [
                self._result(bytes(body), f"{key}#{place}" if key else "", now, request)
                for place, body in enumerate(questions)
            ]
        )
        self._called("batch", outcome_of(request), perf_counter_ns() - began)
        return HttpResponse(200, b'{"results":[%b]}' % b",".join(results), (JSON,))

    async def refund(self, request: HttpRequest) -> HttpResponse:
        """Give back what a charge took; answers what a check would be told now."""
        began, now = perf_counter_ns(), self._now()
        try:
            asked = question(request.body)
            if not asked.charge:
                raise InvalidBody("the body does not say what to give back", ("/charge", f"is missing: {_CHARGE}"))
            ruling = await self._refunds.refund(named(self._engine.policy, asked), asked.charge)
        except (UsageError, StoreError) as error:
            return self._failed("refund", error, began)
        self._called("refund", "allowed", perf_counter_ns() - began)
        return self._answers.response(ruling, now, exact=asked.exact, seal=self._engine.seal)

    async def reset(self, request: HttpRequest) -> HttpResponse:
        """Forget what somebody used. Without an endpoint and a rule: of all limits counted by who is named."""
        began = perf_counter_ns()
        try:
            asked = question(request.body)
            whose = named(self._engine.policy, asked)
            is_whole = not (whose.rule_id or asked.has_endpoint)
            reset = await (self._resets.reset_all(whose) if is_whole else self._resets.reset(whose))
        except (UsageError, StoreError) as error:
            return self._failed("reset", error, began)
        self._called("reset", "allowed", perf_counter_ns() - began)
        told = {"success": bool(reset), "rules": reset.rules, "shared": reset.shared, "reason": reset.reason}
        return HttpResponse(200, msgspec.json.encode(told), (JSON, (b"cache-control", b"no-store")))

    async def _result(self, body: bytes, key: str, now: int, request: HttpRequest) -> bytes:
        """Return the answer to one question of a batch, or its problem."""
        asked = None
        try:
            understood = self._recurring.get(body) or self._read(body)
            asked = understood.question
            ruling = self._recurring.decide(self._engine, understood, "" if asked.idempotency_key else key, now)
            if not isinstance(ruling, Ruling):
                ruling = await ruling
            if request.is_abandoned:
                await self._recurring.undo(self._engine, understood, key, ruling)
        except (UsageError, StoreError) as error:
            return b'{"error":%b}' % problem_of(error, asked).encode()
        return self._answers.response(
            ruling, now, refundable=asked.refundable, exact=asked.exact, seal=self._engine.seal
        ).body

    def _read(self, body: bytes) -> UnderstoodCheck:
        """Return what a body asks. Raises InvalidBody."""
        return self._recurring.remember(body, UnderstoodCheck(question(body)), body.count(b":"))

    def _failed(
        self, api: str, error: UsageError | StoreError, began: int, asked: CheckQuestion | None = None
    ) -> HttpResponse:
        self._called(api, "error", perf_counter_ns() - began)
        if api == "reset" and isinstance(error, StoreError):
            detail = "the store did not answer: not all is reset, perhaps nothing; send it again"
            return problem_response(of_status(503, detail))
        return problem_response(problem_of(error, asked))


def _questions(body: bytes) -> list[msgspec.Raw]:
    try:
        batch = _decode_batch(body)
    except (ValueError, RecursionError) as error:
        raise unreadable(error, body, _ACCEPTED, _TYPES) from None
    if not 1 <= len(batch.requests) <= MOST:
        told = f"has {len(batch.requests)} elements: 1 to {MOST} are accepted"
        raise InvalidBody("the batch is too small or too large", ("/requests", told))
    refuse_repeated(body, 1 + sum([bytes(each).count(b":") for each in batch.requests]))
    return batch.requests


def named(policy: Policy, asked: CheckQuestion) -> Request:
    """Return what is asked about; the rules say what an identifier is, and whether a rule may be unknown."""
    if not asked.client_id:
        return asked
    found = policy.request_of(asked.client_id, asked.rule_id)
    endpoint = asked.endpoint if asked.has_endpoint else found.endpoint
    return msgspec.structs.replace(asked, principal=found.principal, endpoint=endpoint)


def problem_of(error: UsageError | StoreError, asked: CheckQuestion | None = None) -> ProblemDocument:
    """Return what is answered to a question that cannot be; `asked` is what it was understood as, if it was."""
    if isinstance(error, StoreError):
        return of_status(503, "the store did not answer; nothing is known about this request")
    if isinstance(error, InvalidBody):
        return bad_request(str(error), error.errors, code=error.code)
    wrong: list[tuple[str, str]] = []
    if isinstance(error, InvalidCharge):
        wrong = [("/charge", f"is {_CHARGE}")]
    elif isinstance(error, InvalidCost):
        wrong = [(f"/{asked.cost_member if asked else 'cost'}", _COST)]
    return bad_request(str(error), wrong, code=code_of(error))


def problem_response(problem: ProblemDocument, *more: tuple[bytes, bytes]) -> HttpResponse:
    """Return a problem as a response, with more header fields."""
    fields: Fields = (PROBLEM, (b"cache-control", b"no-store"), *more)
    if problem.status == 503:
        fields = (*fields, (b"retry-after", b"1"))
    return HttpResponse(problem.status, problem.encode(), fields)

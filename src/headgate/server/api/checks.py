"""Checks over HTTP. The hot path of HTTP begins and ends here.

=======================================  =====================================================================
``POST /api/v1/rate-limit/check``        one check
``POST /api/v1/rate-limit/batch``        many checks, each with its own result or problem
``POST /api/v1/rate-limit/refund``       refunds the cost of a check
``POST /api/v1/rate-limit/reset``        resets the usage of a principal
=======================================  =====================================================================

Their bodies are those of `bodies`; a batch has a list of them::

    {"requests": [{"principal": {"user": "u1"}, "endpoint": "/a"}, {"key_type": "user", ...}, ...]}
    {"results": [{"allowed": true, ...}, {"error": {"status": 400, "title": "Bad Request", ...}}, ...]}

The checks of a batch are independent of each other. They are decided at the same time, so that a store on the network
receives them together; in memory, they are decided in order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from time import perf_counter_ns
from typing import Any

import msgspec

from headgate import eager
from headgate.core.errors import InvalidCost, StoreError, UsageError
from headgate.engine import AsyncEngine, Ruling, SelectedCheck
from headgate.engine.charges import InvalidCharge
from headgate.engine.ruling_json import code_of
from headgate.policy.compiled import Policy
from headgate.policy.request import Request
from headgate.server.api.answers import JSON, CheckAnswers
from headgate.server.api.bodies import (
    CheckBody,
    InvalidBody,
    Timestamps,
    key_in,
    parse_body,
    refuse_repeated,
    unreadable,
)
from headgate.server.decisions import Decisions
from headgate.server.recurring import RecurringRequests
from headgate.server.wire.admission import AdmitMore, admit_any
from headgate.server.wire.grpc.calls import UnaryCall
from headgate.server.wire.messages import Fields, HttpRequest, HttpResponse
from headgate.web.problem import CONTENT_TYPE, ProblemDocument, bad_request, of_status

PROBLEM = (b"content-type", CONTENT_TYPE.encode())
MOST = 1000
"""Checks in one batch."""
_CHARGE = "the charge in the response to a check that was sent with `refundable`"
_COST = "is the cost of the request, 0 to 100000, and no more than a limit can ever admit"
_ACCEPTED = {"requests": f"a list of 1 to {MOST} objects, each like the body of a check"}
_TYPES: dict[str, tuple[type, ...]] = {"requests": (list,)}


class _Batch(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    requests: list[msgspec.Raw]


class ParsedCheck(msgspec.Struct, gc=False):
    """A parsed check, and its selected limits."""

    check: CheckBody
    selected: SelectedCheck | None = None


class RecurringChecks(RecurringRequests[ParsedCheck]):
    """Caches and decides checks, over HTTP or gRPC."""

    __slots__ = ("_timestamps",)

    def __init__(self, policy: Policy, timestamps: Timestamps) -> None:
        super().__init__(policy)
        self._timestamps = timestamps

    def decide(self, engine: AsyncEngine, parsed: ParsedCheck, key: str, now: int) -> Ruling | Awaitable[Ruling]:
        """Decide a check that arrived at `now`; `key` is the idempotency key of its headers, or empty."""
        ruling = self._decided(engine, parsed, key, now)
        check = parsed.check
        if (check.refundable or check.exact) and not engine.seal:
            return engine.with_secret(ruling)
        return ruling

    def _decided(self, engine: AsyncEngine, parsed: ParsedCheck, key: str, now: int) -> Ruling | Awaitable[Ruling]:
        check, before = parsed.check, parsed.selected
        if check.charge:
            raise InvalidBody("a check has no charge", ("/charge", "is accepted only by /api/v1/rate-limit/refund"))
        if check.timestamp is not None:
            self._timestamps.check(check.timestamp, now)
        if check.idempotency_key:
            if key and key != check.idempotency_key:
                raise InvalidBody(
                    "the header and the body have different idempotency keys",
                    ("/idempotency_key", "must be the same as in the header, or only in one of them"),
                )
            key = check.idempotency_key
        request = named(engine.policy, check) if check.rule_id else check
        if not check.consume:
            return engine.peek(request)
        if key:
            return engine.check_once(request, key)
        selected = engine.select(request, before)
        if selected is not before:
            self.select(parsed, selected)
        return engine.decide(request, selected)

    async def undo(self, engine: AsyncEngine, parsed: ParsedCheck, key: str, ruling: Ruling) -> None:
        """Refund the cost of an abandoned request, unless it has an idempotency key: its retry reuses the charge."""
        check = parsed.check
        if check.consume and not (key or check.idempotency_key):
            await engine.undo((ruling,))


def outcome_of(call: HttpRequest | UnaryCall, *, allowed: bool = True) -> str:
    """Return the outcome of a call of an API, for metrics."""
    return "cancelled" if call.is_abandoned else "allowed" if allowed else "denied"


_decode_batch = msgspec.json.Decoder(_Batch).decode


class Checks:
    """The handlers of checks; `admit_more` admits the further checks of a batch."""

    def __init__(
        self, decisions: Decisions, answers: CheckAnswers, timestamps: Timestamps, admit_more: AdmitMore = admit_any
    ) -> None:
        self._resets, self._refunds = decisions.via("reset").engine, decisions.via("refund").engine
        self._engine, self._admit_more = decisions.via("check").engine, admit_more
        self._now, self._answers = decisions.engine.clock.now, answers
        self._recorder, self._called = decisions.recorder, decisions.recorder.record_call
        self._recurring = RecurringChecks(self._engine.policy, timestamps)

    def check(self, request: HttpRequest) -> HttpResponse | Coroutine[Any, Any, HttpResponse]:
        """Handle a check: at once, unless it waits for the store."""
        began, now, check = perf_counter_ns(), self._now(), None
        try:
            parsed = self._recurring.get(request.body) or self._read(request.body)
            check = parsed.check
            ruling = self._recurring.decide(self._engine, parsed, key_in(request.headers), now)
        except (UsageError, StoreError) as error:
            return self._failed("check", error, began, check)
        if isinstance(ruling, Ruling):
            return self._answered(request, check, ruling, began, now)
        return self._awaited(request, parsed, ruling, began, now)

    async def _awaited(
        self, request: HttpRequest, parsed: ParsedCheck, ruling: Awaitable[Ruling], began: int, now: int
    ) -> HttpResponse:
        check = parsed.check
        try:
            decided = await ruling
            if request.is_abandoned:
                await self._recurring.undo(self._engine, parsed, key_in(request.headers), decided)
        except (UsageError, StoreError) as error:
            return self._failed("check", error, began, check)
        return self._answered(request, check, decided, began, now)

    def _answered(self, request: HttpRequest, check: CheckBody, ruling: Ruling, began: int, now: int) -> HttpResponse:
        response = self._answers.response(
            ruling, now, refundable=check.refundable, exact=check.exact, seal=self._engine.seal
        )
        self._called("check", outcome_of(request, allowed=ruling.allowed), perf_counter_ns() - began)
        return response

    async def batch(self, request: HttpRequest) -> HttpResponse:
        """Handle a batch of checks."""
        began, now = perf_counter_ns(), self._now()
        try:
            bodies, key = _bodies(request.body), key_in(request.headers)
        except InvalidBody as error:
            return self._failed("batch", error, began)
        if (refusal := self._admit_more(len(bodies) - 1, request.peer)) is not None:
            self._recorder.record_shed("batch")
            return refusal.response()
        results = await eager.together(
            [
                self._result(bytes(body), f"{key}#{place}" if key else "", now, request)
                for place, body in enumerate(bodies)
            ]
        )
        self._called("batch", outcome_of(request), perf_counter_ns() - began)
        return HttpResponse(200, b'{"results":[%b]}' % b",".join(results), (JSON,))

    async def refund(self, request: HttpRequest) -> HttpResponse:
        """Refund a charge; the response is that of a check."""
        began, now = perf_counter_ns(), self._now()
        try:
            check = parse_body(request.body)
            if not check.charge:
                raise InvalidBody("the body has no charge to refund", ("/charge", f"is missing: {_CHARGE}"))
            ruling = await self._refunds.refund(named(self._engine.policy, check), check.charge)
        except (UsageError, StoreError) as error:
            return self._failed("refund", error, began)
        self._called("refund", "allowed", perf_counter_ns() - began)
        return self._answers.response(ruling, now, exact=check.exact, seal=self._engine.seal)

    async def reset(self, request: HttpRequest) -> HttpResponse:
        """Reset the usage of a principal: of all its limits, unless the body has an endpoint or a rule."""
        began = perf_counter_ns()
        try:
            check = parse_body(request.body)
            whose = named(self._engine.policy, check)
            is_whole = not (whose.rule_id or check.has_endpoint)
            reset = await (self._resets.reset_all(whose) if is_whole else self._resets.reset(whose))
        except (UsageError, StoreError) as error:
            return self._failed("reset", error, began)
        self._called("reset", "allowed", perf_counter_ns() - began)
        result = {"success": bool(reset), "rules": reset.rules, "shared": reset.shared, "reason": reset.reason}
        return HttpResponse(200, msgspec.json.encode(result), (JSON, (b"cache-control", b"no-store")))

    async def _result(self, body: bytes, key: str, now: int, request: HttpRequest) -> bytes:
        """Return the result of one check of a batch."""
        check = None
        try:
            parsed = self._recurring.get(body) or self._read(body)
            check = parsed.check
            ruling = self._recurring.decide(self._engine, parsed, "" if check.idempotency_key else key, now)
            if not isinstance(ruling, Ruling):
                ruling = await ruling
            if request.is_abandoned:
                await self._recurring.undo(self._engine, parsed, key, ruling)
        except (UsageError, StoreError) as error:
            return b'{"error":%b}' % problem_of(error, check).encode()
        return self._answers.response(
            ruling, now, refundable=check.refundable, exact=check.exact, seal=self._engine.seal
        ).body

    def _read(self, body: bytes) -> ParsedCheck:
        return self._recurring.remember(body, ParsedCheck(parse_body(body)), body.count(b":"))

    def _failed(
        self, api: str, error: UsageError | StoreError, began: int, check: CheckBody | None = None
    ) -> HttpResponse:
        self._called(api, "error", perf_counter_ns() - began)
        if api == "reset" and isinstance(error, StoreError):
            detail = "the store did not respond, so some or all usage was not reset: send the request again"
            return problem_response(of_status(503, detail))
        return problem_response(problem_of(error, check))


def _bodies(body: bytes) -> list[msgspec.Raw]:
    try:
        batch = _decode_batch(body)
    except (ValueError, RecursionError) as error:
        raise unreadable(error, body, _ACCEPTED, _TYPES) from None
    if not 1 <= len(batch.requests) <= MOST:
        detail = f"has {len(batch.requests)} elements: 1 to {MOST} are accepted"
        raise InvalidBody("the batch is too small or too large", ("/requests", detail))
    refuse_repeated(body, 1 + sum([bytes(each).count(b":") for each in batch.requests]))
    return batch.requests


def named(policy: Policy, check: CheckBody) -> Request:
    """Return the request; if it has only an identifier, with the principal that its rule counts by."""
    if not check.client_id:
        return check
    found = policy.request_of(check.client_id, check.rule_id)
    endpoint = check.endpoint if check.has_endpoint else found.endpoint
    return msgspec.structs.replace(check, principal=found.principal, endpoint=endpoint)


def problem_of(error: UsageError | StoreError, check: CheckBody | None = None) -> ProblemDocument:
    """Return the problem document of an error; `check` is the check, if it could be parsed."""
    if isinstance(error, StoreError):
        return of_status(503, "the store did not respond, so the request could not be decided")
    if isinstance(error, InvalidBody):
        return bad_request(str(error), error.errors, code=error.code)
    wrong: list[tuple[str, str]] = []
    if isinstance(error, InvalidCharge):
        wrong = [("/charge", f"is {_CHARGE}")]
    elif isinstance(error, InvalidCost):
        wrong = [(f"/{check.cost_member if check else 'cost'}", _COST)]
    return bad_request(str(error), wrong, code=code_of(error))


def problem_response(problem: ProblemDocument, *more: tuple[bytes, bytes]) -> HttpResponse:
    """Return a problem as a response, with further header fields."""
    fields: Fields = (PROBLEM, (b"cache-control", b"no-store"), *more)
    if problem.status == 503:
        fields = (*fields, (b"retry-after", b"1"))
    return HttpResponse(problem.status, problem.encode(), fields)

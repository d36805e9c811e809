"""``POST /api/v1/rate-limit/batch``: many questions in one request, each with its own answer or its own problem.

::

    {"requests": [{"principal": {"user": "u1"}, "endpoint": "/a"}, {"key_type": "user", ...}, ...]}
    {"results": [{"allowed": true, ...}, {"error": {"status": 400, "title": "Bad Request", ...}}, ...]}

They are decided at the same time, so that a store on the network hears of all of them at once; in memory in their
order. They are not all or nothing: each stands alone.
"""

from __future__ import annotations

from time import perf_counter_ns

import msgspec

from headgate.core.errors import StoreError, UsageError
from headgate.observe.recorder import Recorder
from headgate.policy.request import Request as Asked
from headgate.server.api.answer import Answer, answer_of, charged, encode
from headgate.server.api.body import InvalidBody, Question, question, unreadable
from headgate.server.api.checks import Checks, problem_of, problem_response
from headgate.server.api.idempotency import key_in
from headgate.server.wire import eager
from headgate.server.wire.admission import Charge, free_of_charge
from headgate.server.wire.messages import HttpRequest, HttpResponse

MOST = 1000
"""Questions in one batch."""
_ACCEPTED = {"requests": f"a list of 1 to {MOST} questions, each as the check has them"}
_JSON = ((b"content-type", b"application/json"),)


class _Batch(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    requests: list[msgspec.Raw]


class Failure(msgspec.Struct, frozen=True, gc=False):
    """In the place of an answer: why there is none."""

    error: msgspec.Raw
    """A problem document."""


_decode = msgspec.json.Decoder(_Batch).decode


class Batches:
    """Answers many questions at once, as `checks` answers one.

    Args:
        checks: what answers each.
        recorder: what counts and times batches.
        charge: asked whether the questions beyond the first are let in, which the request itself stands for.
    """

    def __init__(self, checks: Checks, recorder: Recorder, charge: Charge = free_of_charge) -> None:
        self._checks, self._recorder, self._charge = checks, recorder, charge

    async def check(self, request: HttpRequest) -> HttpResponse:
        """Answer a request."""
        began, now = perf_counter_ns(), self._checks.now()
        try:
            questions, key = _questions(request.body), key_in(request.headers)
        except InvalidBody as error:
            self._recorder.called("batch", "error", perf_counter_ns() - began)
            return problem_response(problem_of(error))
        if (refusal := self._charge(len(questions) - 1, request.peer)) is not None:
            self._recorder.shed("batch")
            return refusal.response()
        results = await eager.together(
            [self._answer(bytes(body), f"{key}#{place}" if key else "", now) for place, body in enumerate(questions)]
        )
        self._recorder.called("batch", "allowed", perf_counter_ns() - began)
        return HttpResponse(200, encode({"results": results}), _JSON)

    async def _answer(self, body: bytes, key: str, now: int) -> Answer | Failure:
        try:
            asked = question(body)
            if isinstance(asked, Asked):
                asked = Question(asked)
            ruling = await self._checks.decide(asked, "" if asked.idempotency_key else key, now)
        except (UsageError, StoreError) as error:
            return Failure(msgspec.Raw(problem_of(error).encode()))
        return charged(ruling, now) if asked.refundable else answer_of(ruling, now)


def _questions(body: bytes) -> list[msgspec.Raw]:
    try:
        batch = _decode(body)
    except (ValueError, RecursionError) as error:
        raise unreadable(error, body, _ACCEPTED) from None
    if not 1 <= len(batch.requests) <= MOST:
        told = f"has {len(batch.requests)} elements: 1 to {MOST} are accepted"
        raise InvalidBody("the batch is too small or too large", ("/requests", told))
    if body.count(b":") != 1 + sum([bytes(each).count(b":") for each in batch.requests]):  # one for each member
        raise InvalidBody("the body has 'requests' twice", ("/requests", "is there more than once"))
    return batch.requests

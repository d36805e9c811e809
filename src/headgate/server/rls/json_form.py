"""The service as JSON over HTTP, as envoyproxy/ratelimit has it: ``POST /json``, and ``GET /rlconfig``.

``POST /json/explain`` takes the same question and takes no hits: it returns which limits of the files apply.

A question is that of protobuf's JSON, with names in either case (`hitsAddend`, `hits_addend`); so is the answer: 200,
or 429 when it is over the limit. What is malformed gets 400. (There, so does trouble with the store.)
"""

from __future__ import annotations

from time import perf_counter_ns

import msgspec
from google.protobuf.json_format import MessageToJson, Parse, ParseError

from headgate.core.errors import UsageError
from headgate.policy.request import InvalidRequest
from headgate.protos import RateLimitRequest, RateLimitResponse
from headgate.server.api.checks import outcome_of
from headgate.server.rls.codec import MalformedMessage, RlsQuestion, question_of
from headgate.server.rls.service import RateLimitService
from headgate.server.wire.grpc.calls import RpcError
from headgate.server.wire.messages import Fields, HttpRequest, HttpResponse

API = "json"
"""The name of this form in metrics."""
_JSON: Fields = ((b"content-type", b"application/json"),)
_TEXT: Fields = ((b"content-type", b"text/plain; charset=utf-8"),)
_DEEPEST = 10
"""Of objects within objects: a question has three levels."""
_LONGEST = 131_072
_MOST_OBJECTS = 2048
"""Descriptors, entries and what else is in braces. Protobuf reads JSON slowly, and meanwhile nobody else is served."""


class JsonForm:
    """Answers what is asked as JSON."""

    def __init__(self, service: RateLimitService) -> None:
        self._service = service

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer ``POST /json``."""
        if request.method != b"POST":
            return HttpResponse.of_problem(405, "", ((b"allow", b"POST"),))
        began, called = perf_counter_ns(), self._service.recorder.called
        try:
            answer = await self._service.answer(_question(request.body), request)
        except UsageError as error:
            called(API, "error", perf_counter_ns() - began)
            return HttpResponse.of_problem(400, str(error))
        except RpcError as error:
            self._service.recorder.shed(API)
            return HttpResponse.of_problem(503, error.message, ((b"retry-after", b"1"),))
        called(API, outcome_of(request, allowed=answer.allowed), perf_counter_ns() - began)
        written = MessageToJson(RateLimitResponse.FromString(answer.raw), indent=None)
        return HttpResponse(200 if answer.allowed else 429, written.encode(), _JSON)

    async def explain(self, request: HttpRequest) -> HttpResponse:
        """Answer ``POST /json/explain``."""
        if request.method != b"POST":
            return HttpResponse.of_problem(405, "", ((b"allow", b"POST"),))
        trees = self._service.trees
        try:
            question = _question(request.body)
            explained = [] if trees is None else await trees.explain(*question)
        except UsageError as error:
            return HttpResponse.of_problem(400, str(error))
        return HttpResponse(200, msgspec.json.encode({"descriptors": explained}), _JSON)

    async def configuration(self, request: HttpRequest) -> HttpResponse:
        """Answer ``GET /rlconfig``: the limits in force, one in a line."""
        if request.method not in {b"GET", b"HEAD"}:
            return HttpResponse.of_problem(405, "", ((b"allow", b"GET, HEAD"),))
        trees = self._service.trees
        text = "" if trees is None else "".join([f"{line}\n" for line in trees.policy.described()])
        return HttpResponse(200, text.encode(), _TEXT)


def _question(body: bytes) -> RlsQuestion:
    """Return the question that a body is. Raises UsageError."""
    _bounded(body)
    try:
        message = Parse(body, RateLimitRequest(), max_recursion_depth=_DEEPEST)
    except (ParseError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(str(error)) from None
    return question_of(message)


def _bounded(body: bytes) -> None:
    """Refuse what would take too long to read."""
    if len(body) > _LONGEST:
        raise InvalidRequest(f"the question has {len(body)} bytes; at most {_LONGEST} are read")
    if body.count(b"{") > _MOST_OBJECTS:
        raise InvalidRequest(
            f"the question has more than {_MOST_OBJECTS} objects in it, such as descriptors and entries"
        )

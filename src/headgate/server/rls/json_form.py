"""The service as JSON over HTTP, like that of envoyproxy/ratelimit: ``POST /json``, and ``GET /rlconfig``.

``POST /json/explain`` accepts the same body; it takes no hits, and returns which limits of the files apply.

Bodies are protobuf's JSON, with names in either case (`hitsAddend`, `hits_addend`). The status is 200, 429 if the
request is over the limit, or 400 if it is malformed. (envoyproxy/ratelimit sends 400 for errors of the store as well.)
"""

from __future__ import annotations

from time import perf_counter_ns

import msgspec
from google.protobuf.json_format import MessageToJson, Parse, ParseError

from headgate.core.errors import UsageError
from headgate.policy.request import InvalidRequest
from headgate.protos import RateLimitRequest, RateLimitResponse
from headgate.server.api.checks import outcome_of
from headgate.server.rls.codec import MalformedMessage, RlsRequest, request_of
from headgate.server.rls.service import RateLimitService
from headgate.server.wire.grpc.calls import RpcError
from headgate.server.wire.messages import Fields, HttpRequest, HttpResponse

API = "json"
"""The name of this form in metrics."""
_JSON: Fields = ((b"content-type", b"application/json"),)
_TEXT: Fields = ((b"content-type", b"text/plain; charset=utf-8"),)
_DEEPEST = 10
"""Nested objects: a request has three levels."""
_LONGEST = 131_072
_MOST_OBJECTS = 2048
"""Descriptors, entries and other objects. Protobuf parses JSON slowly, and other requests wait meanwhile."""


class JsonForm:
    """The handlers."""

    def __init__(self, service: RateLimitService) -> None:
        self._service = service

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        """Handle ``POST /json``."""
        if request.method != b"POST":
            return HttpResponse.of_problem(405, "", ((b"allow", b"POST"),))
        began, called = perf_counter_ns(), self._service.recorder.record_call
        try:
            answer = await self._service.answer(_read(request.body), request)
        except UsageError as error:
            called(API, "error", perf_counter_ns() - began)
            return HttpResponse.of_problem(400, str(error))
        except RpcError as error:
            self._service.recorder.record_shed(API)
            return HttpResponse.of_problem(503, error.message, ((b"retry-after", b"1"),))
        called(API, outcome_of(request, allowed=answer.allowed), perf_counter_ns() - began)
        written = MessageToJson(RateLimitResponse.FromString(answer.raw), indent=None)
        return HttpResponse(200 if answer.allowed else 429, written.encode(), _JSON)

    async def explain(self, request: HttpRequest) -> HttpResponse:
        """Handle ``POST /json/explain``."""
        if request.method != b"POST":
            return HttpResponse.of_problem(405, "", ((b"allow", b"POST"),))
        trees = self._service.trees
        try:
            sent = _read(request.body)
            explained = [] if trees is None else await trees.explain(sent.domain, sent.descriptors, sent.hits_addend)
        except UsageError as error:
            return HttpResponse.of_problem(400, str(error))
        return HttpResponse(200, msgspec.json.encode({"descriptors": explained}), _JSON)

    async def configuration(self, request: HttpRequest) -> HttpResponse:
        """Handle ``GET /rlconfig``: the limits in force, one per line."""
        if request.method not in {b"GET", b"HEAD"}:
            return HttpResponse.of_problem(405, "", ((b"allow", b"GET, HEAD"),))
        trees = self._service.trees
        text = "" if trees is None else "".join([f"{line}\n" for line in trees.policy.described()])
        return HttpResponse(200, text.encode(), _TEXT)


def _read(body: bytes) -> RlsRequest:
    """Parse a body. Raises UsageError."""
    _bounded(body)
    try:
        message = Parse(body, RateLimitRequest(), max_recursion_depth=_DEEPEST)
    except (ParseError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(str(error)) from None
    return request_of(message)


def _bounded(body: bytes) -> None:
    """Refuse a body that would take too long to parse."""
    if len(body) > _LONGEST:
        raise InvalidRequest(f"the body has {len(body)} bytes; at most {_LONGEST} are accepted")
    if body.count(b"{") > _MOST_OBJECTS:
        raise InvalidRequest(f"the body has more than {_MOST_OBJECTS} objects, such as descriptors and entries")

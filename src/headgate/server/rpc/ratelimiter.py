"""``headgate.v1.RateLimiter``: the native service. See `protos/headgate/v1/ratelimiter.proto`."""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns
from typing import Any

from google.protobuf.message import DecodeError

from headgate.core.errors import StoreError, UsageError
from headgate.engine import Ruling
from headgate.engine.written import code_of
from headgate.policy.request import InvalidRequest, Request, UnknownRule
from headgate.protos import framed, message_class
from headgate.server.api.checks import MOST, refuse_unknown
from headgate.server.api.questions import Timestamps, key_in
from headgate.server.api.rules import RulesPages, matches
from headgate.server.decisions import Decisions
from headgate.server.rpc.answers import RpcAnswers
from headgate.server.wire import eager
from headgate.server.wire.admission import AdmitMore, admit_any
from headgate.server.wire.grpc.calls import RpcError, StatusCode, UnaryCall, UnaryMethod, answer_of

SERVICE = "headgate.v1.RateLimiter"
APIS = {
    "CheckRateLimit": "grpc_check",
    "CheckRateLimitBatch": "grpc_batch",
    "GetRemainingQuota": "grpc_quota",
    "ResetLimit": "grpc_reset",
    "RefundCharge": "grpc_refund",
    "GetRules": "grpc_rules",
}
"""The names of its methods in metrics."""
_CheckRequest = message_class("headgate.v1.CheckRequest")
_QuotaRequest = message_class("headgate.v1.QuotaRequest")
_ResetRequest = message_class("headgate.v1.ResetRequest")
_ResetResponse = message_class("headgate.v1.ResetResponse")
_RefundRequest = message_class("headgate.v1.RefundRequest")
_CheckBatchRequest = message_class("headgate.v1.CheckBatchRequest")
_CheckResult = message_class("headgate.v1.CheckResult")
_RulesRequest = message_class("headgate.v1.RulesRequest")
_RESULTS = _RESPONSE = b"\x0a"
"""The tags of the results of a batch, and of the response in a result."""
_ETAG, _DOCUMENT = b"\x0a", b"\x12"
"""Those of the rules."""
_DIMENSIONS = {1: "user", 2: "ip", 3: "apikey"}
_NOTHING: dict[str, str] = {}


class RateLimiter:
    """The methods of the service."""

    def __init__(self, decisions: Decisions, timestamps: Timestamps, admit_more: AdmitMore = admit_any) -> None:
        self._admit_more, self._answers, self._documents = admit_more, RpcAnswers(), RulesPages(decisions.engine)
        self._decisions, self._timestamps = decisions.via("grpc_check"), timestamps
        self._now, self._called = decisions.engine.clock.now, decisions.recorder.called

    def methods(self) -> dict[str, UnaryMethod]:
        """Return the methods of the service, by name."""
        others = {
            "GetRemainingQuota": self._quota,
            "ResetLimit": self._reset,
            "RefundCharge": self._refund,
            "CheckRateLimitBatch": self._batch,
            "GetRules": self._rules,
        }
        counted = {name: partial(self._counted, APIS[name], method) for name, method in others.items()}
        return {"CheckRateLimit": self.check, **counted}

    async def check(self, call: UnaryCall) -> bytes:
        """Take the cost, or refuse."""
        began, now = perf_counter_ns(), self._now()
        try:
            message = _parsed(_CheckRequest, call.message)
            key = message.idempotency_key or key_in(call.metadata)
            ruling = await self._check(self._decisions.in_time(call.timeout), message, key, now)
        except (UsageError, StoreError) as error:
            self._called("grpc_check", "error", perf_counter_ns() - began)
            raise _rpc_error(error) from None
        self._called("grpc_check", "allowed" if ruling.allowed else "denied", perf_counter_ns() - began)
        return self._answers.of(ruling, now, refundable=message.refundable, exact=message.exact)

    async def _counted(self, api: str, method: UnaryMethod, call: UnaryCall) -> bytes:
        """Answer a call that is not a check, and note how it ended: allowed, if it was answered."""
        began = perf_counter_ns()
        try:
            answer = await answer_of(method, call)
        except (UsageError, StoreError) as error:
            self._called(api, "error", perf_counter_ns() - began)
            raise _rpc_error(error) from None
        self._called(api, "allowed", perf_counter_ns() - began)
        return answer

    async def _quota(self, call: UnaryCall) -> bytes:
        """Say what a check would answer, and take nothing."""
        now, message = self._now(), _parsed(_QuotaRequest, call.message)
        request = self._request(message, message.cost or 1)
        if message.timestamp:
            self._timestamps.check(message.timestamp, now)
        ruling = await self._decisions.in_time(call.timeout).peek(request)
        return self._answers.of(ruling, now, exact=message.exact)

    async def _reset(self, call: UnaryCall) -> bytes:
        """Forget what was used."""
        message = _parsed(_ResetRequest, call.message)
        request, named = self._request(message, 1), message.rule_id or message.endpoint
        decisions = self._decisions.in_time(call.timeout)
        reset = await (decisions.reset(request) if named else decisions.reset_all(request))
        return _encoded(
            _ResetResponse(success=bool(reset), rules=reset.rules, shared=reset.shared, reason=reset.reason)
        )

    async def _refund(self, call: UnaryCall) -> bytes:
        """Give back what a check took."""
        now, message = self._now(), _parsed(_RefundRequest, call.message)
        if not message.charge:
            raise InvalidRequest("charge is missing: it is in the response to a check that was refundable")
        ruling = await self._decisions.refund(self._request(message, 1), message.charge)
        return self._answers.of(ruling, now, exact=message.exact)

    async def _rules(self, call: UnaryCall) -> bytes:
        """Give out the rules in force, unless the client has them."""
        asked, found = _parsed(_RulesRequest, call.message), await self._documents.document()
        document = b"" if matches(asked.etag, found.etag) else found.body
        return framed(_ETAG, found.etag.encode()) + (framed(_DOCUMENT, document) if document else b"")

    async def _batch(self, call: UnaryCall) -> bytes:
        """Check many at once."""
        now, requests = self._now(), _parsed(_CheckBatchRequest, call.message).requests
        if not 1 <= len(requests) <= MOST:
            raise InvalidRequest(f"a batch has 1 to {MOST} requests, not {len(requests)}")
        key = key_in(call.metadata)
        if (refusal := self._admit_more(len(requests) - 1, call.peer)) is not None:
            self._decisions.recorder.shed("grpc_batch")
            raise refusal.error()
        decisions = self._decisions.in_time(call.timeout)
        results = await eager.together(
            [
                self._result(decisions, message, f"{key}#{place}" if key else "", now)
                for place, message in enumerate(requests)
            ]
        )
        return b"".join([framed(_RESULTS, result) for result in results])

    async def _result(self, decisions: Decisions, message: Any, key: str, now: int) -> bytes:
        try:
            ruling = await self._check(decisions, message, message.idempotency_key or key, now)
        except (UsageError, StoreError) as error:
            failed = _rpc_error(error)
            reason = code_of(error) if isinstance(error, UsageError) else ""
            return _encoded(_CheckResult(error={"code": int(failed.code), "message": failed.message, "reason": reason}))
        answer = self._answers.of(ruling, now, refundable=message.refundable, exact=message.exact)
        return framed(_RESPONSE, answer)

    async def _check(self, decisions: Decisions, message: Any, key: str, now: int) -> Ruling:
        if message.timestamp:
            self._timestamps.check(message.timestamp, now)
        request = self._request(message, message.cost or 1)
        return await (decisions.peek(request) if message.peek else decisions.check(request, key))

    def _request(self, message: Any, cost: int) -> Request:
        """Return what a message asks, whichever it is."""
        identifier, dimension, rule_id = message.identifier, message.dimension, message.rule_id
        if message.exact:
            refuse_unknown(self._decisions.engine.policy, rule_id)
        endpoint = message.endpoint or "/"
        principal = dict(message.principal) if message.principal else {}
        if identifier and rule_id and not dimension and not principal:
            named = self._decisions.engine.policy.request_of(identifier, rule_id)
            principal, endpoint = dict(named.principal), message.endpoint or named.endpoint
        elif identifier or dimension:
            _name(principal, identifier, dimension)
        elif not (principal or rule_id or message.endpoint or message.attributes or message.exact):
            raise InvalidRequest("the message does not say who asks: it has a principal, or identifier and dimension")
        attributes = dict(message.attributes) if message.attributes else _NOTHING
        return Request(principal, endpoint, message.method, attributes, cost, message.tier, message.address, rule_id)


def _name(principal: dict[str, str], identifier: str, dimension: int) -> None:
    """Add who is named by an identifier and its dimension to the principals of a message."""
    name = _DIMENSIONS.get(dimension)
    if name is None:
        raise InvalidRequest(
            f"dimension is USER (1), IP (2) or API_KEY (3), not {dimension}"
            if dimension
            else "dimension says what the identifier is: USER, IP or API_KEY"
        )
    if not identifier:
        raise InvalidRequest("the identifier is empty: leave the dimension out as well if it is not known")
    if principal.setdefault(name, identifier) != identifier:
        raise InvalidRequest(f"identifier and principal[{name!r}] are different: send one of them")


def _parsed(kind: Any, message: bytes) -> Any:
    try:
        return kind.FromString(message)
    except DecodeError:
        raise InvalidRequest(f"the message is not a {kind.DESCRIPTOR.full_name}") from None


def _encoded(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


def _rpc_error(error: UsageError | StoreError) -> RpcError:
    if isinstance(error, UsageError):
        status = StatusCode.NOT_FOUND if isinstance(error, UnknownRule) else StatusCode.INVALID_ARGUMENT
        code = code_of(error)
        return RpcError(status, str(error), ((b"headgate-error", code.encode()),) if code else ())
    return RpcError(StatusCode.UNAVAILABLE, "the store did not answer", ((b"grpc-retry-pushback-ms", b"1000"),))

"""``headgate.v1.RateLimiter``: the native service. See `protos/headgate/v1/ratelimiter.proto`."""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns
from typing import Any

from google.protobuf.message import DecodeError

from headgate import eager
from headgate.core.errors import StoreError, UsageError
from headgate.engine import AsyncEngine, Ruling
from headgate.engine.ruling_json import code_of
from headgate.policy.request import InvalidRequest, UnknownRule
from headgate.protobuf import framed
from headgate.protos import message_class
from headgate.server.api.bodies import CheckBody, Timestamps, key_in
from headgate.server.api.checks import MOST, ParsedCheck, RecurringChecks, named, outcome_of
from headgate.server.api.pages import RulesPages
from headgate.server.decisions import Decisions
from headgate.server.rpc.answers import RpcAnswers
from headgate.server.wire.admission import AdmitMore, admit_any
from headgate.server.wire.grpc.calls import RpcError, StatusCode, UnaryCall, UnaryMethod, answer_of
from headgate.web.headers import matches

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
"""Tags of fields: the results of a batch, and the response in a result."""
_ETAG, _DOCUMENT = b"\x0a", b"\x12"
"""Tags of fields of the rules."""
_DIMENSIONS = {1: "user", 2: "ip", 3: "apikey"}
_NOTHING: dict[str, str] = {}


class RateLimiter:
    """The methods of the service."""

    def __init__(self, decisions: Decisions, timestamps: Timestamps, admit_more: AdmitMore = admit_any) -> None:
        self._admit_more, self._answers, self._documents = admit_more, RpcAnswers(), RulesPages(decisions.engine)
        self._decisions, self._timestamps = decisions.via("grpc_check"), timestamps
        self._recurring = RecurringChecks(decisions.engine.policy, timestamps)
        self._now, self._called = decisions.engine.clock.now, decisions.recorder.record_call

    def methods(self) -> dict[str, UnaryMethod]:
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
            parsed = self._recurring.get(call.message) or self._read(call.message)
            check, engine = parsed.check, self._decisions.in_time(call.timeout)
            key = "" if check.idempotency_key else key_in(call.metadata)
            ruling = await self._decided(engine, parsed, key, now, call)
        except (UsageError, StoreError) as error:
            self._called("grpc_check", "error", perf_counter_ns() - began)
            raise _rpc_error(error) from None
        self._called("grpc_check", outcome_of(call, allowed=ruling.allowed), perf_counter_ns() - began)
        return self._answers.of(ruling, now, refundable=check.refundable, exact=check.exact, seal=engine.seal)

    async def _decided(self, engine: AsyncEngine, parsed: ParsedCheck, key: str, now: int, call: UnaryCall) -> Ruling:
        """Decide a check; refund it if the caller no longer waits. `key` is as in `RecurringChecks.decide`."""
        ruling = self._recurring.decide(engine, parsed, key, now)
        if not isinstance(ruling, Ruling):
            ruling = await ruling
        if call.is_abandoned:
            await self._recurring.undo(engine, parsed, key, ruling)
        return ruling

    def _read(self, raw: bytes) -> ParsedCheck:
        check = _body_of(_parsed(_CheckRequest, raw))
        return self._recurring.remember(raw, ParsedCheck(check), len(check.principal) + len(check.attributes))

    async def _counted(self, api: str, method: UnaryMethod, call: UnaryCall) -> bytes:
        """Run a method that is not a check, and count its outcome: allowed, unless it fails."""
        began = perf_counter_ns()
        try:
            response = await answer_of(method, call)
        except (UsageError, StoreError) as error:
            self._called(api, "error", perf_counter_ns() - began)
            raise _rpc_error(error) from None
        self._called(api, outcome_of(call), perf_counter_ns() - began)
        return response

    async def _quota(self, call: UnaryCall) -> bytes:
        now, message = self._now(), _parsed(_QuotaRequest, call.message)
        request = named(self._decisions.engine.policy, _body_of(message, message.cost or 1))
        if message.timestamp:
            self._timestamps.check(message.timestamp, now)
        ruling = await self._decisions.in_time(call.timeout).peek(request)
        return self._answers.of(ruling, now, exact=message.exact, seal=self._decisions.engine.seal)

    async def _reset(self, call: UnaryCall) -> bytes:
        message = _parsed(_ResetRequest, call.message)
        engine = self._decisions.in_time(call.timeout)
        whose, is_whole = named(engine.policy, _body_of(message)), not (message.rule_id or message.endpoint)
        reset = await (engine.reset_all(whose) if is_whole else engine.reset(whose))
        return _encoded(
            _ResetResponse(success=bool(reset), rules=reset.rules, shared=reset.shared, reason=reset.reason)
        )

    async def _refund(self, call: UnaryCall) -> bytes:
        now, message = self._now(), _parsed(_RefundRequest, call.message)
        if not message.charge:
            raise InvalidRequest("charge is missing: it is in the response to a check that was sent with refundable")
        request = named(self._decisions.engine.policy, _body_of(message))
        ruling = await self._decisions.engine.refund(request, message.charge)
        return self._answers.of(ruling, now, exact=message.exact, seal=self._decisions.engine.seal)

    async def _rules(self, call: UnaryCall) -> bytes:
        """Return the rules in force, unless the client has them."""
        message, found = _parsed(_RulesRequest, call.message), await self._documents.document()
        document = b"" if matches(message.etag, found.etag) else found.body
        return framed(_ETAG, found.etag.encode()) + (framed(_DOCUMENT, document) if document else b"")

    async def _batch(self, call: UnaryCall) -> bytes:
        now, requests = self._now(), _parsed(_CheckBatchRequest, call.message).requests
        if not 1 <= len(requests) <= MOST:
            raise InvalidRequest(f"a batch must have 1 to {MOST} requests, not {len(requests)}")
        key = key_in(call.metadata)
        if (refusal := self._admit_more(len(requests) - 1, call.peer)) is not None:
            self._decisions.recorder.record_shed("grpc_batch")
            raise refusal.error()
        engine = self._decisions.in_time(call.timeout)
        results = await eager.together(
            [
                self._result(engine, message, f"{key}#{place}" if key else "", now, call)
                for place, message in enumerate(requests)
            ]
        )
        return b"".join([framed(_RESULTS, result) for result in results])

    async def _result(self, engine: AsyncEngine, message: Any, key: str, now: int, call: UnaryCall) -> bytes:
        try:
            parsed = ParsedCheck(_body_of(message))
            key = "" if parsed.check.idempotency_key else key
            ruling = await self._decided(engine, parsed, key, now, call)
        except (UsageError, StoreError) as error:
            failed = _rpc_error(error)
            reason = code_of(error) if isinstance(error, UsageError) else ""
            return _encoded(_CheckResult(error={"code": int(failed.code), "message": failed.message, "reason": reason}))
        response = self._answers.of(ruling, now, refundable=message.refundable, exact=message.exact, seal=engine.seal)
        return framed(_RESPONSE, response)


def _body_of(message: Any, cost: int = 1) -> CheckBody:
    """Return the request of any message. Raises InvalidRequest."""
    identifier, dimension, rule_id, endpoint = message.identifier, message.dimension, message.rule_id, message.endpoint
    principal = dict(message.principal) if message.principal else {}
    attributes = dict(message.attributes) if message.attributes else _NOTHING
    client_id, exact = "", message.exact
    if identifier and rule_id and not dimension and not principal:
        client_id = identifier
    elif identifier or dimension:
        _name(principal, identifier, dimension)
    elif not (principal or rule_id or endpoint or attributes or exact):
        raise InvalidRequest("the message names no client: send a principal, or identifier and dimension")
    consume, key, timestamp, refundable = True, "", None, False
    if isinstance(message, _CheckRequest):  # the others do not have these
        cost, consume, key = message.cost or 1, not message.peek, message.idempotency_key
        timestamp, refundable = message.timestamp or None, message.refundable
    request = (principal, endpoint or "/", message.method, attributes, cost, message.tier, message.address, rule_id)
    return CheckBody(*request, consume, key, timestamp, "cost", refundable, "", endpoint != "", exact, client_id)


def _name(principal: dict[str, str], identifier: str, dimension: int) -> None:
    """Add an identifier to the principals of a message, by its dimension."""
    name = _DIMENSIONS.get(dimension)
    if name is None:
        raise InvalidRequest(
            f"dimension must be USER (1), IP (2) or API_KEY (3), not {dimension}"
            if dimension
            else "dimension is missing: it must be USER, IP or API_KEY"
        )
    if not identifier:
        raise InvalidRequest("identifier is missing: send it, or omit the dimension as well")
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
    return RpcError(StatusCode.UNAVAILABLE, "the store did not respond", ((b"grpc-retry-pushback-ms", b"1000"),))

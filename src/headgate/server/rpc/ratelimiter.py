"""``headgate.v1.RateLimiter``: the native service. See `protos/headgate/v1/ratelimiter.proto`."""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns
from typing import Any

from google.protobuf.message import DecodeError

from headgate.core.errors import StoreError, UsageError
from headgate.engine import Ruling
from headgate.engine.written import code_of
from headgate.policy.request import InvalidRequest, UnknownRule
from headgate.protos import framed, message_class
from headgate.server.api.checks import MOST, RecurringChecks, UnderstoodCheck, named, outcome_of
from headgate.server.api.questions import CheckQuestion, Timestamps, key_in
from headgate.server.api.rules import RulesPages
from headgate.server.decisions import Decisions
from headgate.server.rpc.answers import RpcAnswers
from headgate.server.wire import eager
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
        self._recurring = RecurringChecks(decisions.engine.policy, timestamps)
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
            understood = self._recurring.get(call.message) or self._read(call.message)
            asked, engine = understood.question, self._decisions.in_time(call.timeout).engine
            key = "" if asked.idempotency_key else key_in(call.metadata)
            ruling = self._recurring.decide(engine, understood, key, now)
            if not isinstance(ruling, Ruling):
                ruling = await ruling
            if call.is_abandoned:
                await self._recurring.undo(engine, understood, key, ruling)
        except (UsageError, StoreError) as error:
            self._called("grpc_check", "error", perf_counter_ns() - began)
            raise _rpc_error(error) from None
        self._called("grpc_check", outcome_of(call, allowed=ruling.allowed), perf_counter_ns() - began)
        return self._answers.of(ruling, now, refundable=asked.refundable, exact=asked.exact, seal=engine.seal)

    def _read(self, raw: bytes) -> UnderstoodCheck:
        """Return what a message asks. Raises InvalidRequest."""
        asked = _question(_parsed(_CheckRequest, raw))
        return self._recurring.remember(raw, UnderstoodCheck(asked), len(asked.principal) + len(asked.attributes))

    async def _counted(self, api: str, method: UnaryMethod, call: UnaryCall) -> bytes:
        """Answer a call that is not a check, and note how it ended: allowed, if it was answered."""
        began = perf_counter_ns()
        try:
            answer = await answer_of(method, call)
        except (UsageError, StoreError) as error:
            self._called(api, "error", perf_counter_ns() - began)
            raise _rpc_error(error) from None
        self._called(api, outcome_of(call), perf_counter_ns() - began)
        return answer

    async def _quota(self, call: UnaryCall) -> bytes:
        """Say what a check would answer, and take nothing."""
        now, message = self._now(), _parsed(_QuotaRequest, call.message)
        request = named(self._decisions.engine.policy, _question(message, message.cost or 1))
        if message.timestamp:
            self._timestamps.check(message.timestamp, now)
        ruling = await self._decisions.in_time(call.timeout).peek(request)
        return self._answers.of(ruling, now, exact=message.exact, seal=self._decisions.engine.seal)

    async def _reset(self, call: UnaryCall) -> bytes:
        """Forget what was used."""
        message = _parsed(_ResetRequest, call.message)
        decisions = self._decisions.in_time(call.timeout)
        whose, is_whole = named(decisions.engine.policy, _question(message)), not (message.rule_id or message.endpoint)
        reset = await (decisions.reset_all(whose) if is_whole else decisions.reset(whose))
        return _encoded(
            _ResetResponse(success=bool(reset), rules=reset.rules, shared=reset.shared, reason=reset.reason)
        )

    async def _refund(self, call: UnaryCall) -> bytes:
        """Give back what a check took."""
        now, message = self._now(), _parsed(_RefundRequest, call.message)
        if not message.charge:
            raise InvalidRequest("charge is missing: it is in the response to a check that was refundable")
        request = named(self._decisions.engine.policy, _question(message))
        ruling = await self._decisions.refund(request, message.charge)
        return self._answers.of(ruling, now, exact=message.exact, seal=self._decisions.engine.seal)

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
                self._result(decisions, message, f"{key}#{place}" if key else "", now, call)
                for place, message in enumerate(requests)
            ]
        )
        return b"".join([framed(_RESULTS, result) for result in results])

    async def _result(self, decisions: Decisions, message: Any, key: str, now: int, call: UnaryCall) -> bytes:
        try:
            understood = UnderstoodCheck(_question(message))
            key = "" if understood.question.idempotency_key else key
            ruling = self._recurring.decide(decisions.engine, understood, key, now)
            if not isinstance(ruling, Ruling):
                ruling = await ruling
            if call.is_abandoned:
                await self._recurring.undo(decisions.engine, understood, key, ruling)
        except (UsageError, StoreError) as error:
            failed = _rpc_error(error)
            reason = code_of(error) if isinstance(error, UsageError) else ""
            return _encoded(_CheckResult(error={"code": int(failed.code), "message": failed.message, "reason": reason}))
        answer = self._answers.of(
            ruling, now, refundable=message.refundable, exact=message.exact, seal=decisions.engine.seal
        )
        return framed(_RESPONSE, answer)


def _question(message: Any, cost: int = 1) -> CheckQuestion:
    """Return what a message asks, whichever it is. Raises InvalidRequest."""
    identifier, dimension, rule_id, endpoint = message.identifier, message.dimension, message.rule_id, message.endpoint
    principal = dict(message.principal) if message.principal else {}
    attributes = dict(message.attributes) if message.attributes else _NOTHING
    client_id, exact = "", message.exact
    if identifier and rule_id and not dimension and not principal:
        client_id = identifier
    elif identifier or dimension:
        _name(principal, identifier, dimension)
    elif not (principal or rule_id or endpoint or attributes or exact):
        raise InvalidRequest("the message does not say who asks: it has a principal, or identifier and dimension")
    consume, key, timestamp, refundable = True, "", None, False
    if isinstance(message, _CheckRequest):  # the others do not have these
        cost, consume, key = message.cost or 1, not message.peek, message.idempotency_key
        timestamp, refundable = message.timestamp or None, message.refundable
    who = (principal, endpoint or "/", message.method, attributes, cost, message.tier, message.address, rule_id)
    return CheckQuestion(*who, consume, key, timestamp, "cost", refundable, "", endpoint != "", exact, client_id)


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

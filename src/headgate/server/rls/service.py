"""Envoy's rate limit service: a request in, a response out, by rules, by descriptor trees, or by both.

With both, the trees decide the domains that they contain, and the rules all others.

A request that cannot be parsed, such as one with text that is not UTF-8, or not be matched, such as a path that servers
read in different ways, is over the limit rather than an error: by default, Envoy lets a request pass at an error, and
clients choose the values of their headers. Only a message without a domain or descriptors gets an error: it is due to
Envoy's configuration.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from time import perf_counter_ns
from typing import Any, TypeAlias

import msgspec

from headgate.core.errors import HeadgateError, UsageError
from headgate.core.key import space
from headgate.core.mode import Mode
from headgate.core.plan import MAX_COST, Limit
from headgate.engine import AsyncEngine, JointCheck, JointRequest, Ruling, SelectedCheck
from headgate.engine.descriptors import Answered, AsyncDescriptorEngine
from headgate.observe.recorder import Recorder
from headgate.policy.envoy import Descriptor, Matching, Override, Unit
from headgate.policy.envoy.answering import Code
from headgate.policy.envoy.matching import principal_of
from headgate.policy.envoy.tree import cached_limit
from headgate.policy.key_file import CONSUMER_PREFIX
from headgate.policy.request import InvalidRequest
from headgate.policy.selection import Limits
from headgate.server.decisions import Decisions
from headgate.server.recurring import RecurringRequests
from headgate.server.rls import codec
from headgate.server.rls.answers import RlsAnswer, RuleAnswers, TreeAnswers
from headgate.server.rls.codec import MalformedMessage, RlsRequest, decode
from headgate.server.rls.mapping import Mapper
from headgate.server.wire.admission import AdmitMore, admit_any
from headgate.server.wire.grpc.calls import RpcError, StatusCode, UnaryCall
from headgate.server.wire.messages import HttpRequest
from headgate.web.headers import ResponseHeaders
from headgate.web.identity import Identifier

API = "rls"
"""The name of the service in metrics."""
OVERRIDE = "envoy-override"
"""The name, in responses and keys, of limits that come with a request."""
_USUAL = ResponseHeaders()
_CONSUMER = CONSUMER_PREFIX.encode()
_UNMATCHED = codec.status(codec.status_content(Code.OK))


Caller: TypeAlias = UnaryCall | HttpRequest


class ParsedRequest(msgspec.Struct, gc=False):
    """A parsed request, and what follows from it."""

    request: RlsRequest
    count: int
    """The number of its descriptors."""
    matching: Matching | None = None
    """The limits of the trees, if they decide."""
    parts: tuple[JointRequest, ...] | None = None
    """The requests of its descriptors, if the rules have decided them before."""
    selected: SelectedCheck | JointCheck | None = None
    echo: bytes = b""
    """The metadata of the response that repeats the request, encoded."""


class RateLimitService:
    """The service.

    Args:
        recorder: counts and times calls, and decisions by trees.
        decisions: by Headgate's rules, if any.
        trees: the engine of envoyproxy/ratelimit's configuration, if any. Without either, everything passes.
        headers: which header fields Envoy's clients get; None for none.
        trust_tier: see `headgate.server.rls.mapping`, as for `identifier`.
        count_refused: whether hits that rules refuse use up the rest of their limits; see `AsyncDescriptorEngine`.
        admit_more: admits the further descriptors of a request.
        metadata: whether dynamic metadata has that of envoyproxy/ratelimit: the request, and the `metadata` of
            descriptors that passed.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        decisions: Decisions | None = None,
        trees: AsyncDescriptorEngine | None = None,
        headers: ResponseHeaders | None = _USUAL,
        trust_tier: bool = False,
        identifier: Callable[[], Identifier] | None = None,
        count_refused: bool = False,
        admit_more: AdmitMore = admit_any,
        metadata: bool = False,
    ) -> None:
        self._decisions, self.trees = decisions.via(API) if decisions is not None else None, trees
        self.recorder = recorder
        self._mapper = Mapper(trust_tier=trust_tier, identifier=identifier)
        self._count_refused, self._admit_more = count_refused, admit_more
        self._by_rules = RuleAnswers(headers, self._denies, self._message_of)
        denies = trees is not None and trees.mode is Mode.DENY
        self._by_trees = TreeAnswers(headers, denies=denies, with_metadata=metadata)
        self._with_metadata = metadata
        self._recurring = RecurringRequests[ParsedRequest](None if decisions is None else decisions.engine.policy)
        self._matched_by = None if trees is None else trees.policy
        """The trees that cached requests were matched with."""

    def should_rate_limit(self, call: UnaryCall) -> bytes | Coroutine[Any, Any, bytes]:
        """Handle a call of the service. Raises RpcError: the message is incomplete, or the node protects itself."""
        began = perf_counter_ns()
        try:
            parsed = self._recurring.get(call.message)
            if parsed is None or (self.trees is not None and self.trees.policy is not self._matched_by):
                parsed = self._read(call.message)
            answer, echo = self._answer(parsed, call), parsed.echo
        except MalformedMessage as error:
            answer, echo = self.unreadable(str(error)), b""
        except UsageError as error:
            raise self._failure(error, began) from None
        except RpcError:
            self.recorder.record_shed(API)
            raise
        if isinstance(answer, RlsAnswer):
            return self._finish(answer, echo, began)
        return self._finish_later(answer, echo, began, call)

    def _finish(self, answer: RlsAnswer, echo: bytes, began: int, outcome: str = "") -> bytes:
        self.recorder.record_call(
            API, outcome or ("allowed" if answer.allowed else "denied"), perf_counter_ns() - began
        )
        return answer.raw + echo if echo else answer.raw

    async def _finish_later(self, answer: Awaitable[RlsAnswer], echo: bytes, began: int, call: UnaryCall) -> bytes:
        try:
            return self._finish(await answer, echo, began, "cancelled" if call.is_abandoned else "")
        except UsageError as error:
            raise self._failure(error, began) from None

    def _failure(self, error: UsageError, began: int) -> RpcError:
        self.recorder.record_call(API, "error", perf_counter_ns() - began)
        return RpcError(StatusCode.INVALID_ARGUMENT, str(error))

    async def answer(self, request: RlsRequest, caller: Caller) -> RlsAnswer:
        """Answer a request, and refund it if the caller no longer waits.

        Raises:
            InvalidRequest: there is no domain, or no descriptor.
            RpcError: the node protects itself.
        """
        parsed = self._parse(request)
        answer = self._answer(parsed, caller)
        written = answer if isinstance(answer, RlsAnswer) else await answer
        return RlsAnswer(written.allowed, written.raw + parsed.echo)

    def _read(self, raw: bytes) -> ParsedRequest:
        """Parse a message. The cache is cleared if there are other trees: it would keep the old ones alive."""
        if self.trees is not None and self.trees.policy is not self._matched_by:
            self._matched_by = self.trees.policy
            self._recurring.clear()
        parsed = self._parse(decode(raw))
        if _CONSUMER in raw:  # whose key it is may change at any time
            return parsed
        size = sum([1 + len(descriptor.entries) for descriptor in parsed.request.descriptors])
        return self._recurring.remember(raw, parsed, size)

    def _parse(self, request: RlsRequest) -> ParsedRequest:
        """Raises InvalidRequest."""
        domain, descriptors, hits_addend = request.domain, request.descriptors, request.hits_addend
        if not domain:
            raise InvalidRequest("the domain is empty")
        if not descriptors:
            raise InvalidRequest("there are no descriptors")
        parsed = ParsedRequest(request, len(descriptors), echo=codec.echo(request) if self._with_metadata else b"")
        if self.trees is not None:
            matching = self.trees.match(domain, descriptors, hits_addend)
            if matching.known or self._decisions is None:
                parsed.matching = matching
        return parsed

    def _answer(self, parsed: ParsedRequest, caller: Caller) -> RlsAnswer | Awaitable[RlsAnswer]:
        """Decide a parsed request; see `AsyncEngine.decide`. Raises RpcError: the node protects itself."""
        count, matching = parsed.count, parsed.matching
        if count > 1 and (refusal := self._admit_more(count - 1, caller.peer)) is not None:
            raise refusal.error()
        if matching is not None and self.trees is not None:
            if not matching.known:
                self.recorder.record_unknown_domain(parsed.request.domain)
            return self._decide_by_trees(self.trees, matching, caller)
        if self._decisions is None:
            return RlsAnswer(True, codec.OK + _UNMATCHED * count)
        return self._decide_by_rules(self._decisions, parsed, caller)

    def unreadable(self, problem: str) -> RlsAnswer:
        """Return the response to a request that cannot be parsed: a refusal, unless nothing is refused."""
        if self._decisions is None and self.trees is not None and self.trees.shadow_mode:
            return RlsAnswer(True, codec.OK + _UNMATCHED)
        return self._by_rules.unacceptable([f"the request cannot be read: {problem}"])

    def _decide_by_trees(
        self, trees: AsyncDescriptorEngine, matching: Matching, caller: Caller
    ) -> RlsAnswer | Awaitable[RlsAnswer]:
        began = perf_counter_ns()
        answered = trees.decide(matching)
        if isinstance(answered, Answered):
            return self._write_by_trees(answered, began)
        return self._write_by_trees_later(trees, answered, began, caller)

    def _write_by_trees(self, answered: Answered, began: int) -> RlsAnswer:
        elapsed_ns = perf_counter_ns() - began
        answer, written = self._by_trees.of(answered)
        self.recorder.record_envoy(answered.matching, answer, elapsed_ns)
        return written

    async def _write_by_trees_later(
        self, trees: AsyncDescriptorEngine, answered: Awaitable[Answered], began: int, caller: Caller
    ) -> RlsAnswer:
        decided = await answered
        if caller.is_abandoned:
            await trees.undo(decided)
        return self._write_by_trees(decided, began)

    def _decide_by_rules(
        self, decisions: Decisions, parsed: ParsedRequest, caller: Caller
    ) -> RlsAnswer | Awaitable[RlsAnswer]:
        engine, request, before = decisions.engine, parsed.request, parsed.selected
        now = engine.clock.now()
        try:
            parts = parsed.parts
            if parts is None:
                parts = parsed.parts = tuple([self._part(request, each) for each in request.descriptors])
            selected = self._select(engine, parts, before)
        except UsageError as error:
            problems = [self._problem(decisions, request, descriptor, now) for descriptor in request.descriptors]
            return self._by_rules.unacceptable(problems if any(problems) else [str(error)] * len(problems))
        if selected is not before:
            self._recurring.select(parsed, selected)
        if isinstance(selected, SelectedCheck):
            ruling = engine.decide(selected.request, selected)
            if isinstance(ruling, Ruling):
                return self._by_rules.of((ruling,), now)
            return self._write_later(decisions, ruling, now, caller)
        rulings = engine.decide_together(selected)
        if isinstance(rulings, tuple) and not self._count_refused:
            return self._write_together(parts, rulings, now)
        return self._write_together_later(decisions, parts, rulings, now, caller)

    def _select(
        self, engine: AsyncEngine, parts: Sequence[JointRequest], before: SelectedCheck | JointCheck | None
    ) -> SelectedCheck | JointCheck:
        """Return the check of one request, or the joint check of several, or of one that is no plain check.

        Raises UsageError.
        """
        if isinstance(before, JointCheck):
            return engine.joint_check(parts, before)
        if len(parts) == 1 and not self._count_refused:
            (part,) = parts
            if not (part.refund or part.instead.plan):
                try:
                    return engine.select(part.request, before)
                except UsageError:  # more than could ever pass, which is over the limit and no error, or not a path
                    pass
        return engine.joint_check(parts)

    async def _write_later(
        self, decisions: Decisions, ruling: Awaitable[Ruling], now: int, caller: Caller
    ) -> RlsAnswer:
        decided = await ruling
        if caller.is_abandoned:
            await decisions.engine.undo((decided,))
        return self._by_rules.of((decided,), now)

    async def _write_together_later(
        self,
        decisions: Decisions,
        parts: Sequence[JointRequest],
        decided: tuple[Ruling, ...] | Awaitable[tuple[Ruling, ...]],
        now: int,
        caller: Caller,
    ) -> RlsAnswer:
        rulings = decided if isinstance(decided, tuple) else await decided
        if self._count_refused and any(
            not ruling.allowed and not part.refund for ruling, part in zip(rulings, parts, strict=True)
        ):
            for part in parts:
                if part.request.cost > 1 and not part.refund:
                    await decisions.engine.use_up(part)
        if caller.is_abandoned:
            await decisions.engine.undo(rulings)
        return self._write_together(parts, rulings, now)

    def _write_together(self, parts: Sequence[JointRequest], rulings: Sequence[Ruling], now: int) -> RlsAnswer:
        refunds = [part.refund for part in parts]
        return self._by_rules.of(rulings, now, refunds if any(refunds) else ())

    def _part(self, request: RlsRequest, descriptor: Descriptor) -> JointRequest:
        """Return the request of a descriptor. Raises InvalidRequest."""
        domain = request.domain
        hits = (request.hits_addend or 1) if descriptor.hits is None else descriptor.hits
        if descriptor.refund or self._count_refused:
            hits = min(hits, MAX_COST)
        mapped = self._mapper.request(domain, descriptor, hits)
        if descriptor.override is None:
            return JointRequest(mapped, descriptor.refund)
        limits = _overriding(domain, descriptor, descriptor.override)
        return JointRequest(mapped, descriptor.refund, limits)

    def _problem(self, decisions: Decisions, request: RlsRequest, descriptor: Descriptor, now: int) -> str:
        """Return the error of a descriptor; empty if it is valid."""
        try:
            decisions.engine.policy.select(self._part(request, descriptor).request, now, takes_cost=False)
        except HeadgateError as error:
            return str(error)
        return ""

    def _denies(self, rule_id: str) -> bool:
        """Whether a rule denies everything while the store is unavailable."""
        return self._decisions is not None and self._decisions.engine.mode_of(rule_id) is Mode.DENY

    def _message_of(self, rule_id: str) -> str:
        return "" if self._decisions is None else self._decisions.engine.refusal_of(rule_id)[1]


def _overriding(domain: str, descriptor: Descriptor, override: Override) -> Limits:
    """Return the limit that came with a descriptor, for all of its entries; it replaces those of the rules."""
    units = {unit.value for unit in Unit}
    if override.unit not in units or not override.requests_per_unit:
        raise InvalidRequest(
            f"the limit that came with the request is invalid: {override.requests_per_unit} per unit "
            f"{override.unit}; it must be at least 1, and the unit from 1 (second) to 7 (week)"
        )
    quota = cached_limit(override.requests_per_unit, Unit(override.unit)).quota
    assert quota is not None  # noqa: S101  only a limit of 0 has none
    principal = principal_of((("domain", domain), *descriptor.entries))
    return Limits((Limit(space(OVERRIDE, quota), principal, quota),), (OVERRIDE,))

"""Envoy's rate limit service: a question in, an answer out, by rules, by descriptor trees, or by both.

With both, a domain that the trees know is decided by them, and any other by the rules.

What cannot be read, such as a text that is not UTF-8, or cannot be matched, such as a path that servers read in
different ways, is over the limit rather than an error: at an error Envoy lets the request pass by default, and clients
choose what is in their headers. An error is answered only to a message without a domain or descriptors, which is a
mistake in Envoy's configuration.
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
from headgate.policy.envoy.tree import made_once
from headgate.policy.key_file import CONSUMER_PREFIX
from headgate.policy.request import InvalidRequest
from headgate.policy.selection import Limits
from headgate.server.decisions import Decisions
from headgate.server.recurring import RecurringQuestions
from headgate.server.rls import codec
from headgate.server.rls.answers import RlsAnswer, RuleAnswers, TreeAnswers
from headgate.server.rls.codec import MalformedMessage, RlsQuestion, decode
from headgate.server.rls.mapping import Mapper
from headgate.server.wire.admission import AdmitMore, admit_any
from headgate.server.wire.grpc.calls import RpcError, StatusCode, UnaryCall
from headgate.server.wire.messages import HttpRequest
from headgate.web.headers import ResponseHeaders
from headgate.web.identity import Identifier

API = "rls"
"""The name of the service in metrics."""
OVERRIDE = "envoy-override"
"""The name, in answers and keys, of limits that come with a request."""
_USUAL = ResponseHeaders()
_CONSUMER = CONSUMER_PREFIX.encode()
_UNMATCHED = codec.status(codec.status_content(Code.OK))


Caller: TypeAlias = UnaryCall | HttpRequest
"""What a question came with."""


class Understood(msgspec.Struct, gc=False):
    """A question, and what it asks of whom."""

    question: RlsQuestion
    count: int
    """Of its descriptors."""
    matching: Matching | None = None
    """What the trees say, where they decide."""
    parts: list[JointRequest] | None = None
    """What the rules are asked; None before they are."""
    selected: SelectedCheck | JointCheck | None = None
    echo: bytes = b""
    """What the answer's metadata repeats of the question, encoded."""


class RateLimitService:
    """Answers Envoy.

    Args:
        recorder: what counts and times calls, and decisions by trees.
        decisions: by Headgate's rules; None for none.
        trees: what decides by the configuration of envoyproxy/ratelimit; None for none. Without either, everything
            passes.
        headers: which header fields Envoy's clients get; None for none.
        trust_tier: see `headgate.server.rls.mapping`.
        identifier: the same.
        count_refused: whether hits that rules refuse use up what is left of their limits; see `AsyncDescriptorEngine`,
            which has the same option.
        admit_more: asked whether so many descriptors of a question beyond the first are let in.
        metadata: whether dynamic metadata has what envoyproxy/ratelimit puts there: the question, and the `metadata` of
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
        self._recurring = RecurringQuestions[Understood](None if decisions is None else decisions.engine.policy)
        self._matched_by = None if trees is None else trees.policy
        """The trees by which recurring questions were understood."""

    def should_rate_limit(self, call: UnaryCall) -> bytes | Coroutine[Any, Any, bytes]:
        """Answer a call of the service. Raises RpcError: the message asks nothing, or the node protects itself."""
        began = perf_counter_ns()
        try:
            asked = self._recurring.get(call.message)
            if asked is None or (self.trees is not None and self.trees.policy is not self._matched_by):
                asked = self._read(call.message)
            answer, echo = self._answer(asked, call), asked.echo
        except MalformedMessage as error:
            answer, echo = self.unreadable(str(error)), b""
        except UsageError as error:
            raise self._failure(error, began) from None
        except RpcError:
            self.recorder.shed(API)
            raise
        if isinstance(answer, RlsAnswer):
            return self._ended(answer, echo, began)
        return self._ended_later(answer, echo, began, call)

    def _ended(self, answer: RlsAnswer, echo: bytes, began: int, outcome: str = "") -> bytes:
        self.recorder.called(API, outcome or ("allowed" if answer.allowed else "denied"), perf_counter_ns() - began)
        return answer.raw + echo if echo else answer.raw

    async def _ended_later(self, answer: Awaitable[RlsAnswer], echo: bytes, began: int, call: UnaryCall) -> bytes:
        try:
            return self._ended(await answer, echo, began, "cancelled" if call.is_abandoned else "")
        except UsageError as error:
            raise self._failure(error, began) from None

    def _failure(self, error: UsageError, began: int) -> RpcError:
        self.recorder.called(API, "error", perf_counter_ns() - began)
        return RpcError(StatusCode.INVALID_ARGUMENT, str(error))

    async def answer(self, question: RlsQuestion, caller: Caller) -> RlsAnswer:
        """Answer a question. What it took is given back if the caller does not wait any more.

        Raises:
            InvalidRequest: there is no domain, or no descriptor.
            RpcError: the node protects itself.
        """
        asked = self._understood(question)
        answer = self._answer(asked, caller)
        told = answer if isinstance(answer, RlsAnswer) else await answer
        return RlsAnswer(told.allowed, told.raw + asked.echo)

    def _read(self, raw: bytes) -> Understood:
        """Return what a message asks. What was understood by other trees is forgotten, since it keeps them alive."""
        if self.trees is not None and self.trees.policy is not self._matched_by:
            self._matched_by = self.trees.policy
            self._recurring.clear()
        asked = self._understood(decode(raw))
        if _CONSUMER in raw:  # whose key it is may change at any time
            return asked
        size = sum([1 + len(descriptor.entries) for descriptor in asked.question.descriptors])
        return self._recurring.remember(raw, asked, size)

    def _understood(self, question: RlsQuestion) -> Understood:
        """Return what a question asks, of whom. Raises InvalidRequest."""
        domain, descriptors, hits_addend = question
        if not domain:
            raise InvalidRequest("the domain is empty")
        if not descriptors:
            raise InvalidRequest("there are no descriptors")
        understood = Understood(question, len(descriptors), echo=codec.echo(question) if self._with_metadata else b"")
        if self.trees is not None:
            matching = self.trees.match(domain, descriptors, hits_addend)
            if matching.known or self._decisions is None:
                understood.matching = matching
        return understood

    def _answer(self, asked: Understood, caller: Caller) -> RlsAnswer | Awaitable[RlsAnswer]:
        """Answer a question that is understood; see `AsyncEngine.decide`. Raises RpcError: the node protects itself."""
        count, matching = asked.count, asked.matching
        if count > 1 and (refusal := self._admit_more(count - 1, caller.peer)) is not None:
            raise refusal.error()
        if matching is not None and self.trees is not None:
            if not matching.known:
                self.recorder.unknown_domain(asked.question.domain)
            return self._matched(self.trees, matching, caller)
        if self._decisions is None:
            return RlsAnswer(True, codec.OK + _UNMATCHED * count)
        return self._ruled(self._decisions, asked, caller)

    def unreadable(self, problem: str) -> RlsAnswer:
        """Return the answer to what cannot be read: it does not pass, except where nothing is refused."""
        if self._decisions is None and self.trees is not None and self.trees.shadow_mode:
            return RlsAnswer(True, codec.OK + _UNMATCHED)
        return self._by_rules.unacceptable([f"the request cannot be read: {problem}"])

    def _matched(
        self, trees: AsyncDescriptorEngine, matching: Matching, caller: Caller
    ) -> RlsAnswer | Awaitable[RlsAnswer]:
        """Answer by trees."""
        began = perf_counter_ns()
        answered = trees.decide(matching)
        if isinstance(answered, Answered):
            return self._told(answered, began)
        return self._told_later(trees, answered, began, caller)

    def _told(self, answered: Answered, began: int) -> RlsAnswer:
        elapsed_ns = perf_counter_ns() - began
        answer, told = self._by_trees.of(answered)
        self.recorder.answered(answered.matching, answer, elapsed_ns)
        return told

    async def _told_later(
        self, trees: AsyncDescriptorEngine, answered: Awaitable[Answered], began: int, caller: Caller
    ) -> RlsAnswer:
        decided = await answered
        if caller.is_abandoned:
            await trees.undo(decided)
        return self._told(decided, began)

    def _ruled(self, decisions: Decisions, understood: Understood, caller: Caller) -> RlsAnswer | Awaitable[RlsAnswer]:
        """Answer by rules."""
        engine, question, before = decisions.engine, understood.question, understood.selected
        now = engine.clock.now()
        try:
            parts = understood.parts
            if parts is None:
                parts = understood.parts = [self._part(question, descriptor) for descriptor in question.descriptors]
            selected = self._selected(engine, parts, before)
        except UsageError as error:
            problems = [self._problem(decisions, question, descriptor, now) for descriptor in question.descriptors]
            return self._by_rules.unacceptable(problems if any(problems) else [str(error)] * len(problems))
        if selected is not before:
            self._recurring.select(understood, selected)
        if isinstance(selected, SelectedCheck):
            ruling = engine.decide(selected.request, selected)
            if isinstance(ruling, Ruling):
                return self._by_rules.of((ruling,), now)
            return self._ruled_later(decisions, ruling, now, caller)
        rulings = engine.decide_together(selected)
        if isinstance(rulings, tuple) and not self._count_refused:
            return self._of_all(parts, rulings, now)
        return self._all_ruled_later(decisions, parts, rulings, now, caller)

    def _selected(
        self, engine: AsyncEngine, parts: Sequence[JointRequest], before: SelectedCheck | JointCheck | None
    ) -> SelectedCheck | JointCheck:
        """Return what one request asks of the store, or several that pass together. Raises UsageError."""
        if isinstance(before, JointCheck):
            return engine.joint_check(parts, before)
        if len(parts) == 1 and not self._count_refused:
            (part,) = parts
            if not (part.refund or part.instead.plan):
                try:
                    return engine.asked(part.request, before)
                except UsageError:  # more than could ever pass, which is over the limit and no error, or not a path
                    pass
        return engine.joint_check(parts)

    async def _ruled_later(
        self, decisions: Decisions, ruling: Awaitable[Ruling], now: int, caller: Caller
    ) -> RlsAnswer:
        decided = await ruling
        if caller.is_abandoned:
            await decisions.undo((decided,))
        return self._by_rules.of((decided,), now)

    async def _all_ruled_later(
        self,
        decisions: Decisions,
        parts: Sequence[JointRequest],
        decided: tuple[Ruling, ...] | Awaitable[tuple[Ruling, ...]],
        now: int,
        caller: Caller,
    ) -> RlsAnswer:
        rulings = decided if isinstance(decided, tuple) else await decided
        refused = any(not ruling.allowed and not part.refund for ruling, part in zip(rulings, parts, strict=True))
        if refused and self._count_refused:
            for part in parts:
                if part.request.cost > 1 and not part.refund:
                    await decisions.use_up(part)
        if caller.is_abandoned:
            await decisions.undo(rulings)
        return self._of_all(parts, rulings, now)

    def _of_all(self, parts: Sequence[JointRequest], rulings: Sequence[Ruling], now: int) -> RlsAnswer:
        refunds = [part.refund for part in parts]
        return self._by_rules.of(rulings, now, refunds if any(refunds) else ())

    def _part(self, question: RlsQuestion, descriptor: Descriptor) -> JointRequest:
        """Return what a descriptor asks. Raises InvalidRequest."""
        domain, _, hits_addend = question
        hits = (hits_addend or 1) if descriptor.hits is None else descriptor.hits
        if descriptor.refund or self._count_refused:
            hits = min(hits, MAX_COST)
        request = self._mapper.request(domain, descriptor, hits)
        if descriptor.override is None:
            return JointRequest(request, descriptor.refund)
        limits = _overriding(domain, descriptor, descriptor.override)
        return JointRequest(request, descriptor.refund, limits)

    def _problem(self, decisions: Decisions, question: RlsQuestion, descriptor: Descriptor, now: int) -> str:
        """Say what is wrong with a descriptor; empty if nothing is."""
        try:
            decisions.engine.policy.select(self._part(question, descriptor).request, now, asking=False)
        except HeadgateError as error:
            return str(error)
        return ""

    def _denies(self, rule_id: str) -> bool:
        """Whether a rule denies everything while the store is away."""
        return self._decisions is not None and self._decisions.engine.mode_of(rule_id) is Mode.DENY

    def _message_of(self, rule_id: str) -> str:
        """Return the message of a rule's refusals."""
        return "" if self._decisions is None else self._decisions.engine.refusal_of(rule_id)[1]


def _overriding(domain: str, descriptor: Descriptor, override: Override) -> Limits:
    """Return the limit that came with a descriptor: its own, for all of its entries, whatever the rules say."""
    units = {unit.value for unit in Unit}
    if override.unit not in units or not override.requests_per_unit:
        raise InvalidRequest(
            f"the limit that came with the request cannot be used: {override.requests_per_unit} per unit "
            f"{override.unit}; it takes at least 1, and a unit from 1 (second) to 7 (week)"
        )
    quota = made_once(override.requests_per_unit, Unit(override.unit)).quota
    assert quota is not None  # noqa: S101  only a limit of 0 has none
    principal = principal_of((("domain", domain), *descriptor.entries))
    return Limits((Limit(space(OVERRIDE, quota), principal, quota),), (OVERRIDE,))

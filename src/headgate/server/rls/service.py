"""Envoy's rate limit service: a question in, an answer out, by rules, by descriptor trees, or by both.

With both, a domain that the trees know is decided by them, and any other by the rules.

What cannot be read, such as a text that is not UTF-8, or cannot be matched, such as a path that servers read in
different ways, is over the limit rather than an error: at an error Envoy lets the request pass by default, and clients
choose what is in their headers. An error is answered only to a message without a domain or descriptors, which is a
mistake in Envoy's configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

from headgate.core.errors import HeadgateError, UsageError
from headgate.core.key import space
from headgate.core.mode import Mode
from headgate.core.plan import MAX_COST, Limit
from headgate.engine import Part
from headgate.engine.descriptors import AsyncDescriptorEngine
from headgate.observe.recorder import Recorder
from headgate.policy.envoy import Descriptor, Matching, Override, Unit
from headgate.policy.envoy.answering import Code as Answered
from headgate.policy.envoy.matching import principal_of
from headgate.policy.envoy.tree import made_once
from headgate.policy.request import InvalidRequest, Request
from headgate.policy.selection import Limits
from headgate.server.decisions import Decisions
from headgate.server.rls import encoding
from headgate.server.rls.answers import Options
from headgate.server.rls.decoding import MalformedMessage, Question, decode
from headgate.server.rls.mapping import Mapper
from headgate.server.rls.matched import MatchedAnswers
from headgate.server.rls.recurring import Recurring
from headgate.server.rls.ruled import RuledAnswers
from headgate.server.wire.admission import Charge, free_of_charge
from headgate.server.wire.grpc.calls import RpcError, StatusCode, UnaryCall
from headgate.server.wire.messages import NOBODY, Peer

API = "rls"
"""The name of the service in metrics."""
OVERRIDE = "envoy-override"
"""The name, in answers and keys, of limits that come with a request."""
_UNMATCHED = encoding.status(Answered.OK)


class RateLimitService:
    """Answers Envoy.

    Args:
        recorder: what counts and times calls, and decisions by trees.
        decisions: by Headgate's rules; None for none.
        trees: the configuration of envoyproxy/ratelimit; None for none. Without either, everything passes.
        options: what answers tell besides the decision.
        trust_tier: see `headgate.server.rls.mapping`.
        count_refused: whether hits that rules refuse use up what is left of their limits; see `AsyncDescriptorEngine`,
            which has the same option.
        charge: asked whether so many descriptors of a question beyond the first are let in.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        decisions: Decisions | None = None,
        trees: AsyncDescriptorEngine | None = None,
        options: Options | None = None,
        trust_tier: bool = False,
        count_refused: bool = False,
        charge: Charge = free_of_charge,
    ) -> None:
        options = Options() if options is None else options
        self._decisions, self._trees = decisions.via(API) if decisions is not None else None, trees
        self._recorder = recorder
        self._mapper = Mapper(trust_tier=trust_tier)
        self._count_refused, self._charge = count_refused, charge
        self._recurring = Recurring()
        self._ruled = RuledAnswers(options, self._denies)
        self._matched = MatchedAnswers(options, denies=trees is not None and trees.mode is Mode.DENY)

    @property
    def recorder(self) -> Recorder:
        """What counts and times calls."""
        return self._recorder

    @property
    def trees(self) -> AsyncDescriptorEngine | None:
        """The configuration of envoyproxy/ratelimit, if there is one."""
        return self._trees

    async def should_rate_limit(self, call: UnaryCall) -> bytes:
        """Answer a call of the service. Raises RpcError: the message asks nothing, or the node protects itself."""
        began = perf_counter_ns()
        raw, decisions = call.message, self._decisions
        try:
            kept = self._recurring.find(raw)
            if kept is not None and decisions is not None:
                now = decisions.engine.clock.now()
                answer = self._ruled.one(await decisions.check(kept), now)
            else:
                question = decode(raw)
                request = self._usual(question)
                if request is None or decisions is None:
                    answer = await self.answer(question, call.peer)
                else:
                    self._recurring.note(raw, request)
                    now = decisions.engine.clock.now()
                    answer = self._ruled.one(await decisions.check(request), now)
        except UsageError as error:
            answer = await self._after(error, raw, began)
        except RpcError:
            self._recorder.shed(API)
            raise
        outcome = "allowed" if answer.startswith(encoding.OK) else "denied"
        self._recorder.called(API, outcome, perf_counter_ns() - began)
        return answer

    async def answer(self, question: Question, peer: Peer = NOBODY) -> bytes:
        """Return a `RateLimitResponse` to who asks.

        Raises:
            InvalidRequest: there is no domain, or no descriptor.
            RpcError: the node protects itself.
        """
        domain, descriptors, hits_addend = question
        if not domain:
            raise InvalidRequest("the domain is empty")
        if not descriptors:
            raise InvalidRequest("there are no descriptors")
        if len(descriptors) > 1 and (refusal := self._charge(len(descriptors) - 1, peer)) is not None:
            raise RpcError(refusal.code, refusal.detail, refusal.trailers)
        if self._trees is not None:
            matching = self._trees.match(domain, descriptors, hits_addend)
            if matching.known or self._decisions is None:
                return await self._by_trees(self._trees, matching)
        if self._decisions is None:
            return encoding.OK + _UNMATCHED * len(descriptors)
        return await self._together(self._decisions, domain, descriptors, hits_addend or 1)

    def unreadable(self, problem: str) -> bytes:
        """Return the answer to what cannot be read: it does not pass, except where nothing is refused."""
        if self._decisions is None and self._trees is not None and self._trees.shadow_mode:
            return encoding.OK + _UNMATCHED
        return self._ruled.unacceptable([f"the request cannot be read: {problem}"])

    def _usual(self, question: Question) -> Request | None:
        """Return what a question asks the rules if it is the usual one: one descriptor that takes its hits."""
        domain, descriptors, hits_addend = question
        if self._trees is not None or self._count_refused or len(descriptors) != 1 or not domain:
            return None
        (only,) = descriptors
        if only.override is not None or only.refund:
            return None
        return self._mapper.request(domain, only, (hits_addend or 1) if only.hits is None else only.hits)

    async def _after(self, error: UsageError, raw: bytes, began: int) -> bytes:
        """Answer what could not be answered in the usual way: more than could ever pass, a path that is none."""
        if isinstance(error, MalformedMessage):
            return self.unreadable(str(error))
        try:
            return await self.answer(decode(raw))
        except UsageError:
            self._recorder.called(API, "error", perf_counter_ns() - began)
            raise RpcError(StatusCode.INVALID_ARGUMENT, str(error)) from None

    async def _by_trees(self, trees: AsyncDescriptorEngine, matching: Matching) -> bytes:
        began, now = perf_counter_ns(), trees.clock.now()
        answered = await trees.decide(matching)
        self._recorder.answered(matching, answered.answer, perf_counter_ns() - began)
        return self._matched.of(answered, now)

    async def _together(
        self, decisions: Decisions, domain: str, descriptors: Sequence[Descriptor], hits_addend: int
    ) -> bytes:
        """Answer by rules: all descriptors, or none."""
        now = decisions.engine.clock.now()
        try:
            parts = [self._part(domain, descriptor, hits_addend) for descriptor in descriptors]
            rulings = await decisions.check_together(parts)
        except UsageError as error:
            return self._ruled.unacceptable(self._problems(decisions, domain, descriptors, hits_addend, error))
        refused = any(not ruling.allowed and not part.refund for ruling, part in zip(rulings, parts, strict=True))
        if refused and self._count_refused:
            for part in parts:
                if part.request.cost > 1 and not part.refund:
                    await decisions.engine.use_up(part)
        return self._ruled.several(rulings, [descriptor.refund for descriptor in descriptors], now)

    def _part(self, domain: str, descriptor: Descriptor, hits_addend: int) -> Part:
        hits = hits_addend if descriptor.hits is None else descriptor.hits
        if descriptor.refund or self._count_refused:
            hits = min(hits, MAX_COST)
        request = self._mapper.request(domain, descriptor, hits)
        if descriptor.override is None:
            return Part(request, descriptor.refund)
        limits = _overriding(domain, descriptor, descriptor.override)
        return Part(request, descriptor.refund, limits)

    def _problems(
        self,
        decisions: Decisions,
        domain: str,
        descriptors: Sequence[Descriptor],
        hits_addend: int,
        error: UsageError,
    ) -> list[str]:
        """Return what is wrong with each descriptor, empty where nothing is."""
        problems = []
        now = decisions.engine.clock.now()
        for descriptor in descriptors:
            problem = ""
            try:
                part = self._part(domain, descriptor, hits_addend)
                decisions.engine.policy.plan(part.request, now, asking=False)
            except HeadgateError as found:
                problem = str(found)
            problems.append(problem)
        return problems if any(problems) else [str(error)] * len(problems)

    def _denies(self, rule_id: str) -> bool:
        """Whether a rule denies everything while the store is away."""
        return self._decisions is not None and self._decisions.engine.mode_of(rule_id) is Mode.DENY


def _overriding(domain: str, descriptor: Descriptor, override: Override) -> Limits:
    """Return the limit that came with a descriptor: its own, for all of its entries, whatever the rules say."""
    units = {unit.value for unit in Unit}
    if override.unit not in units or not override.requests_per_unit:
        raise InvalidRequest(
            f"the limit that came with the request, {override.requests_per_unit} per unit {override.unit}, is none: "
            f"it takes at least 1, and a unit from 1 (second) to 7 (week)"
        )
    quota = made_once(override.requests_per_unit, Unit(override.unit)).quota
    assert quota is not None  # noqa: S101  only a limit of 0 has none
    principal = principal_of((("domain", domain), *descriptor.entries))
    return Limits((Limit(space(OVERRIDE, quota), principal, quota),), (OVERRIDE,))

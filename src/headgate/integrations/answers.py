"""What is answered: the header fields of rulings, and refusals as problem documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headgate.cache import Prepared
from headgate.core.decision import Decision
from headgate.core.mode import Mode
from headgate.core.numbers import short
from headgate.core.plan import combine
from headgate.core.quota import SECOND, Quota
from headgate.engine import Ruling
from headgate.policy.request import UnknownRule
from headgate.policy.selection import Verdict
from headgate.web import problem
from headgate.web.errors import InvalidSettings
from headgate.web.headers import (
    MOST_PREPARED,
    HeaderWriter,
    LimitFields,
    ResponseHeaders,
    Spelling,
    most_shown,
    policy_names,
    retry_after_s,
)
from headgate.web.problem import LimitTexts, ProblemDocument


class Refusal(msgspec.Struct, frozen=True):
    """Why a request does not pass, and what to answer."""

    problem: ProblemDocument
    """The status, and a body of type `headgate.web.problem.CONTENT_TYPE`."""
    fields: Sequence[Any] = ()
    """Header fields, as the framework has them, without the type and length of the body."""
    ruling: Ruling | None = None
    """Who said so; None where nobody could be asked: the request has no key, or asks for what could never pass."""
    answer: Any = None
    """What `on_refused` wants to be answered instead, in the framework's own terms."""
    is_shadow: bool = False
    """Whether the request passes nevertheless, since the budget is only tried out."""

    @property
    def status(self) -> int:
        """429; 403 for those on a deny list, 503 where nothing can be counted, 400 for what cannot be understood."""
        return self.problem.status

    @property
    def detail(self) -> str:
        """What is wrong, in a sentence."""
        return self.problem.detail or problem.NOT_ADMITTED

    @property
    def retry_after(self) -> int | None:
        """Seconds, as in Retry-After; None where waiting does not help."""
        return None if self.decision is None else retry_after_s(self.decision)

    @property
    def decision(self) -> Decision | None:
        """What was decided; None where nothing was counted, so that waiting does not help."""
        return self.ruling.decision if self.ruling is not None else None


class Answers:
    """Writes what is answered.

    Args:
        headers: which header fields; None: none at all.
        spelling: how the framework has them.
        mode_of: says what is answered for a rule while the store is away.
        refusal_of: returns the status and the message of a rule's refusals; None: nothing is decided by rules.
    """

    def __init__(
        self,
        headers: ResponseHeaders | None,
        spelling: Spelling[Any],
        mode_of: Callable[[str], Mode] | None,
        refusal_of: Callable[[str], tuple[int, str]] | None = None,
    ) -> None:
        if headers is not None and not isinstance(headers, ResponseHeaders):
            raise InvalidSettings(f"headers are ResponseHeaders(...), or None for no fields, not {short(headers)}")
        self._writer = HeaderWriter(headers, spelling) if headers is not None else None
        self._mode_of, self._refusal_of = mode_of, refusal_of
        self._prepared = Prepared(self._prepare, MOST_PREPARED)
        self._unstored = spelling("Cache-Control")("no-store")

    def fields(self, names: Sequence[str], decision: Decision | None, now: int) -> list[Any]:
        """Return the header fields about what a request was asked by.

        Args:
            names: of the budget or rule of each limit.
            decision: about them; None where nobody was asked.
            now: as for `ResponseHeaders.of`.
        """
        if self._writer is None or decision is None:
            return []
        if decision.made_of:
            return self._fields(decision, self._limits(names, decision), now)
        limit: Any = self._prepared.of(names[0], decision.quota)[0]
        return self._writer.write(decision, limit, -(-(now + decision.reset_after_us) // SECOND))

    def fields_of(self, asked: Sequence[tuple[tuple[str, ...], Decision | None]], now: int) -> list[Any]:
        """Return the same about all that a request was asked by, each with names and what was decided, if anything."""
        decided = [(names, decision) for names, decision in asked if decision is not None]
        if not decided:
            return []
        if len(decided) == 1:
            return self.fields(*decided[0], now)
        names = sum([names for names, _ in decided], ())
        return self.fields(names, combine([part for _, decision in decided for part in decision.limits]), now)

    def refusal(self, ruling: Ruling, now: int) -> Refusal:
        """Return what is answered to a request that a ruling refuses."""
        decision = ruling.decision
        if decision is None:
            status = 403 if ruling.verdict is Verdict.DENIED else 503
            told = problem.NOT_ADMITTED if status == 403 else "The service cannot count requests at the moment."
            return Refusal(problem.of_status(status, told), [self._unstored], ruling)
        limits = self._limits(ruling.rules, decision)
        texts = [each[1] for each in limits]
        if decision.degraded and self._mode_of is not None and self._mode_of(ruling.rule_id) is Mode.DENY:
            told_all = ProblemDocument(503, problem.reduced(decision, texts))  # nobody's fault but ours
        else:
            told_all = ProblemDocument(429, problem.exceeded(decision, texts))
            if self._refusal_of is not None:
                status, message = self._refusal_of(ruling.rule_id)
                told_all = ProblemDocument(status, problem.reworded(told_all.body, status, message))
        fields = [self._unstored] if self._writer is None else self._fields(decision, limits, now)
        return Refusal(told_all, fields, ruling)

    def unreadable(self, error: Exception) -> Refusal:
        """Return what is answered to a request that could not be asked about, if that is the client's fault."""
        if isinstance(error, UnknownRule):
            raise error
        return Refusal(problem.bad_request(str(error)), [self._unstored])

    def _limits(self, names: Sequence[str], decision: Decision) -> Sequence[tuple[LimitFields[Any] | None, LimitTexts]]:
        if not decision.parts:
            return (self._prepared.of(names[0], decision.quota),)
        told_apart = policy_names(names, len(decision.parts))
        return [self._prepared.of(name, part.quota) for name, part in zip(told_apart, decision.parts, strict=True)]

    def _fields(
        self, decision: Decision, limits: Sequence[tuple[LimitFields[Any] | None, LimitTexts]], now: int
    ) -> list[Any]:
        writer = self._writer
        assert writer is not None  # noqa: S101  whoever asks has looked
        shown, few = (decision, limits) if len(limits) == 1 else most_shown(decision, limits)
        fields = [each[0] for each in few if each[0] is not None]
        reset_at = -(-(now + decision.reset_after_us) // SECOND)
        return writer.write(shown, fields[shown.index], reset_at, writer.listed(fields))

    def _prepare(self, name: str, quota: Quota) -> tuple[LimitFields[Any] | None, LimitTexts]:
        return self._writer.prepare(name, quota) if self._writer is not None else None, problem.prepare(name, quota)

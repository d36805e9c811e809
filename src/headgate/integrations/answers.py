"""Responses: the header fields of rulings, and refusals as problem documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

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

_Limit: TypeAlias = tuple[LimitFields[Any], LimitTexts]
"""The prepared parts of responses about one limit."""


class Refusal(msgspec.Struct, frozen=True):
    """Why a request is refused, and the response."""

    problem: ProblemDocument
    """The status, and a body of type `headgate.web.problem.CONTENT_TYPE`."""
    fields: Sequence[Any] = ()
    """Header fields in the framework's form, without Content-Type and Content-Length."""
    ruling: Ruling | None = None
    """None for an invalid request, such as one without a key, or with a cost above the limit."""
    answer: Any = None
    """The response that `on_refused` returned instead, if any: of the framework."""
    is_shadow: bool = False
    """Whether the request is allowed nevertheless, by a shadow budget."""

    @property
    def status(self) -> int:
        """429 for a limit, 403 for a deny list, 503 if requests cannot be counted, 400 for an invalid request."""
        return self.problem.status

    @property
    def detail(self) -> str:
        return self.problem.detail or problem.NOT_ADMITTED

    @property
    def retry_after(self) -> int | None:
        """Seconds, as in Retry-After; None if a retry cannot succeed."""
        return None if self.decision is None else retry_after_s(self.decision)

    @property
    def decision(self) -> Decision | None:
        """None if nothing was counted."""
        return self.ruling.decision if self.ruling is not None else None


class Answers:
    """Writes header fields and refusals.

    Args:
        headers: which header fields; None: none.
        spelling: the framework's form of header fields.
        mode_of: returns the mode of a rule while the store is unavailable.
        refusal_of: returns the status and the message of a rule's refusals; None for quotas.
    """

    def __init__(
        self,
        headers: ResponseHeaders | None,
        spelling: Spelling[Any],
        mode_of: Callable[[str], str | None],
        refusal_of: Callable[[str], tuple[int, str]] | None = None,
    ) -> None:
        if headers is not None and not isinstance(headers, ResponseHeaders):
            raise InvalidSettings(f"headers must be ResponseHeaders(...), or None for no fields, got {short(headers)}")
        self._has_fields, self._writer = headers is not None, HeaderWriter(headers or ResponseHeaders(), spelling)
        self._mode_of, self._refusal_of = mode_of, refusal_of
        self._prepared = Prepared(self._prepare, MOST_PREPARED)
        self._unstored = spelling("Cache-Control")("no-store")

    def fields(self, rulings: Sequence[Ruling], now: int) -> list[Any]:
        """Return the header fields of rulings about one request; `now` is as for `ResponseHeaders.of`."""
        if not self._has_fields:
            return []
        names: tuple[str, ...] = ()
        parts: tuple[Decision, ...] = ()
        for ruling in rulings:
            if ruling.decision is not None:
                names += ruling.rules
                parts += ruling.decision.limits
        if not parts:
            return []
        decision = combine(parts)
        return self._fields(decision, self._limits(names, decision), now)

    def refusal(self, ruling: Ruling, now: int) -> Refusal:
        decision = ruling.decision
        if decision is None:
            status = 403 if ruling.verdict is Verdict.DENIED else 503
            detail = problem.NOT_ADMITTED if status == 403 else "The service cannot count requests at the moment."
            return Refusal(problem.of_status(status, detail), [self._unstored], ruling)
        limits = self._limits(ruling.rules, decision)
        texts = [each[1] for each in limits]
        if decision.degraded and self._mode_of(ruling.rule_id) == Mode.DENY:
            document = ProblemDocument(503, problem.reduced(decision, texts))
        else:
            document = ProblemDocument(429, problem.exceeded(decision, texts))
            if self._refusal_of is not None:
                status, message = self._refusal_of(ruling.rule_id)
                document = ProblemDocument(status, problem.reworded(document.body, status, message))
        fields = self._fields(decision, limits, now) if self._has_fields else [self._unstored]
        return Refusal(document, fields, ruling)

    def bad_request(self, error: Exception) -> Refusal:
        """Return the refusal of an invalid request. An unknown rule is the application's mistake, and raised."""
        if isinstance(error, UnknownRule):
            raise error
        return Refusal(problem.bad_request(str(error)), [self._unstored])

    def _limits(self, names: Sequence[str], decision: Decision) -> Sequence[_Limit]:
        if not decision.parts:
            return (self._prepared.of(names[0], decision.quota),)
        distinct = policy_names(names, len(decision.parts))
        return [self._prepared.of(name, part.quota) for name, part in zip(distinct, decision.parts, strict=True)]

    def _fields(self, decision: Decision, limits: Sequence[_Limit], now: int) -> list[Any]:
        shown, few = most_shown(decision, limits)
        reset_at = -(-(now + decision.reset_after_us) // SECOND)
        return self._writer.write(shown, [each[0] for each in few], reset_at)

    def _prepare(self, name: str, quota: Quota) -> _Limit:
        return self._writer.prepare(name, quota), problem.prepare(name, quota)

"""How a question ended. Only allowed and denied are decisions; nothing else counts as a success."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """What became of a question."""

    ALLOWED = "allowed"
    DENIED = "denied"
    SHED = "shed"
    ERROR = "error"


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The end of one question."""

    kind: Kind
    degraded: bool = False
    """Whether it was decided without the store."""
    error: str = ""
    """What went wrong, in one of few ways."""
    matched: bool = True
    """Whether any rule was for the request: one that no rule is for passes, and costs the service next to nothing."""

    @property
    def is_decision(self) -> bool:
        return self.kind is Kind.ALLOWED or self.kind is Kind.DENIED


ALLOWED, DENIED, SHED = Outcome(Kind.ALLOWED), Outcome(Kind.DENIED), Outcome(Kind.SHED)
UNMATCHED = Outcome(Kind.ALLOWED, matched=False)
ALLOWED_DEGRADED, DENIED_DEGRADED = Outcome(Kind.ALLOWED, True), Outcome(Kind.DENIED, True)


def decided(*, allowed: bool, degraded: bool = False, matched: bool = True) -> Outcome:
    """Return the outcome of a decision."""
    if degraded:
        return ALLOWED_DEGRADED if allowed else DENIED_DEGRADED
    return (ALLOWED if matched else UNMATCHED) if allowed else DENIED


def failed(why: str) -> Outcome:
    """Return the outcome of a question that was not answered, or not with a decision."""
    return Outcome(Kind.ERROR, error=why)


NOT_UNDERSTOOD = failed("answer not understood")
LOST = failed("connection lost")
NO_ANSWER = failed("no answer in time")
UNFINISHED = failed("no answer when it ended")


class BadAnswer(Exception):
    """The server breaks the protocol: nothing more can be read from this connection."""

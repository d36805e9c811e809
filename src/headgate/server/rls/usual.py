"""The usual answer, put together of few pieces: one descriptor that one limit admits in normal times.

Few numbers of it change, what is left and when it is reset; all else is encoded once for each limit.
"""

from __future__ import annotations

from typing import NamedTuple

from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND
from headgate.policy.envoy.request import MAX_UINT32
from headgate.server.rls import encoding
from headgate.server.rls.answers import Options
from headgate.server.rls.encoding import framed, varint

_NORMAL = Pressure.NORMAL
_BYTE = tuple([bytes([number]) for number in range(128)])
_REMAINING = framed(b"\x0a", b"X-RateLimit-Remaining") + b"\x12"
_RESET = framed(b"\x0a", b"X-RateLimit-Reset") + b"\x12"
_STATE = framed(b"\x0a", b"RateLimit") + b"\x12"


class Usual(NamedTuple):
    """What the answers about one limit have in common."""

    owner: object
    """What the limit is known by; kept, so that no other has its id."""
    status: bytes
    """The status up to what is left."""
    limit: bytes
    """The first header field."""
    policy: bytes
    """The field RateLimit-Policy."""
    state: bytes
    """The beginning of the value of the field RateLimit."""
    metadata: bytes


class UsualAnswers:
    """Writes usual answers, for header fields in their usual form."""

    __slots__ = ("_headers", "is_on")

    def __init__(self, options: Options) -> None:
        headers = self._headers = options.headers
        self.is_on = headers is None or (headers.legacy and headers.ietf == "draft-11")
        """Whether the options are such that there are usual answers."""

    def fits(self, decision: Decision) -> bool:
        """Whether the answer to a decision is a usual one."""
        return (
            decision.allowed
            and decision.state is _NORMAL
            and not decision.parts
            and not decision.degraded
            and not decision.delay_us
            and self.is_on
            and decision.remaining <= MAX_UINT32
        )

    def made(self, owner: object, name: str, decision: Decision, current_limit: bytes, metadata: bytes) -> Usual:
        """Return what answers about a limit have in common; `name` is that of its policy, of at most 64 characters."""
        limit = policy = state = b""
        if self._headers is not None:
            written = dict(self._headers.of(decision, (name,), now=1))  # of the times, none is kept
            limit = encoding.header("X-RateLimit-Limit", written["X-RateLimit-Limit"])
            policy = encoding.header("RateLimit-Policy", written["RateLimit-Policy"])
            state = f"{written['RateLimit'].rpartition(';r=')[0]};r=".encode()
        return Usual(owner, b"\x08\x01" + current_limit, limit, policy, state, metadata)

    def of(self, usual: Usual, decision: Decision, now: int) -> bytes:
        """Return an answer to what was asked at `now`, in microseconds since the epoch."""
        remaining, seconds = decision.remaining, -(-decision.reset_after_us // SECOND)
        after = varint(seconds)
        status = usual.status + b"\x18" + varint(remaining) if remaining else usual.status
        status += b"\x22" + _BYTE[len(after) + 1] + b"\x08" + after if seconds else b"\x22\x00"
        if self._headers is None:
            return encoding.OK + framed(b"\x12", status) + usual.metadata
        left, reset = b"%d" % remaining, seconds
        if self._headers.reset_format == "epoch":
            reset = -(-(now + decision.reset_after_us) // SECOND)
        until = b"%d" % reset
        size, width = len(left), len(until)
        state = usual.state + left + b";t=%d" % seconds
        return b"".join(
            (
                encoding.OK,
                framed(b"\x12", status),
                usual.limit,
                b"\x1a",
                _BYTE[len(_REMAINING) + 1 + size],
                _REMAINING,
                _BYTE[size],
                left,
                b"\x1a",
                _BYTE[len(_RESET) + 1 + width],
                _RESET,
                _BYTE[width],
                until,
                usual.policy,
                framed(b"\x1a", _STATE + varint(len(state)) + state),
                usual.metadata,
            )
        )

"""The response headers of a decision.

::

    X-RateLimit-Limit: 100              the most that can pass at once
    X-RateLimit-Remaining: 12
    X-RateLimit-Reset: 1800000037       when all of it is back: seconds since 1970, or from now; rounded up
    X-RateLimit-Delay: 1.5              only from a leaky bucket that queues: seconds until it is this request's turn
    X-RateLimit-State: warning          or "throttled"; not there in normal times
    X-RateLimit-Degraded: true          only when the store did not decide this,
    X-RateLimit-Degraded-Reason: storage_unavailable        and why
    Retry-After: 2                      only on refusal: seconds, rounded up, at least 1
    Cache-Control: no-store             only on refusal (RFC 6585: a 429 must not be stored)
    RateLimit-Policy: "orders-user";q=100;w=60              the IETF's fields: see `headgate.web.ietf`
    RateLimit: "orders-user";r=12;t=37

The X- fields describe the limit that the decision describes: the one that blocks longest, or the most restrictive one.
The state is the worst among all limits. The IETF's fields list all of them.

Send them only to whom they concern: for a limit per user, after the user is known to be that user.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from headgate.core.decision import Decision
from headgate.core.numbers import short
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND
from headgate.web.errors import InvalidHeader, InvalidSettings
from headgate.web.ietf import VERSIONS, Encoder, Headers, nothing

EXPOSED = (
    "RateLimit, RateLimit-Policy, Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, "
    "X-RateLimit-Delay, X-RateLimit-State, X-RateLimit-Degraded, X-RateLimit-Degraded-Reason"
)
"""The value of Access-Control-Expose-Headers that lets scripts in browsers read all of these."""
MOST_SHOWN = 20
"""Limits that a service lists in header fields, whose length proxies bound. Of more, it shows the one that decides."""
RESET_FORMATS = ("epoch", "seconds")
UNNAMED = ("default",)
_REASON = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_NORMAL, _THROTTLED = Pressure.NORMAL, Pressure.THROTTLED


@dataclass(frozen=True, slots=True)
class ResponseHeaders:
    """Writes the headers of decisions. Make one and keep it: it remembers what it has encoded."""

    ietf: str | Encoder = "draft-11"
    """Which version of ``RateLimit`` and ``RateLimit-Policy``: "draft-11", "off", or an encoder of your own."""
    reset_format: str = "epoch"
    """X-RateLimit-Reset as "epoch" (seconds since 1970) or "seconds" (from now; no clocks to disagree)."""
    legacy: bool = True
    """Whether to send X-RateLimit-Limit, -Remaining and -Reset."""

    _encode: Encoder = field(init=False, repr=False, compare=False)
    _is_epoch: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.reset_format not in RESET_FORMATS:
            raise InvalidSettings(f"reset_format is 'epoch' or 'seconds', not {short(self.reset_format)}")
        if isinstance(self.ietf, str) and self.ietf not in VERSIONS:
            raise InvalidSettings(f"ietf is one of {', '.join(map(repr, VERSIONS))}, not {short(self.ietf)}")
        encode = VERSIONS[self.ietf]() if isinstance(self.ietf, str) else self.ietf
        object.__setattr__(self, "_encode", encode)
        object.__setattr__(self, "_is_epoch", self.reset_format == "epoch")

    def of(
        self, decision: Decision, names: Sequence[str] = (), *, now: int = 0, partitions: Sequence[bytes] = ()
    ) -> Headers:
        """Return the headers of `decision`, as pairs of text.

        Args:
            decision: of one limit or several.
            names: of the policies, in the order of ``decision.limits``: the ids of their rules; see `policy_names`.
            now: microseconds since 1970, by the clock that decided, before it did: with a later time, the end of a
                fixed window would seem to move. For the reset format "epoch" only.
            partitions: the partition key of each limit (see `ietf.partition_key`), empty for none.

        Raises:
            InvalidHeader: there are not as many names as limits, a name or the degraded reason is not writable, or
                the reset format needs `now`.
        """
        limits = decision.parts or (decision,)
        if len(limits) > 1 or len(names) != 1:
            names = policy_names(names, len(limits))
        headers: Headers = []
        if self.legacy:
            headers += (
                ("X-RateLimit-Limit", f"{decision.limit}"),
                ("X-RateLimit-Remaining", f"{decision.remaining}"),
                ("X-RateLimit-Reset", f"{-(-self._reset_us(decision, now) // SECOND)}"),
            )
        if decision.delay_us:
            headers.append(("X-RateLimit-Delay", _decimal(decision.delay_us)))
        state = decision.state
        if state is not _THROTTLED and decision.parts:
            state = _worst(limits)
        if state is not _NORMAL:
            headers.append(("X-RateLimit-State", str(state)))
        if not decision.allowed:
            headers += (("Retry-After", f"{retry_after_s(decision)}"), ("Cache-Control", "no-store"))
        if decision.degraded:
            reason = _checked_reason(decision.degraded)
            headers += (("X-RateLimit-Degraded", "true"), ("X-RateLimit-Degraded-Reason", reason))
        if self._encode is not nothing:
            headers += self._encode(limits, names, partitions)
        return headers

    def _reset_us(self, decision: Decision, now: int) -> int:
        if not self._is_epoch:
            return decision.reset_after_us
        if not now:
            raise InvalidHeader("reset_format 'epoch' needs the time before the decision: now=clock.now()")
        return now + decision.reset_after_us


def retry_after_s(decision: Decision) -> int:
    """Return the seconds of Retry-After: rounded up, at least 1."""
    return -(-decision.retry_after_us // SECOND) or 1


def _decimal(us: int) -> str:
    """Return microseconds as seconds, exactly."""
    return f"{us // SECOND}.{us % SECOND:06d}".rstrip("0").rstrip(".")


def raw(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return headers as ASGI and HTTP/2 want them: bytes, names in lower case."""
    return [(_LOWER[name] if name in _LOWER else name.lower().encode(), value.encode()) for name, value in headers]


def _worst(limits: Sequence[Decision]) -> Pressure:
    worst = _NORMAL
    for limit in limits:
        if limit.state is _THROTTLED:
            return _THROTTLED
        if limit.state is not _NORMAL:
            worst = limit.state
    return worst


def policy_names(names: Sequence[str], count: int) -> Sequence[str]:
    """Return a name for each of `count` limits: those given, or "default"; from the second of a name on, numbered.

    A rule with several windows has several limits: ``orders``, ``orders#2``. No id of a rule has a # in it.
    """
    if not names:
        names = UNNAMED * count
    if len(names) != count:
        raise InvalidHeader(f"{count} limits need {count} names, not {len(names)}")
    if len(set(names)) == count:
        return names
    seen: dict[str, int] = {}
    told_apart = []
    for name in names:
        seen[name] = nth = seen.get(name, 0) + 1
        told_apart.append(name if nth == 1 else f"{name}#{nth}")
    return told_apart


def _checked_reason(reason: str) -> str:
    if not _REASON.fullmatch(reason):
        raise InvalidHeader(f"a degraded reason has 1 to 64 of A-Z a-z 0-9 _ . : / -, unlike {short(reason)}")
    return reason


_LOWER = {name: name.lower().encode() for name in (*EXPOSED.split(", "), "Cache-Control")}

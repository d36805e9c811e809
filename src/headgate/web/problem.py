"""Bodies of refusals and errors, as RFC 9457 has them: ``application/problem+json``.

::

    {"type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "title": "Quota Exceeded", "status": 429,
     "detail": "orders-user allows 100/minute. Retry in 12 s.", "violated-policies": ["orders-user"], "limit": 100,
     "remaining": 0, "retry_after": 12, "limits": [{"policy": "orders-user", "limit": 100, "remaining": 0, ...}]}

429 is for a client's own quota. A refusal that is our own fault, such as a store that is away under the mode ``deny``,
is `reduced_capacity`, 503: the client did nothing wrong.

What a request said is quoted by `shown` before it becomes part of a text: short, in printable ASCII. In any case, no
text gets out with a control character, an invisible or reversing one, or with ``<``, ``>`` or ``&`` unescaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import msgspec

from headgate.core.decision import Decision
from headgate.web.headers import policy_names, retry_after_s

NOT_ADMITTED = "This client is not admitted."
"""What is told to those on a deny list: which entry it is, is for the operator."""
CONTENT_TYPE = "application/problem+json"
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
LONGEST = 1000
"""The most characters of a text in a body."""


class LimitState(msgspec.Struct, frozen=True, gc=False):
    """One limit in a body. Times are in whole seconds, rounded up."""

    policy: str
    limit: int
    remaining: int
    reset_after: int
    retry_after: int
    """0 for a limit that does not refuse."""
    state: str


class Fault(msgspec.Struct, frozen=True, gc=False):
    """What is wrong with one part of a request."""

    pointer: str
    """Where: a JSON pointer, or the name of a header or parameter."""
    detail: str


class Problem(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A problem; what is at its default is not sent."""

    status: int
    title: str
    detail: str = ""
    type: str = "about:blank"
    instance: str = ""
    violated_policies: tuple[str, ...] = msgspec.field(default=(), name="violated-policies")
    limit: int | None = None
    remaining: int | None = None
    retry_after: int | None = None
    """Seconds, as in Retry-After."""
    degraded: str = ""
    limits: tuple[LimitState, ...] = ()
    errors: tuple[Fault, ...] = ()

    def encode(self) -> bytes:
        """Return the body."""
        body = _ENCODER.encode(self)
        for character, escaped in _MARKUP:
            if character in body:
                body = body.replace(character, escaped)
        return body


def quota_exceeded(decision: Decision, names: Sequence[str] = (), *, instance: str = "") -> Problem:
    """Describe a refused decision: 429. `names` are those of its policies, as for `ResponseHeaders.of`."""
    limits = _limits(decision, names)
    refusing = [(limit, part) for limit, part in zip(limits, decision.limits, strict=True) if not part.allowed]
    violated = tuple([limit.policy for limit, _ in refusing])
    longest = [limit.policy for limit, part in refusing if part.retry_after_us == decision.retry_after_us]
    seconds = retry_after_s(decision)
    return Problem(
        HTTPStatus.TOO_MANY_REQUESTS.value,
        "Quota Exceeded",
        f"{(longest or [limits[0].policy])[0]} allows {decision.quota}. Retry in {seconds} s.",
        QUOTA_EXCEEDED,
        plain(instance),
        violated,
        decision.limit,
        decision.remaining,
        seconds,
        decision.degraded,
        limits,
    )


def reduced_capacity(decision: Decision, names: Sequence[str] = (), *, instance: str = "") -> Problem:
    """Describe a refusal that is not the client's doing: 503."""
    seconds = retry_after_s(decision)
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE.value,
        "Temporary Reduced Capacity",
        f"The service cannot count requests at the moment. Retry in {seconds} s.",
        REDUCED_CAPACITY,
        plain(instance),
        tuple([limit.policy for limit in _limits(decision, names)]),
        retry_after=seconds,
        degraded=decision.degraded,
    )


def bad_request(detail: str, errors: Sequence[tuple[str, str]] = (), *, instance: str = "") -> Problem:
    """Describe a request that cannot be understood: 400. `errors` are pairs (where, what is wrong)."""
    faults = tuple([Fault(plain(pointer), plain(what)) for pointer, what in errors])
    return Problem(400, "Bad Request", plain(detail), instance=plain(instance), errors=faults)


def of_status(status: int, detail: str = "", *, instance: str = "") -> Problem:
    """Describe any other problem, which its HTTP status says all about."""
    return Problem(status, HTTPStatus(status).phrase, plain(detail), instance=plain(instance))


def shown(value: object) -> str:
    """Return what a request said as it may be quoted: in printable ASCII, at most 60 characters of it."""
    if isinstance(value, str | bytes) and len(value) > 60:
        return f"{value[:50]!a}... ({len(value)} characters)"
    text = ascii(value)
    return text if len(text) <= 250 else f"{text[:240]}..."


def plain(text: str) -> str:
    """Return `text` with all that is not printable escaped, and no longer than `LONGEST`."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 3]}..."
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() else one.encode("unicode_escape").decode() for one in text])


def _limits(decision: Decision, names: Sequence[str]) -> tuple[LimitState, ...]:
    parts = decision.limits
    return tuple(
        [
            LimitState(
                plain(name),
                part.limit,
                part.remaining,
                -(-part.reset_after_us // 1_000_000),
                0 if part.allowed else retry_after_s(part),
                str(part.state),
            )
            for name, part in zip(policy_names(names, len(parts)), parts, strict=True)
        ]
    )


_ENCODER = msgspec.json.Encoder()
_MARKUP = ((b"<", b"\\u003c"), (b">", b"\\u003e"), (b"&", b"\\u0026"))

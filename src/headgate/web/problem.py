"""Bodies of refusals and errors, as RFC 9457 has them: ``application/problem+json``.

::

    {"type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "title": "Quota Exceeded", "status": 429,
     "detail": "orders-user allows 100/minute. Retry in 12 s.", "violated-policies": ["orders-user"], "limit": 100,
     "remaining": 0, "retry_after": 12, "limits": [{"policy": "orders-user", "limit": 100, "remaining": 0, ...}]}

429 is for a client's own quota. A refusal that is our own fault, such as a store that is away under the mode ``deny``,
is `reduced_capacity`, 503: the client did nothing wrong.

What does not change in the body of a refusal is prepared once for each limit (`prepare`), and the rest is put between.

What a request said is quoted by `shown` before it becomes part of a text: short, in printable ASCII. In any case, no
text gets out with a control character, an invisible or reversing one, or with ``<``, ``>`` or ``&`` unescaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus

import msgspec

from headgate.core.decision import Decision
from headgate.core.numbers import printable
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND, Quota
from headgate.web.headers import policy_names, retry_after_s

NOT_ADMITTED = "This client is not admitted."
"""What is told to those on a deny list: which entry it is, is for the operator."""
CONTENT_TYPE = "application/problem+json"
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
LONGEST = 1000
"""The most characters of a text in a body."""
plain = partial(printable, longest=LONGEST)
_TOO_MANY_REQUESTS, _SERVICE_UNAVAILABLE = 429, 503
_STATES = {state: state.encode() for state in Pressure}


class ProblemDocument(msgspec.Struct, frozen=True, gc=False):
    """A problem: the status of a response, and its body."""

    status: int
    body: bytes

    def encode(self) -> bytes:
        """Return the body."""
        return self.body

    @property
    def detail(self) -> str:
        """What is wrong, in a sentence; empty if the status says it all."""
        return msgspec.json.decode(self.body, type=_Document).detail


class LimitTexts(msgspec.Struct, frozen=True, gc=False):
    """What is the same in all bodies about one limit."""

    policy: bytes
    """Its name, as JSON."""
    refusal: bytes
    """The body where this limit is the one that decides, without what changes."""
    alone: bytes
    """The same, where it is the only one."""
    state: bytes
    """An element of the member ``limits``, without its numbers."""


def prepare(name: str, quota: Quota) -> LimitTexts:
    """Return what bodies about a limit have in common."""
    name = plain(name)
    policy, detail = _json(name), _json(f"{name} allows {quota}. Retry in ").removesuffix(b'"')
    capacity = b"%d" % quota.capacity
    escaped = policy.replace(b"%", b"%%")
    state = _STATE.replace(b"<policy>", escaped).replace(b"<limit>", capacity)
    refusal = _REFUSAL.replace(b"<detail>", detail.replace(b"%", b"%%")).replace(b"<limit>", capacity)
    alone = refusal.replace(b"<violated>", escaped).replace(b"<states>", state)
    return LimitTexts(policy, refusal.replace(b"<violated>", b"%b").replace(b"<states>", b"%b"), alone, state)


def exceeded(decision: Decision, limits: Sequence[LimitTexts], instance: str = "") -> bytes:
    """Return the body of a refused decision, 429; `limits` are those of it, prepared."""
    wait, left = b"%d" % (-(-decision.retry_after_us // SECOND) or 1), b"%d" % decision.remaining
    told = b',"instance":' + _json(plain(instance)) if instance else b""
    degraded = b',"degraded":' + _json(decision.degraded) if decision.degraded else b""
    if not decision.parts and not decision.allowed:
        reset = b"%d" % -(-decision.reset_after_us // SECOND)
        return limits[0].alone % (wait, told, left, wait, degraded, left, reset, wait, _STATES[decision.state])
    violated, states = [], []
    for limit, part in zip(limits, decision.limits, strict=True):
        waits = b"0"
        if not part.allowed:
            violated.append(limit.policy)
            waits = b"%d" % (-(-part.retry_after_us // SECOND) or 1)
        reset = b"%d" % -(-part.reset_after_us // SECOND)
        states.append(limit.state % (b"%d" % part.remaining, reset, waits, _STATES[part.state]))
    deciding = limits[decision.index].refusal
    return deciding % (wait, told, b",".join(violated), left, wait, degraded, b",".join(states))


def reworded(document: bytes, status: int, message: str) -> bytes:
    """Return the body of a refused decision, as `exceeded` makes it, with a rule's own status and message."""
    if status == _TOO_MANY_REQUESTS and not message:
        return document
    usual, opening, rest = document.partition(_TYPE)
    detail = _json(plain(message)) if message else usual.partition(_DETAIL)[2]
    return b'{"status":%d,"title":"Quota Exceeded"%b%b%b%b' % (status, _DETAIL, detail, opening, rest)


def reduced(decision: Decision, limits: Sequence[LimitTexts], instance: str = "") -> bytes:
    """Return the body of a refusal that is not the client's doing, 503; `limits` are those of it, prepared."""
    seconds = retry_after_s(decision)
    names = [msgspec.Raw(limit.policy) for limit in limits]
    return _json(
        _Document(
            _SERVICE_UNAVAILABLE,
            "Temporary Reduced Capacity",
            f"The service cannot count requests at the moment. Retry in {seconds} s.",
            REDUCED_CAPACITY,
            plain(instance),
            tuple(names),
            seconds,
            decision.degraded,
        )
    )


def quota_exceeded(decision: Decision, names: Sequence[str] = (), *, instance: str = "") -> ProblemDocument:
    """Describe a refused decision: 429. `names` are those of its policies, as for `ResponseHeaders.of`."""
    return ProblemDocument(_TOO_MANY_REQUESTS, exceeded(decision, _prepared(decision, names), instance))


def reduced_capacity(decision: Decision, names: Sequence[str] = (), *, instance: str = "") -> ProblemDocument:
    """Describe a refusal that is not the client's doing: 503."""
    return ProblemDocument(_SERVICE_UNAVAILABLE, reduced(decision, _prepared(decision, names), instance))


def bad_request(
    detail: str, errors: Sequence[tuple[str, str]] = (), *, instance: str = "", code: str = ""
) -> ProblemDocument:
    """Describe a request that cannot be understood: 400. `errors` are pairs (where, what is wrong).

    Where is a JSON pointer, or the name of a header or parameter. The code, if any, is for programs.
    """
    faults = tuple([_Fault(plain(pointer), plain(what)) for pointer, what in errors])
    told = _Document(400, "Bad Request", plain(detail), instance=plain(instance), errors=faults, code=code)
    return ProblemDocument(400, _json(told))


def of_status(
    status: int, detail: str = "", *, instance: str = "", conflicts: Sequence[dict[str, str | int]] = ()
) -> ProblemDocument:
    """Describe any other problem, which its HTTP status says all about."""
    phrase = HTTPStatus(status).phrase
    told = _Document(status, phrase, plain(detail), instance=plain(instance), conflicts=tuple(conflicts))
    return ProblemDocument(status, _json(told))


def shown(value: object) -> str:
    """Return what a request said as it may be quoted: in printable ASCII, at most 60 characters of it."""
    if isinstance(value, str | bytes) and len(value) > 60:
        return f"{value[:50]!a}... ({len(value)} characters)"
    text = ascii(value)
    return text if len(text) <= 250 else f"{text[:240]}..."


class _Fault(msgspec.Struct, frozen=True, gc=False):
    """What is wrong with one part of a request."""

    pointer: str
    detail: str


class _Document(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A body; what is at its default is not sent."""

    status: int
    title: str
    detail: str = ""
    type: str = "about:blank"
    instance: str = ""
    violated_policies: tuple[msgspec.Raw, ...] = msgspec.field(default=(), name="violated-policies")
    retry_after: int | None = None
    """Seconds, as in Retry-After."""
    degraded: str = ""
    errors: tuple[_Fault, ...] = ()
    code: str = ""
    """Which mistake it is, for programs."""
    conflicts: tuple[dict[str, str | int], ...] = ()
    """What stands in the way, for programs."""


def _prepared(decision: Decision, names: Sequence[str]) -> list[LimitTexts]:
    parts = decision.limits
    return [prepare(name, part.quota) for name, part in zip(policy_names(names, len(parts)), parts, strict=True)]


def _json(value: str | _Document) -> bytes:
    encoded = _ENCODER.encode(value)
    for character, escaped in _MARKUP:
        if character in encoded:
            encoded = encoded.replace(character, escaped)
    return encoded


_ENCODER = msgspec.json.Encoder()
_MARKUP = ((b"<", b"\\u003c"), (b">", b"\\u003e"), (b"&", b"\\u0026"))
_DETAIL, _TYPE = b',"detail":', b',"type":"'
"""Neither is within a text of JSON, which has no bare quotes."""
_REFUSAL = (
    b'{"status":429,"title":"Quota Exceeded","detail":<detail>%b s.","type":"'
    + QUOTA_EXCEEDED.encode()
    + b'"%b,"violated-policies":[<violated>],"limit":<limit>,"remaining":%b,"retry_after":%b%b,"limits":[<states>]}'
)
_STATE = b'{"policy":<policy>,"limit":<limit>,"remaining":%b,"reset_after":%b,"retry_after":%b,"state":"%b"}'
"""What is in angle brackets is filled in once for each limit; no text of ours has any."""

"""Bodies of refusals and errors: problem documents (RFC 9457), ``application/problem+json``.

::

    {"type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "title": "Quota Exceeded", "status": 429,
     "detail": "orders-user allows 100/minute. Retry in 12 s.", "violated-policies": ["orders-user"], "limit": 100,
     "remaining": 0, "retry_after": 12, "limits": [{"policy": "orders-user", "limit": 100, "remaining": 0, ...}]}

429 is for a client's own quota. A refusal that the client has not caused, such as that of the mode ``deny`` while the
store is unavailable, is `reduced_capacity`, 503.

The constant parts of the body of a refusal are prepared once for each limit (`prepare`).

Texts quote a request by `shown`: short, in printable ASCII. No body contains a control character, an invisible or
reversing one, or an unescaped ``<``, ``>`` or ``&``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus

import msgspec

from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND, Quota
from headgate.messages import printable
from headgate.web.headers import policy_names, retry_after_s

NOT_ADMITTED = "This client is not admitted."
"""The detail for clients on a deny list; the entry is not disclosed."""
CONTENT_TYPE = "application/problem+json"
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
LONGEST = 1000
"""Characters of the longest text in a body."""
plain = partial(printable, longest=LONGEST)
_TOO_MANY_REQUESTS, _SERVICE_UNAVAILABLE = 429, 503
_STATES = {state: state.encode() for state in Pressure}


class ProblemDocument(msgspec.Struct, frozen=True, gc=False):
    """The status and the body of a response."""

    status: int
    body: bytes

    def encode(self) -> bytes:
        """Return the body."""
        return self.body

    @property
    def detail(self) -> str:
        """The reason, as a sentence; empty if the status is enough."""
        return msgspec.json.decode(self.body, type=_Document).detail


class LimitTexts(msgspec.Struct, frozen=True, gc=False):
    """The constant parts of bodies about one limit."""

    policy: bytes
    """Its name, as JSON."""
    refusal: bytes
    """The template of the body if this limit decides."""
    alone: bytes
    """The same, if it is the only one."""
    state: bytes
    """The template of its element in the member ``limits``."""


def prepare(name: str, quota: Quota) -> LimitTexts:
    """Return the constant parts of bodies about a limit."""
    name = plain(name)
    policy, detail = _json(name), _json(f"{name} allows {quota}. Retry in ").removesuffix(b'"')
    capacity = b"%d" % quota.capacity
    escaped = policy.replace(b"%", b"%%")
    state = _STATE.replace(b"<policy>", escaped).replace(b"<limit>", capacity)
    refusal = _REFUSAL.replace(b"<detail>", detail.replace(b"%", b"%%")).replace(b"<limit>", capacity)
    alone = refusal.replace(b"<violated>", escaped).replace(b"<states>", state)
    return LimitTexts(policy, refusal.replace(b"<violated>", b"%b").replace(b"<states>", b"%b"), alone, state)


def exceeded(decision: Decision, limits: Sequence[LimitTexts], instance: str = "") -> bytes:
    """Return the body of a refused decision, 429, given its prepared limits."""
    wait, left = -(-decision.retry_after_us // SECOND) or 1, decision.remaining
    where = b',"instance":' + _json(plain(instance)) if instance else b""
    degraded = b',"degraded":' + _json(decision.degraded) if decision.degraded else b""
    if not decision.parts and not decision.allowed:
        reset = -(-decision.reset_after_us // SECOND)
        return limits[0].alone % (wait, where, left, wait, degraded, left, reset, wait, _STATES[decision.state])
    violated, states = [], []
    for limit, part in zip(limits, decision.limits, strict=True):
        waits = 0
        if not part.allowed:
            violated.append(limit.policy)
            waits = -(-part.retry_after_us // SECOND) or 1
        states.append(limit.state % (part.remaining, -(-part.reset_after_us // SECOND), waits, _STATES[part.state]))
    deciding = limits[decision.index].refusal
    return deciding % (wait, where, b",".join(violated), left, wait, degraded, b",".join(states))


def reworded(document: bytes, status: int, message: str) -> bytes:
    """Return a body of `exceeded` with a rule's own status and message."""
    if status == _TOO_MANY_REQUESTS and not message:
        return document
    usual, opening, rest = document.partition(_TYPE)
    detail = _json(plain(message)) if message else usual.partition(_DETAIL)[2]
    return b'{"status":%d,"title":"Quota Exceeded"%b%b%b%b' % (status, _DETAIL, detail, opening, rest)


def reduced(decision: Decision, limits: Sequence[LimitTexts], instance: str = "") -> bytes:
    """Return the body of a refusal that the client has not caused, 503, given its prepared limits."""
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
    """Describe a refused decision: 429. `names` are as for `ResponseHeaders.of`."""
    return ProblemDocument(_TOO_MANY_REQUESTS, exceeded(decision, _prepared(decision, names), instance))


def reduced_capacity(decision: Decision, names: Sequence[str] = (), *, instance: str = "") -> ProblemDocument:
    """Describe a refusal that the client has not caused: 503."""
    return ProblemDocument(_SERVICE_UNAVAILABLE, reduced(decision, _prepared(decision, names), instance))


def bad_request(
    detail: str, errors: Sequence[tuple[str, str]] = (), *, instance: str = "", code: str = ""
) -> ProblemDocument:
    """Describe an invalid request: 400.

    `errors` are pairs of a place (a JSON pointer, or the name of a header or parameter) and a message.
    """
    faults = tuple([_Fault(plain(pointer), plain(what)) for pointer, what in errors])
    document = _Document(400, "Bad Request", plain(detail), instance=plain(instance), errors=faults, code=code)
    return ProblemDocument(400, _json(document))


def of_status(
    status: int, detail: str = "", *, instance: str = "", conflicts: Sequence[dict[str, str | int]] = ()
) -> ProblemDocument:
    """Describe a problem by its HTTP status."""
    phrase = HTTPStatus(status).phrase
    document = _Document(status, phrase, plain(detail), instance=plain(instance), conflicts=tuple(conflicts))
    return ProblemDocument(status, _json(document))


def shown(value: object) -> str:
    """Return a value of a request as it may be quoted: in printable ASCII, shortened."""
    if isinstance(value, str | bytes) and len(value) > 60:
        return f"{value[:50]!a}... ({len(value)} characters)"
    text = ascii(value)
    return text if len(text) <= 250 else f"{text[:240]}..."


class _Fault(msgspec.Struct, frozen=True, gc=False):
    """An error in one part of a request."""

    pointer: str
    detail: str


class _Document(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A body; members with their default values are omitted."""

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
    """Identifies the error, for programs."""
    conflicts: tuple[dict[str, str | int], ...] = ()
    """For programs."""


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
"""Neither occurs in a JSON text, which has no bare quotes."""
_REFUSAL = (
    b'{"status":429,"title":"Quota Exceeded","detail":<detail>%d s.","type":"'
    + QUOTA_EXCEEDED.encode()
    + b'"%b,"violated-policies":[<violated>],"limit":<limit>,"remaining":%d,"retry_after":%d%b,"limits":[<states>]}'
)
_STATE = b'{"policy":<policy>,"limit":<limit>,"remaining":%d,"reset_after":%d,"retry_after":%d,"state":"%b"}'
"""Angle brackets are filled in once for each limit; no text contains any, since `_json` escapes them."""

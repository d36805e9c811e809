"""The response headers of a decision.

::

    X-RateLimit-Limit: 100              the capacity
    X-RateLimit-Remaining: 12
    X-RateLimit-Reset: 1800000037       when all of it is available: seconds since 1970, or from now; rounded up
    X-RateLimit-Delay: 1.5              only for the queue of a leaky bucket: seconds until the request's turn
    X-RateLimit-State: warning          or "throttled"; absent in the normal state
    X-RateLimit-Degraded: true          only if the store did not decide,
    X-RateLimit-Degraded-Reason: storage_unavailable        and why
    Retry-After: 2                      only on refusal: seconds, rounded up, at least 1
    Cache-Control: no-store             only on refusal (RFC 6585: a 429 must not be stored)
    RateLimit-Policy: "orders-user";q=100;w=60              the IETF's fields: see `headgate.web.ietf`
    RateLimit: "orders-user";r=12;t=37

The X- fields describe the limit that the decision describes: the one that blocks longest, or the most restrictive one.
The state is the worst of all limits. The IETF's fields list all limits.

Send them only to the client that they describe: for a limit per user, only if the user is verified.

`ResponseHeaders` has the settings, and writes headers as text. Servers prepare the constant parts of each limit once
(`HeaderWriter.prepare`, cached by `headgate.cache.Prepared`), in the form in which fields are sent: a `Spelling`. Only
the responses to HTTP checks have most fields from elsewhere: `headgate.server.api.answers`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

import msgspec

from headgate.cache import Prepared
from headgate.core.decision import Decision
from headgate.core.numbers import short
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND, Quota
from headgate.web import ietf
from headgate.web.errors import InvalidHeader, InvalidSettings
from headgate.web.ietf import VERSIONS, Encoder, Headers

EXPOSED = (
    "RateLimit, RateLimit-Policy, Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, "
    "X-RateLimit-Delay, X-RateLimit-State, X-RateLimit-Degraded, X-RateLimit-Degraded-Reason"
)
"""The value of Access-Control-Expose-Headers with which scripts in browsers can read the fields."""
MOST_SHOWN = 20
"""Limits that header fields list, whose length proxies bound. Of more, only the deciding one is shown."""
MOST_PREPARED = 4096
"""Limits whose constant parts are cached."""
RESET_FORMATS = ("epoch", "seconds")
UNNAMED = ("default",)
_REASON = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_NORMAL, _THROTTLED = Pressure.NORMAL, Pressure.THROTTLED

Field = TypeVar("Field")
Pieces = TypeVar("Pieces")
Spelling: TypeAlias = Callable[[str], Callable[[str], Field]]
"""Writes fields: takes a field's name, and returns a function that takes its value."""


@dataclass(frozen=True, slots=True)
class ResponseHeaders:
    """Writes the headers of decisions. Keep the instance: it caches the constant parts."""

    ietf: str | Encoder = "draft-11"
    """The version of ``RateLimit`` and ``RateLimit-Policy``: "draft-11", "off", or a custom encoder."""
    reset_format: str = "epoch"
    """X-RateLimit-Reset as "epoch" (seconds since 1970) or "seconds" (from now, independent of clocks)."""
    legacy: bool = True
    """Whether to send X-RateLimit-Limit, -Remaining and -Reset."""

    _writer: HeaderWriter[tuple[str, str]] = field(init=False, repr=False, compare=False)
    _prepared: Prepared[Quota, LimitFields[tuple[str, str]]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.reset_format not in RESET_FORMATS:
            raise InvalidSettings(f"reset_format must be 'epoch' or 'seconds', got {short(self.reset_format)}")
        if isinstance(self.ietf, str) and self.ietf not in VERSIONS:
            raise InvalidSettings(f"ietf must be one of {', '.join(map(repr, VERSIONS))}, got {short(self.ietf)}")
        writer = HeaderWriter(self, as_text)
        object.__setattr__(self, "_writer", writer)
        object.__setattr__(self, "_prepared", Prepared(writer.prepare, MOST_PREPARED))

    def of(
        self, decision: Decision, names: Sequence[str] = (), *, now: int = 0, partitions: Sequence[bytes] = ()
    ) -> Headers:
        """Return the headers of `decision`, as pairs of text.

        Args:
            decision: of one limit or several.
            names: of the policies, in the order of ``decision.limits``: the ids of their rules; see `policy_names`.
            now: microseconds since 1970, read before the decision from the clock that decided: with a later time, the
                end of a fixed window would seem to move. Only for the reset format "epoch".
            partitions: the partition key of each limit (see `ietf.partition_key`), empty for none.

        Raises:
            InvalidHeader: the number of names is not that of limits, a name or the degraded reason is not writable,
                or the reset format needs `now`.
        """
        parts = decision.parts
        if parts or len(names) != 1:
            names = policy_names(names, len(parts) or 1)
        prepared = self._prepared.of
        limits = [prepared(name, part.quota) for name, part in zip(names, decision.limits, strict=True)]
        reset_at = -(-(now + decision.reset_after_us) // SECOND) if now else 0
        return self._writer.write(decision, limits, reset_at, partitions)


class LimitFields(msgspec.Struct, Generic[Field], frozen=True, gc=False):
    """The constant parts of the headers about one limit."""

    name: str
    """Of its policy."""
    limit: Field
    """X-RateLimit-Limit."""
    policy: tuple[Field, ...] = ()
    """RateLimit-Policy for a single limit; empty if it is not constant."""
    policy_item: str = ""
    """RateLimit-Policy among several limits."""
    quoted: str = ""
    """The name in RateLimit."""


class HeaderWriter(Generic[Field]):
    """Writes the headers of decisions in one spelling."""

    def __init__(self, settings: ResponseHeaders, spelling: Spelling[Field]) -> None:
        self._encode = VERSIONS[settings.ietf] if isinstance(settings.ietf, str) else settings.ietf
        self._is_prepared, self._lists_limits = self._encode is ietf.draft_11, self._encode is not ietf.nothing
        self._legacy, self._is_epoch = settings.legacy, settings.reset_format == "epoch"
        self._spelling = spelling
        self._limit, self._remaining = spelling("X-RateLimit-Limit"), spelling("X-RateLimit-Remaining")
        self._reset, self._delay = spelling("X-RateLimit-Reset"), spelling("X-RateLimit-Delay")
        self._states = {state: spelling("X-RateLimit-State")(str(state)) for state in Pressure}
        self._retry_after, self._no_store = spelling("Retry-After"), spelling("Cache-Control")("no-store")
        self._degraded = spelling("X-RateLimit-Degraded")("true")
        self._reason = spelling("X-RateLimit-Degraded-Reason")
        self._policy, self._state = spelling(ietf.POLICY), spelling(ietf.STATE)

    def prepare(self, name: str, quota: Quota) -> LimitFields[Field]:
        """Return the constant parts of headers about a limit. Raises InvalidHeader if the name is not writable."""
        limit = self._limit(f"{quota.capacity}")
        if not self._is_prepared:
            return LimitFields(name, limit)
        item = ietf.policy_item(name, quota)
        return LimitFields(name, limit, (self._policy(item),), item, ietf.sf_string(name))

    def write(
        self, decision: Decision, limits: Sequence[LimitFields[Field]], reset_at: int, partitions: Sequence[bytes] = ()
    ) -> list[Field]:
        """Return the headers of `decision`, like `ResponseHeaders.of`, from its prepared limits.

        `reset_at` is the reset of the limit that it describes, in seconds since the epoch, rounded up; 0: not known.
        """
        limit, parts = limits[decision.index], decision.parts
        fields: list[Field] = []
        if self._legacy:
            reset = reset_at if self._is_epoch else -(-decision.reset_after_us // SECOND)
            if self._is_epoch and not reset_at:
                raise InvalidHeader("reset_format 'epoch' needs the time before the decision: now=clock.now()")
            fields = [limit.limit, self._remaining(f"{decision.remaining}"), self._reset(f"{reset}")]
        if parts or decision.state is not _NORMAL or not decision.allowed or decision.degraded or decision.delay_us:
            fields += self.unusual(decision)
        if not self._lists_limits:
            return fields
        if partitions or not self._is_prepared:
            written = self._encode(decision.limits, [each.name for each in limits], partitions)
            return fields + [self._spelling(name)(value) for name, value in written]
        if not parts:
            fields += limit.policy
            fields.append(self._state(ietf.state_item(limit.quoted, decision)))
            return fields
        states = [ietf.state_item(each.quoted, parts[place]) for place, each in enumerate(limits)]
        policies = ", ".join([each.policy_item for each in limits])
        return [*fields, self._policy(policies), self._state(", ".join(states))]

    def unusual(self, decision: Decision) -> list[Field]:
        """Return the headers of delays, states, refusals and degraded decisions."""
        fields: list[Field] = []
        state, parts = decision.state, decision.parts
        if decision.delay_us:
            fields.append(self._delay(_decimal(decision.delay_us)))
        if parts and state is not _THROTTLED:
            state = worst(parts)
        if state is not _NORMAL:
            fields.append(self._states[state])
        if not decision.allowed:
            fields += self._retry_after(f"{retry_after_s(decision)}"), self._no_store
        if decision.degraded:
            fields += self._degraded, self._reason(_checked_reason(decision.degraded))
        return fields


def as_text(name: str) -> Callable[[str], tuple[str, str]]:
    """Write fields as pairs of text."""
    return lambda value: (name, value)


def as_bytes(name: str) -> Callable[[str], tuple[bytes, bytes]]:
    """Write fields for ASGI and HTTP/2: pairs of bytes, names in lower case."""
    lower = name.lower().encode()
    return lambda value: (lower, value.encode())


def as_line(name: str) -> Callable[[str], bytes]:
    """Write fields as lines of HTTP/1, names in lower case."""
    lower = name.lower().encode()
    return lambda value: b"%b: %b\r\n" % (lower, value.encode())


def raw(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return headers for ASGI and HTTP/2: pairs of bytes, names in lower case."""
    return [(name.lower().encode(), value.encode()) for name, value in headers]


def most_shown(decision: Decision, limits: Sequence[Pieces]) -> tuple[Decision, Sequence[Pieces]]:
    """Return a decision, and its limits, as header fields can list them: of too many, only the deciding limit."""
    if len(limits) <= MOST_SHOWN:
        return decision, limits
    return msgspec.structs.replace(decision, parts=(), index=0), (limits[decision.index],)


def retry_after_s(decision: Decision) -> int:
    """Return the seconds of Retry-After: rounded up, at least 1."""
    return -(-decision.retry_after_us // SECOND) or 1


def worst(limits: Sequence[Decision]) -> Pressure:
    """Return the worst state of several limits."""
    found = _NORMAL
    for limit in limits:
        if limit.state is _THROTTLED:
            return _THROTTLED
        if limit.state is not _NORMAL:
            found = limit.state
    return found


def policy_names(names: Sequence[str], count: int) -> Sequence[str]:
    """Return a name for each of `count` limits: the given ones, or "default"; repeated names are numbered.

    A rule with several windows has several limits: ``orders``, ``orders#2``. No rule id contains a #.
    """
    if not names:
        names = UNNAMED * count
    if len(names) != count:
        raise InvalidHeader(f"{count} limits need {count} names, got {len(names)}")
    if count == 1 or len(set(names)) == count:
        return names
    seen: dict[str, int] = {}
    distinct = []
    for name in names:
        seen[name] = nth = seen.get(name, 0) + 1
        distinct.append(name if nth == 1 else f"{name}#{nth}")
    return distinct


def _decimal(us: int) -> str:
    """Return microseconds as seconds, in decimal."""
    return f"{us // SECOND}.{us % SECOND:06d}".rstrip("0").rstrip(".")


def _checked_reason(reason: str) -> str:
    if not _REASON.fullmatch(reason):
        raise InvalidHeader(f"a degraded reason must have 1 to 64 of A-Z a-z 0-9 _ . : / -, got {short(reason)}")
    return reason


def matches(sent: str, etag: str) -> bool:
    """Whether a value of If-None-Match matches an ETag."""
    return any(each.strip().removeprefix("W/") in {"*", etag} for each in sent.split(",") if each.strip())

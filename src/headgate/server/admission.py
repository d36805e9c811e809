"""Which requests a node lets in: its own protection, and callers that prove who they are.

*   **A ceiling of requests per second.** It is a limit like any other, a token bucket of our own core. Tokens are taken
    from it in handfuls and given out one by one, so that a request costs a subtraction. For a second after the ceiling
    was reached, each connection gets its share of it and no more, so that those who ask little are not refused because
    of those who ask much. A batch needs as many tokens as it has questions, at once, or it is refused. They count
    against the share of its connection, which is let in again when its share has made up for them: nobody else pays
    for a batch.
*   **A bound of requests in flight**, shared fairly. Where three quarters of the bound are taken, a connection that has
    more than its share of it (the bound over the connections that have something in flight) is refused first, so that
    one that floods the node takes nothing from the others.
*   **A bound of calls that last**, such as watching its health. They are counted apart: nobody knows when they end, so
    they may not fill what is for requests. A tenth as many may be open, of which a connection may have a tenth.
*   **Keys of callers**, of a file or of the admin plane, if they are asked for: see `CallerKeys`.

Requests for health, readiness and metrics are always let in: a node that is busy is not dead. The API reference needs
no key, and waits its turn.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final
from weakref import WeakValueDictionary

from headgate.clock import Clock, SystemClock
from headgate.core.errors import UsageError
from headgate.core.plan import Family
from headgate.core.quota import Quota
from headgate.reference.pages import PATHS as REFERENCE
from headgate.server.wire.admission import NotAdmitted
from headgate.server.wire.grpc.calls import StatusCode
from headgate.server.wire.messages import NOBODY, Headers, Peer
from headgate.stores.memory import MemoryStore
from headgate.web.apikey import NO_KEYS, ApiKeys, Holder

EXEMPT: Final = frozenset(
    {
        b"/healthz",
        b"/readyz",
        b"/healthcheck",
        b"/metrics",
        b"/grpc.health.v1.Health/Check",
        b"/grpc.health.v1.Health/List",
        b"/grpc.health.v1.Health/Watch",
    }
)
_KEYLESS: Final = frozenset({path.encode() for path in REFERENCE})
CALLER_HEADERS: Final = frozenset({b"authorization", b"x-api-key"})
"""Where callers send their keys."""
_LONGEST_FILE = 1_048_576
_LOG = logging.getLogger("headgate.server")
_LOG_EVERY = 10.0
"""Seconds between messages about requests that are refused: once for a flood."""


def _busy(detail: str) -> NotAdmitted:
    retry_after, pushback = (b"retry-after", b"1"), (b"grpc-retry-pushback-ms", b"1000")
    return NotAdmitted(503, StatusCode.RESOURCE_EXHAUSTED, detail, (retry_after,), (pushback,))


TOO_FAST: Final = _busy("this node is asked more often than it may be: try again, or elsewhere")
TOO_MUCH: Final = _busy("this node has too much in flight: try again, or elsewhere")
UNFAIR: Final = _busy("this connection has more than its share of what is in flight: try again later")
TOO_MANY_STREAMS: Final = _busy("there are too many calls that last: try again, or elsewhere")
UNKNOWN_CALLER: Final = NotAdmitted(
    401,
    StatusCode.UNAUTHENTICATED,
    "who asks is not known: send Authorization: Bearer KEY, or X-Api-Key: KEY",
    ((b"www-authenticate", b'Bearer realm="headgate"'),),
)
_TOO_LARGE = (
    "this node lets in at most {} checks at once, a tenth of its ceiling: send fewer together, or raise "
    "--max-checks-per-second"
)


class AdmissionController:
    """Decides which requests are let in. One for each process.

    Args:
        per_second: requests that it lets in; 0 for any number.
        in_flight: at once.
        keys: says whose callers are let in, now; None for everybody.
        shed: called for each request that is refused to protect the node, with its path.
        clock: of the ceiling, for tests.
    """

    def __init__(
        self,
        *,
        per_second: int = 0,
        in_flight: int = 10_000,
        keys: Callable[[], CallerKeys] | None = None,
        shed: Callable[[bytes], object] = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self.keys = keys
        self.asked: set[str] = set()
        """Names of callers whose keys were accepted, until somebody takes note of them."""
        self.ceiling = Ceiling(per_second, clock)
        self.in_flight = 0
        self.busy = 0
        """Connections that have something in flight."""
        self.crowded = in_flight - in_flight // 4
        """From so many requests in flight on, shares count."""
        self.streams = 0
        """Calls that last."""
        self._most_in_flight, self._most_streams = in_flight, max(10, in_flight // 10)
        self._connections: WeakValueDictionary[int, ConnectionAdmission] = WeakValueDictionary()
        """By the identity of their peers, each of which lives as long as its connection."""
        self._shed = shed
        self._refused, self._log_at = 0, 0.0

    def admission(self, peer: Peer) -> ConnectionAdmission:
        """Return what decides about the requests of a new connection."""
        connection = self._connections[id(peer)] = ConnectionAdmission(self, peer)
        return connection

    def admit_more(self, requests: int, peer: Peer) -> NotAdmitted | None:
        """Take tokens for so many more requests of a connection, or say why not: a batch is all that it asks."""
        ceiling = self.ceiling
        if not ceiling.per_second or requests <= 0:
            return None
        refusal = None
        if requests >= ceiling.at_once:  # the first is paid for, and may be all that there ever is
            refusal = NotAdmitted(413, StatusCode.RESOURCE_EXHAUSTED, _TOO_LARGE.format(ceiling.at_once))
        elif not ceiling.take_several(requests, self._connections.get(id(peer))):
            refusal = TOO_FAST
        if refusal:
            self._log(refusal)
        return refusal

    def admit_descriptors(self, requests: int, peer: Peer) -> NotAdmitted | None:
        """Do the same for questions that cannot be split: they count as what could be let in at once, and no more."""
        return self.admit_more(min(requests, self.ceiling.at_once - 1), peer)

    def considered(self, connection: ConnectionAdmission, path: bytes, headers: Headers) -> NotAdmitted | None:
        """Decide about a request that cannot be let in without a closer look."""
        if path in EXEMPT:
            return None
        if self.keys is not None and not connection.is_known(self.keys(), headers) and path not in _KEYLESS:
            return UNKNOWN_CALLER
        if self.in_flight >= self._most_in_flight:
            return self._refuse(path, TOO_MUCH)
        if self.in_flight >= self.crowded and connection.in_flight >= max(1, self._most_in_flight // max(1, self.busy)):
            return self._refuse(path, UNFAIR)
        return None if self.ceiling.take(connection) else self._refuse(path, TOO_FAST)

    def considered_stream(self, connection: ConnectionAdmission, path: bytes, headers: Headers) -> NotAdmitted | None:
        """Decide about a call that lasts."""
        is_exempt = path in EXEMPT
        if not is_exempt and self.keys is not None and not connection.is_known(self.keys(), headers):
            return UNKNOWN_CALLER
        if self.streams >= self._most_streams or connection.streams >= max(10, self._most_streams // 10):
            return self._refuse(path, TOO_MANY_STREAMS)
        return None if is_exempt or self.ceiling.take(connection) else self._refuse(path, TOO_FAST)

    def _refuse(self, path: bytes, refusal: NotAdmitted) -> NotAdmitted:
        self._shed(path)
        self._log(refusal)
        return refusal

    def _log(self, refusal: NotAdmitted) -> None:
        """Count a refusal, and say so now and then."""
        self._refused += 1
        now = monotonic()
        if now >= self._log_at:
            _LOG.warning("%s: %d refused since the last message", refusal.detail, self._refused)
            self._refused, self._log_at = 0, now + _LOG_EVERY


class Ceiling:
    """Requests per second (0: any number), of all connections together; each gets its share while they are scarce."""

    _SCARCE_US = 1_000_000
    """For how long shares count after the ceiling was reached."""
    _SLICE_US = 100_000
    """For how long a share is what came in since the last time; then it is reckoned anew."""
    _SLACK_US = 10_000
    """A share is so much ahead of time."""

    def __init__(self, per_second: int, clock: Clock | None = None) -> None:
        self.per_second, self.at_once = per_second, max(1, per_second // 10)
        self.tokens = 0
        """At hand: so many requests may be let in before the bucket is asked again."""
        self.scarce_until = 0
        """Microseconds: until then each connection gets no more than its share. 0: tokens are not scarce."""
        self._handful = max(1, min(1000, per_second // 1000)) if per_second else 1_000_000
        self._bucket = _bucket(per_second, clock)
        self._ticks = (clock or SystemClock()).ticks
        self._slice, self._sliced_at = 0, 0
        self._sharers = self._sharers_before = 0  # connections that asked in this slice, and in the one before

    def take(self, connection: ConnectionAdmission) -> bool:
        """Take a token for a request, if there is one for this connection."""
        if not self.scarce_until:
            return self._has(1)
        now = self._ticks()
        if now >= self.scarce_until:
            self.scarce_until = 0
            return self._has(1)
        if connection.taken > self._share(connection, now) or not self._has(1):
            return False
        connection.taken += 1
        return True

    def take_several(self, count: int, connection: ConnectionAdmission | None) -> bool:
        """Take tokens for a batch at once, if there are as many, at the expense of its connection."""
        if not self._has(count):
            return False
        if connection is not None:
            self._make_up(connection, self._ticks())
            connection.taken += count
        return True

    def _has(self, count: int) -> bool:
        """Take tokens that are at hand, or from the bucket; if it has too few, they are scarce from now on."""
        missing = count - self.tokens
        if missing > 0:
            wanted = missing if count > 1 else self._handful
            if not self._bucket(wanted):
                self.scarce_until = self._ticks() + self._SCARCE_US
                return False
            self.tokens += wanted
        self.tokens -= count
        return True

    def _share(self, connection: ConnectionAdmission, now: int) -> int:
        """Return how many tokens a connection may have taken by now."""
        if now - self._sliced_at >= self._SLICE_US:
            self._slice, self._sliced_at = self._slice + 1, now
            self._sharers, self._sharers_before = 0, self._sharers
        if connection.slice != self._slice:
            connection.slice = self._slice
            self._make_up(connection, now)
            self._sharers += 1
        come = self.per_second * (now - self._sliced_at + self._SLACK_US) // 1_000_000
        return come // max(self._sharers, self._sharers_before)

    def _make_up(self, connection: ConnectionAdmission, now: int) -> None:
        """Forget what a connection has taken as far as its share has made up for it since."""
        come = self.per_second * (now - connection.made_up_at) // 1_000_000
        share = come // max(self._sharers, self._sharers_before, 1)
        connection.taken, connection.made_up_at = max(connection.taken - share, 0), now


class ConnectionAdmission:
    """Decides about the requests of one connection, and knows what it has in flight."""

    __slots__ = (
        "__weakref__",
        "_caller",
        "_ceiling",
        "_controller",
        "_credential",
        "_keys",
        "_peer",
        "in_flight",
        "made_up_at",
        "slice",
        "streams",
        "taken",
    )

    def __init__(self, controller: AdmissionController, peer: Peer = NOBODY) -> None:
        self._controller, self._ceiling = controller, controller.ceiling
        self._peer = peer  # while this lives, no other peer has its identity
        self.in_flight = self.streams = 0
        self.slice = -1
        """The slice of time in which it last asked while tokens were scarce."""
        self.taken = self.made_up_at = 0
        """Tokens that its share has not made up for, at that time in microseconds."""
        self._caller, self._credential = "", b""  # who was accepted last and by what, by these keys
        self._keys: CallerKeys | None = None

    def admit(self, path: bytes, headers: Headers) -> NotAdmitted | None:
        """Let a request in, or say why not."""
        all_, ceiling = self._controller, self._ceiling
        if ceiling.tokens > 0 and not ceiling.scarce_until and all_.in_flight < all_.crowded and all_.keys is None:
            ceiling.tokens -= 1
            return None
        return all_.considered(self, path, headers)

    def hold(self) -> None:
        """Count a request that was let in and has to wait."""
        all_ = self._controller
        all_.in_flight += 1
        if not self.in_flight:
            all_.busy += 1
        self.in_flight += 1

    def release(self) -> None:
        """Tell that a request that had to wait is over."""
        all_ = self._controller
        all_.in_flight -= 1
        self.in_flight -= 1
        if not self.in_flight:
            all_.busy -= 1

    def admit_stream(self, path: bytes, headers: Headers) -> NotAdmitted | None:
        """Let a call in that lasts, or say why not."""
        refusal = self._controller.considered_stream(self, path, headers)
        if refusal is None:
            self._controller.streams += 1
            self.streams += 1
        return refusal

    def release_stream(self) -> None:
        """Tell that a call that lasted is over."""
        self._controller.streams -= 1
        self.streams -= 1

    def is_known(self, keys: CallerKeys, headers: Headers) -> bool:
        """Say whether the request has a key; one that was accepted on this connection is not hashed again."""
        if self._credential and self._keys is keys:
            sent = [value for name, value in headers if name in CALLER_HEADERS]
            if len(sent) == 1 and hmac.compare_digest(sent[0], self._credential):
                self._controller.asked.add(self._caller)
                return True
        self._caller, self._credential = keys.caller(headers)
        self._keys = keys
        if self._caller:
            self._controller.asked.add(self._caller)
        return bool(self._caller)


def _bucket(per_second: int, clock: Clock | None) -> Callable[[int], bool]:
    """Return the function that takes tokens of a second's worth, of which a tenth may be taken at once."""
    if not per_second:
        return lambda _: True
    capacity = max(1, per_second // 10)
    quota = Quota(per_second, 1_000_000, capacity - per_second)
    check = MemoryStore(clock=clock).bind(Family("node", [quota]))
    return lambda cost: check("node", cost).allowed


class CallerKeys:
    """The keys of callers that are accepted, from a file that has their digests only.

    One caller a line, a name and the SHA-256 of its key in hexadecimal; empty lines and what follows ``#`` do not
    count::

        # printf %s "$KEY" | sha256sum
        edge-proxy  9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
        billing     60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752

    A name may have several keys, so that one can be replaced by another without a moment between. Callers send their
    key as ``Authorization: Bearer KEY`` or ``X-Api-Key: KEY``; over gRPC these are metadata.
    """

    __slots__ = ("_bearer", "_plain", "known")

    def __init__(self, known: Mapping[str, Holder]) -> None:
        self.known = known
        """Whose key it is, by digest."""
        listed = known or NO_KEYS
        self._bearer = ApiKeys(listed, header="authorization", scheme="Bearer")
        self._plain = ApiKeys(listed)

    @classmethod
    def parse(cls, text: str, name: str) -> CallerKeys:
        """Read what a file has in it.

        Raises:
            UsageError: it says in which line `name` is wrong, and never shows what is in it.
        """
        if len(text) > _LONGEST_FILE:
            raise UsageError(f"{name}: more than {_LONGEST_FILE} characters, which is not a file of caller keys")
        known: dict[str, Holder] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            try:
                caller, digest = words
                ApiKeys({digest.lower(): Holder(caller)})
            except ValueError:
                raise UsageError(f"{name}:{number}: a line is NAME and the SHA-256 of a key, 64 of 0-9 a-f") from None
            if digest.lower() in known:
                raise UsageError(f"{name}:{number}: the same key is in the file twice")
            known[digest.lower()] = Holder(caller)
        if not known:
            raise UsageError(f"{name}: no caller is in it, so nobody could ask")
        return cls(known)

    def caller(self, headers: Headers) -> tuple[str, bytes]:
        """Return the name of the caller and what proves it, or empty ones. A request with two credentials has none."""
        found, keys = b"", self._plain
        for name, value in headers:
            if name == b"authorization" or name == b"x-api-key":  # noqa: PLR1714  a set costs more
                if found:
                    return "", b""
                found, keys = value, self._bearer if name == b"authorization" else self._plain
        holder = keys.find(found)[0] if found else None
        return (holder.name, found) if holder else ("", b"")

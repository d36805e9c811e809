"""Admission: a node's protection against overload, and the keys of callers.

*   **A ceiling of requests per second**, a token bucket. For a second after it ran empty, each connection gets only its
    share of the tokens, so that a flood does not make the node refuse other callers. A batch takes as many tokens as it
    has checks, all or none, charged to its connection: that is admitted again when its share has covered them.
*   **A bound on requests in flight**. From three quarters of it on, a connection that exceeds its share (the bound
    divided by the connections with requests in flight) is refused first.
*   **A bound on long-lived calls**, such as watching the node's health. They are counted separately, since they may
    last: a tenth as many may be open, and a connection may have a tenth of these.
*   **Keys of callers**, from a file or the admin plane, if they are required: see `CallerKeys`.

Health, readiness and metrics are always admitted: a busy node is not a dead one. The API reference needs no key, but
counts against the limits.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from time import monotonic
from typing import Final
from weakref import WeakValueDictionary

from headgate.clock import Clock, SystemClock
from headgate.reference.pages import PATHS as REFERENCE
from headgate.server.caller_keys import CallerKeys
from headgate.server.ceiling import Bound, FairShare, TokenBucket, Usage
from headgate.server.wire.admission import NotAdmitted
from headgate.server.wire.grpc.calls import StatusCode
from headgate.server.wire.messages import NOBODY, Headers, Peer

_HEALTH_CALLS = (b"/grpc.health.v1.Health/Check", b"/grpc.health.v1.Health/List", b"/grpc.health.v1.Health/Watch")
EXEMPT: Final = frozenset({b"/healthz", b"/readyz", b"/healthcheck", b"/metrics", *_HEALTH_CALLS})
_KEYLESS: Final = frozenset({path.encode() for path in REFERENCE})
CALLER_HEADERS: Final = frozenset({b"authorization", b"x-api-key"})
"""Headers in which callers send their keys."""
_LOG = logging.getLogger("headgate.server")
_LOG_EVERY = 10.0
"""Seconds between log messages about refused requests."""


def _busy(detail: str) -> NotAdmitted:
    retry_after, pushback = (b"retry-after", b"1"), (b"grpc-retry-pushback-ms", b"1000")
    return NotAdmitted(503, StatusCode.RESOURCE_EXHAUSTED, detail, (retry_after,), (pushback,))


TOO_FAST: Final = _busy("this node receives more requests per second than it accepts: try again, or use another node")
TOO_MUCH: Final = _busy("this node has too many requests in flight: try again, or use another node")
UNFAIR: Final = _busy("this connection has more than its share of the requests in flight: try again later")
TOO_MANY_STREAMS: Final = _busy("this node has too many long-lived calls open: try again, or use another node")
UNKNOWN_CALLER: Final = NotAdmitted(
    401,
    StatusCode.UNAUTHENTICATED,
    "the caller is unknown: send Authorization: Bearer KEY, or X-Api-Key: KEY",
    ((b"www-authenticate", b'Bearer realm="headgate"'),),
)
_TOO_LARGE = (
    "this node accepts at most {} checks at once, a tenth of its ceiling: send fewer together, or raise "
    "--max-checks-per-second"
)


class AdmissionController:
    """Admits requests of a process, up to a rate per second (0 for no limit), and a number in flight at once.

    `keys` returns the keys accepted now; without it, none is required. `shed` is called with the path of each request
    refused because of overload.
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
        self.accepted_callers: set[str] = set()
        """Names of callers whose keys were accepted; the reader clears it."""
        self.bucket, self.shares = TokenBucket(per_second, clock), FairShare(per_second)
        self.in_flight, self.streams = Bound(in_flight), Bound(max(10, in_flight // 10))
        self._ticks = (clock or SystemClock()).ticks
        self._connections: WeakValueDictionary[int, ConnectionAdmission] = WeakValueDictionary()
        """By the id of their peers, each of which lives as long as its connection."""
        self._shed = shed
        self._refused, self._log_at = 0, 0.0

    def admission(self, peer: Peer) -> ConnectionAdmission:
        connection = self._connections[id(peer)] = ConnectionAdmission(self, peer)
        return connection

    def admit_more(self, requests: int, peer: Peer) -> NotAdmitted | None:
        """Take tokens for the further checks of a batch, or return a refusal."""
        bucket = self.bucket
        if not bucket.per_second or requests <= 0:
            return None
        refusal = None
        if requests >= bucket.burst:  # the first check has its token already
            refusal = NotAdmitted(413, StatusCode.RESOURCE_EXHAUSTED, _TOO_LARGE.format(bucket.burst))
        elif not self._take(requests):
            refusal = TOO_FAST
        elif (connection := self._connections.get(id(peer))) is not None:
            self.shares.charge(connection.usage, requests, self._ticks())
        if refusal:
            self._log(refusal)
        return refusal

    def admit_descriptors(self, requests: int, peer: Peer) -> NotAdmitted | None:
        """Take tokens for descriptors: they cannot be split, so they cost at most what can be admitted at once."""
        return self.admit_more(min(requests, self.bucket.burst - 1), peer)

    def admit(self, connection: ConnectionAdmission, path: bytes, headers: Headers) -> NotAdmitted | None:
        if path in EXEMPT:
            return None
        if self.keys is not None and not connection.is_known(self.keys(), headers) and path not in _KEYLESS:
            return UNKNOWN_CALLER
        if self.in_flight.total >= self.in_flight.most:
            return self._refuse(path, TOO_MUCH)
        if self.in_flight.is_over_share(connection.in_flight):
            return self._refuse(path, UNFAIR)
        return None if self._take_share(connection.usage) else self._refuse(path, TOO_FAST)

    def admit_stream(self, connection: ConnectionAdmission, path: bytes, headers: Headers) -> NotAdmitted | None:
        is_exempt = path in EXEMPT
        if not is_exempt and self.keys is not None and not connection.is_known(self.keys(), headers):
            return UNKNOWN_CALLER
        most = self.streams.most
        if self.streams.total >= most or connection.streams >= max(10, most // 10):
            return self._refuse(path, TOO_MANY_STREAMS)
        return None if is_exempt or self._take_share(connection.usage) else self._refuse(path, TOO_FAST)

    def _take(self, count: int) -> bool:
        if self.bucket.take(count):
            return True
        self.shares.ran_out(self._ticks())
        return False

    def _take_share(self, usage: Usage) -> bool:
        """Take one token: while tokens are scarce, from the connection's share."""
        if not self.shares.scarce_until:
            return self._take(1)
        now = self._ticks()
        if not self.shares.may(usage, now) or not self._take(1):
            return False
        self.shares.charge(usage, 1, now)
        return True

    def _refuse(self, path: bytes, refusal: NotAdmitted) -> NotAdmitted:
        self._shed(path)
        self._log(refusal)
        return refusal

    def _log(self, refusal: NotAdmitted) -> None:
        self._refused += 1
        now = monotonic()
        if now >= self._log_at:
            _LOG.warning("%s: %d refused since the last message", refusal.detail, self._refused)
            self._refused, self._log_at = 0, now + _LOG_EVERY


class ConnectionAdmission:
    """The `Admission` of one connection: its open requests, its tokens, and its last accepted key."""

    __slots__ = (
        "__weakref__",
        "_caller",
        "_controller",
        "_credential",
        "_keys",
        "_peer",
        "in_flight",
        "streams",
        "usage",
    )

    def __init__(self, controller: AdmissionController, peer: Peer = NOBODY) -> None:
        self._controller = controller
        self._peer = peer  # keeps its id from being reused
        self.in_flight = self.streams = 0
        self.usage = Usage()
        self._caller, self._credential = "", b""  # accepted last, with these keys
        self._keys: CallerKeys | None = None

    def admit(self, path: bytes, headers: Headers) -> NotAdmitted | None:
        """Admit at once if no limit is near; otherwise, let the controller decide."""
        all_ = self._controller
        in_flight = all_.in_flight
        if (
            all_.keys is None
            and not all_.shares.scarce_until
            and in_flight.total < in_flight.crowded
            and all_.bucket.take()
        ):
            return None
        return all_.admit(self, path, headers)

    def hold(self) -> None:
        self.in_flight = self._controller.in_flight.open(self.in_flight)

    def release(self) -> None:
        self.in_flight = self._controller.in_flight.close(self.in_flight)

    def admit_stream(self, path: bytes, headers: Headers) -> NotAdmitted | None:
        refusal = self._controller.admit_stream(self, path, headers)
        if refusal is None:
            self.streams = self._controller.streams.open(self.streams)
        return refusal

    def release_stream(self) -> None:
        self.streams = self._controller.streams.close(self.streams)

    def is_known(self, keys: CallerKeys, headers: Headers) -> bool:
        """Return whether the request has an accepted key; the last one on this connection is not hashed again."""
        if self._credential and self._keys is keys:
            sent = [value for name, value in headers if name in CALLER_HEADERS]
            if len(sent) == 1 and hmac.compare_digest(sent[0], self._credential):
                self._controller.accepted_callers.add(self._caller)
                return True
        self._caller, self._credential = keys.caller(headers)
        self._keys = keys
        if self._caller:
            self._controller.accepted_callers.add(self._caller)
        return bool(self._caller)

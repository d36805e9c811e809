"""Which requests a node admits: its own protection, and keys of callers.

*   **A ceiling of requests per second**, a token bucket. For a second after it was empty, each connection gets its
    share of the tokens and no more, so that a flood does not make the node refuse its other callers. A batch needs as
    many tokens as it has checks, at once, or it is refused. They are charged to its connection, which is admitted again
    when its share has made up for them.
*   **A bound of requests in flight**. From three quarters of it on, a connection that has more than its share (the
    bound over the connections that have something in flight) is refused first.
*   **A bound of long-lived calls**, such as watching the node's health. They are counted apart, since they may last for
    any time: a tenth as many may be open, of which a connection may have a tenth.
*   **Keys of callers**, of a file or of the admin plane, if they are required: see `CallerKeys`.

Requests for health, readiness and metrics are always admitted: a node that is busy is not dead. The API reference needs
no key, but is limited as all else.
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
    """Decides which requests are admitted. One for each process.

    Args:
        per_second: requests that it admits; 0 for any number.
        in_flight: at once.
        keys: returns the keys that are accepted now; None to require no key.
        shed: called with the path of each request that is refused to protect the node.
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
        """Names of callers whose keys were accepted; whoever records them clears it."""
        self.bucket, self.shares = TokenBucket(per_second, clock), FairShare(per_second)
        self.in_flight, self.streams = Bound(in_flight), Bound(max(10, in_flight // 10))
        self._ticks = (clock or SystemClock()).ticks
        self._connections: WeakValueDictionary[int, ConnectionAdmission] = WeakValueDictionary()
        """By the identity of their peers, each of which lives as long as its connection."""
        self._shed = shed
        self._refused, self._log_at = 0, 0.0

    def admission(self, peer: Peer) -> ConnectionAdmission:
        """Return the admission of a new connection."""
        connection = self._connections[id(peer)] = ConnectionAdmission(self, peer)
        return connection

    def admit_more(self, requests: int, peer: Peer) -> NotAdmitted | None:
        """Take tokens for the further checks of a batch, or return why not."""
        bucket = self.bucket
        if not bucket.per_second or requests <= 0:
            return None
        refusal = None
        if requests >= bucket.burst:  # the first is paid for, and may be all that there ever is
            refusal = NotAdmitted(413, StatusCode.RESOURCE_EXHAUSTED, _TOO_LARGE.format(bucket.burst))
        elif not self._take(requests):
            refusal = TOO_FAST
        elif (connection := self._connections.get(id(peer))) is not None:
            self.shares.charge(connection.usage, requests, self._ticks())
        if refusal:
            self._log(refusal)
        return refusal

    def admit_descriptors(self, requests: int, peer: Peer) -> NotAdmitted | None:
        """Do the same for descriptors, which cannot be split: they count as what could be admitted at once at most."""
        return self.admit_more(min(requests, self.bucket.burst - 1), peer)

    def admit(self, connection: ConnectionAdmission, path: bytes, headers: Headers) -> NotAdmitted | None:
        """Admit a request, or return why not."""
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
        """Admit a long-lived call, or return why not."""
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
        """Take a token for a connection, of its share while tokens are scarce."""
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
        """Log refusals, once for a flood."""
        self._refused += 1
        now = monotonic()
        if now >= self._log_at:
            _LOG.warning("%s: %d refused since the last message", refusal.detail, self._refused)
            self._refused, self._log_at = 0, now + _LOG_EVERY


class ConnectionAdmission:
    """The `Admission` of one connection: what it has open, what it took, and whose key it sent last."""

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
        self._peer = peer  # while this lives, no other peer has its identity
        self.in_flight = self.streams = 0
        self.usage = Usage()
        self._caller, self._credential = "", b""  # accepted last, by these keys
        self._keys: CallerKeys | None = None

    def admit(self, path: bytes, headers: Headers) -> NotAdmitted | None:
        """See `Admission`. What no limit is near to is admitted at once."""
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
        """See `Admission`."""
        self.in_flight = self._controller.in_flight.open(self.in_flight)

    def release(self) -> None:
        """See `Admission`."""
        self.in_flight = self._controller.in_flight.close(self.in_flight)

    def admit_stream(self, path: bytes, headers: Headers) -> NotAdmitted | None:
        """See `Admission`."""
        refusal = self._controller.admit_stream(self, path, headers)
        if refusal is None:
            self.streams = self._controller.streams.open(self.streams)
        return refusal

    def release_stream(self) -> None:
        """See `Admission`."""
        self.streams = self._controller.streams.close(self.streams)

    def is_known(self, keys: CallerKeys, headers: Headers) -> bool:
        """Return whether the request has a key; one that was accepted on this connection is not hashed again."""
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

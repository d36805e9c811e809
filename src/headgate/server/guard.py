"""How a node protects itself: a ceiling of requests, bounded work in flight, and callers that prove who they are.

The ceiling is a limit like any other: a token bucket of our own core. Tokens are taken from it in handfuls and given
out one by one, so that a request costs a subtraction. For a second after it was reached, each connection gets its share
of it and no more, so that those who ask little are not refused because of those who ask much.

A batch needs as many tokens as it has questions, at once, or it is refused. They count against the share of its
connection, which is let in again when its share has made up for them: nobody else pays for a batch.

What is in flight is bounded, and shared fairly. Where three quarters of the bound are taken, a connection that has more
than its share of it (the bound over the connections that have something in flight) is refused first, so that one that
floods the node takes nothing from the others.

Whoever asks for health, readiness or metrics is let in always: a node that is busy is not dead.

Calls that last, such as watching its health, are counted apart: nobody knows when they end, so they may not fill what
is for requests. A tenth as many may be open, of which a connection may have a tenth.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from time import monotonic
from typing import Final
from weakref import WeakValueDictionary

from headgate.clock import Clock, SystemClock
from headgate.core.plan import Family
from headgate.core.quota import Quota
from headgate.server.callers import HEADERS, CallerKeys
from headgate.server.wire.admission import Refusal
from headgate.server.wire.grpc.calls import StatusCode
from headgate.server.wire.messages import NOBODY, Headers, Peer
from headgate.stores.memory import MemoryStore

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
_LOG = logging.getLogger("headgate.server")
_RETRY = ((b"retry-after", b"1"),)
_PUSHBACK = ((b"grpc-retry-pushback-ms", b"1000"),)
TOO_FAST: Final = Refusal(
    503,
    StatusCode.RESOURCE_EXHAUSTED,
    "this node is asked more often than it may be: try again, or elsewhere",
    _RETRY,
    _PUSHBACK,
)
TOO_MUCH: Final = Refusal(
    503, StatusCode.RESOURCE_EXHAUSTED, "this node has too much in flight: try again, or elsewhere", _RETRY, _PUSHBACK
)
UNFAIR: Final = Refusal(
    503,
    StatusCode.RESOURCE_EXHAUSTED,
    "this connection has more than its share of what is in flight: try again later",
    _RETRY,
    _PUSHBACK,
)
_TOO_LARGE = (
    "this node lets in at most {} checks at once, a tenth of its ceiling: send fewer together, or raise "
    "--max-checks-per-second"
)
TOO_MANY_STREAMS: Final = Refusal(
    503, StatusCode.RESOURCE_EXHAUSTED, "there are too many calls that last: try again, or elsewhere", _RETRY, _PUSHBACK
)
UNKNOWN_CALLER: Final = Refusal(
    401,
    StatusCode.UNAUTHENTICATED,
    "who asks is not known: send Authorization: Bearer KEY, or X-Api-Key: KEY",
    ((b"www-authenticate", b'Bearer realm="headgate"'),),
)
_TOLD_EVERY = 10.0
_SCARCE_US, _SLICE_US, _SLACK_US = 1_000_000, 100_000, 10_000
"""For how long shares of the ceiling count after it was reached, how often they are made anew, and what is beyond."""


class Guard:
    """Protects one process.

    Args:
        per_second: requests that it lets in; 0 for any number.
        in_flight: at once.
        keys: whose callers are let in; None for everybody.
        shed: called for each request that is refused to protect the node, with its path.
        clock: of the ceiling, for tests.
    """

    def __init__(
        self,
        *,
        per_second: int = 0,
        in_flight: int = 10_000,
        keys: CallerKeys | None = None,
        shed: Callable[[bytes], object] = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self.left = 0
        """Requests that may be let in before the bucket is asked again."""
        self.in_flight = 0
        self.busy = 0
        """Connections that have something in flight."""
        self.keys = keys
        self.streams = 0
        """Calls that last."""
        self.most_streams = max(10, in_flight // 10)
        self._bound, self._shed = in_flight, shed
        self.crowded = in_flight - in_flight // 4
        """From here on, shares count."""
        self._handful = max(1, min(1000, per_second // 1000))
        self._take = _bucket(per_second, clock) if per_second else None
        self._per_second, self._ticks = per_second, (clock or SystemClock()).ticks
        self._at_once = max(1, per_second // 10)
        self._connections: WeakValueDictionary[int, ConnectionAdmission] = WeakValueDictionary()
        """By the identity of their peers, each of which lives as long as its connection."""
        self._scarce_until, self._slice, self._sliced_at = 0, 0, 0
        self._stock = 0  # tokens that are at hand while they are scarce
        self._sharers = self._before = 0  # connections that asked in this slice, and in the one before
        self._refused, self._tell_at = 0, 0.0

    def admission(self, peer: Peer) -> ConnectionAdmission:
        """Return the admission of a new connection."""
        connection = self._connections[id(peer)] = ConnectionAdmission(self, peer)
        return connection

    def charge(self, requests: int, peer: Peer) -> Refusal | None:
        """Take tokens for so many more requests of a connection, or say why not: a batch is all that it asks."""
        if self._take is None or requests <= 0:
            return None
        if requests >= self._at_once:  # the first is paid for, and may be all that there ever is
            refusal = Refusal(413, StatusCode.RESOURCE_EXHAUSTED, _TOO_LARGE.format(self._at_once))
            self._tell(refusal)
            return refusal
        self.left, self._stock = 0, self._stock + self.left - requests
        now = self._ticks()
        if self._stock < 0 and not self._take(-self._stock):
            self._stock += requests
            self._scarce_until = now + _SCARCE_US
            self._tell(TOO_FAST)
            return TOO_FAST
        self._stock = max(self._stock, 0)
        if not self._scarce_until:
            self.left, self._stock = self._stock, 0
        if (connection := self._connections.get(id(peer))) is not None:
            self._make_up(connection, now)
            connection.taken += requests
        return None

    def charge_descriptors(self, requests: int, peer: Peer) -> Refusal | None:
        """Do the same for questions that cannot be split: they count as what could be let in at once, and no more."""
        return self.charge(min(requests, self._at_once - 1), peer)

    def considered(self, connection: ConnectionAdmission, path: bytes, headers: Headers) -> Refusal | None:
        """Decide about a request that cannot be let in without looking."""
        if path in EXEMPT:
            return None
        if self.keys is not None and not connection.is_known(self.keys, headers):
            return UNKNOWN_CALLER
        refusal = None
        if self.in_flight >= self._bound:
            refusal = TOO_MUCH
        elif self.in_flight >= self.crowded and connection.in_flight >= max(1, self._bound // max(1, self.busy)):
            refusal = UNFAIR
        elif not self._may_ask(connection):
            refusal = TOO_FAST
        if refusal:
            self._shed(path)
            self._tell(refusal)
        return refusal

    def considered_stream(self, connection: ConnectionAdmission, path: bytes, headers: Headers) -> Refusal | None:
        """Decide about a call that lasts."""
        is_exempt, refusal = path in EXEMPT, None
        if not is_exempt and self.keys is not None and not connection.is_known(self.keys, headers):
            return UNKNOWN_CALLER
        if self.streams >= self.most_streams or connection.streams >= max(10, self.most_streams // 10):
            refusal = TOO_MANY_STREAMS
        elif not is_exempt and not self._may_ask(connection):
            refusal = TOO_FAST
        if refusal:
            self._shed(path)
            self._tell(refusal)
        return refusal

    def _may_ask(self, connection: ConnectionAdmission) -> bool:
        """Take a token for a request, if there is one for this connection."""
        return self._is_in_its_share(connection) if self._scarce_until else self._has_token()

    def _has_token(self) -> bool:
        """Take a token for a request, if there is one."""
        if self._take is None:
            self.left = 1_000_000
            return True
        if self.left <= 0:
            if not self._take(self._handful):
                self._scarce_until = self._ticks() + _SCARCE_US
                return False
            self.left = self._handful
        self.left -= 1
        return True

    def _is_in_its_share(self, connection: ConnectionAdmission) -> bool:
        """Take a token as well, unless the connection has had its share of what there was since the slice began."""
        now = self._ticks()
        if now >= self._scarce_until:
            self._scarce_until, self.left, self._stock = 0, self.left + self._stock, 0
            return self._has_token()
        if now - self._sliced_at >= _SLICE_US:
            self._slice, self._sliced_at = self._slice + 1, now
            self._sharers, self._before = 0, self._sharers
        if connection.slice != self._slice:
            connection.slice = self._slice
            self._make_up(connection, now)
            self._sharers += 1
        come = self._per_second * (now - self._sliced_at + _SLACK_US) // 1_000_000
        if connection.taken > come // max(self._sharers, self._before) or not self._has_stock(now):
            return False
        connection.taken += 1
        return True

    def _make_up(self, connection: ConnectionAdmission, now: int) -> None:
        """Forget what a connection has taken as far as its share has made up for it since."""
        share = self._per_second * (now - connection.made_up_at) // 1_000_000 // max(self._sharers, self._before, 1)
        connection.taken, connection.made_up_at = max(connection.taken - share, 0), now

    def _has_stock(self, now: int) -> bool:
        """Take a token while they are scarce: `left` stays at 0, so that every request comes this way."""
        if self._stock <= 0:
            if not self._take or not self._take(self._handful):
                self._scarce_until = now + _SCARCE_US
                return False
            self._stock = self._handful
        self._stock -= 1
        return True

    def _tell(self, refusal: Refusal) -> None:
        """Count it, and say so now and then: once for a flood."""
        self._refused += 1
        now = monotonic()
        if now >= self._tell_at:
            _LOG.warning("%s: %d refused since the last message", refusal.detail, self._refused)
            self._refused, self._tell_at = 0, now + _TOLD_EVERY


class ConnectionAdmission:
    """Admits the requests of one connection."""

    __slots__ = (
        "__weakref__",
        "_credential",
        "_guard",
        "_keys",
        "_peer",
        "in_flight",
        "made_up_at",
        "slice",
        "streams",
        "taken",
    )

    def __init__(self, guard: Guard, peer: Peer = NOBODY) -> None:
        self._guard, self._peer = guard, peer
        self.in_flight = self.streams = 0
        self.slice = -1
        """The slice of time in which it last asked while tokens were scarce."""
        self.taken = self.made_up_at = 0
        """Tokens that its share has not made up for, at that time in microseconds."""
        self._credential = b""  # what was accepted last, by these keys
        self._keys: CallerKeys | None = None

    def admit(self, path: bytes, headers: Headers) -> Refusal | None:
        """Let a request in, or say why not."""
        guard = self._guard
        if guard.left > 0 and guard.in_flight < guard.crowded and guard.keys is None:
            guard.left -= 1
        elif refusal := guard.considered(self, path, headers):
            return refusal
        guard.in_flight += 1
        if not self.in_flight:
            guard.busy += 1
        self.in_flight += 1
        return None

    def release(self) -> None:
        """Tell that a request that was let in is over."""
        guard = self._guard
        guard.in_flight -= 1
        self.in_flight -= 1
        if not self.in_flight:
            guard.busy -= 1

    def admit_stream(self, path: bytes, headers: Headers) -> Refusal | None:
        """Let a call in that lasts, or say why not."""
        guard = self._guard
        refusal = guard.considered_stream(self, path, headers)
        if refusal is None:
            guard.streams += 1
            self.streams += 1
        return refusal

    def release_stream(self) -> None:
        """Tell that a call that lasted is over."""
        self._guard.streams -= 1
        self.streams -= 1

    def is_known(self, keys: CallerKeys, headers: Headers) -> bool:
        """Say whether the request has a key; one that was accepted on this connection is not hashed again."""
        if self._credential and self._keys is keys:
            sent = [value for name, value in headers if name in HEADERS]
            if len(sent) == 1 and hmac.compare_digest(sent[0], self._credential):
                return True
        name, self._credential = keys.caller(headers)
        self._keys = keys
        return bool(name)


def _bucket(per_second: int, clock: Clock | None) -> Callable[[int], bool]:
    """Return the function that takes tokens of a second's worth, of which a tenth may be taken at once."""
    capacity = max(1, per_second // 10)
    quota = Quota(per_second, 1_000_000, capacity - per_second)
    check = MemoryStore(clock=clock).bind(Family("node", [quota]))
    return lambda cost: check("node", cost).allowed

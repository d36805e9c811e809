"""The arithmetic of admission: a token bucket, fair shares of it, and a bound with fair shares.

They are plain integers, and know nothing of connections or requests; only the bucket reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.clock import Clock
from headgate.core.plan import Family
from headgate.core.quota import SECOND, Quota
from headgate.stores.memory import MemoryStore

_SCARCE_US = SECOND
"""How long shares apply after the bucket ran empty."""
_SLICE_US = SECOND // 10
"""How often the sharers are counted again."""
_SLACK_US = SECOND // 100
"""How far a share may run ahead of time."""


class TokenBucket:
    """`per_second` tokens per second, a tenth of them at once; 0 for no limit.

    It takes tokens from a limit of the core in batches, so that most requests cost one subtraction.
    """

    __slots__ = ("_batch", "_check", "_tokens", "burst", "per_second")

    def __init__(self, per_second: int, clock: Clock | None = None) -> None:
        self.per_second, self.burst = per_second, max(1, per_second // 10)
        self._tokens, self._batch = 0, max(1, min(1000, per_second // 1000))
        if per_second:
            quota = Quota(per_second, SECOND, self.burst - per_second)
            self._check = MemoryStore(clock=clock).bind(Family("node", [quota]))

    def take(self, count: int = 1) -> bool:
        """Take tokens, all or none."""
        missing = count - self._tokens
        if missing > 0:
            if not self.per_second:
                return True
            wanted = missing if count > 1 else self._batch
            if not self._check("node", wanted).allowed:
                return False
            self._tokens += wanted
        self._tokens -= count
        return True


@dataclass(slots=True, eq=False)
class Usage:
    """The tokens that one connection took of a `FairShare`."""

    taken: int = 0
    """Tokens that its share had not covered at `made_up_at`, in microseconds."""
    made_up_at: int = 0
    slice: int = -1
    """The last slice of time in which it was a sharer."""


class FairShare:
    """Divides tokens per second evenly among the active connections, for a second after they ran out."""

    __slots__ = ("_per_second", "_sharers", "_sharers_before", "_slice", "_sliced_at", "scarce_until")

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self.scarce_until = 0
        """In microseconds; 0 while tokens are not scarce."""
        self._slice = self._sliced_at = 0
        self._sharers = self._sharers_before = 0  # in this slice, and in the previous one

    def ran_out(self, now: int) -> None:
        self.scarce_until = now + _SCARCE_US

    def may(self, usage: Usage, now: int) -> bool:
        """Return whether the connection's share allows another token."""
        if now >= self.scarce_until:
            self.scarce_until = 0
            return True
        self._settle(usage, now)
        return usage.taken <= self._share(now - self._sliced_at + _SLACK_US)

    def charge(self, usage: Usage, count: int, now: int) -> None:
        """Charge tokens to a connection, which may exceed its share: it is admitted again later."""
        self._settle(usage, now)
        usage.taken += count

    def _settle(self, usage: Usage, now: int) -> None:
        """Count a connection as a sharer, and subtract what its share has covered since."""
        if now - self._sliced_at >= _SLICE_US:
            self._slice, self._sliced_at = self._slice + 1, now
            self._sharers, self._sharers_before = 0, self._sharers
        if usage.slice == self._slice:
            return
        usage.slice = self._slice
        usage.taken, usage.made_up_at = max(usage.taken - self._share(now - usage.made_up_at), 0), now
        self._sharers += 1

    def _share(self, us: int) -> int:
        """Return one connection's share of the tokens of a period in microseconds."""
        return self._per_second * us // SECOND // max(self._sharers, self._sharers_before, 1)


class Bound:
    """A bound on open requests over all connections. Each connection keeps its own number, and passes it in."""

    __slots__ = ("busy", "crowded", "most", "total")

    def __init__(self, most: int) -> None:
        self.most, self.crowded = most, most - most // 4
        """Shares apply from three quarters on."""
        self.total = self.busy = 0
        """Open requests, and connections that have any."""

    def is_over_share(self, mine: int) -> bool:
        """Return whether a connection with `mine` open requests has its share, while the bound is nearly reached."""
        return self.total >= self.crowded and mine >= max(1, self.most // max(1, self.busy))

    def open(self, mine: int) -> int:
        """Count one more for a connection that has `mine`; returns its new number."""
        self.total += 1
        self.busy += not mine
        return mine + 1

    def close(self, mine: int) -> int:
        """Count one less; returns the connection's new number."""
        self.total -= 1
        self.busy -= mine == 1
        return mine - 1

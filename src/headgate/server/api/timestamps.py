"""A client's own time: compared with ours, never counted by."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.core.numbers import whole
from headgate.core.quota import SECOND
from headgate.policy.request import InvalidRequest
from headgate.web.errors import InvalidSettings

_MILLISECONDS_FROM = 100_000_000_000
"""As seconds, the year 5138; as milliseconds, 1973."""
_LARGEST = _MILLISECONDS_FROM * 1000


@dataclass(frozen=True, slots=True)
class Timestamps:
    """What clients' timestamps may be.

    They are Unix time, in seconds or, from 100 000 000 000 on, in milliseconds.
    """

    skew: int = 60
    """By how many seconds they may differ from our clock."""
    ignored: bool = False
    """Whether others are ignored rather than refused."""

    def __post_init__(self) -> None:
        whole("skew", self.skew, 1, 86_400 * 365, InvalidSettings)

    def check(self, timestamp: float, now: int) -> None:
        """Refuse a timestamp that is too far from `now`, in microseconds since the epoch. Raises InvalidRequest."""
        if self.ignored:
            return
        if not -_LARGEST < timestamp < _LARGEST:
            raise InvalidRequest("the timestamp is not a Unix time in seconds or milliseconds")
        off = (timestamp / 1000 if abs(timestamp) >= _MILLISECONDS_FROM else timestamp) - now / SECOND
        if abs(off) > self.skew:
            raise InvalidRequest(
                f"the timestamp is {abs(off):.0f} s {'behind' if off < 0 else 'ahead of'} our clock, which says "
                f"{now // SECOND}; {self.skew} s are accepted: set the other clock, or leave the timestamp out"
            )

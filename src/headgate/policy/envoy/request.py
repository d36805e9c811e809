"""Envoy's requests as values. The numbers are those of its protocol, `envoy.service.ratelimit.v3`."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import msgspec

MAX_UINT32 = (1 << 32) - 1
Entries = tuple[tuple[str, str], ...]
"""The pairs of key and value of a descriptor; a value may be empty."""


class Unit(IntEnum):
    """A unit of time. Months have 30 days, years 365; all windows count from the epoch, so weeks begin on Thursdays."""

    SECOND = 1
    MINUTE = 2
    HOUR = 3
    DAY = 4
    MONTH = 5
    YEAR = 6
    WEEK = 7

    @property
    def seconds(self) -> int:
        return _SECONDS[self]


_SECONDS = {
    Unit.SECOND: 1,
    Unit.MINUTE: 60,
    Unit.HOUR: 3600,
    Unit.DAY: 86400,
    Unit.WEEK: 7 * 86400,
    Unit.MONTH: 30 * 86400,
    Unit.YEAR: 365 * 86400,
}


class Override(NamedTuple):
    """A limit that comes with the request, instead of the configured one."""

    requests_per_unit: int
    unit: int
    """The number of a `Unit`. 0, "unknown", is an error of this descriptor; so is any other number."""


class Descriptor(msgspec.Struct, frozen=True, gc=False):
    """One descriptor of a request."""

    entries: Entries
    hits: int | None = None
    """The cost; 0 for a peek; None: that of the request."""
    override: Override | None = None
    refund: bool = False
    """Whether `hits` are refunded (`is_negative_hits`)."""

"""Whole numbers in range, the rates made of them, and values as messages show them."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import NamedTuple

from headgate.core.errors import InvalidQuota, UsageError

EXACT = 1 << 51
"""Bound on every quantity: a few of them add up within the 53 bits that a Lua number holds exactly."""
_COARSE = 1 << 49
_YEAR_US = 365 * 24 * 3600 * 1_000_000


def whole(name: str, value: object, low: int, high: int, error: type[UsageError]) -> int:
    """Return `value` if it is an int from `low` to `high`, else raise `error` with the accepted range.

    A bool is not a number here, and a float is refused even when it is whole: 1e3 is usually a mistake for a count.
    """
    if type(value) is int and low <= value <= high:
        return value
    raise error(f"{name} must be a whole number from {low} to {high}, not {short(value)}", fields=(name,))


def short(value: object) -> str:
    """Return `value` as it is shown in a message: in full if that is not long."""
    try:
        text = repr(value)
    except ValueError:  # an int of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:50]}... ({len(text)} characters)"


class Rate(NamedTuple):
    """The fractions in which a bucket counts: `unit` make one unit of cost, and `gain` come back in `per` us.

    Where it can be exact, `per` is 1: gain / unit is limit / window in lowest terms. Elsewhere the fractions are powers
    of two, `per` is the window, and what has come back is rounded down to a fraction.
    """

    gain: int
    """Fractions that come back in `per` microseconds. 0 for a one-off allowance."""
    per: int
    """Microseconds. For a one-off allowance, the time without use after which all of it comes back."""
    unit: int
    """Fractions in one unit of cost."""

    def left(self, used: int, elapsed: int) -> int:
        """Return how many of `used` fractions are still used after `elapsed` microseconds."""
        if not self.gain:
            return used if elapsed < self.per else 0
        back, _ = scaled(elapsed, self.gain, self.per)
        return used - back if back < used else 0

    def wait(self, fractions: int) -> int:
        """Return the microseconds until `fractions` have come back; of a one-off allowance, all at once.

        The time counts from the use itself: a later remainder is rounded up, and would take too long.
        """
        if not self.gain:
            return self.per if fractions else 0
        whole, rest = scaled(fractions, self.per, self.gain)
        return whole + 1 if rest else whole

    def units(self, fractions: int) -> int:
        """Return how many units of cost `fractions` are, rounded up."""
        return -(-fractions // self.unit)

    def carried(self, used: int, other: Rate) -> int:
        """Return `used` fractions as fractions of another rate, rounded up."""
        entire, rest = divmod(used, self.unit)
        part, remainder = scaled(rest, other.unit, self.unit)
        return entire * other.unit + (part + 1 if remainder else part)


def scaled(value: int, by: int, over: int) -> tuple[int, int]:
    """Return value * by / over as a whole number, and the rest.

    The only product that may leave 53 bits. `by` and `over` are at most 2^49 where it does, so that the twin in Lua
    can multiply and divide digit by digit.
    """
    return divmod(int(value) * int(by), int(over))


def fineness(limit: int, window_us: int, capacity: int) -> int:
    """Return how finely a bucket counts: 0 exactly, n in fractions of which 2^(n-1) make one unit of cost.

    Raises:
        InvalidQuota: no fractions would do.
    """
    if capacity * (window_us // gcd(limit, window_us)) <= EXACT:
        return 0
    most = max(limit, capacity)
    if most > _COARSE:
        raise InvalidQuota(
            f"{limit} per {window_us} us with a capacity of {capacity} cannot be counted: use at most {_COARSE}",
            fields=("burst", "limit"),
        )
    if capacity * window_us > EXACT * limit:
        years = capacity * window_us // limit // _YEAR_US
        raise InvalidQuota(
            f"a capacity of {capacity} would take {years} years to come back at {limit} per {window_us} us, and at "
            f"most {EXACT // _YEAR_US} can be counted: use a smaller burst or a larger limit",
            fields=("burst", "limit"),
        )
    return (_COARSE // most).bit_length()


@lru_cache(maxsize=4096)
def rate(limit: int, window_us: int, fine: int) -> Rate:
    """Return how a bucket of that limit, window and `fineness` counts."""
    if not limit:
        return Rate(0, window_us, 1)
    if fine:
        unit = 1 << fine - 1
        return Rate(limit * unit, window_us, unit)
    divisor = gcd(limit, window_us)
    return Rate(limit // divisor, 1, window_us // divisor)

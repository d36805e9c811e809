"""Whole numbers in range, and the rates made of them."""

from __future__ import annotations

from math import gcd

from headgate.core.errors import InvalidQuota, UsageError

EXACT = 1 << 51
"""Bound on every quantity: a few of them add up within the 53 bits that a Lua number holds exactly."""


def whole(name: str, value: object, low: int, high: int, error: type[UsageError]) -> int:
    """Return `value` if it is an int from `low` to `high`, else raise `error` saying what is accepted.

    A bool is not a number here, and a float is refused even when it is whole: 1e3 is usually a mistake for a count.
    """
    if type(value) is int and low <= value <= high:
        return value
    raise error(f"{name} must be a whole number from {low} to {high}, not {short(value)}")


def short(value: object) -> str:
    """Return `value` as it is shown in a message: in full if that is not long."""
    try:
        text = repr(value)
    except ValueError:  # an int of thousands of digits
        return "a number that long"
    return text if len(text) <= 60 else f"{text[:50]}... ({len(text)} characters)"


def reduced(limit: int, window_us: int) -> tuple[int, int]:
    """Return (gain, unit): limit / window in lowest terms."""
    divisor = gcd(limit, window_us)
    return limit // divisor, window_us // divisor


def exact_rate(limit: int, window_us: int, capacity: int) -> tuple[int, int]:
    """Return (gain, unit) if a bucket of that rate and capacity can be computed exactly.

    Counting in fractions of which `unit` make one unit of cost, `gain` of them come back per microsecond: two whole
    numbers.
    """
    gain, unit = reduced(limit, window_us)
    if capacity * unit > EXACT:
        raise InvalidQuota(
            f"{limit} per {window_us} us with a capacity of {capacity} cannot be computed exactly: use a rounder "
            f"limit{_rounder(limit, window_us, capacity)}, a shorter window or a smaller burst"
        )
    return gain, unit


def _rounder(limit: int, window_us: int, capacity: int) -> str:
    for digits in range(1, len(str(limit))):
        near = round(limit, -digits)
        if near and 0 < (capacity - limit + near) * reduced(near, window_us)[1] <= EXACT:
            return f" (such as {near})"
    return ""


def carried_over(used: int, elapsed: int, written_under: int, limit: int, window_us: int) -> int:
    """Convert `used`, as of `elapsed` microseconds ago, into the fractions of `limit`, as of now.

    It fell by the old limit until now. From there it is carried over, rounded up: what was used stays used, as far as
    the new fractions can count, which is further than any capacity goes.
    """
    then_gain, then_unit = reduced(written_under, window_us)
    _, unit = reduced(limit, window_us)
    if then_gain:
        used = max(0, used - elapsed * then_gain) if elapsed <= EXACT // then_gain else 0
    elif elapsed >= window_us:  # a one-off allowance, not used for so long
        used = 0
    entire, rest = divmod(used, then_unit)
    if entire >= EXACT // unit:
        return EXACT // unit * unit
    # rest / then_unit of a unit, as parts / of_parts: rounded up, and coarse enough for the product to stay exact
    coarse = -(-then_unit // min(then_unit, EXACT // unit))
    parts, of_parts = -(-rest // coarse), then_unit // coarse
    return entire * unit + min(unit, -(-parts * unit // of_parts))

"""What `Limiter` and `AsyncLimiter` share: everything that does not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headgate.core.errors import InvalidQuota, UsageError
from headgate.core.grammar import EXAMPLES
from headgate.core.numbers import short
from headgate.core.plan import Family
from headgate.core.quota import Quota

Quotas = str | Quota | Iterable[str | Quota]
"""Text such as "100/minute" or "10/s burst 20; 5000/day", a quota, or several of either."""
Key = str | Callable[..., str]
"""A key, or a function that makes one of the arguments of a decorated function."""


def family_of(quotas: Quotas, name: str) -> Family:
    """Return the limits that `quotas` describe."""
    parts = [quotas] if isinstance(quotas, str | Quota) else quotas
    if not isinstance(parts, Iterable) or isinstance(parts, bytes):
        raise InvalidQuota(f"quotas are text such as {EXAMPLES}, or Quota objects, not {short(quotas)}")
    found: list[Quota] = []
    for part in parts:
        found.extend([part] if isinstance(part, Quota) else Quota.parse(part))
    return Family(name, found)


def key_for_block(key: Key) -> str:
    """Return the key of a guarded block of code, which has no arguments to make a key of."""
    if callable(key):
        raise UsageError("guard(...) was given a function as its key, which works on decorated functions only")
    return key

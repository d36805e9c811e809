"""What `Limiter` and `AsyncLimiter` share: everything that does not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, TypeVar

from headgate.core.decision import Decision
from headgate.core.errors import InvalidCost, InvalidQuota, UsageError
from headgate.core.grammar import EXAMPLES
from headgate.core.numbers import short, whole
from headgate.core.plan import MAX_COST, Family
from headgate.core.quota import Quota
from headgate.stores.wrapping import Refund

Quotas = str | Quota | Iterable[str | Quota]
"""Text such as "100/minute" or "10/s burst 20; 5000/day", a quota, or several of either."""
F = TypeVar("F", bound=Callable[..., Any])
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


def shown_as(method: F, bound: F) -> F:
    """Return what a store has bound, shown by help() and in errors as the method whose place it takes."""
    if isinstance(bound, FunctionType) and isinstance(method, FunctionType) and "<locals>" in bound.__qualname__:
        bound.__doc__, bound.__qualname__ = method.__doc__, method.__qualname__
    return bound


def refund_for(family: Family, key: str, what: Decision | int) -> Refund:
    """Return the refund, to the limits of a key, of what a decision took, or of a number of units."""
    plan = family.plan(key)
    if not isinstance(what, Decision):
        return Refund(plan, whole("cost", what, 1, MAX_COST, InvalidCost))
    if [part.quota.shape for part in what.limits] != [limit.quota.shape for limit in plan]:
        quotas = "; ".join([str(quota) for quota in family.quotas])
        raise UsageError(f"{what!r} is not a decision of a limiter of {quotas}")
    return Refund(plan, what)

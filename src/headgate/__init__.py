"""Headgate: a rate limiter.

A limit is a pure function of (state, cost, now). A store runs it atomically. Everything else is transport.

`Limiter` and `AsyncLimiter` are the library; `Engine` and `AsyncEngine` decide requests by rules. `headgate.web`
identifies callers and writes responses, `headgate.testing` is for your own tests.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headgate.clock import Clock, SystemClock
from headgate.core.algorithms import Algorithm
from headgate.core.calendar import Calendar
from headgate.core.decision import Decision
from headgate.core.errors import (
    CostTooLarge,
    HeadgateError,
    InvalidCost,
    InvalidKey,
    InvalidQuota,
    InvalidRule,
    InvalidStore,
    LimitExceeded,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota
from headgate.limiter import AsyncLimiter, Limiter
from headgate.stores import open_async_store, open_store
from headgate.stores.memory import MemoryStore

if TYPE_CHECKING:
    from headgate.config.problems import InvalidRules
    from headgate.engine import AsyncEngine, Engine, Passed, Reset, Ruling
    from headgate.policy.live import LivePolicy
    from headgate.policy.loading import load as load_rules
    from headgate.policy.model import Rule, Ruleset
    from headgate.policy.request import InvalidRequest, Request, UnknownRule
    from headgate.stores.cached import AsyncCachedStore, CachedStore
    from headgate.stores.failover import AsyncFailoverStore, FailoverStore
    from headgate.web.address import AddressReader
    from headgate.web.headers import ResponseHeaders

__version__ = "0.1.0"

__all__ = [
    "AddressReader",
    "Algorithm",
    "AsyncCachedStore",
    "AsyncEngine",
    "AsyncFailoverStore",
    "AsyncLimiter",
    "CachedStore",
    "Calendar",
    "Clock",
    "CostTooLarge",
    "Decision",
    "Engine",
    "FailoverStore",
    "HeadgateError",
    "InvalidCost",
    "InvalidKey",
    "InvalidQuota",
    "InvalidRequest",
    "InvalidRule",
    "InvalidRules",
    "InvalidStore",
    "LimitExceeded",
    "Limiter",
    "LivePolicy",
    "MemoryStore",
    "OutcomeUnknown",
    "Passed",
    "Pressure",
    "Quota",
    "Request",
    "Reset",
    "ResponseHeaders",
    "Rule",
    "Ruleset",
    "Ruling",
    "StoreBusy",
    "StoreError",
    "StoreUnavailable",
    "SystemClock",
    "UnknownRule",
    "UsageError",
    "load_rules",
    "open_async_store",
    "open_store",
]

_LATER = {
    "headgate.config.problems": ("InvalidRules",),
    "headgate.engine": ("AsyncEngine", "Engine", "Passed", "Reset", "Ruling"),
    "headgate.policy.live": ("LivePolicy",),
    "headgate.policy.loading": ("load_rules",),
    "headgate.policy.model": ("Rule", "Ruleset"),
    "headgate.policy.request": ("InvalidRequest", "Request", "UnknownRule"),
    "headgate.stores.cached": ("AsyncCachedStore", "CachedStore"),
    "headgate.stores.failover": ("AsyncFailoverStore", "FailoverStore"),
    "headgate.web.address": ("AddressReader",),
    "headgate.web.headers": ("ResponseHeaders",),
}
"""Names imported on first use, since a limiter does not need them, by module."""
_MODULES = {name: module for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'headgate' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_MODULES[name]), "load" if name == "load_rules" else name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]


def _pydantic_schema(_source: object, _handler: object) -> Any:
    from headgate.integrations.pydantic import decision_schema  # noqa: PLC0415  only Pydantic calls this

    return decision_schema()


Decision.__get_pydantic_core_schema__ = _pydantic_schema  # type: ignore[attr-defined]

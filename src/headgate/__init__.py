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
    from headgate.engine import AsyncEngine, Engine, Passed, Reset, Ruling
    from headgate.policy.live import LivePolicy
    from headgate.policy.loading import InvalidRules
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
    "AddressReader": "headgate.web.address",
    "AsyncCachedStore": "headgate.stores.cached",
    "AsyncEngine": "headgate.engine",
    "AsyncFailoverStore": "headgate.stores.failover",
    "CachedStore": "headgate.stores.cached",
    "Engine": "headgate.engine",
    "FailoverStore": "headgate.stores.failover",
    "InvalidRequest": "headgate.policy.request",
    "InvalidRules": "headgate.policy.loading",
    "LivePolicy": "headgate.policy.live",
    "Passed": "headgate.engine",
    "Request": "headgate.policy.request",
    "Reset": "headgate.engine",
    "ResponseHeaders": "headgate.web.headers",
    "Rule": "headgate.policy.model",
    "Ruleset": "headgate.policy.model",
    "Ruling": "headgate.engine",
    "UnknownRule": "headgate.policy.request",
    "load_rules": "headgate.policy.loading:load",
}
"""Names imported on first use, since a limiter does not need them: the module, and the name there if different."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'headgate' has no attribute {name!r}")
    module, _, there = _LATER[name].partition(":")
    found = globals()[name] = getattr(import_module(module), there or name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *_LATER]

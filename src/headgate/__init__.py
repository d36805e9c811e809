"""Headgate: a rate limiter.

A limit is a pure function of (state, cost, now). A store runs it atomically. Everything else is transport.
"""

from headgate.aio import AsyncLimiter
from headgate.binding import Passed
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
from headgate.limiter import Limiter
from headgate.stores.memory import MemoryStore

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "AsyncLimiter",
    "Calendar",
    "Clock",
    "CostTooLarge",
    "Decision",
    "HeadgateError",
    "InvalidCost",
    "InvalidKey",
    "InvalidQuota",
    "InvalidRule",
    "InvalidStore",
    "LimitExceeded",
    "Limiter",
    "MemoryStore",
    "OutcomeUnknown",
    "Passed",
    "Pressure",
    "Quota",
    "StoreBusy",
    "StoreError",
    "StoreUnavailable",
    "SystemClock",
    "UsageError",
]

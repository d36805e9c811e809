"""How many processes share the limits of a store, counted in that store.

Each process takes a unit of one limit every few seconds, and refunds its previous one: the used units are the number of
processes. The limit is a log of the last 20 seconds, so a dead process is forgotten. As an ordinary limit it is counted
atomically in every kind of store, needs no permission and no clock of its own, and takes 16 bytes per process. A unit
is taken before the previous one is refunded: for a moment there may be one too many, never one too few.

A heartbeat accompanies the calls of a process: one that decides nothing is not counted, and needs no share.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from random import uniform

from headgate.core.algorithms import Algorithm
from headgate.core.decision import Decision
from headgate.core.key import bounded
from headgate.core.plan import Call, Limit, Verb, refund_of
from headgate.core.quota import Quota
from headgate.locks import new_lock

EVERY_US = 5_000_000
"""Microseconds between heartbeats, on average; chance varies them by a fifth."""
COUNTED = Quota(1000, 20_000_000, algorithm=Algorithm.SLIDING_WINDOW_LOG)
"""The most processes that are counted, and how long each counts after its last heartbeat."""
UNSEEN = 10
"""The number of processes that a process assumes before it has reached its store."""
KEPT = 12
"""The heartbeats for which the highest count applies at least, about a minute; at most twice as many."""
SPACE = "!nodes"
"""No other limit has this space: names have no exclamation marks."""


class Heartbeat:
    """The heartbeat of this process; thread-safe. Processes with the same `name` count each other.

    The count is at least `fewest`.
    """

    def __init__(self, name: str, fewest: int) -> None:
        self.count = max(UNSEEN, fewest)
        """How many processes share the limits, including this one."""
        self.quiet_from = self.quiet_until = 0
        """No heartbeat is due in between, by the clock of the limits; one is if that was set back."""
        self._plan = (Limit(SPACE, bounded(name), COUNTED),)
        self._own: Decision | None = None
        self._process = 0
        self._fewest, self._recent, self._before, self._beats = fewest, 0, 0, 0
        self._lock = new_lock()

    def is_due(self, now: int) -> bool:
        """Return whether the caller must send a heartbeat now; others need not, until the next one is due."""
        with self._lock:
            if self.quiet_from <= now < self.quiet_until:
                return False
            self.quiet_from, self.quiet_until = now, now + round(EVERY_US * uniform(0.8, 1.2))
            return True

    def beat(self) -> Generator[Call, Decision, None]:
        """Take a unit and refund the previous one: a flow of calls. If a refund fails, that unit expires."""
        answer = yield Call(Verb.CHECK, self._plan, 1)
        before, process = self._own, os.getpid()
        if answer.allowed:
            is_ours, self._own, self._process = self._process == process, answer, process
            if before is not None and is_ours:  # a parent's unit is not refunded
                answer = yield refund_of(self._plan, before)
        with self._lock:
            # Heartbeats are counted, not seconds: after an outage counting starts again, and the last count applies
            # until the others have had time to return.
            if self._beats % KEPT == 0:
                self._recent, self._before = 0, self._recent
            self._beats += 1
            self._recent = max(self._recent, answer.limit - answer.remaining, self._fewest)
            self.count = max(self._recent, self._before)

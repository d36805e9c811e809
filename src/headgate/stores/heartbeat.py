"""How many processes share the limits of a store, counted in that store.

Each process takes a unit of one limit every few seconds, and returns the one that it took before: what is used of the
limit is the number of processes. It is a log of the last 20 seconds, so a process that dies is forgotten, and an
ordinary limit, so it is counted atomically in every kind of store, needs no permission and no clock of its own, and
takes 16 bytes per process. A unit is taken before the last one is returned: for a moment there may be one too many,
never one too few.

A process beats with the calls that it makes anyway: one that decides nothing is not counted, and needs no share.
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
"""Microseconds between heartbeats, on average; chance makes them a fifth longer or shorter."""
COUNTED = Quota(1000, 20_000_000, algorithm=Algorithm.SLIDING_WINDOW_LOG)
"""So many processes are counted at most, and each for so long after its last heartbeat."""
UNSEEN = 10
"""How many a process takes them to be that has never reached its store."""
KEPT = 12
"""For at least so many heartbeats, a minute, and less than twice as many, the highest count is in force."""
SPACE = "!nodes"
"""No limit has this space: a name has no exclamation mark."""


class Heartbeat:
    """The heartbeat of this process; safe for threads.

    Args:
        name: what the processes share: all that have the same count each other.
        fewest: how many there are at least, whatever is counted.
    """

    def __init__(self, name: str, fewest: int) -> None:
        self.count = max(UNSEEN, fewest)
        """How many processes share the limits, this one included."""
        self.rests_from = self.rests_until = 0
        """No heartbeat is due in between, by the clock by which limits count. It is, where that was set back."""
        self._plan = (Limit(SPACE, bounded(name), COUNTED),)
        self._own: Decision | None = None
        self._process = 0
        self._fewest, self._recent, self._before, self._beats = fewest, 0, 0, 0
        self._lock = new_lock()

    def is_due(self, now: int) -> bool:
        """Return whether the caller is to beat now; others are not, until the next heartbeat is due."""
        with self._lock:
            if self.rests_from <= now < self.rests_until:
                return False
            self.rests_from, self.rests_until = now, now + round(EVERY_US * uniform(0.8, 1.2))
            return True

    def beat(self) -> Generator[Call, Decision, None]:
        """Take a unit and return the last one: a flow of calls for the store. If one fails, the last unit expires."""
        answer = yield Call(Verb.CHECK, self._plan, 1)
        before, process = self._own, os.getpid()
        if answer.allowed:
            is_ours, self._own, self._process = self._process == process, answer, process
            if before is not None and is_ours:  # that of a parent stays
                answer = yield refund_of(self._plan, before)
        with self._lock:
            # Heartbeats are counted, not seconds: after an outage the count begins anew, and the last one holds
            # until the others have had time to come back.
            if self._beats % KEPT == 0:
                self._recent, self._before = 0, self._recent
            self._beats += 1
            self._recent = max(self._recent, answer.limit - answer.remaining, self._fewest)
            self.count = max(self._recent, self._before)

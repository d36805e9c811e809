"""The policy in force, renewed when its source has new rules.

A bad change never replaces a good policy: it is logged, counted and left alone until the source changes again. Readers
take `LivePolicy.policy` once per request; it is a whole, immutable snapshot, and swapping it is one assignment, so no
request ever sees half of a change.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from headgate.core.errors import InvalidRule, UsageError
from headgate.policy.compiled import Policy
from headgate.policy.source import RuleSource

EVERY = 0.5
"""Seconds between two looks at a source."""
_LOG = logging.getLogger("headgate.policy")


@dataclass(frozen=True, slots=True)
class LoadStatistics:
    """How loading went so far."""

    loads: int
    """Policies that came into force, the first one included."""
    failures: int
    """Changes that were not acceptable, or could not be had."""
    loaded_at: float
    """When the policy in force came into force, in seconds since the epoch."""
    error: str
    """Why the last change was not acceptable; empty if it was."""


class LivePolicy:
    """Keeps a policy up to date. As a context manager it does so from a thread of its own until the block ends.

    Args:
        source: where the rules come from.
        every: seconds between two looks at it.

    Raises:
        InvalidRule: the first rules are not acceptable, or cannot be had: there is no good policy to go on with.
    """

    def __init__(self, source: RuleSource, *, every: float = EVERY) -> None:
        if not isinstance(every, int | float) or not 0.01 <= every <= 300:
            raise UsageError(f"every is a number of seconds from 0.01 to 300, not {every!r}")
        self._source, self._every = source, every
        self._loads, self._failures, self._loaded_at, self._error = 1, 0, time.time(), ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.policy = Policy(source.read(), version=1)
        """The policy in force."""

    def refresh(self) -> bool:
        """Look at the source once; says whether another policy is in force now. For one thread at a time."""
        try:
            ruleset = self._source.changed()
            if ruleset is None:
                return False
            policy = Policy(ruleset, version=self._loads + 1)
        except (InvalidRule, OSError) as error:
            self._failures += 1
            self._error = str(error)
            _LOG.error("%s: the rules in force stay: %s", self._source.name, error)
            return False
        self.policy = policy
        self._loads, self._loaded_at, self._error = policy.version, time.time(), ""
        _LOG.info("%s: version %d of the rules is in force", self._source.name, policy.version)
        return True

    def statistics(self) -> LoadStatistics:
        """Return how loading went, for metrics."""
        return LoadStatistics(self._loads, self._failures, self._loaded_at, self._error)

    def start(self) -> None:
        """Look at the source every now and then, from a thread that ends with the process."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._watch, name="headgate-rules", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop looking; the policy stays in force."""
        thread, self._thread = self._thread, None
        if thread:
            self._stop.set()
            thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self.refresh()
            except Exception:  # noqa: BLE001  whatever a source may raise: the policy in force must not depend on it
                self._failures += 1
                _LOG.exception("%s: the rules in force stay", self._source.name)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

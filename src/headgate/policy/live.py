"""The policy in force, renewed when its source has new rules.

A bad change never replaces a good policy: it is logged, counted and left alone until the source changes again. Readers
take `Live.policy` once per request; it is a whole, immutable snapshot, and swapping it is one assignment, so no request
ever sees half of a change.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from headgate.core.errors import InvalidRule, UsageError
from headgate.policy.compiled import Policy
from headgate.policy.model import Ruleset
from headgate.policy.source import RuleSource
from headgate.policy.terms import space_name

EVERY = 0.5
"""Seconds between two looks at a source."""
_LOG = logging.getLogger("headgate.policy")
_FOREVER = 300
_PLACES = 100
"""So many former places of a rule are remembered."""
W = TypeVar("W")
P = TypeVar("P")


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


class Live(Generic[W, P]):
    """Keeps a policy up to date. As a context manager it does so from a thread of its own until the block ends.

    Args:
        source: where the rules come from.
        compiled: makes a policy of them, given also its version: 1, 2, and so on.
        every: seconds between two looks at the source.

    Raises:
        InvalidRule: the first rules are not acceptable, or cannot be had: there is no good policy to go on with.

    A process that forks goes on watching in the child as well. Its thread ends soon after the object, closed or not.
    """

    def __init__(self, source: RuleSource[W], compiled: Callable[[W, int], P], *, every: float = EVERY) -> None:
        if isinstance(every, bool) or not isinstance(every, int | float) or not 0.01 <= every <= _FOREVER:
            raise UsageError(f"every is a number of seconds from 0.01 to {_FOREVER}, not {every!r}")
        self._source, self._compiled, self._every = source, compiled, every
        self._loads, self._failures, self._loaded_at, self._error = 1, 0, time.time(), ""
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()  # not one of `headgate.locks`: a source may block, and no fork waits for it
        self.policy = compiled(source.read(), 1)
        """The policy in force."""
        _alive.add(self)

    def refresh(self) -> bool:
        """Look at the source once; says whether another policy is in force now."""
        with self._lock:  # two at once could put the older one in force last
            try:
                written = self._source.changed()
                if written is None:
                    return False
                policy = self._compiled(written, self._loads + 1)
            except (InvalidRule, OSError) as error:
                self._failed(error)
                return False
            self.policy = policy
            self._loads, self._loaded_at, self._error = self._loads + 1, time.time(), ""
        _LOG.info("%s: version %d of the rules is in force", self._source.name, self._loads)
        return True

    def statistics(self) -> LoadStatistics:
        """Return how loading went, for metrics."""
        return LoadStatistics(self._loads, self._failures, self._loaded_at, self._error)

    def start(self) -> None:
        """Look at the source every now and then, from a thread that ends with the process."""
        if self._thread is None:
            stop = self._stop = threading.Event()
            watch = weakref.ref(self), stop, self._every  # an object that nobody closes and nobody has is not kept
            self._thread = threading.Thread(target=_watch, args=watch, name="headgate-rules", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop looking; the policy stays in force."""
        thread, self._thread = self._thread, None
        if thread:
            self._stop.set()
            thread.join()

    def _reborn(self) -> None:
        """Go on in a forked child, which has no thread of its parent, and must not wait for one."""
        watched, self._thread = self._thread, None
        self._lock = threading.Lock()
        if watched:
            self.start()

    def _look(self) -> None:
        try:
            self.refresh()
        except Exception as error:  # noqa: BLE001  whatever a source may raise: the policy must not depend on it
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._error = str(error) or type(error).__name__
        expected = isinstance(error, InvalidRule | OSError)
        told = self._error.replace("\n", "; ")
        _LOG.error("%s: the rules in force stay: %s", self._source.name, told, exc_info=None if expected else error)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _watch(watched: Callable[[], Live[W, P] | None], stop: threading.Event, every: float) -> None:
    """Look at the source of a policy every now and then, until told to stop, or nobody has the policy any more."""
    while not stop.wait(every):
        live = watched()
        if live is None:
            return
        live._look()  # noqa: SLF001  its own thread
        del live


_alive: weakref.WeakSet[Live[Any, Any]] = weakref.WeakSet()


def _go_on_in_child() -> None:
    for live in tuple(_alive):
        live._reborn()  # noqa: SLF001  as a method it would be registered for ever


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_go_on_in_child)


class LivePolicy(Live[Ruleset, Policy]):
    """Keeps the policy of a ruleset up to date; see `Live`. `enforcing`: whether its limits refuse."""

    def __init__(self, source: RuleSource[Ruleset], *, every: float = EVERY, enforcing: bool = True) -> None:
        self._enforcing = enforcing
        self._places: dict[str, dict[str, None]] = {}
        """Where rules with `reset_on_change` count and have counted, the last one last."""
        super().__init__(source, self._policy_of, every=every)

    def enforce(self, *, enforcing: bool) -> None:
        """Let limits refuse, or let every rule be a shadow, from the next request on and for rules to come."""
        with self._lock:
            self._enforcing = enforcing
            self.policy = self._policy_of(self.policy.ruleset, self.policy.version)

    def _policy_of(self, ruleset: Ruleset, version: int) -> Policy:
        policy = Policy(ruleset, version=version, enforcing=self._enforcing)
        for rule in (each.rule for each in policy.rules.values() if each.rule.reset_on_change):
            place, places = space_name(rule), self._places.setdefault(rule.id, {})
            if place in places and place != [*places][-1]:
                _LOG.warning(
                    "rule %s is again what it was before, so that what was counted then counts again until it expires: "
                    "to start afresh, change its updated_at",
                    rule.id,
                )
            places.pop(place, None)
            places[place] = None
            if len(places) > _PLACES:
                del places[next(iter(places))]
        return policy

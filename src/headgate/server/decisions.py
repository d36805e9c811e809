"""The only way from the APIs to the engine of rules: what it decides is recorded, with the name of the API."""

from __future__ import annotations

from copy import copy
from functools import partial

from headgate.cache import BoundedCache
from headgate.engine import AsyncEngine
from headgate.observe.recorder import Recorder
from headgate.server.settings import RLS_SECONDS

_MOST_TIMEOUTS = 64


class Recording:
    """Tells a recorder what an engine does for one API, which the log of denials names: check, batch and so on."""

    __slots__ = ("decided", "looked", "refunded", "was_reset")

    def __init__(self, recorder: Recorder, api: str) -> None:
        self.decided = partial(recorder.ruled, api)  # a keyword would cost every check a dict
        self.looked, self.refunded = recorder.looked, recorder.refunded
        self.was_reset = partial(recorder.was_reset, api=api)


class Decisions:
    """An engine whose decisions are recorded; its verbs are those of the engine. See `AsyncEngine.serving`."""

    def __init__(self, engine: AsyncEngine, recorder: Recorder, api: str = "") -> None:
        recorder.watch(engine)
        self.recorder = recorder
        self._serve(engine.serving(Recording(recorder, api)))

    def _serve(self, engine: AsyncEngine) -> Decisions:
        self.engine, self._in_time = engine, BoundedCache[float, Decisions](_MOST_TIMEOUTS)
        self.check, self.check_together, self.peek = engine.check, engine.check_together, engine.peek
        self.refund, self.reset, self.reset_all = engine.refund, engine.reset, engine.reset_all
        self.use_up, self.undo = engine.use_up, engine.undo
        return self

    def via(self, api: str) -> Decisions:
        """Return the same for another API."""
        return copy(self)._serve(self.engine.serving(Recording(self.recorder, api)))  # noqa: SLF001  of the same class

    def within(self, seconds: float | None) -> Decisions:
        """Return the same for callers that wait no longer than so many seconds for the store; None for the usual."""
        if seconds is None:
            return self
        return copy(self)._serve(self.engine.within(seconds))  # noqa: SLF001  of the same class

    def in_time(self, timeout: float | None) -> Decisions:
        """Return the same for a caller that waits so many seconds, if it says so: the store has three quarters of them.

        It has no less than for Envoy, though: who cannot wait at all must not make the store look as if it were away.
        """
        if timeout is None:
            return self
        found = self._in_time.get(timeout)
        if found is None:
            found = self._in_time.keep(timeout, self.within(max(RLS_SECONDS, timeout * 0.75)))
        return found

"""The only way from the APIs to the engine of rules: what it decides is recorded, with the name of the API."""

from __future__ import annotations

from copy import copy
from functools import partial

from headgate.engine import AsyncEngine
from headgate.observe.recorder import Recorder
from headgate.server.settings import RLS_SECONDS


class Recording:
    """Records what an engine does for one API, which the log of denials names: check, batch and so on."""

    __slots__ = ("decided", "peeked", "refunded", "was_reset")

    def __init__(self, recorder: Recorder, api: str) -> None:
        self.decided = partial(recorder.record_ruling, api)  # a keyword would cost every check a dict
        self.peeked, self.refunded = recorder.record_peek, recorder.record_refund
        self.was_reset = partial(recorder.record_reset, api=api)


class Decisions:
    """An engine whose decisions are recorded; see `AsyncEngine.serving`."""

    def __init__(self, engine: AsyncEngine, recorder: Recorder) -> None:
        recorder.watch(engine)
        self.recorder = recorder
        self.engine = engine.serving(Recording(recorder, ""))

    def via(self, api: str) -> Decisions:
        return self._with(self.engine.serving(Recording(self.recorder, api)))

    def within(self, seconds: float | None) -> Decisions:
        """Return an engine that waits at most this long for the store; None for the usual time."""
        return self if seconds is None else self._with(self.engine.within(seconds))

    def in_time(self, timeout: float | None) -> AsyncEngine:
        """Return the engine for a caller with a timeout in seconds: the store has three quarters of it.

        It has at least the time that it has for Envoy: a caller that cannot wait must not make the store look down.
        """
        return self.engine if timeout is None else self.engine.within(max(RLS_SECONDS, timeout * 0.75))

    def _with(self, engine: AsyncEngine) -> Decisions:
        other = copy(self)
        other.engine = engine
        return other

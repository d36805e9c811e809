"""The one door between the APIs and the engine: every decision is measured and recorded on its way."""

from __future__ import annotations

from time import perf_counter_ns

from headgate.engine import AsyncEngine, Ruling
from headgate.observe.recorder import Recorder
from headgate.policy.request import Request


class Decisions:
    """Decides, and records what was decided.

    Args:
        engine: the rules and the store.
        recorder: what counts and times decisions.

    Everything raises what the engine raises: UsageError and its kind for requests that make no sense.
    """

    def __init__(self, engine: AsyncEngine, recorder: Recorder) -> None:
        self.engine, self._recorder = engine, recorder

    async def check(self, request: Request, idempotency_key: str = "") -> Ruling:
        """Take the cost from all limits that apply if all admit it; with a key, only once in 5 minutes."""
        began = perf_counter_ns()
        if idempotency_key:
            ruling = await self.engine.check_once(request, idempotency_key)
        else:
            ruling = await self.engine.check(request)
        self._recorder.ruled(ruling, request, perf_counter_ns() - began)
        return ruling

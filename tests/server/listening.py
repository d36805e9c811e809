"""A service on real ports, in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headgate.engine import AsyncEngine
from headgate.observe.recorder import Recorder
from headgate.policy.loading import load
from headgate.server import rpc
from headgate.server.admission import AdmissionController
from headgate.server.api.forward_auth import ForwardAuth
from headgate.server.api.routes import application, statuses_of
from headgate.server.decisions import Decisions
from headgate.server.readiness import Readiness
from headgate.server.rls import RateLimitService
from headgate.server.rls import methods as rls_methods
from headgate.server.rls.json_form import JsonForm
from headgate.server.wire.listener import Listener
from headgate.testing import ManualClock
from tests.server.serving import RULES


@dataclass(frozen=True, slots=True)
class Listening:
    http: int
    grpc: int
    engine: AsyncEngine
    readiness: Readiness
    call: Callable[[Callable[[], object]], object]
    """Runs something in the service's thread."""


@contextmanager
def listening(
    rules: str = RULES,
    *,
    clock: ManualClock | None = None,
    controller: AdmissionController | None = None,
    **options: Any,
) -> Iterator[Listening]:
    """Serve HTTP and gRPC, with Envoy's service, until the end of the block; time stands still."""
    ready, stop, started = threading.Event(), asyncio.Event(), list[Listening]()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        engine, recorder = AsyncEngine(load(rules), clock=clock or ManualClock()), Recorder()
        decisions, readiness = Decisions(engine, recorder), Readiness(engine)
        listener = Listener(admit=controller.admission if controller else None)
        admission = controller or AdmissionController()
        methods = rpc.methods(decisions, readiness, admit_more=admission.admit_more)
        envoy = RateLimitService(recorder, decisions=decisions, admit_more=admission.admit_descriptors)
        methods |= rls_methods(envoy)
        others = {b"/json": JsonForm(envoy)}
        handler = application(decisions, readiness, admit_more=admission.admit_more, others=others, **options)
        statuses = statuses_of(options.get("forward_auth", ForwardAuth()).deny_status)
        http, grpc = (socket.create_server(("127.0.0.1", 0), backlog=512) for _ in range(2))
        ports = http.getsockname()[1], grpc.getsockname()[1]
        await listener.serve_http(handler, http, statuses=statuses)
        await listener.serve_grpc(methods, grpc)
        started.append(Listening(*ports, engine, readiness, loop.call_soon_threadsafe))
        ready.set()
        await stop.wait()
        await listener.close()
        await engine.close()
        recorder.close()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())
        ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(60)
        yield started[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)

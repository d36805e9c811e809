"""A decision service without sockets, on a manual clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from headgate.eager import Waiting, begin
from headgate.engine import AsyncEngine
from headgate.observe.recorder import Recorder
from headgate.policy.compiled import Policy
from headgate.policy.loading import load
from headgate.server.api.routes import CHECK, application
from headgate.server.decisions import Decisions
from headgate.server.readiness import Readiness
from headgate.server.wire.messages import Headers, HttpRequest, HttpResponse, Peer, answered
from headgate.testing import ManualClock

T = TypeVar("T")
RULES = """
version: 1
rules:
  - {id: orders-user, dimension: user, endpoint: /orders/**, methods: [POST], limit: 3, window: 1m,
     algorithm: fixed_window}
  - {id: all-ip, dimension: ip, limit: 5, window: 1h, algorithm: fixed_window}
  - {id: rule_001, dimension: user, endpoint: /none, limit: 1000, window: 1h, algorithm: fixed_window}
  - {id: keys, dimension: apikey, endpoint: /search, limit: 10, window: 1m, algorithm: token_bucket}
  - {id: everybody, dimension: global, endpoint: /global, limit: 2, window: 1m, algorithm: fixed_window}
  - {id: queue, dimension: user, endpoint: /queue, limit: 60, window: 1m, algorithm: leaky_bucket, queue: true}
  - {id: trial, dimension: user, endpoint: /trial, limit: 1, window: 1m, shadow: true}
  - {id: "off", dimension: user, limit: 1, window: 1m, enabled: false}
deny: [{ip: 192.0.2.0/24}]
allow: [{user: root}]
"""

LASTING = RULES.replace("window: 1m", "window: 365d").replace("window: 1h", "window: 365d")
"""For real clocks: no window ends during a test."""


def start(
    coroutine: Coroutine[Any, Any, T], done: Callable[[T], object], failed: Callable[[BaseException], object]
) -> None:
    """Run a coroutine as handlers are run, without a task; `done` or `failed` is called when it has ended."""
    errors: list[BaseException] = []

    def end(result: Any) -> None:
        if errors:
            failed(errors[0])
        else:
            done(result)

    result: Any = begin(lambda _: coroutine, None, errors.append)
    if isinstance(result, Waiting):
        result.then(end)
    else:
        end(result)


class Service:
    """All of a node but its ports."""

    def __init__(
        self,
        rules: str = RULES,
        *,
        store: str = "memory",
        failure: str = "local",
        nodes: int | None = None,
        **options: Any,
    ) -> None:
        self.clock = ManualClock()
        self.loop = asyncio.new_event_loop()
        clock = self.clock if store == "memory" else None
        policy = Policy(load(rules), version=1)
        self.engine = AsyncEngine(policy, store=store, clock=clock, on_store_failure=failure, nodes=nodes)
        self.recorder = Recorder()
        self.decisions = Decisions(self.engine, self.recorder)
        self.readiness = Readiness(self.engine)
        self.handler = application(self.decisions, self.readiness, **options)

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine as the wire does: without a task."""

        async def within() -> T:
            done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            start(make(), done.set_result, done.set_exception)
            return await done

        return self.loop.run_until_complete(within())

    def ask(self, request: HttpRequest) -> HttpResponse:
        return self.run(lambda: answered(self.handler, request))

    def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Iterable[tuple[str, str]] = (),
        peer: str | None = "127.0.0.1",
    ) -> HttpResponse:
        path, _, query = path.partition("?")
        lines: Headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
        return self.ask(HttpRequest(method.encode(), path.encode(), query.encode(), lines, body, Peer(peer)))

    def post(self, content: object, path: str = CHECK.decode(), **headers: str) -> HttpResponse:
        """Send content as JSON, or as it is if that is bytes."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.send("POST", path, body, [(name.replace("_", "-"), value) for name, value in headers.items()])

    def check(self, content: object, **headers: str) -> dict[str, Any]:
        response = self.post(content, **headers)
        assert response.status == 200, response.body
        answer: dict[str, Any] = json.loads(response.body)
        return answer

    def close(self) -> None:
        self.loop.run_until_complete(self.engine.close())
        self.recorder.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


def fields(response: HttpResponse) -> Mapping[str, str]:
    names = [name for name, _ in response.headers]
    assert len(set(names)) == len(names), names
    return {name.decode(): value.decode() for name, value in response.headers}


def problem(response: HttpResponse, status: int = 400) -> dict[str, Any]:
    assert response.status == status, response
    assert fields(response)["content-type"] == "application/problem+json"
    found: dict[str, Any] = json.loads(response.body)
    assert found["title"]
    return found


@contextmanager
def serving(*args: Any, **options: Any) -> Iterator[Service]:
    service = Service(*args, **options)
    try:
        yield service
    finally:
        service.close()

"""The service on real stores, called as the wire calls it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headgate.engine import AsyncEngine
from headgate.engine.descriptors import AsyncDescriptorEngine
from headgate.observe.recorder import Recorder
from headgate.policy.envoy import load as load_trees
from headgate.policy.loading import load
from headgate.server.decisions import Decisions
from headgate.server.rls import RateLimitService, methods
from headgate.server.wire.grpc.calls import UnaryCall, answer_of
from tests.server.rls.messages import answered, encoded
from tests.servers import RedisServer

PATH = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


class Asking:
    def __init__(self, store: str) -> None:
        self.store = store
        self.loop = asyncio.new_event_loop()
        self._engines: list[AsyncEngine | AsyncDescriptorEngine] = []
        self._recorders: list[Recorder] = []
        self.service: RateLimitService | None = None

    def serve(self, rules: str = "", tree: str = "", *, engine: dict[str, Any] | None = None, **options: Any) -> None:
        chosen = {"store": self.store, **(engine or {})}
        recorder = Recorder()
        self._recorders.append(recorder)
        decisions = trees = None
        if rules:
            by_rules = AsyncEngine(load(f"version: 1\n{rules}"), **{k: v for k, v in chosen.items() if k in _COMMON})
            self._engines.append(by_rules)
            decisions = Decisions(by_rules, recorder)
        if tree:
            trees = AsyncDescriptorEngine(load_trees({"tree.yaml": tree}), **chosen)
            self._engines.append(trees)
        self.service = RateLimitService(recorder, decisions=decisions, trees=trees, **options)

    def raw(self, message: bytes) -> bytes:
        assert self.service is not None
        unary = methods(self.service).unary[PATH]
        return self.loop.run_until_complete(answer_of(unary, UnaryCall(message)))

    def ask(self, *descriptors: Any, domain: str = "edge", hits_addend: int = 0) -> Any:
        return answered(self.raw(encoded(domain, *descriptors, hits_addend=hits_addend)))

    def codes(self, *descriptors: Any, **options: Any) -> list[int]:
        answer = self.ask(*descriptors, **options)
        return [answer.overall_code, *[status.code for status in answer.statuses]]

    def close(self) -> None:
        for engine in self._engines:
            self.loop.run_until_complete(engine.close())
        for recorder in self._recorders:
            recorder.close()
        self.loop.close()


_COMMON = {"store", "on_store_failure", "nodes", "clock"}


@pytest.fixture(params=["memory", "redis"])
def service(request: pytest.FixtureRequest) -> Iterator[Asking]:
    store = "memory"
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        server.ask("FLUSHALL")
        store = server.address
    asking = Asking(store)
    yield asking
    asking.close()


@pytest.fixture
def in_memory() -> Iterator[Asking]:
    asking = Asking("memory")
    yield asking
    asking.close()

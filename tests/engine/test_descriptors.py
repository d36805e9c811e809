"""Envoy's descriptor trees, decided in memory, on Redis, and without a store."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate import Decision, InvalidRule, InvalidStore, Pressure, Quota, StoreError
from headgate.core.plan import Limit, Verb
from headgate.engine.descriptors import Answered, AsyncDescriptorEngine
from headgate.engine.verbs import use_up_plan
from headgate.policy.envoy import Descriptor, EnvoyAnswer, load
from headgate.testing import ManualClock
from tests.servers import RedisServer, until

TREE = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 5, name: per-user}
  - key: ip
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: tokens
    rate_limit: {unit: day, requests_per_unit: 1000000}
  - key: both
    rate_limits:
      - {unit: hour, requests_per_unit: 5}
      - {unit: day, requests_per_unit: 8}
  - key: banned
    rate_limit: {unit: hour, requests_per_unit: 0}
"""


def user(hits: int | None = None, **more: Any) -> Descriptor:
    return Descriptor((("user", "ada"),), hits, **more)


def ip(hits: int | None = None) -> Descriptor:
    return Descriptor((("ip", "203.0.113.9"),), hits)


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory"
    server: RedisServer = request.getfixturevalue("redis")
    server.ask("FLUSHALL")
    return server.address


async def decided(engine: AsyncDescriptorEngine, *descriptors: Descriptor) -> Answered:
    answered = engine.decide(engine.match("edge", descriptors))
    return answered if isinstance(answered, Answered) else await answered


@asynccontextmanager
async def deciding(**options: Any) -> Any:
    """An engine whose hours and days do not end during a test."""
    async with AsyncDescriptorEngine(load({"edge.yaml": TREE}), clock=ManualClock(), **options) as engine:

        async def ask(*descriptors: Descriptor) -> EnvoyAnswer:
            return (await decided(engine, *descriptors)).answer

        yield ask


def codes(answer: EnvoyAnswer) -> list[tuple[int, int]]:
    return [(status.code.value, status.limit_remaining) for status in answer.statuses]


async def test_hits_are_peeked_at_taken_and_refunded(store: str) -> None:
    async with deciding(store=store) as ask:
        assert codes(await ask(user(3))) == [(1, 2)]
        assert codes(await ask(user(0))) == [(1, 2)]
        assert codes(await ask(user(3))) == [(2, 0)]
        assert codes(await ask(user(0))) == [(1, 2)]
        assert codes(await ask(user(1, refund=True))) == [(1, 3)]
        assert codes(await ask(user(0, refund=True))) == [(1, 3)]
        assert codes(await ask(user(3))) == [(1, 0)]
        assert codes(await ask(user(0))) == [(2, 0)]


async def test_large_hits_are_counted_exactly(store: str) -> None:
    tokens = (("tokens", "ada"),)
    async with deciding(store=store) as ask:
        assert codes(await ask(Descriptor(tokens, 999_999))) == [(1, 1)]
        assert codes(await ask(Descriptor(tokens, 2))) == [(2, 0)]
        assert codes(await ask(Descriptor(tokens, 1))) == [(1, 0)]


async def test_refused_hits_use_up_the_remainder_if_they_count(store: str) -> None:
    async with deciding(store=store, count_refused=True) as ask:
        assert codes(await ask(user(3))) == [(1, 2)]
        assert codes(await ask(user(3))) == [(2, 0)]
        assert codes(await ask(user(0))) == [(2, 0)]
        assert codes(await ask(ip(50))) == [(2, 0)]  # more than the limit could ever admit
        assert codes(await ask(ip(0))) == [(2, 0)]
        both = (("both", "ada"),)
        assert codes(await ask(Descriptor(both, 4))) == [(1, 1)]
        assert codes(await ask(Descriptor(both, 3))) == [(2, 0)]
        assert codes(await ask(Descriptor(both, 0))) == [(2, 0)]
        assert codes(await ask(Descriptor((("ip", "x" * 70_000),), 50))) == [(2, 0)]


def test_the_remainder_is_taken_in_a_few_tries_while_others_take_from_it() -> None:
    """Others are always quicker, until nothing is left or the last try fails."""
    quota = Quota(5, 3_600_000_000)
    plan = (Limit("x|y", "ada", quota),)

    def calls_for(*answers: tuple[bool, int]) -> list[tuple[Verb, int]]:
        flow, calls = use_up_plan(plan, 9), []
        (call,) = next(flow)
        try:
            for allowed, remaining in answers:
                calls.append((call.verb, call.cost))
                (call,) = flow.send([Decision(allowed, 5, remaining, 0, 0, Pressure.NORMAL, quota)])
        except StopIteration:
            return calls
        raise AssertionError(call)

    peek, check = Verb.PEEK, Verb.CHECK
    assert calls_for((True, 4), (False, 2), (True, 2), (True, 0)) == [(peek, 1), (check, 4), (peek, 1), (check, 2)]
    assert calls_for((True, 4), (False, 0), (True, 0)) == [(peek, 1), (check, 4), (peek, 1)]
    assert len(calls_for(*[(True, 4), (False, 4)] * 3)) == 6


async def test_modes_of_the_whole_service() -> None:
    async with deciding(shadow_mode=True) as ask:
        answer = await ask(ip(3))
        assert (answer.code, answer.shadowed) == (1, True)
    async with deciding(quota_mode=True) as ask:
        assert (await ask(ip(3), user())).code == 1
        assert (await ask(ip(3))).code == 2


@pytest.mark.parametrize(("mode", "expected"), [("local", [1, 1, 2]), ("allow", [1, 1, 1]), ("deny", [2, 2, 2])])
async def test_without_a_store_the_mode_decides(mode: str, expected: list[int]) -> None:
    unavailable = "redis://127.0.0.1:1/0?timeout=0.1"
    tree, clock = load({"edge.yaml": TREE}), ManualClock()
    async with AsyncDescriptorEngine(tree, store=unavailable, clock=clock, on_store_failure=mode, nodes=1) as engine:
        answers = [(await decided(engine, ip())).answer for _ in range(3)]
        assert [answer.code.value for answer in answers] == expected
        assert all(answer.degraded for answer in answers)
        statistics = engine.statistics()
        assert statistics is not None
        assert statistics.calls == 3
        assert engine.rules_statistics() is None
        with pytest.raises(StoreError):
            await engine.ready()


async def test_a_folder_is_watched(tmp_path: Path) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text(TREE, encoding="utf-8")
    async with AsyncDescriptorEngine(tmp_path, clock=(clock := ManualClock())) as engine:
        await engine.ready()
        assert engine.statistics() is None
        assert engine.clock is clock
        file.write_text(TREE.replace("edge", "other"), encoding="utf-8")
        await asyncio.to_thread(until, lambda: engine.match("other", [ip()]).known, "the new file is in force")
        assert not engine.match("edge", [ip()]).known
        statistics = engine.rules_statistics()
        assert statistics is not None
        assert statistics.loads == 2


def test_a_folder_without_files_and_an_unknown_mode_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRule):
        AsyncDescriptorEngine(tmp_path)
    with pytest.raises(InvalidStore):
        AsyncDescriptorEngine(load({"edge.yaml": TREE}), on_store_failure="perhaps")

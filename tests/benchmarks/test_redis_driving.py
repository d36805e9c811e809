"""A contender on Redis is timed only if it limits, answers as the case demands, and asks the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.contenders import REDIS_FLOOR, REDIS_OURS, REDIS_PEERS
from benchmarks.contenders.headgate_redis import Degraded, allowed
from benchmarks.contenders.redis_base import Blocking, RedisContender
from benchmarks.on_redis import footprint
from benchmarks.on_redis.cases import ALLOWING, KINDS, REFUSING, Case, Traffic, Way
from benchmarks.on_redis.driving import Alone, WrongAnswer, driver, prove, verify
from benchmarks.on_redis.measuring import measure
from benchmarks.on_redis.servers import Server, redis_server
from benchmarks.scenarios import Kind
from benchmarks.timing import Pace
from headgate import Decision, Limiter

ONCE = Pace(seconds=0, fewest=1, most=1)
CASE = Case(Kind.GCRA, Way.TOGETHER, Traffic.MANY, ALLOWING[:1], 40, 20)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server() as started:
        yield started


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def participants() -> list[tuple[RedisContender, Case]]:
    """Every contender with every algorithm that it has, called in every way that it can be."""
    return [
        (contender, replace(CASE, kind=kind, way=way, limits=ALLOWING[:limits]))
        for contender in (REDIS_OURS, *REDIS_PEERS)
        for kind in KINDS
        for way in (Way.ASYNC, Way.BLOCKING)
        for limits in (1, 3)
        if contender.takes_part(kind) and (contender.blocks or way is Way.ASYNC)
    ]


@pytest.mark.parametrize(("contender", "case"), participants(), ids=lambda value: getattr(value, "name", str(value)))
def test_a_contender_refuses_when_the_limit_is_used_up(
    contender: RedisContender, case: Case, server: Server, runner: asyncio.Runner
) -> None:
    server.forget()
    prove(contender, server.address(), case, runner)


def test_a_contender_that_limits_nothing_is_noticed(server: Server, runner: asyncio.Runner) -> None:
    server.forget()
    with pytest.raises(WrongAnswer, match="does not limit to 3"):
        prove(REDIS_FLOOR, server.address(), CASE, runner)


@pytest.mark.parametrize("way", Way)
def test_an_answer_of_the_other_path_is_noticed(way: Way, server: Server, runner: asyncio.Runner) -> None:
    server.forget()
    case = replace(CASE, way=way, limits=REFUSING[:1])
    driven = driver(REDIS_OURS, server.address(), case, runner)
    _, answers = driven.run(["user:1"] * 5)
    driven.close()
    with pytest.raises(WrongAnswer, match="3 of 5 answers of headgate"):
        verify(REDIS_OURS, driven, case, answers)


def test_a_degraded_decision_is_no_answer() -> None:
    with Limiter("5/day") as limiter:
        sound = limiter.check("user:1")
    degraded = Decision(True, 5, 4, 0, 0, sound.state, sound.quota, degraded="storage_unavailable")
    driven = Alone(Blocking(lambda _: degraded, allowed))
    with pytest.raises(Degraded, match="storage_unavailable"):
        verify(REDIS_OURS, driven, CASE, driven.run(["user:1"])[1])


@pytest.mark.parametrize("traffic", Traffic)
@pytest.mark.parametrize("way", Way)
def test_a_case_measures_floor_ours_and_peers(way: Way, traffic: Traffic, server: Server) -> None:
    limits = REFUSING if traffic is Traffic.REFUSED else ALLOWING
    case = Case(Kind.FIXED_WINDOW, way, traffic, limits[:1], 40, 20, other_floors=True)
    row = measure(case, server, ONCE)
    assert {peer.name for peer in row.peers} == {"limits", "throttled-py", "pyrate-limiter"}
    assert all(cost.time.best > 0 and cost.client_us > 0 for cost in row.costs)
    assert row.other_floors


def test_a_client_has_a_footprint_in_every_library(server: Server) -> None:
    found = list(footprint.measure(server, 5))
    assert {each.contender for each in found} == {"redis-py", "headgate", "limits", "throttled-py", "pyrate-limiter"}
    assert all(each.bytes_per_client > 40 for each in found)

"""Decisions that replicas must have, and the readiness of servers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from headgate import (
    Algorithm,
    AsyncFailoverStore,
    Engine,
    Quota,
    Request,
    StoreUnavailable,
    open_async_store,
    open_store,
)
from headgate.core.key import once_token
from headgate.core.plan import Call, Verb
from headgate.policy.loading import load
from headgate.stores.base import AsyncStore, Store
from headgate.stores.redis import protocol, script
from headgate.stores.redis.script import key_of
from headgate.testing.conformance import family
from tests.clusters import RedisCluster
from tests.proxy import proxy
from tests.servers import RedisServer, redis_server, until
from tests.stores.redis.load import resumed

LUA = Path(script.__file__).with_name("lua")
DEPLOY = Path(__file__).parents[3] / "docs" / "deploy.md"
QUOTA = Quota(5, 3600 * 1_000_000)
DURABLE = Quota(5, 3600 * 1_000_000, replicas=1)
HOUR = 3600 * 1_000_000
COMMANDS = sorted({name for part in LUA.glob("*.lua") for name in re.findall(r"\bcall\('(\w+)'", part.read_text())})
Open = Callable[[str], Store]


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[RedisServer, RedisServer]]:
    with (
        redis_server("repl-diskless-sync-delay 0") as primary,
        redis_server(f"replicaof 127.0.0.1 {primary.port}") as replica,
    ):
        until(lambda: replica.facts("INFO", "replication")["master_link_status"] == "up", "the replica is in step")
        yield primary, replica


@pytest.mark.parametrize(("options", "quota"), [("&replicas=1", QUOTA), ("", DURABLE)], ids=["address", "limit"])
def test_an_answer_that_replicas_have_is_strict(
    pair: tuple[RedisServer, RedisServer], opened: Open, options: str, quota: Quota
) -> None:
    """Whether the address demands them, or the limit."""
    primary, replica = pair
    store, plan = opened(f"{primary.address}{options}"), family(quota).plan("user")
    decisions = [store.run(Call(Verb.CHECK, plan)) for _ in range(6)]
    assert [(decision.allowed, decision.degraded) for decision in decisions] == [(True, "")] * 5 + [(False, "")]
    key = key_of(plan[0].space, plan[0].principal)
    assert replica.ask("GET", key) == primary.ask("GET", key)


def test_an_answer_that_no_replica_has_is_degraded(pair: tuple[RedisServer, RedisServer], opened: Open) -> None:
    primary, replica = pair
    store, plan = opened(hurried(primary, "&replicas=1")), family(QUOTA).plan("user")
    opened(primary.address).run(Call(Verb.CHECK, plan))
    resumed(lambda: store.run(Call(Verb.PEEK, plan)))
    replica.send(signal.SIGSTOP)
    try:
        decision = store.run(Call(Verb.CHECK, plan))
        assert (decision.allowed, decision.remaining, decision.degraded) == (True, 3, "not_replicated")
    finally:
        replica.send(signal.SIGCONT)
    until(
        lambda: store.run(Call(Verb.CHECK, family(QUOTA).plan("user"))).degraded == "", "the replica is in step again"
    )
    assert store.run(Call(Verb.PEEK, plan)).remaining == 3


@pytest.fixture(scope="module")
def sleepy() -> Iterator[RedisServer]:
    """A primary without replicas that, left alone, looks at its clock once a second only."""
    with redis_server("hz 1", "dynamic-hz no") as primary:
        yield primary


def hurried(server: RedisServer, options: str = "") -> str:
    """Return the address for those who wait a second at most, and for replicas half of that."""
    return f"{server.address.replace('timeout=5', 'timeout=1')}{options}"


def test_an_idle_server_is_reminded_so_that_a_short_deadline_holds(sleepy: RedisServer, opened: Open) -> None:
    store, plan = opened(hurried(sleepy, "&replicas=1")), family(Quota(2, HOUR)).plan("user")
    resumed(lambda: store.run(Call(Verb.PEEK, plan)))
    decisions = [store.run(Call(Verb.CHECK, plan)) for _ in range(3)]
    assert [decision.allowed for decision in decisions] == [True, True, False]
    assert {decision.degraded for decision in decisions} == {"not_replicated"}


def test_a_decision_is_returned_at_the_deadline_though_no_replica_has_confirmed_it(
    sleepy: RedisServer, opened: Open
) -> None:
    plan = family(QUOTA).plan("unheard")
    with proxy(sleepy.port) as between:
        store = opened(between.address("timeout=2&connect_timeout=20&replicas=1&connections=1"))
        between.hold_from = b":"  # what WAIT answers
        decisions = [store.run(Call(Verb.CHECK, plan))]
        between.hold_from = b""
        between.open.set()
        decisions.append(store.run(Call(Verb.CHECK, plan)))
    assert [decision.remaining for decision in decisions] == [4, 3], "both were decided, once each"
    assert {decision.degraded for decision in decisions} == {"not_replicated"}


def test_a_connection_that_ends_after_the_decision_does_not_lose_it(sleepy: RedisServer, opened: Open) -> None:
    store, plan = opened(f"{sleepy.address}&replicas=1&connections=1"), family(QUOTA).plan("cut")
    store.run(Call(Verb.PEEK, family(QUOTA).plan("other")))

    def cut() -> None:
        key = key_of(plan[0].space, plan[0].principal)
        until(lambda: sleepy.ask("EXISTS", key), "it is decided")
        sleepy.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    cutting = threading.Thread(target=cut)
    cutting.start()
    decision = store.run(Call(Verb.CHECK, plan))
    cutting.join()
    assert (decision.allowed, decision.remaining, decision.degraded) == (True, 4, "not_replicated")


async def until_ready(store: AsyncStore) -> None:
    """Wait until the store is connected; on a busy machine that takes longer than the callers wait."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await store.ready()
            except StoreUnavailable:
                await asyncio.sleep(0.01)


async def test_a_lost_replica_does_not_open_the_circuit(sleepy: RedisServer) -> None:
    """Nobody is asked instead of a store that decides: a limit that is used up stays so."""
    inner, plan = open_async_store(hurried(sleepy, "&replicas=1")), family(QUOTA).plan("many")
    store = AsyncFailoverStore(inner)
    try:
        await until_ready(inner)
        for _ in range(4):
            decisions = await asyncio.gather(*[store.run(Call(Verb.CHECK, plan)) for _ in range(40)])
            assert {decision.degraded for decision in decisions} == {"not_replicated"}
        assert store.statistics().openings == 0
        assert (await store.run(Call(Verb.PEEK, plan))).remaining == 0
    finally:
        await store.close()


def test_only_callers_whose_limits_demand_it_wait(sleepy: RedisServer, opened: Open) -> None:
    store = opened(hurried(sleepy))
    plan, durable = family(QUOTA).plan("user"), family(DURABLE).plan("user")
    mixed = family(DURABLE, Quota(9, 2 * HOUR)).plan("mixed")
    for each in (plan, durable):  # on connections of their own
        resumed(partial(store.run, Call(Verb.REFUND, each)))
    assert (store.run(Call(Verb.CHECK, plan)).degraded, store.run(Call(Verb.CHECK, durable)).degraded) == (
        "",
        "not_replicated",
    )
    assert store.run(Call(Verb.PEEK, durable)).degraded == "", "it took nothing"
    assert store.run(Call(Verb.REFUND, durable)).degraded == "not_replicated"
    decision = store.run(Call(Verb.CHECK, mixed))
    assert {decision.degraded, *[part.degraded for part in decision.limits]} == {"not_replicated"}
    assert store.run(Call(Verb.CHECK_ONCE, durable, 1, once_token(durable, 1, "request"))).degraded == "not_replicated"
    store.run(Call(Verb.RESET, durable))
    assert store.run(Call(Verb.CHECK, plan)).degraded == ""


def test_a_shard_has_replicas_of_its_own(cluster: RedisCluster, opened: Open) -> None:
    store = opened(cluster.address)
    for number in range(9):
        assert store.run(Call(Verb.CHECK, family(DURABLE).plan(f"user-{number}"))).degraded == ""
    everywhere = tuple([family(DURABLE).plan(f"part-{number}")[0] for number in range(4)])
    assert store.run(Call(Verb.CHECK, everywhere)).degraded == ""


async def test_callers_do_not_wait_behind_those_that_wait_for_replicas(sleepy: RedisServer) -> None:
    store = open_async_store(f"{sleepy.address.replace('timeout=5', 'timeout=60')}&connections=1")
    durable, plan = family(DURABLE).plan("slow"), family(QUOTA).plan("quick")
    try:
        waiting = asyncio.ensure_future(store.run(Call(Verb.CHECK, durable)))
        key = key_of(durable[0].space, durable[0].principal)
        await asyncio.to_thread(until, lambda: sleepy.ask("EXISTS", key), "it is decided")
        assert (await store.run(Call(Verb.CHECK, plan))).remaining == 4
        assert not waiting.done()
        waiting.cancel()
    finally:
        await store.close()


RULES = """
version: 1
rules:
  - {id: billed, endpoint: /billed, limit: 5, window: 1h, replicas: 1}
  - {id: cheap, endpoint: /cheap, limit: 5, window: 1h}
tiers:
  premium: {billed: {limits: [{limit: 7, window: 1h}, {limit: 9, window: 1d}]}}
"""


def test_a_rule_demands_replicas_for_all_tiers(sleepy: RedisServer, pair: tuple[RedisServer, RedisServer]) -> None:
    for address, degraded in ((hurried(sleepy), "not_replicated"), (pair[0].address, "")):
        with Engine(load(RULES), store=address) as engine:
            for tier in ("", "premium"):
                request = Request({"user": f"user-{tier}"}, endpoint="/billed", tier=tier)
                assert engine.check(request).degraded == degraded
            assert engine.check(Request({"user": "user"}, endpoint="/cheap")).degraded == ""


def test_a_user_who_may_not_wait_is_not_ready_once_a_limit_demands_replicas(
    pair: tuple[RedisServer, RedisServer], opened: Open
) -> None:
    store = opened(restricted(pair[0], "impatient"))
    store.ready()
    assert store.run(Call(Verb.CHECK, family(DURABLE).plan("user"))).degraded == "not_replicated"
    with pytest.raises(StoreUnavailable, match=r"lacks a permission.*\+wait for replicas"):
        store.ready()


def test_more_replicas_than_there_are(pair: tuple[RedisServer, RedisServer], opened: Open) -> None:
    primary, _ = pair
    store, plan = opened(hurried(primary, "&replicas=2")), family(QUOTA).plan("user")
    resumed(lambda: store.run(Call(Verb.PEEK, plan)))
    several = family(QUOTA, Quota(3, 60 * 1_000_000)).plan("user")
    assert store.run(Call(Verb.CHECK, plan)).degraded == "not_replicated"
    assert {part.degraded for part in store.run(Call(Verb.CHECK, several)).limits} == {"not_replicated"}


def test_a_store_is_ready_when_its_script_runs(server: RedisServer, opened: Open) -> None:
    store = opened(server.address)
    store.ready()
    server.ask("SCRIPT", "FLUSH")
    store.ready()


def test_a_replica_is_not_ready(pair: tuple[RedisServer, RedisServer], opened: Open) -> None:
    _, replica = pair
    with pytest.raises(StoreUnavailable, match="READONLY"):
        opened(replica.address).ready()


def test_a_server_without_memory_is_not_ready_although_it_answers_ping(opened: Open) -> None:
    with redis_server() as server:
        store = opened(server.address)
        store.ready()
        server.ask("CONFIG", "SET", "maxmemory", "1")
        assert server.ask("PING") == b"PONG"
        with pytest.raises(StoreUnavailable, match="OOM"):
            store.ready()


def test_the_permissions_are_those_of_the_commands_in_the_script() -> None:
    granted = {each.removeprefix("+").upper() for each in protocol.PERMISSIONS.split() if each.startswith("+")}
    assert granted == {*COMMANDS, "EVALSHA", "SCRIPT|LOAD"}
    (line,) = [line for line in DEPLOY.read_text().splitlines() if "ACL SETUSER headgate on" in line]
    words = shlex.split(line)
    assert {*words[words.index(">password") + 1 :]} == {*protocol.PERMISSIONS.split(), "+info"}


def restricted(server: RedisServer, name: str, *rules: str, options: str = "") -> str:
    server.ask("ACL", "SETUSER", name, "reset", "on", ">pw", *protocol.PERMISSIONS.split(), "+info", *rules)
    return server.address.replace("127.0.0.1", f"{name}:pw@127.0.0.1") + options


def test_a_user_without_any_one_command_is_not_ready(server: RedisServer, opened: Open) -> None:
    for command in COMMANDS:
        store = opened(restricted(server, f"no-{command}"))
        store.ready()
        restricted(server, f"no-{command}", f"-{command}")
        with pytest.raises(StoreUnavailable, match=rf"lacks a permission.*\+{command.lower()}\b"):
            store.ready()


def test_a_user_without_info_is_served_but_not_ready(server: RedisServer, opened: Open) -> None:
    store = opened(restricted(server, "blind", "-info"))
    assert store.run(Call(Verb.CHECK, family(Quota(5, HOUR)).plan("user")))
    with pytest.raises(StoreUnavailable, match=r"NOPERM|lacks a permission"):
        store.ready()


def test_a_user_who_may_not_wait_is_not_ready_for_replicas(pair: tuple[RedisServer, RedisServer], opened: Open) -> None:
    primary, _ = pair
    opened(restricted(primary, "waits", "+wait", options="&replicas=1")).ready()
    opened(restricted(primary, "hasty")).ready()
    with pytest.raises(StoreUnavailable, match=r"lacks a permission.*\+wait for replicas"):
        opened(restricted(primary, "hasty", options="&replicas=1")).ready()


def test_a_user_who_may_not_follow_a_moving_slot_is_not_ready(cluster: RedisCluster, opened: Open) -> None:
    for name, rules, ready in (("follows", ["+asking"], True), ("stays", [], False)):
        for node in cluster.primaries:
            restricted(node, name, "+cluster|slots", *rules)
        store = opened(cluster.address.replace("://", f"://{name}:pw@"))
        if ready:
            store.ready()
        else:
            with pytest.raises(StoreUnavailable, match=r"lacks a permission.*\+asking"):
                store.ready()


def test_a_server_that_was_set_to_evict_meanwhile_is_not_ready(opened: Open) -> None:
    with redis_server() as server:
        store, lenient = opened(server.address), opened(f"{server.address}&evicting=allow")
        store.ready()
        server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        with pytest.raises(StoreUnavailable, match=r"allkeys-lru.*evicting=allow"):
            store.ready()
        lenient.ready()
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        store.ready()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("entries", [3, 40], ids=["short", "long"])
def test_a_script_without_a_permission_leaves_nothing_half_done(
    server: RedisServer, command: str, entries: int
) -> None:
    """Whatever is missing, what is not answered is not counted anywhere, and no key is left without a time to live."""
    address = restricted(server, f"half-{command}-{entries}")
    store, full = open_store(address), open_store(server.address)
    log, bucket = Quota(50, HOUR, algorithm=Algorithm.SLIDING_WINDOW_LOG), Quota(60, HOUR)
    plans = [family(log).plan("user"), family(bucket, log).plan("user"), family(log, bucket).plan("user")]
    tokens = [once_token(plan, 1, "request") for plan in plans]
    for plan in plans:
        for _ in range(entries):
            full.run(Call(Verb.CHECK, plan))
    restricted(server, f"half-{command}-{entries}", f"-{command}")
    for plan, token in zip(plans, tokens, strict=True):
        before = [part.remaining for part in full.run(Call(Verb.PEEK, plan)).limits]
        for verb in (Verb.CHECK, Verb.REFUND, Verb.CHECK_ONCE):
            with contextlib.suppress(StoreUnavailable):
                store.run(Call(verb, plan, token=token))
                full.run(Call(Verb.RESET, plan))
                for _ in range(entries):
                    full.run(Call(Verb.CHECK, plan))
            assert [part.remaining for part in full.run(Call(Verb.PEEK, plan)).limits] == before
    assert server.immortal() == []
    store.close()
    full.close()


async def test_a_missing_permission_fails_only_the_calls_that_need_it(server: RedisServer) -> None:
    store = open_async_store(restricted(server, "crowd"))
    log, bucket = family(Quota(9, HOUR, algorithm=Algorithm.SLIDING_WINDOW_LOG)), family(Quota(9, HOUR))
    try:
        await store.ready()
        restricted(server, "crowd", "-getrange")
        plans = [each.plan(f"user-{number}") for number in range(20) for each in (log, bucket)]
        answers = await asyncio.gather(*[store.run(Call(Verb.CHECK, plan)) for plan in plans], return_exceptions=True)
    finally:
        await store.close()
    assert all(isinstance(each, StoreUnavailable) and "+getrange" in str(each) for each in answers[::2])
    assert not any(isinstance(each, BaseException) for each in answers[1::2])


@pytest.mark.parametrize(
    ("options", "scheme", "advice"),
    [
        (("cluster-enabled yes",), "redis://", r"redis\+cluster://"),
        ((), "redis+cluster://", "no server of the cluster"),
    ],
)
def test_the_wrong_kind_of_server_is_refused_with_advice(
    opened: Open, options: tuple[str, ...], scheme: str, advice: str
) -> None:
    with redis_server(*options) as server, pytest.raises(StoreUnavailable, match=advice):
        opened(f"{scheme}127.0.0.1:{server.port}?timeout=5").ready()

"""What others count: shown with the rest, and going on where a predecessor stopped."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from headgate.engine import AsyncEngine
from headgate.live import Live
from headgate.observe.metrics import CIRCUIT_STATE, CONNECTIONS, RULES_REVISION, STORE_CALLS
from headgate.observe.readings import Reading, of_number, of_snapshot
from headgate.observe.recorder import Recorder
from headgate.observe.workers import Slots
from headgate.policy.changing import BodyChange
from headgate.policy.loading import load
from headgate.policy.model import Ruleset
from headgate.policy.request import Request
from headgate.policy.snapshot import Changes, SnapshotSource, SnapshotWriter, Whole
from headgate.server.decisions import Decisions
from tests.clusters import RedisCluster, redis_cluster
from tests.observe.readings import samples, value
from tests.servers import RedisServer, until

RULES = """
version: 1
rules:
  - {id: single, dimension: user, limit: 2, window: 1h}
"""
REQUEST = Request({"user": "ada"}, "/single")


def test_a_counter_goes_on_where_a_predecessor_stopped_and_a_gauge_does_not(tmp_path: Path) -> None:
    for generation in (1, 2, 3):
        recorder = Recorder(Slots(tmp_path), 0)
        recorder.add(of_number(STORE_CALLS, lambda: 10))
        recorder.add(of_number(CONNECTIONS, lambda: 4))
        recorder.publish()
        recorder.publish()
        text = recorder.metrics()[1]
        assert value(text, "headgate_store_calls_total") == generation * 10
        assert value(text, "headgate_connections") == 4
        assert value(text, "headgate_worker_starts_total") == generation
        recorder.close()


def test_a_revision_is_shown_once_it_is_in_force(tmp_path: Path) -> None:
    """Who sees it in the metrics is answered by its rules."""
    writer, source = SnapshotWriter(tmp_path, "somewhere"), SnapshotSource(tmp_path)
    writer.write(Whole(1, {"version": 1, "rules": []}))
    meanwhile = []

    def shown() -> int | tuple[int, ...]:
        return next(each.value for each in read() if each.metric is RULES_REVISION)

    def compiled(rules: Ruleset, version: int) -> Ruleset:
        if version > 1:
            meanwhile.append(shown())
        return rules

    live = Live(source, compiled)
    read = of_snapshot(source, live, counting=False)
    writer.append(Changes(2, (BodyChange("rule", "a", {"quota": "1/s"}),)))
    assert live.refresh()
    assert (meanwhile, shown()) == ([1], 2)


def test_what_two_say_about_the_same_is_merged() -> None:
    recorder = Recorder()
    for calls, state in ((10, 2), (5, 0)):
        readings = Reading(STORE_CALLS, (), calls), Reading(CIRCUIT_STATE, ("",), state)
        recorder.add(lambda readings=readings: readings)  # type: ignore[misc]
    recorder.publish()
    text = recorder.metrics()[1]
    assert value(text, "headgate_store_calls_total") == 15
    assert value(text, "headgate_store_circuit_state", shard="") == 2
    recorder.close()


def test_the_process_is_shown() -> None:
    recorder = Recorder(slot=7)
    recorder.publish()
    text = recorder.metrics()[1]
    assert value(text, "headgate_process_cpu_seconds_total", worker="7") > 0
    assert value(text, "headgate_process_resident_memory_bytes", worker="7") > 1_000_000
    assert value(text, "headgate_process_open_fds", worker="7") >= 3
    assert value(text, "headgate_process_start_time_seconds", worker="7") > 1_700_000_000
    assert value(text, "headgate_workers") == 1
    assert any(name == "headgate_build_info" for name, _ in samples(text))
    recorder.close()


def test_rules_are_shown_with_how_loading_them_went(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)

    def shown(name: str) -> float:
        recorder.refresh()
        return value(recorder.metrics()[1], f"headgate_rules{name}")

    async def main() -> None:
        async with AsyncEngine(path) as engine:
            Decisions(engine, recorder)
            assert (shown(""), shown("_loads_total"), shown("_broken")) == (1, 1, 0)
            path.write_text("rules: 7")
            until(lambda: shown("_broken") == 1, "the broken file to be noticed")
            assert shown("_load_failures_total") >= 1
            assert shown("") == 1
            path.write_text(RULES + "  - {id: more, dimension: ip, limit: 2, window: 1h}\n")
            until(lambda: shown("_loads_total") == 2, "the rules to be loaded")
            assert (shown(""), shown("_broken")) == (2, 0)
            assert shown("_loaded_timestamp_seconds") > 1_700_000_000

    recorder = Recorder()
    asyncio.run(main())
    recorder.close()


async def test_a_store_is_shown_with_its_batches_and_its_outage(own_redis: RedisServer) -> None:
    recorder = Recorder()

    def shown(name: str, **labels: str) -> float:
        recorder.refresh()
        return value(recorder.metrics()[1], f"headgate_store_{name}", **labels)

    def decided_at_once() -> bool:
        recorder.refresh()
        labels = frozenset({("mode", "local"), ("reason", "circuit_open")})
        return ("headgate_store_degraded_total", labels) in samples(recorder.metrics()[1])

    async with AsyncEngine(load(RULES), store=own_redis.address) as engine:
        decisions = Decisions(engine, recorder)
        await asyncio.gather(*[decisions.check(REQUEST) for _ in range(100)])
        assert shown("calls_total") == 100
        assert shown("questions_total") == 100
        assert 1 <= shown("batches_total") < 50
        assert shown("batch_duration_seconds_count") == shown("batches_total")
        assert shown("batch_duration_seconds_sum") > 0
        assert shown("circuit_state", shard="") == 0
        own_redis.stop()
        while not shown("circuit_openings_total"):
            await decisions.check(REQUEST)
        assert shown("circuit_state", shard="") == 2
        await asked_until(decisions, decided_at_once, "nobody waits for it")
        assert value(recorder.metrics()[1], "headgate_rule_degraded_total", rule="single") >= 1
    recorder.close()


def test_a_process_that_can_open_no_more_files_goes_on_counting(tmp_path: Path) -> None:
    program = """
import resource, sys
from headgate.observe.recorder import Recorder
from headgate.observe.workers import Slots
recorder = Recorder(Slots(sys.argv[1]), 0)
recorder.metrics()
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
recorder._hot.denied("orders", "ada", 100)
recorder.publish()
recorder.called("check", "denied", 1000)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
sys.stdout.buffer.write(recorder.metrics()[1])
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, check=True)
    assert value(done.stdout, "headgate_checks_total", api="check", outcome="denied") == 1
    assert value(done.stdout, "headgate_process_open_fds", worker="0") == 0
    assert b"Too many open files" in done.stderr


def test_a_gauge_that_nobody_speaks_of_any_more_is_0() -> None:
    recorder, states = Recorder(), {"a": 2, "b": 2}
    recorder.add(lambda: [Reading(CIRCUIT_STATE, (shard,), state) for shard, state in states.items()])
    recorder.publish()
    del states["a"]
    recorder.publish()
    text = recorder.metrics()[1]
    assert value(text, "headgate_store_circuit_state", shard="a") == 0
    assert value(text, "headgate_store_circuit_state", shard="b") == 2
    recorder.close()


def circuits(recorder: Recorder) -> dict[str, float]:
    """Return the circuits of an engine as they are shown, which is what the alert `HeadgateStoreAway` looks at."""
    recorder.refresh()
    shown = samples(recorder.metrics()[1])
    return {
        dict(labels)["shard"]: number
        for (name, labels), number in shown.items()
        if name == "headgate_store_circuit_state"
    }


async def asked_until(decisions: Decisions, seen: Callable[[], bool], what: str) -> None:
    """Ask about many users, again and again, until something is seen."""
    give_up = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < give_up, what
        await asyncio.gather(*[decisions.check(Request({"user": f"u{each}"}, "/single")) for each in range(50)])
        await asyncio.sleep(0.01)


def test_the_circuit_of_a_server_that_left_its_cluster_is_not_shown_as_open() -> None:
    recorder = Recorder()

    async def main(cluster: RedisCluster) -> None:
        address = cluster.address_with(*cluster.nodes, options="timeout=1&connect_timeout=1")
        async with AsyncEngine(load(RULES), store=address) as engine:
            decisions, gone = Decisions(engine, recorder), cluster.primaries[0]
            shard = f"redis://127.0.0.1:{gone.port}"
            await asked_until(decisions, lambda: len(circuits(recorder)) == 3, "all are asked")
            with cluster.alert():
                gone.stop()
                await asked_until(decisions, lambda: circuits(recorder)[shard] == 2, "its circuit opens")
                await asked_until(decisions, lambda: len(circuits(recorder)) == 4, "its replica takes its place")
            await asked_until(decisions, lambda: set(circuits(recorder).values()) == {0}, "the alert clears")

    with redis_cluster(3, 1) as cluster:
        asyncio.run(main(cluster))
    recorder.close()


def test_the_circuit_of_servers_that_were_not_known_is_not_shown_as_open_when_they_are() -> None:
    """The service was started first, and the cluster came later."""
    recorder = Recorder()

    async def main(cluster: RedisCluster) -> None:
        for node in cluster.nodes:
            node.stop()
        address = cluster.address_with(*cluster.nodes, options="timeout=1&connect_timeout=1")
        async with AsyncEngine(load(RULES), store=address) as engine:
            decisions = Decisions(engine, recorder)
            await asked_until(decisions, lambda: circuits(recorder) == {"": 2}, "nobody is there")
            for node in cluster.nodes:
                node.start()
            await asked_until(decisions, lambda: len(circuits(recorder)) == 4, "all are there")
            await asked_until(decisions, lambda: set(circuits(recorder).values()) == {0}, "the alert clears")

    with redis_cluster(3, 0) as cluster:
        asyncio.run(main(cluster))
    recorder.close()

"""Metrics of other parts of the process: exported with the others, and continued after a predecessor."""

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
from headgate.observe.readings import of_number, of_snapshot
from headgate.observe.recorder import Recorder
from headgate.observe.workers import CounterFiles
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


def test_a_counter_continues_that_of_a_predecessor_and_a_gauge_does_not(tmp_path: Path) -> None:
    for generation in (1, 2, 3):
        recorder = Recorder(CounterFiles(tmp_path), 0)
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
    """The revision in the metrics is the one that decides."""
    writer, source = SnapshotWriter(tmp_path, "somewhere"), SnapshotSource(tmp_path)
    writer.write(Whole(1, {"version": 1, "rules": []}))
    meanwhile = []

    def shown() -> int | tuple[int, ...]:
        return next(value for metric, _, value in read() if metric is RULES_REVISION)

    def compiled(rules: Ruleset, version: int) -> Ruleset:
        if version > 1:
            meanwhile.append(shown())
        return rules

    live = Live(source, compiled)
    read = of_snapshot(source, live, counting=False)
    writer.append(Changes(2, (BodyChange("rule", "a", {"quota": "1/s"}),)))
    assert live.refresh()
    assert (meanwhile, shown()) == ([1], 2)


def test_readings_of_the_same_series_are_merged() -> None:
    recorder = Recorder()
    for calls, state in ((10, 2), (5, 0)):
        readings = (STORE_CALLS, (), calls), (CIRCUIT_STATE, ("",), state)
        recorder.add(lambda readings=readings: readings)  # type: ignore[misc]
    recorder.publish()
    text = recorder.metrics()[1]
    assert value(text, "headgate_store_calls_total") == 15
    assert value(text, "headgate_store_circuit_state", shard="") == 2
    recorder.close()


def test_the_process_is_shown() -> None:
    recorder = Recorder(worker=7)
    recorder.publish()
    text = recorder.metrics()[1]
    assert value(text, "headgate_process_cpu_seconds_total", worker="7") > 0
    assert value(text, "headgate_process_resident_memory_bytes", worker="7") > 1_000_000
    assert value(text, "headgate_process_open_fds", worker="7") >= 3
    assert value(text, "headgate_process_start_time_seconds", worker="7") > 1_700_000_000
    assert value(text, "headgate_workers") == 1
    assert any(name == "headgate_build_info" for name, _ in samples(text))
    recorder.close()


def test_rules_and_their_loading_are_shown(tmp_path: Path) -> None:
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

    def is_degraded() -> bool:
        recorder.refresh()
        labels = frozenset({("mode", "local"), ("reason", "circuit_open")})
        return ("headgate_store_degraded_total", labels) in samples(recorder.metrics()[1])

    async with AsyncEngine(load(RULES), store=own_redis.address) as engine:
        decisions = Decisions(engine, recorder)
        await asyncio.gather(*[decisions.engine.check(REQUEST) for _ in range(100)])
        assert shown("calls_total") == 100
        assert shown("questions_total") == 100
        assert 1 <= shown("batches_total") < 50
        assert shown("batch_duration_seconds_count") == shown("batches_total")
        assert shown("batch_duration_seconds_sum") > 0
        assert shown("circuit_state", shard="") == 0
        own_redis.stop()
        while not shown("circuit_openings_total"):
            await decisions.engine.check(REQUEST)
        assert shown("circuit_state", shard="") == 2
        await check_until(decisions, is_degraded, "the circuit decides")
        assert value(recorder.metrics()[1], "headgate_rule_degraded_total", rule="single") >= 1
    recorder.close()


def test_a_process_without_free_file_descriptors_continues_to_count(tmp_path: Path) -> None:
    program = """
import resource, sys
from headgate.observe.recorder import Recorder
from headgate.observe.workers import CounterFiles
recorder = Recorder(CounterFiles(sys.argv[1]), 0)
recorder.metrics()
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
recorder._hot.add_denial("orders", "ada", 100)
recorder.publish()
recorder.record_call("check", "denied", 1000)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
sys.stdout.buffer.write(recorder.metrics()[1])
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, check=True)
    assert value(done.stdout, "headgate_checks_total", api="check", outcome="denied") == 1
    assert value(done.stdout, "headgate_process_open_fds", worker="0") == 0
    assert b"Too many open files" in done.stderr


def test_a_gauge_without_a_reading_becomes_0() -> None:
    recorder, states = Recorder(), {"a": 2, "b": 2}
    recorder.add(lambda: [(CIRCUIT_STATE, (shard,), state) for shard, state in states.items()])
    recorder.publish()
    del states["a"]
    recorder.publish()
    text = recorder.metrics()[1]
    assert value(text, "headgate_store_circuit_state", shard="a") == 0
    assert value(text, "headgate_store_circuit_state", shard="b") == 2
    recorder.close()


def circuits(recorder: Recorder) -> dict[str, float]:
    """Return the circuits in the metrics, as in the expression of the alert `HeadgateStoreAway`."""
    recorder.refresh()
    shown = samples(recorder.metrics()[1]).items()
    return {dict(labels)["shard"]: state for (name, labels), state in shown if name == "headgate_store_circuit_state"}


async def check_until(decisions: Decisions, seen: Callable[[], bool], what: str) -> None:
    """Check many users repeatedly until something is seen."""
    give_up = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < give_up, what
        await asyncio.gather(*[decisions.engine.check(Request({"user": f"u{each}"}, "/single")) for each in range(50)])
        await asyncio.sleep(0.01)


def test_the_circuit_of_a_removed_cluster_node_is_not_open() -> None:
    recorder = Recorder()

    async def main(cluster: RedisCluster) -> None:
        address = cluster.address_with(*cluster.nodes, options="timeout=1&connect_timeout=1")
        async with AsyncEngine(load(RULES), store=address) as engine:
            decisions, gone = Decisions(engine, recorder), cluster.primaries[0]
            shard = f"redis://127.0.0.1:{gone.port}"
            await check_until(decisions, lambda: len(circuits(recorder)) == 3, "all nodes are called")
            with cluster.alert():
                gone.stop()
                await check_until(decisions, lambda: circuits(recorder)[shard] == 2, "its circuit opens")
                await check_until(decisions, lambda: len(circuits(recorder)) == 4, "its replica takes its place")
            await check_until(decisions, lambda: set(circuits(recorder).values()) == {0}, "the alert clears")

    with redis_cluster(3, 1) as cluster:
        asyncio.run(main(cluster))
    recorder.close()


def test_the_circuit_of_an_undiscovered_cluster_closes_after_discovery() -> None:
    """The service starts before the cluster."""
    recorder = Recorder()

    async def main(cluster: RedisCluster) -> None:
        for node in cluster.nodes:
            node.stop()
        address = cluster.address_with(*cluster.nodes, options="timeout=1&connect_timeout=1")
        async with AsyncEngine(load(RULES), store=address) as engine:
            decisions = Decisions(engine, recorder)
            await check_until(decisions, lambda: circuits(recorder) == {"": 2}, "no node is reachable")
            for node in cluster.nodes:
                node.start()
            await check_until(decisions, lambda: len(circuits(recorder)) == 4, "all nodes are called")
            await check_until(decisions, lambda: set(circuits(recorder).values()) == {0}, "the alert clears")

    with redis_cluster(3, 0) as cluster:
        asyncio.run(main(cluster))
    recorder.close()

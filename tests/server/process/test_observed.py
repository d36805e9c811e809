"""Metrics, hot keys and traces of a running service: of all workers together, exact even when one is killed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.observe.collector import collecting
from tests.observe.readings import samples, value
from tests.server.process.service import SECONDS, Clients, Service, service
from tests.servers import RedisServer, until

RULES = """
version: 1
rules:
  - {id: whole, dimension: user, limit: 100, window: 1d, algorithm: fixed_window}
"""


@pytest.fixture(scope="module")
def found(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    rules = tmp_path_factory.mktemp("observed") / "rules.yaml"
    rules.write_text(RULES)
    with service("--workers", "2", "--store", redis.address, "--rules", str(rules)) as found:
        yield found.started()


def metrics(found: Service) -> bytes:
    status, text = found.get("/metrics")
    assert status == 200
    return text


def checks(found: Service) -> int:
    text = metrics(found)
    outcomes = ("allowed", "denied")
    return int(sum(value(text, "headgate_checks_total", api="check", outcome=outcome) for outcome in outcomes))


def test_workers_count_each_other_before_the_first_request(found: Service) -> None:
    until(lambda: value(metrics(found), "headgate_nodes") == 2, "both are counted", SECONDS)
    until(lambda: msgspec.json.decode(found.get("/readyz")[1])["nodes"] == 2, "and shown", SECONDS)


def test_gauges_are_shown_too(found: Service) -> None:
    with Clients(found.http_port, ["ada", "bob"]) as clients:
        clients.until_answered(10)
    questions = "headgate_store_questions_total"
    until(lambda: value(metrics(found), questions) >= clients.answered, "all questions to Redis", SECONDS)
    text = metrics(found)
    assert value(text, "headgate_rules") == 1
    assert value(text, "headgate_store_circuit_state", shard="") == 0
    assert value(text, "headgate_connections") >= 1
    for worker in ("0", "1"):
        assert value(text, "headgate_process_resident_memory_bytes", worker=worker) > 1_000_000


def test_hot_keys_of_all_workers_are_shown_without_their_names_and_some_refusals_logged(found: Service) -> None:
    """Any worker shows those of the others as they were a second ago."""

    def report() -> dict[str, Any]:
        status, body = found.get("/hotkeys")
        assert status == 200
        read: dict[str, Any] = msgspec.json.decode(body)
        return read

    def all_show_it() -> bool:
        reports = [report() for _ in range(10)]  # on connections of their own: of both workers
        return all(each["workers"] == 2 and each["hot"] and each["denied"] for each in reports)

    with Clients(found.http_port, ["ada"] * 4) as clients:
        clients.until_answered(200)
        until(lambda: "denials not logged" in found.complained, "some are left out", SECONDS)
    until(all_show_it, "hot keys", SECONDS)
    for key in report()["denied"]:
        assert (key["rule"], key["key"][0]) == ("whole", "#")
    lines = [line for line in found.complained.splitlines() if " denied " in line]
    pattern = r"\S+Z INFO headgate.denials denied rule=whole principal=#[0-9a-f]{16} retry_after=[0-9.]+ api=check"
    assert all(re.fullmatch(rf"{pattern} worker=[01]", line) for line in lines)
    assert 0 < len(lines) < sum(not answer["allowed"] for client in clients.all for answer in client.answers)


def test_every_answer_is_counted_whichever_worker_gave_it_and_however_that_ended(found: Service) -> None:
    before, counted_before = found.workers(), checks(found)
    with Clients(found.http_port, ["ada", "bob"] * 4) as clients:
        clients.until_answered(20)
        os.kill(min(before), signal.SIGKILL)
        clients.until_answered(20)
        until(lambda: len(found.workers()) == 2 and found.workers() != before, "another takes its place", SECONDS)
        clients.until_answered(20)
    counted = checks(found)
    answered = counted - counted_before - clients.answered
    assert 0 <= answered <= len(clients.failures)  # those were decided, perhaps, and not answered
    assert {checks(found) for _ in range(10)} == {counted}
    text = metrics(found)
    decided = sum(number for (name, _), number in samples(text).items() if name == "headgate_rule_decisions_total")
    assert counted <= decided <= counted + len(clients.failures)
    until(lambda: value(metrics(found), "headgate_workers") == 2, "two workers live", SECONDS)
    until(lambda: value(metrics(found), "headgate_worker_starts_total") == 3, "three were started", SECONDS)


def test_calls_have_spans_where_that_is_wanted() -> None:
    with collecting() as collector:
        where = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address}
        with service("--tracing", "on", environment=where) as found:
            trace = "4bf92f3577b34da6a3ce929d0e0e4736"
            found.started().check("ada", traceparent=f"00-{trace}-00f067aa0ba902b7-01")
            found.signal(signal.SIGTERM)
            assert found.ended() == 0
        (span,) = [span for span in collector.spans() if span.name == "POST /api/v1/rate-limit/check"]
        assert span.trace_id.hex() == trace

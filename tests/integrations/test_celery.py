"""Celery, with a real worker and broker: tasks above a limit are sent again for their turn, and none is lost."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging

from headgate import InvalidQuota, LimitExceeded, UsageError
from headgate.integrations.celery import TaskLimits
from headgate.integrations.functions import CallRefused
from headgate.testing import ManualClock
from tests.servers import RedisServer, redis_server, until

setup_logging.connect(lambda **_: None, weak=False)  # a worker leaves logging alone, as other tests want it
RUN: list[float] = []
"""When the task `queued` ran, by a monotonic clock."""


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def app(redis: RedisServer) -> Iterator[Celery]:
    app = Celery("tests", broker="memory://", backend="cache+memory://")
    app.conf.update(worker_hijack_root_logger=False, broker_transport_options={"polling_interval": 0.01})
    limits = TaskLimits(store=redis.address)

    @app.task(name="queued")  # type: ignore[untyped-decorator]
    @limits.limit("5/s leaky_bucket queue")
    def queued(text: str) -> str:
        RUN.append(time.monotonic())
        return text

    @app.task(name="keyless")  # type: ignore[untyped-decorator]
    @limits.limit("5/s", key=lambda user: user)
    def keyless(user: str | None) -> None: ...

    @app.task(name="retried", bind=True, max_retries=1, default_retry_delay=0)  # type: ignore[untyped-decorator]
    @limits.limit("100/s", key=lambda task, text: text)
    def retried(task: Any, text: str) -> str:
        if not task.request.retries:
            raise task.retry()
        return f"{text} {task.request.retries}"

    with start_worker(app, concurrency=2, pool="threads", perform_ping_check=False, loglevel="error"):
        yield app
    app.close()


def are_in_turn(times: list[float], began: float, interval: float = 0.2) -> bool:
    """Whether each ran no earlier than its turn since all were sent; clocks may differ a little."""
    return all(at - began > (turn - 0.5) * interval for turn, at in enumerate(sorted(times)))


def test_a_queue_gives_each_task_a_time_of_its_own(app: Celery) -> None:
    began = time.monotonic()
    results = [app.tasks["queued"].delay("text") for _ in range(4)]
    assert [result.get(timeout=60) for result in results] == ["text"] * 4
    assert are_in_turn(RUN, began)


def test_a_task_keeps_its_own_retries(app: Celery) -> None:
    assert app.tasks["retried"].delay("again").get(timeout=60) == "again 1"


def test_a_task_without_a_key_fails_rather_than_running_unlimited(app: Celery) -> None:
    result = app.tasks["keyless"].delay(None)
    with pytest.raises(CallRefused, match="does not identify its caller"):
        result.get(timeout=60)
    until(lambda: result.state == "FAILURE", "it has failed")


def test_every_task_of_a_separate_worker_runs_and_none_before_its_turn(redis: RedisServer) -> None:
    address = f"redis://127.0.0.1:{redis.port}"
    worker = [sys.executable, "-m", "celery", "-A", "tests.integrations.tasks", "worker", "--pool", "threads"]
    worker += ["-c", "2", "--without-gossip", "--without-mingle"]
    environment = {**os.environ, "HEADGATE_TEST_REDIS": address}
    with (
        subprocess.Popen(worker, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process,
        Celery("far", broker=f"{address}/1", backend=f"{address}/1") as far,
    ):
        try:
            began = time.monotonic()
            results = [far.send_task("send-far", ("ada",)) for _ in range(4)]
            ran = [result.get(timeout=120) for result in results]
        finally:
            process.terminate()
        del results
        gc.collect()  # later, they would call Redis, which is down by then
    assert [user for user, _ in ran] == ["ada"] * 4
    assert are_in_turn([at for _, at in ran], began)


def test_called_as_a_function_or_eagerly_it_raises() -> None:
    limits = TaskLimits(limits="9/minute")
    app = Celery("eager")
    app.conf.task_always_eager = True

    @app.task(name="eager")  # type: ignore[untyped-decorator]
    @limits.limit("1/minute")
    def send() -> str:
        return "sent"

    assert send() == "sent"
    with pytest.raises(LimitExceeded):
        send()
    with pytest.raises(LimitExceeded):
        send.delay().get()
    app.close()


def test_limits_of_a_task_are_decided_together() -> None:
    clock = ManualClock()
    limits = TaskLimits(clock=clock)

    @limits.limit("3/hour", name="hourly")
    @limits.limit("1/minute", name="each-minute")
    def send() -> str:
        return "sent"

    for _ in range(3):
        assert send() == "sent"
        for _ in range(5):  # which takes nothing of the other limit
            with pytest.raises(LimitExceeded):
                send()
        clock.advance(60)


def test_called_as_a_function_it_waits_for_its_place_in_a_queue() -> None:
    @TaskLimits().limit("100/s leaky_bucket queue", name="queued")
    def queued() -> float:
        return time.monotonic()

    began = time.monotonic()
    assert are_in_turn([queued() for _ in range(3)], began, 0.01)


def test_mistakes_are_errors_where_they_are_written() -> None:
    limits = TaskLimits()
    with pytest.raises(InvalidQuota, match="minuet"):
        limits.limit("5/minuet")
    with pytest.raises(UsageError, match="no response"):
        limits.limit("5/minute", count_when=bool)

    def above() -> None: ...

    with pytest.raises(UsageError, match="use one TaskLimits"):
        TaskLimits().limit("5/minute")(limits.limit("5/minute")(above))

    app = Celery(set_as_current=False)
    with pytest.raises(UsageError, match="below the decorator of Celery"):
        limits.limit("5/minute")(app.task(above))
    app.close()

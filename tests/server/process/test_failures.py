"""Workers, or the store, are killed under load: no client hangs, and nothing is admitted twice."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
import pytest

from headgate.protos import message_class
from headgate.server.private_folder import PrivateFolder
from headgate.server.rls import SHOULD_RATE_LIMIT
from tests.observe.readings import value
from tests.proxy import proxy
from tests.server.process.service import SECONDS, Clients, Service, altered, service, written
from tests.server.rls.messages import answered, headers
from tests.server.rls.messages import encoded as envoy_request
from tests.servers import RedisServer, fetched, until

LIMIT = 500
RULES = f"""
version: 1
rules:
  - {{id: whole, dimension: user, limit: {LIMIT}, window: 365d, algorithm: fixed_window}}
"""


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("failures") / "rules.yaml"
    file.write_text(RULES)
    return file


@pytest.fixture(scope="module")
def running(redis: RedisServer, rules: Path) -> Iterator[Service]:
    with service("--workers", "2", "--store", redis.address, "--rules", str(rules)) as found:
        (folder,) = counters_of(found.started())
        yield found
        found.signal(signal.SIGTERM)
        assert found.ended() == 0
        assert not folder.exists()
        assert "Traceback" not in found.complained


@pytest.fixture
def found(running: Service, redis: RedisServer) -> Iterator[Service]:
    redis.ask("FLUSHALL")
    running.forget_complaints()
    yield running
    until(lambda: value(running.get("/metrics")[1], "headgate_workers") == 2, "two workers", SECONDS)


def admitted(clients: Clients) -> int:
    return sum(answer["allowed"] for client in clients.all for answer in client.answers)


def kill_one(found: Service) -> set[int]:
    workers = found.workers()
    os.kill(min(workers), signal.SIGKILL)
    return workers


def until_replaced(found: Service, workers: set[int]) -> None:
    until(lambda: len(found.workers()) == 2 and found.workers() != workers, "another takes its place", SECONDS)


def test_a_worker_that_is_killed_is_replaced_and_admits_nothing_twice(found: Service) -> None:
    with Clients(found.http_port, ["everybody"] * 16) as clients:
        clients.until_answered(5)
        workers = kill_one(found)
        clients.until_answered(50)
        until_replaced(found, workers)
        clients.until_answered(20)
    lost = [client for client in clients.all if client.failures]
    assert len(lost) < len(clients.all), "some connections were the other worker's"
    assert all(len(client.failures) == 1 for client in lost), "a connection is lost once"
    assert admitted(clients) <= LIMIT
    assert not any(answer["degraded"] for client in clients.all for answer in client.answers)
    assert "was killed by SIGKILL: replacing it" in found.complained


def test_connections_that_a_worker_had_not_accepted_wait_for_the_one_in_its_place(found: Service) -> None:
    os.kill(min(found.workers()), signal.SIGSTOP)
    with Clients(found.http_port, [f"u{number}" for number in range(16)]) as clients:
        until(lambda: any(client.answers for client in clients.all), "the other one answers", SECONDS)
        kill_one(found)
        clients.until_answered(5)
    assert clients.failures == []


def test_while_a_worker_cannot_start_the_others_get_all_connections(found: Service, rules: Path) -> None:
    """The others keep their rules; a new worker would have none."""
    for text in ("version: 1\nrules: [{id: x}]\n", "this is not a file of rules"):
        found.forget_complaints()
        written(rules, text)
        until(lambda: found.complained.count("the previous rules stay in force") == 2, "both log it", SECONDS)
        kill_one(found)
        until(lambda: " cannot start: " in found.complained, "it cannot be replaced", SECONDS)
        assert all(found.check("u1")["limit"] == LIMIT for _ in range(30))
        written(rules, RULES)
        until(lambda: value(found.get("/metrics")[1], "headgate_workers") == 2, "both", SECONDS)
        assert all(found.check("u1")["limit"] == LIMIT for _ in range(30))


def test_a_worker_that_cannot_be_replaced_now_is_tried_again_and_the_others_serve(found: Service) -> None:
    """There may be too many processes, or too many open files, for a while."""
    limits = resource.prlimit(found.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(found.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    workers = kill_one(found)
    until(lambda: "cannot start: [Errno 24]" in found.complained, "it cannot be replaced", SECONDS)
    assert found.workers() == {max(workers)}
    resource.prlimit(found.process.pid, resource.RLIMIT_NOFILE, limits)
    until_replaced(found, workers)


def test_while_redis_is_down_all_requests_are_decided_and_afterwards_strictly_again(
    found: Service, redis: RedisServer
) -> None:
    with Clients(found.http_port, [f"u{number}" for number in range(6)]) as clients:
        clients.until_answered(10)
        redis.stop()
        until(lambda: all(client.answers[-1]["degraded"] for client in clients.all), "all are degraded", SECONDS)
        clients.until_answered(20)
        redis.start()
        until(lambda: not any(client.answers[-1]["degraded"] for client in clients.all), "it is back", SECONDS)
    assert clients.failures == []
    for client in clients.all:
        count = sum(answer["allowed"] for answer in client.answers)
        assert count <= 3 * LIMIT + 2, "the store before, the share of each worker, and the store anew"


def test_a_worker_replaced_while_redis_is_down_adds_only_its_share(found: Service, redis: RedisServer) -> None:
    """The local usage of its predecessor is lost, as documented."""
    redis.stop()

    def alone() -> int:
        with Clients(found.http_port, ["everybody"] * 8) as clients:
            until(
                lambda: all(client.answers and not client.answers[-1]["allowed"] for client in clients.all),
                "it is used up",
            )
        assert all(answer["degraded"] for client in clients.all for answer in client.answers)
        return admitted(clients)

    count = alone()
    assert count <= LIMIT, "the shares of two workers"
    until_replaced(found, kill_one(found))
    assert count + alone() <= LIMIT + LIMIT // 2
    redis.start()
    until(lambda: not any(found.check("u1")["degraded"] for _ in range(20)), "the store decides", SECONDS)


def test_workers_are_replaced_although_the_folder_of_their_counters_was_removed(found: Service) -> None:
    (folder,) = counters_of(found)
    shutil.rmtree(folder)
    workers = kill_one(found)
    removed = f"{folder}, the folder of the workers' counters, was removed"
    until(lambda: folder.exists() and removed in found.complained, "it is logged")
    until(lambda: any(folder.glob("*.metrics")), "the one in its place counts", SECONDS)
    until(lambda: found.get("/metrics")[0] == 200, "it serves", SECONDS)
    with PrivateFolder(folder.parent):  # of another process, which removes folders that nobody has locked
        assert folder.exists()
    os.kill(max(workers), signal.SIGKILL)  # the other, which has counted nowhere since


def test_a_worker_that_hangs_is_replaced_and_all_end_when_their_supervisor_is_killed(
    redis: RedisServer, rules: Path
) -> None:
    """It would keep its share of all connections waiting. The supervisor of this test has little patience."""
    program = altered({"headgate.server.supervisor.PATIENCE": 5.0})
    with service("--workers", "2", "--store", redis.address, "--rules", str(rules), program=program) as found:
        hung = min(found.started().workers())
        os.kill(hung, signal.SIGSTOP)
        until(lambda: hung not in found.workers() and len(found.workers()) == 2, "it is replaced", SECONDS)
        assert f"process {hung} has sent no heartbeat for 5 s: killing it" in found.complained
        assert found.check("hanging")["allowed"]
        workers = found.workers()
        found.process.kill()
        until(lambda: not any(_lives(worker) for worker in workers), "they end", SECONDS)


def test_a_worker_killed_before_it_serves_is_reported(redis: RedisServer) -> None:
    program = altered({"headgate.server.supervisor._COMMAND": (sys.executable, "-c", "import time; time.sleep(600)")})
    with service("--workers", "2", "--store", redis.address, program=program) as found:
        until(found.workers, "there is one", SECONDS)
        worker = min(found.workers())
        os.kill(worker, signal.SIGKILL)
        assert found.ended() == 1
        assert f"cannot start: its process {worker} was killed by SIGKILL before it served" in found.complained


def test_a_worker_stopped_before_it_serves_is_replaced(redis: RedisServer, tmp_path: Path) -> None:
    source = f"""
import os, sys
try:
    os.mkdir({str(tmp_path / "told")!r})  # by the first worker alone: it ends in order, as after SIGTERM
except FileExistsError:
    os.execv(sys.executable, (sys.executable, "-m", "headgate.server.worker"))
"""
    program = altered({"headgate.server.supervisor._COMMAND": (sys.executable, "-c", source)})
    with service("--workers", "2", "--store", redis.address, program=program) as found:
        assert len(found.started().workers()) == 2
        assert "ended with exit code 0: replacing it" in found.complained


@pytest.mark.parametrize("fault", ["killed", "hung"])
def test_a_service_starts_while_redis_is_down_and_is_strict_when_it_recovers(
    own_redis: RedisServer, rules: Path, fault: str
) -> None:
    def fail(*, fails: bool) -> None:
        if fault == "hung":
            own_redis.send(signal.SIGSTOP if fails else signal.SIGCONT)
        elif fails:
            own_redis.stop()
        else:
            own_redis.start()

    fail(fails=True)
    with service("--store", f"redis://127.0.0.1:{own_redis.port}/0", "--rules", str(rules)) as found:
        answer = found.started().check("u1")
        assert (answer["allowed"], answer["degraded"]) == (True, True)
        assert "the store is unavailable, so requests are decided without it until it recovers" in found.complained
        fail(fails=False)
        until(lambda: not found.check("u1")["degraded"], "the store decides", SECONDS)
        with Clients(found.http_port, [f"h{number}" for number in range(4)]) as clients:
            clients.until_answered(10)
            fail(fails=True)
            until(lambda: all(client.answers[-1]["degraded"] for client in clients.all), "all are degraded", SECONDS)
            clients.until_answered(20)
            fail(fails=False)
            until(lambda: not any(client.answers[-1]["degraded"] for client in clients.all), "it is back", SECONDS)
        assert clients.failures == []


def over_http(found: Service) -> bool:
    return bool(found.check("u1")["degraded"])


def by_forward_auth(found: Service) -> bool:
    reply = fetched(found.http_port, "/api/v1/forward-auth", x_original_uri="/", x_original_method="GET")
    return reply.headers.get("x-ratelimit-degraded") == "true"


def over_grpc(found: Service, timeout: float | None = None) -> bool:
    question = message_class("headgate.v1.CheckRequest")(identifier="u1", dimension="USER", endpoint="/")
    raw = _called(found, "/headgate.v1.RateLimiter/CheckRateLimit", question.SerializeToString(), timeout)
    return bool(message_class("headgate.v1.CheckResponse").FromString(raw).degraded)


def for_envoy(found: Service) -> bool:
    raw = _called(found, SHOULD_RATE_LIMIT.decode(), envoy_request("edge", [("user", "u1")]), None)
    return headers(answered(raw)).get("X-RateLimit-Degraded") == "true"


def _called(found: Service, method: str, raw: bytes, timeout: float | None) -> bytes:
    with grpc.insecure_channel(f"127.0.0.1:{found.grpc_port}") as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
        return call(raw, timeout=timeout)


Asks = Callable[[Service], bool]
PATIENT = partial(over_grpc, timeout=120)


@pytest.mark.parametrize(
    ("stretched", "hurried", "patient"),
    [
        ("API_SECONDS", [for_envoy], [over_http, by_forward_auth, over_grpc]),
        ("RLS_SECONDS", [over_http, by_forward_auth, over_grpc], [for_envoy, PATIENT]),
    ],
    ids=["Envoy waits less", "others wait less"],
)
def test_each_caller_waits_for_the_store_as_long_as_its_api_does(
    redis: RedisServer, tmp_path: Path, stretched: str, hurried: list[Asks], patient: list[Asks]
) -> None:
    """The store's answers are held. One of the deadlines is a minute in this service; the other one is as it is."""
    program = altered(
        {
            f"headgate.server.settings.{stretched}": 60.0,
            "headgate.server.settings.STORE_SECONDS": 60.0,
            "headgate.engine.base.LONGEST_MS": 60_000,
        }
    )
    rules = tmp_path / "rules.yaml"
    rules.write_text("{version: 1, rules: [{id: u, quota: 9999/h}, {id: a, quota: 9999/h, dimension: ip}]}")
    with (
        proxy(redis.port) as between,
        service("--store", between.address("connections=2"), "--rules", str(rules), program=program) as found,
        ThreadPoolExecutor(len(patient)) as pool,
    ):
        found.started()
        until(lambda: not any(ask(found) for ask in (*hurried, *patient)), "the store decides", SECONDS)
        between.open.clear()
        waiting = [pool.submit(ask, found) for ask in patient]
        assert all(ask(found) for ask in hurried), "by the mode, for the deadline is over"
        assert not any(each.done() for each in waiting)
        between.open.set()
        assert not any(each.result(SECONDS) for each in waiting), "by the store"


def counters_of(found: Service) -> set[Path]:
    """The folders of the workers' counters."""
    return {path.parent for path in opened_by(min(found.workers())) if path.name.endswith(".metrics")}


def opened_by(pid: int) -> Iterator[Path]:
    """The files that a process has open."""
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield each.readlink()
        except OSError:  # closed meanwhile
            continue


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False

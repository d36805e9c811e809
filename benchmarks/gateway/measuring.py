"""Measures gateways in turn: requests go through a real Envoy, and the processor time of each program is read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

import msgspec

from benchmarks.gateway.cases import USERS, Case, cases, envoy, file, path
from benchmarks.on_redis.servers import START_SECONDS, Server, free_port, redis_server
from benchmarks.service import servers
from benchmarks.service.load import PATIENCE, LoadError, read_h2load, require
from benchmarks.service.requests import WrongResult
from benchmarks.service.servers import Command, Cores, Setup, processes, running, used_ns
from benchmarks.timing import Figure, Pace, alternate
from headgate.gateway.envoy import program
from headgate.gateway.loading import load_gateway

PROGRAMS = ("h2load", "nginx", "redis-server")
CONNECTIONS = 32
_REMAINING = "x-ratelimit-remaining"


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured."""

    seconds: float
    """Of load per round."""
    pace: Pace
    redis: bool = True
    """Whether those on Redis are measured."""


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a case; times are nanoseconds per request."""

    case: Case
    time: Figure
    envoy: Figure
    """Processor time of Envoy."""
    decides: Figure
    """Processor time of what decides, all its processes."""
    store_us: float
    """Processor time of Redis, in microseconds per request."""

    @property
    def per_second(self) -> float:
        return 1e9 / self.time.best

    @property
    def cpu(self) -> Figure:
        """Processor time of Envoy and of what decides."""
        both = zip(self.envoy.rounds, self.decides.rounds, strict=True)
        return Figure(tuple(envoy + decides for envoy, decides in both))


@dataclass(frozen=True, slots=True)
class GatewayResults:
    """All that was measured."""

    rows: dict[str, Row]
    """By the names of their cases."""
    versions: dict[str, str]


@dataclass(slots=True)
class Subject:
    """A gateway that runs."""

    case: Case
    port: int
    envoy: int
    """The process of Envoy."""
    decides: Callable[[], int]
    """Returns the nanoseconds that what decides has used."""
    cores: Cores
    store: Server | None = None
    rate: float = 500.0
    """Requests per second, as found so far."""
    envoy_ns: list[float] = field(default_factory=list)
    decides_ns: list[float] = field(default_factory=list)
    store_us: float = 0.0
    requests: int = 0

    def prepare(self) -> None:
        """Wait until it responds, and verify that it counts."""
        give_up = monotonic() + START_SECONDS
        while True:
            try:
                left = self._left()
            except (OSError, HTTPException, WrongResult):
                if monotonic() > give_up:
                    raise
                sleep(0.02)
            else:
                break
        if left is not None and self._left() != left - 1:
            raise WrongResult(f"{self.case.what}: a request is not counted")

    def round(self, seconds: float) -> float:
        """Send requests for about `seconds`; return nanoseconds per request. Raises WrongResult, LoadError."""
        requests = max(2 * CONNECTIONS, int(self.rate * seconds))
        left = self._left()
        before = used_ns(self.envoy), self.decides(), self._stored_us()
        took = self._loaded(requests)
        after = used_ns(self.envoy), self.decides(), self._stored_us()
        if left is not None and left - (self._left() or 0) <= requests // USERS:
            raise WrongResult(f"{self.case.what}: of {requests} requests, too few are counted")
        self.envoy_ns.append((after[0] - before[0]) / requests)
        self.decides_ns.append((after[1] - before[1]) / requests)
        self.store_us += after[2] - before[2]
        self.requests += requests
        self.rate = requests / took
        return 1e9 * took / requests

    def row(self, time: Figure) -> Row:
        """Return what was found over all rounds."""
        store_us = self.store_us / self.requests
        return Row(self.case, time, Figure(tuple(self.envoy_ns)), Figure(tuple(self.decides_ns)), store_us)

    def forget(self) -> None:
        """Begin anew: what was found was to warm it up."""
        self.envoy_ns, self.decides_ns, self.store_us, self.requests = [], [], 0.0, 0

    def _left(self) -> int | None:
        """Send a request for user 0, and return the remainder; None without a limit. Raises WrongResult."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            connection.request("GET", path(0))
            answer = connection.getresponse()
            answer.read()
        if answer.status != HTTPStatus.OK:
            raise WrongResult(f"{self.case.what}: {answer.status}")
        remaining = answer.headers.get(_REMAINING)
        if (remaining is None) is (self.case.is_command or self.case.decides is not None):
            raise WrongResult(f"{self.case.what}: {_REMAINING} is {remaining}")
        return None if remaining is None else int(remaining)

    def _loaded(self, requests: int) -> float:
        """Send requests of users in turn by h2load; return seconds."""
        with TemporaryDirectory(prefix="headgate-bench-") as folder:
            addresses = Path(folder) / "addresses"
            addresses.write_text("".join(f"http://127.0.0.1:{self.port}{path(number)}\n" for number in range(USERS)))
            words = ["taskset", "-c", ",".join(map(str, self.cores.others)), "h2load", "--h1", "-t1"]
            words += [f"-c{CONNECTIONS}", f"-n{requests}", "-i", str(addresses)]
            ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)  # noqa: S603  ours
        if ended.returncode:
            raise LoadError(f"h2load ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        return read_h2load(ended.stdout).seconds

    def _stored_us(self) -> float:
        return self.store.cpu_us() if self.store else 0.0


def chosen(amount: Amount) -> list[Case]:
    """Return the requested cases whose programs are installed."""
    return [case for case in cases() if case.is_here and (amount.redis or not case.redis)]


def run(amount: Amount, done: Callable[[str], None]) -> GatewayResults:
    """Measure everything; `done` reports each case. Raises LoadError if a program is missing."""
    require(PROGRAMS)
    cores, wanted = Cores.split(), chosen(amount)
    elsewhere = Cores(cores.others, cores.others)
    with ExitStack() as stack:
        store = None
        if any(case.redis for case in wanted):
            store = stack.enter_context(redis_server())
            servers.pin(int(store.control.info("server")["process_id"]), cores.others)
        upstream = stack.enter_context(servers.started(Setup("nginx"), elsewhere)).http_port
        subjects = {
            case.name: stack.enter_context(_started(case, cores, upstream, store, number))
            for number, case in enumerate(wanted)
        }
        for subject in subjects.values():
            subject.prepare()
            subject.round(amount.seconds / 2)
            subject.forget()
        times = alternate({name: _turn(subject, amount.seconds) for name, subject in subjects.items()}, amount.pace)
        rows = {name: subject.row(times[name]) for name, subject in subjects.items()}
    for row in rows.values():
        costs = f"Envoy {row.envoy.best / 1000:.0f} us, decisions {row.decides.best / 1000:.0f} us"
        done(f"{row.case.what}: {row.per_second:,.0f}/s, {costs}")
    return GatewayResults(rows, {"Envoy": _version()})


@contextmanager
def _started(case: Case, cores: Cores, upstream: int, store: Server | None, database: int) -> Iterator[Subject]:
    """Start a gateway, and the service that it calls, for a with block."""
    port = free_port()
    kept = store if case.redis else None
    address = kept.address(database) if kept else ""
    with TemporaryDirectory(prefix="headgate-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        served = stack.enter_context(servers.started(case.decides, cores, address)) if case.decides else None
        settings = folder / "gateway.yaml"
        settings.write_bytes(
            msgspec.json.encode(file(case, port, upstream, served.grpc_port if served else 0, address))
        )
        if case.is_command:
            command = [sys.executable, "-m", "headgate.cli", "gateway", str(settings)]
            process = stack.enter_context(running(Command(command, (port,)), cores, folder / "log"))
            (found,) = [each for each in processes(process) if _is_envoy(each)]
            yield Subject(case, port, found, lambda: used_ns(process) - used_ns(found), cores, kept)
            return
        configuration = folder / "envoy.json"
        configuration.write_bytes(msgspec.json.encode(envoy(load_gateway(settings), name, limited=served is not None)))
        command = [
            program(),
            "-c",
            str(configuration),
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "--log-level",
            "error",
        ]
        process = stack.enter_context(running(Command(command, (port,)), cores, folder / "log"))
        yield Subject(case, port, process, served.used_ns if served else lambda: 0, cores, kept)


def _is_envoy(process: int) -> bool:
    return Path(f"/proc/{process}/cmdline").read_bytes().startswith(f"{program()}\0".encode())


def _turn(subject: Subject, seconds: float) -> Callable[[int], float]:
    return lambda _: subject.round(seconds)


def _version() -> str:
    """Return the version of Envoy: ``envoy  version: HASH/1.38.3/Clean/RELEASE/BoringSSL``."""
    ended = subprocess.run([program(), "--version"], capture_output=True, text=True, check=True)  # noqa: S603  ours
    return ended.stdout.strip().rpartition(" ")[2].split("/")[1]

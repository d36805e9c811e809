"""Measures servers in turn: sends requests, verifies the responses, and reads the processor time."""

from __future__ import annotations

import re
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from time import perf_counter_ns
from typing import Any

import grpc
import msgspec

from benchmarks.on_redis.servers import Server, ServerError, redis_server
from benchmarks.service import servers
from benchmarks.service.figures import Cost, Costs
from benchmarks.service.load import Load, Loader, LoadError, require
from benchmarks.service.requests import CHECK, USERS, Wire, WrongResult, check, filled, rules, user, weights
from benchmarks.service.rows import OURS, Row, all_rows
from benchmarks.service.servers import PROGRAMS, Cores, Served, Setup
from benchmarks.timing import Figure, Pace, alternate, time_calls
from headgate.engine import Engine
from headgate.observe.recorder import Recorder
from headgate.policy.loading import load
from headgate.policy.request import Request

PATIENCE = 60.0
"""Timeout of a response, in seconds."""
PROMPT = ("http", "grpc", "rls", "rls_redis")
RUNS = 3
"""Runs of latencies; the run with the median p99 counts."""
LONGER = 5
"""Length of each run, in rounds: within one second, a pause of 10 ms would be the whole p99."""
OBSERVED = 2000
"""Checks per round of what observing costs."""
DATABASES = 64
"""Databases of Redis: one for each server."""
FIRST_SHARE = 0.5
"""The least share of the expected requests of user 0, since users are drawn at random."""
_JSON = {"content-type": "application/json"}
OTHER = "other "
"""The prefix of rows of the Headgate of another environment."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured."""

    seconds: float
    """The load of a round; wrk takes whole seconds, at least one."""
    pace: Pace
    users: int = USERS
    warm_up: bool = True
    """Whether a load of the same length precedes each round, and all of them."""
    rows: str = ""
    """A regular expression for the ids of rows to measure. Empty: all."""
    prompt: tuple[str, ...] = PROMPT
    """The rows whose latencies are measured, if they are among those."""
    other: str = ""
    """The interpreter of another environment, whose Headgate is measured beside this one."""


@dataclass(frozen=True, slots=True)
class ServiceResults:
    """All that was measured of servers."""

    costs: Costs
    observing: Figure
    """Nanoseconds that metrics, hot keys and logs of denials add to a check."""
    cores: Cores
    versions: dict[str, str]
    missing: tuple[str, ...] = ()
    """Peers that are not installed."""
    failed: tuple[str, ...] = ()
    """Ids of peers' rows that failed: the service does not start, or has other results."""


@dataclass(slots=True)
class Subject:
    """A server that is measured with one kind of request."""

    name: str
    row: Row
    served: Served
    cores: Cores
    users: int = USERS
    store: Server | None = None
    rate: float = 2000.0
    """Requests per second, so far."""
    cpu: list[float] = field(default_factory=list)
    store_us: float = 0.0
    requests: int = 0

    @property
    def loader(self) -> Loader:
        port = self.served.http_port if self.row.request.wire is Wire.HTTP else self.served.grpc_port
        return Loader(self.row.request, port, self.users, self.cores.others, tls=self.served.tls)

    def prepare(self, seconds: float) -> None:
        """Use up all limits if the row refuses, verify the result, and warm up."""
        if not self.row.allows:
            self._use_up()
        self.verify()
        if seconds:
            self.rate = _rate(self._loaded(seconds))
            self.verify()

    def round(self, seconds: float, *, warm_up: bool = False) -> float:
        """Load the server for `seconds`, after a warm-up of the same length; return nanoseconds per request."""
        if warm_up:
            self._loaded(seconds)
        before, stored = self.served.used_ns(), self._stored_us()
        load = self._loaded(seconds)
        self.cpu.append((self.served.used_ns() - before) / load.requests)
        self.store_us += self._stored_us() - stored
        self.requests += load.requests
        self.rate = _rate(load)
        return 1e9 * load.seconds / load.requests

    def verify(self) -> None:
        """Raise WrongResult unless user 0 gets the result of the row."""
        kind, body = self.row.request, self.row.request.body_of(0)
        answer = post(self.served, kind.path, body) if kind.wire is Wire.HTTP else self._send_grpc(body)
        if kind.is_allowed(answer) is not self.row.allows:
            raise WrongResult(f"{self.name} ({self.row.what}) does not answer so: {answer!r}")

    def cost(self, time: Figure) -> Cost:
        """Return the result of all rounds."""
        return Cost(self.name, self.row.what, Figure(tuple(self.cpu)), time, self.store_us / self.requests)

    def _use_up(self) -> None:
        self.loader.send_all(20_000)

    def _loaded(self, seconds: float) -> Load:
        left = self._left()
        load = self.loader.flat_out(seconds, self.rate)
        if load.refused is not None and load.refused != (0 if self.row.allows else load.requests):
            wrong = f"{load.refused} of {load.requests} requests were refused"
            raise WrongResult(f"{self.name} ({self.row.what}): {wrong}")
        if self.row.counts:
            taken, expected = left - self._left(), int(load.requests * FIRST_SHARE / weights(self.users)[-1])
            if taken < expected:
                raise WrongResult(
                    f"{self.name} ({self.row.what}) answered at least {expected} checks of a user, but took {taken}"
                )
        return load

    def _left(self) -> int:
        """Return the remainder of user 0; takes nothing."""
        if not self.row.counts:
            return 0
        answer = post(self.served, CHECK, filled(check("user", cost=0), 0))
        left: int = msgspec.json.decode(answer)["remaining"]
        return left

    def _stored_us(self) -> float:
        return self.store.cpu_us() if self.store else 0.0

    def _send_grpc(self, body: bytes) -> bytes:
        with grpc.insecure_channel(f"127.0.0.1:{self.served.grpc_port}") as channel:
            call: Callable[..., bytes] = channel.unary_unary(self.row.request.path)
            return call(body, timeout=PATIENCE)


def chosen(amount: Amount) -> dict[str, Row]:
    """Return the requested rows whose programs are installed. Raises LoadError if there are none."""
    found = {
        name: row
        for name, row in all_rows().items()
        if (not amount.rows or re.fullmatch(amount.rows, name)) and row.setup.is_here
    }
    if not found:
        raise LoadError(
            f"no row that can be measured here is called {amount.rows!r}: the rows are: {', '.join(all_rows())}"
        )
    return found


def steps(amount: Amount) -> int:
    """Return the number of reported steps."""
    rows = chosen(amount)
    others = sum(row.is_ours for row in rows.values()) if amount.other else 0
    return 2 * (len(rows) + others) + sum(name in rows for name in amount.prompt) + 1


def run(amount: Amount, done: Callable[[str], None]) -> ServiceResults:
    """Measure everything; `done` reports each step.

    Raises LoadError if a program is missing, with the command that installs it.
    """
    require()
    with ExitStack() as stack:
        store = stack.enter_context(_pinned_redis(Cores.split()))
        subjects = _subjects(stack, chosen(amount), amount, store, done)
        found = measure(subjects, amount, done)
    for name in amount.prompt:
        if name in found:
            found[name] = _with_latency(found[name], name, amount, done)
            done(summary_of(found[name]))
    versions = {name: servers.version(name) for name in ("nginx", "wrk", "h2load")}
    observed = observing(amount.pace)
    done(f"observing: {observed.best / 1000:.2f} us")
    missing = tuple(program for program in PROGRAMS if not Setup(program).is_here)
    failed = tuple(name for name in chosen(amount) if name not in found)
    return ServiceResults(Costs(found), observed, Cores.split(), versions, missing, failed)


def measure(subjects: Mapping[str, Subject], amount: Amount, done: Callable[[str], None]) -> dict[str, Cost]:
    """Measure all in turn; peers with unexpected results are omitted."""
    able: dict[str, Subject] = {}
    for name, subject in subjects.items():
        try:
            subject.prepare(amount.seconds if amount.warm_up else 0)
        except (WrongResult, LoadError) as error:
            if subject.row.setup.program not in PROGRAMS:
                raise
            done(f"{name}: left out: {error}")
        else:
            able[name] = subject
            done(f"{name}: answers rightly, about {subject.rate:,.0f}/s")
    times = alternate({name: _turn(subject, amount) for name, subject in able.items()}, amount.pace)
    costs = {name: subject.cost(times[name]) for name, subject in able.items()}
    for cost in costs.values():
        done(summary_of(cost))
    return costs


def summary_of(cost: Cost) -> str:
    """Return the result in a line."""
    late = "" if cost.latency is None else f", p99 {cost.latency.p99:.1f} ms at {cost.latency.rate:,.0f}/s"
    return f"{cost.label}: {cost.cpu_us:.1f} us of processor time, {cost.per_second:,.0f}/s{late}"


def observing(pace: Pace) -> Figure:
    """Return the nanoseconds that observing one check takes: the recorder alone, called as in the service."""
    recorder = Recorder()
    try:
        with Engine(load(rules("user"))) as engine:
            request = Request({"user": user(0)}, "/api/v1/orders", "POST")
            ruling = engine.check(request)

            def observe(request: Request) -> None:
                began = perf_counter_ns()
                deciding = perf_counter_ns()
                recorder.record_ruling("check", ruling, request, perf_counter_ns() - deciding)
                recorder.record_call("check", "allowed", perf_counter_ns() - began)

            requests = [request] * OBSERVED
            return alternate({"observing": lambda _: time_calls(observe, requests)}, pace)["observing"]
    finally:
        recorder.close()


def _subjects(
    stack: ExitStack, rows: Mapping[str, Row], amount: Amount, store: Server, done: Callable[[str], None]
) -> dict[str, Subject]:
    """Start a server for each setup; peers that do not start are omitted."""
    running: dict[tuple[Setup, str], Served] = {}
    databases = iter(range(DATABASES))

    def subject(row: Row, python: str, name: str) -> Subject:
        cores = Cores.split(row.setup.workers)
        if (row.setup, python) not in running:
            address = store.address(next(databases)) if row.setup.redis else ""
            server = servers.started(row.setup, cores, address, python)
            running[row.setup, python] = stack.enter_context(server)
        kept = store if row.setup.redis else None
        return Subject(name, row, running[row.setup, python], cores, min(row.users, amount.users), kept)

    found = {}
    for name, row in rows.items():
        try:
            found[name] = subject(row, sys.executable, row.setup.program)
        except ServerError as error:
            if row.setup.program not in PROGRAMS:
                raise
            done(f"{name}: left out: {error}")
        if row.is_ours and amount.other:
            found[OTHER + name] = subject(row, amount.other, f"other {OURS}")
    return found


def _turn(subject: Subject, amount: Amount) -> Callable[[int], float]:
    return lambda _: subject.round(amount.seconds, warm_up=amount.warm_up)


def _with_latency(cost: Cost, name: str, amount: Amount, done: Callable[[str], None]) -> Cost:
    """Measure a server at half of its highest rate, alone: idle servers would wake up every second on its core."""
    highest, seconds = 1e9 / cost.time.best, LONGER * amount.seconds
    with ExitStack() as stack:
        store = stack.enter_context(_pinned_redis(Cores.split()))
        subject = _subjects(stack, {name: all_rows()[name]}, replace(amount, other=""), store, done)[name]
        subject.rate = highest  # warm up with the same number of users as in the measurement
        subject.prepare(amount.seconds)
        found = []
        for _ in range(RUNS):
            before = subject.served.waited_ns()
            late = subject.loader.at_rate(highest / 2, seconds)
            found.append(replace(late, waited=(subject.served.waited_ns() - before) / 1e6 / seconds))
    typical = sorted(found, key=lambda each: each.p99)[len(found) // 2]
    return Cost(cost.name, cost.what, cost.cpu, cost.time, cost.store_us, typical)


def _rate(load: Load) -> float:
    return load.requests / load.seconds


@contextmanager
def _pinned_redis(cores: Cores) -> Iterator[Server]:
    with redis_server("--databases", str(DATABASES)) as server:
        servers.pin(int(server.control.info("server")["process_id"]), cores.others)
        yield server


def post(served: Served, path: str, body: bytes) -> bytes:
    """Send a request over HTTP, and return the body of the response."""
    with closing(_connection(served)) as connection:
        connection.request("POST", path, body, _JSON)
        answer = connection.getresponse()
        data = answer.read()
    if answer.status != HTTPStatus.OK:
        raise WrongResult(f"{path}: {answer.status} {data!r}")
    return data


def _connection(served: Served) -> HTTPConnection:
    kind: type[HTTPConnection] = HTTPSConnection if served.tls else HTTPConnection
    options: dict[str, Any] = {"context": _unverified()} if served.tls else {}
    return kind("127.0.0.1", served.http_port, timeout=PATIENCE, **options)


def _unverified() -> ssl.SSLContext:
    """Return a context without verification: the server has a new self-signed certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context

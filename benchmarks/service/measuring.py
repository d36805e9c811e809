"""Measures servers in turn: each is asked, its answers are looked at, and its processor time is read."""

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
from benchmarks.service.asking import CHECK, USERS, Wire, WrongAnswer, check, filled, rules, user, weights
from benchmarks.service.figures import Cost, Costs
from benchmarks.service.load import Load, Loader, LoadError, require
from benchmarks.service.rows import OURS, Row, all_rows
from benchmarks.service.servers import PROGRAMS, Cores, Served, Setup
from benchmarks.timing import Figure, Pace, alternate, time_calls
from headgate.engine import Engine
from headgate.observe.recorder import Recorder
from headgate.policy.loading import load
from headgate.policy.request import Request

PATIENCE = 60.0
"""Seconds for one answer."""
PROMPT = ("http", "grpc", "rls", "rls_redis")
"""The rows whose latencies are measured."""
RUNS = 3
"""How often latencies are measured; the run with the median p99 counts."""
LONGER = 5
"""So many times as long as a round each of them takes: in one second, 10 ms that others take are all of a p99."""
OBSERVED = 2000
"""Checks per round of what observing costs."""
DATABASES = 64
"""Of Redis: each server has one of its own."""
FIRST_SHARE = 0.5
"""So much of what user 0 is expected to ask is asked at least, whoever is drawn."""
_JSON = {"content-type": "application/json"}
OTHER = "other "
"""What the id of a row begins with that is asked of the Headgate of another environment."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured."""

    seconds: float
    """Of load per round; wrk takes whole seconds, and at least one."""
    pace: Pace
    users: int = USERS
    warm_up: bool = True
    """Whether as long a load comes before each round as the round takes, and one more before all of them."""
    rows: str = ""
    """A regular expression; rows whose whole id it matches are measured. Empty: all."""
    latency: bool = True
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
    """Services of others that are not on the path."""
    failed: tuple[str, ...] = ()
    """Ids of rows of others that could not be measured: the service does not start, or answers otherwise."""


@dataclass(slots=True)
class Subject:
    """A server that is measured, asked in one way."""

    name: str
    row: Row
    served: Served
    cores: Cores
    users: int = USERS
    store: Server | None = None
    rate: float = 2000.0
    """Requests per second, as found so far."""
    cpu: list[float] = field(default_factory=list)
    store_us: float = 0.0
    requests: int = 0

    @property
    def loader(self) -> Loader:
        port = self.served.http_port if self.row.question.wire is Wire.HTTP else self.served.grpc_port
        return Loader(self.row.question, port, self.users, self.cores.others, tls=self.served.tls)

    def prepare(self, seconds: float) -> None:
        """Use up what everybody has, if they are to be refused, see that it answers rightly, and warm it up."""
        if not self.row.allows:
            self._use_up()
        self.verify()
        if seconds:
            self.rate = _rate(self._loaded(seconds))
            self.verify()

    def round(self, seconds: float, *, warm_up: bool = False) -> float:
        """Ask for so many seconds, and before for as many that do not count; returns nanoseconds per request."""
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
        """Raise WrongAnswer unless user 0 gets the answer that the row is about."""
        question, body = self.row.question, self.row.question.body_of(0)
        answer = post(self.served, question.path, body) if question.wire is Wire.HTTP else self._ask_grpc(body)
        if question.is_allowed(answer) is not self.row.allows:
            raise WrongAnswer(f"{self.name} ({self.row.what}) does not answer so: {answer!r}")

    def cost(self, time: Figure) -> Cost:
        """Return what was found over all rounds."""
        return Cost(self.name, self.row.what, Figure(tuple(self.cpu)), time, self.store_us / self.requests)

    def _use_up(self) -> None:
        self.loader.ask_all(20_000)

    def _loaded(self, seconds: float) -> Load:
        left = self._left()
        load = self.loader.flat_out(seconds, self.rate)
        if load.refused is not None and load.refused != (0 if self.row.allows else load.requests):
            wrong = f"{load.refused} of {load.requests} requests were refused"
            raise WrongAnswer(f"{self.name} ({self.row.what}): {wrong}")
        if self.row.counts:
            taken, expected = left - self._left(), int(load.requests * FIRST_SHARE / weights(self.users)[-1])
            if taken < expected:
                raise WrongAnswer(
                    f"{self.name} ({self.row.what}) answered at least {expected} checks of a user, but took {taken}"
                )
        return load

    def _left(self) -> int:
        """Ask how much user 0 has left; takes nothing."""
        if not self.row.counts:
            return 0
        answer = post(self.served, CHECK, filled(check("user", cost=0), 0))
        left: int = msgspec.json.decode(answer)["remaining"]
        return left

    def _stored_us(self) -> float:
        return self.store.cpu_us() if self.store else 0.0

    def _ask_grpc(self, body: bytes) -> bytes:
        with grpc.insecure_channel(f"127.0.0.1:{self.served.grpc_port}") as channel:
            call: Callable[..., bytes] = channel.unary_unary(self.row.question.path)
            return call(body, timeout=PATIENCE)


def chosen(amount: Amount) -> dict[str, Row]:
    """Return the rows that are asked for and whose programs are here. Raises LoadError if none is."""
    found = {
        name: row
        for name, row in all_rows().items()
        if (not amount.rows or re.fullmatch(amount.rows, name)) and row.setup.is_here
    }
    if not found:
        raise LoadError(
            f"no row that can be measured here is called {amount.rows!r}: there are {', '.join(all_rows())}"
        )
    return found


def steps(amount: Amount) -> int:
    """Return how many steps there are to report."""
    rows = chosen(amount)
    others = sum(row.is_ours for row in rows.values()) if amount.other else 0
    prompt = sum(name in rows for name in PROMPT) if amount.latency else 0
    return 2 * (len(rows) + others) + prompt + 1


def run(amount: Amount, done: Callable[[str], None]) -> ServiceResults:
    """Measure everything; `done` is told of each step.

    Raises LoadError if a program is missing, with the words that install it.
    """
    require()
    with ExitStack() as stack:
        store = stack.enter_context(_pinned_redis(Cores.split()))
        subjects = _subjects(stack, chosen(amount), amount, store, done)
        found = measure(subjects, amount, done)
    for name in PROMPT if amount.latency else ():
        if name in found:
            found[name] = _with_latency(found[name], name, amount, done)
            done(told(found[name]))
    versions = {name: servers.version(name) for name in ("nginx", "wrk", "h2load")}
    observed = observing(amount.pace)
    done(f"observing: {observed.best / 1000:.2f} us")
    missing = tuple(program for program in PROGRAMS if not Setup(program).is_here)
    failed = tuple(name for name in chosen(amount) if name not in found)
    return ServiceResults(Costs(found), observed, Cores.split(), versions, missing, failed)


def measure(subjects: Mapping[str, Subject], amount: Amount, done: Callable[[str], None]) -> dict[str, Cost]:
    """Let all take turns; a service of others that does not answer as its row says is left out."""
    able: dict[str, Subject] = {}
    for name, subject in subjects.items():
        try:
            subject.prepare(amount.seconds if amount.warm_up else 0)
        except (WrongAnswer, LoadError) as error:
            if subject.row.setup.program not in PROGRAMS:
                raise
            done(f"{name}: left out: {error}")
        else:
            able[name] = subject
            done(f"{name}: answers rightly, about {subject.rate:,.0f}/s")
    times = alternate({name: _turn(subject, amount) for name, subject in able.items()}, amount.pace)
    costs = {name: subject.cost(times[name]) for name, subject in able.items()}
    for cost in costs.values():
        done(told(cost))
    return costs


def told(cost: Cost) -> str:
    """Say in a line what came out."""
    late = "" if cost.latency is None else f", p99 {cost.latency.p99:.1f} ms at {cost.latency.rate:,.0f}/s"
    return f"{cost.label}: {cost.cpu_us:.1f} us of processor time, {cost.per_second:,.0f}/s{late}"


def observing(pace: Pace) -> Figure:
    """Return the nanoseconds that observing one check takes: the recorder alone, called as the service calls it."""
    recorder = Recorder()
    try:
        with Engine(load(rules("user"))) as engine:
            request = Request({"user": user(0)}, "/api/v1/orders", "POST")
            ruling = engine.check(request)

            def observe(request: Request) -> None:
                began = perf_counter_ns()
                deciding = perf_counter_ns()
                recorder.ruled("check", ruling, request, perf_counter_ns() - deciding)
                recorder.called("check", "allowed", perf_counter_ns() - began)

            requests = [request] * OBSERVED
            return alternate({"observing": lambda _: time_calls(observe, requests)}, pace)["observing"]
    finally:
        recorder.close()


def _subjects(
    stack: ExitStack, rows: Mapping[str, Row], amount: Amount, store: Server, done: Callable[[str], None]
) -> dict[str, Subject]:
    """Start a server for each setup, and say how it is asked; those of others that do not start are left out."""
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
    """Ask a server at half of its highest rate. It is alone: idle ones wake up with every second, all on its core."""
    highest, seconds = 1e9 / cost.time.best, LONGER * amount.seconds
    with ExitStack() as stack:
        store = stack.enter_context(_pinned_redis(Cores.split()))
        subject = _subjects(stack, {name: all_rows()[name]}, replace(amount, other=""), store, done)[name]
        subject.rate = highest  # so that it is warmed up by as many users as will ask
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
    """Ask once over HTTP, and return the body of the answer."""
    with closing(_connection(served)) as connection:
        connection.request("POST", path, body, _JSON)
        answer = connection.getresponse()
        data = answer.read()
    if answer.status != HTTPStatus.OK:
        raise WrongAnswer(f"{path}: {answer.status} {data!r}")
    return data


def _connection(served: Served) -> HTTPConnection:
    kind: type[HTTPConnection] = HTTPSConnection if served.tls else HTTPConnection
    options: dict[str, Any] = {"context": _unverified()} if served.tls else {}
    return kind("127.0.0.1", served.http_port, timeout=PATIENCE, **options)


def _unverified() -> ssl.SSLContext:
    """Return what trusts anybody: the server is ours, and its certificate was made a moment ago."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context

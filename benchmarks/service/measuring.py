"""Measures servers in turn: each is asked, its answers are looked at, and its processor time is read."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from typing import Any

import grpc
import msgspec

from benchmarks.on_redis.servers import Server
from benchmarks.service.asking import HTTP_CHECK, USERS, Question, Wire, check_body, user
from benchmarks.service.figures import Cost
from benchmarks.service.load import Load, Loader
from benchmarks.service.servers import Cores, Served
from benchmarks.timing import Figure, Pace, alternate

PATIENCE = 10.0
"""Seconds for one answer."""
RUNS = 5
"""How often latencies are measured; the run with the median p99 counts."""


class WrongAnswer(AssertionError):
    """A server did not answer as it should, so its figures would mean nothing."""


@dataclass(slots=True)
class Subject:
    """A server that is measured, asked in one way."""

    name: str
    what: str
    served: Served
    question: Question
    cores: Cores
    counts: bool = False
    """Whether it decides, so that what it took can be asked: ours does."""
    store: Server | None = None
    rate: float = 2000.0
    """Requests per second, as found so far."""
    cpu: list[float] = field(default_factory=list)
    store_us: float = 0.0
    requests: int = 0

    @property
    def port(self) -> int:
        return self.served.http_port if self.question.wire is Wire.HTTP else self.served.grpc_port

    @property
    def loader(self) -> Loader:
        return Loader(self.question, self.port, self.cores.others, tls=self.served.tls)

    def warm_up(self) -> None:
        """See that it answers rightly, and how fast it is about."""
        self.verify()
        for _ in range(2):
            self.rate = _rate(self._loaded(0.3))
        self.verify()

    def round(self, seconds: float) -> float:
        """Ask for so many seconds; returns nanoseconds per request."""
        before, stored = self.served.used_ns(), self._stored_us()
        load = self._loaded(seconds)
        self.cpu.append((self.served.used_ns() - before) / load.requests)
        self.store_us += self._stored_us() - stored
        self.requests += load.requests
        self.rate = _rate(load)
        return 1e9 * load.seconds / load.requests

    def verify(self) -> None:
        """Raise WrongAnswer unless it allows user 0."""
        answer = self._ask_http() if self.question.wire is Wire.HTTP else self._ask_grpc()
        if not self.question.is_allowed(answer):
            raise WrongAnswer(f"{self.name} ({self.what}) does not allow: {answer!r}")

    def cost(self, time: Figure) -> Cost:
        """Return what was found over all rounds."""
        return Cost(self.name, self.what, Figure(tuple(self.cpu)), time, self.store_us / self.requests)

    def _loaded(self, seconds: float) -> Load:
        left = self._left()
        load = self.loader.flat_out(seconds, self.rate)
        if self.counts:
            taken, expected = left - self._left(), load.requests // USERS
            if taken < expected:
                raise WrongAnswer(f"{self.name} ({self.what}) answered {expected} checks of a user, but took {taken}")
        return load

    def _left(self) -> int:
        """Ask how much user 0 has left; takes nothing."""
        if not self.counts:
            return 0
        answer = _post(self.served, HTTP_CHECK.path, check_body(user(0), cost=0))
        left: int = msgspec.json.decode(answer)["remaining"]
        return left

    def _stored_us(self) -> float:
        return self.store.cpu_us() if self.store else 0.0

    def _ask_http(self) -> bytes:
        return _post(self.served, self.question.path, self.question.body)

    def _ask_grpc(self) -> bytes:
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            call: Callable[..., bytes] = channel.unary_unary(self.question.path)
            return call(self.question.body, timeout=PATIENCE)


def measure(
    subjects: Mapping[str, Subject], seconds: float, pace: Pace, latencies: Sequence[str], done: Callable[[str], None]
) -> dict[str, Cost]:
    """Let all take turns, and then those named in `latencies` be asked at half of their highest rate."""
    for name, subject in subjects.items():
        subject.warm_up()
        done(f"{name}: answers rightly, about {subject.rate:,.0f}/s")
    times = alternate({name: _turn(subject, seconds) for name, subject in subjects.items()}, pace)
    costs = {name: subject.cost(times[name]) for name, subject in subjects.items()}
    for name, cost in costs.items():
        if name in latencies:
            costs[name] = _with_latency(cost, subjects[name], seconds)
        done(told(costs[name]))
    return costs


def told(cost: Cost) -> str:
    """Say in a line what came out."""
    late = "" if cost.latency is None else f", p99 {cost.latency.p99:.1f} ms at {cost.latency.rate:,.0f}/s"
    return f"{cost.label}: {cost.cpu_us:.1f} us of processor time, {cost.per_second:,.0f}/s{late}"


def _turn(subject: Subject, seconds: float) -> Callable[[int], float]:
    return lambda _: subject.round(seconds)


def _with_latency(cost: Cost, subject: Subject, seconds: float) -> Cost:
    highest = 1e9 / cost.time.best
    found = [subject.loader.at_rate(highest / 2, seconds) for _ in range(RUNS)]
    typical = sorted(found, key=lambda each: each.p99)[len(found) // 2]
    return Cost(cost.name, cost.what, cost.cpu, cost.time, cost.store_us, typical)


def _rate(load: Load) -> float:
    return load.requests / load.seconds


def _post(served: Served, path: str, body: bytes) -> bytes:
    kind: type[HTTPConnection] = HTTPSConnection if served.tls else HTTPConnection
    options: dict[str, Any] = {"context": _unverified()} if served.tls else {}
    with closing(kind("127.0.0.1", served.http_port, timeout=PATIENCE, **options)) as connection:
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
    if answer.status != HTTPStatus.OK:
        raise WrongAnswer(f"{path}: {answer.status} {data!r}")
    return data


def _unverified() -> ssl.SSLContext:
    """Return what trusts anybody: the server is ours, and its certificate was made a moment ago."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context

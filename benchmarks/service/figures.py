"""The costs of servers, their aims, and the size of a fleet. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from benchmarks.service.load import Latency
from benchmarks.timing import Figure

MOST_TIMES_FLOOR = 2.0
"""A check over HTTP takes at most this many times the processor time of nginx answering a constant."""
LEAST_TIMES_LESS = 15.0
"""A call of RLS takes at least this many times less processor time than a trivial one of grpcio."""
LEAST_SHARE_ON_REDIS = 0.5
"""The least rate of RLS on Redis, as a share of that on memory."""
MOST_P99_MS = 10.0
"""At half of the highest rate, 99 % of all responses take less than this many milliseconds."""
MOST_FOR_DENIED = 1.1
"""A refusal takes at most this many times the processor time of an admission."""
MOST_FOR_DESCRIPTORS = 1.1
"""A descriptor file takes at most this many times the processor time of rules."""
MOST_FOR_THREE = 1.6
"""Three rules that match take at most this many times the processor time of one."""
MOST_FOR_SHADOW = 1.15
"""With a shadow rule beside them, three rules take at most this many times the processor time."""
MOST_FOR_AUTHZ = 1.6
"""External authorization takes at most this many times the processor time of RLS."""
MOST_FOR_TWO = 1.6
"""Two descriptors take at most this many times the processor time of one."""
MOST_FOR_SHARED = 1.1
"""Requests for one shared key take at most this many times the processor time."""
LEAST_SOAKED = 20_000
"""Requests per second of the soak on one core."""
MOST_OF_LIMITADOR = 1.1
"""In memory, RLS takes at most this many times the processor time of Limitador."""
MOST_OF_THROTTLECRAB = 2.0
"""In memory, checks over HTTP and gRPC take at most this many times the processor time of throttlecrab."""
MOST_OF_RATELIMIT = 0.5
"""On Redis, RLS takes at most this share of the processor time of envoyproxy/ratelimit."""
TARGET = 1_000_000
"""Requests per second of a fleet."""
UTILISATION = 0.5
"""How busy its cores may be: the share of the highest rate at which latencies were measured."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one kind of request to one server."""

    name: str
    what: str
    """The request, and the store."""
    cpu: Figure
    """Nanoseconds of processor time of the server's processes per request."""
    time: Figure
    """Nanoseconds on the clock per request, all connections together."""
    store_us: float = 0.0
    """Microseconds of processor time of the Redis server per request, over all rounds."""
    latency: Latency | None = None
    """At half of the highest rate; None where it was not measured."""

    @property
    def label(self) -> str:
        return f"{self.name}: {self.what}"

    @property
    def cpu_us(self) -> float:
        return self.cpu.median / 1000

    @property
    def per_second(self) -> float:
        return 1e9 / self.time.median


@dataclass(frozen=True, slots=True)
class Aim:
    """One of the aims, and what was reached."""

    what: str
    found: float
    aim: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Costs:
    """All that were measured in turn, by the ids of their rows."""

    rows: dict[str, Cost]

    @property
    def ours(self) -> tuple[Cost, ...]:
        return tuple(cost for cost in self.rows.values() if cost.name == "headgate")

    def ratio(self, one: str, other: str) -> float | None:
        """Return the processor time of a row over that of another; None unless both were measured."""
        if one not in self.rows or other not in self.rows:
            return None
        return self.rows[one].cpu.over(self.rows[other].cpu)

    def aims(self) -> list[Aim]:
        """Return the verdicts on what was measured."""
        return [
            *self._against_floors(),
            *self._refusals(),
            *self._several(),
            *self._against_peers(),
            *self._latencies(),
        ]

    def _against_floors(self) -> Iterator[Aim]:
        yield from self._at_most("HTTP check: processor time, x nginx", "http", "floor", MOST_TIMES_FLOOR)
        less = self.ratio("grpcio", "rls")
        if less is not None:
            passed = less >= LEAST_TIMES_LESS
            yield Aim("RLS: x less processor time than grpcio", less, f"at least {LEAST_TIMES_LESS:g}", passed)
        if {"rls", "rls_redis"} <= self.rows.keys():
            share = self.rows["rls"].time.over(self.rows["rls_redis"].time)
            passed = share >= LEAST_SHARE_ON_REDIS
            yield Aim("RLS on Redis: rate, x RLS on memory", share, f"at least {LEAST_SHARE_ON_REDIS:g}", passed)

    def _refusals(self) -> Iterator[Aim]:
        for where, store in (("", "memory"), ("_redis", "Redis")):
            for row, name in _APIS.items():
                what = f"{name}, {store}: denied, x allowed"
                yield from self._at_most(what, f"{row}_denied{where}", f"{row}{where}", MOST_FOR_DENIED)

    def _several(self) -> Iterator[Aim]:
        for where, store in (("", "memory"), ("_redis", "Redis")):
            for end, answer in (("", "allowed"), ("_denied", "denied")):
                what = f"RLS by descriptor file, {store}, {answer}: x by rules"
                rows = f"descriptors{end}{where}", f"rls{end}{where}"
                yield from self._at_most(what, *rows, MOST_FOR_DESCRIPTORS)
            three, shadow, one = f"three{where}", f"shadow{where}", f"http{where}"
            yield from self._at_most(f"three matching rules, {store}: x one", three, one, MOST_FOR_THREE)
            yield from self._at_most(f"a shadow rule beside them, {store}: x without", shadow, three, MOST_FOR_SHADOW)
            for row in ("rls", "descriptors"):
                what = f"{_APIS[row]}, {store}: two descriptors, x one"
                yield from self._at_most(what, f"{row}_two{where}", f"{row}{where}", MOST_FOR_TWO)
            yield from self._at_most(
                f"ext_authz, {store}: x RLS by rules", f"authz{where}", f"rls{where}", MOST_FOR_AUTHZ
            )
        for row in ("http", "descriptors", "descriptors_redis"):
            what = f"{_APIS[row.removesuffix('_redis')]}{', Redis' * row.endswith('_redis')}: one shared key, x users"
            yield from self._at_most(what, f"{row}_shared", row, MOST_FOR_SHARED)
        if "soak" in self.rows:
            rate = 1e6 / self.rows["soak"].cpu_us
            passed = rate >= LEAST_SOAKED
            yield Aim("the soak: requests per second of a core", rate, f"at least {LEAST_SOAKED:,}", passed)

    def _against_peers(self) -> Iterator[Aim]:
        for end, answer in (("", "allowed"), ("_denied", "denied")):
            what = f"RLS by descriptor file, memory, {answer}: x Limitador"
            yield from self._at_most(what, f"descriptors{end}", f"limitador{end}", MOST_OF_LIMITADOR)
            what = f"RLS by descriptor file, Redis, {answer}: x ratelimit"
            yield from self._at_most(what, f"descriptors{end}_redis", f"ratelimit{end}_redis", MOST_OF_RATELIMIT)
            for row in ("http", "grpc"):
                what = f"{_APIS[row]}, memory, {answer}: x throttlecrab"
                yield from self._at_most(what, f"{row}{end}", f"throttlecrab_{row}{end}", MOST_OF_THROTTLECRAB)
        what = "RLS by descriptor file, Redis, denied: x ratelimit with its local cache"
        yield from self._at_most(what, "descriptors_denied_redis", "ratelimit_cached_redis", 1.0)

    def _latencies(self) -> Iterator[Aim]:
        for cost in self.ours:
            if cost.latency is not None:
                what = f"{cost.what}: p99 at half of the highest rate, ms"
                yield Aim(what, cost.latency.p99, f"under {MOST_P99_MS:g}", cost.latency.p99 < MOST_P99_MS)

    def _at_most(self, what: str, one: str, other: str, most: float) -> Iterator[Aim]:
        found = self.ratio(one, other)
        if found is not None:
            yield Aim(what, found, f"at most {most:.3g}", found <= most)


_APIS = {
    "http": "HTTP check",
    "grpc": "gRPC check",
    "rls": "RLS by rules",
    "authz": "ext_authz by rules",
    "descriptors": "RLS by descriptor file",
    "both": "RLS by rules beside a file",
    "three": "HTTP check, three rules",
    "rls_three": "RLS by three rules",
}
"""The rows that come allowed and denied, by the beginning of their ids."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What carries the target."""

    workers: int
    """Processes of `headgate serve`, each with a core."""
    primaries: int
    """Redis servers, each with a core; 0 without Redis."""


def fleet(cpu_us: float, store_us: float) -> Fleet:
    """Return the cores for `TARGET`, at `UTILISATION`, by microseconds per request of our processes and of Redis."""
    return Fleet(_cores(cpu_us), _cores(store_us))


def _cores(us: float) -> int:
    return ceil(round(us * TARGET / 1e6 / UTILISATION, 6))

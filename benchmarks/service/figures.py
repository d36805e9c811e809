"""What the servers cost, and what that is held against. Pure: figures in, ratios and verdicts out."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.service.load import Latency
from benchmarks.timing import Figure

MOST_TIMES_FLOOR = 3.0
"""A check over HTTP takes at most this many times the processor time of nginx answering a constant."""
LEAST_TIMES_LESS = 15.0
"""A call of RLS takes at least this many times less processor time than a trivial one of grpcio."""
LEAST_SHARE_ON_REDIS = 0.5
"""RLS on Redis answers at least this share of what it answers on memory."""
MOST_P99_MS = 10.0
"""At half of the highest rate, 99 % of all answers take less than this many milliseconds."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What requests cost one server, asked in one way."""

    name: str
    what: str
    """How it is asked, and where its state lives."""
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

    @property
    def is_prompt(self) -> bool | None:
        return None if self.latency is None else self.latency.p99 < MOST_P99_MS


@dataclass(frozen=True, slots=True)
class Aim:
    """One of the aims, and what was reached."""

    what: str
    found: float
    aim: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Costs:
    """All that were measured in turn."""

    floor: Cost
    """nginx answering a constant."""
    uvicorn: Cost
    grpcio: Cost
    http: Cost
    grpc: Cost
    rls: Cost
    rls_redis: Cost
    others: tuple[Cost, ...] = ()
    """Ours in other circumstances, for information."""

    @property
    def all(self) -> tuple[Cost, ...]:
        return (self.floor, self.uvicorn, self.grpcio, *self.ours)

    @property
    def ours(self) -> tuple[Cost, ...]:
        return (self.http, self.grpc, self.rls, self.rls_redis, *self.others)

    def aims(self) -> list[Aim]:
        """Return the verdicts."""
        floor = self.http.cpu.over(self.floor.cpu)
        less = self.grpcio.cpu.over(self.rls.cpu)
        share = self.rls.time.over(self.rls_redis.time)
        found = [
            Aim(
                "HTTP check: processor time, x nginx", floor, f"at most {MOST_TIMES_FLOOR:g}", floor <= MOST_TIMES_FLOOR
            ),
            Aim(
                "RLS: x less processor time than grpcio",
                less,
                f"at least {LEAST_TIMES_LESS:g}",
                less >= LEAST_TIMES_LESS,
            ),
            Aim(
                "RLS on Redis: rate, x RLS on memory",
                share,
                f"at least {LEAST_SHARE_ON_REDIS:g}",
                share >= LEAST_SHARE_ON_REDIS,
            ),
        ]
        for cost in self.ours:
            if cost.latency is not None:
                what = f"{cost.what}: p99 at half of the highest rate, ms"
                found.append(Aim(what, cost.latency.p99, f"under {MOST_P99_MS:g}", cost.latency.p99 < MOST_P99_MS))
        return found

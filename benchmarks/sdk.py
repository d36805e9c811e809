"""The cost of a check in a client's process, beside a bare POST."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from benchmarks.tables import Part, between, table, times
from headgate import Request, Ruling
from headgate.sdk import AsyncClient, Client

CHECKS = 1000
"""In a round of one kind of call."""
ROUNDS = 3
TOGETHER = 64
"""Concurrent checks."""
PATIENCE = 30.0
WHAT = """\
The cost of a check in the process of a client of the service, compared with the bare POST request that it sends.
"""
METHOD = f"""\
- **Measured**: the processor time of the client's process, including its threads, for a check; best round. The
  service is another process, on the loopback interface, in memory.
- **Floor**: httpx, which sends the same body and ignores the response.
- **Coalescing**: of {TOGETHER} checks at a time, the waiting ones are batched, so each costs less than a POST.
"""
RULES = """
version: 1
rules: [{id: orders, dimension: user, endpoint: /orders, limit: 1000000000, window: 1h}]
"""
ORDER = Request({"user": "42"}, "/orders", "POST")
QUESTION = b'{"principal":{"user":"42"},"endpoint":"/orders","method":"POST"}'


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the service is."""

    http: str
    grpc: str


@dataclass(frozen=True, slots=True)
class SdkRow:
    """The cost of one kind of call."""

    name: str
    cpu_us: float
    """Microseconds of the processor, per check; the best round."""


@dataclass(frozen=True, slots=True)
class SdkResults:
    """All that was measured of the SDK; the first row is the floor."""

    rows: list[SdkRow]


@contextmanager
def service() -> Iterator[Addresses]:
    """A service for the length of a with block."""
    with TemporaryDirectory(prefix="headgate-sdk-") as folder:
        rules = Path(folder) / "rules.yaml"
        rules.write_text(RULES)
        command = [sys.executable, "-m", "headgate.cli", "serve", "--rules", str(rules)]
        ports = ["--http-port", "0", "--grpc-port", "0"]
        with subprocess.Popen(  # noqa: S603  our own
            [*command, *ports], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                yield _addresses(process)
            finally:
                process.send_signal(signal.SIGINT)


def _addresses(process: subprocess.Popen[str]) -> Addresses:
    """Return the ports that a service prints."""
    output = ""
    for line in process.stdout or ():
        output += line
        found = re.search(r"HTTP +https?://\S+:(\d+)(?:.|\n)*gRPC +\S+:(\d+)", output)
        if found:
            return Addresses(f"http://127.0.0.1:{found[1]}", f"grpc://127.0.0.1:{found[2]}")
    raise RuntimeError(f"the service did not start: {output}")


async def posted(address: str, checks: int) -> float:
    """Measure httpx alone."""
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE, trust_env=False) as http:

        async def call() -> None:
            answer = await http.post("/api/v1/rate-limit/check", content=QUESTION)
            answer.raise_for_status()

        return await _in_turn(call, checks)


async def in_turn(address: str, checks: int) -> float:
    """Measure checks in an event loop, one after the other."""
    async with AsyncClient(address, timeout=PATIENCE) as client:

        async def call() -> None:
            _require_decided(await client.check(ORDER))

        return await _in_turn(call, checks)


async def together(address: str, checks: int) -> float:
    """Measure checks in an event loop, many at a time."""
    async with AsyncClient(address, timeout=PATIENCE) as client:

        async def some() -> None:
            for _ in range(checks // TOGETHER):
                _require_decided(await client.check(ORDER))

        await client.check(ORDER)
        begun = time.process_time()
        await asyncio.gather(*[some() for _ in range(TOGETHER)])
        return (time.process_time() - begun) / (checks // TOGETHER * TOGETHER)


def blocking(address: str, checks: int) -> float:
    """Measure checks of one thread."""
    with Client(address, timeout=PATIENCE) as client:
        client.check(ORDER)
        begun = time.process_time()
        for _ in range(checks):
            _require_decided(client.check(ORDER))
        return (time.process_time() - begun) / checks


def threaded(address: str, checks: int) -> float:
    """Measure checks of many threads."""
    with Client(address, timeout=PATIENCE) as client, ThreadPoolExecutor(TOGETHER) as threads:
        client.check(ORDER)
        begun = time.process_time()
        for ruling in threads.map(client.check, [ORDER] * checks):
            _require_decided(ruling)
        return (time.process_time() - begun) / checks


def _require_decided(ruling: Ruling) -> None:
    """Refuse figures that mean nothing: a client that stands in for the service is quicker."""
    if ruling.degraded:
        raise RuntimeError(f"the service did not decide: {ruling.degraded}")


async def _in_turn(call: Callable[[], Awaitable[None]], checks: int) -> float:
    await call()
    begun = time.process_time()
    for _ in range(checks):
        await call()
    return (time.process_time() - begun) / checks


def measure(checks: int = CHECKS, rounds: int = ROUNDS) -> list[SdkRow]:
    """Measure all kinds of calls, in turn."""
    with service() as found:
        ways: dict[str, Callable[[], float]] = {
            "httpx, one POST after the other (the floor)": lambda: asyncio.run(posted(found.http, checks)),
        }
        for name, address in (("HTTP", found.http), ("gRPC", found.grpc)):
            ways |= {
                f"AsyncClient over {name}, one after the other": lambda at=address: asyncio.run(in_turn(at, checks)),  # type: ignore[misc]
                f"AsyncClient over {name}, {TOGETHER} at a time": lambda at=address: asyncio.run(together(at, checks)),  # type: ignore[misc]
                f"Client over {name}, one thread": lambda at=address: blocking(at, checks),  # type: ignore[misc]
                f"Client over {name}, {TOGETHER} threads": lambda at=address: threaded(at, checks),  # type: ignore[misc]
            }
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(rounds):
            for name, way in ways.items():
                best[name] = min(best[name], way())
    return [SdkRow(name, 1e6 * seconds) for name, seconds in best.items()]


def run(checks: int, done: Callable[[str], None]) -> SdkResults:
    """Measure everything; `done` reports the end."""
    results = SdkResults(measure(checks, ROUNDS if checks >= CHECKS else 1))
    done(", ".join(f"{row.name}: {row.cpu_us:.0f} us" for row in results.rows))
    return results


def part(results: SdkResults) -> Part:
    """Return the part about the SDK of the report."""
    floor, *others = [row.cpu_us for row in results.rows]
    head = ("client", "us per check", "x the floor")
    shown = [(row.name, f"{row.cpu_us:.0f}", times(row.cpu_us / floor)) for row in results.rows]
    shares = between([cost / floor for cost in others], 2, "times a bare POST by httpx")
    short = [("check of a client of the service", between(others, 0, "us"), shares)]
    return Part("SDK", "\n".join([WHAT, table(head, shown)]), METHOD, short)

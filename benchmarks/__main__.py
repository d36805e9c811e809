"""``python -m benchmarks``: measure everything and render the report."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic

from benchmarks import replay, sdk
from benchmarks.clients import measuring as by_clients
from benchmarks.gateway import measuring as by_gateway
from benchmarks.in_memory import accuracy, decisions, operations
from benchmarks.in_memory.report import MemoryResults
from benchmarks.in_memory.scenarios import MANY_KEYS, Kind, Row, all_scenarios
from benchmarks.integrations import measuring as in_frameworks
from benchmarks.on_redis import measuring as on_redis
from benchmarks.on_redis.cases import Amount
from benchmarks.report import PARTS, Results, environment, parts, render
from benchmarks.rules import measuring as by_rules
from benchmarks.service import measuring as by_service
from benchmarks.service.load import LoadError, require
from benchmarks.timing import Pace
from headgate.core.errors import UsageError
from headgate.gateway.envoy import program

DOCS = Path(__file__).parents[1] / "docs"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    decisions: Pace
    operations: Pace
    many_keys: int
    memory_keys: int
    trace_scale: float
    on_redis: Amount
    redis_pace: Pace
    rules: tuple[int, ...]
    rules_pace: Pace
    service: by_service.Amount
    integrations: Pace
    gateway: by_gateway.Amount
    replay: replay.Amount
    sdk_checks: int = sdk.CHECKS
    quick_clients: bool = False


FULL = Size(
    Pace(1.0, 7, 60),
    Pace(1.0, 7, 60),
    MANY_KEYS,
    operations.KEYS,
    1.0,
    Amount(4000, 640, 100, 200),
    Pace(2, 7, 100),
    by_rules.SIZES,
    Pace(0.5, 7, 100),
    by_service.Amount(1.0, Pace(0, 5, 5)),
    Pace(10, 20, 200, calls=200),
    by_gateway.Amount(0.5, Pace(0, 3, 3)),
    replay.Amount((1_000_000, 10_000_000), 100_000),
)
ONCE = Pace(0, 1, 1, calls=50)
SOME_ROWS = "floor|uvicorn|grpcio|http|http_denied|grpc|rls|rls_redis|descriptors_denied_redis|shadow_redis|http_pair"
"""Enough for every table of the report; tests start each kind of server."""
QUICK = Size(
    ONCE,
    ONCE,
    20,
    50,
    0.02,
    Amount(64, 64, 8, 10, (Kind.GCRA, Kind.FIXED_WINDOW)),
    ONCE,
    (10, 100, 1000),
    ONCE,
    by_service.Amount(0.1, ONCE, 100, warm_up=False, rows=SOME_ROWS, prompt=("http", "rls_redis")),
    ONCE,
    by_gateway.Amount(0.1, ONCE, redis=False),
    replay.Amount((1000, 2000), 500),
    sdk_checks=64,
    quick_clients=True,
)


class Progress:
    """Reports completed steps, their number and the elapsed time on stderr."""

    def __init__(self, steps: int) -> None:
        self._steps, self._done, self._start = steps, 0, monotonic()

    def done(self, what: str) -> None:
        self._done += 1
        print(f"[{self._done:3}/{self._steps}] {monotonic() - self._start:4.0f} s  {what}", file=sys.stderr, flush=True)


def run(size: Size, chosen: Collection[str] = PARTS) -> Results:
    """Measure all parts, or the named ones."""
    found = environment()
    in_memory = run_in_memory(size) if "memory" in chosen else None
    redis = None
    if "redis" in chosen:
        redis = on_redis.run(size.on_redis, size.redis_pace, Progress(on_redis.steps(size.on_redis)).done)
        found["redis-server"] = redis.server
    rules = None
    if "rules" in chosen:
        rules = by_rules.run(size.rules, size.rules_pace, Progress(by_rules.steps()).done)
    service = None
    if "service" in chosen:
        service = by_service.run(size.service, Progress(by_service.steps(size.service)).done)
        found |= service.versions
    integrations = None
    if "integrations" in chosen:
        integrations = in_frameworks.run(size.integrations, Progress(in_frameworks.steps()).done)
    of_sdk = sdk.run(size.sdk_checks, Progress(1).done) if "sdk" in chosen else None
    clients = None
    if "clients" in chosen:
        steps = len(by_clients.cases(quick=size.quick_clients))
        clients = by_clients.run(quick=size.quick_clients, done=Progress(steps).done)
    gateway = None
    if "gateway" in chosen:
        gateway = by_gateway.run(size.gateway, Progress(len(by_gateway.chosen(size.gateway))).done)
        found |= gateway.versions
    of_replay = replay.run(size.replay, Progress(3).done) if "replay" in chosen else None
    return Results(found, in_memory, redis, rules, service, integrations, of_sdk, clients, gateway, of_replay)


def run_in_memory(size: Size) -> MemoryResults:
    """Measure what needs no server."""
    scenarios = all_scenarios(size.many_keys)
    progress = Progress(len(scenarios) + len(Kind) + len(operations.tasks(size.memory_keys)) + 1)
    rows = []
    for scenario in scenarios:
        row = decisions.measure(scenario, size.decisions)
        rows.append(row)
        progress.done(f"{scenario}: {_outcome(row)}")
    measured = []
    for kind in Kind:
        measured.append(operations.measure(kind, size.operations))
        progress.done(f"{kind}: peek, refund, AsyncLimiter.check")
    footprints = []
    for footprint in operations.footprints(size.memory_keys):
        footprints.append(footprint)
        progress.done(f"{footprint.kind}, {footprint.contender}: {footprint.bytes_per_key:.0f} bytes per key")
    outcome = accuracy.replay(accuracy.generate(size.trace_scale))
    progress.done("accuracy of the sliding window counter")
    return MemoryResults(rows, measured, footprints, outcome)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a few seconds, to see that it works; the numbers mean little"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=None,
        metavar="FOLDER",
        help="where the pages of the report go; default: docs, or with --quick or --only the terminal",
    )
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the raw numbers there as well")
    parser.add_argument(
        "--only", choices=list(PARTS), default=None, help="measure this part alone; the report goes to the terminal"
    )
    parser.add_argument(
        "--rows", default="", metavar="PATTERN", help="with --only service: the rows whose id matches, as http.*|rls"
    )
    parser.add_argument(
        "--other",
        default="",
        metavar="PYTHON",
        help="with --only service: the Headgate of another environment is measured beside this one, in turn",
    )
    options = parser.parse_args(arguments)
    chosen = [options.only] if options.only else list(PARTS)
    size = QUICK if options.quick else FULL
    if options.rows or options.other:
        service = replace(size.service, rows=options.rows, other=options.other, prompt=())
        size = replace(size, service=service)
    try:  # now, not when everything else is measured
        if "service" in chosen:
            require()
        if "gateway" in chosen:
            require(by_gateway.PROGRAMS)
            program()
    except (LoadError, UsageError) as error:
        sys.exit(str(error))
    results = run(size, chosen)
    pages = render(results)
    if options.json:
        options.json.write_text(json.dumps(asdict(results), indent=1) + "\n", encoding="utf-8")
    if (options.quick or options.only) and not options.output:
        print("\n".join(pages.values()))
        return
    for path, text in pages.items():
        page = (options.output or DOCS) / path
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    print("\n".join([part.verdicts for part in parts(results).values()]))


def _outcome(row: Row) -> str:
    faster = "no peer" if row.times_faster is None else f"{row.times_faster:.1f}x faster than the fastest peer"
    return f"{row.ours.best:.0f} ns, {row.times_floor:.1f}x floor, {faster}"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # ends the servers too
    main()

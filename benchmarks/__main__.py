"""``python -m benchmarks``: measure everything and render the report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

from benchmarks import accuracy, decisions, environment, memory, operations, trace
from benchmarks.report import Results, render, summary
from benchmarks.scenarios import MANY_KEYS, Kind, all_scenarios
from benchmarks.timing import Pace
from benchmarks.verdicts import Row

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks.md"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    decisions: Pace
    operations: Pace
    many_keys: int
    memory_keys: int
    trace_scale: float


FULL = Size(Pace(1.0, 7, 60), Pace(1.0, 7, 60), MANY_KEYS, memory.KEYS, 1.0)
QUICK = Size(Pace(0, 1, 1), Pace(0, 1, 1), 20, 50, 0.02)


class Progress:
    """Tells on stderr what is done, how much there is, and how long it took."""

    def __init__(self, steps: int) -> None:
        self._steps, self._done, self._start = steps, 0, monotonic()

    def done(self, what: str) -> None:
        self._done += 1
        print(f"[{self._done:3}/{self._steps}] {monotonic() - self._start:4.0f} s  {what}", file=sys.stderr, flush=True)


def run(size: Size) -> Results:
    """Measure everything."""
    scenarios = all_scenarios(size.many_keys)
    progress = Progress(len(scenarios) + len(Kind) + len(memory.tasks(size.memory_keys)) + 1)
    rows = []
    for scenario in scenarios:
        row = decisions.measure(scenario, size.decisions)
        rows.append(row)
        progress.done(f"{scenario}: {_told(row)}")
    measured = []
    for kind in Kind:
        measured.append(operations.measure(kind, size.operations))
        progress.done(f"{kind}: peek, refund, AsyncLimiter.check")
    footprints = []
    for footprint in memory.measure(size.memory_keys):
        footprints.append(footprint)
        progress.done(f"{footprint.kind}, {footprint.contender}: {footprint.bytes_per_key:.0f} bytes per key")
    outcome = accuracy.replay(trace.generate(size.trace_scale))
    progress.done("accuracy of the sliding window counter")
    return Results(environment.describe(), rows, measured, footprints, outcome)


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
        help="where the report goes; default: docs/benchmarks.md, or with --quick the terminal",
    )
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the raw numbers there as well")
    options = parser.parse_args(arguments)
    results = run(QUICK if options.quick else FULL)
    report = render(results)
    if options.json:
        options.json.write_text(json.dumps(asdict(results), indent=1) + "\n", encoding="utf-8")
    if options.quick and not options.output:
        print(report)
    else:
        (options.output or REPORT).write_text(report, encoding="utf-8")
        print(summary(results.rows))


def _told(row: Row) -> str:
    faster = "no peer" if row.times_faster is None else f"{row.times_faster:.1f}x faster than the fastest peer"
    return f"{row.ours.best:.0f} ns, {row.times_floor:.1f}x floor, {faster}"


if __name__ == "__main__":
    main()

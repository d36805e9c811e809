"""The cost of a line in `headgate replay`, its memory for long logs, and a comparison of its decisions.

As a program, ``python -m benchmarks.replay LINES``, it writes a log to a pipe.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.tables import Part, table
from headgate.core.errors import UsageError
from headgate.engine import Engine, Ruling
from headgate.policy.loading import load
from headgate.policy.request import Request
from headgate.replay.logs import LogReader
from headgate.replay.replaying import Replay
from headgate.stores.memory import MemoryStore
from headgate.testing import ManualClock

USERS = 5_000_000
PER_SECOND = 12
_LOOK = 0.02
"""Seconds."""
START = 1_793_491_200
"""Midnight of a day, in seconds since the epoch."""
WHAT = """\
`headgate replay` of a log that is written while it is read: what a line takes of the processor, reading it included,
and the most memory that the process had.
"""
METHOD = f"""\
- **The log** is in nginx's format, {PER_SECOND} lines a second: a million lines are a day. It has {USERS:,} users, by
  a law of Zipf, each with an address; a third of the lines has no user. A pipe brings it from another process.
- **The rules** are five: by user and by address, in a minute and in a day, one of them a shadow.
- **Equal** are the decisions of a replay and those of an `Engine` called line by line: whether a request passes, by
  which rule, and all numbers of all limits, including those of shadows.
"""
RULES = """
version: 1
rules:
  - {id: orders-user, dimension: user, endpoint: /api/v1/orders/**, limit: 10, window: 1m}
  - {id: user-day, dimension: user, limit: 500, window: 1d, algorithm: fixed_window}
  - {id: per-ip, dimension: ip, limit: 30, window: 1m, algorithm: sliding_window_counter}
  - {id: login-ip, dimension: ip, endpoint: /login, limit: 5, window: 1m}
  - {id: search-ip, dimension: ip, endpoint: /api/v1/search, limit: 10, window: 1m, shadow: true}
"""
REQUESTS = ("POST /api/v1/orders", "GET /api/v1/orders/17", "GET /api/v1/search?q=shoes", "POST /login", "GET /")


@dataclass(frozen=True, slots=True)
class Amount:
    """How many lines are replayed, and how many are compared one by one."""

    lines: tuple[int, int]
    compared: int


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One log."""

    lines: int
    cpu_us: float
    """Microseconds of the processor for each line."""
    peak_mib: float
    """The most memory that the process had."""
    refused: int


@dataclass(frozen=True, slots=True)
class ReplayResults:
    """All that was measured."""

    rows: list[ReplayRow]
    compared: int
    equal: int
    refused: int
    """Of those that were compared."""


def lines() -> Iterator[str]:
    """Return a log without end, always the same."""
    chance = random.Random(24)
    second, stamp, at = 0, "", 0.0
    while True:
        at += chance.expovariate(PER_SECOND)
        if int(at) != second or not stamp:
            second = int(at)
            stamp = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(START + second))
        user = int(USERS ** chance.random())
        address = f"10.{user >> 16}.{user >> 8 & 255}.{user & 255}"
        name = f"u{user}" if chance.random() < 2 / 3 else "-"
        request = REQUESTS[int(5 * chance.random())]
        yield f'{address} - {name} [{stamp}] "{request} HTTP/1.1" 200 612 "-" "Mozilla/5.0 (X11; Linux x86_64)"\n'


def replayed(count: int, rules: Path) -> ReplayRow:
    """Replay a number of lines with the command."""
    writer = subprocess.Popen(  # noqa: S603  our own
        [sys.executable, "-m", "benchmarks.replay", str(count)], stdout=subprocess.PIPE
    )
    command = [sys.executable, "-m", "headgate.cli", "replay", "--rules", str(rules), "--json", "-"]
    with writer, (rules.parent / "found.json").open("w+") as found:
        process = subprocess.Popen(command, stdin=writer.stdout, stdout=found, stderr=subprocess.DEVNULL)  # noqa: S603
        peak_kib, ended = 0, 0
        while not ended:  # the kernel's own figure at the end would be that of this process, which is larger
            peak_kib = max(peak_kib, _peak_kib(process.pid))
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            time.sleep(0 if ended else _LOOK)
        process.returncode = os.waitstatus_to_exitcode(status)
        found.seek(0)
        summary = json.load(found)
    if process.returncode or summary["lines"] != count:
        raise RuntimeError(f"the replay ended with {process.returncode} after {summary['lines']} lines")
    cpu_us = 1e6 * (usage.ru_utime + usage.ru_stime) / count
    return ReplayRow(count, cpu_us, peak_kib / 1024, summary["rules"][0]["refused"])


def _peak_kib(process: int) -> int:
    """Return the most memory that a process had so far; 0: it has ended."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text(encoding="utf-8"), re.MULTILINE)
    return int(found[1]) if found else 0


def compared(count: int, log: Path) -> tuple[int, int]:
    """Return how many lines a replay decides as an engine does, and how many are refused."""
    log.write_text("".join(islice(lines(), count)), encoding="utf-8")
    ruleset, clock = load(RULES), ManualClock(0)
    engine = Engine(ruleset, store=MemoryStore(clock=clock))
    equal = refused = 0
    for entry, _, (ruling,) in Replay([ruleset]).decide(LogReader(str(log))):
        clock.set(max(clock.now(), entry.at))
        principal = {"user": entry.user, "ip": entry.address} if entry.user else {"ip": entry.address}
        try:
            alone: Ruling | None = engine.check(Request(principal, entry.path, entry.method))
        except UsageError:
            alone = None
        equal += _numbers(ruling) == _numbers(alone)
        refused += ruling is not None and not ruling.allowed
    return equal, refused


def _numbers(ruling: Ruling | None) -> object:
    return ruling and (ruling.allowed, ruling.verdict, ruling.rule_id, ruling.limits, ruling.shadow)


def run(amount: Amount, done: Callable[[str], None]) -> ReplayResults:
    """Measure everything; `done` reports each part."""
    rows = []
    with TemporaryDirectory(prefix="headgate-replay-") as folder:
        rules = Path(folder) / "rules.yaml"
        rules.write_text(RULES)
        for count in amount.lines:
            row = replayed(count, rules)
            rows.append(row)
            done(f"replay of {count:,} lines: {row.cpu_us:.1f} us a line, {row.peak_mib:.0f} MiB")
        equal, refused = compared(amount.compared, Path(folder) / "access.log")
        done(f"{equal:,} of {amount.compared:,} lines are decided alike")
    return ReplayResults(rows, amount.compared, equal, refused)


def part(results: ReplayResults) -> Part:
    """Return the part about replays as Markdown."""
    head = ("lines", "us of a core, each", "lines a second of a core", "most memory, MiB", "refused")
    shown = [
        (f"{row.lines:,}", f"{row.cpu_us:.1f}", f"{1e6 / row.cpu_us:,.0f}", f"{row.peak_mib:.0f}", f"{row.refused:,}")
        for row in results.rows
    ]
    alike = f"{results.equal:,} of {results.compared:,} lines are decided alike, {results.refused:,} of them refused.\n"
    few, many = results.rows
    ratio = f"{many.peak_mib / few.peak_mib:.2f} times the memory for {many.lines // few.lines} times the lines"
    short = [("line of a log that is replayed", f"{many.cpu_us:.1f} us of a core", ratio)]
    return Part("Replay", "\n".join([WHAT, table(head, shown), alike]), METHOD, short)


if __name__ == "__main__":
    sys.stdout.writelines(islice(lines(), int(sys.argv[1])))

"""Renders the part about integrations of the benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.integrations.cases import AT_ONCE
from benchmarks.integrations.measuring import LIMIT, IntegrationResults, Row
from benchmarks.tables import Part, between, table, times, verdict
from benchmarks.timing import Figure

WHAT = """\
The cost of a limit in a web application per request, compared with the usual limiter of its framework. The aim: at
most a third of it. Every row is shown, whether it passes or not.
"""

METHOD = f"""\
- **Measured**: the processor time of the process, including threads, for a request from the call of the application
  to the end of its response. Redis is a separate process, and not included.
- **The cost of a limit** is the cost of a request minus that of the same request to the same application without a
  limiter: the median of the differences within the rounds.
- **Applications**: one route with a short response, called as by a server, but without a server: Flask one request
  after the other, ASGI in the event loop of uvloop with {AT_ONCE} requests at a time.
- **Limits**: {LIMIT:,} requests a minute by address, with the usual algorithm of each; all requests pass. For all
  routes of FastAPI, Headgate uses the middleware, and for one route the decorator; `fastapi-limiter` is a dependency
  in both cases. It is the only one that adds no header fields to the response, so one row omits Headgate's. Its
  bucket is shared by all clients.
- **Verified**: before the measurement, each limiter must admit three of four requests under a limit of three.
- **Noise**: all contenders take turns, round after round, each round starting with another one; garbage collection is
  off.
"""


def part(results: IntegrationResults) -> Part:
    """Return the part about integrations of the report."""
    rows = results.rows
    costs = between([row.overhead_us for row in rows], 0, "us")
    shares = between([row.share for row in rows], 2, "times that of slowapi, fastapi-limiter, flask-limiter")
    short = [("limit of a web application, per request", costs, shares)]
    head = ("what", "Headgate, us", "peer, us", "Headgate / peer", "aim", "verdict")
    verdicts = table(head, [_line(row) for row in rows])
    return Part("Integrations", WHAT, METHOD, short, verdicts, [("Numbers", _numbers(rows))])


def _line(row: Row) -> tuple[object, ...]:
    ours, theirs = f"{row.overhead_us:.1f}", f"{row.peer}: {row.peer_overhead_us:.1f}"
    return f"{row.case}, {row.store}", ours, theirs, times(row.share), "at most 0.33", verdict(row.passed)


def _numbers(rows: Sequence[Row]) -> str:
    head = ("microseconds of a whole request, best round", "without a limit", "Headgate", "peer")
    lines = [(f"{row.case}, {row.store}", _us(row.plain), _us(row.ours), _us(row.theirs)) for row in rows]
    return table(head, lines)


def _us(figure: Figure) -> str:
    return f"{figure.best / 1000:.1f} +{100 * figure.spread:.0f} %"

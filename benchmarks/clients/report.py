"""Renders the part about clients of the benchmarks."""

from __future__ import annotations

from benchmarks.clients.measuring import LONGEST, MOST_REFUSED, ClientsResults, Row
from benchmarks.tables import Part, between, percent, table, times, verdict

WHAT = f"""\
The time that pacing clients need to send requests within the limits of a server, and the share of refused requests.
The aim: at most {LONGEST:g} times the ideal schedule, and at most {MOST_REFUSED:.0%} refused, for one process and for
four that share a limit.
"""
METHOD = """\
- **Servers**: HTTP/1.1 servers that enforce a quota, with the header fields of Headgate, of the IETF only, and of
  GitHub. Each case has its own server.
- **Clients**: `httpx.Client(transport=HttpxTransport())` with four threads in each process. Four processes share a
  limit through Redis: `HttpxTransport(store="redis://...")`.
- **Time**: measured by the server, from its first request to the last one that passes.
- **Ideal**: the fastest schedule that the server would not have refused, from the same moment, for a client that
  knows the limit and needs no time for anything else.
- All cases run at the same time, since they mostly wait.
"""


def part(results: ClientsResults) -> Part:
    """Return the part about clients of the report."""
    head = ("clients", "requests", "seconds", "ideal", "x the ideal", "refused", "verdict")
    ratios = between([row.ratio for row in results.rows], 2, "times the ideal")
    refused = sum(row.refused for row in results.rows)
    share = percent(refused, sum(row.case.requests for row in results.rows), 1)
    short = [("clients of a limited API, one process and four", ratios, f"{share} refused")]
    return Part("Clients", WHAT, METHOD, short, table(head, [_line(row) for row in results.rows]))


def _line(row: Row) -> tuple[object, ...]:
    case = row.case
    name = f"{case.style}, {case.quota}, {case.processes} process{'es' * (case.processes > 1)}"
    figures = f"{row.seconds:.2f}", f"{row.ideal:.2f}", times(row.ratio), percent(row.refused, case.requests, 1)
    return name, case.requests, *figures, verdict(row.passed)

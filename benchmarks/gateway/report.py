"""Renders the part about the gateway of the benchmarks."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.gateway.cases import USERS
from benchmarks.gateway.measuring import CONNECTIONS, GatewayResults, Row
from benchmarks.tables import Part, between, table, times, verdict
from benchmarks.timing import Figure

Rows = Mapping[str, Row]
FLOOR, OURS, PEER = "none", "rls_redis", "ratelimit_redis"
MOST_OF_PEER = 1.0
"""The largest cost of a request with Headgate, including Envoy, as a share of the cost with the peer."""
WHAT = """\
The cost of a decision about each request in a gateway: Envoy in front of a service, with and without a check. The
aim: with the same check over RLS, Envoy and Headgate together use no more processor time than Envoy and
envoyproxy/ratelimit. With ext_authz, which the gateway uses, Headgate also identifies the caller; no other program
in this comparison does that.
"""
METHOD = f"""\
- **Envoy** is that of `headgate gateway`, with one thread and the same configuration, except for the access log. With
  ext_authz, the command runs unchanged: Headgate identifies the user by the digest of an API key, over a Unix socket.
  Without a check, that filter is removed. With RLS, Envoy's own `ratelimit` filter replaces it, and sends an
  unverified user over TCP. Headgate and ratelimit read the same descriptor file.
- **Limits**: one for each of {USERS} users, who send requests in turn and never use it up. With a check, clients get
  the header fields of their limits. One worker decides.
- **Load**: h2load over HTTP/1.1 with {CONNECTIONS} connections, as fast as responses arrive. The service behind Envoy
  is nginx with a constant response. Envoy and the decision service share one core, so the rate is that of a core;
  load, nginx and Redis use the others.
- **Processor time** is user and system time of all threads and processes, from the kernel, per request. Ratios are
  medians of the ratios within the rounds, in which all contenders take turns; times are those of the best round.
- **Verified**: each request is answered 200. Before and after each round, a user's limit is read: a gateway that lets
  requests pass uncounted ends the run.
"""


def part(results: GatewayResults) -> Part:
    """Return the part about the gateway of the report."""
    rows = results.rows
    ours = [row for name, row in rows.items() if name not in {FLOOR, PEER}]
    costs = between([row.cpu.best / 1000 for row in ours], 0, "us of Envoy and Headgate")
    ratios = between([row.cpu.over(rows[FLOOR].cpu) for row in ours], 2, "times Envoy without a check")
    short = [("request through the gateway", costs, ratios)]
    return Part("Gateway", WHAT, METHOD, short, _verdict(rows), [("Numbers", _numbers(rows))])


def _verdict(rows: Rows) -> str:
    head = ("processor time of Envoy and what decides", "us", "x ratelimit", "aim", "verdict")
    row, ratio = rows.get(OURS), None
    if row is not None:
        ratio = _over(rows, row, PEER)
    passed = None if ratio is None else ratio <= MOST_OF_PEER
    cost = "-" if row is None else _us(row.cpu)
    return table(head, [("Headgate by RLS, Redis", cost, times(ratio), f"at most {MOST_OF_PEER:g}", verdict(passed))])


def _numbers(rows: Rows) -> str:
    head = (
        "microseconds of processor time per request",
        "Envoy",
        "what decides",
        "Redis",
        "both, x no check",
        "both, x ratelimit",
        "requests per second",
        "x no check",
        "x ratelimit",
    )
    return table(head, [_line(rows, row) for row in rows.values()])


def _line(rows: Rows, row: Row) -> tuple[object, ...]:
    decides = _us(row.decides) if any(row.decides.rounds) else "-"
    store = f"{row.store_us:.1f}" if row.case.redis else "-"
    costs = times(_over(rows, row, FLOOR)), times(_over(rows, row, PEER))
    rates = [times(rows[other].time.over(row.time) if other in rows else None) for other in (FLOOR, PEER)]
    return row.case.what, _us(row.envoy), decides, store, *costs, f"{row.per_second:,.0f}", *rates


def _over(rows: Rows, row: Row, other: str) -> float | None:
    return row.cpu.over(rows[other].cpu) if other in rows else None


def _us(figure: Figure) -> str:
    return f"{figure.best / 1000:.1f} +{100 * figure.spread:.0f} %"

"""The part about the service of the report: what was measured, how, and the results."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.service.figures import (
    LEAST_SHARE_ON_REDIS,
    LEAST_SOAKED,
    LEAST_TIMES_LESS,
    MOST_FOR_AUTHZ,
    MOST_FOR_DENIED,
    MOST_FOR_DESCRIPTORS,
    MOST_FOR_SHADOW,
    MOST_FOR_SHARED,
    MOST_FOR_THREE,
    MOST_FOR_TWO,
    MOST_P99_MS,
    MOST_TIMES_FLOOR,
    TARGET,
    UTILISATION,
    Cost,
    Costs,
    fleet,
)
from benchmarks.service.load import CONNECTIONS, GRPC_CONNECTIONS, STREAMS
from benchmarks.service.measuring import LONGER, OTHER, RUNS, ServiceResults
from benchmarks.service.requests import EXPONENT, FEW_USERS, SOAK_PATHS, SOAK_USERS, USERS, weights
from benchmarks.service.servers import STORE_SECONDS, Cores
from benchmarks.tables import Part, between, percent, table, times, verdict

WHAT = f"""\
The cost of a check in `headgate serve` on one processor core, over HTTP, gRPC and Envoy's rate limit service (RLS),
allowed and denied, on memory and on Redis. It is compared with nginx with a constant response, with trivial servers of
uvicorn and grpcio, which decide nothing, and with similar services, if they are installed. The aims, in processor time
unless stated otherwise:

- a check over HTTP takes at most {MOST_TIMES_FLOOR:g} times as much as nginx, and RLS at least \
{LEAST_TIMES_LESS:g} times less than grpcio;
- a refusal takes at most {MOST_FOR_DENIED:g} times as much as an admission, a descriptor file at most \
{MOST_FOR_DESCRIPTORS:g} times as much as
  rules, three rules at most {MOST_FOR_THREE:g} times as much as one, and a shadow rule beside them makes that at most
  {MOST_FOR_SHADOW:g} times as much;
- two descriptors take at most {MOST_FOR_TWO:g} times as much as one, external authorization at most \
{MOST_FOR_AUTHZ:g} times as much
  as RLS, and one key that all callers share at most {MOST_FOR_SHARED:g} times as much as many;
- RLS on Redis reaches at least {LEAST_SHARE_ON_REDIS:g} of its rate on memory, and the soak reaches at least
  {LEAST_SOAKED:,} times per second of a core;
- at half of the highest rate, the 99th percentile is under {MOST_P99_MS:g} ms.

**The figures are higher than those of earlier reports, but the service is not slower.** Earlier, 10,000 users took
turns: all had the same remaining number at the same time, and all their requests fitted into the service's caches. Now
each request is for one of {USERS:,} users, drawn by a Zipf law (exponent {EXPONENT:g}), as in real services: the \
busiest user sends {100 / weights(USERS)[-1]:.0f} % of
the requests, and most users send too few to be in a cache. Rows with {FEW_USERS:,} users show the effect of caches. \
In rows
with one shared key, all requests count against the same limit, and no two messages are the same.
"""
COSTS = """\
Microseconds of processor time per request (and the distance of the median round from the best one), and requests per
second on one core.
"""
LATENCY = """\
Milliseconds from sending a request to the end of its response, at half of the highest rate.
"""
AGAINST = """\
The Headgate of another environment, in turn with this one: processor time of this one over that of the other.
"""
OBSERVING = """\
The cost of metrics, hot keys and the log of denials for each check: the service's calls of its recorder, timed alone in
a loop, best round, and as a share of the processor time above. All other figures include it.
"""
SIZING = f"""\
The estimate for {TARGET:,} requests per second is processor time per request x rate = cores, at most \
{100 * UTILISATION:.0f} % busy, which is
where the latencies above were measured. Workers and nodes share nothing but Redis, and the keys of users are spread
over the primaries of a cluster by hash tag, so both numbers grow only with the rate. This is calculated from
the table above, not measured, and excludes load balancers and the network.
"""


def method(cores: Cores) -> str:
    """Describe the method."""
    ours, others = (", ".join(map(str, each)) for each in (cores.server, cores.others))
    return f"""\
- **Floor**: nginx with one worker, no access log, persistent connections; it reads the same `POST` and answers 200
  with a constant body. It parses no JSON and decides nothing.
- **uvloop**: the event loop that `headgate serve` runs in, with a protocol that treats every read as a request
  and writes a constant: the minimum of any server in Python.
- **uvicorn**: with uvloop and httptools; the application reads the body, parses the JSON and answers JSON.
- **grpcio**: the asyncio server; a generic handler that parses the request and answers OK, with protobuf's C extension.
- **headgate**: `headgate serve` as a user starts it, with metrics, one worker unless stated otherwise, and one rule,
  which matches every request (a fixed window per user). Redis is a server started for this run, without persistence;
  at full load, requests wait for each other, so it has {STORE_SECONDS} s for a response instead of 100 ms.
- **Descriptor file**: a file of envoyproxy/ratelimit with the same limit per user. "By rules beside a descriptor file":
  the service has both, and the file is for another domain.
- **Three rules**: per user, per address (one for each user), and one for all together; when denied, the first
  refuses. "And a shadow": a fourth rule, per user, in shadow.
- **The soak**: three rules on Redis. Each HTTP request is for one of {SOAK_USERS:,} users and one of {SOAK_PATHS:,}
  paths, at random, so hardly any request occurs twice.
- **Denied**: with a limit of 1, used up before the measurement. "One user": always the same one, answered from the
  cache of refusals.
- **ratelimit, limitador-server, gubernator, throttlecrab-server**: each started as its manual states, on one core, with
  the same limit per user; the last two get the limit in each request.
- **Cores**: the server is bound to core {ours}; the load, and Redis, to core {others}. With 2 workers the server
  gets a second core. If the machine has no more, it shares this core with the load and with Redis: the rates of such
  rows are then not meaningful, but the processor times are.
- **Users**: {USERS:,} unless stated otherwise; each request is for one of them, drawn by a Zipf law of exponent \
{EXPONENT:g}.
- **Load over HTTP**: wrk, one thread, {CONNECTIONS} connections.
- **Load over gRPC**: a separate client, since h2load always sends the same message; one thread,
  {GRPC_CONNECTIONS} connections with {STREAMS} calls in flight on each.
- **Processor time**: user and system time of all threads and processes of the server, from
  `/proc/PID/task/*/schedstat`, before and after a round, over the requests answered in it. Of Redis, by `INFO cpu`.
- **Rates** are those of all connections together, at full load.
- **Verified**: before and after its warm-up, a contender must return the result of its row. A round counts only if no
  request failed, and all were answered 200 or, over gRPC, with the result of the row. With one rule, Headgate must also
  have taken at least as much of a user's limit as its responses report.
- **Under load**: each round begins with a second of the same load that does not count, because other contenders have
  used the processor for minutes. Caches, including Headgate's cache of refusals, are then warm.
- **Noise**: all contenders take turns, round after round, each round starting with another one. A ratio is the median
  of the ratios within the rounds; other figures are those of the median round.
- **Latency**: at a constant rate, half of the rate of the best round, with no other server running, since those would
  wake up on its core every second. Over gRPC, the separate client sends due requests every millisecond, and times each
  from its due time. Over HTTP, h2load sends due requests of one user every 10 ms, in bursts. Of {RUNS} runs, the one
  with the median p99 counts; each takes {LONGER} times as long as a round, after a round at full load. The table also
  has the milliseconds per second that the server spent waiting for a core (`/proc/PID/schedstat`): none on an otherwise
  idle machine. Requests wait at least that long, and longer until the server has caught up.
"""


def part(results: ServiceResults) -> Part:
    """Return the part about the service of the report."""
    costs = results.costs
    missing, failed = ", ".join(results.missing), ", ".join(results.failed)
    requests = [
        COSTS,
        *([f"Not installed, and not measured: {missing}.\n"] if missing else []),
        *([f"Installed, but left out because they failed: {failed}.\n"] if failed else []),
        _costs(costs),
    ]
    sections = [("Requests", *requests)]
    if any(name.startswith(OTHER) for name in costs.rows):
        sections.append(("Against the other", AGAINST, _against(costs)))
    if any(cost.latency for cost in costs.ours):
        sections.append(("Latency", LATENCY, _latency(costs)))
    sections.append(("Observing", OBSERVING, _observing(results)))
    sections.append((f"{TARGET:,} requests per second", SIZING, _sizing(costs)))
    return Part("Service", WHAT, method(results.cores), list(_short(costs)), _verdicts(costs), sections)


def _short(costs: Costs) -> Iterator[tuple[str, str, str]]:
    """Return the summary: what, figures, and comparison."""
    if not {"floor", "grpcio", "http", "rls", "rls_redis"} <= costs.rows.keys():  # only a part was measured
        return
    http, rls, shared = (costs.rows[name] for name in ("http", "rls", "rls_redis"))
    compared = {
        http: f"{times(costs.ratio('http', 'floor'))} times nginx with a constant",
        rls: f"{costs.ratio('grpcio', 'rls'):.1f} times less than grpcio",
        shared: f"{times(rls.time.over(shared.time))} of the rate on memory",
    }
    for cost, against in compared.items():
        yield cost.what, f"{cost.cpu_us:.1f} us of a core, {cost.per_second:,.0f} a second", against
    late = [cost.latency.p99 for cost in costs.ours if cost.latency is not None]
    if late:
        what = "p99 latency, at half of the highest rate"
        yield what, between(late, 1, "ms at most"), f"aim: {MOST_P99_MS:g} ms"


def _verdicts(costs: Costs) -> str:
    """Return the aims and what was reached, as Markdown."""
    lines = ((aim.what, _found(aim.found), aim.aim, verdict(aim.passed)) for aim in costs.aims())
    return table(("what", "found", "aim", "verdict"), lines)


def _found(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else times(value)


def _costs(costs: Costs) -> str:
    head = ("server, request", "processor time", "x nginx", "x less than grpcio", "requests per second", "Redis")
    lines = []
    for name, cost in costs.rows.items():
        less = costs.ratio("grpcio", name)
        lines.append(
            (
                cost.label,
                f"{cost.cpu_us:,.1f} +{100 * cost.cpu.spread:.0f} %",
                times(costs.ratio(name, "floor")),
                "-" if less is None else f"{less:.1f}",
                f"{cost.per_second:,.0f}",
                f"{cost.store_us:.1f}" if cost.store_us else "-",
            )
        )
    return table(head, lines)


def _against(costs: Costs) -> str:
    lines = []
    for name, cost in costs.rows.items():
        ratio = costs.ratio(name, OTHER + name)
        if ratio is not None:
            lines.append((cost.what, f"{cost.cpu_us:.1f}", f"{costs.rows[OTHER + name].cpu_us:.1f}", times(ratio)))
    return table(("request", "this one, us", "the other, us", "ratio"), lines)


def _latency(costs: Costs) -> str:
    found = ((cost, cost.latency) for cost in costs.ours if cost.latency is not None)
    lines = (
        (
            cost.label,
            f"{late.target:,.0f}",
            f"{late.rate:,.0f}",
            *(f"{each:.2f}" for each in (late.p50, late.p99, late.worst, late.waited)),
        )
        for cost, late in found
    )
    head = (
        "server, request",
        "sent per second",
        "responses per second",
        "p50",
        "p99",
        "worst",
        "waited for its core",
    )
    return table(head, lines)


def _observing(results: ServiceResults) -> str:
    us, rows = results.observing.best / 1000, results.costs.rows
    found = [rows[name] for name in ("http", "grpc", "rls") if name in rows]
    lines = ((cost.what, f"{us:.2f}", percent(us, cost.cpu_us, 1)) for cost in found)
    return table(("request", "us per check", "of the processor time"), lines)


def _sizing(costs: Costs) -> str:
    head = ("request", "us per request", "us of Redis", "workers, a core each", "Redis primaries, a core each")
    return table(head, (_sized(cost) for cost in costs.ours if "workers" not in cost.what))


def _sized(cost: Cost) -> tuple[object, ...]:
    needed = fleet(cost.cpu_us, cost.store_us)
    store = (f"{cost.store_us:.1f}", needed.primaries) if cost.store_us else ("-", "-")
    return cost.what, f"{cost.cpu_us:.1f}", store[0], needed.workers, store[1]

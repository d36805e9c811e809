"""The words of the part about the service: what was measured, how, and how to read it."""

from __future__ import annotations

from benchmarks.service.asking import USERS
from benchmarks.service.figures import LEAST_SHARE_ON_REDIS, LEAST_TIMES_LESS, MOST_P99_MS, MOST_TIMES_FLOOR
from benchmarks.service.load import CONNECTIONS, GRPC_CONNECTIONS, STREAMS
from benchmarks.service.measuring import RUNS
from benchmarks.service.servers import Cores
from benchmarks.service.sizing import TARGET, UTILISATION

WHAT = f"""\
What a check costs `headgate serve` on one processor core, over HTTP, gRPC and Envoy's rate limit service (RLS), against
nginx answering a constant and against trivial servers of uvicorn and grpcio, which decide nothing. The aims: a check
over HTTP takes at most {MOST_TIMES_FLOOR:g} times the processor time of nginx; RLS at least {LEAST_TIMES_LESS:g} \
times less than grpcio; RLS on Redis
answers at least {LEAST_SHARE_ON_REDIS:g} of what it answers on memory; and at half of the highest rate the 99th \
percentile is under {MOST_P99_MS:g} ms.
"""


def method(cores: Cores) -> str:
    """Say how it was measured."""
    ours, others = (", ".join(map(str, each)) for each in (cores.server, cores.others))
    return f"""\
- **Floor**: nginx with one worker, no access log, connections that stay open; it reads the same `POST` and answers 200
  with a constant body. It parses no JSON and decides nothing.
- **uvicorn**: with uvloop and httptools; the application reads the body, parses the JSON and answers JSON.
- **grpcio**: the asyncio server; a generic handler that parses the request and answers OK, with protobuf's C extension.
- **headgate**: `headgate serve` as a user starts it, with metrics, one worker if not said otherwise, and one rule,
  which matches every request (a fixed window per user). Redis is a server started for this run, without persistence;
  flat out, requests wait for each other, so it gets 2 s for an answer rather than 10 ms.
- **Cores**: the server is bound to core {ours}; the load, and Redis, to core {others}. With 2 workers the server
  gets a second core and, where the machine has no more, shares it with the load and with Redis: such rows say little
  about rates there, but the processor time stands.
- **Load over HTTP**: wrk, one thread, {CONNECTIONS} connections, for {USERS:,} users in turn.
- **Load over gRPC**: a client of our own, since h2load can only send one and the same message; one thread,
  {GRPC_CONNECTIONS} connections with {STREAMS} calls in flight on each, for {USERS:,} users in turn.
- **Processor time**: user and system time of all threads and processes of the server, from
  `/proc/PID/task/*/schedstat`, before and after a round, over the requests answered in it. Of Redis, by `INFO cpu`.
- **Rates** are those of all connections together, flat out.
- **Verified**: before and after a contender is warmed up, it must allow. A round counts only if no request failed, and
  all were answered 200 or, over gRPC, allowed; ours must also have taken at least as much of a user's limit as answers
  say, so that nobody is measured while failing.
- **Noise**: all contenders take turns, round after round, each round starting with another one. A ratio is the median
  of the ratios within the rounds; other figures are those of the median round.
- **Latency**: at a constant rate, half of the rate of the best round. Over gRPC by our own client, which sends what is
  due every millisecond, and times each request from when it was due; over HTTP by h2load, for one user, which sends
  what is due every 10 ms, so in bursts. Of {RUNS} runs the one with the median p99 counts.
"""


COSTS = """\
Microseconds of processor time per request (and how far the median round lies above the best one), and requests per
second on one core.
"""

LATENCY = """\
Milliseconds from sending a request to the end of its answer, at half of the highest rate.
"""

OBSERVING = """\
What metrics, hot keys and the log of denials add to each check: the calls that the service makes of its recorder, timed
alone in a loop, best round, and as a share of the processor time above. They are in all other figures.
"""

SIZING = f"""\
The way to {TARGET:,} requests per second: processor time per request x rate = cores, at most \
{100 * UTILISATION:.0f} % busy, which is
where the latencies above were measured. Workers and nodes share nothing but Redis, and the keys of users are spread
over the primaries of a cluster by hash tag, so both numbers grow with the rate and with nothing else. This is
arithmetic from the table above, not a measurement; load balancers and the network come on top.
"""

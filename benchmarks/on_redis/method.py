"""The words of the Redis part: what was measured, how, and how to read it."""

from __future__ import annotations

from benchmarks.on_redis.cases import ALLOWING, CALLERS, PROVING, REFUSING
from benchmarks.on_redis.figures import LEAST_TIMES_PEER, MOST_TIMES_INCR_ALONE
from benchmarks.on_redis.servers import PRIMARIES
from benchmarks.scenarios import Limit


def _limits(limits: tuple[Limit, ...]) -> str:
    day, week, month = (f"{limit.units:,}" for limit in limits)
    return f"{day} a day ({week} a week, {month} per 30 days)"


WHAT = f"""\
What one decision costs when the state lives in Redis, against a bare `INCR` of redis-py and against other libraries.
The aim: {CALLERS} concurrent async callers get at least {LEAST_TIMES_PEER:g} times the decisions per second of the best
peer, and more than they get `INCR`s; for one caller a decision takes at most {MOST_TIMES_INCR_ALONE:g} times as long as
an `INCR`. Every row is shown, whether it passes or not.
"""

METHOD = f"""\
- **Server**: a redis-server started for this run on a free port of the loopback, without persistence; client and
  server share the machine. Each contender has a database of its own. The cluster is {PRIMARIES} more servers, without
  replicas.
- **Floor**: redis-py's `INCR` of the same keys, with hiredis. It decides nothing and sets no expiry. Its pool is the
  default one, which has a connection per caller: for {CALLERS} callers the fastest of all settings that were tried
  (`BlockingConnectionPool` of 1 to 64, a single connection, RESP2 and RESP3). With three limits, the floor is three
  `INCR`s in one pipeline. For information, with GCRA there are more floors: a client with a single connection and no
  pool, coredis, and `INCR`s that are gathered by hand into a pipeline per turn of the event loop.
- **{CALLERS} callers**: as many tasks of one event loop in one process, each asking for the next key as soon as it has
  its answer. Decisions per second are those of all together.
- **One caller**: asks one key after the other, blocking or in an event loop.
- **Peers**: as their documentation shows them, each with its default connection pool. `limits`: `hit()` is one call
  to the server and returns a bool; equal work, `hit()` + `get_window_stats()`, is two or three. It runs over redis-py
  and, in an event loop, also over coredis, its default. `throttled-py`: `limit()`, whose reply has all;
  its own extra asks for redis-py below 8, but it runs on the version above, as everybody does.
  `pyrate-limiter`: `try_acquire()`, a bool, with a `BucketFactory` that finds a bucket per name by one dictionary
  lookup; in an event loop what it returns is awaited, since `try_acquire_async()` lets only one caller ask at a time.
- **The best peer is the fastest call of any peer with the same algorithm, however little it answers.** The ratio to
  the fastest call that says as much as a `Decision` (allowed, remaining, when to come back) stands beside it.
- Not measured: redis-rate-limiters, which puts callers to sleep rather than answer.
- **Allowed**: limits of {_limits(ALLOWING)}. Many keys are called in one shuffled
  order and have their state already. One key is a fresh one in each round.
- **Denied**: limits of {_limits(REFUSING)}; the first is used up before timing.
- **Three limits**: Headgate and `pyrate-limiter` decide all in one atomic call; the others are asked limit after limit
  until one refuses, and on the deny path that is the first, which is the best order for them, and
  leaves the other limits out of the answer.
- **Verified**: before a contender is timed, it must admit {PROVING[0].units} requests under a limit of \
{PROVING[0].units} and refuse the next.
  Every answer of every timed round is checked afterwards, all allowed or all denied, and none degraded; the run stops
  if one is not.
- **Timing**: the same loop for all, between two `perf_counter_ns()`; nothing is subtracted. All contenders take turns,
  round after round, each round starting with another one. The garbage collector is off, as in `timeit`.
- **Noise**: a ratio is the median of the ratios within the rounds, so that what slows a whole round down is in both of
  its sides, and no lucky round of one side decides. Rates and times beside it are those of the median round, whose
  quotient may differ a little. The best peer is the one with the smallest ratio. The spread is how far the median round
  lies above the best one.
- **Processor time**: of this process by `process_time_ns()`, of the server by `used_cpu_user` + `used_cpu_sys` of
  `INFO cpu`; both around each round and summed over all rounds. The server's includes its sockets.
- **Bytes** are those of `MEMORY USAGE` with all samples, summed over all keys that a client has. It leaves out the
  table of expiries, for everybody; a bare `INCR` has no entry there.
"""

TOGETHER = f"""\
Decisions per second of {CALLERS} async callers together under one limit, median round.
"""

ALONE = """\
Microseconds per decision of one caller under one limit, median round.
"""

THREE_LIMITS = f"""\
Decisions per second of {CALLERS} async callers together under three limits, median round. The floor is three `INCR`s in
a pipeline.
"""

CLUSTER = f"""\
Decisions per second of {CALLERS} async callers together in a cluster of {PRIMARIES} primaries, median round, against \
redis-py's `RedisCluster`.
"""

EVERY_CALL = f"""\
Microseconds on the clock per call, best round, and how far the median round lies above it. For {CALLERS} callers
this is the time in which one of all calls is done.
"""

PROCESSOR = """\
Microseconds of processor time per call: this process + the server.
"""

MEMORY = """\
Bytes of the server's memory per client, all its keys together. A client's name has 13 characters.
"""

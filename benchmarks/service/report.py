"""Renders the part about the service of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.service import method
from benchmarks.service.figures import MOST_P99_MS, Cost, Costs
from benchmarks.service.running import ServiceResults
from benchmarks.service.sizing import TARGET, fleet
from benchmarks.tables import between, percent, table, times
from benchmarks.verdicts import verdict


def render(results: ServiceResults) -> str:
    """Return the part about the service as Markdown."""
    costs = results.costs
    parts = [
        "## Service\n",
        method.WHAT,
        "### Service: verdicts\n",
        summary(costs),
        "### Service: method\n",
        method.method(results.cores),
        "### Service: requests\n",
        method.COSTS,
        _costs(costs),
        "### Service: latency\n",
        method.LATENCY,
        _latency(costs),
        "### Service: observing\n",
        method.OBSERVING,
        _observing(results),
        f"### Service: {TARGET:,} requests per second\n",
        method.SIZING,
        _sizing(costs),
    ]
    return "\n".join(parts)


def in_short(costs: Costs) -> Iterator[tuple[str, str, str]]:
    """Return what it comes to: what, how much, and compared with what."""
    nginx = f"{times(costs.http.cpu.over(costs.floor.cpu))} times nginx with a constant"
    grpcio = f"{costs.grpcio.cpu.over(costs.rls.cpu):.1f} times less than grpcio"
    shared = f"{times(costs.rls.time.over(costs.rls_redis.time))} of the rate on memory"
    for cost, compared in ((costs.http, nginx), (costs.rls, grpcio), (costs.rls_redis, shared)):
        yield cost.what, f"{cost.cpu_us:.1f} us of a core, {cost.per_second:,.0f} a second", compared
    late = [cost.latency.p99 for cost in costs.ours if cost.latency is not None]
    yield "99 of 100 answers, at half of the highest rate", between(late, 1, "ms at most"), f"aim: {MOST_P99_MS:g} ms"


def summary(costs: Costs) -> str:
    """Return the aims and what was reached, as Markdown."""
    lines = ((aim.what, times(aim.found), aim.aim, verdict(aim.passed)) for aim in costs.aims())
    return table(("what", "found", "aim", "verdict"), lines)


def _costs(costs: Costs) -> str:
    head = ("server, asked how", "processor time", "x nginx", "x less than grpcio", "requests per second", "Redis")
    lines = (
        (
            cost.label,
            f"{cost.cpu_us:,.1f} +{100 * cost.cpu.spread:.0f} %",
            times(cost.cpu.over(costs.floor.cpu)),
            f"{costs.grpcio.cpu.over(cost.cpu):.1f}",
            f"{cost.per_second:,.0f}",
            f"{cost.store_us:.1f}" if cost.store_us else "-",
        )
        for cost in costs.all
    )
    return table(head, lines)


def _latency(costs: Costs) -> str:
    found = ((cost, cost.latency) for cost in costs.all if cost.latency is not None)
    lines = (
        (
            cost.label,
            f"{late.asked:,.0f}",
            f"{late.rate:,.0f}",
            *(f"{each:.2f}" for each in (late.p50, late.p99, late.worst)),
        )
        for cost, late in found
    )
    return table(("server, asked how", "asked per second", "answered per second", "p50", "p99", "worst"), lines)


def _observing(results: ServiceResults) -> str:
    costs, us = results.costs, results.observing.best / 1000
    lines = ((cost.what, f"{us:.2f}", percent(us, cost.cpu_us, 1)) for cost in (costs.http, costs.grpc, costs.rls))
    return table(("asked how", "us per check", "of the processor time"), lines)


def _sizing(costs: Costs) -> str:
    head = ("asked how", "us per request", "us of Redis", "workers, a core each", "Redis primaries, a core each")
    return table(head, (_sized(cost) for cost in costs.ours if "workers" not in cost.what))


def _sized(cost: Cost) -> tuple[object, ...]:
    needed = fleet(cost.cpu_us, cost.store_us)
    store = (f"{cost.store_us:.1f}", needed.primaries) if cost.store_us else ("-", "-")
    return cost.what, f"{cost.cpu_us:.1f}", store[0], needed.workers, store[1]

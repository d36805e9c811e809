"""Renders docs/benchmarks.md, a page of results, and a page with method and rows for each part in docs/benchmarks."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version

from benchmarks import replay, sdk
from benchmarks.clients import report as by_clients
from benchmarks.clients.measuring import ClientsResults
from benchmarks.gateway import report as by_gateway
from benchmarks.gateway.measuring import GatewayResults
from benchmarks.in_memory import report as in_memory
from benchmarks.in_memory.report import MemoryResults
from benchmarks.integrations import report as in_frameworks
from benchmarks.integrations.measuring import IntegrationResults
from benchmarks.on_redis import report as on_redis
from benchmarks.on_redis.measuring import RedisResults
from benchmarks.replay import ReplayResults
from benchmarks.rules import report as by_rules
from benchmarks.rules.measuring import RulesResults
from benchmarks.sdk import SdkResults
from benchmarks.service import report as by_service
from benchmarks.service.measuring import ServiceResults
from benchmarks.tables import table

WHAT = """\
The cost of a decision in memory, on Redis and over the wire, as a ratio to a peer or a floor measured in the same run.
`make bench` renders this page and those of the parts; every row is shown, whether it passes or not.
"""
VERSIONS = (
    "headgate",
    "limits",
    "throttled-py",
    "pyrate-limiter",
    "msgspec",
    "redis",
    "hiredis",
    "coredis",
    "uvloop",
    "hpack",
    "uvicorn",
    "httptools",
    "grpcio",
    "protobuf",
    "slowapi",
    "fastapi-limiter",
    "flask-limiter",
)


@dataclass(frozen=True, slots=True)
class Results:
    """All that one run measured; None is a part that was left out."""

    environment: dict[str, str]
    memory: MemoryResults | None = None
    redis: RedisResults | None = None
    rules: RulesResults | None = None
    service: ServiceResults | None = None
    integrations: IntegrationResults | None = None
    sdk: SdkResults | None = None
    clients: ClientsResults | None = None
    gateway: GatewayResults | None = None
    replay: ReplayResults | None = None


def render(results: Results) -> dict[str, str]:
    """Return the report as Markdown, by the path of each page below docs: one with the results, one for each part."""
    pages = dict(_parts(results))
    short = ["# Benchmarks\n", WHAT, in_short(results)]
    links = (f"[{text.partition(': ')[2].partition(chr(10))[0]}]({path})" for path, text in pages.items())
    short += [f"Method and all rows: {', '.join(links)}.\n"]
    short += ["## Environment\n", table(("", ""), results.environment.items())]
    return {"benchmarks.md": "\n".join(short), **pages}


def _parts(results: Results) -> Iterator[tuple[str, str]]:
    if results.memory:
        yield "benchmarks/memory.md", in_memory.render(results.memory)
    if results.redis:
        yield "benchmarks/redis.md", on_redis.render(results.redis)
    if results.rules:
        yield "benchmarks/rules.md", by_rules.render(results.rules)
    if results.service:
        yield "benchmarks/service.md", by_service.render(results.service)
    if results.integrations:
        yield "benchmarks/integrations.md", in_frameworks.render(results.integrations)
    if results.sdk:
        yield "benchmarks/sdk.md", sdk.render(results.sdk)
    if results.clients:
        yield "benchmarks/clients.md", by_clients.render(results.clients)
    if results.gateway:
        yield "benchmarks/gateway.md", by_gateway.render(results.gateway)
    if results.replay:
        yield "benchmarks/replay.md", replay.render(results.replay)


def in_short(results: Results) -> str:
    """Return the whole in few lines: figures, what they are compared with, and how many aims were reached."""
    lines: list[tuple[str, str, str]] = []
    if results.memory:
        lines += in_memory.in_short(results.memory.rows)
    if results.redis:
        lines += on_redis.in_short(results.redis.rows)
    if results.rules:
        lines += by_rules.in_short(results.rules.rows)
    if results.service:
        lines += by_service.in_short(results.service.costs)
    if results.integrations:
        lines += in_frameworks.in_short(results.integrations.rows)
    if results.sdk:
        lines += sdk.in_short(results.sdk)
    if results.clients:
        lines += by_clients.in_short(results.clients)
    if results.gateway:
        lines += by_gateway.in_short(results.gateway.rows)
    if results.replay:
        lines += replay.in_short(results.replay)
    verdicts = summary(results)
    passed, failed = verdicts.count("PASS"), verdicts.count("**FAIL**")
    reached = f"{passed} of {passed + failed} verdicts are PASS. Each line shows its best and its worst row.\n"
    return "\n".join((reached, table(("what", "Headgate", "compared"), lines)))


def summary(results: Results) -> str:
    """Return the verdicts alone."""
    parts = []
    if results.memory:
        parts.append(in_memory.summary(results.memory))
    if results.redis:
        parts.append(on_redis.summary(results.redis.rows))
    if results.rules:
        parts.append(by_rules.summary(results.rules.rows))
    if results.service:
        parts.append(by_service.summary(results.service.costs))
    if results.integrations:
        parts.append(in_frameworks.summary(results.integrations.rows))
    if results.clients:
        parts.append(by_clients.summary(results.clients))
    if results.gateway:
        parts.append(by_gateway.summary(results.gateway.rows))
    return "\n".join(parts)


def environment() -> dict[str, str]:
    """Return facts by name. None of them tells whose machine it is."""
    return {
        "CPU": _cpu(),
        "cores": str(os.cpu_count()),
        "load of others, before": f"{os.getloadavg()[0]:.1f} processes on average of the last minute",
        "system": f"{_distribution()}, {platform.machine()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: version(name) for name in VERSIONS},
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123  a kernel's table, not a file of ours
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()

"""Renders docs/benchmarks.md: all of it in short, then where the numbers come from, and each part."""

from __future__ import annotations

import os
import platform
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
What a decision costs, in memory and on Redis, as ratios to what others need for the same in the same run; what it
costs to find the rules for a request; what a check costs over the wire, and who asks for it; and what a limit costs a
web application, a client and a gateway; and what it takes to replay a log.

Rendered by `python -m benchmarks`; every row is shown, whether it passes or not.
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


def render(results: Results) -> str:
    """Return the report as Markdown."""
    parts = ["# Benchmarks\n", WHAT, in_short(results)]
    parts += ["## Environment\n", table(("", ""), results.environment.items())]
    if results.memory:
        parts.append(in_memory.render(results.memory))
    if results.redis:
        parts.append(on_redis.render(results.redis))
    if results.rules:
        parts.append(by_rules.render(results.rules))
    if results.service:
        parts.append(by_service.render(results.service))
    if results.integrations:
        parts.append(in_frameworks.render(results.integrations))
    if results.sdk:
        parts.append(sdk.render(results.sdk))
    if results.clients:
        parts.append(by_clients.render(results.clients))
    if results.gateway:
        parts.append(by_gateway.render(results.gateway))
    if results.replay:
        parts.append(replay.render(results.replay))
    return "\n".join(parts)


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
    reached = f"{passed} of {passed + failed} verdicts below are PASS; worst and best row of each line:\n"
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

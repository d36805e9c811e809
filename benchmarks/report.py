"""Renders docs/benchmarks.md, a page of results, and a page with method and rows for each part in docs/benchmarks."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

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
from benchmarks.tables import Part, table

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


PARTS: Mapping[str, Callable[[Any], Part]] = {
    "memory": in_memory.part,
    "redis": on_redis.part,
    "rules": by_rules.part,
    "service": by_service.part,
    "integrations": in_frameworks.part,
    "sdk": sdk.part,
    "clients": by_clients.part,
    "gateway": by_gateway.part,
    "replay": replay.part,
}
"""By name, the function from the results of a part to its report."""


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a run; None: the part was not measured."""

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


def parts(results: Results) -> dict[str, Part]:
    """Return the parts that were measured, by name."""
    return {name: make(found) for name, make in PARTS.items() if (found := getattr(results, name)) is not None}


def render(results: Results) -> dict[str, str]:
    """Return the report as Markdown, by the path of each page below docs: one with the results, one for each part."""
    found = parts(results)
    verdicts = "\n".join([part.verdicts for part in found.values()])
    passed, failed = verdicts.count("PASS"), verdicts.count("**FAIL**")
    links = ", ".join([f"[{part.title}](benchmarks/{name}.md)" for name, part in found.items()])
    short = [
        "# Benchmarks\n",
        WHAT,
        f"{passed} of {passed + failed} verdicts are PASS. Each line shows its best and its worst row.\n",
        table(("what", "Headgate", "compared"), [line for part in found.values() for line in part.short]),
        f"Method and all rows: {links}.\n",
        "## Environment\n",
        table(("", ""), results.environment.items()),
    ]
    pages = {f"benchmarks/{name}.md": part.page() for name, part in found.items()}
    return {"benchmarks.md": "\n".join(short), **pages}


def environment() -> dict[str, str]:
    """Return facts by name, without any that identify the machine."""
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

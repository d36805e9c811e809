"""Where the numbers come from: machine, Python and library versions, as they are at run time."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

LIBRARIES = (
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
)


def describe() -> dict[str, str]:
    """Return facts by name. None of them tells whose machine it is."""
    return {
        "CPU": _cpu(),
        "cores": str(os.cpu_count()),
        "load of others, before": f"{os.getloadavg()[0]:.1f} processes on average of the last minute",
        "system": f"{_distribution()}, {platform.machine()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: version(name) for name in LIBRARIES},
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

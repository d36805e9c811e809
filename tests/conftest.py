"""Settings of all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings

from tests.postgres import PostgresServer, postgres_server
from tests.servers import RedisServer, redis_server

settings.register_profile(
    "default",
    deadline=None,  # machines are noisy: no test depends on how long it takes
    derandomize=True,  # a run is like the one before; `thorough` looks for more
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("default"), derandomize=False, max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

if "PYTEST_XDIST_WORKER" in os.environ:  # measured is what tests do here, not what the processes do that they start
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # in the background of a shell; what tests start would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["HEADGATE_PROGRESS"] = "off"  # on a busy machine anything may take long, and what is quick says nothing

ROOT = Path(__file__).parents[1]
LONGEST_FIRST = (
    "tests/stores/redis/test_topology_faults.py",
    "tests/gateway/test_operation.py",
    "tests/admin/test_schemathesis.py",
    "tests/server/process/test_failures.py",
    "tests/benchmarks/test_report.py",
    "tests/gateway/test_attacks.py",
    "tests/admin/test_fleet.py",
    "tests/server/process",
    "tests/gateway",
    "tests/stores/redis",
    "tests/docs",
    "tests/admin",
    "tests/console",
    "tests/core/test_laws.py",
    "tests/policy/test_compiled",
    "tests/sdk",
    "tests/pacing",
    "tests/benchmarks",
    "tests/stores",
    "tests/core",
    "tests/testing",
    "tests/cli",
)
"""Files and folders that take long for the number of their tests. Whoever runs several files at a time runs out of
work at the end: it should then have short ones left."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run asynchronous tests and fixtures on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def state_folder() -> Iterator[None]:
    """Keep the last good rules of the databases of tests where they do not stay."""
    with TemporaryDirectory(prefix="headgate-state-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", folder)
        yield


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """A Redis server of each module."""
    with redis_server() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis server that a test may stop, or fill."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of each module; a test that stops it starts it again."""
    with postgres_server() as server:
        yield server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that take longest first; those of a file stay together, in their order."""
    items.sort(key=lambda item: _rank(item.path.relative_to(ROOT).as_posix()))


def pytest_collection_finish() -> None:
    """Let the garbage collector look past the thousands of tests that were found: they stay until the end."""
    gc.collect()
    gc.freeze()


def _rank(path: str) -> int:
    return next((rank for rank, start in enumerate(LONGEST_FIRST) if path.startswith(start)), len(LONGEST_FIRST))

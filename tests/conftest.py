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
    deadline=None,  # tests may run on busy machines
    derandomize=True,  # every run is the same; `thorough` finds more
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("default"), derandomize=False, max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

if "PYTEST_XDIST_WORKER" in os.environ:  # coverage of this process only, not of those that tests start
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)

# In the background of a shell, SIGINT is ignored, also by the processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["HEADGATE_PROGRESS"] = "off"  # on a busy machine, quick work may be slow enough to show progress

ROOT = Path(__file__).parents[1]
LONGEST_FIRST = (
    "tests/stores/redis/test_topology_faults.py",
    "tests/gateway/test_operation.py",
    "tests/benchmarks/test_report.py",
    "tests/docs/test_blocks.py",
    "tests/docs/test_demo.py",
    "tests/admin/test_schemathesis.py",
    "tests/server/process/test_keys.py",
    "tests/server/process/test_usage.py",
    "tests/server/process/test_drain.py",
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
"""Files and folders with slow tests. They run first, so that the last ones, which run beside few others, are short."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run asynchronous tests and fixtures on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def state_folder() -> Iterator[None]:
    """Keep snapshots of the tests' databases in a temporary folder."""
    with TemporaryDirectory(prefix="headgate-state-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", folder)
        yield


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis server that a test may stop or fill."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for each module; a test that stops it starts it again."""
    with postgres_server() as server:
        yield server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort slow tests first; those of a file keep their order."""
    items.sort(key=lambda item: _rank(item.path.relative_to(ROOT).as_posix()))


def pytest_collection_finish() -> None:
    """Exclude the thousands of collected tests from garbage collection: they stay until the end."""
    gc.collect()
    gc.freeze()


def _rank(path: str) -> int:
    return next((rank for rank, start in enumerate(LONGEST_FIRST) if path.startswith(start)), len(LONGEST_FIRST))

"""The servers of tests end with the tests, however those end, and share a machine with others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import servers
from tests.servers import RedisServer, free_port, redis_server, until

STORY = """
import time
from tests.clusters import redis_cluster
from tests.servers import redis_server

with redis_server() as server, redis_cluster(2, 0) as cluster:
    print(server.folder, cluster.nodes[0].folder)
    print(*[each.process.pid for each in (server, *cluster.nodes)], flush=True)
    time.sleep(600)
"""


def is_alive(process: int) -> bool:
    """Does a process run? One that ended and was not waited for does not."""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def test_a_run_that_is_killed_leaves_no_servers_behind() -> None:
    root = Path(__file__).parent.parent
    with subprocess.Popen([sys.executable, "-c", STORY], cwd=root, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        folders = [Path(folder) for folder in run.stdout.readline().split()]
        processes = [int(number) for number in run.stdout.readline().split()]
        assert len(processes) == 3
        assert all(map(is_alive, processes))
        os.kill(run.pid, signal.SIGKILL)
    until(lambda: not any(map(is_alive, processes)), "the servers end")
    for folder in folders:  # the run was killed before it could
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def test_a_port_that_is_taken_is_left_to_its_owner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with redis_server() as other:
        ports = iter([other.port, free_port()])
        monkeypatch.setattr(servers, "free_port", lambda: next(ports, None) or free_port())
        server = RedisServer(tmp_path)
        assert server.port == other.port
        try:
            server.start()
            server.ask("SET", "mine", "1")
            assert server.port != other.port
            assert other.ask("DBSIZE") == 0
        finally:
            server.stop()

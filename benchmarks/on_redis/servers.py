"""Redis servers on free ports of the loopback, without persistence, in temporary folders, ended by process id."""

from __future__ import annotations

import atexit
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

from redis import Redis, RedisError

START_SECONDS = 120
"""Timeout of the start of a server."""
SLOTS = 16_384
PRIMARIES = 3
_RESERVED = ExitStack()
"""Sockets that reserve the ports that were returned."""
atexit.register(_RESERVED.close)


class ServerError(RuntimeError):
    """A server is missing or does not start."""


class Server:
    """One redis-server, and a connection to control it that takes no part in any measurement."""

    def __init__(self, port: int, control: Redis) -> None:
        self.port, self.control = port, control

    def address(self, database: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{database}"

    @property
    def version(self) -> str:
        return str(self.control.info("server")["redis_version"])

    def cpu_us(self) -> float:
        """Return the processor time that the server has used, in microseconds."""
        used = self.control.info("cpu")
        return 1e6 * (float(used["used_cpu_user"]) + float(used["used_cpu_sys"]))

    def forget(self) -> None:
        """Delete all keys."""
        self.control.flushall()

    def bytes_used(self, database: int) -> int:
        """Return what all keys of a database take together, by `MEMORY USAGE`."""
        with Redis.from_url(self.address(database)) as client:
            return sum(client.memory_usage(key, samples=0) or 0 for key in client.scan_iter(count=1000))


class Cluster:
    """Primaries that share the slots evenly."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = servers

    @property
    def address(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def cpu_us(self) -> float:
        return sum(server.cpu_us() for server in self.servers)

    def forget(self) -> None:
        for server in self.servers:
            server.forget()


@contextmanager
def redis_server(*options: str) -> Iterator[Server]:
    """A server for the length of a with block; `options` are more words of its command line."""
    program = shutil.which("redis-server")
    if not program:
        raise ServerError("redis-server is needed for this part: apt-get install redis-server, or run `make servers`")
    port = free_port()
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        words = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder, *options]
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(words, stdout=output, stderr=output)  # noqa: S603  found on the path
        control = Redis(port=port)
        try:
            _wait(control, process, log)
            yield Server(port, control)
        finally:
            control.close()
            process.terminate()
            process.wait()


@contextmanager
def redis_cluster() -> Iterator[Cluster]:
    """A cluster of `PRIMARIES` without replicas for the length of a with block."""
    with ExitStack() as stack:
        servers, buses = [], []
        for _ in range(PRIMARIES):
            buses.append(free_port())
            options = ("--cluster-enabled", "yes", "--cluster-port", str(buses[-1]))
            servers.append(stack.enter_context(redis_server(*options)))
        share = SLOTS // PRIMARIES
        for number, server in enumerate(servers):
            last = SLOTS - 1 if server is servers[-1] else (number + 1) * share - 1
            server.control.cluster("SET-CONFIG-EPOCH", number + 1)
            server.control.cluster("ADDSLOTSRANGE", number * share, last)
            server.control.cluster("MEET", "127.0.0.1", servers[0].port, buses[0])
        give_up = monotonic() + START_SECONDS
        while not all(_agrees(server) for server in servers):
            if monotonic() > give_up:
                raise ServerError(f"the cluster is not formed after {START_SECONDS} s")
            sleep(0.05)
        yield Cluster(servers)


def free_port() -> int:
    """Return a port of the loopback for a server that is about to start.

    It is not one that the system may give to a client's end of a connection, and it is kept until this process ends:
    whoever asks for a free one meanwhile gets another. Servers bind with SO_REUSEADDR, and so can have it all the same.
    """
    while True:
        port, reserved = random.randrange(10_000, 32_000), socket.socket()
        try:
            reserved.bind(("127.0.0.1", port))
        except OSError:
            reserved.close()
            continue
        reserved.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # after bind: no other process may have it before
        _RESERVED.enter_context(reserved)
        return port


def _wait(control: Redis, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up = monotonic() + START_SECONDS
    while True:
        try:
            control.ping()
        except RedisError:
            if process.poll() is not None or monotonic() > give_up:
                raise ServerError(f"redis-server does not start:\n{log.read_text(errors='replace')}") from None
            sleep(0.02)
        else:
            return


def _agrees(server: Server) -> bool:
    """Return whether this server knows the owners of all slots."""
    known = server.control.cluster("INFO")
    return known["cluster_state"] == "ok" and int(known["cluster_size"]) == PRIMARIES

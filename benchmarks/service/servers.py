"""Starts the servers that are measured, on free ports of the loopback and cores of their own; ends them by their id."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

from benchmarks.on_redis.servers import START_SECONDS, ServerError, free_port
from benchmarks.service import certificate, processor
from benchmarks.service.asking import RULES

ROOT = Path(__file__).parents[2]
NGINX = """\
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log stderr error;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  keepalive_timeout 600s;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    default_type application/json;
    location / {{ return 200 '{{"allowed":true,"limit":1000,"remaining":999,"rule_id":"per-user"}}'; }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Cores:
    """Which processor cores the server has, and which the load and Redis have."""

    server: tuple[int, ...]
    others: tuple[int, ...]

    @classmethod
    def split(cls, processes: int = 1) -> Cores:
        """Give the server a core for each process, and the others what is left, or all if nothing is."""
        cores = sorted(os.sched_getaffinity(0))
        return cls(tuple(cores[:processes]), tuple(cores[processes:] or cores))


class Served:
    """A server that runs."""

    def __init__(
        self, process: subprocess.Popen[bytes], http_port: int = 0, grpc_port: int = 0, *, tls: bool = False
    ) -> None:
        self._process, self.http_port, self.grpc_port, self.tls = process, http_port, grpc_port, tls

    def used_ns(self) -> int:
        """Return the processor time of all its processes so far."""
        return processor.used_ns(self._process.pid)


@contextmanager
def nginx(cores: Cores) -> Iterator[Served]:
    """Nginx with one worker that answers a constant: the floor."""
    port = free_port()
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        configuration = Path(folder) / "nginx.conf"
        configuration.write_text(NGINX.format(folder=folder, port=port))
        words = ["nginx", "-p", folder, "-e", "stderr", "-c", str(configuration)]
        with _running(words, cores, port) as process:
            yield Served(process, http_port=port)


@contextmanager
def uvicorn(cores: Cores) -> Iterator[Served]:
    port = free_port()
    with _running([sys.executable, "-m", "benchmarks.service.peers.uvicorn_check", str(port)], cores, port) as process:
        yield Served(process, http_port=port)


@contextmanager
def grpcio(cores: Cores) -> Iterator[Served]:
    port = free_port()
    with _running([sys.executable, "-m", "benchmarks.service.peers.grpcio_rls", str(port)], cores, port) as process:
        yield Served(process, grpc_port=port)


@contextmanager
def headgate(
    cores: Cores, store: str = "memory", options: Sequence[str] = (), *, tls: bool = False
) -> Iterator[Served]:
    """`headgate serve` with one rule; `options` are more words of its command line."""
    http_port, grpc_port = free_port(), free_port()
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        rules = Path(folder) / "rules.yaml"
        rules.write_text(RULES)
        words = [sys.executable, "-m", "headgate.cli", "serve", "--rules", str(rules), "--store", store]
        words += ["--http-port", str(http_port), "--grpc-port", str(grpc_port), *options]
        if tls:
            chain, key = certificate.write(Path(folder))
            words += ["--tls-cert", str(chain), "--tls-key", str(key)]
        with _running(words, cores, http_port, grpc_port) as process:
            yield Served(process, http_port, grpc_port, tls=tls)


@contextmanager
def _running(words: Sequence[str], cores: Cores, *ports: int) -> Iterator[subprocess.Popen[bytes]]:
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        log = Path(folder) / "log"
        pinned = ["taskset", "-c", ",".join(map(str, cores.server)), *words]
        with log.open("wb") as output:
            process = subprocess.Popen(pinned, stdout=output, stderr=output, cwd=ROOT)  # noqa: S603  our own words
        try:
            for port in ports:
                _wait(process, port, log)
            yield process
        finally:
            process.terminate()
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    give_up = monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if process.poll() is not None or monotonic() > give_up:
                raise ServerError(f"a server does not start:\n{log.read_text(errors='replace')}") from None
            sleep(0.02)
        else:
            return


def pin(process: int, cores: Iterable[int]) -> None:
    """Let a process with all its threads run on these cores alone."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def version(program: str) -> str:
    """Return the version that a program tells; wrk and nginx tell it among other words, and not all on stdout."""
    option = {"h2load": "--version"}.get(program, "-v")
    told = subprocess.run([program, option], capture_output=True, text=True, check=False)  # noqa: S603  from a list of ours
    first = (told.stdout + told.stderr).splitlines()[0]
    return next((word for word in first.replace("/", " ").split() if word[0].isdigit()), first)

"""Starts servers on free ports of the loopback and separate cores; ends them by process id."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from benchmarks.on_redis.servers import START_SECONDS, ServerError, free_port
from benchmarks.service.requests import DOMAIN

ROOT = Path(__file__).parents[2]
PROC = Path("/proc")
PROGRAMS = ("ratelimit", "limitador-server", "gubernator", "throttlecrab-server")
"""Peers, which are measured if installed."""
STORE_SECONDS = 60
"""Timeout of Redis: at full load, requests wait longer than the usual 10 ms."""
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
    """The processor cores of the server, and those of the load and Redis."""

    server: tuple[int, ...]
    others: tuple[int, ...]

    @classmethod
    def split(cls, processes: int = 1) -> Cores:
        """Return a core for each process of the server, and the remaining ones, or all, for the others."""
        cores = sorted(os.sched_getaffinity(0))
        return cls(tuple(cores[:processes]), tuple(cores[processes:] or cores))


@dataclass(frozen=True, slots=True)
class Setup:
    """A server with its configuration. Equal setups share a server."""

    program: str = "headgate"
    rules: str = ""
    """A file of rules; of Limitador, its limits."""
    descriptors: str = ""
    """A file of envoyproxy/ratelimit."""
    identity: str = ""
    """An identity file."""
    redis: bool = False
    """Whether its state is on Redis, rather than in memory."""
    tls: bool = False
    workers: int = 1
    local_cache: bool = False
    """Whether ratelimit caches refusals in memory."""

    @property
    def is_here(self) -> bool:
        """Whether it is installed."""
        return self.program not in PROGRAMS or shutil.which(self.program) is not None


class Served:
    """A running server."""

    def __init__(self, process: int, http_port: int = 0, grpc_port: int = 0, *, tls: bool = False) -> None:
        self.process, self.http_port, self.grpc_port, self.tls = process, http_port, grpc_port, tls

    def used_ns(self) -> int:
        """Return the processor time of all its processes so far."""
        return used_ns(self.process)

    def waited_ns(self) -> int:
        """Return how long its main thread has waited for a core so far."""
        return int(_read(PROC / str(self.process) / "schedstat").split()[1])


@contextmanager
def started(setup: Setup, cores: Cores, store: str = "", python: str = sys.executable) -> Iterator[Served]:
    """Start a server for a with block; `python` is the interpreter of Headgate's environment."""
    http, grpc = free_port(), free_port()
    with TemporaryDirectory(prefix="headgate-bench-") as name:
        command = _command(setup, Path(name), (http, grpc), store, python)
        with running(command, cores, Path(name) / "log") as process:
            yield Served(process, http, grpc, tls=setup.tls)


class Command(NamedTuple):
    """The command of a program, and its ports."""

    words: list[str]
    ports: tuple[int, ...]
    environment: Mapping[str, str] = {}


def _command(setup: Setup, folder: Path, ports: tuple[int, int], store: str, python: str) -> Command:
    http, grpc = ports
    match setup.program:
        case "nginx":
            return _nginx(folder, http)
        case "uvloop" | "uvicorn" | "grpcio" as peer:
            port = grpc if peer == "grpcio" else http
            return Command([sys.executable, "-m", "benchmarks.service.peers", peer, str(port)], (port,))
        case "ratelimit":
            return _ratelimit(setup, folder, grpc, store)
        case "limitador-server":
            return _limitador(setup, folder, ports, store)
        case "gubernator" | "throttlecrab-server" as peer:
            return _gubernator(ports) if peer == "gubernator" else _throttlecrab(ports)
        case _:
            return _headgate(setup, folder, ports, store, python)


def _nginx(folder: Path, port: int) -> Command:
    """Return the command of the floor: one worker with a constant response."""
    configuration = folder / "nginx.conf"
    configuration.write_text(NGINX.format(folder=folder, port=port))
    return Command(["nginx", "-p", str(folder), "-e", "stderr", "-c", str(configuration)], (port,))


def _headgate(setup: Setup, folder: Path, ports: tuple[int, int], store: str, python: str) -> Command:
    http, grpc = map(str, ports)
    words = [python, "-m", "headgate.cli", "serve", "--http-port", http, "--grpc-port", grpc]
    words += ["--store", f"{store}?timeout={STORE_SECONDS}" if setup.redis else store or "memory"]
    if setup.rules:
        (folder / "rules.yaml").write_text(setup.rules)
        words += ["--rules", str(folder / "rules.yaml")]
    if setup.descriptors:
        (folder / "envoy").mkdir()
        (folder / "envoy" / f"{DOMAIN}.yaml").write_text(setup.descriptors)
        words += ["--envoy-config", str(folder / "envoy")]
    if setup.identity:
        (folder / "identity.yaml").write_text(setup.identity)
        words += ["--identity", str(folder / "identity.yaml")]
    if setup.tls:
        chain, key = certificate(folder)
        words += ["--tls-cert", str(chain), "--tls-key", str(key)]
    if setup.workers > 1:
        words += ["--workers", str(setup.workers)]
    return Command(words, ports, {"HEADGATE_DRAIN_DELAY": "0"})


def _ratelimit(setup: Setup, folder: Path, grpc: int, store: str) -> Command:
    """Return the command of envoyproxy/ratelimit, and its environment."""
    config = folder / "bench" / "config"
    config.mkdir(parents=True)
    (config / f"{DOMAIN}.yaml").write_text(setup.descriptors)
    server, _, _ = store.removeprefix("redis://").partition("/")  # it does not support databases
    environment = {
        "RUNTIME_ROOT": str(folder),
        "RUNTIME_SUBDIRECTORY": "bench",
        "RUNTIME_WATCH_ROOT": "false",
        "BACKEND_TYPE": "redis",
        "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": server,
        "USE_STATSD": "false",
        "LOG_LEVEL": "error",
        "HOST": "127.0.0.1",
        "GRPC_HOST": "127.0.0.1",
        "DEBUG_HOST": "127.0.0.1",
        "PORT": str(free_port()),
        "GRPC_PORT": str(grpc),
        "DEBUG_PORT": str(free_port()),
        "LOCAL_CACHE_SIZE_IN_BYTES": str(64 << 20 if setup.local_cache else 0),
    }
    return Command(["ratelimit"], (grpc,), environment)


def _limitador(setup: Setup, folder: Path, ports: tuple[int, int], store: str) -> Command:
    http, grpc = map(str, ports)
    limits = folder / "limits.yaml"
    limits.write_text(setup.rules)
    words = ["limitador-server", "--rls-ip", "127.0.0.1", "--rls-port", grpc, "--http-ip", "127.0.0.1"]
    words += ["--http-port", http, str(limits)]
    words += ["redis", store] if setup.redis else ["memory"]
    return Command(words, ports[1:])


def _gubernator(ports: tuple[int, int]) -> Command:
    """Return the command of Gubernator as a cluster of one: without members, no key has an owner."""
    http, grpc = ports
    itself = f"127.0.0.1:{free_port()}"
    environment = {
        "GUBER_HTTP_ADDRESS": f"127.0.0.1:{http}",
        "GUBER_GRPC_ADDRESS": f"127.0.0.1:{grpc}",
        "GUBER_PEER_DISCOVERY_TYPE": "member-list",
        "GUBER_MEMBERLIST_ADDRESS": itself,
        "GUBER_MEMBERLIST_BIND_ADDRESS": itself,
        "GUBER_MEMBERLIST_KNOWN_NODES": itself,
        "GUBER_LOG_LEVEL": "error",
        "OTEL_TRACES_EXPORTER": "none",
    }
    return Command(["gubernator"], ports, environment)


def _throttlecrab(ports: tuple[int, int]) -> Command:
    http, grpc = map(str, ports)
    words = ["throttlecrab-server", "--http", "--http-host", "127.0.0.1", "--http-port", http]
    words += ["--grpc", "--grpc-host", "127.0.0.1", "--grpc-port", grpc, "--log-level", "error"]
    return Command(words, ports)


@contextmanager
def running(command: Command, cores: Cores, log: Path) -> Iterator[int]:
    pinned = ["taskset", "-c", ",".join(map(str, cores.server)), *command.words]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603  our own words
            pinned, stdout=output, stderr=output, cwd=ROOT, env={**os.environ, **command.environment}
        )
    try:
        for port in command.ports:
            _wait(process, port, log)
        yield process.pid
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
    """Bind a process with all its threads to these cores."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def processes(root: int) -> list[int]:
    """Return the ids of a process and its descendants."""
    found = [root]
    for pid in found:  # grows during the loop
        for children in PROC.glob(f"{pid}/task/*/children"):
            found += map(int, _read(children).split())
    return found


def used_ns(root: int) -> int:
    """Return the nanoseconds, user and system, that all threads of a process and its descendants were running."""
    return sum(
        int((_read(thread) or "0").split()[0])
        for pid in processes(root)
        for thread in PROC.glob(f"{pid}/task/*/schedstat")
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has ended
        return ""


def version(program: str) -> str:
    """Return the version of a program; wrk and nginx print it with other words, and not always on stdout."""
    option = {"h2load": "--version"}.get(program, "-v")
    ended = subprocess.run([program, option], capture_output=True, text=True, check=False)  # noqa: S603  from a list of ours
    first = (ended.stdout + ended.stderr).splitlines()[0]
    return next((word for word in first.replace("/", " ").split() if word[0].isdigit()), first)


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for the loopback, and its key; return their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    chain, secret = folder / "certificate.pem", folder / "key.pem"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return chain, secret
